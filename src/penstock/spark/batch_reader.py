"""Batch reads: a range of each stream, narrowed by the filters that Spark pushes down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.errors import DataLossError
from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.offsets import Range
from penstock.spark.options import SourceOptions
from penstock.spark.partition import NatsPartition, read_partition
from penstock.spark.planning import TaskLimits
from penstock.spark.pushdown import Pushed, narrow, push
from penstock.spark.schema import check_schema
from penstock.spark.survey import StreamState, Survey, utc_now

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["NatsReader", "check_there", "limits", "loss", "partition_of"]

# The clocks of a cluster's servers differ a little, so times may step back where a leader changes. Spark applies the
# filter itself, so a margin costs a few rows and saves the doubt.
CLOCK_MARGIN = timedelta(seconds=10)


class NatsReader(DataSourceReader):
    """Reads what is there between `start` and `end` when the query is planned."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self.connection = connection
        self.options = options
        self.wanted = schema
        self.pushed = Pushed(subjects=options.subjects)
        # Spark refuses a reader whose class implements pushFilters while its push-down is switched off, which it is
        # unless spark.sql.python.filterPushdown.enabled is set. It asks whose function `reader.pushFilters` is: this
        # object says "the base class's", so a plain read works either way, and it is called where push-down is on.
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]  # see above

    def partitions(self) -> Sequence[InputPartition]:
        with TaskConnection(self.connection, self.options.patience) as bulk:
            survey = Survey(bulk, self.pushed.subjects)
            states = [survey.state(name) for name in survey.names(self.options)]
            return [task for state in states for task in self._tasks(survey, state)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.connection, self.options, self.wanted, partition)

    def _tasks(self, survey: Survey, state: StreamState) -> Iterator[NatsPartition]:
        pushed = self.pushed
        if survey.subjects_of(state) == () or (pushed.streams is not None and state.name not in pushed.streams):
            return
        now = utc_now()
        start = survey.place(state, self.options.position("start", state.name, "all"), self.options.start_strategy, now)
        end = survey.end_place(state, self.options.position("end", state.name, "new"), now)
        if pushed.start > start:
            start = min(pushed.start, state.next)
        if pushed.since is not None:
            start = max(start, survey.at_time(state, pushed.since - CLOCK_MARGIN))
        if pushed.end is not None:
            end = min(end, pushed.end)
        if pushed.until is not None:
            end = min(end, survey.at_time(state, pushed.until + CLOCK_MARGIN))
        if start >= end:
            return
        check_there(survey, state, Range(state.name, start, end), self.options)
        for item in survey.cut(state, Range(state.name, start, end), limits(self.options)):
            yield partition_of(survey, state, item)


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
        reader.pushed = Pushed(found.start, found.end, found.since, found.until, subjects, found.streams)
        return filters  # Spark applies them all the same


def partition_of(survey: Survey, state: StreamState, item: Range) -> NatsPartition:
    """Give the task of a range."""
    subjects = survey.subjects_of(state)
    held = state.retention != "limits" and subjects is not None
    return NatsPartition(item.stream, item.start, item.end, state.created, subjects, survey.hides(state), held)


def limits(options: SourceOptions) -> TaskLimits:
    """Give the limits of a task."""
    return TaskLimits(options.min_partitions or 1, options.max_records_per_partition, options.max_bytes_per_partition)


def check_there(survey: Survey, state: StreamState, wanted: Range, options: SourceOptions) -> None:
    """Refuse a range whose beginning is gone, unless the loss is allowed."""
    if options.fail_on_data_loss and survey.lacks(state, wanted.start):
        raise loss(state, wanted.start, min(wanted.end, state.first))


def loss(state: StreamState, start: int, end: int) -> DataLossError:
    """Say which messages are gone, and what to do."""
    return DataLossError(
        f"The messages [{start}, {end}) of the stream {state.name} are gone before they were read; it holds "
        f"[{state.first}, {state.next}).",
        remedy="Limits, a purge or a deletion took them. Raise the stream's limits or read faster; to go on without "
        "them, set failOnDataLoss to false, and they are skipped and counted.",
        stream=state.name,
        start=start,
        end=end,
        first=state.first,
        last=state.last,
    )
