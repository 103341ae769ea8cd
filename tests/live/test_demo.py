"""The demo without Spark: its traffic and the audit of it, its service on the bus, and its report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.buckets import KeyValue
from penstock.bus import Bus, Request
from penstock.connection import connect
from penstock.demo import ORDERS
from penstock.demo.audit import Stage, audit_answers, audit_streams, audit_tables, read_revenue
from penstock.demo.ledger import Ledger, Volume
from penstock.demo.play import Result
from penstock.demo.report import write_report
from penstock.demo.service import BUCKET, QUEUE, Shop, ask
from penstock.demo.traffic import Traffic
from penstock.errors import PenstockError
from penstock.jetstream import assets
from penstock.options import ConnectionOptions
from penstock.pipelines.outcome import MicroBatch
from penstock.pipelines.project import Project
from penstock.pipelines.running import apply_topology
from penstock.server import Server
from tests.live.browser import client_of

VOLUME = Volume(orders=300, customers=12, documents=2, document_bytes=700_000, unacked=0.05)
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def shop() -> Iterator[Server]:
    """A server of the shop's own: its streams have fixed names."""
    with Server(sync="2m") as running:
        yield running


# -- traffic and its audit ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sent(shop: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ledger, int]:
    """All of the traffic of a small shop, out through every producer; and how many repeats were known."""
    options = ConnectionOptions(shop.url)
    apply_topology(Project.load(ORDERS, storage=tmp_path_factory.mktemp("storage")), options)
    ledger = Ledger.draw(VOLUME, START)

    async def send() -> int:
        async with Traffic.open(shop.url, ledger) as traffic:
            await traffic.send_customers()
            await traffic.send_documents()
            await traffic.send_orders(100)
            assert traffic.position == 100
            await traffic.send_orders(10_000)
            assert traffic.position == len(ledger.orders)
            return traffic.orders.duplicates

    return ledger, asyncio.run(send())


def stages_of(ledger: Ledger, shop: Server) -> dict[str, Stage]:
    return {stage.name.split()[0]: stage for stage in audit_streams(ledger, ConnectionOptions(shop.url))}


def test_every_order_is_stored_once_whatever_way_it_came(sent: tuple[Ledger, int], shop: Server):
    """Orders that were sent twice, or whose sender died before its acks, are in the stream once; none is missing."""
    ledger, duplicates = sent
    assert {order.way for order in ledger.orders} == {"once", "twice", "unacked", "legacy"}
    stages = audit_streams(ledger, ConnectionOptions(shop.url))
    assert [stage.ok for stage in stages] == [True, True, True, False, False]
    assert stages[0].found == len(ledger.orders) - len(ledger.legacy)
    assert stages[1].found == len(ledger.legacy) > 0
    assert stages[2].found == VOLUME.documents
    twice = sum(order.way == "twice" for order in ledger.orders)
    unacked = sum(order.way == "unacked" for order in ledger.orders)
    assert duplicates == twice + unacked


def test_what_the_pipeline_has_not_written_is_lost_in_the_audit(sent: tuple[Ledger, int], shop: Server, tmp_path: Path):
    """Without Spark no sum and no row is there, and the audit counts each of them as lost, never as an error."""
    ledger, _ = sent
    revenue = audit_streams(ledger, ConnectionOptions(shop.url))[3]
    assert (revenue.found, revenue.lost) == (0, len(ledger.revenue()))
    assert read_revenue(ConnectionOptions(shop.url)) == []
    for stage in audit_tables(ledger, tmp_path / "nowhere"):
        assert (stage.found, stage.lost, stage.repeated) == (0, stage.expected, 0), stage.name
        assert stage.expected > 0, stage.name


async def test_the_audit_sees_a_chunk_that_is_missing(sent: tuple[Ledger, int], shop: Server):
    """A document that lacks a chunk is lost, and counts as something that nobody sent."""
    ledger, _ = sent
    async with client_of(shop.url) as client:
        kept = await assets.get_message(client, "DOCUMENTS", 1)
        await assets.delete_message(client, "DOCUMENTS", 1)
        stage = (await asyncio.to_thread(stages_of, ledger, shop))["documents"]
        assert (stage.lost, stage.repeated, stage.ok) == (1, 1, False)
        headers = {name: values[0] for name, values in kept.headers.items() if not name.startswith("Nats-")}
        await client.jetstream().publish(kept.subject, kept.data, headers=headers)
        assert (await asyncio.to_thread(stages_of, ledger, shop))["documents"].ok


async def test_traffic_that_cannot_begin_leaves_nothing_open(shop: Server):
    """Where a producer cannot be opened the error comes at once, and every connection is closed again."""
    wrong = shop.url.replace(shop.token or "", "a-wrong-token")
    with pytest.raises(PenstockError):
        async with Traffic.open(wrong, Ledger.draw(Volume(orders=1, documents=0), START)):
            pytest.fail("nobody was let in")


# -- the service -------------------------------------------------------------------------------------------------------


def write_table(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()


@asynccontextmanager
async def serving(shop: Server, warehouse: Path) -> AsyncIterator[Bus]:
    client = await connect(shop.url)
    try:
        async with Bus(client, {QUEUE: 1}) as bus, bus.serve(QUEUE, Shop(client, warehouse)):
            yield bus
    finally:
        await client.close()


async def test_the_service_answers_from_table_and_bucket(shop: Server, tmp_path: Path):
    """Orders of a customer come by time, the top customers by what they spent, and a limit is kept."""
    moments = [datetime(2026, 3, 1, 12, minute, tzinfo=UTC) for minute in range(3)]
    orders = [
        {
            "order_id": f"o-{number}",
            "customer": "c-1" if number != 1 else "c-2",
            "cents": 100 * number,
            "ordered": moment,
        }
        for number, moment in zip((2, 1, 0), reversed(moments), strict=True)
    ]
    write_table(tmp_path / "orders", orders)
    async with await connect(shop.url) as client:
        bucket = await KeyValue.open(client, BUCKET)
        for number in range(6):
            said = {"customer": f"c-{number}", "name": f"N{number}", "orders": 1, "cents": number % 3}
            await bucket.put(f"c-{number}", json.dumps(said).encode())
    async with serving(shop, tmp_path) as bus:
        async with await bus.request(Request(QUEUE, resource="sums", query={"customer": ["c-4"]}), timeout=20.0) as one:
            assert json.loads(one.response.data)["cents"] == 1
        assert [row["order_id"] for row in await ask(bus, "orders", customer="c-1")] == ["o-0", "o-2"]
        assert await ask(bus, "orders", customer="nobody") == []
        top = await ask(bus, "top-customers")
        assert [row["customer"] for row in top] == ["c-2", "c-5", "c-1", "c-4", "c-0", "c-3"]
        assert await ask(bus, "top-customers", limit="2") == top[:2]
        assert await ask(bus, "top-customers", limit="0") == []
    stages = audit_answers(Ledger.draw(VOLUME, START), "c-001", [], [])
    assert [stage.ok for stage in stages] == [False, False]


@pytest.mark.parametrize(
    ("resource", "query", "status"),
    [
        ("orders", {}, 404),
        ("nothing", {}, 404),
        ("", {}, 404),
        ("sums", {}, 404),
        ("sums", {"customer": ["c-unknown"]}, 404),
        ("sums", {"customer": ["no key > at all"]}, 404),
        ("top-customers", {"limit": ["ten"]}, 400),
        ("top-customers", {"limit": ["-1"]}, 400),
        ("top-customers", {"limit": ["9" * 5000]}, 400),
    ],
)
async def test_a_question_that_cannot_be_answered_gets_a_status(
    shop: Server, tmp_path: Path, resource: str, query: dict[str, list[str]], status: int
):
    """What the service does not have, and a limit that is no number, are answered with a sentence."""
    async with serving(shop, tmp_path) as bus:
        reply = await bus.request(Request(QUEUE, resource=resource, query=query), timeout=20.0)
        async with reply:
            response = reply.response
        assert response.status == status
        assert response.data


# -- the report --------------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)


def result_of(*stages: Stage) -> Result:
    made = Result(Ledger.draw(VOLUME, START), stages=list(stages), begun=1_772_000_000.0, seconds=12.3, duplicates=7)
    made.moments = [(0.0, 0, 0), (5.0, 200, 50)]
    made.notes = [(1.0, "Killed Spark with SIGKILL <b>&"), (3.0, "Spark 4 is up")]
    made.top = [{"customer": "c-1", "name": "<script>alert(1)</script>", "orders": 3, "cents": 12345}]
    made.revenue = [("north", "2026-03-01T12:00:00Z", 500, 2), ("west", "2026-03-01T12:01:00Z", 700, 1)]
    made.batches = [MicroBatch(at=1.0, flow="incoming", number=0, rows=10, seconds=0.5, lag=0)]
    made.versions = {"Spark": "4.<b>"}
    return made


def test_a_report_says_what_is_off_and_escapes_the_rest(tmp_path: Path):
    """One stage that is off makes the verdict; names, notes and versions are text; the figures stand beside it."""
    good, bad = Stage("orders", 5, 5, 0, 0), Stage("documents <i>", 5, 6, 1, 2)
    text = write_report(result_of(good), tmp_path / "good.html").read_text()
    assert "nothing lost, nothing repeated" in text
    assert "Spark was killed 1 time on the way." in text
    assert "123.45 in 3 orders" in text
    assert "script" not in Tags(text).found
    assert "SIGKILL &lt;b&gt;&amp;" in text
    text = write_report(result_of(good, bad), tmp_path / "bad.html").read_text()
    assert "something is off" in text
    assert "documents &lt;i&gt;" in text
    data = json.loads((tmp_path / "bad.json").read_text())
    assert data["ok"] is False
    assert data["stages"][1] == {"name": "documents <i>", "expected": 5, "found": 6, "lost": 1, "repeated": 2}


def test_a_play_that_came_to_nothing_has_a_report_too(tmp_path: Path):
    """Without a stage, a batch or an answer the report can still be written, and is no success."""
    result = Result(Ledger.draw(Volume(orders=1, documents=0), START))
    assert not result.ok
    assert "something is off" in write_report(result, tmp_path / "empty.html").read_text()
