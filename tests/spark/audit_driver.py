"""The drivers of the audit: each a process with a JVM and Python workers of its own, all of them findable by a mark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from tests.spark.audit_job import start
from tests.spark.java import QUICK_JVM, ROOT

MARK = "PENSTOCK_AUDIT"
PATIENCE = 600.0  # seconds for whatever a busy machine may be slow with


class Driver:
    """A Spark driver that stands by until it is told what to run."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.mark = mark
        self.log = folder / f"driver-{mark}.log"
        self.asleep: list[int] = []
        temporary = folder / "java"
        temporary.mkdir(exist_ok=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.audit_job", str(folder / f"spark-{mark}")],
                cwd=ROOT,
                env={
                    **os.environ,
                    MARK: mark,
                    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                    "SPARK_SUBMIT_OPTS": f"{QUICK_JVM} -Djava.io.tmpdir={temporary}",
                },
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the driver runs."""
        return self.process.poll() is None

    def tell(self, what: dict[str, Any]) -> None:
        """Send a line: the settings of the query, and later which task to kill."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; whoever waits for it sees that
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def wait_for(self, word: str) -> bool:
        """Wait until the driver says something; False where it died instead."""
        deadline = time.monotonic() + PATIENCE
        while not self.said(word):
            if not self.alive:
                return False
            if time.monotonic() > deadline:
                raise AssertionError(f"the driver never says {word!r}: {self.last_words()}")
            time.sleep(0.05)
        return True

    def said(self, word: str) -> bool:
        """Tell whether the driver has said something."""
        return word in self.log.read_text()

    def finish(self) -> int | None:
        """Let it come to its end by itself, and give its exit code; None where it does not."""
        try:
            return self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        """Give the end of what it said."""
        return self.log.read_text()[-3000:]

    def kill(self) -> None:
        """Kill Python and JVM; workers whose daemon lives follow by themselves."""
        for pid in self._jvms():
            send(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def kill_everything(self) -> None:
        """Kill it with all that it ever started, orphans too."""
        self.kill()
        for pid in marked(self.mark):
            send(pid, signal.SIGKILL)

    def put_workers_to_sleep(self, workers: list[int]) -> int:
        """Stop workers, and kill their daemons, which would take them along when the driver dies; count them."""
        self.asleep = [pid for pid in workers if send(pid, signal.SIGSTOP)]
        for pid in self._daemons():
            send(pid, signal.SIGKILL)
        return len(self.asleep)

    def wake_workers(self) -> None:
        """Let the stopped workers go on where they were."""
        for pid in self.asleep:
            send(pid, signal.SIGCONT)
        self.asleep = []

    def workers(self) -> list[int]:
        """The Python workers: children of a daemon, not the daemon itself."""
        known = set(self._having(b"pyspark.daemon"))
        return sorted(pid for pid in known if _parent(pid) in known)

    def _jvms(self) -> list[int]:
        return list(self._having(b"org.apache.spark.deploy.SparkSubmit"))

    def _daemons(self) -> list[int]:
        known = set(self._having(b"pyspark.daemon"))
        return sorted(pid for pid in known if _parent(pid) not in known)

    def _having(self, word: bytes) -> Iterator[int]:
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):  # it ended
                if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                    yield pid


class SessionDriver:
    """A Spark that runs in this process, as the one that takes over from a driver that was killed."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.query: Any = None

    @property
    def alive(self) -> bool:
        """Whether the query runs."""
        return self.query is not None and self.query.isActive

    def tell(self, what: dict[str, Any]) -> None:
        """Start the query with its settings, or let it come to its end."""
        if "finish" in what:
            with contextlib.suppress(StreamingQueryException):  # `finish` tells how it ended
                self.query.processAllAvailable()
                self.query.stop()
        else:
            self.query = start(self.spark, {**what, "failures": 0.0})  # this session tries no task a second time
            self.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")  # the query has a copy of its own

    def wait_for(self, word: str) -> bool:
        """It is always ready."""
        return True

    def finish(self) -> int:
        """Wait for the end of the query, and give 0 where it is a good one."""
        return 0 if self.query.awaitTermination(PATIENCE) and self.query.exception() is None else 1

    def last_words(self) -> str:
        """Give the reason of its end."""
        return str(self.query.exception())

    def kill(self) -> None:
        """Stop the query; the session is not ours."""
        if self.query is not None:
            self.query.stop()

    kill_everything = kill

    def wake_workers(self) -> None:
        """None of its workers sleeps."""


def marked(mark: str) -> list[int]:
    """Give every process that carries a mark in its environment."""
    found = []
    wanted = f"{MARK}={mark}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is not ours
            if wanted in (folder / "environ").read_bytes() + b"\0":
                found.append(int(folder.name))
    return found


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False where the process has ended before."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
