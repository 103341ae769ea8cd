"""Pipelines on a real server, up to where Spark begins: streams, replays, lag, comparisons, and the child of a run."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.contexts import load_options
from penstock.errors import InputError, NotFoundError, PipelineError, UnreachableError
from penstock.jetstream.topology import Topology
from penstock.model import Republish, Stream
from penstock.pipelines import Project, replay, run, start
from penstock.pipelines.new_project import write_project
from penstock.pipelines.order import Assignment, RunOrder
from penstock.pipelines.process import PipelineRun, _session, is_running
from penstock.pipelines.progress import read_progress
from penstock.pipelines.remote import stream_ages
from penstock.pipelines.replaying import Comparison, _beside, _make_streams, compare_streams
from penstock.pipelines.replays import beside, keep_replay, switch
from penstock.pipelines.running import apply_topology, blocking
from penstock.pipelines.scratch import sweep
from penstock.pipelines.state import pipeline_state
from penstock.server import Server
from tests.live.command import Command
from tests.pipelines.projects import api, count
from tests.pure.test_pipeline_state import checkpoint, offset


@pytest.fixture(scope="module")
def nats() -> Iterator[Server]:
    """A server of its own, because the streams of new projects have the same names."""
    with Server(sync="2m") as running:
        yield running


@pytest.fixture
def options(nats: Server) -> Iterator[penstock.ConnectionOptions]:
    """How to connect; whatever streams a test made are gone after it."""
    yield penstock.ConnectionOptions(nats.url)
    for name in api(nats.url, "STREAM.NAMES")["streams"] or []:
        api(nats.url, f"STREAM.DELETE.{name}")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.load(write_project(tmp_path, "sensors"))


def publish(options: penstock.ConnectionOptions, *messages: tuple[str, str]) -> None:
    """Publish to whatever streams take these subjects, and see them stored."""

    async def work() -> None:
        client = await penstock.connect(options)
        try:
            for subject, text in messages:
                await client.request(subject, text.encode(), timeout=10)
        finally:
            await client.close()

    asyncio.run(work())


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_topology_is_applied_once(options: penstock.ConnectionOptions, project: Project):
    """The streams of a project are made by the first run, and found as they are by the next; none is fine, too."""
    first, second = apply_topology(project, options), apply_topology(project, options)
    assert first is not None
    assert second is not None
    assert [sorted((step.name, step.action) for step in plan.steps) for plan in (first, second)] == [
        [("ALERTS", "create"), ("READINGS", "create")],
        [("ALERTS", "none"), ("READINGS", "none")],
    ]
    assert apply_topology(replace(project, topology=None), options) is None


def test_the_traffic_of_a_new_project_is_stored_once(options: penstock.ConnectionOptions, project: Project):
    """Whoever runs `traffic.py` twice has the same readings in the stream, once each."""
    send = runpy.run_path(str(project.folder / "traffic.py"))["publish"]
    for _ in range(2):
        asyncio.run(send(load_url(options), 120))
    assert count(options, "READINGS", "readings.*") == 120
    assert api(options, "STREAM.INFO.ALERTS")["state"]["messages"] == 0


def load_url(options: penstock.ConnectionOptions) -> str:
    """Give an address that carries its login."""
    return options.url.replace("://", f"://{options.token}@")


def test_the_age_of_a_stream_is_its_identity(options: penstock.ConnectionOptions, monkeypatch: pytest.MonkeyPatch):
    """A stream is told by when it was made: another one of the same name has another age, and none has none."""
    monkeypatch.setenv("NATS_URL", load_url(options))
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    blocking(_apply(options, Stream(name="A", subjects=["a"])))
    first = stream_ages(["A", "NONE"])
    assert first == {"A": api(options, "STREAM.INFO.A")["created"], "NONE": None}
    api(options, "STREAM.DELETE.A")
    blocking(_apply(options, Stream(name="A", subjects=["a"])))
    assert stream_ages(["A"])["A"] not in (None, first["A"])
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    with pytest.raises(UnreachableError):
        stream_ages(["A"])


async def _apply(options: penstock.ConnectionOptions, *streams: Stream) -> None:
    from penstock.jetstream import apply

    client = await penstock.connect(options)
    try:
        await apply(client, Topology(list(streams)))
    finally:
        await client.close()


# -- how far a pipeline is ---------------------------------------------------------------------------------------------


def test_lag_is_asked_of_nats(options: penstock.ConnectionOptions, project: Project):
    """With no Spark running, checkpoints say how far a flow is, and the server what waits."""
    apply_topology(project, options)
    publish(options, *((f"readings.{number}", "x") for number in range(7)))
    assert project.local_storage is not None
    made = api(options, "STREAM.INFO.READINGS")["created"]
    planned = {0: [offset(made, READINGS=3, GONE=9)], 1: [offset(made, READINGS=5)]}
    checkpoint(project.local_storage, "readings/readings", planned, [0])
    state = pipeline_state(project, options)
    assert state.latest == {"READINGS": 8, "GONE": None}
    assert [(flow.flow, *rest) for flow, *rest in state.rows()] == [
        ("readings", "READINGS", 3, 5),
        ("readings", "GONE", 9, None),
    ]
    assert state.plain()["flows"][0]["complete"] is False
    assert (state.running, state.replay, state.told, state.others) == (False, None, None, {})


def test_a_stream_of_another_server_is_not_taken_for_the_one_that_was_read(
    options: penstock.ConnectionOptions, project: Project, tmp_path: Path
):
    """A stream of the same name that was made at another time has no lag to tell, and status says that."""
    apply_topology(project, options)
    publish(options, *((f"readings.{number}", "x") for number in range(7)))
    assert project.local_storage is not None
    checkpoint(project.local_storage, "readings/readings", {0: [offset(READINGS=3)]}, [0])
    state = pipeline_state(project, options)
    assert (state.latest, state.plain()["others"]) == ({"READINGS": None}, ["READINGS"])
    assert state.plain()["flows"][0]["lag"] == {"READINGS": None}
    done = Command(tmp_path, load_url(options))("pipeline", "status", str(project.folder))
    assert done.returncode == 0, done.stderr
    assert (
        "READINGS that it reads was made at 2026-01-01T00:00:00Z; the one of that name here was made at" in done.stderr
    )


def test_a_switched_pipeline_is_as_far_as_its_replay(options: penstock.ConnectionOptions, project: Project):
    """After a switch, the checkpoints of the replay count; those of the pipeline itself are as they were."""
    apply_topology(project, options)
    kept = keep_replay(project, "v2", "all", {"ALERTS": "V2"})
    for there, following in ((project, 5), (beside(project, "v2"), 2)):
        assert there.local_storage is not None
        checkpoint(there.local_storage, "readings/readings", {0: [offset(READINGS=following)]}, [0])
    assert pipeline_state(project, options).flows[0].streams == {"READINGS": 5}
    switch(project, "v2")
    state = pipeline_state(project, options)
    assert (state.flows[0].streams, state.replay) == ({"READINGS": 2}, kept)
    assert state.plain()["replay"] == {"name": "v2", "into": {"ALERTS": "V2"}}


# -- replays -----------------------------------------------------------------------------------------------------------


def test_a_stream_beside_another_is_like_it():
    """The new stream has the old one's settings, its own name before each subject, and room for the sink's marks."""
    old = Stream(
        name="ALERTS",
        subjects=["alerts.*", "$PENSTOCK.ALERTS.>"],
        max_age=60.0,
        num_replicas=3,
        republish=Republish(src=">", dest="live.>"),
    )
    new = _beside(old, "V2")
    assert (new.name, new.subjects) == ("V2", ["V2.alerts.*", "$PENSTOCK.V2.>"])
    assert (new.max_age, new.num_replicas) == (60.0, 3)
    assert new.republish is None, "whoever listens there has heard it once"
    assert _beside(Stream(name="A"), "B").subjects == ["B.A", "$PENSTOCK.B.>"], (
        "a stream without subjects takes its name"
    )


def test_streams_of_a_replay_are_made_and_must_be_empty(options: penstock.ConnectionOptions, project: Project):
    """A new replay finds or makes empty streams; one that goes on takes them as they are, full or not."""
    apply_topology(project, options)
    pairs = {"ALERTS": "V2"}
    for _ in range(2):
        blocking(_make_streams(project, options, pairs, fresh=True))
    assert api(options, "STREAM.INFO.V2")["config"]["subjects"] == ["V2.alerts.*", "$PENSTOCK.V2.>"]
    publish(options, ("V2.alerts.x", "1"), ("V2.alerts.y", "2"))
    with pytest.raises(InputError, match=r"V2 holds 2 messages already, and this replay is new"):
        blocking(_make_streams(project, options, pairs, fresh=True))
    blocking(_make_streams(project, options, pairs, fresh=False))
    assert api(options, "STREAM.INFO.V2")["state"]["messages"] == 2


def test_a_stream_that_the_topology_does_not_have_is_asked_for(options: penstock.ConnectionOptions, project: Project):
    """What the project does not declare is copied from the server; what is nowhere is told."""
    blocking(_apply(options, Stream(name="ELSE", subjects=["else.>"], max_msgs=5, metadata={"team": "a"})))
    blocking(_make_streams(project, options, {"ELSE": "E2"}, fresh=True))
    made = api(options, "STREAM.INFO.E2")["config"]
    assert (made["subjects"], made["max_msgs"], made["metadata"]["team"]) == (["E2.else.>", "$PENSTOCK.E2.>"], 5, "a")
    with pytest.raises(NotFoundError):
        blocking(_make_streams(project, options, {"NOWHERE": "N2"}, fresh=True))


def test_a_replay_that_is_refused_makes_nothing(options: penstock.ConnectionOptions, project: Project):
    """A bad place, name, address or stream, and a replay that was begun otherwise, leave the server as it was."""
    keep_replay(project, "v2", "1", {"ALERTS": "V2"})
    for says, given in (
        ("begun from 1 into ALERTS=V2", {"start": "2", "into": {"ALERTS": "V2"}, "name": "v2"}),
        ("begun from 1 into ALERTS=V2", {"start": "1", "into": {"ALERTS": "V3"}, "name": "v2"}),
        ("'a b' cannot be the name of a replay", {"name": "a b"}),
        ("a stream of the pipeline itself", {"into": {"ALERTS": "READINGS"}}),
        ("a stream of the replay v2", {"into": {"ALERTS": "V2"}}),
        ("both master and remote", {"master": "local[2]", "remote": "sc://127.0.0.1:1"}),
        ("a warehouse of its own", {"conf": {"spark.sql.warehouse.dir": "/srv/tables"}}),
        ("from", {"start": "yesterday"}),
        ("not a Spark Connect address", {"remote": "http://x"}),
    ):
        with pytest.raises(InputError, match=f"(?i){says}"):
            replay(project, options=options, **given)
    assert not api(options, "STREAM.NAMES")["streams"]


def test_streams_are_compared_message_by_message(options: penstock.ConnectionOptions, project: Project):
    """Messages are the same by subject and payload, however often and in whatever order; marks of the sink are none."""
    apply_topology(project, options)
    blocking(_make_streams(project, options, {"ALERTS": "V2"}, fresh=True))
    publish(options, *(("alerts.a", text) for text in "1223"), ("alerts.b", "1"), ("$PENSTOCK.ALERTS.q", "mark"))
    publish(options, *(("V2.alerts.a", text) for text in "3214"), ("V2.alerts.b", "2"), ("$PENSTOCK.V2.q", "mark"))
    found = compare_streams(options, "ALERTS", "V2")
    assert found == Comparison("ALERTS", "V2", old_count=5, new_count=5, same=3, only_old=2, only_new=2)
    assert found.plain()["only_new"] == 2
    api(options, "STREAM.PURGE.V2")
    assert compare_streams(options, "ALERTS", "V2") == Comparison("ALERTS", "V2", 5, 0, 0, 5, 0)


# -- a Spark that is gone, and what it leaves --------------------------------------------------------------------------

_WATCHING = """
import subprocess, sys, threading, time
from penstock.pipelines.watching import watch_java, watch_server

def say(kind, **fields):
    print(kind, fields["reason"], flush=True)

if sys.argv[1].startswith("sc:"):
    watch_server(sys.argv[1], say, gone=0.2)
    print("up", flush=True)
else:
    java = subprocess.Popen(["sleep", "300"])
    watch_java(java, say)
    print(java.pid, flush=True)
threading.Event().wait()  # as a thread does that waits for Spark
"""


@pytest.fixture
def watching() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a process that watches its Spark and waits for ever."""
    begun: list[subprocess.Popen[str]] = []

    def start(what: str) -> subprocess.Popen[str]:
        begun.append(subprocess.Popen([sys.executable, "-c", _WATCHING, what], stdout=subprocess.PIPE, text=True))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_a_java_that_is_killed_ends_its_child(watching: Callable[[str], subprocess.Popen[str]]):
    """Whatever else the child waits for, it says what became of Java, and is gone."""
    child = watching("java")
    assert child.stdout is not None
    os.kill(int(child.stdout.readline()), signal.SIGKILL)
    assert child.stdout.read() == "failed Spark's Java process was ended by SIGKILL\n"
    assert child.wait(30) == 1


def test_a_connect_server_that_is_gone_ends_the_child(watching: Callable[[str], subprocess.Popen[str]]):
    """While somebody listens the child waits; when nobody does any more, it says so and is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        child = watching(f"sc://127.0.0.1:{port}/;token=t0ken")
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        listener.accept()[0].close()
    said = child.stdout.read()
    assert said == f"failed The Spark Connect server at 127.0.0.1:{port} is gone: nobody listens there any more\n"
    assert child.wait(30) == 1


_LEFT = """
import sys, time
from penstock.pipelines.scratch import scratch_folder

with scratch_folder() as (folder, handle):
    (folder / "nats.json").write_text("secret")
    print(folder, flush=True)
    time.sleep(300)
"""


def test_the_folder_of_a_run_that_was_killed_goes_with_the_next_run(tmp_path: Path, silent: str, options, project):
    """A whole tree of processes that is killed leaves its connection on disk until the next run starts, no longer."""
    runs = tmp_path / "runs"
    mine = runs / "penstock-pipeline-mine"  # no run's: it has no lock
    mine.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _LEFT], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(runs)}
    ) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        with PipelineRun(project, options, RunOrder(remote=silent)):
            assert (folder / "nats.json").exists(), "its run is alive"
        other.kill()
    assert (folder / "nats.json").exists()
    with PipelineRun(project, options, RunOrder(remote=silent)):
        assert not folder.exists()
        sweep()
    assert [path.name for path in runs.iterdir()] == [mine.name]


# -- the child of a run ------------------------------------------------------------------------------------------------


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of a Connect server that takes calls and says nothing; whatever a run makes is under `runs`."""
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "runs"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"sc://127.0.0.1:{listener.getsockname()[1]}/;token=t0ken"


def environment_of(pid: int, eventually: Callable[..., Any]) -> dict[str, str]:
    """Give the environment of a process; for an instant after its start the kernel has none."""
    text = eventually(Path(f"/proc/{pid}/environ").read_text)
    return dict(item.split("=", 1) for item in text.split("\0") if item)


def secrets_of(options: penstock.ConnectionOptions) -> tuple[bytes, bytes]:
    assert options.token is not None
    return options.token.encode(), b"t0ken"


def test_a_run_hides_its_secrets_and_leaves_nothing(
    options: penstock.ConnectionOptions, project: Project, silent: str, tmp_path: Path, eventually: Callable[..., Any]
):
    """No login is in a command line or an environment, files are for this user alone, and all goes with a kill."""
    wanted = options.replace(tls_hostname="nats.example", request_timeout=7.5, name="mine")
    with PipelineRun(project, wanted, RunOrder(remote=silent, continuous=True)) as begun:
        place, environ = Path(f"/proc/{begun.pid}"), environment_of(begun.pid, eventually)
        for secret in secrets_of(options):
            assert secret not in (place / "cmdline").read_bytes()
            assert secret not in (place / "environ").read_bytes()
        (folder,) = (tmp_path / "runs").iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for name in ("order.json", "nats.json"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        given = Assignment.from_json((folder / "order.json").read_bytes())
        assert (given.order, given.spec, given.streams) == (begun.order, project.spec, ("ALERTS", "READINGS"))
        assert load_options(environ=environ) == wanted, "every option"
        assert begun.poll()
        assert project.local_storage is not None
        left = read_progress(project.local_storage)
        assert left is not None
        assert (left["state"], left["pid"], left["continuous"]) == ("running", begun.pid, True)
        begun.stop()
        begun.kill()
        assert not begun.wait(30).ok
        assert begun.outcome.failure == "Spark's process was ended by SIGKILL"
    left = read_progress(project.local_storage)
    assert left is not None
    assert (left["state"], left["failure"]) == ("failed", "Spark's process was ended by SIGKILL")
    assert list((tmp_path / "runs").iterdir()) == []
    assert not is_running(project)
    assert not list(_session(begun.pid))
    begun.close()


def test_two_runs_of_one_pipeline_never_meet(
    options: penstock.ConnectionOptions, project: Project, silent: str, tmp_path: Path
):
    """The second of two runs is refused; of another storage it is another run."""
    with PipelineRun(project, options, RunOrder(remote=silent)):
        assert is_running(project)
        with pytest.raises(InputError, match="runs already"):
            PipelineRun(project, options, RunOrder(remote=silent)).start()
        other = project.at(tmp_path / "other")
        assert not is_running(other)
        with PipelineRun(other, options, RunOrder(remote=silent)):
            assert is_running(other)
            assert pipeline_state(other, options).running
    assert not is_running(project)


def test_a_run_that_takes_too_long_is_ended(options: penstock.ConnectionOptions, project: Project, silent: str):
    """A time limit ends the child, and says so; the run before it was applied stays done."""
    watched: list[str] = []
    with pytest.raises(PipelineError, match=r"sensors failed: it is not done after 0\.3 s"):
        run(project, options=options, remote=silent, timeout=0.3, watch=lambda outcome: watched.append(outcome.phase))
    assert watched
    assert not is_running(project)
    assert sorted(api(options, "STREAM.NAMES")["streams"]) == ["ALERTS", "READINGS"]
    with (
        PipelineRun(project, options, RunOrder(remote=silent)) as begun,
        pytest.raises(PipelineError, match=r"is not done after 0\.1 s\. .*more time") as caught,
    ):
        begun.wait(0.1)
    assert caught.value.log == str(begun.log_path)


def test_a_switched_pipeline_runs_in_its_replay(
    options: penstock.ConnectionOptions, project: Project, silent: str, eventually: Callable[..., Any]
):
    """A run after a switch has the storage, the settings and the database of the replay."""
    kept = keep_replay(project, "v2", "17", {"ALERTS": "V2"})
    switch(project, "v2")
    begun = start(project, options=options, order=RunOrder(remote=silent))
    try:
        assert begun.project == beside(project, "v2")
        settings = kept.settings(switched=True)
        assert (begun.order.replay, begun.order.database) == (settings, "default_replay_v2")
        assert environment_of(begun.pid, eventually)["PENSTOCK_REPLAY"] == settings
        with pytest.raises(InputError, match="runs"):
            switch(project, "v2")
    finally:
        begun.close()


def test_a_child_goes_with_its_parent(
    options: penstock.ConnectionOptions, project: Project, silent: str, tmp_path: Path
):
    """A child whose parent is gone ends itself and takes the folder with the connection along."""
    folder = tmp_path / "runs" / "mine"
    folder.mkdir()
    given = Assignment(folder, project.spec, project.storage, (), {}, RunOrder(remote=silent))
    order, context = given.hand_over(options)
    receive, send = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.pipelines.child", str(order), str(send)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=[send],
        env={**os.environ, "NATS_CONTEXT": str(context)},
    ) as child:
        os.close(send)
        with os.fdopen(receive) as pipe:
            assert json.loads(pipe.readline())["kind"] == "starting"
            assert child.stdin is not None
            child.stdin.close()
            assert child.wait(60) == 1
            assert pipe.read() == "", "it had nothing more to say"
    assert not folder.exists()


def test_a_replay_that_fails_leaves_no_child(options: penstock.ConnectionOptions, project: Project, silent: str):
    """Whatever ends a replay, its child is gone; its streams are there, and the same can be tried again."""

    def watch(outcome: Any) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            replay(project, options=options, into={"ALERTS": "V2"}, name="v2", start="1h", remote=silent, watch=watch)
        assert not is_running(beside(project, "v2"))
    assert "V2" in api(options, "STREAM.NAMES")["streams"]
    with pytest.raises(InputError, match="begun from 1h into ALERTS=V2"):
        replay(project, options=options, into={"ALERTS": "V3"}, name="v2", start="1h", remote=silent)
