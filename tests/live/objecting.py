"""Drives the exactly-once protocol of the sink for objects without Spark: rows are names, contents and more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

import penstock
from penstock.buckets.object_status import object_stream
from penstock.buckets.object_store import ObjectStore
from penstock.buckets.object_wire import chunk_subjects, stream_of_objects
from penstock.spark.connections import TaskConnection
from penstock.spark.exactly_once import TaskOutcome, commit
from penstock.spark.messages import Messages, SinkStream
from penstock.spark.object_rows import ObjectShape
from penstock.spark.object_task import ObjectTask, remove_chunks
from penstock.spark.prepare import prepare
from penstock.spark.query_markers import QueryMarkers
from penstock.spark.sink_options import SinkOptions
from penstock.wire.arrow import HEADERS
from tests.live.sinking import Writer

COLUMNS = {
    "name": pa.string(),
    "content": pa.binary(),
    "description": pa.string(),
    "metadata": pa.map_(pa.string(), pa.string()),
    "headers": HEADERS,
}


def make_objects(bulk: TaskConnection, bucket: str, **options: Any) -> None:
    """Create an object bucket that the sink can write to."""
    stream = object_stream(bucket, **options)
    bulk.api(f"STREAM.CREATE.{stream.name}", stream.to_json())
    prepare(bulk, SinkOptions(objects=bucket, prepare=True))


def chunk_counts(bulk: TaskConnection, bucket: str) -> dict[str, int]:
    """Give how many chunks there are by their id, whoever left them."""
    question = {"subjects_filter": chunk_subjects(bucket)}
    state = bulk.api(f"STREAM.INFO.{stream_of_objects(bucket)}", question)["state"]
    return {subject.rpartition(".")[2]: count for subject, count in (state.get("subjects") or {}).items()}


def objects(url: str, bucket: str) -> dict[str, tuple[bytes, Any]]:
    """Read all objects, their digests checked: content and description by name."""

    async def read() -> dict[str, tuple[bytes, Any]]:
        nc = await penstock.connect(url)
        try:
            store = await ObjectStore.open(nc, bucket)
            return {info.name: (await store.fetch(info.name), info) for info in await store.list()}
        finally:
            await nc.close()

    return asyncio.run(read())


class ObjectWriter(Writer):
    """One query that writes objects; a row is a name, a content, and perhaps a description and more."""

    def __init__(self, url: str, bucket: str, query: str = "q", lanes: int = 3, **options: Any) -> None:
        super().__init__(url, stream_of_objects(bucket), query, 999, lanes)
        self.asked(objects=bucket, **options)

    def task(self, markers: QueryMarkers, partition: int, task: int) -> ObjectTask:
        return ObjectTask(markers, partition, task)

    def messages(self, rows: Sequence[Any], step: int) -> Iterator[Messages]:
        shape = ObjectShape(self.sink, SinkStream(self.stream, (), 2**20))
        for start in range(0, len(rows), step):
            part = [(*row, *[None] * (len(COLUMNS) - len(row))) for row in rows[start : start + step]]
            columns = {
                name: pa.array([row[at] for row in part], kind) for at, (name, kind) in enumerate(COLUMNS.items())
            }
            yield shape.messages(pa.record_batch(columns))[0]

    def commit(self, outcomes: Iterable[TaskOutcome], *, batch: int = 0, run: str = "r1") -> None:
        with TaskConnection(self.options) as bulk:
            markers = self.markers(bulk, batch, run)
            commit(markers, list(outcomes), partial(remove_chunks, markers))
