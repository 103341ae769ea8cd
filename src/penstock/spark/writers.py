"""Spark's writers of the format "nats": a task each partition, and the driver's word when all of them are done."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import InputError
from penstock.options import ConnectionOptions
from penstock.spark.bucket_rows import KeyShape, check_key_columns
from penstock.spark.bucket_task import KeyTask
from penstock.spark.connections import TaskConnection, borrow
from penstock.spark.exactly_once import Task, TaskOutcome, commit
from penstock.spark.handing_over import hand_over
from penstock.spark.markers import DIGEST_SIZE
from penstock.spark.messages import Messages, Shape, SinkStream, check_columns
from penstock.spark.object_rows import ObjectShape, check_object_columns
from penstock.spark.object_task import ObjectTask, remove_chunks
from penstock.spark.pipeline_replay import PipelineReplay
from penstock.spark.prepare import prepare
from penstock.spark.query_markers import QueryMarkers
from penstock.spark.refusals import WRITE
from penstock.spark.sink_options import SinkOptions
from penstock.wire.arrow import HEADERS
from penstock.wire.jetstream.names import MSG_ID

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NatsStreamWriter", "NatsWriter", "Report"]

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Report(WriterCommitMessage):
    """What one task tells the driver."""

    query: str
    batch: int
    run: str
    start: str
    outcome: TaskOutcome


class _Writing:
    """What writing a batch and writing a stream share. Made on the driver, carried to the tasks."""

    waits: ClassVar[bool]
    """Whether a server that is away is waited for on the driver."""
    no_overwriting: ClassVar[tuple[str, str]]
    """Why a stream cannot be overwritten, and what to do."""
    no_overwriting_keys: ClassVar[tuple[str, str]]
    """The same for a bucket."""

    @property
    def series(self) -> bool:
        """Whether batches follow each other: those of a query, or of foreachBatch."""
        return self.waits or self.options.batch_id is not None

    def __init__(
        self, connection: ConnectionOptions, options: SinkOptions, schema: StructType, overwrite: bool
    ) -> None:
        if overwrite:
            what, remedy = self.no_overwriting_keys if options.is_keyed else self.no_overwriting
            raise InputError(what, remedy=remedy)
        check = check_key_columns if options.bucket else check_object_columns if options.objects else check_columns
        check({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        self.connection = connection
        self.options = options
        # A name for this execution of the batch: the tasks of a later one know by it that they replace us.
        self.run = secrets.token_hex(8)
        replay = PipelineReplay.current()
        if replay is not None:
            replay.check_write(options.stream)
        patience = options.patience if self.waits else 0.0
        with borrow(connection, patience) as bulk:
            # Every step of it may be done twice, and the connection may be one that died since the last batch.
            self.prepared: SinkStream = bulk.patiently(
                lambda: prepare(bulk, options), max(patience, connection.connect_timeout), nobody=True
            )
        if replay is not None:
            replay.check_write(self.prepared.dead_letter_stream)

    # -- on an executor -------------------------------------------------------------------------------------------

    def _write(self, batches: Iterable[pa.RecordBatch], query: str, batch: int) -> Report:
        if (replay := PipelineReplay.current()) is not None:  # a driver that is elsewhere may not know of it
            for stream in (self.options.stream, self.prepared.dead_letter_stream):
                replay.check_write(stream)
        context = TaskContext.get()
        assert context is not None
        partition, start = context.partitionId(), _start_of(context)
        kind = KeyShape if self.options.bucket else ObjectShape if self.options.objects else Shape
        shape = kind(self.options, self.prepared)
        letters = _Letters(self.connection, self.prepared.dead_letter_stream, f"{query}-{batch}-{partition}")
        rows, task = self._shaped(batches, shape, letters), context.taskAttemptId()
        if self.options.exactly_once and not self.options.is_keyed:
            handed, rows = hand_over(rows, self.options, partition, task)
            if handed is not None:
                return Report(query, batch, self.run, start, TaskOutcome(handed=handed))
        with borrow(self.connection, self.options.patience) as bulk:
            if self.options.exactly_once:
                markers = self._markers(bulk, query, batch, start, self.run)
                outcome = self._task(markers, partition, task, shape, letters).write(rows)
            else:
                outcome = self._publish(bulk, rows)
        return Report(query, batch, self.run, start, outcome)

    def _markers(self, bulk: TaskConnection, query: str, batch: int, start: str, run: str) -> QueryMarkers:
        return QueryMarkers(bulk, self.options, self.prepared, query, batch, run, start, self.series)

    def _task(self, markers: QueryMarkers, partition: int, task: int, shape: Shape, letters: _Letters) -> Task:
        if self.options.objects is not None:
            return ObjectTask(markers, partition, task)
        if self.options.bucket is None:
            return Task(markers, partition, task)
        column = self.options.revision_column or ""

        def bury(messages: Messages, reasons: list[str]) -> None:
            wrong = {row: (column, reason) for row, reason in enumerate(reasons)}
            letters.send(shape.dead_letters(messages.subjects, messages.data, wrong))

        return KeyTask(markers, partition, task, bury if letters.stream is not None else None)

    def _shaped(self, batches: Iterable[pa.RecordBatch], shape: Shape, letters: _Letters) -> Iterator[Messages]:
        """Give the messages of all rows; dead letters for the same stream are messages among the others."""
        for batch in batches:
            if batch.num_rows == 0:
                continue
            messages, dead = shape.messages(batch)
            yield messages
            if dead is not None and letters.stream is not None:
                letters.send(dead)
            elif dead is not None:
                yield dead

    def _publish(self, bulk: TaskConnection, rows: Iterator[Messages]) -> TaskOutcome:
        """Store the rows at least once, as fast as the stream allows."""
        batches: Iterator[Any] = (messages.to_batch() for messages in rows)
        fast = self.prepared.fast
        mode = "fast" if fast else "acks"
        published = bulk.publish(self.options.stream, batches, mode=mode, twice=fast, timeout=self.options.patience)
        return TaskOutcome(stored=published.rows - published.duplicates, duplicates=published.duplicates)

    # -- on the driver --------------------------------------------------------------------------------------------

    def _commit(self, messages: Sequence[WriterCommitMessage | None], *, forget: bool = False) -> None:
        reports = [message for message in messages if isinstance(message, Report)]
        if not reports or not self.options.exactly_once:
            return
        first = reports[0]
        with borrow(self.connection, self.options.patience) as bulk:
            # In a streaming query Spark makes another writer for this: the tasks' run is that of theirs.
            markers = self._markers(bulk, first.query, first.batch, first.start, first.run)
            before_done = partial(remove_chunks, markers) if self.options.objects is not None else None
            commit(markers, [report.outcome for report in reports], before_done)
            if forget:
                markers.clear()


class NatsStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    waits = True  # it is made at every micro-batch: a query outlives a server that is away between two of them
    no_overwriting = (
        "A stream cannot be overwritten, and the output mode complete would write all results anew each time.",
        'Use .outputMode("append") with a watermark; or .outputMode("update") and foreachBatch, writing '
        "each frame with the options writeId and batchId.",
    )
    no_overwriting_keys = (
        "The output mode complete would leave keys in the bucket that are not in the result any more.",
        'Use .outputMode("update") and .foreachBatch(penstock.spark.into_bucket(...)): each key that changes is put.',
    )

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

    waits = False  # whoever waits for it learns at once
    no_overwriting = (
        "A stream cannot be overwritten: what is stored is there for its other readers.",
        'Use .mode("append"); to begin anew, purge the stream first.',
    )
    no_overwriting_keys = (
        "A bucket is not overwritten: keys that are not among the rows would stay.",
        'Use .mode("append"), which puts each key; to begin anew, purge the bucket first.',
    )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        return self._write(iterator, f"{WRITE}{self.options.write_id or self.run}", self.options.batch_id or 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, forget=self.options.write_id is None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: rows that are stored stay stored, and a write with a `writeId` may go on."""


def _start_of(context: TaskContext) -> str:
    """Give the start of the streaming query that a task works for; nothing if it works for none.

    Spark names the jobs of a start by its run id. A name that a program chose for its jobs says nothing.
    """
    query, group = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "spark.jobGroup.id"))
    return group.replace("-", "")[:16] if query and group and _RUN_ID.fullmatch(group) else ""


class _Letters:
    """Sends the dead letters of a task to another stream; `name` is that of the task's part of the batch."""

    def __init__(self, connection: ConnectionOptions, stream: str | None, name: str) -> None:
        self.stream = stream
        self._connection = connection
        self._name = name
        self._seen: Counter[bytes] = Counter()

    def send(self, letters: Messages) -> None:
        """Store dead letters. The same one of the same batch has the same id, so that within the duplicate window of
        their stream a replay adds nothing.
        """
        assert self.stream is not None
        digests, headers = letters.digests(), []
        for place, own in enumerate(letters.headers.to_pylist()):
            digest = digests[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE]
            self._seen[digest] += 1
            headers.append([*own, (MSG_ID, [f"{self._name}-{digest.hex()}-{self._seen[digest]}"])])
        with borrow(self._connection) as bulk:  # another one: that of the rows has batches under way
            identified = replace(letters, headers=pa.array(headers, HEADERS))
            bulk.publish(self.stream, identified.to_batch(), mode="acks")
