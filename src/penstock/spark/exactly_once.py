"""One task of an exactly-once write: rows in, atomic batches out, each row once whatever was tried before; and the
driver's word when all tasks are through.

A task takes the lanes of its partition and stores rows in atomic batches; the last message of each is a journal, fenced
by a lane: it is stored only if our opening is still the last message there. Several batches are under way, each on a
lane of its own, because a cluster refuses to check one subject for two at a time. If the outcome of one is in doubt,
the task takes its lanes again, which locks out everything still under way, and reads in them what was stored.
"""

from __future__ import annotations

import logging
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import IO

import numpy as np

from penstock.errors import DeadlineError, JetStreamError, LinkError, PenstockError
from penstock.spark.connections import NO_TICKET, Ticket
from penstock.spark.digests import Bag, from_bytes, repeated, tally
from penstock.spark.handing_over import Handed, fits_whole, joined
from penstock.spark.markers import DIGEST_SIZE, Head, Tally, journal_body
from penstock.spark.messages import Messages, pack, unpack
from penstock.spark.query_markers import Journal, QueryMarkers, Taken
from penstock.wire.jetstream.atomic import encode_rows, new_id
from penstock.wire.jetstream.names import CONDITION_FAILED, DUPLICATE_IN_BATCH
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE as EXPECTED
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT as EXPECTED_SUBJECT
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.patience import Deadline

__all__ = ["AtomicBatch", "Task", "TaskOutcome", "commit", "in_full_batches"]

log = logging.getLogger("penstock.spark.sink")

LAST_TASK = 1 << 53  # later than every attempt of Spark's
HELD_BYTES = 64 * 1024 * 1024  # of journals that a replaying task keeps instead of reading them twice


@dataclass
class TaskOutcome:
    """What a task did: rows it stored, rows that were stored before, and rows whose message id was known."""

    epoch: Head | None = None
    """The head under which it wrote, or which says that all is stored; None if it had no row."""
    tally: Tally = field(default_factory=Tally)
    """All its rows."""
    stored: int = 0
    found: int = 0
    duplicates: int = 0
    refused: int = 0
    """Rows that went to the dead letters because their key had another revision."""
    keys: bytes | None = field(default=None, repr=False)
    """If rows have keys: a hash of each key, 8 bytes."""
    handed: Handed | None = field(default=None, repr=False)
    """Its rows, if they are so few that the driver stores them."""


@dataclass
class AtomicBatch:
    """Messages that are stored together, and where they are on their way."""

    messages: Messages | None
    """None if the rows are there already, and only the journal is to be stored."""
    first: int
    last: int
    digests: bytes
    """Those of all messages."""
    batch_id: str = ""
    lane: int = 0
    ticket: Ticket = NO_TICKET
    failure: PenstockError | None = None

    @property
    def rows(self) -> int:
        """How many rows are stored by it."""
        return self.size

    @property
    def size(self) -> int:
        """How many messages it has beside the journal."""
        return 0 if self.messages is None else self.last - self.first

    def journal(self) -> bytes:
        """Write what is stored with it."""
        return journal_body(self.batch_id, self.digests[self.first * DIGEST_SIZE : self.last * DIGEST_SIZE])


class Task:
    """Writes the rows of one partition, for one attempt."""

    # From the moment on at which there is something to write.
    _epoch: Head
    _opening: int  # of our first lane; those of the others follow it

    def __init__(self, markers: QueryMarkers, partition: int, task: int) -> None:
        self.markers = markers
        self.bulk = markers.bulk
        self.partition = partition
        self.task = task
        self.outcome = TaskOutcome()
        self._under_way: deque[AtomicBatch] = deque()
        self._patience = Deadline(markers.options.patience)

    def write(self, rows: Iterable[Messages]) -> TaskOutcome:
        """Store every row that no attempt stored before; just count them if all of them are."""
        later = (messages for messages in rows if len(messages))
        first = next(later, None)
        if first is None:
            return self.outcome
        given = chain([first], later)
        epoch = self.outcome.epoch = self._epoch = self.markers.join()
        if not epoch.writable:
            for messages in given:
                self.outcome.tally += tally(messages.digests())
            self.outcome.found = self.outcome.tally.rows
            return self.outcome
        stored = [] if epoch.replay else self._open()
        if stored or epoch.replay:
            self._store_rest(epoch, given, [journal.digests for journal in stored])
        else:
            self._store(given, Bag())
        return self.outcome

    def _store_rest(self, epoch: Head, rows: Iterable[Messages], stored: list[bytes]) -> None:
        """Store what earlier attempts and runs did not, once it is clear that these rows hold all that they stored."""
        with tempfile.TemporaryFile(prefix="penstock-replay-") as spool:
            own, kind = _spool(spool, rows)
            if epoch.replay:
                stored = [*self._claim(epoch, own), *(journal.digests for journal in self._open())]
            known = Bag(stored)
            if lacks := known.size - int(Bag(stored).take(from_bytes(own)).sum()):
                raise self.markers.refusals.retried(self.partition, lacks)
            self.check_stored(own, stored)
            self._store(_unspool(spool, kind), known)

    def _store(self, rows: Iterator[Messages], known: Bag) -> None:
        for messages, digests in in_full_batches(self._unknown(rows, known), self._most, self._most_bytes):
            self._cut(messages, digests)
        while self._under_way:
            self._settle()

    def _unknown(self, rows: Iterator[Messages], known: Bag) -> Iterator[tuple[Messages, bytes]]:
        """Give the rows that are not stored, with their digests."""
        for messages in rows:
            digests = messages.digests()
            self.outcome.tally += tally(digests)
            if known.size:
                mine = ~known.take(from_bytes(digests))
                self.outcome.found += len(messages) - int(mine.sum())
                digests = from_bytes(digests)[mine].tobytes()
                messages = messages.filter(mine)
            yield messages, digests

    # -- what rows with keys need besides --------------------------------------------------------------------------

    def must_wait(self, batch: AtomicBatch, under_way: Sequence[AtomicBatch]) -> bool:
        """Tell whether a batch may only be sent when one that is under way is settled."""
        return False

    def resolve(self, batch: AtomicBatch) -> bool:
        """Deal with a batch, the oldest under way, whose own conditions failed; False if it has none."""
        return False

    def check_stored(self, own: bytes, stored: list[bytes]) -> None:
        """Refuse to go on from what earlier attempts stored; both are digests, in the order of rows and of storing."""

    # -- batches of rows ------------------------------------------------------------------------------------------

    @property
    def _most(self) -> int:
        """The most rows of a batch: so many that their journal fits into a message."""
        return max(1, min(self.markers.options.atomic_rows, (self.markers.target.limit - 512) // DIGEST_SIZE))

    @property
    def _most_bytes(self) -> int:
        return self.markers.options.atomic_bytes

    def _cut(self, messages: Messages, digests: bytes) -> None:
        """Send rows in batches of about the same number, smaller ones if the rows are large."""
        total = len(messages)
        pieces = -(-total // self._most)
        first = 0
        for piece in range(1, pieces + 1):
            while first < (end := total * piece // pieces):
                first = self._send(messages, first, end, digests, self._most_bytes)

    def _send(self, messages: Messages | None, first: int, last: int, digests: bytes, most_bytes: int = 1 << 40) -> int:
        """Send rows under a name that no batch had before, once a lane is free; give the row behind the last one."""
        batch = AtomicBatch(messages, first, last, digests)
        self.dispatch(batch, most_bytes)
        return batch.last

    def dispatch(self, batch: AtomicBatch, most_bytes: int = 1 << 40) -> None:
        """Send a batch under a new name, once a lane is free; if it is too large, its first rows."""
        lanes, subjects = self.markers.options.in_flight, self.markers.subjects
        content = bytearray()
        batch.batch_id, batch.failure = new_id(), None
        if batch.messages is not None:
            rows = batch.messages.rows
            batch.last, content = encode_rows(rows, batch.first, batch.last, batch.batch_id, most_bytes=most_bytes)
        while len(self._under_way) >= lanes or self.must_wait(batch, self._under_way):
            self._settle()
        batch.lane = min(set(range(lanes)) - {other.lane for other in self._under_way})
        self._under_way.append(batch)
        headers = {
            EXPECTED: str(self._opening + batch.lane),
            EXPECTED_SUBJECT: subjects.of_task(self._epoch.sequence, self.partition, batch.lane),
            **self.markers.keep,
        }
        journal = subjects.of_task(self._epoch.sequence, self.partition, batch.batch_id)
        try:
            batch.ticket = self.bulk.post(content, batch.batch_id, batch.size + 1, journal, headers, batch.journal())
        except (LinkError, DeadlineError) as error:
            batch.failure = error  # whoever waits for it finds out what became of it

    def _settle(self) -> None:
        """Wait for the oldest batch under way."""
        batch = self._under_way[0]
        try:
            if batch.failure is not None:
                raise batch.failure
            target, deadline = self.markers.target, Deadline(2 * self.bulk.options.request_timeout)
            self.bulk.settle(target.stream, batch.ticket, deadline, target.domain)
        except JetStreamError as error:
            if error.err_code == DUPLICATE_IN_BATCH:
                self._under_way.popleft()
                self._divide(batch)
                return
            if error.err_code in CONDITION_FAILED:
                # Our own opening may have come late, after a doubt; anybody else's means that we are out.
                self.markers.check_lane(self._epoch, self.partition, self.task, batch.lane)
                if self.resolve(batch):
                    return
            elif not may_ask_again(error):
                raise self.markers.refusals.not_stored(error) from None
            self._doubt(error)
        except (LinkError, DeadlineError) as error:
            self._doubt(error)
        else:
            self._under_way.popleft()
            self.outcome.stored += batch.rows
            self._patience = Deadline(self.markers.options.patience)

    def _divide(self, batch: AtomicBatch) -> None:
        """Store a batch that holds a known message id in two halves, or note a single row as stored before."""
        if batch.rows == 1:
            self.outcome.duplicates += 1
            self._send(None, batch.first, batch.last, batch.digests)
            return
        middle = (batch.first + batch.last) // 2
        self._send(batch.messages, batch.first, middle, batch.digests)
        self._send(batch.messages, middle, batch.last, batch.digests)

    def _doubt(self, error: PenstockError) -> None:
        """Find out what became of everything under way, and send again what was not stored."""
        if not (may_ask_again(error) or isinstance(error, JetStreamError)):
            raise error
        if self._patience.left == 0:
            self.markers.trouble = error
            raise self.markers.late(f"store rows of partition {self.partition}") from error
        self.bulk.drop_after(error)
        stored = {journal.batch_id for journal in self._open(again=True)}
        waiting, self._under_way = self._under_way, deque()
        for batch in waiting:
            if batch.batch_id in stored:
                self.outcome.stored += batch.rows
            else:
                self.dispatch(batch)

    def _open(self, *, again: bool = False) -> list[Journal]:
        """Take our lanes, and give what earlier attempts stored in them."""
        self._opening, journals = self.markers.open(self._epoch, self.partition, self.task, again=again)
        return journals

    # -- replay ---------------------------------------------------------------------------------------------------

    def _claim(self, epoch: Head, digests: bytes) -> list[bytes]:
        """Take those rows for ours that earlier runs stored and nobody else claimed; give their digests."""
        held: list[Journal] | None = None
        deadline = Deadline(self.markers.options.patience)
        while True:
            claims, expected = self.markers.claims(epoch)
            if held is None:
                held = _hold(self.markers.journals(epoch))
            journals = self.markers.journals(epoch) if held is None else iter(held)
            mine = claims.get(self.partition)
            if mine is not None:
                # An earlier attempt at this partition claimed before it failed.
                return [
                    from_bytes(journal.digests)[np.array(mine[journal.sequence], dtype=bool)].tobytes()
                    for journal in journals
                    if journal.sequence in mine
                ]
            taken, found = _choose(journals, Bag([digests]), list(claims.values()))
            if self.markers.claim(epoch, self.partition, taken, expected):
                return found
            if deadline.left == 0:
                raise self.markers.late(f"claim the rows of partition {self.partition}")


# -- on the driver --------------------------------------------------------------------------------------------------


def commit(
    markers: QueryMarkers, outcomes: Sequence[TaskOutcome], before_done: Callable[[Head], None] | None = None
) -> None:
    """Say that a batch is done, when every task of it is through; MarkerError if its rows contradict the stream.

    `before_done` is what must have been done by then, with the head under which the rows were stored.
    """
    if before_done is None and not any(outcome.epoch for outcome in outcomes):
        messages = joined([outcome.handed for outcome in outcomes if outcome.handed is not None])
        if _store_whole(markers, messages):
            return
        if len(messages):
            markers = markers.replacing()
            outcomes = [Task(markers, 0, LAST_TASK).write([messages])]
    outcomes = [_stored_now(markers, outcome) for outcome in outcomes]
    epochs = {outcome.epoch for outcome in outcomes if outcome.epoch is not None}
    if len(epochs) > 1:
        now = markers.head()
        raise markers.gone(next(epoch for epoch in epochs if epoch != now))
    # A batch without a single row must be known as done, too, or the next one would seem to follow on nothing.
    epoch = epochs.pop() if epochs else markers.join()
    rows = sum((outcome.tally for outcome in outcomes), Tally())
    if epoch.writable:
        _compare(markers, epoch, rows)
        _check_keys(markers, outcomes)
        if before_done is not None:
            before_done(epoch)
        markers.finish(epoch, rows)
    else:
        _recognize(markers, epoch, rows)
    log.info(
        "Batch %d into %s: %d rows stored, %d were there.",
        markers.batch,
        markers.target.stream,
        sum(outcome.stored for outcome in outcomes),
        sum(outcome.found for outcome in outcomes),
    )


def _store_whole(markers: QueryMarkers, messages: Messages) -> bool:
    """Store a batch of which no task stored anything at once; False if it has to be done step by step."""
    if not fits_whole(messages, markers.options, markers.target):
        return False
    rows = markers.store_whole(messages)
    if rows is None:
        return False
    log.info("Batch %d into %s: %d rows stored at once.", markers.batch, markers.target.stream, rows.rows)
    return True


def _stored_now(markers: QueryMarkers, outcome: TaskOutcome) -> TaskOutcome:
    """Store what a task handed over, as the task would have, and give what that came to."""
    if outcome.handed is None:
        return outcome
    # Whatever attempt at this partition Spark started after the one whose rows these are: these count.
    return Task(markers, outcome.handed.partition, LAST_TASK).write(outcome.handed.messages())


def _check_keys(markers: QueryMarkers, outcomes: Sequence[TaskOutcome]) -> None:
    """Refuse a batch in which two partitions wrote one key: nobody knows which of them was the last."""
    repeats = repeated([outcome.keys for outcome in outcomes if outcome.keys])
    if not repeats:
        return
    error = markers.refusals.repeated(repeats)
    if markers.options.on_repeated_keys != "any":
        raise error
    log.warning("%s That is accepted.", error.what)


def _compare(markers: QueryMarkers, epoch: Head, rows: Tally) -> None:
    """Find rows that earlier runs stored and this one, having computed the batch again, does not have."""
    if not epoch.replay:
        return
    stored = sum(len(journal.digests) for journal in markers.journals(epoch)) // DIGEST_SIZE
    claims, _ = markers.claims(epoch)
    lacks = stored - sum(sum(mask) for taken in claims.values() for mask in taken.values())
    if not lacks:
        return
    error = markers.refusals.lacking(lacks, stored)
    if markers.options.on_changed_rows != "keep":
        markers.note_change(epoch, rows, lacks)
        raise error
    log.warning("%s They stay.", error.what)


def _recognize(markers: QueryMarkers, head: Head, rows: Tally) -> None:
    """See whether the rows are those of a batch that is done, of which nothing was written now."""
    if head.state == "changed":
        log.warning("%s All rows stay.", markers.refusals.changed(head).what)
        markers.finish(head, head.tally or rows)
    elif head.tally is None:
        log.warning("An older Penstock wrote this and did not note its rows: they are taken for the same.")
    elif head.tally == rows:
        log.warning("All rows were stored in %s at %s: nothing was added.", markers.target.stream, head.time)
    else:
        error = markers.refusals.unequal(head, rows)
        if markers.options.on_changed_rows != "keep":
            raise error
        log.warning("%s What is stored stays.", error.what)


# -- journals and rows ------------------------------------------------------------------------------------------------


def in_full_batches(
    pieces: Iterable[tuple[Messages, bytes]], most: int, most_bytes: int
) -> Iterator[tuple[Messages, bytes]]:
    """Give rows and their digests, in the same order, in pieces of `most` rows or a multiple of it, but for the last.

    A batch costs the server much, whatever its size. So what is left of a piece waits for the next one; but not if it
    has `most_bytes` together with what would fill it up, for these fill a batch as well.
    """
    held, marks = Messages.joined([]), b""
    for messages, digests in pieces:
        first = 0
        if len(held):
            first = min(most - len(held), len(messages))
            head = messages.slice(0, first)
            if held.volume + head.volume < most_bytes:
                held, marks = Messages.joined([held, head]), marks + digests[: first * DIGEST_SIZE]
                if len(held) < most:
                    continue
            else:
                first = 0
            yield held, marks
        last = len(messages) - (len(messages) - first) % most
        if last > first:
            yield messages.slice(first, last), digests[first * DIGEST_SIZE : last * DIGEST_SIZE]
        held, marks = messages.slice(last, len(messages)), digests[last * DIGEST_SIZE :]
    if len(held):
        yield held, marks


def _choose(journals: Iterable[Journal], own: Bag, claims: list[Taken]) -> tuple[Taken, list[bytes]]:
    """Choose, of what earlier runs stored, the rows that are ours and not claimed."""
    taken: Taken = {}
    found = []
    for journal in journals:
        digests = from_bytes(journal.digests)
        free = np.ones(len(digests), dtype=bool)
        for claim in claims:
            if journal.sequence in claim:
                free &= ~np.array(claim[journal.sequence], dtype=bool)
        places = np.flatnonzero(free)
        places = places[own.take(digests[places])]
        if len(places):
            mask = np.zeros(len(digests), dtype=bool)
            mask[places] = True
            taken[journal.sequence] = mask.tolist()
            found.append(digests[places].tobytes())
    return taken, found


def _hold(journals: Iterator[Journal]) -> list[Journal] | None:
    """Keep journals in memory; None if they are too many for that."""
    held, size = [], 0
    for journal in journals:
        held.append(journal)
        size += len(journal.digests)
        if size > HELD_BYTES:
            return None
    return held


def _spool(spool: IO[bytes], rows: Iterable[Messages]) -> tuple[bytes, type[Messages]]:
    """Put all rows on disk and give their digests: what is theirs must be known before one is stored."""
    digests, kind = bytearray(), Messages
    for messages in rows:
        kind = type(messages)
        pack(spool, messages)
        digests += messages.digests()
    return bytes(digests), kind


def _unspool(spool: IO[bytes], kind: type[Messages]) -> Iterator[Messages]:
    end = spool.tell()
    spool.seek(0)
    return unpack(spool, end, kind)
