"""The progress of a query as the stream itself keeps it: who may write which batch, and what is written already.

The steps of the exactly-once protocol, each safe to repeat; docs/why/exactly-once.md has the whole of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.errors import DeadlineError, FencedError, JetStreamError, MarkerError, PenstockError
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import (
    Head,
    MarkerSubjects,
    anchor_body,
    claim_bodies,
    fence_body,
    opening_body,
    read_claim,
    read_lane,
    seal_body,
)
from penstock.wire.jetstream.direct import Found
from penstock.wire.jetstream.names import CONDITION_FAILED, TTL
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE as EXPECTED
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT as EXPECTED_SUBJECT
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.patience import Deadline

__all__ = ["Epoch", "Journal", "QueryMarkers", "Slot"]

MOST = 900  # messages of one batch of seals
CLAIM_BYTES = 256 * 1024  # of one message of claims
STALE = 5.0  # seconds that a server which is no leader any more may go on answering
_Result = TypeVar("_Result")
Taken = dict[int, list[bool]]  # for each journal, by its sequence, which of its rows


@dataclass(frozen=True)
class Epoch:
    """The right of one run to write one batch: the head that grants it."""

    sequence: int
    """The sequence of the head; every lane's subject carries it."""
    anchor: int
    """The sequence of the batch's anchor: everything written of the batch stands behind it."""
    replay: bool
    """Whether an earlier run may have written rows of this batch."""


@dataclass(frozen=True)
class Journal:
    """The digests of rows that were stored together."""

    sequence: int
    batch_id: str
    digests: bytes = field(repr=False)


@dataclass
class Slot:
    """The lanes of one task: for each the sequence of our opening, which must be the last of its lane."""

    lanes: list[str]
    sequences: list[int]
    journals: list[Journal]
    """What earlier attempts at this partition stored in this epoch."""


class QueryMarkers:
    """Asks and changes the progress of one query in one stream, for one batch and one run of it."""

    def __init__(
        self,
        bulk: TaskConnection,
        subjects: MarkerSubjects,
        *,
        batch: int,
        run: str,
        keep: bool = False,
        start_anew: bool = False,
        patience: float = 60.0,
    ) -> None:
        self.bulk = bulk
        self.subjects = subjects
        self.batch = batch
        self.run = run
        self.start_anew = start_anew
        self.patience = patience
        # Markers must outlive an age limit of the stream.
        self._keep = {TTL: "never"} if keep else {}

    # -- the head -------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """Ask the stream's leader for the head."""
        found = self.patiently(lambda: self.bulk.last(self.subjects.stream, self.subjects.head))
        return None if found is None else Head.read(found.payload, found.sequence)

    def join(self) -> Epoch | None:
        """Get the right to write this batch; None where all of it is stored already.

        FencedError where another run has it now, MarkerError where the stream and the query disagree.
        """
        deadline = Deadline(self.patience)
        while True:
            head = self.head()
            if head is None or head.batch < self.batch:
                self._check_order(head)
                self._write_head(Head(self.batch, self.run, "open"), 0 if head is None else head.sequence)
            elif head.batch > self.batch:
                raise self._newer(head)
            elif head.state == "done":
                return None
            elif head.run != self.run:
                if self.run in head.past:
                    raise self.fenced(None)
                if self.start_anew and not self._has_anchor(head.anchor):
                    self._write_head(Head(self.batch, self.run, "open", past=(*head.past, head.run)), head.sequence)
                    continue
                # The other run may be alive: from here on it cannot open a lane any more.
                self._write_head(
                    Head(self.batch, self.run, "sealing", head.anchor, (*head.past, head.run)), head.sequence
                )
            elif head.state == "sealing":
                self._seal(head)
                self._write_head(Head(self.batch, self.run, "replay", head.anchor, head.past), head.sequence)
            else:
                return Epoch(head.sequence, head.anchor, head.state == "replay")
            if deadline.left == 0:
                raise self._late("become the writer of the batch")

    def finish(self, epoch: Epoch) -> None:
        """Say that every row of the batch is stored, and take away what only a replay would have needed."""
        deadline = Deadline(self.patience)
        while True:
            head = self.head()
            if head is None or head.batch != self.batch or head.run != self.run:
                raise self.fenced(None)
            if head.state == "done":
                break
            if head.sequence != epoch.sequence:
                raise self.fenced(None)
            self._write_head(Head(self.batch, self.run, "done", epoch.anchor), epoch.sequence)
            if deadline.left == 0:
                raise self._late("finish the batch")
        self.clear(head.sequence)

    def clear(self, before: int) -> None:
        """Purge the markers of the query that stand before a sequence; later ones, of a later run, stay."""
        question = {"filter": self.subjects.all, "seq": before}
        self.patiently(lambda: self.bulk.api(f"STREAM.PURGE.{self.subjects.stream}", question))

    def forget(self) -> None:
        """Purge every marker of the query: for a write that can never be asked for again."""
        question = {"filter": self.subjects.all}
        self.patiently(lambda: self.bulk.api(f"STREAM.PURGE.{self.subjects.stream}", question))

    def _check_order(self, head: Head | None) -> None:
        """Refuse a batch that does not follow on what the stream knows."""
        if self.start_anew or (head is None and self.batch == 0):
            return
        if head is not None and head.state == "done" and head.batch == self.batch - 1:
            return
        stream = self.subjects.stream
        if head is None:
            what = f"Stream {stream} knows nothing of this query, and batch {self.batch} is not its first."
            why = "Its markers were purged, fell to a limit of the stream, or went with an older copy of it"
        elif head.state == "done":
            what = f"Stream {stream} knows this query up to batch {head.batch}, and now comes {self.batch}."
            why = "The stream was restored from a backup, or batches were written with another guarantee"
        else:
            what = f"Batch {head.batch} of this query is unfinished in stream {stream}, and now comes {self.batch}."
            why = "The stream was restored from a backup, or the batch was written with another guarantee"
        raise MarkerError(
            what,
            remedy=f"{why}: rows may be missing or come twice. To go on from here all the same, set "
            '.option("onMissingMarkers", "start") for one start.',
            **self._facts,
        )

    def _newer(self, head: Head) -> MarkerError:
        return MarkerError(
            f"Stream {self.subjects.stream} holds batch {head.batch} of this query, and this run wants to write batch "
            f"{self.batch}.",
            remedy="The checkpoint is older than the stream (restored from a backup?), or two drivers share it. "
            "Batches planned anew would not be the same, so nothing was written. Use the newest checkpoint, or a new "
            f"one whose source starts behind what is written; `penstock stream purge {self.subjects.stream} --subject "
            f"'{self.subjects.all}'` and onMissingMarkers=start accept repeated rows instead.",
            **self._facts,
        )

    def _write_head(self, head: Head, expected: int) -> None:
        """Try to write a head; what came of it shows when it is read again."""
        message = (self.subjects.head, {EXPECTED: str(expected), **self._keep}, head.body())
        messages = [message]
        if head.state == "open":
            messages.insert(0, (self.subjects.anchor, self._keep, anchor_body(head.batch)))
        self._attempt(lambda: self.bulk.store(self.subjects.stream, messages))

    def _seal(self, head: Head) -> None:
        """Close every lane that earlier runs of this batch opened: none of their tasks can store anything more."""
        lanes = {
            found.subject
            for found in self.scan(self.subjects.all, head.anchor, head.sequence)
            if self.subjects.is_of_task(found.subject) and read_lane(found.payload)[0]["kind"] == "open"
        }
        ordered = sorted(lanes)
        for start in range(0, len(ordered), MOST):
            seals = [(lane, self._keep, seal_body(self.run)) for lane in ordered[start : start + MOST]]
            self.patiently(lambda seals=seals: self.bulk.store(self.subjects.stream, seals))  # type: ignore[misc]  # mypy types no defaults of a lambda

    # -- lanes ----------------------------------------------------------------------------------------------------

    def open(self, epoch: Epoch, partition: int, task: int, count: int, *, again: bool = False) -> Slot:
        """Take the lanes of a partition, from an earlier attempt where there was one, and read what that stored.

        `again`: we know that there was one.
        """
        lanes = [self.subjects.lane(epoch.sequence, partition, lane) for lane in range(count)]
        body = opening_body(self.run, task)
        guard = {EXPECTED: str(epoch.sequence), EXPECTED_SUBJECT: self.subjects.head, **self._keep}
        deadline = Deadline(self.patience)
        first = not again
        while True:
            fresh = {EXPECTED: "0"} if first else {}
            messages = [(lanes[0], guard, body), (lanes[1], {**self._keep, **fresh}, body)]
            messages += [(lane, self._keep, body) for lane in lanes[2:]]
            last = self._attempt(lambda messages=messages: self.bulk.store(self.subjects.stream, messages))  # type: ignore[misc]  # as above
            if last is not None:
                break
            head = self.head()
            if head is None or head.sequence != epoch.sequence:
                raise self.fenced(partition)
            first = False
            if deadline.left == 0:
                raise self._late(f"open partition {partition}")
        slot = Slot(lanes, list(range(last - count + 1, last + 1)), [])
        if not first:
            for found in self.scan(self.subjects.slot(epoch.sequence, partition), epoch.sequence, last):
                fields, digests = read_lane(found.payload)
                if fields["kind"] == "rows":
                    slot.journals.append(Journal(found.sequence, str(fields["id"]), digests))
                elif fields["kind"] == "open" and fields["run"] == self.run and fields["task"] > task:
                    raise self.fenced(partition)
            self._check_anchor(epoch)
        return slot

    def owner(self, lane: str) -> int | None:
        """Tell which task of this run holds a lane; None where none does."""
        found = self.patiently(lambda: self.bulk.last(self.subjects.stream, lane))
        if found is None:
            return None
        fields, _ = read_lane(found.payload)
        return int(fields["task"]) if fields["kind"] == "open" and fields["run"] == self.run else None

    def taken(self, epoch: Epoch, partition: int) -> PenstockError:
        """Say why a lane is not ours any more: somebody else has it, or it is gone from the stream."""
        head = self.head()
        lane = self.subjects.lane(epoch.sequence, partition, 0)
        found = self.patiently(lambda: self.bulk.last(self.subjects.stream, lane))
        if head is not None and head.sequence == epoch.sequence and found is None:
            return self._dropped()
        return self.fenced(partition)

    def journals(self, epoch: Epoch) -> Iterator[Journal]:
        """Give what earlier runs stored of this batch, in the order of the stream."""
        for found in self.scan(self.subjects.all, epoch.anchor, epoch.sequence):
            if self.subjects.is_of_task(found.subject):
                fields, digests = read_lane(found.payload)
                if fields["kind"] == "rows":
                    yield Journal(found.sequence, str(fields["id"]), digests)

    def claims(self, epoch: Epoch) -> tuple[dict[int, Taken], int]:
        """Give what each partition claimed of the journals, and the sequence that the next claim must expect."""
        fence = self.subjects.claims_fence(epoch.sequence)
        last = self.patiently(lambda: self.bulk.last(self.subjects.stream, fence))
        claims: dict[int, Taken] = {}
        if last is None:
            return claims, 0
        for found in self.scan(self.subjects.claims(epoch.sequence), epoch.sequence, last.sequence):
            fields, taken = read_claim(found.payload)
            if fields["kind"] == "claim":
                claims.setdefault(int(fields["partition"]), {}).update(taken)
        return claims, last.sequence

    def claim(self, epoch: Epoch, partition: int, taken: Taken, expected: int) -> bool:
        """Try to claim rows of the journals for a partition; False where the claims must be read again."""
        size = min(CLAIM_BYTES, self.bulk.max_payload // 2)
        messages = [
            (self.subjects.claim(epoch.sequence, partition, part), self._keep, body)
            for part, body in enumerate(claim_bodies(partition, taken, size), start=1)
        ]
        fence = {EXPECTED: str(expected), **self._keep}
        messages.append((self.subjects.claims_fence(epoch.sequence), fence, fence_body(partition)))
        return self._attempt(lambda: self.bulk.store(self.subjects.stream, messages)) is not None

    def _has_anchor(self, anchor: int) -> bool:
        found = self.patiently(lambda: self.bulk.following(self.subjects.stream, self.subjects.anchor, anchor))
        return found is not None and found.sequence == anchor

    def _check_anchor(self, epoch: Epoch) -> None:
        if not self._has_anchor(epoch.anchor):
            raise self._dropped()

    # -- reading --------------------------------------------------------------------------------------------------

    def scan(self, subject: str, start: int, end: int) -> Iterator[Found]:
        """Give the messages that match, from `start` up to and with the one at `end`, which must be among them.

        That one was stored by us, so a reader that shows it has everything before it. A scan that begins at the
        anchor must find it there.
        """
        deadline = Deadline(STALE)
        place = start
        while True:
            found = self.patiently(lambda place=place: self.bulk.following(self.subjects.stream, subject, place))  # type: ignore[misc]  # as above
            if found is None or found.sequence > end:
                # A server that lost its place as leader may answer with old news for a moment.
                if deadline.left == 0:
                    raise self._dropped()
                time.sleep(0.05)
                continue
            if place == start and subject == self.subjects.all and found.sequence != start:
                raise self._dropped()
            yield found
            if found.sequence == end:
                return
            deadline = Deadline(STALE)
            place = found.sequence + 1

    def _dropped(self) -> MarkerError:
        return MarkerError(
            f"Stream {self.subjects.stream} has dropped markers of batch {self.batch} while it was being written.",
            remedy="A purge or a limit of the stream took them: a batch must fit into the stream's limits several "
            "times over. Rows may come twice if the query goes on; to accept that, set "
            '.option("onMissingMarkers", "start") for one start.',
            **self._facts,
        )

    # -- trying again ---------------------------------------------------------------------------------------------

    def patiently(self, action: Callable[[], _Result]) -> _Result:
        """Do something that may be done twice, again and again while the trouble is a passing one."""
        return self.bulk.patiently(action, self.patience, nobody=True)

    def recover(self, error: PenstockError, deadline: Deadline) -> None:
        """Make the connection usable again after a passing error."""
        self.bulk.recover(error, deadline)

    def _attempt(self, action: Callable[[], int]) -> int | None:
        """Try a fenced write once; None where it was refused or nobody knows, and the caller has to look."""
        try:
            return action()
        except PenstockError as error:
            wrong = isinstance(error, JetStreamError) and error.err_code in CONDITION_FAILED
            if not wrong and not may_ask_again(error):
                raise
            if not wrong:
                self.recover(error, Deadline(self.patience))
            time.sleep(random.uniform(0.005, 0.03))  # noqa: S311  # spreads retries only
            return None

    # -- errors ---------------------------------------------------------------------------------------------------

    @property
    def _facts(self) -> dict[str, object]:
        return {"stream": self.subjects.stream, "query": self.subjects.query, "batch": self.batch}

    def fenced(self, partition: int | None) -> FencedError:
        """Say that somebody else writes now."""
        part = "" if partition is None else f", partition {partition}"
        return FencedError(
            f"Another attempt or another driver has taken over batch {self.batch}{part} of this query in stream "
            f"{self.subjects.stream}; nothing more of this attempt is stored.",
            remedy="Nothing to do if Spark goes on with the other one. Two drivers must not share a checkpoint.",
            partition=partition,
            **self._facts,
        )

    def _late(self, what: str) -> DeadlineError:
        return DeadlineError(
            f"Could not {what} in stream {self.subjects.stream} within {self.patience:g} s.",
            remedy="Many writers at once, or a cluster without a leader: try again, or raise the option patience.",
            seconds=self.patience,
        )
