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

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NatsDataSource", "connection_options"]

# Every option of reading and of writing: an unknown name is refused before Spark says which of the two it wants.
KNOWN = (*CONNECTION, *SOURCE, *SINK)
# What Spark itself adds to the options, or takes from them.
OF_SPARK = ("path", "checkpointlocation", "queryname")


class NatsDataSource(DataSource):
    """NATS streams as rows: `subject`, `data`, `headers`, `sequence`, `time`, `stream`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if importlib.util.find_spec("pyarrow") is None:
            raise InputError(
                "The format nats needs pyarrow, and this Python does not have it.",
                remedy="Run: pip install 'penstock[spark]', on the driver and on every executor.",
            )
        refuse_unknown(renamed(self._own()), KNOWN)
        connection_fields(options)

    @classmethod
    def name(cls) -> str:
        return "nats"

    def schema(self) -> StructType:
        from penstock.spark.schema import source_schema

        return source_schema(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batch_reader import NatsReader

        source = SourceOptions.parse(self.options)
        source.check_batch()
        if source.is_stored:
            from penstock.spark.stored_reader import StoredReader

            return StoredReader(source, schema)
        connection = connection_options(self.options, "penstock-spark-read")
        if source.past is not None:
            from penstock.spark.backfill import BackfillReader

            return BackfillReader(connection, source, schema)
        return NatsReader(connection, source, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.stream_reader import NatsStreamReader

        source = SourceOptions.parse(self.options)
        source.check_stream()
        if (replay := PipelineReplay.current()) is not None:
            replay.check_release(source.ack)
            source = replay.backfilled(source)
        connection = connection_options(self.options, "penstock-spark-stream")
        if source.past is not None:
            from penstock.spark.backfill import BackfillStreamReader

            return BackfillStreamReader(connection, source, schema)
        return NatsStreamReader(connection, source, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.writers import NatsWriter

        return NatsWriter(self._write_connection(), SinkOptions.parse(self._own()), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.writers import NatsStreamWriter

        sink = SinkOptions.parse(self._own())
        sink.check_stream()
        return NatsStreamWriter(self._write_connection(), sink, schema, overwrite)

    def _own(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.lower() not in OF_SPARK}

    def _write_connection(self) -> ConnectionOptions:
        return connection_options(self.options, "penstock-spark-write")


def connection_options(given: Mapping[str, str], name: str) -> ConnectionOptions:
    """Resolve the connection on the driver: contexts and files are read here, executors get their contents."""
    fields = connection_fields(given)
    found = contexts.load_options(fields.pop("url", None), context=fields.pop("context", None), **fields)
    return credentials.inline(found).replace(name=name)
