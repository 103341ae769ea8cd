"""The drivers that meet the hostile scripts: each operation of a client, with short deadlines, in each colour."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.options import ConnectionOptions
from penstock.wire.bulk import BulkConnection
from tests.live.hostile_scripts import Case
from tests.scripted import playing

__all__ = ["DEADLINE", "DRIVERS", "GRACE", "Driver", "Outcome"]

DEADLINE = 0.3  # seconds that every operation is allowed
GRACE = 1.0  # seconds that it may take beyond

ROWS = pa.record_batch({"subject": pa.array(["s.x"] * 10, pa.string()), "data": pa.array([b"hello"] * 10, pa.binary())})


@dataclass
class Outcome:
    """How an operation went."""

    error: BaseException | None = None
    seconds: float = 0.0
    """Of the connecting, of the operation, or of the closing, whichever took longest."""
    left: list[str] = field(default_factory=list)
    """What was left running or open."""

    def faults(self, case: Case) -> list[str]:
        """Say what is wrong with it."""
        found = list(self.left)
        if self.error is not None and not isinstance(self.error, PenstockError):
            found.append(f"an error that is none of ours: {self.error!r}"[:300])
        if self.error is None and case.fails:
            found.append("it succeeded, which cannot be")
        if self.seconds > DEADLINE + GRACE:
            found.append(f"it took {self.seconds:.1f} s and was allowed {DEADLINE:g} s")
        return found


@dataclass(frozen=True)
class Driver:
    """A colour of the client: its name, what it can do, and how it does one thing with a server."""

    name: str
    operations: frozenset[str]
    run: Callable[[str, str], Outcome]

    def meet(self, case: Case) -> list[str]:
        """Meet a server that plays a case; say what went wrong, the case's own name before it."""
        with playing(*case.steps) as server:
            outcome = self.run(case.operation, server.url)
            if not server.is_left(GRACE):
                outcome.left.append("a connection was not closed")
        return [f"{case.operation}, {case.name}: {fault}" for fault in outcome.faults(case)]


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
    marks.append(time.monotonic())
    outcome.seconds = max(later - earlier for earlier, later in itertools.pairwise(marks))
    return outcome


DRIVERS = {driver.name: driver for driver in [Driver("blocking", frozenset(BLOCKING), _blocking)]}
