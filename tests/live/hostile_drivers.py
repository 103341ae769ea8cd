"""The drivers that meet the hostile scripts: each operation of a client, with short deadlines, in each colour.

`blocking` is `BulkConnection`, `asyncio` is `Connection` and its JetStream, `jetstream` is the room of that name.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.connection import Connection, api_request, connect
from penstock.errors import DeadlineError, PenstockError
from penstock.jetstream import Deliveries, Outgoing, Publisher, assets
from penstock.options import ConnectionOptions
from penstock.wire.bulk import BulkConnection
from tests.live.hostile_scripts import Case
from tests.scripted import playing

__all__ = ["DEADLINE", "DRIVERS", "GRACE", "Driver", "Outcome", "Strain"]

DEADLINE = 0.2  # seconds that every operation is allowed
GRACE = 3.0  # seconds that it may take beyond, on a machine that has much else to do
LEAVING = 20.0  # seconds that a busy machine may take to show that a connection was closed; one that was not, never is
HANGS = 10.0  # seconds after which one that never ends is ended from outside

ROWS = pa.record_batch({"subject": pa.array(["s.x"] * 10, pa.string()), "data": pa.array([b"hello"] * 10, pa.binary())})


@dataclass
class Outcome:
    """How an operation went."""

    error: BaseException | None = None
    seconds: float = 0.0
    """Of the connecting, of the operation, or of the closing, whichever took longest."""
    left: list[str] = field(default_factory=list)
    """What was left running or open."""

    def faults(self, case: Case, late: float = 0.0) -> list[str]:
        """Say what is wrong with it, on a machine that let everybody wait for so many seconds."""
        found = list(self.left)
        if self.error is not None and not isinstance(self.error, PenstockError):
            found.append(f"an error that is none of ours: {self.error!r}"[:300])
        if self.error is None and case.fails:
            found.append("it succeeded, which cannot be")
        if self.seconds > DEADLINE + GRACE + late:
            found.append(
                f"it took {self.seconds:.1f} s and was allowed {DEADLINE:g} s; {late:.1f} s were the machine's"
            )
        return found


class Strain:
    """How long this machine, or another thread of ours, keeps everybody waiting who could run.

    A thread wants to run every few milliseconds; `late` is the sum of the seconds by which it was late.
    """

    def __init__(self) -> None:
        self.late = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="strain")

    def _watch(self) -> None:
        begun = time.monotonic()
        while not self._stop.wait(0.005):
            now = time.monotonic()
            self.late += max(0.0, now - begun - 0.006)
            begun = now

    def __enter__(self) -> Strain:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclass(frozen=True)
class Driver:
    """A colour of the client: its name, what it can do, and how it does one thing with a server."""

    name: str
    operations: frozenset[str]
    run: Callable[[str, str], Outcome]

    def meet(self, case: Case, strain: Strain) -> list[str]:
        """Meet a server that plays a case; say what went wrong, the case's own name before it."""
        begun = strain.late
        with playing(*case.steps) as server:
            outcome = self.run(case.operation, server.url)
            late = strain.late - begun
            if not server.is_left(LEAVING):
                outcome.left.append("a connection was not closed")
        return [f"{case.operation}, {case.name}: {fault}" for fault in outcome.faults(case, late)]


def options(url: str) -> ConnectionOptions:
    """Give what a connection needs, everything with the deadline."""
    return ConnectionOptions(url, connect_timeout=DEADLINE, request_timeout=DEADLINE, reconnect_wait=0.05)


# -- blocking --------------------------------------------------------------------------------------------------------


def _read(bulk: BulkConnection) -> None:
    rows = sum(batch.num_rows for batch in bulk.read("S", timeout=DEADLINE))
    assert rows <= 3, f"{rows} rows of a stream that has three"


BLOCKING: dict[str, Callable[[BulkConnection], object]] = {
    "connect": lambda bulk: None,
    "request": lambda bulk: bulk.request("echo", b"hello", timeout=DEADLINE),
    "api": lambda bulk: bulk.api("STREAM.INFO.S", timeout=DEADLINE),
    "acks": lambda bulk: bulk.publish("S", ROWS, "acks", timeout=DEADLINE),
    "atomic": lambda bulk: bulk.publish("S", ROWS, "atomic", timeout=DEADLINE),
    "fast": lambda bulk: bulk.publish("S", ROWS, "fast", timeout=DEADLINE),
    "direct": _read,
    "pull": _read,
}


def _blocking(operation: str, url: str) -> Outcome:
    outcome = Outcome()
    marks = [time.monotonic()]
    try:
        with BulkConnection(options(url)) as bulk:
            marks.append(time.monotonic())
            try:
                BLOCKING[operation](bulk)
            finally:
                marks.append(time.monotonic())
    except BaseException as error:
        outcome.error = error
    outcome.seconds = _longest(marks)
    return outcome


def _longest(marks: list[float]) -> float:
    return max(later - earlier for earlier, later in itertools.pairwise([*marks, time.monotonic()]))


# -- asyncio ---------------------------------------------------------------------------------------------------------

Work = Callable[[Connection], Awaitable[object]]


async def _nothing(nc: Connection) -> None:
    """Do no more than connect."""


async def _flush(nc: Connection) -> None:
    await nc.publish("anywhere", b"hello")
    await nc.flush(DEADLINE)


async def _subscribe(nc: Connection) -> None:
    subscription = await nc.subscribe("feed")
    for _ in range(3):
        await subscription.next_msg(DEADLINE)


ASYNCIO: dict[str, Work] = {
    "connect": _nothing,
    "request": lambda nc: nc.request("echo", b"hello", timeout=DEADLINE),
    "flush": _flush,
    "subscribe": _subscribe,
    "api": lambda nc: api_request(nc, "STREAM.INFO.S", timeout=DEADLINE),
    "publish": lambda nc: nc.jetstream(timeout=DEADLINE).publish("s.x", b"hello", timeout=DEADLINE),
}


async def _send(nc: Connection) -> None:
    async with Publisher(nc, "S", ack_timeout=DEADLINE, patience=DEADLINE) as publisher:
        await asyncio.gather(*[await publisher.send("s.x", b"hello") for _ in range(3)])


async def _batch(nc: Connection, how: Any) -> None:
    async with Publisher(nc, "S", ack_timeout=DEADLINE, patience=DEADLINE) as publisher:
        await publisher.publish_batch([Outgoing("s.x", b"hello")] * 10, how)


async def _consume(nc: Connection) -> None:
    within = {"expires": DEADLINE, "heartbeat": 0.1, "patience": DEADLINE, "wait": DEADLINE}
    read = 0
    async with Deliveries(nc, "S", "c", limit=3, **within) as deliveries:
        async for delivery in deliveries:
            await delivery.ack()
            read += 1
    if read < 3:  # the iteration ends where nothing came for so long
        raise DeadlineError(f"{read} deliveries came of a stream that has three.")


JETSTREAM: dict[str, Work] = {
    "api": lambda nc: assets.stream_info(nc, "S"),
    "acks": _send,
    "atomic": lambda nc: _batch(nc, "atomic"),
    "fast": lambda nc: _batch(nc, "fast"),
    "consume": _consume,
}


def _in_a_loop(operations: dict[str, Work]) -> Callable[[str, str], Outcome]:
    return lambda operation, url: asyncio.run(_asyncio(operations[operation], url))


async def _asyncio(work: Work, url: str) -> Outcome:
    outcome = Outcome()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: outcome.left.append(f"nobody took an error: {about}"[:300]))
    marks = [time.monotonic()]
    try:
        async with await connect(options(url)) as nc:
            marks.append(time.monotonic())
            try:
                async with asyncio.timeout(HANGS):
                    await work(nc)
            finally:
                marks.append(time.monotonic())
    except BaseException as error:
        outcome.error = error
    outcome.seconds = _longest(marks)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=GRACE)  # those that end need a turn for it
    outcome.left += [f"a task runs on: {task!r}"[:300] for task in asyncio.all_tasks() - {asyncio.current_task()}]
    return outcome


DRIVERS = {
    driver.name: driver
    for driver in [
        Driver("blocking", frozenset(BLOCKING), _blocking),
        Driver("asyncio", frozenset(ASYNCIO), _in_a_loop(ASYNCIO)),
        Driver("jetstream", frozenset(JETSTREAM), _in_a_loop(JETSTREAM)),
    ]
}
