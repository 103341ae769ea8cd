"""The harness of the fault tests: a stream that is filled, a driver that is killed, and the audit at the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.spark.java import ROOT


class Traffic(threading.Thread):
    """Publishes without end; what the stream holds in the end is the truth, not what was sent."""

    def __init__(self, url: str, stream: str, rows: int = 200, pause: float = 0.05) -> None:
        super().__init__(daemon=True)
        self.url, self.stream, self.pause = url, stream, pause
        self.rows = pa.record_batch({"data": pa.array([b"x" * 100] * rows, pa.binary())})
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with BulkConnection(self.url) as bulk:
                    while not self.over.wait(self.pause):
                        bulk.publish(self.stream, self.rows, subject=f"{self.stream}.x")
            except PenstockError:
                self.over.wait(0.2)  # the node is down: that is the test

    def stop(self) -> None:
        self.over.set()
        self.join(60)


@dataclass
class Driver:
    """A driver in a process group of its own."""

    url: str
    stream: str
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self, **given: Any) -> subprocess.Popen[bytes]:
        """Start the driver; it goes on where the checkpoint says."""
        asked = {"url": self.url, "stream": self.stream, "folder": str(self.folder), "master": "local[2,4]"}
        asked |= {"options": self.options, **given}
        log = (self.folder / "driver.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.victim", json.dumps(asked)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        return self.process

    @property
    def alive(self) -> bool:
        """Whether the driver runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Kill Python and the JVM at once."""
        if self.process is not None:
            for pid in descendants(self.process.pid) | {self.process.pid}:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.wait(30)
            self.process = None

    def kill_worker(self, chance: random.Random) -> str | None:
        """Kill one of Spark's Python workers; tell which, or None where there is none at the moment."""
        assert self.process is not None
        found = [(pid, text) for pid in sorted(descendants(self.process.pid)) if "pyspark" in (text := command(pid))]
        found = [(pid, text) for pid, text in found if "victim" not in text and "java" not in text.split(" ")[0]]
        if not found:
            return None
        pid, text = chance.choice(found)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return text

    def batches(self) -> int:
        """How many batches the checkpoint has committed."""
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))

    def log_text(self) -> str:
        """What the driver said."""
        return (self.folder / "driver.log").read_text(errors="replace")


def command(pid: int) -> str:
    """Give the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent_of(pid: int) -> int | None:
    """Give the parent of a process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def descendants(root: int) -> set[int]:
    """Give every process below one."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    parents = {pid: parent_of(pid) for pid in pids}
    found, added = set(), {root}
    while added:
        added = {pid for pid, parent in parents.items() if parent in added}
        found |= added
    return found


def wait_for(predicate: Any, timeout: float, why: Any = None) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, why() if why else f"{predicate} did not become true"
        time.sleep(0.1)


def audit(spark: Any, server: Server, stream: str, folder: Path) -> int:
    """Hold the output against the stream: every sequence once. Gives their number."""
    with BulkConnection(server.url) as bulk:
        state = bulk.api(f"STREAM.INFO.{stream}")["state"]
    frame = spark.read.parquet(str(folder / "rows"))
    counts = ("count(*) AS rows", "count(DISTINCT sequence) AS kinds", "min(sequence) AS low", "max(sequence) AS high")
    found = frame.selectExpr(*counts).first()
    last = state["last_seq"]
    assert (state["first_seq"], state["messages"]) == (1, last)
    assert found.asDict() == {"rows": last, "kinds": last, "low": 1, "high": last}
    return int(last)


def write(frame: Any, folder: Path) -> Any:
    """Give the writer of a frame into the folder's output, with the folder's checkpoint."""
    writer = frame.select("stream", "sequence").writeStream.format("parquet")
    return writer.option("path", f"{folder}/rows").option("checkpointLocation", f"{folder}/checkpoint")


def tasks(root: int) -> set[int]:
    """Give the Python workers that run tasks below a process: the forks of a daemon, not the daemon itself."""
    daemons = {pid for pid in descendants(root) if "pyspark.daemon" in command(pid)}
    return {pid for pid in daemons if parent_of(pid) in daemons}
