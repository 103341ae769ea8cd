"""The pages about Spark say what is true: their programs run, one after the other, in one session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from penstock import Server, connect
from penstock.jetstream import snapshot
from tests.live.store_worlds import fill, make
from tests.spark.java import ROOT


@pytest.fixture
def run_page(spark, server, eventually, tmp_path) -> Callable[[str], int]:
    """Runs every program of a page as it stands, and says how many there were."""

    def run(page: str) -> int:
        programs = re.findall(r"```python spark\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        names = {"spark": spark, "url": server.url, "folder": str(tmp_path), "wait": eventually}
        for number, program in enumerate(programs, 1):
            exec(compile(program, f"{page}:{number}", "exec"), names)
        return len(programs)

    return run


def test_the_page_on_reading(run_page, streams):
    """Every program in the page runs as it stands; what the page takes for granted is given here."""
    subjects = [("eu.a" if number % 2 else "us", f'{{"id": {number}, "price": 1.5}}'.encode()) for number in range(99)]
    streams.make("ORDERS", subjects=["orders.>"])
    streams.fill("orders", [*subjects, ("eu.b", b"not JSON")])
    streams.make("EVENTS_1")
    streams.fill("EVENTS_1", 5)
    assert run_page("docs/howto/spark-read.md") > 8


def test_the_page_on_writing(run_page, streams):
    """Every program in the page runs as it stands; what the page takes for granted is given here."""
    streams.make("REVENUE", subjects=["revenue.>"])
    streams.make("COPY", subjects=["copy.>"])
    assert run_page("docs/howto/spark-write.md") >= 6


def test_the_page_on_backups_and_stores(run_page, tmp_path):
    """Every program in the page runs as it stands, over the store and a backup of a server that was."""

    async def work(url):
        async with await connect(url) as nc:
            await make(nc, "ORDERS")
            await fill(nc, "ORDERS", 100)
            await snapshot.backup(nc, "ORDERS", tmp_path / "backup")

    with Server(store=tmp_path / "store", sync="2m") as own:
        asyncio.run(work(own.url))
    assert run_page("docs/howto/backfill.md") == 2


def test_the_readme(run_page, read, streams):
    """The program in the README stores every order once, under the subject of its region."""
    streams.make("ORDERS", subjects=["orders.>"])
    streams.make("PRICES", subjects=["prices.>"])
    rows = [("new", f'{{"id": {number}, "region": "eu", "price": 1.5}}'.encode()) for number in range(10)]
    streams.fill("orders", rows)
    assert run_page("README.md") == 1
    assert run_page("README.md") == 1
    assert [row.subject for row in read("PRICES").collect()] == ["prices.eu"] * 10
