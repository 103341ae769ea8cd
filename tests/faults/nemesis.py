"""Plans faults from a seed, writes each into a log before it does it, and can do again what a log says."""

from __future__ import annotations

import heapq
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.checker import Window
from tests.faults.faults import KINDS, Step
from tests.faults.world import World


@dataclass(frozen=True)
class Aims:
    """What a plan may aim at: clients, clients that can be there twice, streams, and streams that may be changed."""

    clients: tuple[str, ...] = ()
    doubles: tuple[str, ...] = ()
    keepers: tuple[str, ...] = ()
    """Clients that remember in a folder which batches are done."""
    twins: tuple[str, ...] = ()
    """Clients of which a second one may go on beside the first for ever."""
    heirs: tuple[str, ...] = ()
    """Clients whose name another one takes while they sleep; they end when they hear of it."""
    streams: tuple[str, ...] = ()
    open_streams: tuple[str, ...] = ()
    loose_streams: tuple[str, ...] = ()
    """Streams of which messages may go, or that may be set back, and that are not made anew."""
    still_streams: tuple[str, ...] = ()
    """Streams of which nothing may go before the end of a round; a mirror may stand beside them."""
    permissions: tuple[str, ...] = ()
    """What may be taken from the clients for a while, such as "publish IN.>"."""
    drivers: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    """Drivers whose executors are processes of their own."""
    disk: bool = False
    """Whether the store lies on a disk that can be filled."""
    kinds: frozenset[str] = frozenset(KINDS)

    def of(self, aims: str) -> tuple[str, ...]:
        """Give the targets of a sort."""
        named = {"client": self.clients, "double": self.doubles, "stream": self.streams, "driver": self.drivers}
        named |= {"keeper": self.keepers, "twin": self.twins, "heir": self.heirs}
        named |= {"executor": self.executors, "node": self.streams or ("",)}
        named |= {"open stream": self.open_streams, "loose stream": self.open_streams + self.loose_streams}
        named |= {"any stream": self.open_streams + self.loose_streams + self.still_streams}
        named |= {"permission": self.permissions, "ending": (), "disk": (self.streams or ("",)) if self.disk else ()}
        return named.get(aims, ("",))


def skipped() -> dict[str, str]:
    """Name the kinds that this machine cannot do, and why."""
    return {name: why for name, kind in KINDS.items() if (why := kind.why_not())}


def plan(seed: int, seconds: float, aims: Aims, nodes: int = 1, pace: float = 2.5) -> list[Step]:
    """Plan faults for so many seconds, one about every `pace` seconds."""
    dice = random.Random(seed)
    names = [
        name
        for name, kind in KINDS.items()
        if name in aims.kinds and nodes in kind.nodes and aims.of(kind.aims) and not kind.why_not()
    ]
    steps: list[Step] = []
    at = 1.0 + dice.random()
    while names and round(at, 2) < seconds:
        name = dice.choices(names, [KINDS[one].weight for one in names])[0]
        kind = KINDS[name]
        target = dice.choice(aims.of(kind.aims))
        lasting = round(dice.uniform(0.2, kind.longest), 2) if kind.longest else 0.0
        steps.append(Step(len(steps), round(at, 2), name, target, lasting, round(dice.random(), 3)))
        at += dice.uniform(0.3, 2 * pace)
    return steps


def read_log(file: Path) -> list[Step]:
    """Give the faults that a log says were done, in their order."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [Step(**line["step"]) for line in lines if "step" in line]


@dataclass
class Nemesis:
    """Does what a plan says to a world."""

    world: World
    log: Path
    done: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    windows: list[Window] = field(default_factory=list)
    """The times in which clients were hindered."""
    faults: list[Window] = field(default_factory=list)
    """Whatever was done, each with its times."""

    def _write(self, **line: object) -> None:
        with self.log.open("a") as file:
            file.write(json.dumps({"t": round(time.monotonic(), 3), **line}) + "\n")

    def play(self, steps: Sequence[Step], seconds: float, start: float = 0.0) -> None:
        """Do the steps at their times, undo each after its own, and return when the time is over.

        `start` is the time of the plan at which to begin.
        """
        began = time.monotonic() - start
        due: list[tuple[float, int, Step]] = []
        waiting = sorted(steps, key=lambda step: step.at)
        since: dict[int, float] = {}
        while waiting or due or time.monotonic() < began + seconds:
            now = time.monotonic() - began
            if due and due[0][0] <= now:
                step = heapq.heappop(due)[2]
                self._bring_nodes_back(step, due, since)
                self._end(step, since[step.number])
            elif waiting and waiting[0].at <= now:
                step = waiting.pop(0)
                self._bring_nodes_back(step, due, since)
                since[step.number] = time.monotonic()
                if self._begin(step):
                    heapq.heappush(due, (time.monotonic() - began + step.seconds, step.number, step))
            else:
                time.sleep(0.02)

    def _bring_nodes_back(self, step: Step, due: list[tuple[float, int, Step]], since: dict[int, float]) -> None:
        """End what holds nodes down before a step that has to ask them."""
        if not KINDS[step.kind].asks:
            return
        for moment, number, other in [one for one in due if KINDS[one[2].kind].holds_nodes]:
            due.remove((moment, number, other))
            self._end(other, since[number])
        heapq.heapify(due)

    def _begin(self, step: Step) -> bool:
        """Do a step; tell whether there is something to undo."""
        kind = KINDS[step.kind]
        self._write(step=step.line())
        begin = time.monotonic()
        hit = kind.begin(self.world, step)
        (self.done if hit else self.missed)[step.kind] += 1
        self._write(did=step.number, hit=hit)
        if hit and kind.end is None:
            self._over(step, begin)
        return hit and kind.end is not None

    def _end(self, step: Step, begin: float) -> None:
        self._write(ends=step.number)
        end = KINDS[step.kind].end
        assert end is not None
        end(self.world, step)
        self._write(ended=step.number)
        self._over(step, begin)

    def _over(self, step: Step, begin: float) -> None:
        """Write down the time in which a step was in the way of clients."""
        self.faults.append(Window(begin, time.monotonic(), step.kind, step.target))
        self.windows.append(Window(begin, min(time.monotonic(), begin + KINDS[step.kind].hinders), step.kind))
