"""The main job, small: the orders example through a kill, and an audit that sees whatever is off."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.bus import Bus
from penstock.cli.demo import conclude, keep_running
from penstock.errors import PenstockError
from penstock.examples.orders.audit import Stage, audit_streams, audit_tables
from penstock.examples.orders.ledger import Plan
from penstock.examples.orders.play import Play, Result
from penstock.examples.orders.report import write_report
from penstock.examples.orders.service import QUEUE, ask
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.browser import Browser
from tests.live.command import Command
from tests.pipelines.projects import api
from tests.spark.java import java_home

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
def test_everything_stays_there_with_the_console_on_it(
    played: tuple[Play, Result], shop: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """`--keep` leaves the service and the console until Ctrl-C; the console shows the pipeline, its flows and query."""
    play, result = played

    async def body() -> Browser:
        keeping = asyncio.create_task(keep_running(play, shop.url, tmp_path / "report.html"))
        said = ""
        while "pipeline run" not in said:
            assert not keeping.done(), said
            await asyncio.sleep(0.02)
            said += capsys.readouterr().out
        browser = Browser(next(word for word in said.split() if word.startswith("http")))
        page, data = await asyncio.to_thread(browser.both, "/pipelines")
        (shown,) = data["pipelines"]
        assert (shown["name"], shown["run"]["state"], shown["run"]["failure"]) == ("orders", "done", None)
        flows = {flow["flow"]: flow for flow in shown["flows"]}
        assert flows["incoming"]["lag"] == 0
        assert sum(stream["next"] - 1 for stream in flows["incoming"]["streams"]) == len(result.ledger.orders)
        assert flows["incoming"]["rows_in"] > 0, "the last run says what it read"
        assert [sink["state"] for sink in data["sinks"] if sink["stream"] == "REVENUE"] == ["done"]
        assert "all stored" in page
        _, data = await asyncio.to_thread(browser.both, "/transfers")
        assert [item["state"] for item in data["transfers"]] == ["whole"] * len(result.ledger.documents)
        client = await penstock.connect(shop.url)
        try:
            async with Bus(client, {QUEUE: 1}) as bus:
                assert await ask(bus, "top-customers", limit="3") == result.top[:3]
        finally:
            await client.close()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(keeping, 30)
        return browser

    browser = asyncio.run(body())
    with pytest.raises(ConnectionRefusedError):
        browser.get("/about")


@SLOW
@pytest.mark.heavy
def test_the_demo_keeps_everything_running(tmp_path: Path):
    """The whole command: it ends its audit, prints where everything is, and Ctrl-C ends and removes it all."""
    command = Command(tmp_path)
    small = ("--orders", "300", "--documents", "1", "--document-size", "100KB", "--kills", "0")
    with command.running("demo", *small, "--keep", "--folder", str(tmp_path), JAVA_HOME=java_home() or "") as child:
        pid = int(child.wait_for("nats-server").partition("(pid ")[2].partition(")")[0])
        child.wait_for("Nothing is lost", timeout=500)
        browser = Browser(child.wait_for("console").split()[-1])
        storage = Path(child.wait_for("tables").split()[-1]).parent
        update = child.wait_for("penstock pipeline run").split()
        assert browser.get("/overview").status == 200
        with command.running(*update[1:], JAVA_HOME=java_home() or "") as again:
            assert again.process.wait(500) == 0, again.rest()
        assert browser.get("/pipelines.json").json()["pipelines"][0]["run"]["updates"] == 1
        assert child.interrupt() == 0
    assert not storage.parent.exists()
    assert not Path(f"/proc/{pid}").exists()


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
