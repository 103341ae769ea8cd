"""One task of an exactly-once write: rows in, atomic batches out, each row once whatever was tried before.

A task takes the lanes of its partition and stores rows in atomic batches; the last message of each is a journal, fenced
by a lane: it is stored only if our opening is still the last message there. Several batches are under way, each on a
lane of its own, because a cluster refuses to check one subject for two at a time. Where the
outcome of one is in doubt, the task takes its lanes again, which locks out everything still under way, and reads in
them what was stored.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.errors import DeadlineError, JetStreamError, LinkError, MarkerError, PenstockError
from penstock.spark.digests import Bag, from_bytes
from penstock.spark.markers import DIGEST_SIZE, journal_body
from penstock.spark.messages import Messages
from penstock.spark.query_markers import Epoch, Journal, QueryMarkers, Slot, Taken
from penstock.wire.jetstream.atomic import encode_rows, new_id
from penstock.wire.jetstream.names import (
    CONDITION_FAILED,
    DUPLICATE_IN_BATCH,
    EXPECTED_LAST_SUBJECT_SEQUENCE,
    EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    TTL,
)
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.patience import Deadline

__all__ = ["Task", "TaskOutcome"]

HELD_BYTES = 64 * 1024 * 1024  # of journals that a replaying task keeps instead of reading them twice


@dataclass(frozen=True)
class TaskOutcome:
    """What a task did: rows it stored, rows that were stored before, and rows whose message id was known."""

    epoch: Epoch | None
    stored: int = 0
    found: int = 0
    duplicates: int = 0


@dataclass
class _AtomicBatch:
    """Rows that are stored together, and where they are on their way."""

    messages: Messages | None
    first: int
    last: int
    digests: bytes
    batch_id: str = ""
    ticket: str = ""
    lane: int = -1
    failure: PenstockError | None = None

    @property
    def rows(self) -> int:
        return self.last - self.first


@dataclass
class _Count:
    stored: int = 0
    found: int = 0
    duplicates: int = 0


class Task:
    """Writes the rows of one partition, for one attempt."""

    def __init__(
        self,
        markers: QueryMarkers,
        *,
        partition: int,
        task: int,
        rows: int = 999,
        size: int = 8 * 2**20,
        lanes: int = 4,
        limit: int = 2**20,
        keep: bool = False,
    ) -> None:
        self.markers = markers
        self.bulk = markers.bulk
        self.partition = partition
        self.task = task
        self._rows = max(1, min(rows, (limit - 512) // DIGEST_SIZE))
        self._size = size
        self._lanes = lanes
        self._keep = {TTL: "never"} if keep else {}
        self._count = _Count()
        self._under_way: deque[_AtomicBatch] = deque()
        self._epoch: Epoch | None = None
        self._slot: Slot | None = None
        self._patience = Deadline(markers.patience)

    def write(self, rows: Iterable[Messages]) -> TaskOutcome:
        """Store every row that no attempt stored before."""
        given = (messages for messages in rows if len(messages))
        first = next(given, None)
        if first is None:
            return TaskOutcome(None)
        self._epoch = epoch = self.markers.join()
        if epoch is None:
            found = len(first) + sum(len(messages) for messages in given)
            return TaskOutcome(None, found=found)
        if epoch.replay:
            with tempfile.TemporaryFile(prefix="penstock-replay-") as spool:
                digests = self._spool(spool, first, given)
                claimed = self._claim(epoch, digests)
                self._store(_unspool(spool), claimed)
        else:
            self._store(_chain(first, given), [])
        count = self._count
        return TaskOutcome(epoch, count.stored, count.found, count.duplicates)

    def _store(self, rows: Iterator[Messages], claimed: list[bytes]) -> None:
        self._slot = self._open()
        known = Bag([*claimed, *(journal.digests for journal in self._slot.journals)])
        for messages in rows:
            digests = messages.digests()
            if known.size:
                mine = ~known.take(from_bytes(digests))
                self._count.found += len(messages) - int(mine.sum())
                digests = from_bytes(digests)[mine].tobytes()
                messages = messages.filter(mine)
            self._cut(messages, digests)
        while self._under_way:
            self._settle()
        if known.size:
            raise MarkerError(
                f"Partition {self.partition} of batch {self.markers.batch} lacks {known.size} rows that an earlier "
                "attempt at it stored.",
                remedy="The query is not deterministic, or Spark computed the stage anew in another order; started "
                "again, the query compares the rows of all partitions.",
                stream=self.markers.subjects.stream,
                query=self.markers.subjects.query,
                batch=self.markers.batch,
            )

    # -- batches of rows ------------------------------------------------------------------------------------------

    def _cut(self, messages: Messages, digests: bytes) -> None:
        """Send rows in batches of about the same number, smaller ones where the rows are large."""
        total = len(messages)
        pieces = -(-total // self._rows)
        first = 0
        for piece in range(pieces):
            end = total * (piece + 1) // pieces
            while first < end:
                while len(self._under_way) >= self._lanes:
                    self._settle()
                batch_id = new_id()
                last, content = encode_rows(messages.rows, first, end, batch_id, most_bytes=self._size)
                part = digests[first * DIGEST_SIZE : last * DIGEST_SIZE]
                self._post(_AtomicBatch(messages, first, last, part, batch_id), content)
                first = last

    def _send(self, batch: _AtomicBatch) -> None:
        """Send a batch whose rows are known, under a name that no batch had before."""
        while len(self._under_way) >= self._lanes:
            self._settle()
        batch = replace(batch, batch_id=new_id())
        content = bytearray()
        if batch.messages is not None:
            _, content = encode_rows(batch.messages.rows, batch.first, batch.last, batch.batch_id)
        self._post(batch, content)

    def _post(self, batch: _AtomicBatch, content: bytearray) -> None:
        slot = self._slot
        assert slot is not None
        used = {other.lane for other in self._under_way}
        batch.lane = next(lane for lane in range(self._lanes) if lane not in used)
        self._under_way.append(batch)
        headers = {
            EXPECTED_LAST_SUBJECT_SEQUENCE: str(slot.sequences[batch.lane]),
            EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: slot.lanes[batch.lane],
            **self._keep,
        }
        body = journal_body(batch.batch_id, batch.digests)
        try:
            batch.ticket = self.bulk.post(
                content, batch.batch_id, batch.rows + 1, self._journal(batch.batch_id), headers, body
            )
        except (LinkError, DeadlineError) as error:
            batch.failure = error  # whoever waits for it finds out what became of it

    def _settle(self) -> None:
        """Wait for the oldest batch under way."""
        batch = self._under_way[0]
        slot = self._slot
        assert slot is not None
        try:
            if batch.failure is not None:
                raise batch.failure
            self.bulk.settle(self.markers.subjects.stream, batch.ticket, Deadline(2 * self.bulk.timeout))
        except JetStreamError as error:
            if error.err_code == DUPLICATE_IN_BATCH:
                self._under_way.popleft()
                self._divide(batch)
            elif error.err_code in CONDITION_FAILED:
                # Our own opening may have come late, after a doubt; anybody else's means that we are out.
                if self.markers.owner(slot.lanes[batch.lane]) != self.task:
                    assert self._epoch is not None
                    raise self.markers.taken(self._epoch, self.partition) from None
                self._doubt(error)
            elif may_ask_again(error):
                self._doubt(error)
            else:
                raise
        except (LinkError, DeadlineError) as error:
            self._doubt(error)
        else:
            self._under_way.popleft()
            self._count.stored += batch.rows
            self._patience = Deadline(self.markers.patience)

    def _divide(self, batch: _AtomicBatch) -> None:
        """Store a batch that holds a known message id in two halves, or note a single row as stored before."""
        if batch.rows == 1:
            self._count.duplicates += 1
            self._send(_AtomicBatch(None, 0, 0, batch.digests))
            return
        middle = (batch.first + batch.last) // 2
        cut = (middle - batch.first) * DIGEST_SIZE
        self._send(_AtomicBatch(batch.messages, batch.first, middle, batch.digests[:cut]))
        self._send(_AtomicBatch(batch.messages, middle, batch.last, batch.digests[cut:]))

    # -- doubt ----------------------------------------------------------------------------------------------------

    def _doubt(self, error: PenstockError) -> None:
        """Find out what became of the batches under way, and send again what was not stored."""
        if self._patience.left == 0 or not (may_ask_again(error) or isinstance(error, JetStreamError)):
            raise error
        self.markers.recover(error, self._patience)
        self._slot = self._open(again=True)
        stored = {journal.batch_id for journal in self._slot.journals}
        waiting, self._under_way = self._under_way, deque()
        for batch in waiting:
            if batch.batch_id in stored:
                self._count.stored += batch.rows
            else:
                self._send(_AtomicBatch(batch.messages, batch.first, batch.last, batch.digests))

    def _open(self, *, again: bool = False) -> Slot:
        assert self._epoch is not None
        return self.markers.open(self._epoch, self.partition, self.task, self._lanes, again=again)

    def _journal(self, batch_id: str) -> str:
        assert self._epoch is not None
        return self.markers.subjects.journal(self._epoch.sequence, self.partition, batch_id)

    # -- replay ---------------------------------------------------------------------------------------------------

    def _spool(self, spool: object, first: Messages, rows: Iterator[Messages]) -> bytes:
        """Put all rows on disk and give their digests: what is theirs must be known before one is stored."""
        digests = bytearray()
        writer = None
        for messages in _chain(first, rows):
            batch = messages.with_headers().to_batch()
            writer = writer or pa.ipc.new_stream(spool, batch.schema)
            writer.write_batch(batch)
            digests += messages.digests()
        assert writer is not None
        writer.close()
        return bytes(digests)

    def _claim(self, epoch: Epoch, digests: bytes) -> list[bytes]:
        """Take those rows for ours that earlier runs stored and nobody else claimed; give their digests."""
        held: list[Journal] | None = None
        deadline = Deadline(self.markers.patience)
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
                raise DeadlineError(
                    f"Could not claim the rows of partition {self.partition} within {self.markers.patience:g} s.",
                    remedy="Many tasks at once, or a cluster without a leader: raise the option patience.",
                    seconds=self.markers.patience,
                )


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
    """Keep journals in memory; None where they are too many for that."""
    held, size = [], 0
    for journal in journals:
        held.append(journal)
        size += len(journal.digests)
        if size > HELD_BYTES:
            return None
    return held


def _chain(first: Messages, rest: Iterator[Messages]) -> Iterator[Messages]:
    yield first
    yield from rest


def _unspool(spool: object) -> Iterator[Messages]:
    spool.seek(0)  # type: ignore[attr-defined]  # a binary file; tempfile has no type for both of its kinds
    with pa.ipc.open_stream(spool) as reader:
        for batch in reader:
            yield Messages.of_batch(batch)
