"""Streaming reads of a key-value bucket: every change in the order of its stream, deletions among them.

Offsets are those of a stream. A change that was overwritten before it was read is skipped: the newer one of its key
comes in its place. With `start` at `last`, the first micro-batch is the last value of each key, and what follows are
the changes from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from penstock.errors import InputError, NotFoundError
from penstock.spark.bucket_entries import is_same, key_prefix, to_rows, unread
from penstock.spark.bucket_reader import StatePartition, plan_state, read_state
from penstock.spark.bucket_survey import BucketSurvey
from penstock.spark.connections import borrow
from penstock.spark.formats import needs_payloads, raw_columns, shaping
from penstock.spark.offsets import Mark, Offset
from penstock.spark.partition import NatsPartition
from penstock.spark.stream_reader import NatsStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BucketStreamReader"]


class BucketStreamReader(NatsStreamReader):
    """Reads the changes of a bucket as micro-batches."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # The state of a bucket is one micro-batch: half of it would be no state.
        return super().latestOffset(start, ReadAllAvailable() if self._begins_with_state(start) else limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if not self._begins_with_state(start):
            return super().partitions(start, end)
        tasks: list[InputPartition] = []
        for name, mark in Offset.from_json(end).marks.items():
            bucket = self._survey(name, mark)
            if bucket is None or bucket.created != mark.created:
                self.options.lose(self._vanished(name, mark.begun, mark.next, bucket))
            elif bucket.lacks(mark.begun):
                self.options.lose(bucket.loss(mark.begun, mark.next))
            else:
                tasks += plan_state(bucket, min(mark.next, bucket.next), self.options, "later")
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, NatsPartition | StatePartition):  # Spark has a stand-in if a plan has no tasks
            with borrow(self.connection, self.options.patience) as bulk:
                bulk.patience = self.options.patience
                if isinstance(partition, StatePartition):
                    yield from read_state(bulk, partition, self.options, self.wanted)
                else:
                    yield from self._changes(bulk, partition)

    def _changes(self, bulk: Any, partition: NatsPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of a range that are still there, in order."""
        options, subjects = self.options, partition.subjects or ()
        wanted, shaped = raw_columns(self.wanted, options), shaping(options, self.wanted)
        info = bulk.stream_info(partition.stream, partition.created, partition.end)
        if not is_same(info, partition.stream, partition.created, partition.end, options):
            return
        for batch in bulk.read(
            partition.stream,
            partition.start,
            partition.end,
            subjects,
            batch_rows=options.batch_rows,
            window_bytes=options.window_bytes,
            payloads=needs_payloads(self.wanted, options),
            timeout=options.patience,
            on_loss=unread(info["config"], partition.end, options),
            info=info,
            escape=options.invalid_text == "escape",
        ):
            yield shaped(to_rows(batch, key_prefix(subjects), wanted))

    # -- the bucket -----------------------------------------------------------------------------------------------

    def _begins_with_state(self, start: dict[str, Any]) -> bool:
        begin = self.options.position("start", "", "all")
        return begin.kind == "last" and Offset.from_json(start).fresh

    def _survey(self, name: str, mark: Mark | None) -> BucketSurvey | None:
        try:
            return BucketSurvey(self._connected(), self.options, mark)
        except (InputError, NotFoundError):
            if mark is None:
                raise
            return None
