"""A project of one's own, as its user runs it: from the command line, until Ctrl-C, and through its own test."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InputError, PenstockError, PipelineError
from penstock.pipelines import Project, Table, replay, run
from penstock.pipelines.checkpoints import read_flows
from penstock.pipelines.new_project import write_project
from penstock.pipelines.process import PipelineRun, _session
from penstock.pipelines.progress import read_progress
from penstock.pipelines.replays import switch_back
from penstock.pipelines.running import apply_topology
from penstock.server import Server
from tests.live.command import Command
from tests.pipelines.projects import api, count, quick_project, send
from tests.support import Authority

SLOW = pytest.mark.timeout(600)  # Spark starts here, on a machine that may be busy


# Every reading under its number: a sink may be a bucket.
_BUCKET = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.pipelines import target

spark = SparkSession.active()
dp.create_sink("numbered", "nats", {"bucket": target("KV_NUMBERED").bucket})


@dp.append_flow(target="numbered", name="numbered")
def numbered_flow():
    rows = spark.readStream.table("readings")
    return rows.select(F.col("sequence").cast("string").alias("key"), F.col("sensor").alias("value"))
"""
_TOPOLOGY = """
[streams.KV_NUMBERED]
subjects = ["$KV.NUMBERED.>", "$PENSTOCK.KV_NUMBERED.>"]
max_msgs_per_subject = 1
discard = "new"
allow_rollup_hdrs = true
allow_direct = true
allow_atomic = true
"""


def with_bucket(project: Path) -> Path:
    """Add a flow into a bucket to a project."""
    (project / "transformations" / "numbered.py").write_text(_BUCKET)
    with (project / "topology.toml").open("a") as topology:
        topology.write(_TOPOLOGY)
    return project


@SLOW
def test_a_continuous_run_ends_cleanly(server: Server, tmp_path: Path, eventually):
    """A continuous run counts rows in and out, keeps others away, and Ctrl-C ends it with Spark and status 0."""
    command = Command(tmp_path, server.url)
    folder = with_bucket(quick_project(tmp_path))
    traffic = runpy.run_path(str(folder / "traffic.py"))
    asyncio.run(traffic["publish"](server.url, 300))
    high = sum(reading["value"] > 90 for reading in traffic["sample"](300))

    with command.running("pipeline", "run", str(folder), "--continuous", "--pause", "30s", "--json") as child:
        eventually(
            lambda: (
                child.process.poll() is not None
                or (count(server.url, "ALERTS", "alerts.*"), count(server.url, "KV_NUMBERED", "$KV.NUMBERED.*"))
                == (high, 300)
            ),
            300,
        )
        children = list(_session_of(child.process.pid))
        with pytest.raises(InputError, match="runs already"):
            PipelineRun(Project.load(folder), penstock.ConnectionOptions(server.url)).start()
        child.process.send_signal(2)
        assert child.process.wait(120) == 0
        said = "\n".join(child.rest())
    assert children
    assert not [pid for leader in children for pid in _session(leader)], "Spark is gone with the command"
    outcome = json.loads(said[said.index("{") :])
    assert (outcome["ok"], outcome["rows_in"], outcome["lag"]) == (True, 300, 0)
    assert outcome["flows"]["readings"]["rows_out"] == 300
    assert outcome["flows"]["alerts"]["rows_out"] == high, "the sink's own count"
    assert outcome["flows"]["numbered"]["rows_out"] == 300, "a sink that is a bucket"

    status = json.loads(command("pipeline", "status", str(folder), "--json").stdout)
    readings = next(flow for flow in status["flows"] if flow["target"] == "readings")
    assert (readings["streams"], readings["lag"], status["running"]) == ({"READINGS": 301}, {"READINGS": 0}, False)
    assert command("pipeline", "reset", str(folder), "--force").returncode == 0
    assert read_flows(folder / "storage") == []
    for stream in ("READINGS", "ALERTS", "KV_NUMBERED"):
        api(server.url, f"STREAM.DELETE.{stream}")


_PEEK = """
import json
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.contexts import load_options

found = load_options()
seen = [SparkSession.active().conf.get("spark.sql.shuffle.partitions"), found.request_timeout, found.tls_hostname]
(Path(__file__).parent.parent / "seen.json").write_text(json.dumps(seen))
"""


@SLOW
def test_what_the_caller_gives_reaches_the_pipeline(tmp_path: Path):
    """A certificate of another name, a time-out and a setting over the spec's hold where the files and sources run."""
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("server", "nats.example")
    folder = quick_project(tmp_path, **{"spark.sql.shuffle.partitions": "4"})
    for name in ("alerts.py", "totals.sql"):
        (folder / "transformations" / name).unlink()
    (folder / "transformations" / "peek.py").write_text(_PEEK)
    with Server(sync="2m", tls_cert=pair.cert, tls_key=pair.key) as nats:
        options = penstock.ConnectionOptions(
            nats.url, tls_ca=str(authority.ca), tls_hostname="nats.example", request_timeout=7.5
        )
        apply_topology(Project.load(folder), options)
        send(options, [{"sensor": "s1", "value": 1.0}] * 20)
        outcome = run(folder, options=options, master="local[2]", conf={"spark.sql.shuffle.partitions": "7"})
    assert outcome.rows_in == 20
    assert json.loads((folder / "seen.json").read_text()) == ["7", 7.5, "nats.example"]


@SLOW
@pytest.mark.heavy
def test_replays_keep_a_state_of_their_own(server: Server, tmp_path: Path):
    """From a sequence, or all within an hour: a replay has streams and tables of its own, and switches go both ways."""
    folder = quick_project(tmp_path)
    traffic = runpy.run_path(str(folder / "traffic.py"))
    sample = traffic["sample"](400)

    def high(first: int, end: int) -> int:
        return sum(reading["value"] > 90 for reading in sample[first:end])

    def readings(storage: Path) -> int:
        return len(Table(storage / "warehouse" / "readings").rows(["sequence"]))

    storage = folder / "storage"
    asyncio.run(traffic["publish"](server.url, 300))
    run(folder, url=server.url)
    late = replay(folder, url=server.url, start="101", into={"ALERTS": "LATE"}, name="late")
    whole = replay(folder, url=server.url, start="1h", into={"ALERTS": "WHOLE"}, name="whole", switch_to_it=True)
    (old,), (new,) = late.comparisons, whole.comparisons
    assert (old.new_count, old.same, old.only_old, old.only_new) == (high(100, 300), high(100, 300), high(0, 100), 0)
    assert (new.new_count, new.same, new.only_old, new.only_new) == (high(0, 300), high(0, 300), 0, 0)
    assert [readings(place) for place in (storage, storage / "replays" / "late")] == [300, 200]

    send(server.url, sample[300:])
    run(folder, url=server.url)
    assert count(server.url, "WHOLE", "WHOLE.alerts.*") == high(0, 400)
    assert (count(server.url, "ALERTS", "alerts.*"), readings(storage)) == (high(0, 300), 300)
    switch_back(Project.load(folder))
    run(folder, url=server.url)
    assert (count(server.url, "ALERTS", "alerts.*"), readings(storage)) == (high(0, 400), 400)
    assert readings(storage / "replays" / "whole") == 400
    for stream in ("READINGS", "ALERTS", "LATE", "WHOLE"):
        api(server.url, f"STREAM.DELETE.{stream}")


@SLOW
@pytest.mark.heavy
def test_a_bucket_is_replayed_into_another_bucket(server: Server, tmp_path: Path):
    """A replay writes the keys into another bucket; into a plain stream, or into its own bucket, it is refused."""
    folder = with_bucket(quick_project(tmp_path))
    traffic = runpy.run_path(str(folder / "traffic.py"))
    asyncio.run(traffic["publish"](server.url, 100))
    run(folder, url=server.url)
    pairs = {"ALERTS": "ALERTS_V2", "KV_NUMBERED": "KV_NUMBERED_V2"}
    found = replay(folder, url=server.url, start="51", into=pairs, name="v2")
    compared = {item.old: (item.old_count, item.new_count, item.same) for item in found.comparisons}
    assert compared["KV_NUMBERED"] == (100, 50, 50)
    with pytest.raises(PenstockError):
        replay(folder, url=server.url, start="51", into={"ALERTS": "ALERTS_V3"}, name="v3")
    assert count(server.url, "KV_NUMBERED", "$KV.NUMBERED.*") == 100
    for stream in ("READINGS", "ALERTS", "ALERTS_V2", "ALERTS_V3", "KV_NUMBERED", "KV_NUMBERED_V2"):
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


def _is_java(pid: int) -> bool:
    try:
        return "java" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:  # it has ended meanwhile
        return False


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


@SLOW
def test_spark_goes_with_a_command_that_is_killed(server: Server, tmp_path: Path, eventually):
    """A command that is killed with SIGKILL takes Spark, and the folder with its connection, along."""
    folder = quick_project(tmp_path, "doomed")
    folders = tmp_path / "tmp"
    folders.mkdir()
    with Command(tmp_path, server.url).running("pipeline", "run", str(folder), TMPDIR=str(folders)) as child:
        leader: list[int] = []

        def java_runs() -> bool:
            leader[:] = _session_of(child.process.pid)
            return bool(leader) and any(map(_is_java, _session(leader[0])))

        eventually(java_runs, 120)
        child.process.send_signal(signal.SIGKILL)
        child.process.wait(10)
        eventually(lambda: not list(_session(leader[0])), 60)
    assert not list(folders.glob("penstock-pipeline-*/nats.json")), "the connection is on disk"
    for stream in ("READINGS", "ALERTS"):
        api(server.url, f"STREAM.DELETE.{stream}")


@SLOW
def test_a_java_that_is_killed_ends_the_run(server: Server, tmp_path: Path, eventually):
    """A continuous run whose Java is killed says so and ends with status 1, within seconds and without a Ctrl-C."""
    folder = quick_project(tmp_path, "headless")
    with Command(tmp_path, server.url).running("pipeline", "run", str(folder), "--continuous") as child:

        def java() -> int | None:
            left = read_progress(folder / "storage")
            if left is None or left["phase"] == "starting Spark":
                return None
            started = (pid for leader in _session_of(child.process.pid) for pid in _session(leader))
            return next(filter(_is_java, started), None)

        os.kill(eventually(java, 120), signal.SIGKILL)
        assert child.process.wait(60) == 1
        assert "The pipeline headless failed: Spark's Java process was ended by SIGKILL" in "\n".join(child.rest())
    for stream in ("READINGS", "ALERTS"):
        api(server.url, f"STREAM.DELETE.{stream}")


_TWO = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_streaming_table("both")


@dp.append_flow(target="both")
def first():
    return spark.readStream.table("readings").select("sequence")


@dp.append_flow(target="both")
def second():
    return spark.readStream.table("readings").select("sequence")
"""


@SLOW
@pytest.mark.heavy
def test_what_does_not_belong_together_is_refused(server: Server, tmp_path: Path):
    """On a real Spark: two flows into a table, refreshes, a flow renamed, a checkpoint deleted, a storage copied.

    Each of them lost or repeated rows without a word, as Spark has it.
    """
    folder = quick_project(tmp_path)
    traffic = runpy.run_path(str(folder / "traffic.py"))
    asyncio.run(traffic["publish"](server.url, 100))
    high = sum(reading["value"] > 90 for reading in traffic["sample"](100))

    def refused(says: str, **given: Any) -> None:
        with pytest.raises(PenstockError, match=says):
            run(folder, url=server.url, **given)
        assert count(server.url, "ALERTS", "alerts.*") == high

    run(folder, url=server.url)
    assert count(server.url, "ALERTS", "alerts.*") == high
    refused("alerts has read the table readings, which is to be computed anew", full_refresh=["readings"])
    refused("alerts .*a second time", full_refresh_all=True)
    two = folder / "transformations" / "two.py"
    two.write_text(_TWO)
    refused("The table both has 2 flows, first and second")
    two.unlink()
    alerts = folder / "transformations" / "alerts.py"
    text = alerts.read_text()
    alerts.write_text(text.replace('name="alerts"', 'name="alarms"'))
    refused("alarms of the sink alerts is new")
    alerts.write_text(text)
    checkpoints = folder / "storage" / "_checkpoints"
    checkpoints.rename(tmp_path / "kept")
    refused("readings has batches up to 0, and the checkpoint of its flow readings is not there")
    shutil.rmtree(checkpoints, ignore_errors=True)
    (tmp_path / "kept").rename(checkpoints)
    shutil.copytree(folder / "storage", tmp_path / "copy")
    refused("was moved or copied from", storage=tmp_path / "copy")
    run(folder, url=server.url, full_refresh=["totals"])
    assert count(server.url, "ALERTS", "alerts.*") == high
    for stream in ("READINGS", "ALERTS"):
        api(server.url, f"STREAM.DELETE.{stream}")


@SLOW
def test_processes_of_a_cluster_go_with_the_tests(tmp_path: Path, eventually):
    """What the tests start of Spark is gone when they are killed, and nothing of it is left when they end."""
    program = (
        "import pathlib, time\n"
        "from tests.pipelines.processes import spark_process\n"
        f"with spark_process(pathlib.Path({str(tmp_path)!r}), 'master', 'Starting Spark master',\n"
        "    'org.apache.spark.deploy.master.Master', '--host', '127.0.0.1', '--port', '0', '--webui-port', '0'):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        (leader,) = _session_of(parent.pid)
        assert list(_session(leader))
        parent.kill()
        parent.wait(10)
        eventually(lambda: not list(_session(leader)), 60)


def test_bad_input_is_refused_before_spark_starts(server: Server, tmp_path: Path):
    """Options that contradict each other, and projects that are none, cost no time."""
    folder = write_project(tmp_path, "quick")
    with pytest.raises(InputError, match="Both master and remote"):
        run(folder, url=server.url, master="local[2]", remote="sc://x")
    with pytest.raises(InputError, match="not a Spark Connect address"):
        run(folder, url=server.url, remote="http://x")
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:1 cannot be reached"):
        run(folder, url=server.url, remote="sc://127.0.0.1:1")
    with pytest.raises(InputError, match="neither dry nor"):
        run(folder, url=server.url, continuous=True, dry=True)
    with pytest.raises(InputError, match="no pipeline at"):
        run(tmp_path / "nothing", url=server.url)
