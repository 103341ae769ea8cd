"""The progress of a query as the stream itself keeps it: who may write which batch, and what is written already.

The steps of the exactly-once protocol, each safe to repeat; docs/why/exactly-once.md has the whole of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

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
from penstock.spark.messages import SinkStream
from penstock.spark.sink_options import SinkOptions
from penstock.wire.jetstream.direct import Found
from penstock.wire.jetstream.names import CONDITION_FAILED, TTL
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE as EXPECTED
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT as EXPECTED_SUBJECT
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.patience import Deadline

__all__ = ["Journal", "QueryMarkers", "Taken"]

MOST = 900  # messages of one batch of seals
CLAIM_BYTES = 256 * 1024  # of one message of claims
STALE = 5.0  # seconds that a server which is no leader any more may go on answering
_Result = TypeVar("_Result")
Taken = dict[int, list[bool]]  # for each journal, by its sequence, which of its rows


@dataclass(frozen=True)
class Journal:
    """The digests of rows that were stored together."""

    sequence: int
    batch_id: str
    digests: bytes = field(repr=False)


@dataclass
class QueryMarkers:
    """Asks and changes the progress of one query in one stream, for one batch and one run of it."""

    bulk: TaskConnection
    options: SinkOptions
    target: SinkStream
    query: str
    batch: int
    run: str

    @cached_property
    def subjects(self) -> MarkerSubjects:
        """Where the markers stand."""
        return MarkerSubjects(self.target.stream, self.query)

    @property
    def keep(self) -> dict[str, str]:
        """The headers of every marker, which must outlive an age limit of the stream."""
        return {TTL: "never"} if self.target.keep else {}

    # -- the head -------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """Ask the stream's leader for the head."""
        found = self._last(self.subjects.head)
        return None if found is None else Head.read(found.payload, found.sequence)

    def join(self) -> Head | None:
        """Get the right to write this batch, as the head that grants it; None where all of it is stored already.

        Its sequence is the epoch, which every lane's subject carries. FencedError where another run has it now,
        MarkerError where the stream and the query disagree.
        """
        deadline, starts_anew = Deadline(self.options.patience), self.options.on_missing_markers == "start"
        while True:
            head = self.head()
            if head is None or head.batch < self.batch:
                if not starts_anew:
                    self._check_order(head)
                self._write_head(Head(self.batch, self.run, "open"), 0 if head is None else head.sequence)
            elif head.batch > self.batch:
                raise self._newer(head)
            elif head.state == "done":
                return None
            elif head.run != self.run:
                if self.run in head.past:
                    raise self.fenced(None)
                # The other run may be alive: from here on it cannot open a lane any more.
                new = Head(self.batch, self.run, "sealing", head.anchor, (*head.past, head.run))
                if starts_anew and not self._has_anchor(head.anchor):
                    new = replace(new, state="open", since=0)
                self._write_head(new, head.sequence)
            elif head.state == "sealing":
                self._seal(head)
                self._write_head(Head(self.batch, self.run, "replay", head.anchor, head.past), head.sequence)
            else:
                return head
            if deadline.left == 0:
                raise self.late("become the writer of the batch")

    def finish(self, epoch: Head) -> None:
        """Say that every row of the batch is stored, and take away what only a replay would have needed."""
        deadline = Deadline(self.options.patience)
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
                raise self.late("finish the batch")
        self.clear(head.sequence)

    def clear(self, before: int | None = None) -> None:
        """Purge the markers of the query that stand before a sequence; all, for a write that is never asked for again.

        Later ones are of a later run, and stay.
        """
        question = {"filter": self.subjects.all} | ({} if before is None else {"seq": before})
        self._patiently(lambda: self.bulk.api(f"STREAM.PURGE.{self.target.stream}", question))

    def _check_order(self, head: Head | None) -> None:
        """Refuse a batch that does not follow on what the stream knows."""
        follows = self.batch == 0 if head is None else (head.state == "done" and head.batch == self.batch - 1)
        if follows:
            return
        stream = self.target.stream
        if head is None:
            what = f"Stream {stream} knows nothing of this query, and batch {self.batch} is not its first."
            why = "Its markers were purged, fell to a limit of the stream, or went with an older copy of it"
        elif head.state == "done":
            what = f"Stream {stream} knows this query up to batch {head.batch}, and now comes {self.batch}."
            why = "The stream was restored from a backup, or batches were written with another guarantee"
        else:
            what = f"Batch {head.batch} of this query is unfinished in stream {stream}, and now comes {self.batch}."
            why = "The stream was restored from a backup, or the batch was written with another guarantee"
        raise self.broken(
            what,
            f"{why}: rows may be missing or come twice. To go on from here all the same, set "
            '.option("onMissingMarkers", "start") for one start.',
        )

    def _newer(self, head: Head) -> MarkerError:
        return self.broken(
            f"Stream {self.target.stream} holds batch {head.batch} of this query, and this run wants to write batch "
            f"{self.batch}.",
            "The checkpoint is older than the stream (restored from a backup?), or two drivers share it. "
            "Batches planned anew would not be the same, so nothing was written. Use the newest checkpoint, or a new "
            f"one whose source starts behind what is written; `penstock stream purge {self.target.stream} --subject "
            f"'{self.subjects.all}'` and onMissingMarkers=start accept repeated rows instead.",
        )

    def _write_head(self, head: Head, expected: int) -> None:
        """Try to write a head; what came of it shows when it is read again."""
        messages = [(self.subjects.head, {EXPECTED: str(expected), **self.keep}, head.body())]
        if head.state == "open":
            messages.insert(0, (self.subjects.anchor, self.keep, anchor_body(head.batch)))
        self._attempt(messages)

    def _seal(self, head: Head) -> None:
        """Close every lane that earlier runs of this batch opened: none of their tasks can store anything more."""
        lanes = {
            found.subject
            for found, fields, _ in self._written(self.subjects.all, head.anchor, head.sequence)
            if fields["kind"] == "open"
        }
        seals = [(lane, self.keep, seal_body(self.run)) for lane in sorted(lanes)]
        for start in range(0, len(seals), MOST):
            self._patiently(partial(self.bulk.store, self.target.stream, seals[start : start + MOST]))

    # -- lanes ----------------------------------------------------------------------------------------------------

    def open(self, epoch: Head, partition: int, task: int, *, again: bool = False) -> tuple[int, list[Journal]]:
        """Take the lanes of a partition, from an earlier attempt where there was one, and read what that stored.

        Gives the sequence of the first opening, which those of the other lanes follow, and the journals of earlier
        attempts in this epoch. `again`: we know that there was one.
        """
        count = self.options.in_flight
        lanes = [self.subjects.of_task(epoch.sequence, partition, lane) for lane in range(count)]
        body = opening_body(self.run, task)
        guard = {EXPECTED: str(epoch.sequence), EXPECTED_SUBJECT: self.subjects.head, **self.keep}
        deadline = Deadline(self.options.patience)
        first = not again
        while True:
            fresh = {EXPECTED: "0"} if first else {}
            messages = [(lanes[0], guard, body), (lanes[1], {**self.keep, **fresh}, body)]
            messages += [(lane, self.keep, body) for lane in lanes[2:]]
            if (last := self._attempt(messages)) is not None:
                break
            head = self.head()
            if head is None or head.sequence != epoch.sequence:
                raise self.fenced(partition)
            first = False
            if deadline.left == 0:
                raise self.late(f"open partition {partition}")
        journals = []
        if not first:
            everything = self.subjects.of_task(epoch.sequence, partition)
            for found, fields, digests in self._written(everything, epoch.sequence, last):
                if fields["kind"] == "rows":
                    journals.append(Journal(found.sequence, str(fields["id"]), digests))
                elif fields["kind"] == "open" and fields["run"] == self.run and fields["task"] > task:
                    raise self.fenced(partition)
            if not self._has_anchor(epoch.anchor):
                raise self._dropped()
        return last - count + 1, journals

    def check_lane(self, epoch: Head, partition: int, task: int, lane: int) -> None:
        """Make sure that a task holds a lane; say else whether somebody else has it, or it is gone from the stream."""
        found = self._last(self.subjects.of_task(epoch.sequence, partition, lane))
        if found is not None:
            fields, _ = read_lane(found.payload)
            if fields["kind"] == "open" and fields["run"] == self.run and int(fields["task"]) == task:
                return
        head = self.head()
        if head is not None and head.sequence == epoch.sequence and found is None:
            raise self._dropped()
        raise self.fenced(partition)

    def journals(self, epoch: Head) -> Iterator[Journal]:
        """Give what earlier runs stored of this batch, in the order of the stream."""
        for found, fields, digests in self._written(self.subjects.all, epoch.anchor, epoch.sequence):
            if fields["kind"] == "rows":
                yield Journal(found.sequence, str(fields["id"]), digests)

    def claims(self, epoch: Head) -> tuple[dict[int, Taken], int]:
        """Give what each partition claimed of the journals, and the sequence that the next claim must expect."""
        fence = self.subjects.of_claims(epoch.sequence, "last")
        last = self._last(fence)
        claims: dict[int, Taken] = {}
        if last is None:
            return claims, 0
        for found in self._scan(self.subjects.of_claims(epoch.sequence), epoch.sequence, last.sequence):
            fields, taken = read_claim(found.payload)
            if fields["kind"] == "claim":
                claims.setdefault(int(fields["partition"]), {}).update(taken)
        return claims, last.sequence

    def claim(self, epoch: Head, partition: int, taken: Taken, expected: int) -> bool:
        """Try to claim rows of the journals for a partition; False where the claims must be read again."""
        size = min(CLAIM_BYTES, self.bulk.max_payload // 2)
        messages = [
            (self.subjects.of_claims(epoch.sequence, f"{partition}-{part}"), self.keep, body)
            for part, body in enumerate(claim_bodies(partition, taken, size), start=1)
        ]
        fence = {EXPECTED: str(expected), **self.keep}
        messages.append((self.subjects.of_claims(epoch.sequence, "last"), fence, fence_body(partition)))
        return self._attempt(messages) is not None

    def _has_anchor(self, anchor: int) -> bool:
        found = self._following(self.subjects.anchor, anchor)
        return found is not None and found.sequence == anchor

    # -- reading and storing --------------------------------------------------------------------------------------

    def _last(self, subject: str) -> Found | None:
        return self._patiently(lambda: self.bulk.last(self.target.stream, subject))

    def _following(self, subject: str, place: int) -> Found | None:
        return self._patiently(lambda: self.bulk.following(self.target.stream, subject, place))

    def _written(self, subject: str, start: int, end: int) -> Iterator[tuple[Found, dict[str, Any], bytes]]:
        """Give the openings, seals and journals of a scan, each with its fields and digests."""
        for found in self._scan(subject, start, end):
            if self.subjects.is_of_task(found.subject):
                yield found, *read_lane(found.payload)

    def _scan(self, subject: str, start: int, end: int) -> Iterator[Found]:
        """Give the messages that match, from `start` up to and with the one at `end`, which must be among them.

        That one was stored by us, so a reader that shows it has everything before it. A scan that begins at the
        anchor must find it there.
        """
        deadline = Deadline(STALE)
        place = start
        while True:
            found = self._following(subject, place)
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

    def _patiently(self, action: Callable[[], _Result]) -> _Result:
        """Do something that may be done twice, again and again while the trouble is a passing one."""
        return self.bulk.patiently(action, self.options.patience, nobody=True)

    def _attempt(self, messages: Sequence[tuple[str, Mapping[str, str], bytes]]) -> int | None:
        """Try a fenced write once; None where it was refused or nobody knows, and the caller has to look."""
        try:
            return self.bulk.store(self.target.stream, messages)
        except PenstockError as error:
            wrong = isinstance(error, JetStreamError) and error.err_code in CONDITION_FAILED
            if not wrong and not may_ask_again(error):
                raise
            self.bulk.drop_after(error)
            time.sleep(random.uniform(0.005, 0.03))  # noqa: S311  # spreads retries only
            return None

    # -- errors ---------------------------------------------------------------------------------------------------

    def broken(self, what: str, remedy: str) -> MarkerError:
        """Say that the stream and the query disagree."""
        return MarkerError(what, remedy=remedy, **self._facts)

    def _dropped(self) -> MarkerError:
        return self.broken(
            f"Stream {self.target.stream} has dropped markers of batch {self.batch} while it was being written.",
            "A purge or a limit of the stream took them: a batch must fit into the stream's limits several "
            "times over. Rows may come twice if the query goes on; to accept that, set "
            '.option("onMissingMarkers", "start") for one start.',
        )

    @property
    def _facts(self) -> dict[str, object]:
        return {"stream": self.target.stream, "query": self.query, "batch": self.batch}

    def fenced(self, partition: int | None) -> FencedError:
        """Say that somebody else writes now."""
        part = "" if partition is None else f", partition {partition}"
        return FencedError(
            f"Another attempt or another driver has taken over batch {self.batch}{part} of this query in stream "
            f"{self.target.stream}; nothing more of this attempt is stored.",
            remedy="Nothing to do if Spark goes on with the other one. Two drivers must not share a checkpoint.",
            partition=partition,
            **self._facts,
        )

    def late(self, what: str) -> DeadlineError:
        """Say that the time is over."""
        return DeadlineError(
            f"Could not {what} in stream {self.target.stream} within {self.options.patience:g} s.",
            remedy="Many writers at once, or a cluster without a leader: try again, or raise the option patience.",
            seconds=self.options.patience,
        )
