"""The process of one client: it reads its job from standard input, says when it is ready, and begins when it is told.

What it says are pickles with their length before them, on the standard output that it was started with; whatever else
writes there goes to standard error. When its standard input ends, nobody wants its result any more, and it ends, too,
after it has closed what it opened, as it does on SIGTERM.
"""

from __future__ import annotations

import _thread
import asyncio
import importlib
import inspect
import os
import pickle
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.bench.client_job import ClientJob
from penstock.bench.results import Sample
from penstock.errors import PenstockError

__all__ = ["Gate", "cpu", "main"]

LENGTH = struct.Struct("!I")
_STEP = 0.1  # seconds between two words on how far it is
_CLOSING = 10.0  # seconds to close what was opened


def cpu(session: bool = False) -> float:
    """Give the CPU seconds that this process took so far, user and system; or all of its session, such as Spark's."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    own = used.ru_utime + used.ru_stime
    return own + sum(map(_ticks, _others())) / os.sysconf("SC_CLK_TCK") if session else own


def _others() -> Iterator[list[bytes]]:
    """Give what the system says of the other processes of our session: the fields behind the name."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == os.getsid(0) and path.parent.name != str(os.getpid()):
            yield fields


def _ticks(fields: list[bytes]) -> int:
    return sum(int(field) for field in fields[11:15])  # its own and those of its children that ended


class Gate:
    """What a loop has to do with the process that started it: ready, go, how far it is, and when to stop."""

    def __init__(self, say: Callable[[Any], None]) -> None:
        self._say = say
        self._go, self.stopped = threading.Event(), threading.Event()
        self._steps, self._told = 0, 0.0
        self._began, self._cpu = 0.0, 0.0
        self.has_others = False
        """Whether the loop works with processes that it started, whose CPU time counts, too."""

    def ready(self) -> None:
        """Say that everything is prepared, wait for the word to begin, and start the clock."""
        self._say(("ready", None))
        self._go.wait()
        self.begin()

    def begin(self) -> None:
        """Start the clock, anew if it runs already."""
        self._began, self._cpu = time.monotonic(), cpu(self.has_others)

    async def ready_async(self) -> None:
        """Do the same while other tasks go on."""
        await asyncio.to_thread(self.ready)

    def step(self, messages: int) -> None:
        """Count messages that are done, and say so now and then."""
        self._steps += messages
        if (now := time.monotonic()) - self._told >= _STEP:
            self._say(("step", self._steps))
            self._steps, self._told = 0, now

    def done(self, job: ClientJob, latencies: Any = (), messages: int | None = None) -> Sample:
        """Stop the clock, and give the sample."""
        count = job.messages if messages is None else messages
        return Sample(
            count, count * job.size, self._began, time.monotonic(), cpu(self.has_others) - self._cpu, latencies
        )

    def hear(self) -> None:
        """Read the word to begin; the end of the input is the word to stop."""
        while word := sys.stdin.buffer.read(1):
            if word == b"g":
                self._go.set()
            else:
                break
        if self._go.is_set() and word:  # asked to stop in peace, which only those do that serve
            self.stopped.set()
            return
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_CLOSING)
        os._exit(1)

    def end(self, number: int, frame: object) -> None:
        """End the process from its main thread; threads that wait here wait no longer."""
        for event in (self._go, self.stopped):  # by another thread: this one may hold their locks, since it waits, too
            _thread.start_new_thread(event.set, ())
        raise SystemExit(128 + number)


def main() -> None:
    """Do one job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(what: Any) -> None:
        content = pickle.dumps(what)
        with lock:
            out.write(LENGTH.pack(len(content)) + content)
            out.flush()

    (size,) = LENGTH.unpack(sys.stdin.buffer.read(LENGTH.size))
    job: ClientJob = pickle.loads(sys.stdin.buffer.read(size))  # noqa: S301  # from the process that started us
    gate = Gate(say)
    signal.signal(signal.SIGTERM, gate.end)
    threading.Thread(target=gate.hear, daemon=True).start()
    module, _, name = job.work.partition(".")
    try:
        found = getattr(importlib.import_module(f"penstock.bench.{module}"), name)(job, gate)
        say(("done", asyncio.run(found) if inspect.iscoroutine(found) else found))
    except PenstockError as error:
        say(("error", error))


if __name__ == "__main__":
    main()
