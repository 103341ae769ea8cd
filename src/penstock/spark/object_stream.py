"""Streaming reads of an object bucket: every object that is put or deleted, in the order of the descriptions.

Offsets are those of a stream. A description that was replaced before it was read is skipped: the newer one comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from penstock.errors import InputError, NotFoundError
from penstock.options import ConnectionOptions
from penstock.spark.bucket_entries import is_same, unread
from penstock.spark.connections import borrow
from penstock.spark.object_reader import ObjectPartition, Objects, bytes_wanted, to_batches
from penstock.spark.object_survey import ObjectSurvey, Piece, described_rows
from penstock.spark.offsets import Mark
from penstock.spark.partition import NatsPartition
from penstock.spark.schema import arrow_schema
from penstock.spark.source_options import SourceOptions
from penstock.spark.stream_reader import NatsStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["ObjectStreamReader"]


class ObjectStreamReader(NatsStreamReader):
    """Reads objects as they are put and deleted, as micro-batches."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        super().__init__(connection, bytes_wanted(options, schema), schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, NatsPartition):  # Spark has a stand-in if a plan has no tasks
            return
        options, subjects = self.options, partition.subjects or ()
        bucket, held = options.objects or "", subjects[0].split(".")[1]
        with borrow(self.connection, options.patience) as bulk:
            bulk.patience = options.patience
            info = bulk.stream_info(partition.stream, partition.created, partition.end)
            if not is_same(info, partition.stream, partition.created, partition.end, options):
                return
            described = [
                one
                for batch in bulk.read(
                    partition.stream,
                    partition.start,
                    partition.end,
                    subjects,
                    timeout=options.patience,
                    on_loss=unread(info["config"], partition.end, options),
                    info=info,
                )
                for one in described_rows(bucket, held, batch)
            ]
            pieces = tuple(Piece(one, 1, one.sequence or 1, size=one.size) for one in described)
            task = ObjectPartition(partition.stream, partition.created, partition.end, bucket, held, pieces, later=True)
            yield from to_batches(Objects(bulk, task, options).rows(), arrow_schema(self.wanted))

    def _survey(self, name: str, mark: Mark | None) -> ObjectSurvey | None:
        try:
            return ObjectSurvey(self._connected(), self.options, mark)
        except (InputError, NotFoundError):
            if mark is None:
                raise
            return None
