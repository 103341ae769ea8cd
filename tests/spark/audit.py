"""Counts every row of a pipeline that is being killed all the time: stream to shuffle to stream, lost 0, repeated 0.

    python -m tests.spark.audit --kills 20 --nodes 3 --seed 7

A driver reads numbered messages from the stream IN, shuffles them and writes them to OUT exactly once. At seeded random
moments it is hit where it hurts: the driver, a Python worker, a task, a node of NATS (its leader, in a cluster), or a
worker that sleeps through the death of its driver and wakes up as a zombie. Between some starts more time passes than
the streams' duplicate window. In the end every number in OUT is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.line import Line
from penstock.spark.markers import MARKER_ROOT, is_marker
from penstock.spark.prepare import prepare
from penstock.spark.sink_options import SinkOptions

ROOT = Path(__file__).resolve().parents[2]
MARK = "PENSTOCK_AUDIT"
WINDOW = 1.0  # seconds of the streams' duplicate window
KINDS = ("driver", "worker", "nats", "zombie")


@dataclass
class Result:
    """What the audit found."""

    sent: int
    lost: int
    repeated: int
    kills: Counter[str] = field(default_factory=Counter)
    failed_tasks: float = 0.0
    starts: int = 0
    batches: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether each row is there exactly once."""
        return self.lost == 0 and self.repeated == 0

    def __str__(self) -> str:
        hits = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"{self.sent} rows, {self.kills.total()} kills ({hits}), {self.starts} starts, {self.batches} batches, "
            f"{self.seconds:.0f} s: lost {self.lost}, repeated {self.repeated}"
        )


class Audit:
    """One audited run; everything in it follows from the seed, but for the exact moments."""

    def __init__(
        self,
        *,
        kills: int,
        seed: int = 1,
        nodes: int = 1,
        rows: int = 20_000,
        kinds: tuple[str, ...] = KINDS,
        failures: float = 0.1,
        unfenced: bool = False,
        settings: dict[str, int] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.dice = random.Random(seed)
        self.seed = seed
        self.kills = kills
        self.nodes = nodes
        self.rows = rows
        self.kinds = kinds
        self.failures = failures
        self.unfenced = unfenced
        self.settings = settings or {}
        self.say = say
        self.mark = uuid.uuid4().hex
        self.driver: subprocess.Popen[str] | None = None
        self.asleep: list[int] = []
        self.sent = 0

    def run(self) -> Result:
        """Kill and count."""
        began = time.monotonic()
        result = Result(0, 0, 0)
        with tempfile.TemporaryDirectory(prefix="penstock-audit-") as folder:
            self.folder = Path(folder)
            # Only processes are killed here, not the machine, so the server need not sync before it acknowledges.
            with Server(nodes=self.nodes, sync="2m") as self.server:
                try:
                    self._make_streams()
                    self._feed(self.rows)
                    self._audit(result)
                    result.batches = len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))
                    found = self._count()
                finally:
                    self._end_everything()
        result.sent = self.sent
        result.lost = sum(1 for number in range(self.sent) if str(number).encode() not in found)
        result.repeated = found.total() - len(found)
        result.seconds = time.monotonic() - began
        return result

    def _audit(self, result: Result) -> None:
        self._start(once=False)
        result.starts += 1
        for number in range(self.kills):
            kind = self.kinds[number % len(self.kinds)] if number < len(self.kinds) else self.dice.choice(self.kinds)
            if self.driver is None or self.driver.poll() is not None:
                self._start(once=False)
                result.starts += 1
            self._feed(self.rows // 10)  # there must always be something to do, or nothing would be hit
            self._wait_for_progress()
            self._wait_for_a_moment(kind)
            getattr(self, f"_kill_{kind}")()
            result.kills[kind] += 1
            self.say(f"{number + 1}/{self.kills} killed {kind}; OUT is at {self._stored()}")
            if self.dice.random() < 0.3:
                time.sleep(WINDOW * 1.5)  # what the duplicate window remembered is forgotten
        self._end_driver()
        for attempt in range(5):
            self._start(once=True)
            result.starts += 1
            assert self.driver is not None
            if self.driver.wait(timeout=300) == 0:
                break
            self.say(f"the last run failed, attempt {attempt + 1}: {self._last_words()}")
        else:
            raise AssertionError(f"the query does not come to its end: {self._last_words()}")
        self._wake()

    # -- streams --------------------------------------------------------------------------------------------------

    def _line(self) -> Line:
        return Line(ConnectionOptions(self.server.url, connect_timeout=30, request_timeout=30))

    def _make_streams(self) -> None:
        line = self._line()
        for name in ("IN", "OUT"):
            line.api(
                f"STREAM.CREATE.{name}",
                {
                    "name": name,
                    "subjects": [f"{name}.>"],
                    "num_replicas": self.nodes,
                    "allow_direct": True,
                    "duplicate_window": int(WINDOW * 1e9),
                },
            )
        prepare(line, SinkOptions(stream="OUT", prepare=True))
        line.close()

    def _feed(self, count: int) -> None:
        line = self._line()
        numbers = [str(number).encode() for number in range(self.sent, self.sent + count)]
        batch = pa.record_batch({"data": pa.array(numbers, pa.binary())})
        line.bulk.publish("IN", batch, mode="acks", subject="IN.x", timeout=60)
        self.sent += count
        line.close()

    def _stored(self) -> int:
        line = self._line()
        try:
            return int(line.api("STREAM.INFO.OUT")["state"]["last_seq"])
        finally:
            line.close()

    def _count(self) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        line = self._line()
        first = line.api("STREAM.INFO.OUT")["state"]["first_seq"]
        for batch in line.bulk.read("OUT", first, timeout=60):
            rows = zip(batch.column("subject").to_pylist(), batch.column("data").to_pylist(), strict=True)
            found.update(data for subject, data in rows if not is_marker(subject))
        line.close()
        return found

    # -- the driver -----------------------------------------------------------------------------------------------

    def _start(self, *, once: bool) -> None:
        self._end_driver()
        settings = {
            "url": self.server.url,
            "folder": str(self.folder / "spark"),
            "checkpoint": str(self.folder / "checkpoint"),
            "seed": self.dice.randrange(10**6),
            "failures": self.failures,
            "partitions": self.dice.randint(1, 5),  # a replay meets other partitions than the batch was begun with
            "batch": self.dice.choice([300, 1000, 3000]),
            "atomic_rows": self.dice.choice([10, 50, 400]),
            "in_flight": self.dice.choice([2, 4]),
            "once": once,
            "unfenced": self.unfenced,
            **self.settings,
        }
        self.log = self.folder / f"driver-{uuid.uuid4().hex[:6]}.log"
        with self.log.open("w") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.audit_job", json.dumps(settings)],
                cwd=ROOT,
                env={**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                text=True,
            )

    def _wait_for_progress(self) -> None:
        """Wait until the running query stores something, so that the next kill hits it at work."""
        before = self._stored()
        deadline = time.monotonic() + 240
        while self._stored() == before:
            assert self.driver is not None
            if self.driver.poll() is not None:
                return  # it failed by itself, as queries do whose task failed too often; it will be started again
            if time.monotonic() > deadline:
                raise AssertionError(f"the query makes no progress: {self._last_words()}")
            time.sleep(0.05)

    def _wait_for_a_moment(self, kind: str) -> None:
        """Choose when to strike: just anywhen, or while a task is in the middle of its rows."""
        if kind != "zombie" and self.dice.random() < 0.5:
            time.sleep(self.dice.uniform(0.0, 1.0))
            return
        deadline = time.monotonic() + 60
        line = self._line()
        filtered = {"subjects_filter": f"{MARKER_ROOT}.OUT.*.*.*.*"}
        while time.monotonic() < deadline:
            # A few openings, and then journals.
            if len(line.api("STREAM.INFO.OUT", filtered)["state"].get("subjects") or {}) > 6:
                break
            time.sleep(0.01)
        line.close()

    def _last_words(self) -> str:
        return self.log.read_text()[-3000:]

    def _end_driver(self) -> None:
        if self.driver is not None:
            for pid in self._jvms():
                _signal(pid, signal.SIGKILL)
            self.driver.kill()
            self.driver.wait()
            self.driver = None

    def _end_everything(self) -> None:
        self._end_driver()
        for pid in self._ours():
            _signal(pid, signal.SIGKILL)

    # -- kills ----------------------------------------------------------------------------------------------------

    def _kill_driver(self) -> None:
        self._end_driver()

    def _kill_worker(self) -> None:
        if workers := self._workers():
            _signal(self.dice.choice(workers), signal.SIGKILL)

    def _kill_nats(self) -> None:
        node = self._leader()
        node.kill()
        time.sleep(self.dice.uniform(0.0, 0.5))
        node.start()

    def _kill_zombie(self) -> None:
        """Put the workers to sleep, kill their driver, let another one write, and wake them up."""
        self._wake()
        self.asleep = self._workers()
        for pid in self.asleep:
            _signal(pid, signal.SIGSTOP)
        for pid in self._daemons():  # a daemon that sees its driver die would take its workers along
            _signal(pid, signal.SIGKILL)
        self._end_driver()
        self._feed(self.rows // 10)
        self._start(once=False)
        self._wait_for_progress()
        time.sleep(self.dice.uniform(0.0, 1.0))
        self._wake()

    def _wake(self) -> None:
        for pid in self.asleep:
            _signal(pid, signal.SIGCONT)
        self.asleep = []

    def _leader(self) -> Any:
        if self.nodes == 1:
            return self.server.nodes[0]
        line = self._line()
        try:
            name = line.api("STREAM.INFO.OUT").get("cluster", {}).get("leader")
        finally:
            line.close()
        return next((node for node in self.server.nodes if node.name == name), self.server.nodes[0])

    # -- processes ------------------------------------------------------------------------------------------------

    def _ours(self) -> list[int]:
        """Every process of the drivers, orphans too: all of them carry our mark in their environment."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def _having(self, word: bytes) -> Iterator[int]:
        for pid in self._ours():
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                    yield pid

    def _jvms(self) -> list[int]:
        return list(self._having(b"org.apache.spark.deploy.SparkSubmit"))

    def _workers(self) -> list[int]:
        """The Python workers: children of the daemon, not the daemon itself."""
        known = set(self._having(b"pyspark.daemon"))
        return sorted(pid for pid in known if _parent(pid) in known)

    def _daemons(self) -> list[int]:
        known = set(self._having(b"pyspark.daemon"))
        return sorted(pid for pid in known if _parent(pid) not in known)


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was faster
        os.kill(pid, number)


def main() -> None:
    """Run an audit from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kills, separated by commas")
    parser.add_argument("--unfenced", action="store_true", help="break the sink: the audit must find repeated rows")
    given = parser.parse_args()
    audit = Audit(
        kills=given.kills,
        nodes=given.nodes,
        seed=given.seed,
        rows=given.rows,
        kinds=tuple(given.kinds.split(",")),
        unfenced=given.unfenced,
        settings={"batch": 3000, "atomic_rows": 10, "in_flight": 2} if given.unfenced else None,
        say=lambda text: print(text, flush=True),
    )
    result = audit.run()
    print(result)
    sys.exit(0 if result.clean else 1)


if __name__ == "__main__":
    main()
