"""Breaks everything on purpose, and counts: `python -m tests.faults.run --seed 1 --minutes 30 [--only jetstream,sink]`.

Time is cut into rounds, each with a world, a seed and a plan of its own, so that what fails can be done again and made
smaller. `--replay FILE` does once more what the log of a round says; `--shrink FILE` leaves faults out of it until it
no longer fails, which a run does by itself with the first round that failed. `--page` writes what the run found into
docs/why/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

from tools.reliability_page import PAGE, add_run, commit

from tests.faults.faults import Step
from tests.faults.nemesis import read_log, skipped
from tests.faults.parts import PARTS
from tests.faults.rounds import LOG, Outcome, Setting, run_round, shrink

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "artifacts" / "faults"
SECONDS = 75.0  # of a round
SMALL_DISKS = 0.6  # of the rounds of one part have a disk that can be full
MINUTES = 10.0  # for which the first round that failed is made smaller
AFTER = 5.0  # seconds that a smaller round goes on behind its last fault
SMALLER = "smaller.jsonl"
TRIES = 2  # how often a smaller plan may pass before it counts as one that passes: moments are never the same


def settings(seed: int, parts: tuple[str, ...], seconds: float) -> Iterator[Setting]:
    """Give rounds without end: each part by itself, and all in one world, in an order that the seed decides.

    One time in three a choice has three nodes: of three seeds in a row each one has a round of it on three nodes among
    its first. What else a round is follows from its own seed.
    """
    choices = [*((part,) for part in parts), *([parts] if len(parts) > 1 else [])]
    number = 0
    for turn in count():
        order = list(enumerate(choices))
        Random(f"order {turn} of {seed}").shuffle(order)
        for place, chosen in order:
            nodes = 3 if (seed + turn + place) % 3 == 0 else 1
            lasting = seconds * max(PARTS[name].pace for name in chosen) / min(part.pace for part in PARTS.values())
            mine = seed * 1000 + number
            small = len(chosen) == 1 and Random(f"disk of {mine}").random() < SMALL_DISKS
            yield Setting(mine, lasting, chosen, nodes, small=small)
            number += 1


def read_setting(file: Path) -> Setting:
    """Give the round that a log tells of, with the faults that were done."""
    head = json.loads(file.read_text().partition("\n")[0])["setting"]
    return Setting(**{**head, "parts": tuple(head["parts"])}, steps=tuple(read_log(file)))


def write_setting(setting: Setting, file: Path) -> None:
    """Write a round as a log that can be replayed."""
    lines = [{"setting": setting.line()}, *({"step": step.line()} for step in setting.planned())]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_smaller(
    setting: Setting,
    kinds: set[str],
    file: Path,
    minutes: float = float("inf"),
    run: Callable[[Setting], Outcome] = run_round,
) -> Setting:
    """Leave faults out while the same kinds of findings come, for some minutes; keep each smaller plan."""
    deadline = time.monotonic() + 60 * minutes

    def fails(smaller: Setting) -> bool:
        for _ in range(TRIES):
            if time.monotonic() >= deadline:
                return False  # the round that runs then comes to its end; none begins
            found = {finding.kind for finding in run(shortened(smaller)).findings}
            if found & kinds:
                write_setting(shortened(smaller), file)
                return True
        return False

    return shortened(shrink(setting, fails, say))


def shortened(setting: Setting) -> Setting:
    """Give a round that ends soon after its last fault."""
    last = max((step.at + step.seconds for step in setting.planned()), default=0.0)
    return replace(setting, steps=setting.planned(), seconds=min(setting.seconds, last + AFTER))


def shrink_first(
    outcomes: Sequence[Outcome], minutes: float, run: Callable[[Setting], Outcome] = run_round
) -> Setting | None:
    """Show the first round that failed, make it smaller for some minutes, and say what is left."""
    failed = next((outcome for outcome in outcomes if outcome.findings and outcome.kept is not None), None)
    if failed is None or failed.kept is None:
        return None
    setting = replace(failed.setting, steps=failed.setting.planned())
    say(f"the first round that failed, seed {setting.seed}, had {len(setting.planned())} faults:")
    say("\n".join([small(setting.planned()), *(f"  FOUND {finding}" for finding in failed.findings)]))
    if minutes <= 0:
        return None
    say(f"faults are left out of it for as long as it fails, for up to {minutes:g} minutes")
    file = failed.kept / SMALLER
    smaller = make_smaller(setting, {finding.kind for finding in failed.findings}, file, minutes, run)
    if not file.exists():
        say("it did not fail again with fewer faults, so all of them are left")
        return setting
    say(f"faults that are left: {len(smaller.planned())}, in {file}:\n{small(smaller.planned())}")
    return smaller


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def small(steps: tuple[Step, ...]) -> str:
    """Give a plan on a few lines."""
    return "\n".join(
        f"  {step.at:6.1f} s  {step.kind} {step.target}{f' for {step.seconds:g} s' if step.seconds else ''}"
        for step in steps
    )


def main() -> int:
    """Run from the command line; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a round")
    parser.add_argument("--only", default="", help=f"parts, separated by commas or spaces: {', '.join(PARTS)}")
    parser.add_argument("--nodes", type=int, choices=(1, 3), help="in every round")
    parser.add_argument("--plant", default="", help="break a client on purpose: the checker must find it")
    parser.add_argument("--replay", type=Path, help="do again what a log says")
    parser.add_argument("--shrink", type=Path, help="leave faults of a log out while it still fails")
    parser.add_argument(
        "--shrink-minutes",
        type=float,
        default=MINUTES,
        help="for making the first failed round smaller; 0: not",
    )
    parser.add_argument("--page", action="store_true", help="write what was found into docs/why/reliability.md")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    parts = tuple(given.only.replace(",", " ").split()) or tuple(PARTS)
    if strange := set(parts) - set(PARTS):
        parser.error(f"--only has {', '.join(sorted(strange))}; there are {', '.join(PARTS)}")
    KEPT.mkdir(parents=True, exist_ok=True)
    if file := given.replay or given.shrink:
        setting = read_setting(file)
        outcome = run_round(setting, say, KEPT)
        if given.shrink and outcome.findings:
            smaller = make_smaller(
                setting, {finding.kind for finding in outcome.findings}, file.with_suffix(".small.jsonl")
            )
            say(f"{len(smaller.planned())} faults are enough:\n{small(smaller.planned())}")
        return 1 if outcome.findings else 0
    for name, why in skipped().items():
        say(f"not done here: {name}: {why}")
    at, outcomes = commit(ROOT), list[Outcome]()
    deadline = time.monotonic() + 60 * given.minutes
    for setting in settings(given.seed, parts, given.seconds):
        if time.monotonic() > deadline:
            break
        setting = replace(setting, plant=given.plant, nodes=given.nodes or setting.nodes)
        outcome = run_round(setting, say, KEPT)
        outcomes.append(outcome)
        if outcome.findings and outcome.kept is not None:
            say(
                f"kept in {outcome.kept.relative_to(ROOT)}; again with: python -m tests.faults.run --replay "
                f"{(outcome.kept / LOG).relative_to(ROOT)}"
            )
    report(command(given), at, given.seed, outcomes, page=given.page)
    shrink_first(outcomes, given.shrink_minutes)
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def command(given: argparse.Namespace) -> str:
    """Give the command that does this run again."""
    only = f' ONLY="{given.only.strip()}"' if given.only.strip() else ""
    more = [f"--seconds {given.seconds:g}"] if given.seconds != SECONDS else []
    more += [f"--nodes {given.nodes}"] if given.nodes else []
    more += [f"--plant {given.plant}"] if given.plant else []
    extra = f' ARGS="{" ".join(more)}"' if more else ""
    return f"make faults SEED={given.seed} MINUTES={given.minutes:g}{only}{extra}"


def report(again: str, at: str, seed: int, outcomes: list[Outcome], *, page: bool) -> None:
    """Add the rounds up, keep that as JSON, and write it into the page where that is wanted."""
    total: Counter[str] = sum((outcome.faults for outcome in outcomes), Counter())
    done: Counter[str] = sum((outcome.outcomes for outcome in outcomes), Counter())
    told: Counter[str] = sum((outcome.told for outcome in outcomes), Counter())
    line = {
        "command": again,
        "commit": at,
        "rounds": len(outcomes),
        "faults": dict(sorted(total.items())),
        "operations": dict(sorted(done.items())),
        "told": dict(sorted(told.items())),
        "lives": sum(outcome.lives for outcome in outcomes),
        "findings": [str(finding) for outcome in outcomes for finding in outcome.findings],
        "skipped": skipped(),
    }
    file = KEPT / f"run-{seed}.json"
    file.write_text(json.dumps(line, indent=1) + "\n")
    say(
        f"{len(outcomes)} rounds, {total.total()} faults, {done.total()} operations, {len(line['findings'])} findings; "
        f"{file.relative_to(ROOT)}"
    )
    if page:
        add_run(ROOT / PAGE, line)


if __name__ == "__main__":
    sys.exit(main())
