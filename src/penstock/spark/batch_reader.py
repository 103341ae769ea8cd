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

__all__ = ["NatsReader"]


class NatsReader(PartitionReader, DataSourceReader):
    """Reads what is there between `start` and `end` when the query is planned."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        super().__init__(connection, options, schema)
        self.pushed = Pushed(subjects=options.subjects)
        # Spark refuses a reader whose class implements pushFilters while its push-down is switched off, which it is
        # unless spark.sql.python.filterPushdown.enabled is set. It asks whose function `reader.pushFilters` is: this
        # object says "the base class's", so a plain read works either way, and it is called where push-down is on.
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]  # see above

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


class _PushFilters:
    """What Spark calls with the filters of a query; see `NatsReader.__init__` for why it is an object."""

    def __init__(self, reader: NatsReader) -> None:
        self.reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        if not self.reader.options.push_down:
            # Spark 4.3 plans a loaded frame once and keeps the plan, filters and all, for every later query of the
            # same frame, which would then miss rows in silence. So only a caller who knows gets it.
            return filters
        reader, given = self.reader, self.reader.options.subjects
        found = push(Pushed(), filters)
        subjects = given if found.subjects is None else narrow(given, found.subjects)
        reader.pushed = replace(found, subjects=subjects)
        return filters  # Spark applies them all the same
