"""Batch reads: a range of each stream, narrowed by the filters that Spark pushes down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.filters import PushFilters
from penstock.spark.offsets import Range
from penstock.spark.partition import NatsPartition, PartitionReader
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
        self.pushFilters = PushFilters(options.push_down, self._take)  # type: ignore[method-assign]  # as it says

    def _take(self, filters: list[Filter]) -> None:
        given, found = self.options.subjects, push(Pushed(), filters)
        subjects = given if found.subjects is None else narrow(given, found.subjects)
        self.pushed = replace(found, subjects=subjects)

    def partitions(self) -> Sequence[InputPartition]:
        with TaskConnection(self.connection, self.options.patience) as bulk:
            streams = [Survey(bulk, name, self.pushed.subjects) for name in stream_names(bulk, self.options)]
            return [task for stream in streams for task in self._tasks(stream)]

    def _tasks(self, stream: Survey) -> Iterator[NatsPartition]:
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
            wanted = Range(stream.name, start, end)
            stream.check_there(wanted, self.options)
            yield from stream.tasks(wanted, self.options)
