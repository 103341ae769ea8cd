"""A stream that is read from its past and then from the server: each sequence from one of the two.

Which one, the sequence alone says: what the past speaks of comes from there, also if the server holds it, too; all that
is before it or behind it comes from the server. So a replay is the same rows, and nothing needs to be kept in offsets:
they are those of a query without a past, and a query that is through may go on without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from penstock.errors import DataLossError, InputError
from penstock.spark.archive_files import StreamArchive
from penstock.spark.batch_reader import NatsReader
from penstock.spark.connections import TaskConnection
from penstock.spark.offsets import Mark, Range
from penstock.spark.partition import PartitionReader, pick
from penstock.spark.past import Past, PastPart, check_same, open_past
from penstock.spark.source_options import SourceOptions
from penstock.spark.stored_reader import Stamps, StoredPartition, cut_past, damaged, read_stored, stamps_of
from penstock.spark.stream_reader import NatsStreamReader
from penstock.spark.survey import Survey
from penstock.store.s2 import Broken
from penstock.wire.subjects import covers

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BackfillReader", "BackfillStreamReader", "Backfilled"]


class Backfilled(Survey):
    """A stream, and the past that goes before it."""

    def __init__(
        self,
        bulk: TaskConnection,
        name: str,
        subjects: tuple[str, ...] | None,
        mark: Mark | None,
        past: Past,
        stamps: Stamps,
    ) -> None:
        super().__init__(bulk, name, subjects, mark)
        self.past = past
        self.stamps = stamps
        size, count = sum(part.size for part in past.parts), sum(part.messages for part in past.parts)
        self.mean_size = max(self.mean_size, size // count if count else 0)
        self.aside = f" {past.source} holds [{past.first}, {past.next})."

    def is_past(self, place: int) -> bool:
        """Tell whether a sequence comes from the past."""
        return self.past.first <= place < self.past.next

    def beginning(self, place: int) -> int:
        if place >= self.past.next:
            return self.first
        return self.past.first if self.is_past(place) else min(self.first, self.past.first)

    def stretch(self, place: int) -> int:
        # A micro-batch ends where the way of reading changes: what is behind is looked at by itself, for losses.
        ends = (self.past.first, self.past.next, self.next)
        return next((end for end in ends if end > place), self.next)

    def pieces(self, wanted: Range) -> Iterator[Range]:
        start = wanted.start
        for border in (self.past.first, self.past.next):
            if start < border < wanted.end:
                yield Range(wanted.stream, start, border)
                start = border
        yield Range(wanted.stream, start, wanted.end)

    def expired(self, place: int) -> int:
        return place if self.is_past(place) else super().expired(place)

    def following(self, place: int) -> int:
        # Where the past has something for us is not known before it is read.
        return place if self.is_past(place) else super().following(place)

    def at_time(self, time: datetime) -> int | None:
        live = super().at_time(time)
        if live is not None and live < self.past.first:
            return live
        found = self.past.at_time(time)
        return found if found is not None else None if live is None else max(live, self.past.next)

    def _last(self) -> int:
        found = super()._last()
        if self.subjects is None or found < self.next:
            return found
        for part in reversed(self.past.parts):
            latest = None
            for batch in part.batches(self.name, headers=False, escape=True):
                fitting = pick(batch, self.subjects)
                latest = fitting.column("sequence")[-1].as_py() if fitting.num_rows else latest
            if latest is not None:
                return int(latest)
        return found

    def gap(self) -> Range | None:
        """Give the sequences between past and stream that neither holds; None if there are none."""
        border = self.past.next
        return Range(self.name, border, self.first) if self.lacks(border) else None

    # -- counting ------------------------------------------------------------------------------------------------------

    def count(self, start: int, end: int) -> int:
        if not self.is_past(start):
            return super().count(start, end)
        # Not less than there are: a limit is kept, and a micro-batch may have less.
        return sum(
            min(part.messages, min(part.last + 1, end) - max(part.first, start)) for part in self._parts(start, end)
        )

    def seek(self, start: int, end: int, count: int, *, exact: bool = False) -> int:
        if not self.is_past(start):
            return super().seek(start, end, count, exact=exact)
        left = count
        for part in self._parts(start, end):
            low, high = max(start, part.first), min(part.last + 1, end)
            if min(part.messages, high - low) <= left:
                left -= min(part.messages, high - low)
                continue
            places = self._places(part, low, high)
            if len(places) > left:
                return places[left]
            left -= len(places)
        return end

    def seek_bytes(self, start: int, end: int, volume: int) -> int:
        if not self.is_past(start):
            return super().seek_bytes(start, end, volume)
        left = volume
        for part in self._parts(start, end):
            low, high = max(start, part.first), min(part.last + 1, end)
            share = part.size * (high - low) // (part.last + 1 - part.first)
            if share > left:
                return max(start + 1, min(high, low + (high - low) * left // share))
            left -= share
        return end

    def _parts(self, start: int, end: int) -> Iterator[PastPart]:
        return (part for part in self.past.parts if part.last >= start and part.first < end)

    def _places(self, part: PastPart, start: int, end: int) -> Sequence[int]:
        """Give the sequences of a part that messages have."""
        if part.messages == part.last + 1 - part.first:
            return range(start, end)
        try:
            batches = part.batches(self.name, start, end, headers=False, escape=True)
            return [place for batch in batches for place in batch.column("sequence").to_pylist()]
        except (Broken, DataLossError):  # told when it is read
            return range(start, end)

    # -- cutting -------------------------------------------------------------------------------------------------------

    def tasks(self, wanted: Range, options: SourceOptions) -> Iterator[InputPartition]:
        if not self.is_past(wanted.start):
            yield from super().tasks(wanted, options)
            return
        for start, end in self.past.lost if isinstance(self.past, StreamArchive) else ():
            if start < wanted.end and end > wanted.start:
                options.lose(_lost_before(self.past, start, end))
        yield from cut_past(self.past, self.stamps, wanted.start, wanted.end, options, self.subjects)


def _lost_before(past: Past, start: int, end: int) -> DataLossError:
    return DataLossError(
        f"The messages [{start}, {end}) of the stream {past.name} are not in {past.source}: they were gone before they "
        "were archived.",
        remedy="Begin behind them, or set failOnDataLoss to false to go on without them.",
        stream=past.name,
        start=start,
        end=end,
    )


class _Backfilling(PartitionReader):
    """What reading a batch and reading a stream share, if there is a past."""

    past: Past | None = None
    stamps: Stamps = MappingProxyType({})
    same: str | None = None
    """When the stream was made that the past was found to be of."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StoredPartition):
            yield from read_stored(partition, self.options, self.wanted)
        else:
            yield from super().read(partition)

    def __getstate__(self) -> dict[str, Any]:
        # What is known of the past stays on the driver: each task is told what it reads.
        return {name: value for name, value in self.__dict__.items() if name not in ("past", "stamps")}

    def _open(self) -> Past:
        if self.past is None:
            self.past = _opened(self.options)
            self.stamps = stamps_of(self.past)
        return self.past

    def _check(self, found: Backfilled) -> None:
        """Refuse a past that is not the stream's."""
        if self.same != found.created or found.last < found.past.last:
            check_same(found.past, found)
            self.same = found.created


def _opened(options: SourceOptions) -> Past:
    past = open_past(str(options.past), options.stream)
    if options.archive is not None and not isinstance(past, StreamArchive):
        raise InputError(
            f"{options.archive} is not an archive.",
            remedy="Name a folder that `penstock stream archive` keeps; a backup or a store goes into backfill.",
        )
    only = past.config.get("archived")
    if only is not None and not all(any(covers(item, own) for item in only) for own in options.subjects or (">",)):
        raise InputError(
            f"The archive {past.source} holds only {', '.join(only)}, and this query reads more.",
            remedy=f'Read no other subjects: .option("subjects", "{",".join(only)}").',
        )
    for damage in past.damage:
        if not damage.torn:
            options.lose(damaged(past, f"{damage.block}: {damage.what}"))
    return past


class BackfillReader(_Backfilling, NatsReader):
    """Reads what past and stream hold between `start` and `end`, as one."""

    def survey(self, bulk: TaskConnection, name: str) -> Survey:
        found = Backfilled(bulk, name, self.pushed.subjects, None, self._open(), self.stamps)
        self._check(found)
        if isinstance(found.past, StreamArchive):
            found.past = found.past.between(self.pushed.since, self.pushed.until)
        return found


class BackfillStreamReader(_Backfilling, NatsStreamReader):
    """Reads the past and then the stream as micro-batches: each sequence in exactly one of them."""

    def _survey(self, name: str, mark: Mark | None) -> Survey | None:
        self._open()
        found = super()._survey(name, mark)
        if isinstance(found, Backfilled) and isinstance(found.past, StreamArchive) and found.lacks(found.past.next):
            self.past = None  # an archive grows: it may have by now what the stream has dropped since it was opened
            found = super()._survey(name, mark)
        if isinstance(found, Backfilled):
            self._check(found)
            self._check_gap(found, mark)
        return found

    def _check_gap(self, found: Backfilled, mark: Mark | None) -> None:
        """Tell of a gap before hours are spent on what comes before it."""
        if not self.options.fail_on_data_loss or (gap := found.gap()) is None:
            return
        known = mark is not None and mark.created == found.created
        place = mark.next if mark is not None and known else found.start_place(self.options, datetime.now(UTC))
        if place <= gap.start:
            raise found.loss(gap.start, gap.end)

    def _surveyed(self, name: str, mark: Mark | None) -> Survey:
        return Backfilled(self._connected(), name, self.options.subjects, mark, self._open(), self.stamps)
