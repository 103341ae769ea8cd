"""Batch reads of what no server holds: a backup, or the store of a server that does not run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.errors import DataLossError, InputError
from penstock.spark.filters import PushFilters
from penstock.spark.formats import check_columns, needs_payloads, shaping
from penstock.spark.markers import MARKER_ROOT
from penstock.spark.partition import pick, without_markers
from penstock.spark.past import Past, PastPart
from penstock.spark.positions import Position
from penstock.spark.pushdown import Pushed, narrow, push
from penstock.spark.source_options import SourceOptions
from penstock.store.ahead import read_ahead
from penstock.store.history import open_backup, open_store
from penstock.store.opening import arrow_path
from penstock.store.reading import Wanted
from penstock.store.s2 import Broken
from penstock.store.stored import Segment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StoredPartition", "StoredReader", "cut_past", "damaged", "open_stored", "read_stored", "stamps_of"]

_WORTH = 4 << 20  # bytes: a task with fewer takes longer to start than to read

Stamp = tuple[str, int, int]  # path, size and time of a file
Stamps = Mapping[str, Stamp]


@dataclass
class StoredPartition(InputPartition):
    """One task: parts of a stream's past, and the sequences `[start, end)` of them."""

    stream: str
    parts: tuple[PastPart, ...]
    start: int
    end: int
    subjects: tuple[str, ...] | None
    hides: bool
    """Whether the sink's markers are to be picked out."""
    stamps: tuple[Stamp, ...] = ()
    """The files as they were when the past was opened."""


class StoredReader(DataSourceReader):
    """Reads what a backup or a store holds between `start` and `end`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        self.wanted = schema
        self.pushed = Pushed(subjects=options.subjects)
        self.pushFilters = PushFilters(options.push_down, self._take)  # type: ignore[method-assign]  # as it says

    def _take(self, filters: list[Filter]) -> None:
        given, found = self.options.subjects, push(Pushed(), filters)
        subjects = given if found.subjects is None else narrow(given, found.subjects)
        self.pushed = replace(found, subjects=subjects)

    def partitions(self) -> Sequence[InputPartition]:
        options, pushed, past = self.options, self.pushed, open_stored(self.options)
        stamps = stamps_of(past)
        for damage in past.damage:
            if not damage.torn:
                options.lose(damaged(past, f"{damage.block}: {damage.what}"))
        if pushed.subjects == () or (pushed.streams is not None and past.name not in pushed.streams):
            return []
        now = datetime.now(UTC)
        start = max(_place(past, options.position("start", past.name, "all"), now), pushed.start)
        end = min(_place(past, options.position("end", past.name, "new"), now), past.next)
        if pushed.end is not None:
            end = min(end, pushed.end)
        if pushed.since is not None:
            start = max(start, past.at_time(pushed.since) or past.next)
        return list(cut_past(past, stamps, start, end, options, pushed.subjects))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StoredPartition):  # Spark has a stand-in if a plan has no tasks
            yield from read_stored(partition, self.options, self.wanted)


def open_stored(options: SourceOptions) -> Past:
    """Open what the options name."""
    if options.backup is not None:
        return open_backup(options.backup, options.stream)
    if options.store is None:
        raise InputError("No backup and no store is named.", remedy="Give the option backup or store.")
    return open_store(options.store, options.stream)


def _place(past: Past, position: Position, now: datetime) -> int:
    if (time := position.at(now)) is not None:
        return past.at_time(time) or past.next
    if position.kind == "all":
        return past.first
    if position.kind == "last":
        return past.last
    return past.next if position.sequence is None else position.sequence


# -- cutting -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """A part, or some of it."""

    part: PastPart
    start: int
    end: int

    @property
    def weight(self) -> int:
        return self.part.size * (self.end - self.start) // max(1, self.part.last + 1 - self.part.first)

    def cut(self, at: int) -> tuple[_Piece, _Piece]:
        return replace(self, end=at), replace(self, start=at)


def cut_past(
    past: Past,
    stamps: Stamps,
    start: int,
    end: int,
    options: SourceOptions,
    subjects: tuple[str, ...] | None,
) -> Iterator[StoredPartition]:
    """Cut a range into tasks of about equal size: parts together, and a part in several if that is asked for.

    Whoever reads the second half of a part goes through the first one, too: so parts stay whole by themselves.
    """
    hides = not any(subject.startswith(MARKER_ROOT) for subject in subjects or ())
    pieces = [
        _Piece(part, max(start, part.first), min(end, part.last + 1))
        for part in past.parts
        if part.last >= start and part.first < end
    ]
    pieces = _enough(pieces, options.min_partitions or 1)
    if (most := options.max_records_per_partition) is not None:
        pieces = [
            replace(piece, start=first, end=min(first + most, piece.end))
            for piece in pieces
            for first in range(piece.start, piece.end, most)
        ]
    for gathered in _even(pieces, options):
        parts = tuple(dict.fromkeys(each.part for each in gathered))
        own = tuple(stamps[path] for path in dict.fromkeys(_path(part) or "" for part in parts) if path in stamps)
        yield StoredPartition(past.name, parts, gathered[0].start, gathered[-1].end, subjects, hides, own)


def _even(pieces: list[_Piece], options: SourceOptions) -> Iterator[list[_Piece]]:
    """Put neighbours together, into as many tasks as there must be, each with about the same weight."""
    largest, most = options.max_bytes_per_partition, options.max_records_per_partition
    left = sum(piece.weight for piece in pieces)
    # Nobody tells the plan how many cores there are: those of this machine are a guess, and right for `local[*]`.
    worth = min(os.cpu_count() or 1, left // _WORTH)
    tasks = min(len(pieces), max(options.min_partitions or 1, -(-left // largest), worth))
    gathered: list[_Piece] = []
    held = 0
    for place, piece in enumerate(pieces):
        full = held + piece.weight > largest or (tasks > 1 and held + piece.weight // 2 > left // tasks)
        crowded = most is not None and piece.end - (gathered or [piece])[0].start > most
        if gathered and (full or crowded or len(pieces) - place < tasks):
            yield gathered
            left, tasks = left - held, max(tasks - 1, 1)
            gathered, held = [], 0
        gathered.append(piece)
        held += piece.weight
    if gathered:
        yield gathered


def _enough(pieces: list[_Piece], least: int) -> list[_Piece]:
    """Cut the heaviest pieces in halves until there are enough."""
    while len(pieces) < least:
        heaviest = max(pieces, key=lambda each: (each.end - each.start > 1, each.weight), default=None)
        if heaviest is None or heaviest.end - heaviest.start < 2:
            break
        place = pieces.index(heaviest)
        pieces[place : place + 1] = heaviest.cut((heaviest.start + heaviest.end) // 2)
    return pieces


def _path(part: PastPart) -> str | None:
    """Give the file that a part is in; None for those of an archive, which may grow."""
    place = part.place if isinstance(part, Segment) else part
    return getattr(place, "path", None)


def stamps_of(past: Past) -> Stamps:
    """Note what the files of a past look like when it is opened: what is known of it is true for these."""
    return {path: _stamp(path) for path in dict.fromkeys(_path(part) for part in past.parts) if path is not None}


def _stamp(path: str) -> Stamp:
    """Give what changes if a file is replaced."""
    system, inner = arrow_path(path) if "://" in path else arrow_path(Path(path).absolute().as_uri())
    info = system.get_file_info(inner)
    return path, info.size or 0, info.mtime_ns or 0


# -- reading -----------------------------------------------------------------------------------------------------------


def read_stored(partition: StoredPartition, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read a task's parts: exactly the messages that are alive in them, in order, once each."""
    shaped = shaping(options, schema)
    for stamp in partition.stamps:
        if _stamp(stamp[0]) != stamp:
            raise InputError(
                f"{stamp[0]} was changed or removed while it was read.",
                remedy="Leave a backup as it is while a query reads it, and start the query again.",
            )
    for part, batches in _batches(partition, options, schema):
        try:
            for batch in batches:
                if partition.subjects:
                    batch = pick(batch, partition.subjects)
                if partition.hides:
                    batch = without_markers(batch)
                yield shaped(batch)
        except DataLossError as error:
            options.lose(error)
        except Broken as error:
            options.lose(_lost(partition, part, str(error)))


def _batches(
    partition: StoredPartition, options: SourceOptions, schema: StructType
) -> Iterator[tuple[PastPart, Iterator[pa.RecordBatch]]]:
    """Give the parts of a task with their batches; blocks and parts of backups are read ahead, one at a time."""
    from penstock.spark.archive_files import ArchivedFile

    how: dict[str, Any] = {
        "headers": "headers" in schema.names,
        "escape": options.invalid_text == "escape",
        "max_rows": options.batch_rows,
    }
    stored: list[Any] = [part for part in partition.parts if not isinstance(part, ArchivedFile)]
    if stored:  # a past is of one kind
        wanted = Wanted(partition.start, partition.end, **how)
        yield from read_ahead(stored, lambda: stored[0].reader(partition.stream, wanted).batches)
        return
    how["data"] = needs_payloads(schema, options)  # what need not be read, an archive can leave out
    for part in partition.parts:
        yield part, part.batches(partition.stream, partition.start, partition.end, **how)


def _lost(partition: StoredPartition, part: PastPart, what: str) -> DataLossError:
    return DataLossError(
        f"Messages {part.first} to {part.last} of the stream {partition.stream} cannot be read: {what}.",
        remedy="Read another copy, or set failOnDataLoss to false to go on without them.",
        stream=partition.stream,
        start=part.first,
        end=part.last + 1,
        first=part.first,
        last=part.last,
    )


def damaged(past: Past, what: str) -> DataLossError:
    """Say that some of a past cannot be read."""
    return DataLossError(
        f"Some messages of the stream {past.name} in {past.source} cannot be read: {what}.",
        remedy="Read another copy, or set failOnDataLoss to false to go on without them.",
        stream=past.name,
        start=past.first,
        end=past.next,
        first=past.first,
        last=past.last,
    )
