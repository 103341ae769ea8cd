"""The workload of Spark: a pipeline of a real driver, and writes with names."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from tests.faults.checker import (
    ALIEN,
    LOST,
    Evidence,
    Finding,
    Taken,
    Window,
    check_made,
    check_silence,
    check_stored,
    shown,
)
from tests.faults.clients.spark import rows_of as named_rows
from tests.faults.history import History, Operation, op_of, read_history
from tests.faults.nemesis import Aims
from tests.faults.part import DRAIN, Part
from tests.faults.plain import Plain, Stored


def executors(seed: int, nodes: int) -> int:
    """Give how many executors a round has as processes of their own; with none of them, tasks run within the driver."""
    return 2 if seed % 2 and nodes == 1 else 0


class Spark(Part):
    """A pipeline of Spark from SIN to SOUT, and writes with names into SBATCH, by a driver that is a process."""

    name = "spark"
    kinds = ("spark", "feed")
    aims = Aims(
        clients=("spark-driver", "feed-spark"),
        streams=("SIN", "SOUT"),
        still_streams=("SIN", "SOUT", "SBATCH"),
        permissions=(
            "publish SIN.>",
            "publish SOUT.>",
            "publish SBATCH.>",
            "publish $PENSTOCK.SOUT.>",
            "publish $JS.API.STREAM.MSG.GET.SOUT",
            "publish $JS.API.DIRECT.GET.SIN",
            "publish $JS.API.CONSUMER.CREATE.SIN.>",
        ),
        drivers=("spark-driver",),
    )
    working = aims.clients
    feeding = ("feed-spark",)
    pace, slack = 3.6, 3.0  # a start of Spark takes its time
    endings = (
        ("restore store", "", 20.0),
        ("recreate", "SIN", 0.0),
        ("old folder", "spark-driver", 20.0),
        ("recreate", "SOUT", 0.0),
        ("purge", "SIN", 0.0),
        ("limits", "SIN", 3.0),
        ("restore stream", "SIN", 20.0),
        ("restore stream", "SOUT", 20.0),
    )

    def set_up(self) -> None:
        world = self.world
        self.checkpoint, self.writes = world.folder / "checkpoint-spark", world.folder / "writes"
        self.writes.mkdir()
        world.names |= {"SOUT": row_of, "SBATCH": row_of}
        self.written: list[Operation] = []
        world.make_stream("SIN")
        for name in ("SOUT", "SBATCH"):
            self.make_sink(name)
        self.add("feed-spark", "publish", stream="SIN", order="sent", bare=True, place=1, burst=10, pause=0.05)
        scratch = str(world.folder / "scratch")
        folders = {"checkpoint": str(self.checkpoint), "writes": str(self.writes), "scratch": scratch}
        count = executors(world.seed, world.nodes)
        self.add("spark-driver", "spark", family=True, executors=count, **folders)

    def _history(self) -> History:
        return read_history([self.world.folder / "spark-driver.jsonl"])

    def is_over(self, history: History) -> bool:
        return self.stopped_since(
            history.of("spark-"), ("SIN", "SOUT"), ("DataLossError", "MarkerError", "NotFoundError")
        )

    def look_before_the_end(self) -> list[Finding]:
        """See that what was there to be read is written, and what was said to be written is there."""
        writes = self.recorded("spark-")
        source = rows_in(self.world.asked(lambda plain: plain.read("SIN")))

        def missing() -> set[str]:
            return set(source) - set(rows_in(self.world.asked(lambda plain: plain.read("SOUT"))))

        deadline = time.monotonic() + 3 * DRAIN
        while (lost := missing()) and time.monotonic() < deadline:
            time.sleep(0.5)
        now = time.monotonic()
        self.written = [Operation(row, "spark", 1, 0.0, {}, now, "ok") for row in source if row not in lost]
        findings = [Finding(LOST, "spark", f"not written before the last fault: {shown(sorted(lost))}")] if lost else []
        found = check_writes(writes, self.world.asked(lambda plain: plain.read("SBATCH")))
        return findings + [finding for finding in found if finding.kind != ALIEN]  # more have begun by now

    def finish(self) -> None:
        self.late += self.world.crew.leave("feed-", DRAIN)

        def done(plain: Plain) -> bool:
            state = plain.state("SIN")
            # After a purge few are left, but all were to be read: the query has read them, or says what it lost.
            wanted = int(state["last_seq"] if state["first_seq"] > 1 else state["messages"])
            found = plain.api("STREAM.INFO.SOUT", {"subjects_filter": "SOUT.>"})["state"].get("subjects") or {}
            return sum(found.values()) >= wanted or self.is_over(self._history())

        self._drained(done, "the query of Spark", 3 * DRAIN)
        self.late += self.world.crew.leave("spark-", DRAIN)

    def known_consumers(self) -> dict[str, set[str]]:
        return {"SIN": set(), "SOUT": set(), "SBATCH": set()}

    def check(self, history: History, faults: Sequence[Window]) -> list[Finding]:
        world, mine = self.world, history.of("spark-")
        source, target, named = (world.asked(lambda p, n=n: p.read(n)) for n in ("SIN", "SOUT", "SBATCH"))
        taken = [one for one in world.taken if one.stream == "SIN"]
        silent = check_silence("feed", history.of("feed-"))
        kept = {one.op for one in self.written if not world.takes("SOUT", one)}
        findings = check_pipeline(history.of("feed-"), source, target, taken, over=self.is_over(mine), kept=kept)
        return findings + silent + check_writes(mine, named, lambda one: world.takes("SBATCH", one))


def check_pipeline(
    fed: History,
    source: Sequence[Stored],
    target: Sequence[Stored],
    taken: Sequence[Taken] = (),
    *,
    over: bool = False,
    kept: Set[str] = frozenset(),
) -> list[Finding]:
    """Hold what a pipeline read and wrote against each other: each row of its source once, and nothing else.

    `over` is one that has stopped with an error that says why: then rows may be missing, but not those in `kept`, which
    were there before its last fault and which that did not take; and none may be too many.
    """
    evidence = Evidence("feed", "SIN", fed, source, taken, name=lambda message: op_of(message.data, True))
    findings = check_stored(evidence)
    rows = rows_in(target)
    present = set() if over else {message.data.decode() for message in source}
    findings += check_made("spark", present | kept, rows, excused=True)
    if alien := sorted(set(rows) - {one.op for one in fed.operations}):
        findings.append(Finding(ALIEN, "spark", shown(alien)))
    return findings


def check_writes(
    history: History, named: Sequence[Stored], taken: Callable[[Operation], bool] = lambda one: False
) -> list[Finding]:
    """Hold what writes with names left against what they said: each that ended well once, however often asked for.

    `taken` tells whether the row that an operation is named after stood where a change took it.
    """
    rows = rows_in(named)
    writes = [one for one in history.operations if one.facts.get("kind") == "write"]
    done = [(row, one) for one in writes if one.outcome == "ok" for row in named_rows(one.facts["number"])]
    excused = {row for row, one in done if taken(replace(one, op=row))}
    findings = check_made("spark", {row for row, _ in done} - excused, rows, excused=True)
    possible = {row for one in writes for row in named_rows(one.facts["number"])}
    if alien := sorted(set(rows) - possible):
        findings.append(Finding(ALIEN, "spark", f"rows of a write that used a name again: {shown(alien)}"))
    return findings


def row_of(message: Stored) -> str | None:
    """Give the row that a message is; nothing if it is what the sink keeps there for itself."""
    return None if message.subject.startswith("$PENSTOCK.") else message.data.decode(errors="replace")


def rows_in(found: Sequence[Stored]) -> list[str]:
    """Give the rows of a stream, without what the sink keeps there for itself."""
    return [row for message in found if (row := row_of(message)) is not None]
