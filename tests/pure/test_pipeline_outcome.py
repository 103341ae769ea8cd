"""What a run has done, event by event: phases, flows, counts, lag, and the bounds of what is remembered."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PipelineError, RemoteProtocolError
from penstock.pipelines import eventlog
from penstock.pipelines.eventlog import EventLog, connect_port
from penstock.pipelines.outcome import MOST_BATCHES, MOST_JOBS, OBSERVED, FlowProgress, Outcome

STARTED = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent"
PROGRESS = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
CONNECT = "org.apache.spark.sql.connect.service.SparkListenerConnectServiceStarted"


def offset(**following: int) -> str:
    marks = {
        name: {"created": "2026-01-01T00:00:00Z", "from": 1, "next": number, "skipped": 0}
        for name, number in following.items()
    }
    return json.dumps({"version": 1, "streams": marks})


def told(name: str | None = "raw", batch: int = 0, **fields: Any) -> dict[str, Any]:
    """Give a progress as Spark writes it, with what a test says about it."""
    plain = {"id": "q1", "name": name, "timestamp": "2026-01-01T00:00:00.250Z", "batchId": batch, "sources": []}
    return {**plain, **fields}


def source(rows: int, end: Any, latest: Any = None) -> dict[str, Any]:
    return {"numInputRows": rows, "endOffset": end, "latestOffset": latest}


def heard(*progresses: dict[str, Any]) -> Outcome:
    """Give the outcome of a run of which Spark's log tells these."""
    outcome = Outcome()
    for progress in progresses:
        outcome.read({"Event": PROGRESS, "progress": progress})
    return outcome


# -- what the child says -----------------------------------------------------------------------------------------------


def test_the_phases_of_a_run():
    """From start to end a run is in the phase that its child told last, in words for people."""
    outcome = Outcome()
    assert outcome.phase == "starting Spark"
    for line, phase in (
        ({"kind": "starting"}, "starting Spark"),
        ({"kind": "ready", "spark": "4.3.0"}, "reading the definitions"),
        ({"kind": "looking"}, "looking at the Connect server"),
        ({"kind": "update", "number": 0}, "reading the definitions"),
        ({"kind": "registered"}, "running"),
        ({"kind": "event", "message": "Run is RUNNING."}, "run running"),
        ({"kind": "event", "message": "Run is COMPLETED."}, "run completed"),
        ({"kind": "event", "message": "Something else happens."}, "run completed"),
        ({"kind": "updated", "number": 0}, "up to date"),
        ({"kind": "a kind of later"}, "up to date"),
        ({"kind": "ended"}, "ended"),
    ):
        outcome.hear(line)
        assert outcome.phase == phase, line
    assert (outcome.ok, outcome.updates, outcome.spark) == (True, 1, "4.3.0")


def test_the_first_failure_is_the_reason():
    """What failed first is why a run failed, whatever fails after it; such a run is never ok."""
    outcome = Outcome()
    outcome.hear({"kind": "failed", "reason": "the stream is gone"})
    outcome.hear({"kind": "failed", "reason": "the session is closed"})
    assert (outcome.failure, outcome.phase) == ("the stream is gone", "failed")
    outcome.hear({"kind": "ended"})
    assert not outcome.ok


def test_a_run_that_did_not_end_is_not_ok():
    """No failure alone is no success: a run is ok when its child came to the end."""
    outcome = Outcome()
    outcome.hear({"kind": "updated"})
    assert not outcome.ok
    outcome.hear({"kind": "ended"})
    assert outcome.ok


def test_notes_are_kept_in_their_order():
    """What the caller should know is there, each once as it was said."""
    outcome = Outcome()
    for text in ("a is left", "b is left"):
        outcome.hear({"kind": "note", "text": text})
    assert outcome.notes == ["a is left", "b is left"]


@pytest.mark.parametrize(
    ("message", "name", "status"),
    [
        ("Flow spark_catalog.default.raw is QUEUED.", "raw", "QUEUED"),
        ("Flow 'spark_catalog.default.raw' has FAILED more than 2 times.", "raw", "FAILED"),
        ("Flow `spark_catalog`.`default`.`raw` is RUNNING.", "raw", "RUNNING"),
        ("Flow alerts has COMPLETED.", "alerts", "COMPLETED"),
        ("Flow a-b_c is STARTING.", "a-b_c", "STARTING"),
    ],
)
def test_a_flow_has_its_short_name(message: str, name: str, status: str):
    """A flow is known by the last part of its name, quoted or not, with the status that Spark told last."""
    outcome = Outcome()
    outcome.hear({"kind": "event", "message": message})
    assert {flow.name: flow.status for flow in outcome.flows.values()} == {name: status}


@pytest.mark.parametrize("message", ["", "Flow", "Flow x becomes RUNNING.", "A Flow x is RUNNING.", "Run was STARTED."])
def test_other_messages_make_no_flow(message: str):
    """A message that says nothing of a flow or the run changes nothing."""
    outcome = Outcome()
    outcome.hear({"kind": "event", "message": message})
    assert (outcome.flows, outcome.phase) == ({}, "starting Spark")


# -- progress of queries -----------------------------------------------------------------------------------------------


def test_a_progress_without_figures_is_a_batch():
    """A batch of which Spark says nothing but its number counts, with zeros, and no rate is made of no time."""
    outcome = heard(told(durationMs=None, stateOperators=None, sources=None, sink=None))
    flow = outcome.flows["raw"]
    assert (flow.batches, flow.rows_in, flow.rate, flow.batch_seconds) == (1, 0, 0.0, 0.0)
    assert (flow.rows_out, flow.lag, flow.streams) == (None, None, {})
    (batch,) = outcome.history
    assert (batch.flow, batch.number, batch.lag) == ("raw", 0, 0)
    assert batch.at == datetime(2026, 1, 1, microsecond=250_000, tzinfo=UTC).timestamp()


def test_a_query_without_a_name_has_its_id():
    """A flow that Spark gives no name is known by the id of its query, in its start and its progress alike."""
    outcome = heard(told(name=None))
    outcome.read({"Event": STARTED, "id": "q1", "name": None})
    outcome.read({"Event": "SparkListenerJobStart", "Stage IDs": [1], "Properties": {"sql.streaming.queryId": "q1"}})
    outcome.read(
        {
            "Event": "SparkListenerTaskEnd",
            "Stage ID": 1,
            "Task End Reason": {"Reason": "Success"},
            "Task Metrics": {"Output Metrics": {"Records Written": 3}},
        }
    )
    assert (list(outcome.flows), outcome.flows["q1"].rows_out) == (["q1"], 3)


def test_the_figures_of_the_newest_batch_stand():
    """Rows add up over batches; rate, time and state are those of the newest one."""
    first = told(
        durationMs={"triggerExecution": 2000},
        sources=[source(100, offset(A=101), offset(A=101))],
        stateOperators=[
            {"numRowsTotal": 5, "memoryUsedBytes": 50},
            {"numRowsTotal": 2, "memoryUsedBytes": None},
        ],
    )
    second = told(batch=1, durationMs={"triggerExecution": 500}, sources=[source(10, offset(A=111), offset(A=131))])
    flow = heard(first).flows["raw"]
    assert (flow.rate, flow.state_rows, flow.state_bytes, flow.lag) == (50.0, 7, 50, 0)
    flow = heard(first, second).flows["raw"]
    assert (flow.rows_in, flow.rate, flow.batch_seconds, flow.batches) == (110, 20.0, 0.5, 2)
    assert (flow.state_rows, flow.state_bytes, flow.lag) == (0, 0, 20)


def test_lag_is_of_nats_streams_alone():
    """A flow that reads another source has no lag, and its rows are not rows from NATS."""
    outcome = heard(
        told("raw", sources=[source(40, offset(A=41, B=3), offset(A=51, B=13))]),
        told("joined", sources=[source(40, {"logOffset": 3}), source(2, None, "x")]),
    )
    assert outcome.flows["raw"].streams == {"A": 41, "B": 3}
    assert (outcome.flows["joined"].rows_in, outcome.flows["joined"].lag) == (42, None)
    assert (outcome.rows_in, outcome.lag) == (40, 20)


def test_before_the_first_batch_nothing_waits():
    """Where Spark knows no latest offset, the end of the batch stands for it."""
    assert heard(told(sources=[source(0, offset(A=7), None)])).lag == 0


def test_a_flow_reads_several_sources():
    """The rows of all sources are rows in; each stream keeps its own next sequence."""
    sources = [source(3, offset(A=4), offset(A=4)), source(5, offset(B=6), offset(B=16))]
    flow = heard(told(sources=sources)).flows["raw"]
    assert (flow.rows_in, flow.streams, flow.lag) == (8, {"A": 4, "B": 6}, 10)


def test_observed_rows_add_up():
    """Rows that Spark counted on their way are rows out; a sink's own count is believed instead of it."""
    seen = {OBSERVED: {"rows": 4}}
    outcome = heard(told(observedMetrics=seen), told(batch=1, observedMetrics=seen), told(batch=2, observedMetrics={}))
    assert outcome.flows["raw"].rows_out == 8
    outcome = heard(told(observedMetrics=seen, sink={"numOutputRows": 3}))
    assert outcome.flows["raw"].rows_out == 3
    outcome = heard(told(observedMetrics=seen, sink={"numOutputRows": -1}))
    assert outcome.flows["raw"].rows_out == 4


def test_what_is_not_known_is_null():
    """A flow with no batch has no figures; where rows are not counted, those of a batch are not known either."""
    waiting = FlowProgress("raw").plain()
    assert (waiting["status"], waiting["batches"], waiting["streams"]) == ("WAITING", 0, {})
    unknown = ("rows_in", "rows_out", "rate", "batch_seconds", "lag", "state_rows", "state_bytes")
    assert [waiting[name] for name in unknown] == [None] * len(unknown)
    flow = FlowProgress("raw", batches=1, rows_in=5, rows_out=5, rate=1.0)
    assert (flow.plain()["rows_in"], flow.plain()["rate"]) == (5, 1.0)
    uncounted = flow.plain(counted=False)
    assert (uncounted["rows_in"], uncounted["rows_out"], uncounted["rate"]) == (None, None, 1.0)


def test_what_is_remembered_has_bounds(monkeypatch: pytest.MonkeyPatch):
    """A run of weeks forgets its oldest batches and the oldest stages, and counts on."""
    outcome = Outcome()
    assert outcome.history.maxlen == MOST_BATCHES
    outcome.read({"Event": STARTED, "id": "q1", "name": "raw"})
    for stage in range(MOST_JOBS + 5):
        properties = {"sql.streaming.queryId": "q1"}
        outcome.read({"Event": "SparkListenerJobStart", "Stage IDs": [stage], "Properties": properties})
    task = {
        "Event": "SparkListenerTaskEnd",
        "Task End Reason": {"Reason": "Success"},
        "Task Metrics": {"Output Metrics": {"Records Written": 1}},
    }
    for stage in (0, 4, 5, MOST_JOBS + 4):
        outcome.read({**task, "Stage ID": stage})
    assert outcome.flows["raw"].rows_out == 2, "the stages 0 to 4 are forgotten"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"Event": "SparkListenerApplicationStart"},
        {"Event": CONNECT, "bindingPort": 1},
        {"Event": "SparkListenerJobStart", "Stage IDs": [1], "Properties": None},
        {"Event": "SparkListenerJobStart", "Stage IDs": None, "Properties": {"sql.streaming.queryId": "q1"}},
        {"Event": "SparkListenerTaskEnd"},
        {"Event": "SparkListenerTaskEnd", "Stage ID": 9, "Task End Reason": None, "Task Metrics": None},
    ],
)
def test_events_of_no_interest_change_nothing(event: dict[str, Any]):
    """Whatever else Spark logs leaves the figures as they are."""
    outcome = Outcome()
    outcome.read({"Event": STARTED, "id": "q1", "name": "raw"})
    outcome.read(event)
    assert (outcome.flows, list(outcome.history)) == ({}, [])


# -- Spark's event log -------------------------------------------------------------------------------------------------


def log_of(folder: Path, number: int, *events: dict[str, Any]) -> Path:
    """Write a file of a log as Spark does."""
    path = folder / "eventlog_v2_app" / f"events_{number}_app"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def batches(log: EventLog) -> list[int]:
    return [event["progress"]["batchId"] for event in log.read() if "progress" in event]


@given(cuts=st.lists(st.integers(0, 700), max_size=8))
def test_a_log_is_read_the_same_in_any_pieces(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]):
    """However Spark's writes and our reads fall, each event is given once, in its order."""
    folder = tmp_path_factory.mktemp("log")
    events = [{"Event": PROGRESS, "progress": told(batch=number, name="räw")} for number in range(4)]
    whole = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events).encode()
    log, path, found, done = EventLog(folder), log_of(folder, 1), [], 0
    for cut in [*sorted(cuts), len(whole)]:
        with path.open("ab") as file:
            file.write(whole[done : min(cut, len(whole))])
        done = max(done, min(cut, len(whole)))
        found += batches(log)
    assert found == [0, 1, 2, 3]


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path):
    """The tenth file comes after the ninth; those that are read to their end are gone, but for the newest."""
    for number in (9, 10, 2):
        log_of(tmp_path, number, {"Event": PROGRESS, "progress": told(batch=number)})
    (tmp_path / "eventlog_v2_app" / "appstatus_app.inprogress").touch()
    log = EventLog(tmp_path)
    assert batches(log) == [2, 9, 10]
    assert sorted(path.name for path in tmp_path.glob("*/events_*")) == ["events_10_app"]
    log_of(tmp_path, 11, {"Event": PROGRESS, "progress": told(batch=11)})
    assert batches(log) == [11]
    assert batches(log) == []


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A line beyond the bound costs itself alone: what follows is read, also where its middle looks like an event."""
    monkeypatch.setattr(eventlog, "MOST_LINE", 1000)
    event = {"Event": PROGRESS, "progress": told(batch=1)}
    path, log = log_of(tmp_path, 1, event), EventLog(tmp_path)
    assert batches(log) == [1]
    with path.open("a") as file:
        file.write('{"Event": "QueryProgressEvent", "x": "' + "x" * 2000)
    assert batches(log) == []
    with path.open("a") as file:
        file.write('QueryProgressEvent"}\n' + json.dumps({**event, "progress": told(batch=2)}) + "\n")
    assert batches(log) == [2]


def test_a_log_that_goes_away_is_an_end(tmp_path: Path):
    """A file that somebody deletes while it is followed is no error: there is nothing more in it."""
    path, log = log_of(tmp_path, 1, {"Event": PROGRESS, "progress": told()}), EventLog(tmp_path)
    assert batches(log) == [0]
    path.unlink()
    assert batches(log) == []


def test_the_port_of_spark_connect_is_in_the_log(tmp_path: Path):
    """A Spark of our own says in its log on which port it serves, among whatever else it logs."""
    log_of(tmp_path, 1, {"Event": "SparkListenerLogStart"}, {"Event": CONNECT, "bindingPort": 40817}, {"Event": "x"})
    assert connect_port(tmp_path) == 40817


def test_a_spark_that_serves_nowhere_is_an_error(tmp_path: Path):
    """Where no port is told in time, one sentence says so."""
    log_of(tmp_path, 1, {"Event": "SparkListenerLogStart"})
    with pytest.raises(PipelineError, match="did not say within 0 s where its Connect server listens"):
        connect_port(tmp_path, patience=0.0)


# -- what Spark tells and nobody can read ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"Event": PROGRESS, "progress": {"name": "raw", "batchId": 1}}, "timestamp"),
        ({"Event": PROGRESS, "progress": told(timestamp="yesterday")}, "timestamp"),
        ({"Event": PROGRESS, "progress": told(batch=None)}, "batchId"),  # type: ignore[arg-type]  # as it may be
        ({"Event": PROGRESS, "progress": told(sources=[{"numInputRows": "many"}])}, "numInputRows"),
        ({"Event": PROGRESS, "progress": told(sources=5)}, "sources"),
        ({"Event": PROGRESS, "progress": told(durationMs={"triggerExecution": []})}, "triggerExecution"),
        ({"Event": PROGRESS, "progress": told(observedMetrics={OBSERVED: {"row": 5}})}, "rows"),
        ({"Event": PROGRESS}, "id"),
        ({"Event": STARTED, "name": "raw"}, "id"),
        ({"Event": "SparkListenerJobStart", "Properties": []}, "Properties"),
        ({"Event": "SparkListenerTaskEnd", "Stage ID": []}, "Stage ID"),
    ],
)
def test_what_cannot_be_read_is_noted_and_counts_for_nothing(event: dict[str, Any], says: str):
    """A run goes on when Spark tells something else than it should; figures are unknown then, and a note says why."""
    outcome = Outcome()
    for _ in range(3):
        outcome.read(event)
    assert (outcome.flows, list(outcome.history), outcome.counted) == ({}, [], False)
    (note,) = outcome.notes
    assert repr(says) in note
    outcome.read({"Event": PROGRESS, "progress": told(sources=[source(5, offset(S=6))])})
    assert outcome.flows["raw"].plain(outcome.counted)["rows_in"] is None


def test_a_damaged_line_of_the_log_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The lines around it are read; whoever follows the log hears of it, or the log of Penstock has it."""
    folder = tmp_path / "eventlog_v2_app"
    folder.mkdir()
    good = json.dumps({"Event": STARTED, "id": "q1", "name": "raw"})
    (folder / "events_1_app").write_text(f'{good}\n{good[:-9]}\n["{STARTED}"]\n{good}\n')
    heard_of: list[str] = []
    assert len(list(EventLog(tmp_path, heard_of.append).read())) == 2
    assert len(heard_of) == 2
    assert not caplog.records
    assert len(list(EventLog(tmp_path).read())) == 2
    assert "is damaged" in caplog.text


def test_a_port_that_is_not_a_number_is_an_error(tmp_path: Path):
    """A Spark that says nonsense of its port is told as such."""
    (tmp_path / "eventlog_v2_app").mkdir()
    (tmp_path / "eventlog_v2_app" / "events_1_app").write_text(
        json.dumps({"Event": CONNECT, "bindingPort": "x"}) + "\n"
    )
    with pytest.raises(RemoteProtocolError, match="bindingPort"):
        connect_port(tmp_path, 1.0)
