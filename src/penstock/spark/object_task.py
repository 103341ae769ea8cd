"""One task of an exactly-once write of objects: each is stored whole under its name, once, or not at all.

What makes an object be there is the message that describes it. That message is the row of the exactly-once protocol:
it is stored with a journal, fenced by a lane of the task, and only behind the description that the task has seen. The
chunks are fenced likewise. Those of small objects are in the same atomic batch as the description; a large one takes
several, one after the other, because the order of chunks is the order of bytes, and their journals say that it was
begun. An object whose bytes and description are as the row wants them is not written again.

Journals also say which chunks a description has replaced. Before the batch is done, the driver removes those, and the
chunks of objects that were begun and never described, whichever run or attempt left them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pyarrow as pa

from penstock.buckets.object_info import ObjectInfo
from penstock.buckets.object_wire import CHUNK_SIZE, chunk_subject, format_digest, name_of, new_nuid
from penstock.errors import InputError, RemoteProtocolError
from penstock.spark.bucket_task import KeyTask
from penstock.spark.exactly_once import AtomicBatch
from penstock.spark.markers import DIGEST_SIZE, Head, journal_body
from penstock.spark.messages import OWN_HEADERS, Messages
from penstock.spark.object_rows import described
from penstock.spark.query_markers import QueryMarkers
from penstock.wire.arrow import HEADERS
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE, ROLLUP

__all__ = ["ObjectTask", "remove_chunks"]

NOTED = 64  # bytes of a journal that an object may take beside its digest


@dataclass
class ObjectBatch(AtomicBatch):
    """Chunks and descriptions that are stored together."""

    seen: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    """For each description, by its place among the messages: what it must follow on, and the chunks it replaces."""
    begun: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.seen)

    def journal(self) -> bytes:
        old = [nuid for _, nuid in self.seen.values() if nuid is not None]
        return journal_body(self.batch_id, self.digests, {"begun": self.begun, "stored": self.stored, "old": old})


class _Load:
    """Messages that are being put together for one atomic batch."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self.bodies: list[bytes | memoryview] = []
        self.seen: dict[int, tuple[int, str | None]] = {}
        self.digests = bytearray()
        self.size = 0

    def add(self, subject: str, body: bytes | memoryview) -> None:
        self.subjects.append(subject)
        self.bodies.append(body)
        self.size += len(body) + len(subject) + OWN_HEADERS

    def describe(self, subject: str, body: bytes, sequence: int, old: str | None) -> None:
        self.seen[len(self.subjects)] = sequence, old
        self.add(subject, body)

    def batch(self, begun: tuple[str, ...] = (), stored: tuple[str, ...] = ()) -> ObjectBatch:
        messages = None
        if self.subjects:
            subjects, bodies = pa.array(self.subjects, pa.string()), pa.array(self.bodies, pa.binary())
            messages = Messages(subjects, bodies, _conditions(len(subjects), self.seen))
        digests = bytes(self.digests)
        return ObjectBatch(messages, 0, len(self.subjects), digests, seen=self.seen, begun=begun, stored=stored)


class ObjectTask(KeyTask):
    """Writes the objects of one partition, for one attempt."""

    def __init__(self, markers: QueryMarkers, partition: int, task: int) -> None:
        super().__init__(markers, partition, task)
        self._bucket = markers.options.objects or ""
        self._chunk = min(CHUNK_SIZE, markers.target.limit - OWN_HEADERS)
        self._load = _Load()

    def _cut(self, messages: Messages, digests: bytes) -> None:
        facts = messages.headers.to_pylist() if messages.headers is not None else [None] * len(messages)
        for row, subject in enumerate(messages.subjects.to_pylist()):
            digest = digests[row * DIGEST_SIZE : (row + 1) * DIGEST_SIZE]
            self._put(subject, memoryview(messages.data[row].as_buffer()), facts[row], digest)
        self._flush()

    def _put(self, subject: str, content: memoryview, facts: Any, digest: bytes) -> None:
        if subject in self._load.subjects:
            self._flush()
        while any(batch.messages is not None and subject in _descriptions(batch) for batch in self._under_way):
            self._settle()
        info = described(self._bucket, subject, facts).changed(
            nuid=new_nuid(),
            size=len(content),
            chunks=-(-len(content) // self._chunk),
            chunk_size=self._chunk,
            digest=format_digest(sha256(content).digest()),
        )
        seen, sequence = self._look(subject)
        if seen is not None and _is_same(seen, info):
            self.outcome.found += 1
            self._make_room(0, 0)
            self._load.digests += digest
            return
        old = _chunks_of(seen)
        description, where = info.encode(), chunk_subject(self._bucket, info.nuid)
        options = self.markers.options
        if info.chunks >= options.atomic_rows or len(content) > options.atomic_bytes:
            self._put_large(subject, content, info, (sequence, old), digest)
            return
        self._make_room(info.chunks + 1, len(content) + len(description) + (info.chunks + 1) * OWN_HEADERS)
        for chunk in _chunks(content, self._chunk):
            self._load.add(where, chunk)
        self._load.describe(subject, description, sequence, old)
        self._load.digests += digest

    def _put_large(
        self, subject: str, content: memoryview, info: ObjectInfo, seen: tuple[int, str | None], digest: bytes
    ) -> None:
        """Store an object in several batches, each behind the one before it."""
        self._flush()
        where = chunk_subject(self._bucket, info.nuid)
        for chunk in _chunks(content, self._chunk):
            if self._is_full(1, len(chunk)):
                self._send_alone(begun=(info.nuid,))
            self._load.add(where, chunk)
        if self._is_full(1, len(info.encode()) + OWN_HEADERS):
            self._send_alone(begun=(info.nuid,))
        self._load.describe(subject, info.encode(), *seen)
        self._load.digests += digest
        self._send_alone(stored=(info.nuid,))

    # -- batches --------------------------------------------------------------------------------------------------

    def _is_full(self, messages: int, size: int) -> bool:
        options, load = self.markers.options, self._load
        noted = (len(load.digests) // DIGEST_SIZE + 1) * (DIGEST_SIZE + NOTED) + 512
        return (
            len(load.subjects) + messages > options.atomic_rows
            or (load.size > 0 and load.size + size > options.atomic_bytes)
            or noted > self.markers.target.limit
        )

    def _make_room(self, messages: int, size: int) -> None:
        if self._is_full(messages, size):
            self._flush()

    def _flush(self) -> None:
        if self._load.subjects or self._load.digests:
            load, self._load = self._load, _Load()
            self.dispatch(load.batch())

    def _send_alone(self, **chunks: tuple[str, ...]) -> None:
        while self._under_way:
            self._settle()
        load, self._load = self._load, _Load()
        self.dispatch(load.batch(**chunks))
        while self._under_way:
            self._settle()

    def resolve(self, batch: AtomicBatch) -> bool:
        """Send a batch again behind the descriptions that others have stored meanwhile."""
        if not isinstance(batch, ObjectBatch) or batch.messages is None:
            return False
        subjects, found = batch.messages.subjects, dict[int, tuple[int, str | None]]()
        for place in batch.seen:
            seen, sequence = self._look(subjects[place].as_py())
            found[place] = sequence, _chunks_of(seen)
        if found == batch.seen or self._patience.left == 0:
            return False
        self._under_way.popleft()
        batch.seen = found
        headers = _conditions(len(subjects), found)
        batch.messages = Messages(subjects, batch.messages.data, headers)
        self.dispatch(batch)
        return True

    def _look(self, subject: str) -> tuple[ObjectInfo | None, int]:
        """Give how an object is described now, None if it is not or nobody can read it, and the sequence of that."""
        found = self.markers.last(subject)
        if found is None:
            return None, 0
        try:
            name = name_of(self._bucket, subject) or ""
            return ObjectInfo.from_message(self._bucket, name, found.payload), found.sequence
        except RemoteProtocolError:
            return None, found.sequence


def remove_chunks(markers: QueryMarkers, epoch: Head) -> None:
    """Remove the chunks that the batch replaced, and those that none of its objects has."""
    begun, stored, old = set[str](), set[str](), set[str]()
    for journal in markers.all_journals(epoch):
        for name, nuids in (("begun", begun), ("stored", stored), ("old", old)):
            nuids.update(str(nuid) for nuid in journal.fields.get(name, ()))
    for nuid in sorted(old | (begun - stored)):
        markers.purge(chunk_subject(markers.options.objects or "", nuid))


def _chunks(content: memoryview, size: int) -> Iterator[memoryview]:
    return (content[start : start + size] for start in range(0, len(content), size))


def _descriptions(batch: AtomicBatch) -> set[str]:
    assert isinstance(batch, ObjectBatch)
    assert batch.messages is not None
    return {batch.messages.subjects[place].as_py() for place in batch.seen}


def _conditions(count: int, seen: dict[int, tuple[int, str | None]]) -> Any:
    """Give the headers of a batch's messages: descriptions replace the one before them, which must be the one seen."""
    rows: list[list[tuple[str, list[str]]]] = [[] for _ in range(count)]
    for place, (sequence, _) in seen.items():
        rows[place] = [(ROLLUP, ["sub"]), (EXPECTED_LAST_SUBJECT_SEQUENCE, [str(sequence)])]
    return pa.array(rows, HEADERS)


def _is_same(seen: ObjectInfo, wanted: ObjectInfo) -> bool:
    """Tell whether an object is there as it is wanted, byte by byte."""
    facts = ("size", "digest", "description", "headers", "metadata")
    same = all(getattr(seen, fact) == getattr(wanted, fact) for fact in facts)
    return same and not seen.deleted and not seen.is_link


def _chunks_of(seen: ObjectInfo | None) -> str | None:
    """Give the id of the chunks that go with a description; None if there are none."""
    if seen is None or seen.deleted or seen.is_link or not seen.chunks:
        return None
    try:
        chunk_subject(seen.bucket, seen.nuid)
    except InputError:
        return None
    return seen.nuid
