"""Batch reads: a range of each stream, narrowed by the filters that Spark pushes down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.offsets import Range
from penstock.spark.partition import PartitionReader
from penstock.spark.pushdown import Pushed, narrow, push
from penstock.spark.source_options import SourceOptions
from penstock.spark.survey import CLOCK_MARGIN, Survey, stream_names

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.bucket_reader import BucketReader

__all__ = ["NatsReader", "PushFilters", "scans_are_apart"]


class NatsReader(PartitionReader, DataSourceReader):
    """Reads what is there between `start` and `end` when the query is planned."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        super().__init__(connection, options, schema)
        self.pushed = Pushed(subjects=options.subjects)
        # Spark refuses a reader whose class implements pushFilters while its push-down is switched off, which it is
        # unless spark.sql.python.filterPushdown.enabled is set. It asks whose function `reader.pushFilters` is: this
        # object says "the base class's", so a plain read works either way, and it is called where push-down is on.
        self.pushFilters = PushFilters(self)  # type: ignore[method-assign]  # see above

    def partitions(self) -> Sequence[InputPartition]:
        with TaskConnection(self.connection, self.options.patience) as bulk:
            streams = [self.survey(bulk, name) for name in stream_names(bulk, self.options)]
            return [task for stream in streams for task in self._tasks(stream)]

    def survey(self, bulk: TaskConnection, name: str) -> Survey:
        """Ask for a stream's state."""
        return Survey(bulk, name, self.pushed.subjects)

    def _tasks(self, stream: Survey) -> Iterator[InputPartition]:
        pushed = self.pushed
        if stream.subjects == () or (pushed.streams is not None and stream.name not in pushed.streams):
            return
        now = datetime.now(UTC)
        start = max(stream.start_place(self.options, now), min(pushed.start, stream.next))
        end = stream.end_place(self.options, now)
        # Spark applies the filters itself, so a margin costs a few rows and saves the doubt.
        if pushed.since is not None:
            start = max(start, stream.at_time(pushed.since - CLOCK_MARGIN) or stream.next)
        if pushed.end is not None:
            end = min(end, pushed.end)
        if pushed.until is not None:
            end = min(end, stream.at_time(pushed.until + CLOCK_MARGIN) or stream.next)
        if start < end:
            for piece in stream.pieces(Range(stream.name, start, end)):
                stream.check_there(piece, self.options)
                yield from stream.tasks(piece, self.options)

    def take(self, filters: list[Filter]) -> None:
        """Read no more than what filters let pass."""
        given, found = self.options.subjects, push(Pushed(), filters)
        self.pushed = replace(found, subjects=given if found.subjects is None else narrow(given, found.subjects))


def scans_are_apart() -> bool:
    """Tell whether this Spark keeps what a query pushed down to that query.

    Up to 4.3, Spark keeps the tasks that were planned with filters in the object that all queries of a loaded frame
    share: a later query without filters gets these tasks, and so does the other side of a union or of a join, and rows
    are missing in silence. No Python code runs then that could notice. The change that gave readers `pushLimit`
    (SPARK-58551) made Spark keep them with the scan.
    """
    return hasattr(DataSourceReader, "pushLimit")


class PushFilters:
    """What Spark calls with the filters of a query; see `NatsReader.__init__` for why it is an object."""

    def __init__(self, reader: NatsReader | BucketReader) -> None:
        self.reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        wanted = self.reader.options.push_down
        if not (scans_are_apart() if wanted is None else wanted):
            return filters
        self.reader.take(filters)
        return filters  # Spark applies them all the same
