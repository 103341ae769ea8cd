"""What the driver finds out about an object bucket before tasks read it: its objects, and where their chunks lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.buckets.object_info import ObjectInfo
from penstock.buckets.object_wire import chunk_subjects, description_subjects, name_of, stream_of_objects
from penstock.errors import InputError, RemoteProtocolError
from penstock.spark.bucket_entries import overwritten
from penstock.spark.bucket_survey import OverwrittenSurvey
from penstock.spark.connections import TaskConnection
from penstock.spark.offsets import Mark
from penstock.spark.planning import ROW_BYTES
from penstock.spark.source_options import SourceOptions
from penstock.times import parse_time
from penstock.wire.jetstream.direct import Found
from penstock.wire.jetstream.names import MSG_SIZE

__all__ = ["ObjectSurvey", "Piece", "bundles", "check_size", "describe", "described_rows"]

SCAN_ROWS = 65_536
BUNDLE_BYTES = 8 * 2**20  # of objects that are read together

Chunk = tuple[int, int]  # its sequence, and how many bytes it has


@dataclass(frozen=True)
class Piece:
    """An object, or a part of its chunks: the sequences `[start, end)`, in which those of others may lie, too."""

    info: ObjectInfo
    start: int = 1
    end: int = 1
    chunk: int = 0
    """How many chunks lie before."""
    offset: int = 0
    """How many bytes lie before."""
    size: int = 0
    """How many bytes it has."""


class ObjectSurvey(OverwrittenSurvey):
    """The stream of an object bucket as the server described it, and what its objects are."""

    def __init__(self, bulk: TaskConnection, options: SourceOptions, mark: Mark | None = None) -> None:
        self.bucket = options.objects or ""
        super().__init__(bulk, stream_of_objects(self.bucket), None, mark)
        self.patience = options.patience
        origin = (self.config.get("mirror") or {}).get("name")
        self.held = str(origin).removeprefix("OBJ_") if origin else self.bucket
        """The bucket whose subjects the objects have."""
        self.subjects = (description_subjects(self.held),)
        self.data_subjects, self.hides, self.first = None, False, self.head
        subjects = self.config.get("subjects") or []
        if not origin and not self.config.get("sources") and description_subjects(self.bucket) not in subjects:
            raise InputError(
                f"Stream {self.name} is not an object bucket: it does not take {description_subjects(self.bucket)}.",
                remedy=f'Read it as a stream: .option("stream", "{self.name}").',
            )

    def _absent(self, bulk: TaskConnection, name: str, noun: str = "object bucket", prefix: str = "OBJ_") -> InputError:
        return super()._absent(bulk, name, noun, prefix)

    # -- objects ------------------------------------------------------------------------------------------------

    def objects(self) -> list[ObjectInfo]:
        """Give every object that is described, in the order of the descriptions; each once, whatever is written."""
        subjects, found = description_subjects(self.held), dict[str, ObjectInfo]()
        for batch in self._read(subjects, payloads=True):
            for one in described_rows(self.bucket, self.held, batch):
                found[one.name] = one
        info = self.bulk.stream_info(self.name, self.created, self.next)
        if info["state"]["last_seq"] + 1 > self.next:
            # Whoever is not among them was replaced before it was looked at, or came since.
            self.last = info["state"]["last_seq"]
            names = {_name(self.held, subject): subject for subject in self.bulk.totals(self.name, subjects)}
            strays = [subject for name, subject in names.items() if name not in found]
            for message in self.bulk.lasts(self.name, strays):
                if message is not None:
                    one = describe(self.bucket, self.held, message)
                    found[one.name] = one
        return sorted(found.values(), key=lambda item: item.sequence or 0)

    def chunks(self) -> dict[str, list[Chunk]]:
        """Give where the chunks of each object lie, by its nuid."""
        found: dict[str, list[Chunk]] = {}
        for batch in self._read(chunk_subjects(self.held), payloads=False):
            rows = zip(*(batch.column(name).to_pylist() for name in ("subject", "sequence", "headers")), strict=True)
            for subject, sequence, headers in rows:
                size = int(dict(headers).get(MSG_SIZE, ["0"])[-1])
                found.setdefault(subject.rpartition(".")[2], []).append((sequence, size))
        return found

    def _read(self, subject: str, *, payloads: bool) -> Iterator[Any]:
        if self.head >= self.next:
            return iter(())
        return self.bulk.read(
            self.name,
            self.head,
            self.next,
            subject,
            batch_rows=SCAN_ROWS,
            payloads=payloads,
            timeout=self.patience,
            on_loss=overwritten(self.next),
        )

    # -- cutting ------------------------------------------------------------------------------------------------

    def cut_objects(self, options: SourceOptions) -> list[tuple[Piece, ...]]:
        """Give the objects to tasks, by their bytes."""
        infos = [info for info in self.objects() if options.include_deleted or not info.deleted]
        if options.content == "binary":
            for info in infos:
                check_size(info, options)
        lying = self.chunks() if options.content != "none" else None
        total = sum(ROW_BYTES + (0 if lying is None else info.size) for info in infos)
        most = min(options.max_bytes_per_partition, max(1, -(-total // (options.min_partitions or 1))))
        pieces = [piece for info in infos for piece in _pieces(info, lying, most if options.content == "chunks" else 0)]
        return list(_grouped(pieces, most, options.max_records_per_partition))


def _pieces(info: ObjectInfo, lying: dict[str, list[Chunk]] | None, most: int) -> Iterator[Piece]:
    """Cut an object into pieces of `most` bytes, at least a chunk each; 0 for one piece."""
    if lying is None:
        yield Piece(info)
        return
    chunks = lying.get(info.nuid, [])
    if len(chunks) != info.chunks or sum(size for _, size in chunks) != info.size or not chunks:
        # It was replaced meanwhile, or it is torn, or it has no bytes: whoever reads it finds out.
        yield Piece(info, 1, info.sequence or 1, size=info.size)
        return
    first, offset, size = 0, 0, 0
    for number, (_, length) in enumerate(chunks):
        if most and size and size + length > most:
            yield Piece(info, chunks[first][0], chunks[number - 1][0] + 1, first, offset, size)
            first, offset, size = number, offset + size, 0
        size += length
    yield Piece(info, chunks[first][0], chunks[-1][0] + 1, first, offset, size)


def _grouped(pieces: list[Piece], most: int, records: int | None) -> Iterator[tuple[Piece, ...]]:
    gathered: list[Piece] = []
    weight = 0
    for piece in pieces:
        heavy = piece.size + ROW_BYTES
        if gathered and (weight + heavy > most or len(gathered) == records):
            yield tuple(gathered)
            gathered, weight = [], 0
        gathered.append(piece)
        weight += heavy
    if gathered:
        yield tuple(gathered)


def bundles(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Gather objects that are worth reading together: small ones, with little of others between them."""
    bundle: list[Piece] = []
    start, end, size, chunks = 0, 0, 0, 0
    for piece in pieces:
        low, high = (min(start, piece.start), max(end, piece.end)) if bundle else (piece.start, piece.end)
        size, chunks = size + piece.size, chunks + piece.info.chunks
        if bundle and (size > BUNDLE_BYTES or high - low > 100 + 4 * chunks):
            yield bundle
            bundle, low, high, size, chunks = [], piece.start, piece.end, piece.size, piece.info.chunks
        bundle.append(piece)
        start, end = low, high
    if bundle:
        yield bundle


def check_size(info: ObjectInfo, options: SourceOptions) -> None:
    """Refuse an object that is too large for one row."""
    if info.size > options.max_content_bytes:
        raise InputError(
            f"The object {info.name!r} has {info.size:,} bytes, and maxContentBytes is {options.max_content_bytes:,}.",
            remedy="Raise it, or set content to chunks, which has a row for each chunk.",
        )


def _name(held: str, subject: str) -> str:
    name = name_of(held, subject)
    if name is None:
        raise RemoteProtocolError(
            f"An object is described on {subject}, which is not the subject of any object.",
            remedy="Purge that subject of the bucket's stream.",
        )
    return name


def described_rows(bucket: str, held: str, batch: Any) -> Iterator[ObjectInfo]:
    """Read messages that describe objects, as the wire read them."""
    for row in batch.select(["subject", "data", "sequence", "time"]).to_pylist():
        name = _name(held, row["subject"])
        yield ObjectInfo.from_message(bucket, name, row["data"], time=row["time"], sequence=row["sequence"])


def describe(bucket: str, held: str, found: Found) -> ObjectInfo:
    """Read a message that describes an object."""
    name = _name(held, found.subject)
    return ObjectInfo.from_message(bucket, name, found.payload, time=parse_time(found.time), sequence=found.sequence)
