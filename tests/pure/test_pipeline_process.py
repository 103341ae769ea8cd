"""The process of a run without Spark in it: settings, locks, sessions, what a child says, and what is refused early."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataLossError, InputError, NotFoundError, OptionError, PipelineError
from penstock.options import ConnectionOptions
from penstock.pipelines import running, start
from penstock.pipelines.child import _Mouth
from penstock.pipelines.listening import Listening, _first_line
from penstock.pipelines.new_project import write_project
from penstock.pipelines.order import RunOrder
from penstock.pipelines.process import PipelineRun, _conf, _kill_session, _session, _take_lock, is_running
from penstock.pipelines.project import Project
from penstock.pipelines.reasons import reason
from penstock.pipelines.running import blocking
from penstock.pipelines.watching import ended_by

JAVA = "spark.driver.extraJavaOptions"
NOWHERE = ConnectionOptions("nats://127.0.0.1:1")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.load(write_project(tmp_path, "sensors"))


# -- settings of Spark -------------------------------------------------------------------------------------------------


def test_settings_of_a_spark_on_this_machine(project: Project, tmp_path: Path):
    """A Spark of our own stays on loopback, keeps its catalog in the storage, and leaves nothing outside its folder."""
    conf = _conf(project, RunOrder(), tmp_path / "run")
    storage = project.local_storage
    assert (conf["spark.app.name"], conf["spark.ui.enabled"]) == ("sensors", "false")
    assert (conf["spark.driver.host"], conf["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert conf["spark.sql.session.timeZone"] == "UTC", "what the spec says"
    assert conf["spark.sql.warehouse.dir"] == f"{storage}/warehouse"
    assert (
        conf["spark.hadoop.javax.jdo.option.ConnectionURL"] == f"jdbc:derby:;databaseName={storage}/catalog;create=true"
    )
    assert conf[JAVA] == f'"-Djava.io.tmpdir={tmp_path}/run/java" "-Dderby.stream.error.file={storage}/derby.log"'
    assert conf["spark.local.dir"] == f"{tmp_path}/run/local"
    assert int(conf["spark.sql.shuffle.partitions"]) == max(2, os.cpu_count() or 2)


def test_settings_of_a_spark_on_a_cluster(project: Project, tmp_path: Path):
    """Executors elsewhere must reach the driver, and a storage elsewhere has a catalog of its own."""
    conf = _conf(project.at("s3a://bucket/x"), RunOrder(master="spark://x:7077"), tmp_path)
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.warehouse.dir"} & conf.keys()
    assert not [name for name in conf if "catalogImplementation" in name or "jdo" in name]
    assert conf["spark.sql.shuffle.partitions"] == "200"
    assert "derby" not in conf[JAVA]


def test_the_caller_wins_over_the_spec_and_the_spec_over_us(project: Project, tmp_path: Path):
    """Of three who set the same, the caller is heard; options of Java come together, ours first."""
    ours = {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "7", JAVA: "-Xmx1g"}
    named = replace(project, configuration={**project.configuration, **ours})
    conf = _conf(named, RunOrder(conf={"spark.sql.shuffle.partitions": "9"}), tmp_path)
    assert (conf["spark.ui.enabled"], conf["spark.sql.shuffle.partitions"]) == ("true", "9")
    assert conf[JAVA].startswith('"-Djava.io.tmpdir=')
    assert conf[JAVA].endswith(" -Xmx1g")
    again = _conf(named, RunOrder(conf={JAVA: "-Xmx2g"}), tmp_path)
    assert again[JAVA].endswith(" -Xmx2g")
    assert "-Xmx1g" not in again[JAVA]


def test_nobody_turns_the_event_log_off(project: Project, tmp_path: Path):
    """The progress that people see comes from the event log: no setting takes it away."""
    off = {"spark.eventLog.enabled": "false", "spark.eventLog.dir": "/x", "spark.eventLog.compress": "true"}
    conf = _conf(replace(project, configuration=off), RunOrder(conf=off), tmp_path)
    assert conf["spark.eventLog.enabled"] == "true"
    assert conf["spark.eventLog.dir"] == (tmp_path / "events").as_uri()
    assert conf["spark.eventLog.compress"] == "false"


# -- locks and processes -----------------------------------------------------------------------------------------------


def test_a_storage_that_cannot_be_used_is_told(project: Project, tmp_path: Path):
    """A file where the storage should be is told with its cause, before anything is started."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"The storage .*/file cannot be used: .*--storage"):
        PipelineRun(project.at(tmp_path / "file"), NOWHERE, RunOrder(remote="sc://127.0.0.1:1")).start()


def test_a_storage_elsewhere_has_no_lock(project: Project):
    """Nobody knows here whether another machine runs it: no lock is taken, and none is found."""
    far = project.at("s3a://bucket/x")
    assert _take_lock(far) is None
    assert not is_running(far)


def test_a_lock_goes_with_the_last_who_holds_it(project: Project):
    """A child that inherits the lock keeps it when its parent is gone, and gives it back when it ends."""
    lock = _take_lock(project)
    assert lock is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]) as child:
        os.close(lock)
        assert is_running(project)
        child.communicate(b"\n", timeout=30)
    assert not is_running(project)


_FAMILY = """
import os, subprocess, sys
inner = [sys.executable, "-c", "import os, time; os.setpgid(0, 0); print('up', flush=True); time.sleep(300)"]
child = subprocess.Popen(inner, stdout=subprocess.PIPE)
child.stdout.readline()
print("up", flush=True)
child.wait()
"""


def test_all_that_a_session_started_is_ended_with_it():
    """A process that leads a group of its own, as Spark's workers do, is found by its session and killed, too."""
    with subprocess.Popen([sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        assert len(list(_session(leader.pid))) == 2
        _kill_session(leader.pid)
        assert list(_session(leader.pid)) == []
        assert leader.wait(10) == -signal.SIGKILL
    _kill_session(leader.pid)


def test_a_sudden_end_is_told_by_its_signal():
    """A process that says nothing at its end is told by what ended it."""
    assert ended_by(-9) == "was ended by SIGKILL"
    assert ended_by(-15) == "was ended by SIGTERM"
    assert ended_by(137) == "ended without a message (status 137)"


def test_a_run_that_did_not_start_can_be_closed(project: Project):
    """Whatever happens before the start, closing is fine; there is no process to ask for, and nothing to poll."""
    run = PipelineRun(project, NOWHERE)
    run.stop()
    run.kill()
    run.close()
    assert not run.poll()
    with pytest.raises(AssertionError, match="not started"):
        _ = run.pid


def test_the_outcome_of_a_run_that_failed_is_an_error(project: Project):
    """A failure is told in one sentence with the place of Spark's log; a run that was ended is no success."""
    run = PipelineRun(project, NOWHERE)
    with pytest.raises(PipelineError, match=r"The pipeline sensors failed: it was ended\. Spark's log is .*spark\.log"):
        run.check()
    run.outcome.failure = "The stream is gone."
    with pytest.raises(PipelineError, match=r"failed: The stream is gone\. Spark's") as caught:
        run.check()
    assert caught.value.log == str(run.log_path)
    run.outcome.failure, run.outcome.ended = None, True
    assert run.check() is run.outcome


# -- what a child says -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("No.", remedy="Do this."), "No. Do this."),
        (DataLossError("Gone.", stream="A", start=1, end=2, first=3, last=4), "Gone."),
        (ValueError("a\nb"), "a"),
        (ValueError("\n\n  b  \n"), "b"),
        (ValueError(""), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (
            RuntimeError("[STREAM_FAILED] Query\n  File x\npenstock.errors.DataLossError: Gone: all. Do this.\nmore"),
            "Gone: all. Do this.",
        ),
        (RuntimeError("x\n  penstock.errors.InputError: inside a trace"), "x"),
    ],
)
def test_the_sentence_for_a_person_is_found(error: BaseException, said: str):
    """Of what Spark says, the sentence of ours is told; where there is none, the first line that says anything."""
    assert reason(error) == said


def test_lines_of_a_child_are_whole():
    """However many threads speak at once, each line is one JSON value, with its kind and its time."""
    pipe = io.StringIO()
    mouth = _Mouth(pipe)

    def speak(number: int) -> None:
        for part in range(50):
            mouth.say("progress", number=number, part=part, text="é\n" * 20)

    threads = [threading.Thread(target=speak, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in pipe.getvalue().splitlines()]
    assert len(lines) == 200
    assert {(line["number"], line["part"]) for line in lines} == {(a, b) for a in range(4) for b in range(50)}
    assert all(line["kind"] == "progress" and line["at"] > 0 for line in lines)


# -- what a Connect server tells ---------------------------------------------------------------------------------------


def test_flows_that_are_queries_are_counted():
    """Each flow that runs is a query whose end is waited for; one that was planned as a batch is none."""
    listening = Listening(None, print)
    for message in (
        "Flow totals is PLANNING.",
        "Flow raw is RUNNING.",
        "Flow totals is RUNNING.",
        "Flow raw is COMPLETED.",
        "Run is RUNNING.",
        "Flow raw is RUNNING.",  # tried again: another query
    ):
        listening.hear(message)
    assert listening._begun == 2
    assert not listening._heard_all()
    for _ in range(2):
        listening._take(_event("QUERY_TERMINATED_EVENT"))
    assert listening._heard_all()


def test_every_progress_is_told_and_nothing_else():
    """A progress is handed on as Spark wrote it; beginnings and idle queries are not."""
    told: list[tuple[str, dict[str, Any]]] = []
    listening = Listening(None, lambda kind, **fields: told.append((kind, fields)))
    listening._take(_event("QUERY_PROGRESS_EVENT", {"progress": {"batchId": 3, "name": "raw"}}))
    for kind in ("QUERY_IDLE_EVENT", "QUERY_PROGRESS_UNSPECIFIED", "QUERY_TERMINATED_EVENT"):
        listening._take(_event(kind, {"progress": {"batchId": 4}}))
    assert told == [("progress", {"progress": {"batchId": 3, "name": "raw"}})]


def _event(kind: str, content: object = None) -> Any:
    """Give an event as a Connect server sends it."""
    from pyspark.sql.connect.proto import StreamingQueryEventType, StreamingQueryListenerEvent

    return StreamingQueryListenerEvent(
        event_type=StreamingQueryEventType.Value(kind), event_json=json.dumps(content or {})
    )


@pytest.mark.parametrize(("text", "line"), [("a.\nb", "a"), ("\n  b.. \n", "b"), ("", "ValueError")])
def test_a_problem_is_one_line(text: str, line: str):
    """What a server complains of is told by its first line, with no full stop: it becomes part of a sentence."""
    assert _first_line(ValueError(text)) == line


# -- beginning ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def order_of(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunOrder]:
    """Give the order with which `run` would start what it is asked for."""

    class Started(Exception):
        pass

    def start_none(path: object, **given: Any) -> None:
        raise Started(given["order"])

    def ask(**asked: Any) -> RunOrder:
        with pytest.raises(Started) as caught:
            running.run(project, options=NOWHERE, **asked)
        order: RunOrder = caught.value.args[0]
        return order

    monkeypatch.setattr(running, "start", start_none)
    return ask


def test_an_order_is_what_the_caller_says(order_of: Callable[..., RunOrder]):
    """Whatever is not said is as an order has it by itself."""
    assert order_of() == RunOrder()
    assert order_of(continuous=True, pause=2.0, master="local[2]", conf={"a": "b"}) == RunOrder(
        True, 2.0, "local[2]", conf={"a": "b"}
    )
    assert order_of(remote="sc://x", full_refresh=["a"], dry=True) == RunOrder(
        remote="sc://x", full_refresh=("a",), dry=True
    )


def test_an_order_that_contradicts_itself_is_refused(project: Project):
    """Two masters, or a run for ever that is dry or a refresh, are refused with the name of the option."""
    with pytest.raises(OptionError, match="Both master and remote") as caught:
        running.run(project, options=NOWHERE, master="local[2]", remote="sc://x")
    assert caught.value.option == "remote"
    for also in ({"full_refresh": ("a",)}, {"full_refresh_all": True}, {"dry": True}):
        with pytest.raises(OptionError, match="neither dry nor a full refresh") as caught:
            running.run(project, options=NOWHERE, continuous=True, **also)
        assert caught.value.option == "continuous"


def test_an_address_and_options_are_one_too_many(project: Project):
    """Who gives both says two things about one: neither is chosen."""
    with pytest.raises(InputError, match="Both url and options"):
        start(project, url="nats://h", options=NOWHERE)


def test_a_coroutine_is_run_from_anywhere():
    """Ordinary code gets what a coroutine gives or raises, with a loop around it or without."""

    async def double(number: int) -> int:
        await asyncio.sleep(0)
        if number < 0:
            raise NotFoundError("There is no such number.")
        return 2 * number

    async def inside() -> int:
        return blocking(double(21))

    assert blocking(double(4)) == 8
    assert asyncio.run(inside()) == 42
    with pytest.raises(NotFoundError, match="no such number"):
        blocking(double(-1))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever is started here ends here."""
    before = threading.active_count()
    yield
    assert threading.active_count() == before
