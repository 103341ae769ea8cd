"""The pages about Spark say what is true: their programs run, one after the other, in one session."""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import Callable

import pytest

from penstock import Server, connect
from penstock.buckets import ObjectStore
from penstock.buckets.key_stream import bucket_stream
from penstock.buckets.object_status import object_stream
from penstock.connection import Connection
from penstock.jetstream import snapshot
from tests.live.backfilling import archive_once, back_up
from tests.live.bucketing import buckets  # noqa: F401  # a fixture
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


def test_the_page_on_buckets(run_page, streams, buckets):  # noqa: F811  # the fixture of that name
    """Every program in the page runs as it stands; what the page takes for granted is given here."""
    buckets.make("PRICES", max_msgs_per_subject=5)
    buckets.write("PRICES", ("eu.milk", b"1"), ("ch.milk", b"9"), ("eu.bread", b"3"), ("us.milk", b"4"))
    buckets.put("PRICES", eu__milk=b"2", ch__milk=b"1")
    buckets.delete("PRICES", "ch.milk")
    streams.make("ORDERS", subjects=["orders.>"])
    streams.fill("orders", [("x", b"eu.milk"), ("x", b"ch.milk")])

    async def put(nc: Connection) -> None:
        store = await ObjectStore.create_bucket(nc, "DOCS")
        await store.put("report.pdf", b"x" * 300_000, metadata={"kind": "pdf"})

    buckets.call(put)
    buckets.made.append("OBJ_DOCS")
    assert run_page("docs/howto/spark-buckets.md") >= 7


def test_the_page_on_writing_buckets(run_page, streams):
    """Every program in the page runs as it stands; what the page takes for granted is given here."""
    for stream in (bucket_stream("PRICES"), bucket_stream("TOTALS"), object_stream("DOCS")):
        streams.api(f"STREAM.CREATE.{stream.name}", stream.to_json())
        streams.made.append(stream.name)
    streams.make("ORDERS", subjects=["orders.>"])
    streams.fill("orders", [("new", b'{"customer": "c%d", "cents": 5}' % (number % 2)) for number in range(10)])
    assert run_page("docs/howto/spark-buckets-write.md") == 5
    last = streams.api("STREAM.MSG.GET.KV_TOTALS", {"last_by_subj": "$KV.TOTALS.c1"})["message"]
    assert b64decode(last["data"]) == b"25"


def test_the_pages_on_archives_and_backups(run_page, streams, tmp_path):
    """Every program in the two pages runs as it stands, over what the stream has dropped since."""
    streams.make("ORDERS", subjects=["orders.>"])
    streams.fill("orders", 100)
    archive_once(streams.url, "ORDERS", tmp_path / "archive")
    back_up(streams.url, "ORDERS", tmp_path / "backup")
    streams.fill("orders", 50)
    streams.api("STREAM.PURGE.ORDERS", {"seq": 101})
    assert run_page("docs/howto/archive.md") == 2
    assert run_page("docs/howto/backfill-live.md") == 2


def test_the_page_on_sql(run_page, streams):
    """Every program in the page runs as it stands; what the page takes for granted is given here."""
    streams.make("ORDERS", subjects=["orders.>"])
    streams.fill("orders", [("eu.a" if number % 2 else "us", b"x") for number in range(100)])
    streams.make("NOTES", subjects=["notes.>"])
    streams.make("PRICES", subjects=["prices.>"])
    assert run_page("docs/howto/sql.md") == 5


def test_the_page_on_json(run_page, streams):
    """Every program in the page runs as it stands; what the page takes for granted is given here."""
    streams.make("ORDERS", subjects=["orders.>"])
    rows = [f'{{"id": {number}, "price": 1.5}}'.encode() for number in range(99)]
    streams.fill("orders", [("eu", row) for row in (*rows, b"not JSON")])
    streams.make("DEAD", subjects=["dead.>"])
    streams.make("PRICES", subjects=["prices.>"])
    streams.api("STREAM.CREATE.KV_JSON", bucket_stream("JSON").to_json())
    streams.made.append("KV_JSON")
    assert run_page("docs/howto/json.md") == 6


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


def test_the_pages_for_those_who_come_from_elsewhere(run_page, streams):
    """Every program in the pages runs as it stands; what the pages take for granted is given here."""
    streams.make("ORDERS", subjects=["orders.>"])
    rows = [f'{{"id": {number}, "price": 1.5}}'.encode() for number in range(100)]
    streams.fill("orders", [("eu" if number % 2 else "us", row) for number, row in enumerate(rows)])
    streams.make("COPY", subjects=["copy.>"])
    config = {"durable_name": "old-query", "ack_policy": "explicit"} | {  # as if ten messages were acknowledged
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 11,
    }
    streams.api("CONSUMER.DURABLE.CREATE.ORDERS.old-query", {"stream_name": "ORDERS", "config": config})
    for page in ("nats-spark-connector", "kafka-spark", "flink", "risingwave"):
        assert run_page(f"docs/howto/from-{page}.md") == 1


def test_the_readme(run_page, read, streams):
    """The program in the README stores every order once, under the subject of its region."""
    streams.make("ORDERS", subjects=["orders.>"])
    streams.make("PRICES", subjects=["prices.>"])
    rows = [("new", f'{{"id": {number}, "region": "eu", "price": 1.5}}'.encode()) for number in range(10)]
    streams.fill("orders", rows)
    assert run_page("README.md") == 1
    assert run_page("README.md") == 1
    assert [row.subject for row in read("PRICES").collect()] == ["prices.eu"] * 10
