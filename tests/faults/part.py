"""What all workloads have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.prepare import prepare
from penstock.spark.sink_options import SinkOptions
from tests.faults.allowed import allowed
from tests.faults.checker import STALL, Finding, Window, check_endings, check_progress, check_recovered, shown
from tests.faults.history import History, read_history, sorts_since
from tests.faults.nemesis import Aims
from tests.faults.world import World

BOUND = 45.0  # seconds in which nothing is done to the world, or the world is whole, and nothing is acknowledged
DRAIN = 180.0  # seconds in which everything must have come to its end, once the world is whole again


@dataclass(frozen=True)
class Moments:
    """When the clients of a round all worked, and when its world was whole again after the last fault."""

    begin: float
    healed: float


class Part:
    """One workload in one world."""

    name = ""
    aims = Aims()
    kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of its clients, as the guarantees name them; each begins the names of its clients."""
    endings: ClassVar[tuple[tuple[str, str, float], ...]] = ()
    """Faults after which it may stop for good: kind, target, seconds. A round of it alone ends with one, or none."""

    pace: ClassVar[float] = 1.8
    """About how many seconds lie between two faults."""
    working: ClassVar[tuple[str, ...]] = ()
    """The clients that get something acknowledged all the time."""
    hearing: ClassVar[tuple[str, ...]] = ()
    """The clients that receive something all the time."""
    feeding: ClassVar[tuple[str, ...]] = ()
    """The clients that go on when the others have stopped for good."""
    slack: ClassVar[float] = 1.0
    """How many times longer than others its clients may be without an acknowledgement."""

    def __init__(self, world: World, plants: dict[str, str] | None = None) -> None:
        self.world, self.plants = world, plants or {}
        self.late: list[str] = []

    def set_up(self) -> None:
        """Make the streams and start the clients."""

    def look_before_the_end(self) -> list[Finding]:
        """Judge what is there before the last fault of a round, after which it may stop for good and have lost rows."""
        return []

    def finish(self) -> None:
        """Let everything come to its end, in order."""

    def check(self, history: History, faults: Sequence[Window]) -> list[Finding]:
        """Judge what was done."""
        raise NotImplementedError

    def known_consumers(self) -> dict[str, set[str]]:
        """Give the consumers that stay by right, by stream."""
        return {}

    def add(self, name: str, program: str, **given: Any) -> None:
        """Have a client, broken on purpose where that is asked for."""
        self.world.crew.add(name, program, plant=self.plants.get(name, ""), **given)

    def common(
        self,
        history: History,
        faults: Sequence[Window],
        windows: Sequence[Window],
        moments: Moments,
        bound: float = BOUND,
    ) -> list[Finding]:
        """Judge what all clients have in common: that they say why they end, and that they get on."""
        findings = []
        if self.late:
            findings.append(Finding(STALL, self.name, f"{shown(self.late)} did not end in {DRAIN:.0f} s when asked to"))
        for kind in self.kinds:
            mine, died = history.of(f"{kind}-"), self.world.crew.died(f"{kind}-")
            streams = {*self.aims.streams, *self.known_consumers()}
            findings += check_endings(kind, mine, died, allowed(kind, faults, streams, bound * self.slack))
        return findings + self.stalls(history, windows, moments, bound)

    def stalls(
        self, history: History, windows: Sequence[Window], moments: Moments, bound: float = BOUND
    ) -> list[Finding]:
        """Find clients that did not get on while nothing was done to the world, or once it was whole again."""
        findings, bound = [], bound * self.slack
        for name, sort in self.must_get_on(history).items():
            kind, mine = name.partition("-")[0], history.of(name)
            if sort == "ok":
                findings += check_progress(kind, mine, windows, moments.begin, moments.healed, bound)
            findings += check_recovered(kind, mine, moments.healed, bound, client=name, sort=sort)
        return findings

    def must_get_on(self, history: History) -> dict[str, str]:
        """Name the clients that have not stopped for good, and the sort of line that each writes if it gets on."""
        names = dict.fromkeys(self.working, "ok") | dict.fromkeys(self.hearing, "got")
        return {name: sort for name, sort in names.items() if not self.is_over(history) or name in self.feeding}

    def settle(self, healed: float, places: dict[str, int], bound: float = BOUND) -> None:
        """Wait until each client that must get on has done so since the world is whole again."""
        folder, deadline = self.world.folder, healed + bound * self.slack
        waiting = self.must_get_on(History())
        while time.monotonic() < deadline:
            for name, sort in list(waiting.items()):
                if sort in sorts_since(folder / f"{name}.jsonl", places.get(name, 0), healed):
                    del waiting[name]
            over = read_history(file for name in waiting if (file := folder / f"{name}.jsonl").exists())
            if not waiting.keys() & self.must_get_on(over).keys():
                return
            time.sleep(0.2)

    def recorded(self, prefix: str) -> History:
        """Give what clients have written down by now."""
        return read_history(self.world.folder.glob(f"{prefix}*.jsonl"))

    def is_over(self, history: History) -> bool:
        """Tell whether its clients have stopped for good, with an error that says why."""
        return False

    def stopped_since(self, history: History, streams: Sequence[str], names: Sequence[str]) -> bool:
        """Tell whether a client stopped with one of these errors since these streams, or its own place, changed."""
        changed = [one.since for one in self.world.taken if one.stream in streams]
        since = min([*changed, *([self.world.kept["set back"]] if "set back" in self.world.kept else [])], default=None)
        stopped = [note["t"] for note in history.said("stopped") if note["error"] in names]
        return since is not None and any(moment > since for moment in stopped)

    def make_sink(self, name: str) -> None:
        """Create a stream that takes rows exactly once."""
        self.world.make_stream(name, subjects=[f"{name}.>", f"$PENSTOCK.{name}.>"], allow_atomic=True)
        with TaskConnection(ConnectionOptions(self.world.url, request_timeout=10)) as bulk:
            prepare(bulk, SinkOptions(stream=name, prepare=True))

    def _drained(self, question: Any, what: str, patience: float = DRAIN) -> None:
        """Wait until nothing is under way any more."""
        deadline = time.monotonic() + patience
        while not self.world.asked(question):
            if time.monotonic() > deadline:
                self.late.append(what)
                return
            time.sleep(0.3)
