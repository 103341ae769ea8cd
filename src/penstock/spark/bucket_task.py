"""One task of an exactly-once write whose rows have keys: of the rows of a key, the last one must be stored last.

What differs from rows of a stream, where each only has to be there once:

- batches under way have no key in common, so that one which must be sent again cannot come after a later row of its
  key; a purge, or a row that expects a revision, is the first of its key in a batch, because NATS wants it so;
- an attempt that goes on from an earlier one has to find of each key's rows the first ones, in their order: it would
  bring an old value back otherwise, and is refused;
- a task tells its keys to the driver (8 bytes each), which refuses a key that two partitions wrote.

A row may expect a revision of its key (`revisionColumn`). A batch in which one does not have it is refused whole by
NATS; the task then looks for the rows that do not match, says so of them, and stores the others. Such a row is noted as
if it were stored, so that a replay does not judge it again, by a revision that the batch itself has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.buckets.key_wire import PUT, key_of, operation_of
from penstock.errors import RowError
from penstock.spark.bucket_rows import expected_revision
from penstock.spark.digests import disordered, from_bytes, key_hashes
from penstock.spark.exactly_once import AtomicBatch, Task, TaskOutcome
from penstock.spark.markers import DIGEST_SIZE
from penstock.spark.messages import Messages
from penstock.spark.query_markers import QueryMarkers
from penstock.wire.arrow import HEADERS
from penstock.wire.jetstream.direct import Found
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE, ROLLUP
from penstock.wire.protocol import decode_headers

__all__ = ["KeyTask"]

Bury = Callable[[Messages, list[str]], None]


class KeyTask(Task):
    """Writes the rows of one partition into a bucket, for one attempt.

    `bury` stores rows that do not match, each with the reason, as dead letters; without it they stop the task.
    """

    def __init__(self, markers: QueryMarkers, partition: int, task: int, bury: Bury | None = None) -> None:
        super().__init__(markers, partition, task)
        self._bury = bury
        self._hashes: list[Any] = []

    def write(self, rows: Iterable[Messages]) -> TaskOutcome:
        """Store every row that no attempt stored before, and say which keys they have."""
        outcome = super().write(self._noting(rows))
        if self._hashes:
            outcome.keys = np.unique(np.concatenate(self._hashes)).tobytes()
        return outcome

    def _noting(self, rows: Iterable[Messages]) -> Iterator[Messages]:
        for messages in rows:
            if len(messages):
                self._hashes.append(key_hashes(messages.subjects))
            yield messages

    def check_stored(self, own: bytes, stored: list[bytes]) -> None:
        """Refuse to go on if the rows of a key that are stored are not its first ones, in their order."""
        if self.markers.options.on_repeated_keys == "any":
            return
        count = disordered(np.concatenate(self._hashes), from_bytes(own), from_bytes(b"".join(stored)))
        if count:
            raise self.markers.refusals.disordered(self.partition, count)

    # -- batches of rows ------------------------------------------------------------------------------------------

    def must_wait(self, batch: AtomicBatch, under_way: Sequence[AtomicBatch]) -> bool:
        """Tell whether a row of one of the keys is under way."""
        own = _subjects(batch)
        return any(not own.isdisjoint(_subjects(other)) for other in under_way)

    def _send(self, messages: Messages | None, first: int, last: int, digests: bytes, most_bytes: int = 1 << 40) -> int:
        if messages is not None:
            last = _cut_at_repeat(messages, first, last)
        return super()._send(messages, first, last, digests, most_bytes)

    # -- revisions ------------------------------------------------------------------------------------------------

    def resolve(self, batch: AtomicBatch) -> bool:
        """Store the rows of a batch whose keys have the revisions that they expect, and say of the others that not."""
        if batch.messages is None or self.markers.options.revision_column is None:
            return False
        count = batch.last - batch.first
        messages = batch.messages.slice(batch.first, batch.last)
        digests = from_bytes(batch.digests)[batch.first : batch.last]
        headers = messages.headers.to_pylist() if messages.headers is not None else [None] * count
        fits, reasons, moved = np.ones(count, dtype=bool), [], False
        for row, (subject, own) in enumerate(zip(messages.subjects.to_pylist(), headers, strict=True)):
            expected = expected_revision(own)
            if expected is None:
                continue
            found = self.markers.last(subject)
            now = 0 if found is None else found.sequence
            if now == expected:
                continue
            if found is not None and expected == 0 and operation_of(_headers(found)) != PUT:
                headers[row] = [(name, [str(now)] if _expects(name) else values) for name, values in own]
                moved = True
                continue
            fits[row] = False
            key = key_of(self.markers.options.bucket or "", subject)
            reasons.append(f"expects revision {expected} of {key}, which has {now or 'none'}")
        if fits.all() and not moved:
            return False  # what did not match is over, or it was the lane
        if not fits.all():
            self._refuse(messages.filter(~fits), reasons)
        self._under_way.popleft()
        if moved:
            messages = replace(messages, headers=pa.array(headers, HEADERS))
        if not fits.all():
            self.outcome.refused += int((~fits).sum())
            self._journal(digests[~fits].tobytes())
        if fits.any():
            self._store_fitting(messages.filter(fits), digests[fits].tobytes())
        return True

    def _store_fitting(self, messages: Messages, digests: bytes) -> None:
        first = 0
        while first < len(messages):
            first = self._send(messages, first, len(messages), digests)

    def _journal(self, digests: bytes) -> None:
        """Note rows as dealt with that are not stored."""
        self._send(None, 0, len(digests) // DIGEST_SIZE, digests)

    def _refuse(self, messages: Messages, reasons: list[str]) -> None:
        if self._bury is not None:
            self._bury(messages, reasons)
            return
        column = self.markers.options.revision_column or ""
        more = f", and {len(reasons) - 1} more rows are like that" if len(reasons) > 1 else ""
        raise RowError(
            f"A row cannot be written: {column} {reasons[0]}{more}. Another writer changed the key.",
            remedy="Compute such rows from the newest value, or send them elsewhere with the option deadLetterSubject.",
            row=0,
            column=column,
        )


def _headers(found: Found) -> Mapping[str, Sequence[str]]:
    return decode_headers(found.header)[2] if found.header else {}


def _expects(name: str) -> bool:
    return name == EXPECTED_LAST_SUBJECT_SEQUENCE


def _subjects(batch: AtomicBatch) -> frozenset[str]:
    if batch.messages is None:
        return frozenset()
    return frozenset(batch.messages.subjects.slice(batch.first, batch.last - batch.first).to_pylist())


def _cut_at_repeat(messages: Messages, first: int, last: int) -> int:
    """Give the row behind the last that may be in a batch: one that must be the first of its key begins another."""
    if messages.headers is None:
        return last
    seen: set[str] = set()
    subjects = messages.subjects.slice(first, last - first).to_pylist()
    headers = messages.headers.slice(first, last - first).to_pylist()
    for row, (subject, own) in enumerate(zip(subjects, headers, strict=True)):
        if subject in seen and any(name == ROLLUP or _expects(name) for name, _ in own or ()):
            return first + row
        seen.add(subject)
    return last
