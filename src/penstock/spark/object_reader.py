"""Batch reads of an object bucket: a row for each object, with its bytes, or a row for each of its chunks.

The driver reads the descriptions and finds out where the chunks of each object lie; tasks read ranges of chunks. Every
object belongs to one task, by name, unless `content` is `chunks`: then a large one is cut into several. An object that
is replaced or deleted before its task comes to it loses its chunks; the task then reads what is described now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.buckets.object_info import ObjectInfo
from penstock.buckets.object_wire import chunk_subject, chunk_subjects, description_subject
from penstock.errors import DataLossError
from penstock.options import ConnectionOptions
from penstock.spark.bucket_entries import is_same, overwritten
from penstock.spark.connections import TaskConnection, borrow
from penstock.spark.object_survey import ObjectSurvey, Piece, bundles, check_size, describe
from penstock.spark.schema import arrow_schema, check_schema, known_columns
from penstock.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["ObjectPartition", "ObjectReader", "Objects", "bytes_wanted", "to_batches"]

TRIES = 5  # that an object is read which is replaced again and again
BATCH_BYTES = 16 * 2**20  # of content in one Arrow batch, and one object or chunk more

Row = dict[str, Any]


@dataclass
class ObjectPartition(InputPartition):
    """One task: objects of a bucket, or pieces of them, of a stream that was made at `created`."""

    stream: str
    created: str
    end: int
    bucket: str
    held: str
    """The bucket whose subjects the objects have: another one if this is its mirror."""
    pieces: tuple[Piece, ...]
    later: bool = False
    """Whether an object that was replaced is left out, because it comes again, newer."""


class ObjectReader(DataSourceReader):
    """Reads the objects of a bucket as they are when the query is planned."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, known_columns(options))
        self.options = bytes_wanted(options, schema)
        self.connection = connection
        self.wanted = schema

    def partitions(self) -> Sequence[InputPartition]:
        with TaskConnection(self.connection, self.options.patience) as bulk:
            bucket = ObjectSurvey(bulk, self.options)
            return [
                ObjectPartition(bucket.name, bucket.created, bucket.next, bucket.bucket, bucket.held, pieces)
                for pieces in bucket.cut_objects(self.options)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ObjectPartition):  # Spark has a stand-in if a plan has no tasks
            with borrow(self.connection, self.options.patience) as bulk:
                bulk.patience = self.options.patience
                yield from to_batches(Objects(bulk, partition, self.options).rows(), arrow_schema(self.wanted))


def bytes_wanted(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Leave the bytes out if the schema does: that is how a query says that it does not need them."""
    return options if "content" in schema.names else replace(options, content="none")


def to_batches(rows: Iterable[Row], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Gather rows into batches that are not too large."""
    gathered: list[Row] = []
    size = 0
    for row in rows:
        gathered.append(row)
        size += len(row["content"] or b"") + 500
        if size >= BATCH_BYTES:
            yield _batch(gathered, wanted)
            gathered, size = [], 0
    if gathered:
        yield _batch(gathered, wanted)


def _batch(rows: list[Row], wanted: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [pa.array([row[field.name] for row in rows], field.type) for field in wanted], schema=wanted
    )


class Objects:
    """What a task reads."""

    def __init__(self, bulk: TaskConnection, partition: ObjectPartition, options: SourceOptions) -> None:
        self.bulk, self.task, self.options = bulk, partition, options
        self.info: dict[str, Any] = {}

    def rows(self) -> Iterator[Row]:
        task = self.task
        self.info = self.bulk.stream_info(task.stream, task.created, task.end)
        if not is_same(self.info, task.stream, task.created, task.end, self.options):
            return
        for bundle in bundles(task.pieces) if self.options.content == "binary" else [[piece] for piece in task.pieces]:
            together = self._together(bundle) if len(bundle) > 1 else {}
            for piece in bundle:
                if self.options.content == "none" or not _has_bytes(piece.info):
                    yield _row(piece.info)
                elif self.options.content == "binary":
                    yield from self._whole(piece, together.get(piece.info.nuid))
                else:
                    yield from self._chunks(piece)

    def _together(self, bundle: list[Piece]) -> dict[str, bytes]:
        """Read small objects that lie side by side at once, by their nuids; some may lack bytes."""
        found: dict[str, list[bytes]] = {piece.info.nuid: [] for piece in bundle}
        start, end = min(piece.start for piece in bundle), max(piece.end for piece in bundle)
        for batch in self._read(start, end, chunk_subjects(self.task.held)):
            for subject, payload in zip(*(batch.column(name).to_pylist() for name in ("subject", "data")), strict=True):
                if (nuid := subject.rpartition(".")[2]) in found:
                    found[nuid].append(payload)
        return {nuid: b"".join(payloads) for nuid, payloads in found.items()}

    def _whole(self, piece: Piece, ready: bytes | None = None) -> Iterator[Row]:
        """Give an object as one row, with bytes that are `ready` or are read; what is described now if replaced."""
        info, start, end = piece.info, piece.start, piece.end
        for _ in range(TRIES):
            check_size(info, self.options)
            found = b"".join(self._payloads(info, start, end)) if ready is None else ready
            ready = None
            if (fault := _fault(info, len(found), hashlib.sha256(found).digest())) is None:
                yield _row(info) | {"content": found}
                return
            newer = self._described(info)
            if newer is None:
                return
            if newer.sequence == info.sequence:
                self._lose(info, fault)
                return
            if self.task.later or (newer.deleted and not self.options.include_deleted):
                return
            if not _has_bytes(newer):
                yield _row(newer)
                return
            info, start, end = newer, 1, newer.sequence or 0
        self._lose(info, "is replaced faster than it can be read")

    def _chunks(self, piece: Piece, tries: int = TRIES) -> Iterator[Row]:
        """Read a piece of an object, a row for each chunk."""
        info, number, offset = piece.info, piece.chunk, piece.offset
        if not info.size:
            yield _row(info) | {"chunk": 0, "offset": 0, "content": b""}
            return
        digest, is_whole = hashlib.sha256(), piece.size == info.size
        for payload in self._payloads(info, piece.start, piece.end):
            if offset + len(payload) > piece.offset + piece.size:
                self._lose(info, "has more bytes in its chunks than its description says")
                return
            yield _row(info) | {"chunk": number, "offset": offset, "content": payload}
            if is_whole:
                digest.update(payload)
            number, offset = number + 1, offset + len(payload)
        fault = None
        if is_whole:
            fault = _fault(info, offset, digest.digest())
        elif offset != piece.offset + piece.size:
            fault = "lacks chunks"
        if fault is None:
            return
        newer = self._described(info)
        if newer is not None and newer.sequence == info.sequence:
            self._lose(info, fault)
            return
        if not is_whole or offset > 0 or not tries:
            self._lose(info, "was replaced or deleted while it was being read; read it again")
            return
        if self.task.later:
            return
        if newer is not None and _has_bytes(newer):
            yield from self._chunks(Piece(newer, 1, newer.sequence or 0, size=newer.size), tries - 1)
        elif newer is not None and (self.options.include_deleted or not newer.deleted):
            yield _row(newer)

    def _payloads(self, info: ObjectInfo, start: int, end: int) -> Iterator[bytes]:
        if info.size and start < end:
            for batch in self._read(start, end, chunk_subject(self.task.held, info.nuid)):
                yield from batch.column("data").to_pylist()

    def _read(self, start: int, end: int, subject: str) -> Iterator[pa.RecordBatch]:
        return self.bulk.read(
            self.task.stream,
            start,
            end,
            subject,
            batch_bytes=BATCH_BYTES,
            window_bytes=self.options.window_bytes,
            headers=False,
            timeout=self.options.patience,
            on_loss=overwritten(self.task.end),
            info=self.info,
        )

    def _described(self, info: ObjectInfo) -> ObjectInfo | None:
        """Ask the leader how an object is described now; None if it is not."""
        found = self.bulk.last(self.task.stream, description_subject(self.task.held, info.name))
        if found is not None and found.sequence >= self.task.end:
            self.info = self.bulk.stream_info(self.task.stream)  # its chunks lie behind what was known
        return None if found is None else describe(self.task.bucket, self.task.held, found)

    def _lose(self, info: ObjectInfo, why: str) -> None:
        self.options.lose(
            DataLossError(
                f"The object {info.name!r} of the bucket {self.task.bucket} {why}.",
                remedy="Put it again, or set failOnDataLoss to false to go on without it.",
                stream=self.task.stream,
            )
        )


def _has_bytes(info: ObjectInfo) -> bool:
    return not info.deleted and not info.is_link


def _fault(info: ObjectInfo, size: int, digest: bytes) -> str | None:
    """Say what is wrong with the bytes of an object; None if they are what its description says."""
    if size != info.size:
        return f"has {size:,} bytes in its chunks, and its description says {info.size:,}"
    if info.sha256 is None:
        return "has no digest that could be checked"
    return None if digest == info.sha256 else "has another digest than its description says"


def _row(info: ObjectInfo) -> Row:
    link = info.link
    return {
        "name": info.name,
        "size": info.size,
        "digest": info.digest,
        "time": info.time,
        "description": info.description or None,
        "metadata": list(info.metadata.items()),
        "headers": list(info.headers.items()),
        "link": None if link is None else f"{link.bucket}/{link.name}" if link.name else link.bucket,
        "deleted": info.deleted,
        "revision": info.sequence,
        "chunk": None,
        "offset": None,
        "content": None,
    }
