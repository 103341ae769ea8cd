"""The page on writing says what is true: its programs run one after the other, and its commands exist."""

from __future__ import annotations

import re

import pytest

from tests.spark.java import ROOT

PAGE = ROOT / "docs" / "howto" / "spark-write.md"


@pytest.mark.timeout(300)
def test_programs_of_the_page_run(spark, server, streams, tmp_path):
    """Every program in the page runs as it stands; what the page takes for granted is given here."""
    streams.make("REVENUE", subjects=["revenue.>"])
    streams.make("COPY", subjects=["copy.>"])
    programs = re.findall(r"```python spark\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) >= 6
    names = {"spark": spark, "url": server.url, "folder": str(tmp_path)}
    for number, program in enumerate(programs, 1):
        exec(compile(program, f"{PAGE.name}:{number}", "exec"), names)
