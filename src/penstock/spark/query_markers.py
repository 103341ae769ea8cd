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

from penstock.errors import FencedError, InputError, JetStreamError, MarkerError, PenstockError
from penstock.spark.connections import TaskConnection
from penstock.spark.digests import tally
from penstock.spark.markers import (
    Head,
    MarkerSubjects,
    State,
    Tally,
    anchor_body,
    claim_bodies,
    fence_body,
    journal_body,
    marker_headers,
    opening_body,
    read_claim,
    read_lane,
    seal_body,
)
from penstock.spark.messages import Messages, SinkStream
from penstock.spark.prepare import prepare
from penstock.spark.refusals import Refusals
from penstock.spark.sink_options import SinkOptions
from penstock.wire.jetstream.answers import check_done
from penstock.wire.jetstream.atomic import encode, encode_rows, lines, new_id
from penstock.wire.jetstream.direct import Found
from penstock.wire.jetstream.names import CONDITION_FAILED, DUPLICATE_IN_BATCH, stream_purge
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE as EXPECTED
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT as EXPECTED_SUBJECT
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.patience import Deadline

__all__ = ["Journal", "QueryMarkers", "Taken"]

MOST = 900  # messages of one batch of seals
CLAIM_BYTES = 256 * 1024  # of one message of claims
STALE = 5.0  # seconds that a server which is not a leader any more may go on answering
_Result = TypeVar("_Result")
Taken = dict[int, list[bool]]  # for each journal, by its sequence, which of its rows


@dataclass(frozen=True)
class Journal:
    """The digests of rows that were stored together."""

    sequence: int
    batch_id: str
    digests: bytes = field(repr=False)
    fields: dict[str, Any] = field(repr=False, default_factory=dict)
    """All that its line says."""


@dataclass
class QueryMarkers:
    """Asks and changes the progress of one query in one stream, for one batch and one run of it."""

    bulk: TaskConnection
    options: SinkOptions
    target: SinkStream
    query: str
    batch: int
    run: str
    start: str = ""
    """The start of the query that this run belongs to; nothing if nobody knows."""
    series: bool = True
    """Whether batches follow each other, so that the markers of one stay until the next begins."""
    replaces: str = ""
    """The run whose tasks must not write any more because this one does it for them."""
    trouble: PenstockError | None = field(default=None, init=False, repr=False)
    """What kept the last write of a marker from being stored, if it was not a condition."""

    @cached_property
    def subjects(self) -> MarkerSubjects:
        """Where the markers stand."""
        return MarkerSubjects(self.target.stream, self.query)

    @property
    def keep(self) -> dict[str, str]:
        """The headers of every marker, which must outlive an age limit of the stream."""
        return marker_headers(self.target.keep)

    @cached_property
    def refusals(self) -> Refusals:
        """What is said when the write stops."""
        return Refusals(self.target.stream, self.query, self.batch, self.series)

    def replacing(self) -> QueryMarkers:
        """Give the markers of a run of the driver itself, under which no task of this run can write any more."""
        return replace(self, run=f"{self.run}-driver", replaces=self.run)

    # -- the head -------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """Ask the stream's leader for the head."""
        found = self.last(self.subjects.head)
        return None if found is None else Head.read(found.payload, found.sequence, found.time)

    def join(self) -> Head:
        """Get the right to write this batch, as the head that grants it; a head that does not if all is stored.

        Its sequence is the epoch, which every lane's subject carries. FencedError if another run has it now,
        MarkerError if the stream and the query disagree.
        """
        deadline, starts_anew = Deadline(self.options.patience), self.options.on_missing_markers == "start"
        while True:
            head = self._admitted()
            if head is None or head.batch < self.batch:
                self._begin(head)
            elif head.batch > self.batch:
                raise self.refusals.newer(head)
            elif self.run in head.past:
                raise self.refusals.fenced(None)
            elif head.state == "changed":
                if self.options.on_changed_rows != "keep":
                    raise self.refusals.changed(head)
                return head
            elif head.run != self.run:
                if head.state == "done" and not self._is_accounted(head):
                    if self.head() == head:
                        return head
                elif starts_anew and not self._has_anchor(head.anchor):
                    self._begin(head)
                else:
                    # The other run may be alive: from here on it cannot open a lane any more.
                    self._write_head(self._after(head, "sealing"), head.sequence)
            elif head.state == "sealing":
                self._seal(head)
                self._write_head(self._after(head, "replay"), head.sequence)
            else:
                return head
            if deadline.left == 0:
                raise self.late("become the writer of the batch")

    def store_whole(self, messages: Messages) -> Tally | None:
        """Store a batch that nobody has begun in one go: its rows, their journal, and the head that says it is done.

        Gives the tally of the rows; None if somebody has begun the batch, or rows have ids that the stream knows:
        then whoever has the rows must join and store them as a task does.
        """
        digests = messages.digests()
        rows, deadline, tried = tally(digests), Deadline(self.options.patience), False
        behind = rows.rows + (2 if digests else 1)
        last: int | None = None
        while last is None:
            head = self._admitted()
            if head is not None and head.batch >= self.batch:
                if not tried or (head.run, head.state, head.tally, head.batch) != (self.run, "done", rows, self.batch):
                    return None
                last = head.sequence  # the ack was lost, and nothing else
                break
            tried = True
            try:
                done = replace(self._successor(head), state="done", behind=behind, tally=rows)
                last = self._try(partial(self._post_whole, messages, digests, done, head))
            except JetStreamError as error:
                if error.err_code == DUPLICATE_IN_BATCH:
                    return None
                raise
            if last is None and deadline.left == 0:
                raise self.late("store the batch")
        if not self.series:
            self.clear(last)
        elif head is not None:
            self.clear(last - behind)  # where the anchor is
        return rows

    def _post_whole(self, messages: Messages, digests: bytes, done: Head, head: Head | None) -> int:
        subjects, batch_id = self.subjects, new_id()
        content = bytearray(encode([(subjects.anchor.encode(), lines(self.keep), anchor_body(self.batch))], batch_id))
        content += encode_rows(messages.rows, 0, len(messages), batch_id, number=2)[1]
        number = 2 + len(messages)
        if digests:
            journal = subjects.of_task(0, 0, batch_id).encode(), lines(self.keep), journal_body(batch_id, digests)
            content += encode([journal], batch_id, first=number)
            number += 1
        expected = {EXPECTED: str(0 if head is None else head.sequence), **self.keep}
        self.bulk.connect(Deadline(self.bulk.options.request_timeout))
        ticket = self.bulk.post(content, batch_id, number, subjects.head, expected, done.body())
        deadline = Deadline(2 * self.bulk.options.request_timeout)
        return self.bulk.settle(self.target.stream, ticket, deadline, self.target.domain)

    def finish(self, epoch: Head, tally: Tally) -> None:
        """Say that every row of the batch is stored.

        Its markers stay, because a checkpoint may lose its last batch, and go when the next batch begins. If none
        follows they go at once.
        """
        done = self._conclude(self._after(epoch, "done", tally), epoch)
        if not self.series:
            self.clear(done)

    def note_change(self, epoch: Head, tally: Tally, lacks: int) -> None:
        """Say that every row of the batch is stored, and `lacks` rows that were not in it when it was computed again.

        Whoever starts the query after that learns it before it writes.
        """
        self._conclude(self._after(epoch, "changed", tally, lacks), epoch)

    def clear(self, before: int | None = None) -> None:
        """Purge the markers of the query that stand before a sequence; all, for a write that is never asked for again.

        Later ones are of a later run, and stay.
        """
        question = {"filter": self.subjects.all} | ({} if before is None else {"seq": before})
        self._purge(question)

    def _admitted(self) -> Head | None:
        """Ask for the head; refuse to go on if it shuts us out, or this batch does not follow on it."""
        head = self.head()
        if head is not None and self.start and self.start in head.starts:
            raise self.refusals.fenced(None)
        if (head is None or head.batch < self.batch) and not (
            self.options.on_missing_markers == "start" or self._follows(head)
        ):
            raise self.refusals.no_order(head)
        return head

    def _follows(self, head: Head | None) -> bool:
        """Tell whether this batch is the next one that the stream expects."""
        return self.batch == 0 if head is None else (head.state == "done" and head.batch == self.batch - 1)

    def _is_accounted(self, head: Head) -> bool:
        """Tell whether the journals of a batch that is done are there, every one, so that more rows can be added."""
        if not self.series or head.tally is None or not self._has_anchor(head.anchor):
            return False
        try:
            return sum((tally(journal.digests) for journal in self.journals(head)), Tally()) == head.tally
        except (FencedError, MarkerError):
            return False  # who reads the head again knows which of them

    def _after(self, head: Head, state: State, tally: Tally | None = None, lacks: int = 0) -> Head:
        """Give the head of this run that follows on another one of the same batch."""
        new = self._successor(head)
        past = dict.fromkeys((*head.past, *([] if head.run == self.run else [head.run]), *new.past))
        return replace(new, state=state, since=head.anchor, past=tuple(past), tally=tally, lacks=lacks)

    def _successor(self, head: Head | None) -> Head:
        """Give a head of this run; it shuts out every other start of the query that the stream knows of."""
        past = (self.replaces,) if self.replaces else ()
        if head is None:
            return Head(self.batch, self.run, "open", past=past, start=self.start)
        starts = head.starts if head.start in ("", self.start) else (*head.starts, head.start)
        return Head(self.batch, self.run, "open", past=past, start=self.start, starts=starts)

    def _begin(self, head: Head | None) -> None:
        """Try to begin the batch, and take away what only a replay of the one before would have needed."""
        began = self._write_head(self._successor(head), 0 if head is None else head.sequence)
        if began is not None and head is not None:
            self.clear(began - 1)  # where the anchor is

    def _conclude(self, head: Head, epoch: Head) -> int:
        """Write the head that ends this run of the batch, and give its sequence."""
        deadline = Deadline(self.options.patience)
        while True:
            if (last := self._write_head(head, epoch.sequence)) is not None:
                return last
            found = self._head_since(epoch)
            if found is not None and (found.run, found.state, found.batch) == (self.run, head.state, self.batch):
                return found.sequence
            if found != epoch:
                raise self._reason(found, epoch, None)
            if deadline.left == 0:
                raise self.late("finish the batch")

    def _write_head(self, head: Head, expected: int) -> int | None:
        """Try to write a head and give its sequence; None if what came of it shows when it is read again."""
        messages = [(self.subjects.head, {EXPECTED: str(expected), **self.keep}, head.body())]
        if head.state == "open":
            messages.insert(0, (self.subjects.anchor, self.keep, anchor_body(head.batch)))
        return self._attempt(messages)

    def _seal(self, head: Head) -> None:
        """Close every lane that earlier runs of this batch opened: none of their tasks can store anything more."""
        lanes = {
            found.subject
            for found, fields, _ in self._written(self.subjects.all, head.anchor, head.sequence, head)
            if fields["kind"] == "open"
        }
        seals = [(lane, self.keep, seal_body(self.run)) for lane in sorted(lanes)]
        for start in range(0, len(seals), MOST):
            part = seals[start : start + MOST]
            self._patiently(partial(self.bulk.store, self.target.stream, part, self.target.domain))

    def gone(self, epoch: Head, partition: int | None = None) -> PenstockError:
        """Say why a run may not write under its head any more, or does not find what it stored."""
        return self._reason(self._head_since(epoch), epoch, partition)

    def _head_since(self, epoch: Head) -> Head | None:
        """Ask for the head, for a while as long as it is older than one that was there."""
        deadline = Deadline(STALE)
        while True:
            head = self.head()
            if (head is not None and head.sequence >= epoch.sequence) or deadline.left == 0:
                return head
            time.sleep(0.05)  # a server that lost its place as leader may answer with old news for a moment

    def _reason(self, head: Head | None, epoch: Head, partition: int | None) -> PenstockError:
        if head is None or head == epoch:
            return self.refusals.dropped()
        if head.sequence <= epoch.sequence:
            return self.refusals.went_back()
        begun_again = head.run == self.run and head.state == "open"  # whoever of us did that found no head
        return self.refusals.dropped() if begun_again else self.refusals.fenced(partition)

    # -- lanes ----------------------------------------------------------------------------------------------------

    def open(self, epoch: Head, partition: int, task: int, *, again: bool = False) -> tuple[int, list[Journal]]:
        """Take the lanes of a partition, from an earlier attempt if there was one, and read what that stored.

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
            if (head := self._head_since(epoch)) != epoch:
                raise self._reason(head, epoch, partition)
            first = False
            if deadline.left == 0:
                raise self.late(f"open partition {partition}")
        journals = []
        if not first:
            everything = self.subjects.of_task(epoch.sequence, partition)
            for found, fields, digests in self._written(everything, epoch.sequence, last, epoch):
                if fields["kind"] == "rows":
                    journals.append(Journal(found.sequence, str(fields["id"]), digests, fields))
                elif fields["kind"] == "open" and fields["run"] == self.run and fields["task"] > task:
                    raise self.refusals.fenced(partition)
            if not self._has_anchor(epoch.anchor):
                raise self.gone(epoch, partition)
        return last - count + 1, journals

    def check_lane(self, epoch: Head, partition: int, task: int, lane: int) -> None:
        """Make sure that a task holds a lane; say else whether somebody else has it, or it is gone from the stream."""
        found = self.last(self.subjects.of_task(epoch.sequence, partition, lane))
        if found is None:
            raise self.gone(epoch, partition)
        fields, _ = read_lane(found.payload)
        if fields["kind"] != "open" or fields["run"] != self.run or int(fields["task"]) != task:
            raise self.refusals.fenced(partition)

    def journals(self, epoch: Head) -> Iterator[Journal]:
        """Give what earlier runs stored of this batch, in the order of the stream."""
        return self._journals(epoch, epoch.sequence)

    def all_journals(self, epoch: Head) -> Iterator[Journal]:
        """Give what this run and those before it stored of the batch."""
        last = self.last(self.subjects.all)
        return self._journals(epoch, epoch.sequence if last is None else last.sequence)

    def _journals(self, epoch: Head, end: int) -> Iterator[Journal]:
        for found, fields, digests in self._written(self.subjects.all, epoch.anchor, end, epoch):
            if fields["kind"] == "rows":
                yield Journal(found.sequence, str(fields["id"]), digests, fields)

    def purge(self, subject: str) -> None:
        """Remove all messages of a subject."""
        self._purge({"filter": subject})

    def _purge(self, question: dict[str, Any]) -> None:
        self._patiently(lambda: check_done(self.bulk.api(stream_purge(self.target.stream), question)))

    def claims(self, epoch: Head) -> tuple[dict[int, Taken], int]:
        """Give what each partition claimed of the journals, and the sequence that the next claim must expect."""
        fence = self.subjects.of_claims(epoch.sequence, "last")
        last = self.last(fence)
        claims: dict[int, Taken] = {}
        if last is None:
            return claims, 0
        for found in self._scan(self.subjects.of_claims(epoch.sequence), epoch.sequence, last.sequence, epoch):
            fields, taken = read_claim(found.payload)
            if fields["kind"] == "claim":
                claims.setdefault(int(fields["partition"]), {}).update(taken)
        return claims, last.sequence

    def claim(self, epoch: Head, partition: int, taken: Taken, expected: int) -> bool:
        """Try to claim rows of the journals for a partition; False if the claims must be read again."""
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

    def last(self, subject: str) -> Found | None:
        """Ask the stream's leader for the last message of a subject."""
        return self._patiently(lambda: self.bulk.last(self.target.stream, subject))

    def _following(self, subject: str, place: int) -> Found | None:
        return self._patiently(lambda: self.bulk.following(self.target.stream, subject, place))

    def _written(
        self, subject: str, start: int, end: int, epoch: Head
    ) -> Iterator[tuple[Found, dict[str, Any], bytes]]:
        """Give the openings, seals and journals of a scan, each with its fields and digests."""
        for found in self._scan(subject, start, end, epoch):
            if self.subjects.is_of_task(found.subject):
                yield found, *read_lane(found.payload)

    def _scan(self, subject: str, start: int, end: int, epoch: Head) -> Iterator[Found]:
        """Give the messages that match, from `start` up to and with the one at `end`, which must be among them.

        That one was stored by us, so a reader that shows it has everything before it. A scan that begins at the
        anchor must find it there. `epoch`: the head under which we look for them.
        """
        deadline = Deadline(STALE)
        place = start
        while True:
            found = self._following(subject, place)
            if found is None or found.sequence > end:
                # A server that lost its place as leader may answer with old news for a moment.
                if deadline.left == 0:
                    raise self.gone(epoch)
                time.sleep(0.05)
                continue
            if place == start and subject == self.subjects.all and found.sequence != start:
                raise self.gone(epoch)
            yield found
            if found.sequence == end:
                return
            deadline = Deadline(STALE)
            place = found.sequence + 1

    def _patiently(self, action: Callable[[], _Result]) -> _Result:
        """Do something that may be done twice, again and again while the trouble is a passing one."""
        try:
            return self.bulk.patiently(action, self.options.patience, nobody=True)
        except JetStreamError as error:
            raise self.refusals.not_stored(error) from None

    def _attempt(self, messages: Sequence[tuple[str, Mapping[str, str], bytes]]) -> int | None:
        """Try a fenced write once; None if it was refused or nobody knows, and the caller has to look."""
        return self._try(lambda: self.bulk.store(self.target.stream, messages, self.target.domain))

    def _try(self, action: Callable[[], int]) -> int | None:
        try:
            return action()
        except PenstockError as error:
            wrong = isinstance(error, JetStreamError) and error.err_code in CONDITION_FAILED
            if not wrong and not may_ask_again(error):
                raise (self.refusals.not_stored(error) if isinstance(error, JetStreamError) else error) from None
            self.trouble = None if wrong else error
            self.bulk.drop_after(error)
            time.sleep(random.uniform(0.005, 0.03))  # noqa: S311  # spreads retries only
            return None

    def late(self, what: str) -> PenstockError:
        """Say that the time is over; or what became of the stream meanwhile, so that it cannot be written to."""
        try:
            prepare(self.bulk, replace(self.options, prepare=False))
        except InputError as error:
            return error
        except PenstockError as error:
            self.trouble = self.trouble or error
        return self.refusals.late(what, self.options.patience, self.trouble)
