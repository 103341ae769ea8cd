"""Pipelines as their users run them: the orders example through a kill, and a new project from the command line."""

from __future__ import annotations

import asyncio
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cli.demo import conclude
from penstock.errors import InputError, PenstockError, PipelineError
from penstock.examples.orders.audit import Stage, audit_streams, audit_tables
from penstock.examples.orders.ledger import Plan
from penstock.examples.orders.play import Play, Result
from penstock.examples.orders.report import write_report
from penstock.pipelines import Project, run
from penstock.pipelines.checkpoints import read_flows
from penstock.pipelines.process import PipelineRun, _session
from penstock.pipelines.template import write_project
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.command import Command
from tests.spark.projects import api, count, quick_project

SLOW = pytest.mark.timeout(600)  # Spark starts several times here, on a machine that may be busy


# -- the main job ------------------------------------------------------------------------------------------------------


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


# -- a project of one's own --------------------------------------------------------------------------------------------


@SLOW
def test_a_continuous_run_ends_cleanly(shop: Server, tmp_path: Path, eventually):
    """A continuous run counts rows in and out, keeps others away, and Ctrl-C ends it with Spark and status 0."""
    command = Command(tmp_path, shop.url)
    folder = quick_project(tmp_path)
    traffic = runpy.run_path(str(folder / "traffic.py"))
    asyncio.run(traffic["publish"](shop.url, 300))
    high = sum(reading["value"] > 90 for reading in traffic["sample"](300))

    with command.running("pipeline", "run", str(folder), "--continuous", "--json") as child:
        eventually(lambda: child.process.poll() is not None or count(shop.url, "ALERTS", "alerts.*") == high, 300)
        children = list(_session_of(child.process.pid))
        with pytest.raises(InputError, match="runs already"):
            PipelineRun(Project.load(folder), penstock.ConnectionOptions(shop.url)).start()
        child.process.send_signal(2)
        assert child.process.wait(120) == 0
        said = "\n".join(child.rest())
    assert children
    assert not [pid for leader in children for pid in _session(leader)], "Spark is gone with the command"
    outcome = json.loads(said[said.index("{") :])
    assert (outcome["ok"], outcome["rows_in"], outcome["lag"]) == (True, 300, 0)
    assert outcome["flows"]["readings"]["rows_out"] == 300
    assert outcome["flows"]["alerts"]["rows_out"] == high, "the sink's own count"

    status = json.loads(command("pipeline", "status", str(folder), "--json").stdout)
    readings = next(flow for flow in status["flows"] if flow["target"] == "readings")
    assert (readings["streams"], readings["lag"], status["running"]) == ({"READINGS": 301}, {"READINGS": 0}, False)
    assert command("pipeline", "reset", str(folder), "--force").returncode == 0
    assert read_flows(folder / "storage") == []


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
def test_a_new_projects_own_test_passes(tmp_path: Path):
    """What `pipeline new` writes passes the test that it writes, as it stands."""
    command = Command(tmp_path)
    assert command("pipeline", "new", "sensors", "--in", str(tmp_path)).returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path / "sensors",
        env=command.env,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_bad_input_is_refused_before_spark_starts(server: Server, tmp_path: Path):
    """Options that contradict each other, and projects that are none, cost no time."""
    folder = write_project(tmp_path, "quick")
    with pytest.raises(InputError, match="Both master and remote"):
        run(folder, url=server.url, master="local[2]", remote="sc://x")
    with pytest.raises(InputError, match="no Spark Connect address"):
        run(folder, url=server.url, remote="http://x")
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:1 cannot be reached"):
        run(folder, url=server.url, remote="sc://127.0.0.1:1")
    with pytest.raises(InputError, match="neither dry nor"):
        run(folder, url=server.url, continuous=True, dry=True)
    with pytest.raises(InputError, match="no pipeline at"):
        run(tmp_path / "nothing", url=server.url)
