"""What a pipeline keeps on disk: checkpoints of Spark, replays and switches, and the progress of its runs."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputError
from penstock.options import ConnectionOptions
from penstock.pipelines import progress as progress_module
from penstock.pipelines.agreement import HOME, check_home
from penstock.pipelines.checkpoints import FlowState, read_flows
from penstock.pipelines.new_project import write_project
from penstock.pipelines.outcome import FlowProgress, MicroBatch, Outcome
from penstock.pipelines.process import _take_lock, is_running
from penstock.pipelines.progress import NAME, ProgressFile, progress_folder, read_progress
from penstock.pipelines.project import Project
from penstock.pipelines.replaying import _check_targets
from penstock.pipelines.replays import (
    KeptReplay,
    begun_replay,
    beside,
    current_replay,
    keep_replay,
    place,
    read_replay,
    switch,
    switch_back,
)
from penstock.pipelines.state import PipelineState, pipeline_state, reset_pipeline, state_paths

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "pipeline_state.json").read_text())
NOWHERE = ConnectionOptions("nats://127.0.0.1:1")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.load(write_project(tmp_path, "sensors"))


@pytest.fixture
def storage(project: Project) -> Path:
    """The storage of the project, made."""
    assert project.local_storage is not None
    project.local_storage.mkdir()
    return project.local_storage


# -- checkpoints -------------------------------------------------------------------------------------------------------


def offset(created: str = "2026-01-01T00:00:00Z", **following: int) -> str:
    marks = {name: {"created": created, "from": 1, "next": number, "skipped": 0} for name, number in following.items()}
    return json.dumps({"version": 1, "streams": marks})


def checkpoint(storage: Path, flow: str, planned: dict[int, list[str]], done: list[int], version: int = 0) -> Path:
    """Write a checkpoint as Spark does: for each batch that is planned the offsets of its sources."""
    place = storage / "_checkpoints" / flow / str(version)
    for name in ("offsets", "commits"):
        (place / name).mkdir(parents=True, exist_ok=True)
    for number, sources in planned.items():
        (place / "offsets" / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *sources]))
    for number in done:
        (place / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return place


def test_flows_are_given_in_the_order_of_their_targets(tmp_path: Path):
    """Tables of a catalog and sinks are found alike, each with the name of its flow."""
    for flow in ("spark_catalog/default/raw/raw", "alerts/alerts", "spark_catalog/shop/raw/backfill"):
        checkpoint(tmp_path, flow, {0: [offset(A=5)]}, [0])
    assert [(flow.target, flow.flow) for flow in read_flows(tmp_path)] == [
        ("alerts", "alerts"),
        ("raw", "backfill"),
        ("raw", "raw"),
    ]


def test_a_flow_that_has_planned_and_done_nothing(tmp_path: Path):
    """A flow that has just begun is there, with no batch, and nothing of it is in the middle."""
    checkpoint(tmp_path, "raw/raw", {}, [])
    assert read_flows(tmp_path) == [FlowState("raw", "raw", None, None, {}, 0)]
    assert read_flows(tmp_path)[0].complete
    checkpoint(tmp_path, "raw/raw", {0: [offset(A=5)]}, [])
    (flow,) = read_flows(tmp_path)
    assert (flow.planned, flow.done, flow.complete, flow.streams) == (0, None, False, {})


def test_versions_are_numbers(tmp_path: Path):
    """A full refresh begins a new version: the tenth is newer than the ninth, and what is no number is none."""
    for version in (9, 10, 1):
        checkpoint(tmp_path, "raw/raw", {version: [offset(A=version)]}, [version], version)
    checkpoint(tmp_path, "raw/raw", {99: [offset(A=99)]}, [99]).rename(
        tmp_path / "_checkpoints" / "raw" / "raw" / "old"
    )
    (flow,) = read_flows(tmp_path)
    assert (flow.done, flow.streams) == (10, {"A": 10})


def test_only_sources_of_nats_have_a_place_in_a_stream(tmp_path: Path):
    """Offsets of other sources, and lines that are none, are passed over; those of two NATS sources come together."""
    lines = [offset(A=5), "-", '{"sourceVersion":1,"reservoirVersion":2}', "not json", "5", "[]", offset(B=7, C=9), ""]
    checkpoint(tmp_path, "raw/raw", {0: lines}, [0])
    (flow,) = read_flows(tmp_path)
    assert flow.streams == {"A": 5, "B": 7, "C": 9}


def test_what_spark_tidies_away_meanwhile_is_passed_over(tmp_path: Path):
    """A batch whose offsets are gone, and folders without commits, leave what is known."""
    place = checkpoint(tmp_path, "raw/raw", {7: [offset(A=5)]}, [6])
    (flow,) = read_flows(tmp_path)
    assert (flow.planned, flow.done, flow.streams) == (7, 6, {})
    for path in (place / "commits").iterdir():
        path.unlink()
    (place / "commits").rmdir()
    assert read_flows(tmp_path)[0].done is None


def test_the_size_of_a_state_is_that_of_its_files(tmp_path: Path):
    """All files of a flow's state count, deep ones too; a link that leads nowhere does not."""
    place = checkpoint(tmp_path, "raw/raw", {0: []}, [0])
    for number, size in enumerate((10, 200)):
        folder = place / "state" / "0" / str(number)
        folder.mkdir(parents=True)
        (folder / "1.delta").write_bytes(b"x" * size)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    assert read_flows(tmp_path)[0].state_bytes == 210


# -- replays and switches ----------------------------------------------------------------------------------------------


def test_files_of_replays_are_written_as_ever(project: Project, storage: Path):
    """The files that a replay and a switch leave stay what they are: later versions must read them."""
    keep_replay(project, "v2", "2026-01-01T00:00:00Z", {"ALERTS": "V2"})
    switch(project, "v2")
    text = GOLDEN["replay.json"].replace('"1h"', '"2026-01-01T00:00:00Z"')
    assert (storage / "replays" / "v2" / "replay.json").read_text() == text
    assert (storage / "switched.json").read_text() == GOLDEN["switched.json"]
    assert sorted(path.name for path in storage.iterdir()) == ["replays", "switched.json"], "no half of a file is left"


def test_files_of_replays_are_read_as_they_were_written(project: Project, storage: Path):
    """What an older version left is understood."""
    folder = storage / "replays" / "v2"
    folder.mkdir(parents=True)
    (folder / "replay.json").write_text(GOLDEN["replay.json"])
    (storage / "switched.json").write_text(GOLDEN["switched.json"])
    kept = KeptReplay("v2", "1h", "2026-01-01T00:00:00Z", {"ALERTS": "V2"})
    assert current_replay(project) == read_replay(project, "v2") == kept
    assert (
        begun_replay(project, "v2", "1h", {"ALERTS": "V2"})
        == keep_replay(project, "v2", "1h", {"ALERTS": "V2"})
        == kept
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot be read"),
        ("[]", "holds no fields"),
        ("{}", "not what a replay writes"),
        ('{"name": "v2", "asked": "1", "start": "1"}', "not what a replay writes"),
        ('{"name": "v2", "asked": "1", "start": 1, "into": {}}', "not what a replay writes"),
        ('{"name": "v2", "asked": "1", "start": "1", "into": ["A"]}', "not what a replay writes"),
        ('{"name": "v2", "asked": "1", "start": "1", "into": {"A": 5}}', "not what a replay writes"),
        ('{"name": "v2", "asked": "1", "start": "1", "into": {}, "more": 1}', "not what a replay writes"),
    ],
)
def test_a_broken_file_of_a_replay_is_told(project: Project, storage: Path, content: str, says: str):
    """A file that is no replay's is told by its path, wherever it is needed."""
    folder = storage / "replays" / "v2"
    folder.mkdir(parents=True)
    (folder / "replay.json").write_text(content)
    for ask in (
        lambda: read_replay(project, "v2"),
        lambda: keep_replay(project, "v2", "1", {}),
        lambda: switch(project, "v2"),
    ):
        with pytest.raises(InputError, match=rf"replays/v2/replay\.json .*{says}"):
            ask()


def test_a_switch_to_what_is_gone_is_told_and_can_be_undone(project: Project, storage: Path):
    """A pipeline that was switched to a replay that somebody deleted says so, and switches back."""
    for content, name in (('{"name": "v2"}', "v2"), ("{}", "without a name"), ('{"name": 5}', "5")):
        (storage / "switched.json").write_text(content)
        for ask in (lambda: current_replay(project), lambda: place(project)):
            with pytest.raises(InputError, match=rf"its replay {name}, which is gone\. Switch back"):
                ask()
        switch_back(project)
        assert current_replay(project) is None


def test_a_torn_switch_is_told_and_can_be_said_again(project: Project, storage: Path):
    """A switch that cannot be read stops every run, which would write to the old streams; both ways of it mend that."""
    keep_replay(project, "v2", "all", {"ALERTS": "V2"})
    for content in ("", "{", "[]"):
        for mend in (lambda: switch(project, "v2"), lambda: switch_back(project)):
            (storage / "switched.json").write_text(content)
            with pytest.raises(InputError, match=r"switched\.json .*Say it again: .*--to NAME, or --back"):
                current_replay(project)
            mend()
            current_replay(project)
    assert current_replay(project) is None


def test_a_replay_whose_file_is_gone_is_not_taken_for_a_new_one(project: Project, storage: Path):
    """Its state would go on in the middle of history, into streams that are made anew."""
    keep_replay(project, "v2", "all", {"ALERTS": "V2"})
    (storage / "replays" / "v2" / "_checkpoints").mkdir()
    assert keep_replay(project, "v2", "all", {"ALERTS": "V2"}).name == "v2"
    (storage / "replays" / "v2" / "replay.json").unlink()
    with pytest.raises(InputError, match="nothing says what it was begun with"):
        keep_replay(project, "v2", "all", {"ALERTS": "V2"})


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    project: Project, storage: Path, monkeypatch: pytest.MonkeyPatch
):
    """A disk that is full is told, and whoever was switched is switched as before; nothing half is left."""
    keep_replay(project, "v2", "all", {"ALERTS": "V2"})
    keep_replay(project, "v3", "all", {"ALERTS": "V3"})
    kept = switch(project, "v2")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"switched\.json cannot be written: No space left on device"):
        switch(project, "v3")
    assert current_replay(project) == kept
    assert not list(storage.rglob("*.part"))


def test_the_home_of_a_storage_is_written_and_read_as_ever(storage: Path):
    """A storage knows where it is; one that was moved or copied is refused, and so is one that does not know."""
    own = "its own Spark"
    assert check_home(storage, own) is None
    assert (storage / HOME).read_text() == GOLDEN["home.json"].replace("/srv/sensors/storage", str(storage))
    assert check_home(storage, own) is None
    copy = storage.parent / "copy"
    shutil.copytree(storage, copy)
    with pytest.raises(InputError, match=rf"{copy} was moved or copied from {storage}, and Spark would .* there"):
        check_home(copy, own)
    for content in ("", "[]", "{}", '{"storage": 5}'):
        (copy / HOME).write_text(content)
        with pytest.raises(InputError, match=r"cannot be read|moved or copied from 5"):
            check_home(copy, own)


def test_another_spark_than_before_is_told(storage: Path):
    """Tables that one Spark keeps are not there for another, and the flows go on in the middle: said once."""
    check_home(storage, "its own Spark")
    assert "ran on its own Spark before, and runs on h:15002 now" in (check_home(storage, "h:15002") or "")
    assert check_home(storage, "h:15002") is None


def test_a_replay_of_a_storage_elsewhere_keeps_nothing_here(project: Project):
    """Where the storage is not on this machine, a replay is told to Spark alone, and begins anew each time."""
    far = project.at("s3a://bucket/state/")
    assert keep_replay(far, "v2", "17", {"A": "B"}) == KeptReplay("v2", "17", "17", {"A": "B"})
    assert (read_replay(far, "v2"), current_replay(far)) == (None, None)
    assert (beside(far, "v2").storage, beside(far, "v2").warehouse) == ("s3a://bucket/state/replays/v2", None)
    assert place(far) is far
    with pytest.raises(InputError, match="is not switched"):
        switch_back(far)


def test_a_replay_has_its_streams_to_itself(project: Project):
    """Into the pipeline's own streams, into itself, or two into one: all refused before anything is made."""
    _check_targets(project, "v2", {})
    _check_targets(project, "v2", {"ALERTS": "V2", "OTHER": "O2"})
    for pairs in ({"ALERTS": "ALERTS"}, {"ALERTS": "READINGS"}, {"X": "Y", "Y": "X"}, {"X": "X"}):
        with pytest.raises(InputError, match=r"a stream of the pipeline itself\. Name a new stream: --into"):
            _check_targets(project, "v2", pairs)
    keep_replay(project, "v1", "all", {"ALERTS": "V1"})
    with pytest.raises(InputError, match="into V1, which is a stream of the replay v1"):
        _check_targets(project, "v2", {"ALERTS": "V1"})
    _check_targets(project, "v1", {"ALERTS": "V1"})
    with pytest.raises(InputError, match="two streams into one"):
        _check_targets(project, "v2", {"ALERTS": "V2", "OTHER": "V2"})
    _check_targets(replace(project, topology=None), "v2", {"ALERTS": "READINGS"})


# -- progress ----------------------------------------------------------------------------------------------------------


def an_outcome() -> Outcome:
    """The outcome that the golden file tells."""
    outcome = Outcome()
    outcome.spark, outcome.updates, outcome.phase = "4.3.0", 1, "up to date"
    outcome.flows["raw"] = FlowProgress("raw", "COMPLETED", 1, 40, 38, 20.0, 2.0, 10, 3, 1000, {"ORDERS": 41})
    outcome.flows["raw"].created = {"ORDERS": "2026-01-01T00:00:00Z"}
    outcome.flows["totals"] = FlowProgress("totals")
    outcome.history.append(MicroBatch(1767225600.0, "raw", 17, 40, 2.0, 10))
    return outcome


def left(folder: Path) -> dict[str, Any]:
    """Read what a run left, which must be there."""
    found = read_progress(folder)
    assert found is not None
    return found


def test_progress_is_written_as_ever(tmp_path: Path):
    """The console, and whoever else looks from outside, read this file: its form stays."""
    ProgressFile(tmp_path, NOWHERE, os.getpid(), continuous=True).write(an_outcome())
    content, golden = json.loads((tmp_path / NAME).read_text()), dict(GOLDEN["progress.json"])
    assert list(content) == list(golden)
    theirs = ("pid", "since", "begun", "time")  # of this run and this moment
    assert {type(content[name]) for name in theirs} == {int, str, float}
    for name in theirs:
        del content[name], golden[name]
    assert content == golden


def test_progress_is_read_as_it_was_written(tmp_path: Path):
    """An older run's file is understood; its process is long gone, so it was cut off."""
    for written in (GOLDEN["progress.json"], GOLDEN["progress.json, older"]):
        (tmp_path / NAME).write_text(json.dumps(written))
        assert read_progress(tmp_path) == written | {"state": "cut off"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"{}",
        b'{"v": 2}',
        b'{"v": "1"}',
        b"\xff\xfe",
        b'{"v": 1, "x": "' + b"x" * 5_000_000 + b'"}',
    ],
    ids=range(9),
)
def test_what_is_no_progress_is_none(tmp_path: Path, content: bytes):
    """A file that is broken, of another version, or too large is as good as none."""
    (tmp_path / NAME).write_bytes(content)
    assert read_progress(tmp_path) is None
    assert read_progress(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("ended", "failure", "over", "state"),
    [
        (False, None, False, "running"),
        (True, None, False, "running"),
        (True, None, True, "done"),
        (False, None, True, "stopped"),
        (False, "x", True, "failed"),
        (True, "x", True, "failed"),
    ],
)
def test_the_state_of_a_run(tmp_path: Path, ended: bool, failure: str | None, over: bool, state: str):
    """A run is running until it is over; then done, stopped before its end, or failed."""
    outcome = Outcome()
    outcome.ended, outcome.failure = ended, failure
    ProgressFile(tmp_path, NOWHERE, os.getpid(), continuous=False).write(outcome, over=over)
    assert left(tmp_path)["state"] == state


def test_a_run_whose_process_is_gone_was_cut_off(tmp_path: Path):
    """A process that ended, that is dead and not yet buried, or that another took the number of: none of them runs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        writer = ProgressFile(tmp_path, NOWHERE, child.pid, continuous=False)
        writer.write(Outcome())
        assert left(tmp_path)["state"] == "running"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert left(tmp_path)["state"] == "cut off", "a zombie"
        late = ProgressFile(tmp_path, NOWHERE, child.pid, continuous=False)
    assert left(tmp_path)["state"] == "cut off"
    late.write(Outcome())
    assert left(tmp_path)["state"] == "cut off", "nobody knows when it began"
    content = {**GOLDEN["progress.json"], "pid": os.getpid(), "since": "1"}
    (tmp_path / NAME).write_text(json.dumps(content))
    assert left(tmp_path)["state"] == "cut off", "another process of that number"
    (tmp_path / NAME).write_text(json.dumps({**content, "pid": ["x"]}))
    assert left(tmp_path)["state"] == "cut off", "no number at all"


def test_progress_is_written_when_something_changed_or_a_second_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A new phase and the end are told at once; figures alone once a second."""
    writer, outcome = ProgressFile(tmp_path, NOWHERE, os.getpid(), continuous=False), Outcome()
    writer.write(outcome)
    outcome.updates = 1
    writer.write(outcome)
    assert left(tmp_path)["updates"] == 0
    outcome.phase = "up to date"
    writer.write(outcome)
    assert left(tmp_path)["updates"] == 1
    outcome.updates = 2
    writer.write(outcome, over=True)
    assert left(tmp_path)["updates"] == 2
    monkeypatch.setattr(progress_module, "_EVERY", 0.0)
    outcome.updates = 3
    writer.write(outcome)
    assert left(tmp_path)["updates"] == 3
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_progress_tells_the_newest_batches_and_no_secret(tmp_path: Path):
    """A hundred batches are enough for whoever looks; a failure is told without the login that it shows."""
    outcome = Outcome()
    outcome.failure = "nats://ann:s3cr3t@h:1 says no to s3cr3t"
    for number in range(250):
        outcome.history.append(MicroBatch(0.0, "raw", number, 1, 1.0, 0))
    options = ConnectionOptions("nats://h:1", user="ann", password="s3cr3t")
    ProgressFile(tmp_path, options, os.getpid(), continuous=False).write(outcome, over=True)
    found = left(tmp_path)
    assert [batch["number"] for batch in found["batches"]] == list(range(150, 250))
    assert found["failure"] == "nats://***@h:1 says no to ***"


def test_a_progress_that_cannot_be_written_stops_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A storage that is gone or full is told once; the pipeline goes on."""
    writer = ProgressFile(tmp_path / "nowhere", NOWHERE, os.getpid(), continuous=False)
    with caplog.at_level(logging.WARNING, "penstock.pipelines"):
        for _ in range(3):
            writer.write(Outcome(), over=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"The progress cannot be written to {tmp_path / 'nowhere' / NAME}: No such file or directory."
    ]


def test_where_progress_is_kept(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """In the storage where that is here; for others in the state folder of the user, a folder for each storage."""
    assert progress_folder(project) == project.local_storage
    far = project.at("s3a://bucket/a")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = progress_folder(far)
    assert found.parent == tmp_path / "state" / "penstock" / "pipelines"
    assert progress_folder(project.at("s3a://bucket/a/")) == found != progress_folder(project.at("s3a://bucket/b"))
    ProgressFile.of(far, NOWHERE, os.getpid(), continuous=False).write(Outcome())
    assert (left(found)["state"], found.stat().st_mode & 0o777) == ("running", 0o700)
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert progress_folder(far) == home / ".local/state/penstock/pipelines" / found.name
    monkeypatch.setenv("HOME", "none")
    assert progress_folder(far) == project.folder / ".penstock" / found.name


# -- the state of a pipeline -------------------------------------------------------------------------------------------


def flow_state(name: str, streams: dict[str, int]) -> FlowState:
    return FlowState("raw", name, 3, 3, streams, 10)


def test_lag_is_between_a_flow_and_its_streams():
    """Each stream of a flow has a row with what waits: never less than nothing, and null for one that is gone."""
    flows = (flow_state("a", {"A": 5, "B": 9, "GONE": 2}), flow_state("none", {}))
    state = PipelineState("shop", False, flows, {"A": 11, "B": 3, "GONE": None})
    assert [(flow.flow, *rest) for flow, *rest in state.rows()] == [
        ("a", "A", 5, 6),
        ("a", "B", 9, 0),
        ("a", "GONE", 2, None),
        ("none", None, None, None),
    ]
    plain = state.plain()
    assert [flow["lag"] for flow in plain["flows"]] == [{"A": 6, "B": 0, "GONE": None}, {}]
    assert (plain["told"], plain["replay"], plain["running"]) == (None, None, False)
    assert [flow["complete"] for flow in plain["flows"]] == [True, True]
    json.dumps(plain)


def test_the_state_of_a_pipeline_that_never_ran(project: Project):
    """No checkpoint, no progress: no flow, and nobody asks NATS."""
    state = pipeline_state(project, NOWHERE)
    assert (state.name, state.running, state.flows, state.latest, state.told) == ("sensors", False, (), {}, None)


def test_the_state_of_a_pipeline_elsewhere_needs_a_run_from_here(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Where checkpoints are on other machines and no run told anything, that is said; what one told is shown."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    far = project.at("s3a://bucket/a")
    with pytest.raises(InputError, match="not on this machine, and no run from here has told how far it is"):
        pipeline_state(far, NOWHERE)
    with pytest.raises(InputError, match="not on this machine"):
        state_paths(far)
    outcome = an_outcome()
    outcome.flows["raw"].streams = outcome.flows["raw"].created = {}
    ProgressFile.of(far, NOWHERE, os.getpid(), continuous=True).write(outcome)
    state = pipeline_state(far, NOWHERE)
    assert state.flows == (FlowState(None, "raw", None, 17, {}, 1000),), (
        "the number of the batch, not how many there were"
    )
    assert (state.running, state.told is not None) == (True, True)
    assert state.plain()["flows"][0]["complete"] is None, "what is planned, nobody told"
    outcome.history.clear()
    ProgressFile.of(far, NOWHERE, os.getpid(), continuous=True).write(outcome, over=True)
    state = pipeline_state(far, NOWHERE)
    assert (state.flows[0].done, state.running) == (None, False)


def test_a_reset_forgets_all_but_other_replays(project: Project, storage: Path):
    """Checkpoints, catalog, logs, progress and tables go; replays, and whatever else lies there, stay."""
    for name in ("_checkpoints", "catalog", "warehouse", "replays"):
        (storage / name / "deep").mkdir(parents=True)
    for name in ("derby.log", "spark.log", NAME, HOME, "mine.txt"):
        (storage / name).touch()
    names = {path.name for path in state_paths(project)}
    assert names == {"_checkpoints", "catalog", "warehouse", "derby.log", "spark.log", NAME, HOME}
    reset_pipeline(project)
    assert state_paths(project) == []
    assert {path.name for path in storage.iterdir()} >= {"replays", "mine.txt"}
    reset_pipeline(project)


@pytest.mark.parametrize("switched", ['{"name": "v2"}', '{"name": "gone"}', '{"name": "../.."}', "{", "[]"])
def test_a_reset_while_switched_forgets_all_of_it(project: Project, storage: Path, switched: str):
    """The pipeline's own state, the switch and the replay in use go, however broken the switch is; others stay."""
    for name in ("v2", "v3"):
        keep_replay(project, name, "all", {"ALERTS": name.upper()})
        (storage / "replays" / name / "_checkpoints").mkdir()
    for name in ("_checkpoints", "warehouse"):
        (storage / name).mkdir()
    (storage / "switched.json").write_text(switched)
    reset_pipeline(project)
    left = {path.name for path in storage.iterdir()} - {"lock"}
    kept = {path.name for path in (storage / "replays").iterdir()}
    assert (left, kept) == ({"replays"}, {"v3"} if "v2" in switched else {"v2", "v3"})
    assert current_replay(project) is None
    assert project.folder.exists()


def test_a_reset_deletes_tables_where_they_are(project: Project, storage: Path, tmp_path: Path):
    """Tables elsewhere on this machine go, too, to the letter of the setting; those on other machines are left."""
    near, other = tmp_path / "c#" / "tables", tmp_path / "c"
    near.mkdir(parents=True)
    other.mkdir()
    named = project.with_warehouse(near)
    assert state_paths(named) == [near]
    reset_pipeline(named)
    assert (near.exists(), other.exists()) == (False, True)
    assert state_paths(replace(project, configuration={"spark.sql.warehouse.dir": "s3a://b/w"})) == []


def test_a_pipeline_that_runs_is_not_reset(project: Project, storage: Path):
    """Nothing is deleted under a run; looking whether one is under way leaves no lock behind."""
    (storage / "_checkpoints").mkdir()
    assert not is_running(project)
    held = _take_lock(project)
    assert held is not None
    try:
        assert is_running(project)
        with pytest.raises(InputError, match=r"The pipeline sensors runs\. Stop it first"):
            reset_pipeline(project)
        assert pipeline_state(project, NOWHERE).running
    finally:
        os.close(held)
    assert not is_running(project)
    assert (storage / "_checkpoints").exists()
    reset_pipeline(project)
    assert not (storage / "_checkpoints").exists()
