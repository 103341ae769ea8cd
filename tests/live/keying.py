"""Drives the exactly-once protocol of the sink for key-value buckets without Spark: rows are keys, values and more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.buckets.key_stream import bucket_stream
from penstock.buckets.key_wire import key_of, operation_of, stream_of_bucket
from penstock.options import ConnectionOptions
from penstock.spark.bucket_rows import KeyShape
from penstock.spark.bucket_task import Bury, KeyTask
from penstock.spark.connections import TaskConnection
from penstock.spark.messages import Messages, SinkStream
from penstock.spark.prepare import prepare
from penstock.spark.query_markers import QueryMarkers
from penstock.spark.sink_options import SinkOptions
from tests.live.sinking import Writer

COLUMNS = {"key": pa.string(), "value": pa.binary(), "operation": pa.string(), "revision": pa.int64()}


def make_bucket(bulk: TaskConnection, bucket: str, **options: Any) -> None:
    """Create a bucket that the sink can write to."""
    stream = bucket_stream(bucket, **{"history": 64, **options})
    bulk.api(f"STREAM.CREATE.{stream.name}", stream.to_json())
    prepare(bulk, SinkOptions(bucket=bucket, prepare=True))


def put(bulk: TaskConnection, bucket: str, key: str, value: bytes) -> None:
    """Write a value as another service does."""
    assert b'"seq"' in bulk.request(f"$KV.{bucket}.{key}", value).payload


def history(bulk: TaskConnection, bucket: str) -> dict[str, list[bytes | None]]:
    """Give all values of each key, oldest first; None for a delete."""
    stream, found = stream_of_bucket(bucket), dict[str, list[bytes | None]]()
    first = bulk.api(f"STREAM.INFO.{stream}")["state"]["first_seq"]
    for batch in bulk.read(stream, first):
        for row in batch.select(["subject", "data", "headers"]).to_pylist():
            if (key := key_of(bucket, row["subject"])) is not None:
                operation = operation_of(dict(row["headers"]))
                found.setdefault(key, []).append(row["data"] if operation == "PUT" else None)
    return found


def current(bulk: TaskConnection, bucket: str) -> dict[str, bytes]:
    """Give the value that each key has now."""
    return {key: values[-1] for key, values in history(bulk, bucket).items() if values[-1] is not None}


class KeyWriter(Writer):
    """One query that writes into one bucket; a row is a key, a value, and perhaps an operation and a revision."""

    def __init__(self, url: str, bucket: str, query: str = "q", rows: int = 4, lanes: int = 3, **options: Any) -> None:
        super().__init__(url, stream_of_bucket(bucket), query, rows, lanes)
        self.asked(bucket=bucket, **options)
        self.bury: Bury | None = None

    def task(self, markers: QueryMarkers, partition: int, task: int) -> KeyTask:
        return KeyTask(markers, partition, task, self.bury)

    def messages(self, rows: Sequence[Any], step: int) -> Iterator[Messages]:
        shape = KeyShape(self.sink, SinkStream(self.stream, (), 2**20))
        width = max((len(row) for row in rows), default=2)
        names = list(COLUMNS)[:width]
        for start in range(0, len(rows), step):
            part = [(*row, *[None] * (width - len(row))) for row in rows[start : start + step]]
            columns = {name: pa.array([row[at] for row in part], COLUMNS[name]) for at, name in enumerate(names)}
            yield shape.messages(pa.record_batch(columns))[0]


def connection(url: str) -> TaskConnection:
    """Connect as a task does."""
    return TaskConnection(ConnectionOptions(url))


def while_sending(action: Callable[[int], Any]) -> Callable[[KeyTask], None]:
    """Do something before each batch of rows that a task sends; it is given how many there were."""

    def around(task: KeyTask) -> None:
        send, count = task._send, iter(range(10**9))

        def later(*given: Any) -> int:
            action(next(count))
            return send(*given)

        task._send = later  # type: ignore[method-assign]

    return around
