"""The workloads of streams and of the sink; `PARTS` names all that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.faults.checker import (
    ALIEN,
    LOST,
    PAYLOAD,
    Evidence,
    Finding,
    Taken,
    Window,
    check_made,
    check_reads,
    check_silence,
    check_stored,
    shown,
)
from tests.faults.clients.sink import done_so_far, rows_of
from tests.faults.history import History, Operation, op_of, read_history
from tests.faults.nemesis import Aims
from tests.faults.part import DRAIN, Part
from tests.faults.plain import Plain, Stored
from tests.faults.spark_part import Spark, row_of, rows_in
from tests.faults.transport_parts import Channels, Chunks, Conversations

WINDOW = 5.0  # seconds for which one of the streams knows an id: less than some faults last


class Streams(Part):
    """Publishers with a ledger into IN, workers that make OUT of it, and a reader of ranges."""

    name = "jetstream"
    kinds = ("publish", "work", "read", "short")
    aims = Aims(
        clients=("publish-strict", "publish-sent", "short-window", "work-1", "work-2", "read-1"),
        twins=("work-1", "work-2", "read-1"),
        streams=("IN", "OUT", "SHORT"),
        open_streams=("IN", "SHORT"),
        permissions=(
            "publish IN.>",
            "publish OUT.>",
            "publish $JS.API.CONSUMER.MSG.NEXT.IN.work",
            "publish $JS.ACK.IN.>",
        ),
    )
    working = aims.clients

    def set_up(self) -> None:
        world = self.world
        for name in ("IN", "OUT"):
            world.make_stream(name)
        world.make_stream("SHORT", duplicate_window=int(WINDOW * 1e9))
        consumer = {"durable_name": "work", "ack_policy": "explicit", "ack_wait": 3_000_000_000, "max_deliver": -1}
        consumer |= {"backoff": [3_000_000_000], "num_replicas": world.nodes, "max_ack_pending": 200}
        world.api("CONSUMER.DURABLE.CREATE.IN.work", {"stream_name": "IN", "config": consumer})
        for order in ("strict", "sent"):
            self.add(f"publish-{order}", "publish", stream="IN", order=order)
        self.add("short-window", "publish", stream="SHORT", order="sent", window=WINDOW)
        for number in (1, 2):
            self.add(f"work-{number}", "work", stream="IN", into="OUT", consumer="work")
        self.add("read-1", "read", stream="IN")

    def finish(self) -> None:
        self.late += self.world.crew.leave("publish-", DRAIN) + self.world.crew.leave("short-", DRAIN)

        def empty(plain: Plain) -> bool:
            info = plain.api("CONSUMER.INFO.IN.work")
            return int(info["num_pending"]) == 0 and int(info["num_ack_pending"]) == 0

        self._drained(empty, "the consumer of IN")
        self.late += self.world.crew.leave("work-", DRAIN) + self.world.crew.leave("read-", DRAIN)

    def known_consumers(self) -> dict[str, set[str]]:
        return {"IN": {"work"}, "OUT": set(), "SHORT": set()}

    def check(self, history: History, faults: Sequence[Window]) -> list[Finding]:
        world = self.world
        sent = history.of("publish-")
        inside, outside = (world.asked(lambda plain, name=name: plain.read(name)) for name in ("IN", "OUT"))
        taken = [one for one in world.taken if one.stream == "IN"]
        ordered = frozenset({"publish-strict"})
        findings = check_stored(Evidence("publish", "IN", sent, inside, taken, ordered=ordered))
        findings += check_silence("publish", sent)
        findings += self._check_short(history.of("short-"))
        findings += check_reads("read", history.of("read-"), taken)
        made = [op_of(message.data) for message in outside]
        if damaged := [message.sequence for message, op in zip(outside, made, strict=True) if op is None]:
            findings.append(Finding(PAYLOAD, "work", f"sequences {shown(damaged)} of OUT"))
        # What was trimmed may be there again after a kill of the server; consumers have moved over it all the same.
        trimmed = {one.op for one in sent.operations for cut in taken if cut.most is not None and cut.takes(one)}
        present = {op for message in inside if (op := op_of(message.data))} - trimmed
        named = [op for op in made if op]
        excused = results_taken(history.of("work-"), [one for one in world.taken if one.stream == "OUT"])
        findings += check_made("work", present - excused, named, excused=True)
        if alien := sorted(set(named) - {one.op for one in sent.operations}):
            findings.append(Finding(ALIEN, "work", f"results of {shown(alien)}"))
        return findings

    def _check_short(self, sent: History) -> list[Finding]:
        """Hold the stream that soon forgets ids against what was sent: again only if an id was used again, and late."""
        found = self.world.asked(lambda plain: plain.read("SHORT"))
        again = Counter(note["op"] for note in sent.said("again") if not note.get("duplicate"))
        taken = [one for one in self.world.taken if one.stream == "SHORT"]
        return check_stored(Evidence("short", "SHORT", sent, found, taken, again=again)) + check_silence("short", sent)


def results_taken(workers: History, taken: Sequence[Taken]) -> set[str]:
    """Give the inputs whose result was stored, and then taken by a change of which the workers were told.

    A worker that has handled a message does not handle it again if it comes once more after a break: that its result
    was set back is for its publisher to tell.
    """
    told = [note["t"] for note in workers.said("told") if note["error"] == "DataLossError"]
    since = [one for one in taken if any(moment > one.since for moment in told)]
    done = [one for one in workers.operations if one.outcome == "ok"]
    return {one.op.rpartition("@")[0] for one in done if any(change.takes(one) for change in since)}


class Sink(Part):
    """Batches that are written exactly once, by drivers of which a second one may come while the first one sleeps."""

    name = "sink"
    kinds = ("sink",)
    aims = Aims(
        clients=("sink-1",),
        doubles=("sink-1",),
        keepers=("sink-1",),
        streams=("ROWS",),
        still_streams=("ROWS",),
        permissions=("publish ROWS.>", "publish $PENSTOCK.ROWS.>", "publish $JS.API.STREAM.MSG.GET.ROWS"),
    )
    working = ("sink-1",)
    # No message is deleted by itself: nobody can know that a journal went by hand, so its rows may come twice.
    endings = (
        ("restore store", "", 4.0),
        ("restore stream", "ROWS", 4.0),
        ("old checkpoints", "sink-1", 3.0),
        ("recreate", "ROWS", 0.0),
        ("purge", "ROWS", 0.0),
        ("limits", "ROWS", 2.0),
    )

    def is_over(self, history: History) -> bool:
        return self.stopped_since(history.of("sink-"), ("ROWS",), ("MarkerError",))

    def set_up(self) -> None:
        world = self.world
        world.names["ROWS"] = row_of
        self.checkpoint = world.folder / "commits"
        self.checkpoint.mkdir()
        self.make_sink("ROWS")
        self.add("sink-1", "sink", stream="ROWS", checkpoint=str(self.checkpoint), pause=0.01)

    def look_before_the_end(self) -> list[Finding]:
        mine = self.recorded("sink-")
        found = check_rows(mine, self.world.asked(lambda plain: plain.read("ROWS")))
        return [finding for finding in found if finding.kind != ALIEN]  # it goes on, and has begun more by now

    def finish(self) -> None:
        """Let it end, and have what is unfinished written by one more life."""
        self.late += self.world.crew.leave("sink-", DRAIN)
        before = done_so_far(self.checkpoint)
        self.world.crew.add("sink-last", "sink", stream="ROWS", checkpoint=str(self.checkpoint))

        def done(plain: Plain) -> bool:
            return done_so_far(self.checkpoint) > before or self.is_over(
                read_history([self.world.folder / "sink-last.jsonl"])
            )

        self._drained(done, "the last batch of the sink")
        self.late += self.world.crew.leave("sink-", DRAIN)

    def known_consumers(self) -> dict[str, set[str]]:
        return {"ROWS": set()}

    def check(self, history: History, faults: Sequence[Window]) -> list[Finding]:
        found = self.world.asked(lambda plain: plain.read("ROWS"))
        mine = history.of("sink-")
        done = {one.facts["batch"] for one in mine.operations if one.outcome == "ok"}
        findings = check_rows(mine, found, lambda one: self.world.takes("ROWS", one))
        if not self.is_over(mine) and (missing := sorted(set(range(max(done, default=-1) + 1)) - done)):
            findings.append(Finding(LOST, "sink", f"batches {shown(missing)} were never done"))
        return findings


def check_rows(
    history: History, found: Sequence[Stored], taken: Callable[[Operation], bool] = lambda one: False
) -> list[Finding]:
    """Hold the rows of a stream against the batches that were begun and done: each row of those done, and each once.

    `taken` tells whether the row that an operation is named after stood where a change took it; nothing else may be
    missing, also if the sink has stopped for good since.
    """
    rows = rows_in(found)
    batches = history.operations
    done = [(row.decode(), one) for one in batches if one.outcome == "ok" for row in rows_of(one.facts["batch"])]
    excused = {row for row, one in done if taken(replace(one, op=row))}
    findings = check_made("sink", {row for row, _ in done} - excused, rows, excused=True)
    possible = {row.decode() for batch in {one.facts["batch"] for one in batches} for row in rows_of(batch)}
    if alien := sorted(set(rows) - possible):
        findings.append(Finding(ALIEN, "sink", shown(alien)))
    return findings


PARTS: dict[str, type[Part]] = {part.name: part for part in (Streams, Sink, Spark, Chunks, Conversations, Channels)}
