"""Pipelines as their users run them: the orders example through a kill, and a new project from the command line."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.bus import Bus
from penstock.cli.demo import conclude, keep_running
from penstock.connection import api_request
from penstock.errors import InputError, PenstockError, PipelineError
from penstock.examples.orders.audit import Stage, audit_streams, audit_tables
from penstock.examples.orders.ledger import Plan
from penstock.examples.orders.play import Play, Result
from penstock.examples.orders.report import write_report
from penstock.examples.orders.service import QUEUE, ask
from penstock.pipelines import Project, run
from penstock.pipelines.checkpoints import read_flows
from penstock.pipelines.process import PipelineRun, _session
from penstock.pipelines.template import write_project
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.browser import Browser
from tests.live.command import Command
from tests.spark.java import java_home

SLOW = pytest.mark.timeout(600)  # Spark starts several times here, on a machine that may be busy


def api(url: str, method: str, body: object = None) -> dict[str, object]:
    async def call() -> dict[str, object]:
        client = await penstock.connect(url)
        try:
            return await api_request(client, method, body)
        finally:
            await client.close()

    return asyncio.run(call())


# -- the main job ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop() -> Iterator[Server]:
    """A server of its own, because the example's streams have names that are everybody's."""
    with Server(sync="2m") as server:
        yield server


@pytest.fixture(scope="module")
def played(shop: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Play, Result]:
    """The example, small, with Spark killed once in the middle."""
    plan = Plan(orders=1500, customers=12, documents=4, document_bytes=700_000, broken=0.05)
    play = Play(shop.url, tmp_path_factory.mktemp("orders"), plan, kills=1)
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


# -- a project of one's own --------------------------------------------------------------------------------------------


@SLOW
def test_a_new_project_runs_stops_and_replays(server: Server, tmp_path: Path, eventually):
    """`new`, a continuous run that Ctrl-C ends cleanly, `status`, `replay` and `reset` work from the command line."""
    os.environ["JAVA_HOME"] = java_home() or ""
    command = Command(tmp_path, server.url)
    assert command("pipeline", "new", "sensors", "--in", str(tmp_path)).returncode == 0
    folder = tmp_path / "sensors"
    traffic = runpy.run_path(str(folder / "traffic.py"))
    asyncio.run(traffic["publish"](server.url, 300))
    high = sum(reading["value"] > 90 for reading in traffic["sample"](300))

    def alerts() -> int:
        with BulkConnection(penstock.ConnectionOptions(server.url)) as bulk:
            return sum(batch.num_rows for batch in bulk.read("ALERTS", subjects="alerts.*", on_loss=print))

    with command.running("pipeline", "run", str(folder), "--continuous") as child:
        eventually(lambda: child.process.poll() is not None or alerts() == high, 300)
        children = list(_session_of(child.process.pid))
        with pytest.raises(InputError, match="runs already"):
            PipelineRun(Project.load(folder), penstock.ConnectionOptions(server.url)).start()
        child.process.send_signal(2)
        assert child.process.wait(120) == 0
    assert children
    assert not [pid for leader in children for pid in _session(leader)], "Spark is gone with the command"
    status = json.loads(command("pipeline", "status", str(folder), "--json").stdout)
    readings = next(flow for flow in status["flows"] if flow["target"] == "readings")
    assert (readings["streams"], readings["lag"], status["running"]) == ({"READINGS": 301}, {"READINGS": 0}, False)

    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock", "pipeline", "replay", str(folder)),
            *("--from", "101", "--into", "ALERTS=ALERTS_V2", "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        env=command.env,
    )
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads(done.stdout)
    later = sum(reading["value"] > 90 for reading in traffic["sample"](300)[100:])
    assert (comparison["old_count"], comparison["new_count"]) == (high, later)
    assert (comparison["same"], comparison["only_new"]) == (later, 0)
    assert alerts() == high

    assert command("pipeline", "reset", str(folder), "--force").returncode == 0
    assert read_flows(folder / "storage") == []
    for stream in ("READINGS", "ALERTS", "ALERTS_V2"):
        api(server.url, f"STREAM.DELETE.{stream}")


def _session_of(parent: int) -> Iterator[int]:
    """Find the children of a process."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            yield int(path.parent.name)


@SLOW
def test_a_failing_pipeline_says_why(server: Server, tmp_path: Path):
    """A stream that is missing ends the run with our sentence, not Spark's, and leaves nothing running."""
    folder = write_project(tmp_path, "broken")
    (folder / "topology.toml").unlink()
    (folder / "transformations" / "alerts.py").unlink()
    (folder / "transformations" / "totals.sql").unlink()
    reading = folder / "transformations" / "readings.py"
    reading.write_text(reading.read_text().replace("READINGS", "NOWHERE"))
    with pytest.raises(PipelineError, match="NOWHERE") as caught:
        run(folder, url=server.url)
    assert Path(caught.value.log or "").exists()
    assert "AnalysisException" not in str(caught.value)


def test_bad_input_is_refused_before_spark_starts(server: Server, tmp_path: Path):
    """Options that contradict each other, and projects that are none, cost no time."""
    folder = write_project(tmp_path, "quick")
    with pytest.raises(InputError, match="Both master and remote"):
        run(folder, url=server.url, master="local[2]", remote="sc://x")
    with pytest.raises(InputError, match="no Spark Connect address"):
        run(folder, url=server.url, remote="http://x")
    with pytest.raises(InputError, match="neither dry nor"):
        run(folder, url=server.url, continuous=True, dry=True)
    with pytest.raises(InputError, match="no pipeline at"):
        run(tmp_path / "nothing", url=server.url)
