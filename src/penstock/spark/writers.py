"""Spark's writers of the format "nats": a task each partition, and the driver's word when all of them are done."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import InputError
from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection, borrow
from penstock.spark.dead_letters import DeadLetterWriter
from penstock.spark.exactly_once import Task, TaskOutcome
from penstock.spark.markers import DIGEST_SIZE, Head, MarkerSubjects
from penstock.spark.messages import Messages, Shape, SinkStream, check_columns
from penstock.spark.prepare import prepare
from penstock.spark.query_markers import QueryMarkers
from penstock.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["NatsStreamWriter", "NatsWriter", "Report"]

log = logging.getLogger("penstock.spark.sink")


@dataclass(frozen=True)
class Report(WriterCommitMessage):
    """What one task tells the driver."""

    query: str
    batch: int
    run: str
    outcome: TaskOutcome
    dead: int


class _Writing:
    """What writing a batch and writing a stream share. Made on the driver, carried to the tasks."""

    def __init__(
        self, connection: ConnectionOptions, options: SinkOptions, schema: StructType, patience: float
    ) -> None:
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        self.connection = connection
        self.options = options
        # A name for this execution of the batch: the tasks of a later one know by it that they replace us.
        self.run = secrets.token_hex(8)
        with borrow(connection, patience) as bulk:
            # Every step of it may be done twice, and the connection may be one that died since the last batch.
            self.prepared: SinkStream = bulk.patiently(
                lambda: prepare(bulk, options), max(patience, connection.connect_timeout), nobody=True
            )

    def _markers(self, bulk: TaskConnection, query: str, batch: int, run: str) -> QueryMarkers:
        return QueryMarkers(
            bulk,
            MarkerSubjects(self.options.stream, query),
            batch=batch,
            run=run,
            keep=self.prepared.keep,
            start_anew=self.options.on_missing_markers == "start",
            patience=self.options.patience,
        )

    # -- on an executor -------------------------------------------------------------------------------------------

    def _write(self, batches: Iterable[pa.RecordBatch], query: str, batch: int) -> Report:
        context = TaskContext.get()
        assert context is not None
        partition, prepared = context.partitionId(), self.prepared
        shape = Shape(self.options, prepared)
        with ExitStack() as stack:
            bulk = stack.enter_context(borrow(self.connection, self.options.patience))
            letters = DeadLetterWriter(self.connection, prepared.dead_letter_stream, f"{query}-{batch}-{partition}")
            stack.callback(letters.close)
            rows = _shaped(batches, shape, letters)
            if self.options.exactly_once:
                outcome = Task(
                    self._markers(bulk, query, batch, self.run),
                    partition=partition,
                    task=context.taskAttemptId(),
                    rows=self.options.atomic_rows,
                    size=self.options.atomic_bytes,
                    lanes=self.options.in_flight,
                    limit=prepared.limit,
                ).write(rows)
            else:
                outcome = _publish(bulk, rows, self.options, prepared)
        return Report(query, batch, self.run, outcome, shape.dead)

    # -- on the driver --------------------------------------------------------------------------------------------

    def _commit(self, messages: Sequence[WriterCommitMessage | None], *, forget: bool = False) -> None:
        reports = [message for message in messages if isinstance(message, Report)]
        if not reports or not self.options.exactly_once:
            return
        first = reports[0]
        epochs = {report.outcome.epoch for report in reports if report.outcome.epoch is not None}
        with borrow(self.connection, self.options.patience) as bulk:
            markers = self._markers(bulk, first.query, first.batch, first.run)
            if len(epochs) > 1:
                raise markers.fenced(None)
            # A batch without a single row must be known as done, too, or the next one would seem to follow on nothing.
            epoch = epochs.pop() if epochs else markers.join()
            if epoch is not None:
                if epoch.replay:
                    self._compare(markers, epoch)
                markers.finish(epoch)
            if forget:
                markers.clear()
        log.info(
            "Batch %d into %s: %d rows stored, %d were there.",
            first.batch,
            self.options.stream,
            sum(report.outcome.stored for report in reports),
            sum(report.outcome.found for report in reports),
        )

    def _compare(self, markers: QueryMarkers, epoch: Head) -> None:
        """Find rows that earlier runs stored and this one, having computed the batch again, does not have."""
        stored = sum(len(journal.digests) for journal in markers.journals(epoch)) // DIGEST_SIZE
        claims, _ = markers.claims(epoch)
        claimed = sum(sum(rows) for taken in claims.values() for rows in taken.values())
        if stored == claimed:
            return
        what = (
            f"Batch {markers.batch} was computed again, and {stored - claimed} of the {stored} rows that were stored "
            f"before in stream {markers.subjects.stream} are not in it any more."
        )
        if self.options.on_changed_rows == "keep":
            log.warning("%s They stay.", what)
            return
        raise markers.broken(
            what,
            "The query is not deterministic (rand, uuid, a lookup that changed), or its code was changed in the "
            'middle of a batch. To keep those rows and go on, set .option("onChangedRows", "keep") for one start.',
        )


class NatsStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(
        self, connection: ConnectionOptions, options: SinkOptions, schema: StructType, overwrite: bool
    ) -> None:
        if overwrite:
            raise InputError(
                "A stream cannot be overwritten, and the output mode complete would write all results anew each time.",
                remedy='Use .outputMode("append") with a watermark; or .outputMode("update") and foreachBatch, writing '
                "each frame with the options writeId and batchId.",
            )
        options.check_stream()
        # This runs at every micro-batch: a query outlives a server that is away between two of them.
        super().__init__(connection, options, schema, options.patience)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise InputError(
                "This Spark does not tell its tasks which query and batch they belong to.",
                remedy="Use Spark 4.2 or newer, or guarantee at-least-once.",
            )
        return self._write(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave everything as it is: the batch will be tried again, and the stream knows what is stored."""


class NatsWriter(_Writing, DataSourceArrowWriter):
    """Writes a DataFrame once: tasks that are tried again add nothing, nor does the same write under its `writeId`."""

    def __init__(
        self, connection: ConnectionOptions, options: SinkOptions, schema: StructType, overwrite: bool
    ) -> None:
        if overwrite:
            raise InputError(
                "A stream cannot be overwritten: what is stored is there for its other readers.",
                remedy='Use .mode("append"); to begin anew, purge the stream first.',
            )
        super().__init__(connection, options, schema, patience=0.0)  # whoever waits for it learns at once
        self.query = f"write-{options.write_id or secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        return self._write(iterator, self.query, self.options.batch_id or 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, forget=self.options.write_id is None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: rows that are stored stay stored, and a write with a `writeId` may go on."""


def _shaped(batches: Iterable[pa.RecordBatch], shape: Shape, letters: DeadLetterWriter) -> Iterator[Messages]:
    """Give the messages of all rows; dead letters for the same stream are messages among the others."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        messages, dead = shape.messages(batch)
        yield messages
        if dead is not None and not letters.send(dead):
            yield dead


def _publish(bulk: TaskConnection, rows: Iterator[Messages], options: SinkOptions, prepared: SinkStream) -> TaskOutcome:
    """Store the rows at least once, as fast as the stream allows."""
    batches: Iterator[Any] = (messages.to_batch() for messages in rows)
    published = bulk.publish(
        options.stream, batches, mode="fast" if prepared.fast else "acks", timeout=options.patience
    )
    return TaskOutcome(stored=published.rows - published.duplicates, duplicates=published.duplicates)
