"""The page on reading says what is true: its programs run, one after the other, in one session."""

from __future__ import annotations

import re

import pytest

from tests.spark.java import ROOT

PAGE = ROOT / "docs" / "howto" / "spark-read.md"


@pytest.mark.timeout(300)
def test_programs_of_the_page_run(spark, server, streams, eventually, tmp_path):
    """Every program in the page runs as it stands; what the page takes for granted is given here."""
    subjects = [("eu.a" if number % 2 else "us", f'{{"id": {number}, "price": 1.5}}'.encode()) for number in range(99)]
    streams.make("ORDERS", subjects=["orders.>"])
    streams.fill("orders", [*subjects, ("eu.b", b"not JSON")])
    streams.make("EVENTS_1")
    streams.fill("EVENTS_1", 5)
    programs = re.findall(r"```python spark\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) > 8
    names = {"spark": spark, "url": server.url, "folder": str(tmp_path), "wait": eventually}
    for number, program in enumerate(programs, 1):
        exec(compile(program, f"{PAGE.name}:{number}", "exec"), names)
