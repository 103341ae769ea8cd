"""Fuzz all targets, or some, for minutes: `make fuzz [MINUTES=m] [ONLY="name name"] [SEED=n]`.

Guided by coverage: an input that reaches a line of Penstock which none before it reached is kept and mutated further.
Lines are seen by Python's own tracing, in the plain form of what is compiled; the compiled form runs beside it and is
compared. Every input is bound in time and in memory. A finding is made smaller and written to `artifacts/fuzz`, and the
run ends with 1: when it is mended, the file moves into the corpus, and every `make test` reads it again.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import os
import resource
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tools.fuzz_page import add_run, commit

import penstock
from tests.fuzz.mutate import Mutator, smaller
from tests.fuzz.table import TARGETS
from tests.fuzz.target import Target, check, seeds

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "artifacts" / "fuzz"
_SOURCE = str(Path(penstock.__file__).parent)  # which AddressSanitizer has elsewhere
_SECONDS = 10  # of our own CPU: an input that takes longer is a finding; how busy the machine is does not count
_MEMORY = 3 << 30
_TURN = 2.0  # seconds that a target runs before the next one has its turn
_MOST = 400  # inputs that a target keeps


class TooSlow(BaseException):
    """An input took too long; no error that code under test would catch."""


class Coverage:
    """The lines of Penstock that were ever reached."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int]] = set()
        self.fresh = False

    def __enter__(self) -> Coverage:
        self.fresh = False
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_SOURCE) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and (place := (frame.f_code, frame.f_lineno)) not in self.seen:
            self.seen.add(place)
            self.fresh = True
        return self._line


class Fuzzed:
    """One target while it is fuzzed."""

    def __init__(self, target: Target, seed: int, coverage: Coverage) -> None:
        self.target = target
        self.coverage = coverage
        self.mutator = Mutator(f"{seed} {target.name}")
        self.corpus = [content for _, content in seeds(target.name)] or [b""]
        self.runs = self.kept = 0
        self.findings: dict[str, Path] = {}
        for content in self.corpus:
            self.try_one(content)

    def turn(self, seconds: float) -> None:
        """Run for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            base = self.mutator.random.choice(self.corpus)
            content = self.mutator.mutate(base, self.corpus)
            if self.try_one(content) and len(self.corpus) < _MOST:
                self.corpus.append(content)
                self.kept += 1

    def try_one(self, content: bytes) -> bool:
        """Run one input; tell whether it reached something new."""
        self.runs += 1
        with self.coverage:
            kind = failure(self.target, content)
        if kind is not None and kind not in self.findings:
            self._note(kind, content)
        return kind is None and self.coverage.fresh

    def _note(self, kind: str, content: bytes) -> None:
        content = (
            smaller(content, lambda shorter: failure(self.target, shorter) == kind) if len(content) < 4096 else content
        )
        folder = FOUND / self.target.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(content).hexdigest()[:12]
        path.write_bytes(content)
        self.findings[kind] = path
        print(f"FOUND {self.target.name}: {kind}\n  {content[:200]!r}\n  {path.relative_to(ROOT)}", flush=True)


def failure(target: Target, content: bytes) -> str | None:
    """Run one input; say what went wrong and where, None if nothing did."""
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        check(target, content)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
        at = frames[-1] if frames else None
        where = f"{Path(at.filename).relative_to(ROOT)}:{at.lineno}" if at else "?"
        text = "" if isinstance(error, AssertionError) and len(str(error)) > 200 else f": {str(error)[:120]}"
        return f"{type(error).__name__} at {where}{text if not isinstance(error, AssertionError) else ''}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def _too_slow(*_: object) -> None:
    raise TooSlow


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--page", action="store_true", help="write what was found into docs/why/hostile-input.md")
    parser.add_argument(
        "--as", dest="command", default="", help="the command that the page names, if it is another one"
    )
    given = parser.parse_args()
    unknown = set(given.only) - set(TARGETS)
    if unknown:
        print(f"There is no target {', '.join(sorted(unknown))}. Known: {', '.join(sorted(TARGETS))}.", file=sys.stderr)
        return 2
    logging.disable(logging.CRITICAL)
    chosen = [target for name, target in TARGETS.items() if not given.only or name in given.only]
    with ExitStack() as worlds:
        for world in {target.world for target in chosen if target.world is not None}:
            worlds.enter_context(world())  # before memory has a bound, which a server would inherit
        return _run(chosen, given)


def _run(chosen: list[Target], given: argparse.Namespace) -> int:
    if "ASAN_OPTIONS" not in os.environ:  # which takes addresses by the terabyte
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGPROF, _too_slow)
    coverage = Coverage()
    fuzzed = [Fuzzed(target, given.seed, coverage) for target in chosen]
    end = time.monotonic() + given.minutes * 60
    while (left := end - time.monotonic()) > 0:
        for each in fuzzed:
            each.turn(min(_TURN, left / len(fuzzed)))
        gc.collect()
    for each in fuzzed:
        print(f"{each.target.name:20} {each.runs:>9,} runs  {each.kept:>4} kept  {len(each.findings)} found")
    found = sum(len(each.findings) for each in fuzzed)
    runs = sum(each.runs for each in fuzzed)
    print(f"{runs:,} runs of {len(fuzzed)} targets, {len(coverage.seen):,} lines reached, {found} found")
    if given.page:
        figures = {"targets": len(fuzzed), "tries": runs, "lines": len(coverage.seen), "findings": found}
        add_run({"command": given.command or again(given), "commit": commit(), **figures})
    return 1 if found else 0


def again(given: argparse.Namespace) -> str:
    """Give the command that does this run again."""
    only = f' ONLY="{" ".join(given.only)}"' if given.only else ""
    return f"make fuzz MINUTES={given.minutes:g} SEED={given.seed}{only}"


if __name__ == "__main__":
    sys.exit(main())
