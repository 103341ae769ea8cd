"""Pipelines on a real Spark Connect server: runs, replays from a time, switches, and failures that say why."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.pipelines import remote
from penstock.pipelines.progress import read_progress
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


_KINDS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.temporary_view
def named():
    return spark.readStream.table("readings").where("sensor is not null")


@dp.table
def kinds():
    return spark.readStream.table("named").select("sensor").dropDuplicates()
"""


def _cells(line: str) -> list[str]:
    """Give the cells of a line of a table."""
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def test_run_replay_and_switch(penstock: Penstock, nats: Server, connect: str, server: Server, tmp_path: Path):
    """One command replays a changed pipeline from a time, compares and switches; runs then go on there, or back."""
    folder = quick_project(tmp_path)
    traffic = runpy.run_path(str(folder / "traffic.py"))
    sample = traffic["sample"](400)

    def high(limit: int = 90, first: int = 0, end: int = 300) -> int:
        return sum(reading["value"] > limit for reading in sample[first:end])

    # Two batches of the first flow, and a table with state whose rows only Spark can count.
    readings = folder / "transformations" / "readings.py"
    limited = '.option("start", start_position()).option("maxMessagesPerTrigger", 200)'
    readings.write_text(readings.read_text().replace('.option("start", start_position())', limited))
    (folder / "transformations" / "kinds.py").write_text(_KINDS)
    asyncio.run(traffic["publish"](nats.url, 300))
    done = penstock("run", str(folder), "--remote", connect)
    assert done.returncode == 0, done.stderr
    assert "spark.driver.extraJavaOptions is left as that Spark has it" in done.stderr
    assert "Done: 300 rows read from NATS, in 1 update." in done.stdout
    assert count(nats.url, "ALERTS", "alerts.*") == high()

    # The figures are those of the counts above: in the table, and for whoever looks from outside.
    kinds = len({reading["sensor"] for reading in sample[:300]})
    cells = {row[0]: row[1:] for line in done.stdout.splitlines() if len(row := _cells(line)) == 9}
    assert cells["readings"][:4] == ["completed", "300", "300", "0"]
    assert cells["alerts"][:4] == ["completed", "300", str(high()), "–"]
    assert cells["kinds"][:4] == ["completed", "300", str(kinds), "–"]
    assert cells["kinds"][6] == str(kinds)
    assert cells["totals"] == ["completed", *["–"] * 7], "it is no query, and nobody tells"
    assert all(re.fullmatch(r"[\d.]+ s", cells[name][5]) for name in ("readings", "alerts", "kinds"))
    left = read_progress(folder / "storage")
    assert left is not None
    flows = {flow["name"]: flow for flow in left["flows"]}
    assert (flows["readings"]["batches"], flows["readings"]["streams"]) == (2, {"READINGS": 301})
    batches = [
        (batch["number"], batch["rows"], batch["lag"]) for batch in left["batches"] if batch["flow"] == "readings"
    ]
    assert batches == [(0, 200, 100), (1, 100, 0)]

    (folder / "transformations" / "kinds.py").unlink()

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
    done = penstock("run", str(folder), "--remote", connect, "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["ok"], outcome["rows_in"], outcome["lag"]) == (True, 100, 0)
    assert {name: flow["rows_out"] for name, flow in outcome["flows"].items()} == {
        "readings": 100,
        "alerts": high(80, 300, 400),
        "totals": None,
    }
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


def test_the_example_of_a_replay(nats: Server, connect: str, tmp_path: Path):
    """The example runs, changes its code, replays from a time and switches; what it asserts of the streams holds."""
    example = Path(__file__).resolve().parents[2] / "examples" / "replay" / "replay.py"
    folder = tmp_path / "replay"
    for expected, said in ((0, "Switched: the next run goes on"), (1, "is there already: name another folder")):
        done = subprocess.run(
            [sys.executable, str(example), str(folder), connect],
            capture_output=True,
            text=True,
            timeout=400,
            env=Command(tmp_path, nats.url).env,
        )
        assert done.returncode == expected, done.stderr
        assert said in done.stdout + done.stderr


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
    assert error.startswith(
        "penstock: The pipeline wrong failed: flow alerts: Row 0 of this task cannot be written: subject"
    )
    assert "Exception" not in done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "storage" / "spark.log").exists()


# As a file is written by somebody who has not heard of replays, and what it may do beside.
_PLAIN = (("out.stream", '"ALERTS"'), ('out.subject("alerts.")', '"alerts."'), ('out = target("ALERTS")', ""))
_BESIDE = """
from pyspark.sql import SparkSession

rows = SparkSession.active().createDataFrame([("alerts.x", b"beside")], "subject string, data binary")
rows.write.format("nats").option("stream", "ALERTS").mode("append").save()
"""


def test_a_replay_never_writes_to_the_live_stream(penstock: Penstock, nats: Server, connect: str, tmp_path: Path):
    """A sink that does not ask for its target, and a write beside the pipeline, are refused; nothing is written.

    The Connect server has an environment of its own: what it must not write reaches its tasks as a setting.
    """
    folder = quick_project(tmp_path)
    asyncio.run(runpy.run_path(str(folder / "traffic.py"))["publish"](nats.url, 50))
    before = count(nats.url, "ALERTS", "alerts.*")
    alerts, beside = folder / "transformations" / "alerts.py", folder / "transformations" / "beside.py"
    (folder / "transformations" / "totals.sql").unlink()
    asks = alerts.read_text()
    for text in ("sink", "write"):
        plain = asks
        for old, new in _PLAIN if text == "sink" else ():
            plain = plain.replace(old, new)
        alerts.write_text(plain)
        beside.write_text(_BESIDE if text == "write" else "")
        named = ("--name", f"never-{text}", "--into", f"ALERTS=NEVER_{text.upper()}")
        done = penstock("replay", str(folder), *named, "--remote", connect)
        assert done.returncode == 1, done.stdout
        assert "This replay would write to ALERTS, which is not one of its own streams" in done.stderr
    assert count(nats.url, "ALERTS", "alerts.*") == before


_LISTEN = """
import sys

from pyspark.sql.connect.session import SparkSession

from penstock.pipelines.listening import Listening

spark = SparkSession.builder.remote(sys.argv[1]).create()
told = []


def say(kind, progress=None, reason=None):
    if kind == "progress":
        told.append(progress)


def query(rows):
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    begun = frame.writeStream.format("noop").trigger(availableNow=True).start()
    begun.awaitTermination(300)


with Listening(spark, say) as first:
    assert first.problem is None, first.problem
    first.hear("Flow kinds is PLANNING.")
    first.hear("Flow kinds is RUNNING.")
    first.hear("Flow rows is RUNNING.")
    with Listening(spark, say, patience=1.0) as second:
        print("a second one:", second.problem)
    query(7)
print("all heard:", first.problem, sum(source["numInputRows"] for item in told for source in item["sources"]))

with Listening(spark, say) as cut:
    cut.hear("Flow rows is RUNNING.")
    list(cut._command(add=False))  # as a server does that gives a listener up
print("cut:", cut.problem)

with cut as again:
    pass
print("again:", again.problem)
print("refused:", second.__enter__().problem is not None)
spark.stop()
"""


def test_what_is_not_heard_is_noticed(connect: str):
    """Every progress is heard before an update ends; a server that has a listener, or drops one, is noticed."""
    done = subprocess.run(
        [sys.executable, "-c", _LISTEN, connect], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "a second one: it has taken no listener; do the pipeline's files add one?",
        "all heard: None 7",
        "cut: it stopped telling",
        "again: None",
        "refused: True",
    ]


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


_CHECK = """
import sys
from pyspark.sql import SparkSession
from penstock.spark import check

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print([(item.penstock, item.pyarrow) for item in check(spark, tasks=2)])
"""


def test_executors_behind_a_connect_server_are_looked_at(connect: str):
    """The check of a session works without the classes that a Connect session lacks."""
    done = subprocess.run([sys.executable, "-c", _CHECK, connect], capture_output=True, text=True, timeout=120)
    assert re.search(r"^\[\('[^']+', '[^']+'\)\]$", done.stdout, re.MULTILINE), done.stdout + done.stderr
