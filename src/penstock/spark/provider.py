"""The data source "nats" as Spark sees it: options in; readers and writers out.

Spark makes one of these on the driver, in a Python worker of its own, for every `load()`, `save()` and `start()`,
pickles it, and asks it for a reader or a writer later. Options are checked at once, before anything is opened; what
they name is looked up when a query is planned.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from penstock import contexts, credentials
from penstock.errors import InputError
from penstock.options import ConnectionOptions
from penstock.spark.options import CONNECTION, connection_fields, refuse_unknown, renamed
from penstock.spark.pipeline_replay import PipelineReplay
from penstock.spark.sink_options import SINK, SinkOptions
from penstock.spark.source_options import SOURCE, SourceOptions
from penstock.spark.tables import of_statement, of_table, remember, without_others, without_spark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NatsDataSource", "connection_options"]

# Every option of reading and of writing: an unknown name is refused before Spark says which of the two it wants.
KNOWN = (*CONNECTION, *SOURCE, *SINK)


class NatsDataSource(DataSource):
    """NATS streams as rows: `subject`, `data`, `headers`, `sequence`, `time`, `stream`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if importlib.util.find_spec("pyarrow") is None:
            raise InputError(
                "The format nats needs pyarrow, and this Python does not have it.",
                remedy="Run: pip install 'penstock[spark]', on the driver and on every executor.",
            )
        self.created = of_statement(options)
        if self.created is not None:
            self.options = CaseInsensitiveDict(self.created)
        refuse_unknown(renamed(without_spark(self.options)), KNOWN)
        connection_fields(self.options)

    @classmethod
    def name(cls) -> str:
        return "nats"

    def schema(self) -> StructType:
        from penstock.spark.formats import columns_of

        if self.created is None:
            return columns_of(SourceOptions.parse(self.options))
        if self.created.keys() & {"stream", "bucket", "objects"}:  # then it can be written to
            SinkOptions.parse(without_others(self.created, SINK, SOURCE))
        source = SourceOptions.parse(without_others(self.created, SOURCE, SINK))
        return remember(columns_of(source), self.created)

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batch_reader import NatsReader

        given = self._reading(schema)
        source = SourceOptions.parse(given)
        source.check_batch()
        if source.is_stored:
            from penstock.spark.stored_reader import StoredReader

            return StoredReader(source, schema)
        connection = connection_options(given, "penstock-spark-read")
        if source.past is not None:
            from penstock.spark.backfill import BackfillReader

            return BackfillReader(connection, source, schema)
        if source.bucket is not None:
            from penstock.spark.bucket_reader import BucketReader

            return BucketReader(connection, source, schema)
        if source.objects is not None:
            from penstock.spark.object_reader import ObjectReader

            return ObjectReader(connection, source, schema)
        return NatsReader(connection, source, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.stream_reader import NatsStreamReader

        given = self._reading(schema)
        source = SourceOptions.parse(given)
        source.check_stream()
        if (replay := PipelineReplay.current()) is not None:
            replay.check_release(source.ack)
            source = replay.backfilled(source)
        connection = connection_options(given, "penstock-spark-stream")
        if source.past is not None:
            from penstock.spark.backfill import BackfillStreamReader

            return BackfillStreamReader(connection, source, schema)
        if source.bucket is not None:
            from penstock.spark.bucket_stream import BucketStreamReader

            return BucketStreamReader(connection, source, schema)
        if source.objects is not None:
            from penstock.spark.object_stream import ObjectStreamReader

            return ObjectStreamReader(connection, source, schema)
        return NatsStreamReader(connection, source, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.writers import NatsWriter

        given = self._writing(schema)
        connection = connection_options(given, "penstock-spark-write")
        return NatsWriter(connection, SinkOptions.parse(given), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.writers import NatsStreamWriter

        given = self._writing(schema)
        sink = SinkOptions.parse(given)
        sink.check_stream()
        return NatsStreamWriter(connection_options(given, "penstock-spark-write"), sink, schema, overwrite)

    def _reading(self, schema: StructType) -> dict[str, str]:
        return of_table(self.options, schema, SOURCE, SINK)

    def _writing(self, schema: StructType) -> dict[str, str]:
        return of_table(without_spark(self.options), schema, SINK, SOURCE)


def connection_options(given: Mapping[str, str], name: str) -> ConnectionOptions:
    """Resolve the connection on the driver: contexts and files are read here, executors get their contents."""
    fields = connection_fields(given)
    found = contexts.load_options(fields.pop("url", None), context=fields.pop("context", None), **fields)
    return credentials.inline(found).replace(name=name)
