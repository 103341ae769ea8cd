"""Buckets for the tests of Spark's source, and their rows as its readers give them, without a JVM."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.connection import api_request
from penstock.server import Server

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader

Row = dict[str, Any]


@dataclass
class Buckets:
    """Makes key-value buckets as other clients do, and writes to them."""

    url: str
    made: list[str] = field(default_factory=list)

    def call(self, action: Callable[[Any], Any]) -> Any:
        """Do something with a connection."""

        async def run() -> Any:
            async with await penstock.connect(self.url) as nc:
                return await action(nc)

        return asyncio.run(run())

    def api(self, method: str, body: object = None) -> Any:
        """Call the JetStream API."""
        return self.call(lambda nc: api_request(nc, method, body))

    def make(self, bucket: str, **config: Any) -> str:
        """Make a bucket."""
        name = f"KV_{bucket}"
        body = {"name": name, "max_msgs_per_subject": 1, "allow_direct": True, "allow_rollup_hdrs": True} | config
        if "mirror" not in body:
            body = {"subjects": [f"$KV.{bucket}.>"]} | body
        self.api(f"STREAM.CREATE.{name}", body)
        self.made.insert(0, name)
        return bucket

    def write(self, bucket: str, *items: tuple[str, bytes] | tuple[str, bytes, dict[str, str]]) -> None:
        """Store messages under keys, one after the other."""

        async def publish(nc: Any) -> None:
            stream = nc.jetstream(timeout=30)
            for key, value, *headers in items:
                await stream.publish(f"$KV.{bucket}.{key}", value, headers=headers[0] if headers else None)

        self.call(publish)

    def put(self, bucket: str, **values: bytes) -> None:
        """Put values; a key has its dots as two underscores."""
        self.write(bucket, *((key.replace("__", "."), value) for key, value in values.items()))

    def delete(self, bucket: str, key: str) -> None:
        """Delete a key."""
        self.write(bucket, (key, b"", {"KV-Operation": "DEL"}))

    def purge(self, bucket: str, key: str) -> None:
        """Delete a key and all its values."""
        self.write(bucket, (key, b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}))

    def info(self, bucket: str) -> Any:
        """Give the state of a bucket's stream."""
        return self.api(f"STREAM.INFO.KV_{bucket}")


@pytest.fixture
def buckets(server: Server) -> Iterator[Buckets]:
    """Buckets that are gone after the test."""
    made = Buckets(server.url)
    yield made
    for name in made.made:
        try:
            made.api(f"STREAM.DELETE.{name}")
        except penstock.errors.NotFoundError:
            continue  # the test deleted it


def bucket_reader(url: str, **options: str) -> DataSourceReader:
    """Give the reader of a batch read."""
    from penstock.spark.provider import NatsDataSource

    source = NatsDataSource({"url": url} | options)
    return source.reader(source.schema())


def rows_of(reader: Any, tasks: Any) -> list[Row]:
    """Have tasks read, each with a copy of the reader, as Spark does."""
    copy = pickle.loads(pickle.dumps(reader))
    return [row for task in pickle.loads(pickle.dumps(tasks)) for batch in copy.read(task) for row in batch.to_pylist()]


def read_rows(url: str, **options: str) -> list[Row]:
    """Read in batch."""
    reader = bucket_reader(url, **options)
    return rows_of(reader, reader.partitions())


class Changes:
    """A streaming query of a bucket, with Spark left out."""

    def __init__(self, url: str, **options: str) -> None:
        from penstock.spark.provider import NatsDataSource

        source = NatsDataSource({"url": url} | options)
        self.reader: Any = source.streamReader(source.schema())
        try:
            self.offset = self.last = self.reader.initialOffset()
        except BaseException:
            self.stop()  # as Spark does
            raise

    def batch(self) -> list[Row] | None:
        """Run one micro-batch; None where there is none to run."""
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        if end == self.offset:
            return None
        self.last = self.offset
        self.offset = end
        return self.again()

    def again(self) -> list[Row]:
        """Read the last micro-batch once more."""
        return rows_of(self.reader, self.reader.partitions(self.last, self.offset))

    def stop(self) -> None:
        """Close the connection."""
        self.reader.stop()


def brief(rows: list[Row] | None) -> list[tuple[str, Any, int]] | None:
    """Give key, value (or the operation, if it is none) and revision."""
    if rows is None:
        return None
    found = [
        (row["key"], row["value"] if row["operation"] == "PUT" else row["operation"], row["revision"]) for row in rows
    ]
    return sorted(found, key=lambda row: row[2])


__all__ = ["Buckets", "Changes", "brief", "bucket_reader", "buckets", "read_rows", "rows_of"]
