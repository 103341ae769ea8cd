"""One round: a world, its workloads, the faults of a plan, an end in order, and the checker's word on all of it."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tests.faults.checker import BROKE, Finding
from tests.faults.faults import KINDS, Step
from tests.faults.history import read_history
from tests.faults.leaks import Sampler, check_growth, check_left
from tests.faults.nemesis import Aims, Nemesis, plan
from tests.faults.part import BOUND, Moments, Part
from tests.faults.parts import PARTS
from tests.faults.spark_part import executors
from tests.faults.world import World

LOG = "faults.jsonl"
NO_ENDING = ("", "", 0.0)


@dataclass(frozen=True)
class Setting:
    """What a round is: everything in it follows from these, but for the exact moments."""

    seed: int
    seconds: float
    parts: tuple[str, ...] = ("jetstream",)
    nodes: int = 1
    plant: str = ""
    """Clients that are broken on purpose: "publish-strict=swaps,work-1=twice"."""
    bound: float = BOUND
    small: bool = False
    """Whether the store is on a small disk, which can be full."""
    kinds: frozenset[str] = frozenset(KINDS)
    steps: tuple[Step, ...] | None = None
    """The faults to do; planned from the seed where none are given."""

    def planned(self) -> tuple[Step, ...]:
        """Give the faults of this round."""
        if self.steps is not None:
            return self.steps
        aims = aims_of(self.parts, self.kinds)
        aims = replace(aims, disk=self.small, executors=aims.drivers if executors(self.seed, self.nodes) else ())
        steps = plan(self.seed, self.seconds, aims, self.nodes, max(PARTS[name].pace for name in self.parts))
        chance = random.Random(f"ending of {self.seed}")
        kind, target, seconds = chance.choice(endings_of(self.parts, self.nodes, self.kinds))
        if kind:
            steps.append(Step(len(steps), self.seconds, kind, target, seconds, round(chance.random(), 3)))
        return tuple(steps)

    def in_time(self) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """Give the faults within the time of the round, and those at its end, after which clients may stop for good."""
        steps = self.planned()
        within = tuple(step for step in steps if step.at < self.seconds)
        return within, tuple(step for step in steps if step.at >= self.seconds)

    def line(self) -> dict[str, Any]:
        """Give it as it stands at the head of a log."""
        return {name: getattr(self, name) for name in ("seed", "seconds", "parts", "nodes", "plant", "small")}


PRESSURE = Path("/proc/pressure/cpu")


@dataclass
class Outcome:
    """What came of a round."""

    setting: Setting
    findings: list[Finding] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    seconds: float = 0.0
    waited: float | None = None
    """The share of the time in which somebody on this machine waited for a core, if the kernel tells it."""
    kept: Path | None = None

    def __str__(self) -> str:
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(self.outcomes.items()))
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(self.told.items()))
        head = f"seed {self.setting.seed}, {'+'.join(self.setting.parts)}, {self.setting.nodes} node(s)"
        busy = "" if self.waited is None else f" (somebody waited for a core in {self.waited:.0%} of it)"
        hit = f"{head}, {self.seconds:.0f} s{busy}: {done or 'no faults'}"
        text = f"{hit}; operations: {said}; told: {told or 'nothing'}"
        return "\n".join([text, *(f"  FOUND {finding}" for finding in self.findings)])


def aims_of(parts: Sequence[str], kinds: frozenset[str] = frozenset(KINDS)) -> Aims:
    """Put together what several parts may be hit with."""
    chosen = [PARTS[name] for name in parts]
    kinds = frozenset.intersection(kinds, *(part.aims.kinds for part in chosen))
    # What ends a part of several is not done to all; what is aimed at one stream hits the others' streams only.
    kinds -= frozenset(kind for part in chosen for kind, target, _ in part.endings if not target)
    joined = {name: tuple(one for part in chosen for one in getattr(part.aims, name)) for name in _LISTS}
    return Aims(**joined, kinds=kinds)


def endings_of(
    parts: Sequence[str], nodes: int, kinds: frozenset[str] = frozenset(KINDS)
) -> list[tuple[str, str, float]]:
    """Give what a round may end with: no fault of its own, or one after which its parts may stop for good.

    A round of several parts ends with what hits all of them alike, because one that has stopped meets nothing more.
    """
    alone = len(parts) == 1
    found = {one for part in parts for one in PARTS[part].endings if one[0] in kinds and (alone or not one[1])}
    return [NO_ENDING, *sorted(one for one in found if nodes in KINDS[one[0]].nodes and not KINDS[one[0]].why_not())]


_LISTS = tuple(one.name for one in fields(Aims) if one.name not in ("executors", "disk", "kinds"))


def waited_for_cores() -> float | None:
    """Give the seconds so far in which something on this machine waited for a core; None if nobody counts them."""
    try:
        some = PRESSURE.read_text().splitlines()[0]
    except OSError:
        return None
    return int(some.rpartition("total=")[2]) / 1e6


def run_round(setting: Setting, say: Callable[[str], None] = lambda text: None, keep: Path | None = None) -> Outcome:
    """Run one round; what it leaves is kept below `keep` if anything was found."""
    outcome = Outcome(setting)
    began, waited = time.monotonic(), waited_for_cores()
    folder = Path(tempfile.mkdtemp(prefix="penstock-faults-"))
    try:
        log = folder / LOG
        log.write_text(json.dumps({"setting": setting.line()}) + "\n")
        world = World(folder, setting.seed, setting.nodes, small=setting.small)
        try:
            _run(world, setting, outcome, log)
        except Exception:  # a server that does not come back is a finding, too, and the next round has its own
            outcome.findings.append(Finding(BROKE, "+".join(setting.parts), traceback.format_exc()[-1500:]))
        finally:
            world.close()
        outcome.seconds = time.monotonic() - began
        if waited is not None and (now := waited_for_cores()) is not None:
            outcome.waited = (now - waited) / outcome.seconds
        (folder / "outcome.txt").write_text(f"{outcome}\n")
        if outcome.findings and keep is not None:
            outcome.kept = keep / f"seed-{setting.seed}-{'-'.join(setting.parts)}"
            shutil.rmtree(outcome.kept, ignore_errors=True)
            ignored = shutil.ignore_patterns("store", "copy", "tmp", "scratch*", "checkpoint*")
            shutil.copytree(folder, outcome.kept, ignore=ignored)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(str(outcome))
    return outcome


def _run(world: World, setting: Setting, outcome: Outcome, log: Path) -> None:
    plants = dict(one.split("=") for one in setting.plant.split(",") if one)
    parts: list[Part] = [PARTS[name](world, plants) for name in setting.parts]
    for part in parts:
        part.set_up()
    for name in (name for part in parts for name in part.working):
        world.wait_for_work(name)  # only then there is something to break
    sampler = Sampler(world)
    sampler.start()
    nemesis = Nemesis(world, log)
    begin = time.monotonic()
    try:
        within, last = setting.in_time()
        nemesis.play(within, setting.seconds)
        world.heal()
        if last:
            outcome.findings += _before_the_end(world, parts, setting.bound)
            nemesis.play(last, setting.seconds, setting.seconds)
            world.heal()
        places = {file.stem: file.stat().st_size for file in world.folder.glob("*-*.jsonl")}
        moments = Moments(begin, time.monotonic())
        for part in parts:
            part.settle(moments.healed, places, setting.bound)
        for part in parts:
            part.finish()
    finally:
        sampler.stop()
        outcome.faults, outcome.missed = nemesis.done, nemesis.missed
    history = read_history(world.folder.glob("*-*.jsonl"))
    faults = nemesis.faults
    for part in parts:
        outcome.findings += part.check(history, faults)
        outcome.findings += part.common(history, faults, nemesis.windows, moments, setting.bound)
    known = {stream: names for part in parts for stream, names in part.known_consumers().items()}
    clean = [f"{note['client']}-{note['life']}" for note in history.said("end")]
    whole = "+".join(setting.parts)
    outcome.findings += check_left(whole, world, clean, known, calm=not faults) + check_growth(
        whole, sampler.series, sampler.subscriptions
    )
    outcome.outcomes = Counter(one.outcome for one in history.operations)
    outcome.told = Counter(note["error"] for note in history.said("told") + history.said("stopped"))
    outcome.lives = len(history.said("begin"))


def _before_the_end(world: World, parts: Sequence[Part], bound: float) -> list[Finding]:
    """Have each part get on and be whole, before a fault that may stop it for good and take what it has stored."""
    places = {file.stem: file.stat().st_size for file in world.folder.glob("*-*.jsonl")}
    healed = time.monotonic()
    for part in parts:
        part.settle(healed, places, bound)
    return [finding for part in parts for finding in part.look_before_the_end()]


def shrink(
    setting: Setting, fails: Callable[[Setting], bool], say: Callable[[str], None] = lambda text: None
) -> Setting:
    """Leave faults out for as long as the round still fails; give the smallest one that does."""
    steps = list(setting.planned())
    size = max(1, len(steps) // 2)
    while steps:
        place, before = 0, len(steps)
        while place < len(steps):
            fewer = steps[:place] + steps[place + size :]
            if fails(replace(setting, steps=tuple(fewer))):
                steps = fewer
                say(f"still fails with {len(steps)} faults")
            else:
                place += size
        if size == 1 and len(steps) == before:
            break
        size = max(1, size // 2)
    return replace(setting, steps=tuple(steps))
