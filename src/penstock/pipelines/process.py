"""A running pipeline: the child process with Spark in it, followed from outside, stopped or killed at any moment.

The child leads a session of its own, so that everything it starts (Java, Python workers) can be found and ended with
it. It learns where NATS is from a context file that only its user may read: no secret is in an argument, in the
environment or in a query plan. Two runs of the same pipeline at once are refused by a lock in the storage.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

from penstock.errors import InputError, PipelineError
from penstock.extras import check_installed
from penstock.json_text import load_json
from penstock.options import ConnectionOptions
from penstock.pipelines.agreement import check_home
from penstock.pipelines.eventlog import EventLog
from penstock.pipelines.order import Assignment, RunOrder
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.progress import ProgressFile, process_facts, progress_folder, was_asked
from penstock.pipelines.project import Project
from penstock.pipelines.reasons import not_started
from penstock.pipelines.scratch import scratch_folder
from penstock.pipelines.watching import connect_address, ended_by
from penstock.spark.pipeline_replay import VARIABLE
from penstock.spark.redaction import SETTINGS
from penstock.spark.sessions import check_java

__all__ = ["PipelineRun", "is_running", "no_run"]

MOST_LOG = 50 * 2**20
_NO_JAVA = "[JAVA_GATEWAY_EXITED]"  # what pyspark says if Java, or Spark in it, did not come up
_DIE = 10.0  # seconds that killed processes may take to be gone


class PipelineRun:
    """One run of a pipeline in a child process; a context manager that leaves nothing behind."""

    def __init__(self, project: Project, options: ConnectionOptions, order: RunOrder | None = None) -> None:
        self.project = project
        self.order = order or RunOrder()
        self.outcome = Outcome(counted=self.order.remote is None)
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: BinaryIO | None = None
        self._rest = b""
        self._folder: Path | None = None
        self._log: EventLog | None = None
        self._progress: ProgressFile | None = None
        self._held = contextlib.ExitStack()  # the lock, the folder and the pipe

    # -- beginning and end -----------------------------------------------------------------------

    def start(self) -> Self:
        """Start the child."""
        check_installed("spark", "A pipeline")
        if self.order.remote is None:
            check_java()
        try:
            self._launch()
        except BaseException:
            self.close()
            raise
        return self

    def _launch(self) -> None:
        lock = _take_lock(self.project)
        if lock is not None:
            self._held.callback(os.close, lock)
        storage = self.project.local_storage
        if storage is not None and (note := check_home(storage, _spark_of(self.order))):
            self.outcome.notes.append(note)
        folder, held = self._held.enter_context(scratch_folder())
        self._folder = folder
        for name in ("events", "java"):
            (folder / name).mkdir()
        self._log = EventLog(folder / "events", self.outcome.miss)
        assignment = Assignment(
            folder=folder,
            spec=self.project.spec,
            storage=self.project.storage,
            streams=tuple(sorted(self.project.topology.streams)) if self.project.topology is not None else (),
            spark=_conf(self.project, self.order, folder),
            order=self.order,
        )
        order, context = assignment.hand_over(self._options)
        receive, send = os.pipe()
        self._pipe = self._held.enter_context(os.fdopen(receive, "rb", buffering=0))
        try:
            with _open_log(self.log_path) as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "penstock.pipelines.child", str(order), str(send)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=[send, held] if lock is None else [send, held, lock],
                    env=_environment(self.order, context),
                    start_new_session=True,
                )
        finally:
            os.close(send)
        about = self.project, self._options, self._process.pid
        self._progress = ProgressFile.of(*about, continuous=self.order.continuous)
        self._progress.write(self.outcome)

    @property
    def pid(self) -> int:
        """The process id of the child, which also names its session."""
        assert self._process is not None, "the run is not started"
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """Where Spark's own log goes."""
        folder = self.project.local_storage or self._folder
        assert folder is not None, "the run is not started"
        return folder / "spark.log"

    def stop(self) -> None:
        """Ask the child to end after the update in hand."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it is gone already
                self._process.stdin.write(b"stop\n")
                self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the child and everything that it started, at once. The next run goes on where this one was."""
        if self._process is not None:
            _kill_session(self._process.pid)

    def close(self) -> None:
        """End the child, however far it is, and give everything back."""
        if self._process is not None:
            self.kill()
            self._process.wait(_DIE)
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
        if self._progress is not None:
            self._progress.write(self.outcome, over=True)
            self._progress = None
        self._held.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *about: object) -> None:
        self.close()

    # -- following -------------------------------------------------------------------------------

    def poll(self, timeout: float = 0.2) -> bool:
        """Take in what has happened, waiting a little for it; tell whether the child still runs."""
        alive = self._read_pipe(timeout)
        if self._log is not None:
            for event in self._log.read():
                self.outcome.read(event)
        self.outcome.silence = max(0.0, time.time() - (self.outcome.heard or time.time()))
        if self.log_path.exists() and self.log_path.stat().st_size > MOST_LOG:
            os.truncate(self.log_path, 0)
        if not alive and self._process is not None:
            status = self._process.wait(_DIE)
            if not self.outcome.ended and self.outcome.failure is None:
                self.outcome.failure = f"Spark's process {ended_by(status)}"
            if _NO_JAVA in (self.outcome.failure or "") and (said := not_started(_tail(self.log_path))):
                self.outcome.failure = f"Spark does not start with the master {self.order.master}: {said}"
        if self._progress is not None:
            self._progress.write(self.outcome, over=not alive)
            if alive and was_asked(progress_folder(self.project)):
                self.stop()
        return alive

    def wait(self, timeout: float | None = None) -> Outcome:
        """Follow the child to its end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll():
            if deadline is not None and time.monotonic() > deadline:
                self.kill()
                what = f"The pipeline {self.project.name} is not done after {timeout:g} s."
                raise PipelineError(what, remedy="Give it more time, or look into its log.", log=str(self.log_path))
        return self.outcome

    def check(self) -> Outcome:
        """Give the outcome of a run that is over; PipelineError if it failed."""
        if not self.outcome.ok:
            what = f"The pipeline {self.project.name} failed: {(self.outcome.failure or 'it was ended').rstrip('.')}."
            raise PipelineError(what, remedy=f"Spark's log is {self.log_path}.", log=str(self.log_path))
        return self.outcome

    def _read_pipe(self, timeout: float) -> bool:
        if self._pipe is None or self._pipe.closed:
            return False
        if not select.select([self._pipe], [], [], timeout)[0]:
            return True
        chunk = self._pipe.read(2**16)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self.outcome.hear(load_json(line))
        return bool(chunk)


# -- what the child is given -------------------------------------------------------------------------------------------


def _conf(project: Project, order: RunOrder, folder: Path) -> dict[str, str]:
    """Collect Spark's settings: what a pipeline on one machine needs, under what the spec and the caller say."""
    local = order.master.startswith("local")
    java = "spark.driver.extraJavaOptions"
    conf = {
        **SETTINGS,
        "spark.app.name": project.name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A state store for each partition: as many as there are cores, not two hundred.
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)) if local else "200",
        "spark.local.dir": str(folder / "local"),
        # Java unpacks libraries and makes folders that a kill would leave behind: they go with the run's own folder.
        java: f'"-Djava.io.tmpdir={folder / "java"}"',
    }
    if local:
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
    storage = project.local_storage
    if storage is not None:
        conf["spark.sql.warehouse.dir"] = str(project.warehouse)
        # The catalog must outlive the run, or the next one finds tables on disk that it does not know.
        conf["spark.sql.catalogImplementation"] = "hive"
        catalog = f"jdbc:derby:;databaseName={storage / 'catalog'};create=true"
        conf["spark.hadoop.javax.jdo.option.ConnectionURL"] = catalog
        conf[java] += f' "-Dderby.stream.error.file={storage / "derby.log"}"'
    given = {**project.configuration, **order.conf}
    if java in given:
        given[java] = f"{conf[java]} {given[java]}"
    conf |= given
    # Last: the child talks to Spark through its Connect server, and the progress that we show comes from its log.
    conf |= {
        "spark.master": order.master,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.rolling.maxFileSize": "10m",
    }
    return conf


def _environment(order: RunOrder, context: Path) -> dict[str, str]:
    around = {"NATS_URL", "SPARK_REMOTE", "SPARK_MASTER", "MASTER", "SPARK_CONNECT_MODE_ENABLED", VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in around}
    environment |= {
        "NATS_CONTEXT": str(context),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONUNBUFFERED": "1",
    }
    if order.remote is None:
        environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = secrets.token_urlsafe(24)
        if order.master.startswith("local"):
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    if order.replay is not None:
        environment[VARIABLE] = order.replay
    return environment


def _spark_of(order: RunOrder) -> str:
    """Give the Spark that has the tables of a run, as people call it."""
    if order.remote is None:
        return "its own Spark"
    host, port = connect_address(order.remote)
    return f"the Connect server {host}:{port}"


def _open_log(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as error:
        what = f"Spark's log {path} cannot be written: {error.strerror}."
        raise InputError(what, remedy="Make room, or name another storage with --storage.") from None


def _tail(path: Path, most: int = 2**16) -> str:
    """Give the end of a log."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - most))
            return log.read(most).decode(errors="replace")
    except OSError:
        return ""


# -- locks and processes -----------------------------------------------------------------------------------------------


def _take_lock(project: Project, patience: float = 1.0) -> int | None:
    """Take the lock of a run. Whoever looks whether a run is under way holds it for an instant: that is waited for."""
    storage = project.local_storage
    if storage is None:
        return None
    try:
        storage.mkdir(parents=True, exist_ok=True)
        handle = os.open(storage / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        what = f"The storage {storage} cannot be used: {error.strerror}."
        raise InputError(what, remedy="Name another one with --storage.") from None
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            os.close(handle)
            what = f"The pipeline {project.name} runs already, with its storage in {storage}."
            raise InputError(what, remedy="Wait for it, stop it, or name another storage.") from None


def is_running(project: Project) -> bool:
    """Tell whether a run of this pipeline is under way on this machine."""
    if project.local_storage is None or not (project.local_storage / "lock").exists():
        return False
    try:
        handle = _take_lock(project, patience=0.0)
    except InputError:
        return True
    if handle is not None:
        os.close(handle)
    return False


@contextlib.contextmanager
def no_run(project: Project) -> Iterator[None]:
    """Keep runs of this pipeline from beginning; InputError if one is under way."""
    if project.local_storage is None or not project.local_storage.exists():
        yield
        return
    try:
        handle = _take_lock(project)
    except InputError:
        raise InputError(f"The pipeline {project.name} runs.", remedy="Stop it first.") from None
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _session(leader: int) -> Iterator[int]:
    """Find the processes of a session, dead ones left out."""
    for path in Path("/proc").glob("[0-9]*"):
        facts = process_facts(path.name)
        if facts and int(facts[3]) == leader:
            yield int(path.name)


def _kill_session(leader: int) -> None:
    """Kill a child and all that it started, also workers that lead groups of their own, and see them gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + _DIE
    while time.monotonic() < deadline:
        left = list(_session(leader))
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
