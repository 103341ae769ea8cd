"""Pipelines on a real Spark Connect server: runs, replays from a time, switches, and failures that say why."""

from __future__ import annotations

import asyncio
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.pipelines import remote
from penstock.server import Server
from tests.live.command import Command
from tests.pipelines.processes import connect_server
from tests.pipelines.projects import api, count, quick_project, send

pytestmark = pytest.mark.timeout(600)  # each run starts several Pythons, on a machine that may be busy


@pytest.fixture(scope="module")
def nats() -> Iterator[Server]:
    """A NATS server of its own, because the streams of new projects have the same names."""
    with Server(sync="2m") as running:
        yield running


@pytest.fixture(scope="module")
def connect(nats: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Connect server that knows its NATS from its own environment."""
    with connect_server(tmp_path_factory.mktemp("connect"), environment={"NATS_URL": nats.url}) as url:
        yield url


Penstock = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def penstock(nats: Server, tmp_path: Path) -> Penstock:
    """Run the command to its end."""
    env = Command(tmp_path, nats.url).env

    def call(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", "pipeline", *arguments],
            capture_output=True,
            text=True,
            timeout=400,
            env={**env, **extra},
        )

    return call


def test_run_replay_and_switch(penstock: Penstock, nats: Server, connect: str, server: Server, tmp_path: Path):
    """One command replays a changed pipeline from a time, compares and switches; runs then go on there, or back."""
    folder = quick_project(tmp_path)
    traffic = runpy.run_path(str(folder / "traffic.py"))
    sample = traffic["sample"](400)

    def high(limit: int = 90, first: int = 0, end: int = 300) -> int:
        return sum(reading["value"] > limit for reading in sample[first:end])

    asyncio.run(traffic["publish"](nats.url, 300))
    done = penstock("run", str(folder), "--remote", connect)
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout
    assert "spark.driver.extraJavaOptions is left as that Spark has it" in done.stderr
    assert "rows are counted in the event log" in done.stdout
    assert count(nats.url, "ALERTS", "alerts.*") == high()

    # The change: alerts from 80 on. The place: when the 151st reading was stored.
    alerts = folder / "transformations" / "alerts.py"
    alerts.write_text(alerts.read_text().replace("value > 90", "value > 80"))
    moment = api(nats.url, "STREAM.MSG.GET.READINGS", {"seq": 151})["message"]["time"]
    replayed = ("--from", moment, "--into", "ALERTS=ALERTS_V2", "--name", "v2", "--remote", connect)
    done = penstock("replay", str(folder), *replayed, "--switch", "--json")
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads(done.stdout)
    assert (comparison["old_count"], comparison["new_count"]) == (high(), high(80, 150))
    assert comparison["same"] == high(90, 150)
    assert (comparison["only_old"], comparison["only_new"]) == (high(90, 0, 150), high(80, 150) - high(90, 150))
    assert count(nats.url, "ALERTS", "alerts.*") == high(), "the old stream is as it was"

    # Switched: a run goes on where the replay ended, into its stream alone.
    send(nats.url, sample[300:])
    assert json.loads(penstock("status", str(folder), "--json").stdout)["replay"]["name"] == "v2"
    done = penstock("run", str(folder), "--remote", connect)
    assert done.returncode == 0, done.stderr
    assert count(nats.url, "ALERTS_V2", "ALERTS_V2.alerts.*") == high(80, 150, 400)
    assert count(nats.url, "ALERTS", "alerts.*") == high()
    assert penstock("switch", str(folder), "--back").returncode == 0
    status = json.loads(penstock("status", str(folder), "--json").stdout)
    assert (status["replay"], status["flows"][-1]["lag"]) == (None, {"READINGS": 100})

    # A Connect server whose NATS is another one is refused before anything runs there.
    done = penstock("run", str(folder), "--remote", connect, "-s", server.url)
    for stream in ("READINGS", "ALERTS"):
        api(server.url, f"STREAM.DELETE.{stream}")
    assert done.returncode == 1
    assert "The stream ALERTS is here, and the NATS of the Spark Connect server" in done.stderr
    assert "has another one of that name" in done.stderr


def test_a_flow_that_fails_ends_the_run(penstock: Penstock, nats: Server, connect: str, tmp_path: Path):
    """A flow that goes on failing is tried three times; then one sentence of ours, not Spark's, ends it, status 1."""
    folder = quick_project(tmp_path, "wrong", **{"spark.sql.pipelines.execution.watchdog.minRetryTime": "1"})
    asyncio.run(runpy.run_path(str(folder / "traffic.py"))["publish"](nats.url, 300))
    (folder / "transformations" / "totals.sql").unlink()
    for name, change in (("alerts", ('"alerts."', '"nowhere."')), ("readings", ("readings()", "raw()"))):
        path = folder / "transformations" / f"{name}.py"
        path.write_text(path.read_text().replace(*change).replace('"readings"', '"raw"'))
    done = penstock("run", str(folder), "--remote", connect)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("penstock: The pipeline wrong failed: Row 0 of this task cannot be written: subject is")
    assert "Exception" not in done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "storage" / "spark.log").exists()


def test_what_a_connect_server_is_asked(nats: Server, monkeypatch: pytest.MonkeyPatch):
    """The look needs no Penstock to be carried, and tells packages, streams, and why NATS cannot be asked."""
    monkeypatch.setenv("NATS_URL", nats.url)
    source = remote._source()
    assert "<locals>" in source.__qualname__, "carried by value"

    def see() -> remote.Sight:
        reader = source({"streams": '["NONE"]'}).reader(None)
        rows = [row for partition in reader.partitions() for row in reader.read(partition)]
        assert {row[3] for row in rows} == {remote.importlib.metadata.version("penstock")}
        return remote.Sight(**json.loads(rows[0][0]))

    assert (see().streams, see().named, see().problem) == ({"NONE": None}, True, None)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    assert "127.0.0.1:1" in (see().problem or "")
