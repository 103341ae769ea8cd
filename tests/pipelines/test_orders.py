"""The main job, small: the orders example through a kill, and an audit that sees whatever is off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cli.demo import conclude
from penstock.errors import PenstockError
from penstock.examples.orders.audit import Stage, audit_streams, audit_tables
from penstock.examples.orders.ledger import Plan
from penstock.examples.orders.play import Play, Result
from penstock.examples.orders.report import write_report
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.pipelines.projects import api

SLOW = pytest.mark.timeout(600)  # Spark starts twice here, on a machine that may be busy


@pytest.fixture(scope="module")
def shop() -> Iterator[Server]:
    """A server of its own, because the example's streams have names that are everybody's."""
    with Server(sync="2m") as server:
        yield server


@pytest.fixture(scope="module")
def played(shop: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Play, Result]:
    """The example, small, with Spark killed once in the middle."""
    plan = Plan(orders=700, customers=12, documents=3, document_bytes=700_000, broken=0.05, unacked=0.03)
    play = Play(shop.url, tmp_path_factory.mktemp("orders"), plan, kills=1, pace=0.0)
    return play, asyncio.run(play.run())


@SLOW
def test_nothing_is_lost_or_repeated_through_a_kill(played: tuple[Play, Result], tmp_path: Path):
    """Every stage of the example adds up to the ledger although Spark was killed, and the report says so."""
    _, result = played
    assert any("SIGKILL" in text for _, text in result.notes)
    assert [stage for stage in result.stages if not stage.ok] == []
    assert all(stage.expected for stage in result.stages), "a stage that expects nothing proves nothing"
    assert result.duplicates > 0
    page = write_report(result, tmp_path / "report.html").read_text()
    assert "nothing lost, nothing repeated" in page
    assert page.count("<svg") >= 3
    assert "http" not in page, "the report needs nothing from elsewhere"
    assert conclude(result, tmp_path / "report.html") is None


@SLOW
def test_the_audit_sees_what_is_dropped_and_doubled(played: tuple[Play, Result], shop: Server):
    """A message that is taken out of a stream or put in twice, and a row that is there twice, fail the audit."""
    play, result = played
    options = penstock.ConnectionOptions(shop.url)

    def off() -> dict[str, tuple[int, int]]:
        stages = [*audit_streams(result.ledger, options), *audit_tables(result.ledger, play.warehouse)]
        return {stage.name: (stage.lost, stage.repeated) for stage in stages if not stage.ok}

    assert off() == {}
    with BulkConnection(options) as bulk:
        first = next(iter(bulk.read("REVENUE", subjects="revenue.*", on_loss=print))).slice(0, 2).to_pylist()
    api(shop.url, "STREAM.MSG.DELETE.REVENUE", {"seq": first[0]["sequence"]})
    assert off() == {"revenue in the stream REVENUE": (1, 0)}

    async def double() -> None:
        client = await penstock.connect(shop.url)
        try:
            await client.publish(first[1]["subject"], first[1]["data"])
            await client.publish("orders.c-000", result.ledger.orders[0].encode())
            await client.flush()
        finally:
            await client.close()

    asyncio.run(double())
    assert off()["revenue in the stream REVENUE"] == (1, 1)
    assert off()["orders in the stream ORDERS"][1] == 1
    gone = result.ledger.orders.pop()
    assert off()["whole orders, joined with customers"] == (0, 1)
    result.ledger.orders += [gone, gone]
    assert off()["whole orders, joined with customers"] == (1, 0)
    result.ledger.orders.pop()


def test_a_bad_audit_ends_the_demo_with_an_error(tmp_path: Path):
    """One stage that is off is enough for a status that is not zero."""
    result = Result(Play("nats://127.0.0.1:1", tmp_path).ledger, [Stage("a", 1, 1, 0, 0), Stage("b", 1, 0, 1, 0)])
    with pytest.raises(PenstockError, match="does not add up"):
        conclude(result, tmp_path)
