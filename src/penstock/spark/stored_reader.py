"""Batch reads of what no server holds: a backup, or the store of a server that does not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import DataLossError, InputError
from penstock.spark.formats import check_columns, shaping
from penstock.spark.markers import MARKER_ROOT
from penstock.spark.partition import pick, without_markers
from penstock.spark.positions import Position
from penstock.spark.source_options import SourceOptions
from penstock.store.backups import Part
from penstock.store.history import History, open_backup, open_store
from penstock.store.s2 import Broken
from penstock.store.stored import Segment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StoredPartition", "StoredReader", "cut_history", "open_history", "read_stored"]


@dataclass
class StoredPartition(InputPartition):
    """One task: parts of a stream's history, and the sequences `[start, end)` of them."""

    stream: str
    parts: tuple[Segment | Part, ...]
    start: int
    end: int
    hides: bool
    """Whether the sink's markers are to be picked out."""


class StoredReader(DataSourceReader):
    """Reads what a backup or a store holds between `start` and `end`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        self.wanted = schema

    def partitions(self) -> Sequence[InputPartition]:
        options, history = self.options, open_history(self.options)
        for damage in history.damage:
            if not damage.torn:
                options.lose(_damaged(history, f"{damage.block}: {damage.what}"))
        now = datetime.now(UTC)
        start = _place(history, options.position("start", history.name, "all"), now)
        end = _place(history, options.position("end", history.name, "new"), now)
        return list(cut_history(history, start, min(end, history.next), options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StoredPartition):  # Spark has a stand-in where a plan has no tasks
            yield from read_stored(partition, self.options, self.wanted)


def open_history(options: SourceOptions) -> History:
    """Open what the options name."""
    if options.backup is not None:
        return open_backup(options.backup, options.stream)
    if options.store is None:
        raise InputError("No backup and no store is named.", remedy="Give the option backup or store.")
    return open_store(options.store, options.stream)


def _place(history: History, position: Position, now: datetime) -> int:
    if (time := position.at(now)) is not None:
        return history.at_time(time) or history.next
    if position.kind == "all":
        return history.first
    if position.kind == "last":
        return history.last
    return history.next if position.sequence is None else position.sequence


def cut_history(history: History, start: int, end: int, options: SourceOptions) -> Iterator[StoredPartition]:
    """Cut a range into tasks: parts together up to the size of one, a part that has too many messages in several."""
    wanted = [part for part in history.parts if part.last >= start and part.first < end]
    total = sum(part.size for part in wanted)
    size = min(options.max_bytes_per_partition, max(1, total // (options.min_partitions or 1)))
    hides = not any(subject.startswith(MARKER_ROOT) for subject in options.subjects or ())
    most = options.max_records_per_partition
    gathered: list[Segment | Part] = []
    for part in wanted:
        if most is not None:
            for first in range(max(start, part.first), min(end, part.last + 1), most):
                yield StoredPartition(history.name, (part,), first, min(first + most, end, part.last + 1), hides)
            continue
        if gathered and sum(each.size for each in gathered) + part.size > size:
            yield StoredPartition(history.name, tuple(gathered), start, end, hides)
            gathered = []
        gathered.append(part)
    if gathered:
        yield StoredPartition(history.name, tuple(gathered), start, end, hides)


def read_stored(partition: StoredPartition, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read a task's parts: exactly the messages that are alive in them, in order, once each."""
    shaped = shaping(options, schema)
    for part in partition.parts:
        try:
            for batch in part.batches(
                partition.stream,
                partition.start,
                partition.end,
                headers="headers" in schema.names,
                escape=options.invalid_text == "escape",
                max_rows=options.batch_rows,
            ):
                if options.subjects:
                    batch = pick(batch, options.subjects)
                if partition.hides:
                    batch = without_markers(batch)
                yield shaped(batch)
        except DataLossError as error:
            options.lose(error)
        except Broken as error:
            options.lose(_lost(partition, part, str(error)))


def _lost(partition: StoredPartition, part: Segment | Part, what: str) -> DataLossError:
    return DataLossError(
        f"Messages {part.first} to {part.last} of the stream {partition.stream} cannot be read: {what}.",
        remedy="Read another copy, or set failOnDataLoss to false to go on without them.",
        stream=partition.stream,
        start=part.first,
        end=part.last + 1,
        first=part.first,
        last=part.last,
    )


def _damaged(history: History, what: str) -> DataLossError:
    return DataLossError(
        f"Some messages of the stream {history.name} in {history.source} cannot be read: {what}.",
        remedy="Read another copy, or set failOnDataLoss to false to go on without them.",
        stream=history.name,
        start=history.first,
        end=history.next,
        first=history.first,
        last=history.last,
    )
