"""Pipelines without Spark: projects, settings, event logs, outcomes, checkpoints and tables on disk."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import InputError, OptionError, PipelineError
from penstock.pipelines.checkpoints import read_flows
from penstock.pipelines.eventlog import EventLog
from penstock.pipelines.new_project import write_project
from penstock.pipelines.outcome import OBSERVED, Outcome
from penstock.pipelines.process import _take_lock
from penstock.pipelines.project import Project
from penstock.pipelines.remote import Sight, check_remote, refuse_other
from penstock.pipelines.replays import beside, current_replay, database, keep_replay, switch, switch_back
from penstock.pipelines.settings import start_position, target
from penstock.pipelines.state import state_paths
from penstock.pipelines.tables import Table
from penstock.spark.pipeline_replay import VARIABLE, PipelineReplay


def offset(next_sequence: int, stream: str = "ORDERS") -> str:
    mark = {"created": "2026-01-01T00:00:00Z", "from": 1, "next": next_sequence, "skipped": 0}
    return json.dumps({"version": 1, "streams": {stream: mark}})


def progress(batch: int, rows: int, end: int, latest: int) -> dict[str, object]:
    source = {"endOffset": offset(end), "latestOffset": offset(latest), "numInputRows": rows}
    return {
        "Event": "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent",
        "progress": {
            "id": "q1",
            "name": "spark_catalog.default.raw",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "batchId": batch,
            "durationMs": {"triggerExecution": 500},
            "sources": [source],
            "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 1000}],
        },
    }


# -- projects ----------------------------------------------------------------------------------------------------------


def test_a_look_at_the_lock_stops_no_run(tmp_path: Path):
    """A run that starts while somebody looks whether one is under way waits for the look to end."""
    project = Project.load(write_project(tmp_path / "orders", "orders"))
    look = _take_lock(project, patience=0.0)
    assert look is not None
    threading.Timer(0.1, os.close, [look]).start()
    lock = _take_lock(project, patience=30.0)
    assert lock is not None
    with pytest.raises(InputError, match="runs already"):
        _take_lock(project, patience=0.0)
    os.close(lock)


def test_a_new_project_loads(tmp_path: Path):
    """What `pipeline new` writes is a project with a topology, its storage beside the spec."""
    project = Project.load(write_project(tmp_path, "sensors"))
    assert (project.name, project.local_storage) == ("sensors", tmp_path / "sensors" / "storage")
    assert project.topology is not None
    assert set(project.topology.streams) == {"READINGS", "ALERTS"}
    assert project.at(tmp_path / "x").warehouse == tmp_path / "x" / "warehouse"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name: sensors", "nam: sensors"), "Did you mean name"),
        (("storage: storage", ""), "does not say its storage"),
        (("transformations/**", "nothing/**"), "names no file"),
        (("name: sensors", ": : :"), "cannot be read"),
    ],
)
def test_a_broken_spec_is_refused(tmp_path: Path, change: tuple[str, str], message: str):
    """A spec that Spark would choke on is refused with a sentence, before Spark is started."""
    folder = write_project(tmp_path, "sensors")
    spec = folder / "spark-pipeline.yaml"
    spec.write_text(spec.read_text().replace(*change))
    with pytest.raises(InputError, match=message):
        Project.load(folder)


def test_new_refuses_what_it_cannot_make(tmp_path: Path):
    """A bad name, a folder that is there, and a place without a spec are refused."""
    with pytest.raises(InputError, match="cannot be the name"):
        write_project(tmp_path, "1 2")
    write_project(tmp_path, "twice")
    with pytest.raises(InputError, match="is there already"):
        write_project(tmp_path, "twice")
    with pytest.raises(InputError, match=r"no spark-pipeline\.yaml"):
        Project.load(tmp_path)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_of_a_replay():
    """Ordinarily a file reads and writes where it says; in a replay where the replay says, and never both."""
    assert start_position("new", environ={}) == "new"
    assert target("REVENUE", environ={}).subject("revenue.x") == "revenue.x"
    replayed = {VARIABLE: PipelineReplay("17", {"REVENUE": "R2"}).to_json()}
    assert start_position("new", environ=replayed) == "17"
    there = target("REVENUE", environ=replayed)
    assert (there.stream, there.subject("revenue.x")) == ("R2", "R2.revenue.x")
    with pytest.raises(InputError, match="a second time"):
        target("OTHER", environ=replayed)
    with pytest.raises(InputError, match="no replay wrote"):
        start_position(environ={VARIABLE: "{"})


# -- replays -----------------------------------------------------------------------------------------------------------


def test_a_replay_is_what_it_was_begun_as(tmp_path: Path):
    """A duration ago becomes a time when a replay begins and stays that; other places or streams are refused."""
    project = Project.load(write_project(tmp_path, "sensors"))
    kept = keep_replay(project, "v2", "1h", {"ALERTS": "V2"})
    ago = datetime.now(UTC) - datetime.fromisoformat(kept.start)
    assert timedelta(minutes=59) < ago < timedelta(minutes=61)
    assert start_position(environ={VARIABLE: kept.settings()}) == kept.start
    assert keep_replay(project, "v2", "1h", {"ALERTS": "V2"}) == kept
    for start, into in (("2h", {"ALERTS": "V2"}), ("1h", {"ALERTS": "V3"})):
        with pytest.raises(InputError, match="begun from 1h into ALERTS=V2"):
            keep_replay(project, "v2", start, into)
    assert keep_replay(project, "v3", "2026-01-01T00:00:00Z", {}).start == "2026-01-01T00:00:00Z"
    backed = keep_replay(project, "v4", "all", {}, {"ORDERS": "/backup"})
    assert PipelineReplay.from_json(backed.settings()).backfill == {"ORDERS": "/backup"}
    assert not PipelineReplay.from_json(backed.settings(switched=True)).backfill
    assert keep_replay(project, "v4", "all", {}, {"ORDERS": "/backup"}) == backed
    with pytest.raises(InputError, match="with the backup /backup"):
        keep_replay(project, "v4", "all", {})


def test_a_pipeline_switches_and_switches_back(tmp_path: Path):
    """A pipeline goes on in a replay that is there, as often as one likes; never while it runs."""
    project = Project.load(write_project(tmp_path, "sensors"))
    with pytest.raises(InputError, match="has no replay v2"):
        switch(project, "v2")
    kept = keep_replay(project, "v2", "all", {"ALERTS": "V2"})
    with pytest.raises(InputError, match=r"no replay v3.*There is v2"):
        switch(project, "v3")
    assert current_replay(project) is None
    own, theirs = tmp_path / "sensors" / "storage", tmp_path / "sensors" / "storage" / "replays" / "v2"
    for folder in (own, theirs):
        (folder / "_checkpoints").mkdir()
    assert state_paths(project) == [own / "_checkpoints"]
    assert switch(project, "v2") == kept == current_replay(project)
    assert state_paths(project) == [own / "_checkpoints", own / "switched.json", theirs], "a reset forgets all of it"
    assert beside(project, "v2").warehouse == tmp_path / "sensors" / "storage" / "replays" / "v2" / "warehouse"
    lock = _take_lock(beside(project, "v2"))
    assert lock is not None
    for change in (lambda: switch(project, "v2"), lambda: switch_back(project)):
        with pytest.raises(InputError, match="runs"):
            change()
    os.close(lock)
    switch_back(project)
    assert current_replay(project) is None
    with pytest.raises(InputError, match="is not switched"):
        switch_back(project)
    with pytest.raises(InputError, match="no switch can be noted"):
        switch(project.at("s3a://bucket/x"), "v2")


def test_a_replay_that_shares_a_catalog_has_a_database_of_its_own(tmp_path: Path):
    """On a Connect server, or with a catalog that the spec names, tables of a replay never meet the pipeline's."""
    project = Project.load(write_project(tmp_path, "sensors"))
    assert database(project, "v-2", None) is None
    assert database(project, "v-2", "sc://x") == "default_replay_v_2"
    assert database(replace(project, catalog="lake", database="Shop"), "v2", None) == "shop_replay_v2"
    for setting in ("spark.hadoop.hive.metastore.uris", "spark.sql.catalog.lake", "spark.sql.catalogImplementation"):
        assert database(replace(project, configuration={setting: "x"}), "v2", None) == "default_replay_v2"
        assert database(project, "v2", None, {setting: "x"}) == "default_replay_v2"
    assert database(project.at("s3a://bucket/x"), "v2", None) == "default_replay_v2", "its warehouse may be shared"


# -- Connect servers ---------------------------------------------------------------------------------------------------


def test_a_remote_is_an_address_where_somebody_listens():
    """What is no address is refused, and one where nobody listens at once, not after minutes; tokens are not shown."""
    for text in ("http://x", "sc://", "sc://x:many/;token=secret"):
        with pytest.raises(OptionError, match="not a Spark Connect address") as caught:
            check_remote(text)
        assert "secret" not in str(caught.value)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(PipelineError, match=f"127.0.0.1:{port} cannot be reached"):
            check_remote(f"sc://127.0.0.1:{port}/;token=secret")
        taken.listen()
        check_remote(f"sc://127.0.0.1:{port}/;token=secret")


def test_another_nats_than_ours_is_refused():
    """A Connect server must see the streams of this run; one that names no NATS is left to the pipeline's files."""
    here = {"A": "2026-01-01T00:00:00Z"}
    seen = Sight("far", "3.11", "0.1", "20", named=True, problem=None, streams=here)
    refuse_other(seen, here)
    for other, said in (({"A": None}, "no such stream"), ({"A": "2026-01-02T00:00:00Z"}, "another one of that name")):
        with pytest.raises(InputError, match=said):
            refuse_other(replace(seen, streams=other), here)
    lost = replace(seen, problem="Nobody answers.", streams={})
    with pytest.raises(InputError, match=r"on far cannot ask NATS: Nobody answers\."):
        refuse_other(lost, here)
    refuse_other(replace(lost, named=False), here)


# -- what a run says ---------------------------------------------------------------------------------------------------


def test_outcome_adds_up():
    """Flows, rows, lag, state and failures follow from what the child and the event log say."""
    outcome = Outcome()
    outcome.hear({"kind": "ready", "spark": "4.3.0"})
    outcome.hear({"kind": "event", "message": "Flow spark_catalog.default.raw is RUNNING."})
    outcome.read(
        {"Event": "a.StreamingQueryListener$QueryStartedEvent", "id": "q1", "name": "spark_catalog.default.raw"}
    )
    outcome.read({"Event": "SparkListenerJobStart", "Stage IDs": [4], "Properties": {"sql.streaming.queryId": "q1"}})
    task = {"Event": "SparkListenerTaskEnd", "Task Metrics": {"Output Metrics": {"Records Written": 30}}}
    outcome.read({**task, "Stage ID": 4, "Task End Reason": {"Reason": "Success"}})
    outcome.read({**task, "Stage ID": 4, "Task End Reason": {"Reason": "TaskKilled"}})
    outcome.read({**task, "Stage ID": 5, "Task End Reason": {"Reason": "Success"}})
    outcome.read(progress(0, 40, end=41, latest=101))
    outcome.read(progress(1, 50, end=91, latest=101))
    flow = outcome.flows["raw"]
    assert (flow.status, flow.rows_in, flow.rows_out, flow.lag, flow.batches) == ("RUNNING", 90, 30, 10, 2)
    assert (flow.rate, flow.state_rows, flow.streams) == (100.0, 3, {"ORDERS": 91})
    assert [batch.lag for batch in outcome.history] == [60, 10]
    outcome.hear({"kind": "event", "message": "Flow 'spark_catalog.default.raw' has FAILED."})
    outcome.hear({"kind": "failed", "reason": "no such stream"})
    assert (flow.status, outcome.failure, outcome.ok) == ("FAILED", "no such stream", False)


def test_a_sink_that_counts_is_believed():
    """Rows out are what the sink says it wrote; its tasks are not counted beside it, and who says nothing has none."""
    outcome = Outcome()
    outcome.read({"Event": "a.StreamingQueryListener$QueryStartedEvent", "id": "q1", "name": "raw"})
    outcome.read({"Event": "SparkListenerJobStart", "Stage IDs": [4], "Properties": {"sql.streaming.queryId": "q1"}})
    task = {"Event": "SparkListenerTaskEnd", "Stage ID": 4, "Task End Reason": {"Reason": "Success"}}
    for number, written in enumerate((7, 0, 5)):
        outcome.read({**task, "Task Metrics": {"Output Metrics": {"Records Written": 7}}})
        event = progress(number, 10, end=11, latest=11)
        event["progress"]["sink"] = {"numOutputRows": written}
        outcome.read(event)
    assert outcome.flows["raw"].rows_out == 12
    silent = Outcome()
    silent.read(progress(0, 40, end=41, latest=41))
    assert silent.flows["raw"].rows_out is None


def test_a_run_elsewhere_is_counted_by_what_it_tells():
    """Each progress that a Connect server tells counts as one of the event log; Spark counts rows into files."""
    outcome = Outcome(counted=False)
    outcome.hear({"kind": "event", "message": "Flow totals is RUNNING."})
    assert (outcome.counted, outcome.lag) == (False, None), "nobody has told yet"
    outcome.hear({"kind": "listening"})
    for number, rows in enumerate((40, 50)):
        told = progress(number, rows, end=41 + 50 * number, latest=101)["progress"]
        outcome.hear({"kind": "progress", "progress": {**told, "observedMetrics": {OBSERVED: {"rows": rows - 1}}}})
    flow = outcome.flows["raw"]
    assert (outcome.counted, outcome.rows_in, outcome.lag) == (True, 90, 10)
    assert (flow.rows_out, flow.rate, flow.state_rows, flow.streams) == (88, 100.0, 3, {"ORDERS": 91})
    plain = outcome.flows["totals"].plain()
    assert {plain[name] for name in ("rows_in", "rows_out", "rate", "lag", "state_bytes")} == {None}, "never a zero"


def test_what_was_not_heard_is_not_known():
    """Where a server stops telling, rows are unknown and not too few, and that is said once; newer batches show."""
    outcome = Outcome(counted=False)
    outcome.hear({"kind": "listening"})
    outcome.hear({"kind": "progress", "progress": progress(0, 40, end=41, latest=101)["progress"]})
    for _ in range(2):
        outcome.hear({"kind": "deaf", "reason": "it stopped telling"})
    assert (outcome.counted, outcome.lag, outcome.flows["raw"].rows_out) == (False, None, None)
    assert outcome.notes == ["Rows are not counted: the Spark Connect server tells no progress: it stopped telling."]
    outcome.hear({"kind": "listening"})
    outcome.hear({"kind": "progress", "progress": progress(5, 10, end=91, latest=101)["progress"]})
    flow = outcome.flows["raw"]
    assert (outcome.counted, flow.plain(outcome.counted)["rows_in"], flow.lag, flow.rate) == (False, None, 10, 20.0)


def test_event_log_is_followed_through_rolls(tmp_path: Path):
    """Each event is given once, a line that is half written later, and files that were read are deleted."""
    folder = tmp_path / "eventlog_v2_app"
    folder.mkdir()
    log, first, second = EventLog(tmp_path), folder / "events_1_app", folder / "events_2_app"
    assert not list(log.read())
    line = json.dumps(progress(0, 1, 2, 3)) + "\n"
    first.write_text(line + '{"Event":"SparkListenerBlockUpdated"}\n' + line[:50])
    assert len(list(log.read())) == 1
    with first.open("a") as file:
        file.write(line[50:])
    second.write_text(line)
    assert len(list(log.read())) == 2
    assert not first.exists()
    assert not list(log.read())


# -- what a run leaves on disk -----------------------------------------------------------------------------------------


def test_checkpoints_say_how_far_a_flow_is(tmp_path: Path):
    """The newest version of a flow counts, and of it the newest batch that is done."""
    for version, done in (("0", 9), ("1", 1)):
        flow = tmp_path / "_checkpoints" / "spark_catalog" / "default" / "raw" / "raw" / version
        for name in ("offsets", "commits"):
            (flow / name).mkdir(parents=True)
        for batch in range(3):
            (flow / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", offset(10 * batch + 1)]))
        (flow / "commits" / str(done)).write_text("v1\n{}")
    (flow / "offsets" / ".1.crc").write_text("")
    (state,) = read_flows(tmp_path)
    assert (state.target, state.flow, state.planned, state.done) == ("raw", "raw", 2, 1)
    assert state.streams == {"ORDERS": 11}
    assert not state.complete
    assert read_flows(tmp_path / "nowhere") == []


def test_tables_hold_committed_files_only(tmp_path: Path):
    """A file that no batch committed does not count, a compact log stands for all before it."""
    table = tmp_path / "orders"
    log = table / "_spark_metadata"
    log.mkdir(parents=True)

    def entry(name: str, action: str = "add") -> str:
        return json.dumps({"path": f"file:///elsewhere/orders/{name}", "action": action})

    for name in ("a", "b", "c", "killed"):
        pq.write_table(pa.table({"x": [name]}), table / f"{name}.parquet")
    (log / "0").write_text("v1\n" + entry("gone.parquet"))
    (log / "1.compact").write_text("v1\n" + entry("a.parquet") + "\n" + entry("b.parquet"))
    (log / "2").write_text("v1\n" + entry("c.parquet"))
    assert sorted(row["x"] for row in Table(table).rows()) == ["a", "b", "c"]
    (log / "3").write_text("v2\n")
    with pytest.raises(InputError, match="version"):
        Table(table).rows()
    with pytest.raises(InputError, match="no table"):
        Table(tmp_path / "nothing").read()


# -- what people see ---------------------------------------------------------------------------------------------------

_DRAW = """
from penstock.cli.pipeline_show import board, print_summary
from penstock.pipelines.outcome import OBSERVED, Outcome

outcome = Outcome()
outcome.hear({"kind": "event", "message": "Flow spark_catalog.default.readings is RUNNING."})
flow = outcome.flows["readings"]
flow.rows_in, flow.rows_out, flow.lag, flow.rate, flow.batches, flow.batch_seconds = 700, 650, 300, 123.0, 2, 1.5
flow.state_rows, flow.state_bytes = 12, 4096
with board("sensors") as show:
    show(outcome, None)
print_summary(outcome)
"""


def test_the_board_draws_a_bar_and_a_table_on_a_terminal():
    """A terminal shows rows, lag, rate, batch time and state; the summary goes to standard output alone."""
    terminal, child_side = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", _DRAW],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=child_side,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
    ) as process:
        os.close(child_side)
        drawn = b""
        while chunk := _read(terminal):
            drawn += chunk
        printed = process.stdout.read().decode() if process.stdout else ""
        assert process.wait(30) == 0, drawn
    os.close(terminal)
    for text in ("sensors", "700 of 1,000", "readings", "running", "650", "300", "123", "1.5 s", "4.0 KiB"):
        assert text in drawn.decode(), text
    assert "readings" in printed
    assert "700 of 1,000" not in printed


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the other side is closed
        return b""
