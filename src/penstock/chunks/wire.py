"""The chunk format with no I/O: five headers, splitting, and the tiling that says when a message is whole.

A large payload travels as ordinary NATS messages on one subject. Each carries a piece of the payload as its body and
these headers, all of them text::

    X-Msg-Id      which payload the chunk belongs to; a UUID from our publishers
    X-Offset      where in the payload the body begins, decimal, 64 bits
    X-Flags       decimal: 0 for a chunk in the middle, 1 = LAST, 2 = HAS_DIGEST, 3 = both
    X-Total-Size  the size of the payload, decimal, 64 bits; on LAST only
    X-Digest      SHA-256 of the payload, 64 hex digits; on LAST with HAS_DIGEST only

There is no header message: chunks may come in any order, and LAST tells where the end is. A payload is whole when the
bodies tile [0, total) exactly, no byte missing and none said twice. The same chunk may come again; the first counts.

Publishers write the headers sorted by name and receivers take them in any order. Names keep their case.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from penstock.errors import RemoteProtocolError
from penstock.wire.jetstream.names import MSG_SIZE
from penstock.wire.numbers import read_count
from penstock.wire.protocol import decode_headers

__all__ = [
    "MAX_ID",
    "Body",
    "Chunk",
    "Headers",
    "Reason",
    "Refusal",
    "Splitter",
    "Tiling",
    "decode",
    "encode",
    "header_room",
    "message_id_of",
    "read_headers",
    "size_of",
]

LAST = 0x01
HAS_DIGEST = 0x02

MESSAGE_ID = "X-Msg-Id"
OFFSET = "X-Offset"
FLAGS = "X-Flags"
TOTAL_SIZE = "X-Total-Size"
DIGEST = "X-Digest"

MAX_ID = 256
"""Characters that the id of a message may have: receivers remember ids, so their size is bounded."""

Body = bytes | memoryview
"""The bytes of a chunk. A view may be lent: what is kept of it beyond the call must be copied."""
Headers = Mapping[str, str]
"""Headers by name, one value each."""
_UINT64 = 2**64 - 1
_NUMBER = re.compile(r"[0-9]{1,20}")
_HEX = re.compile(r"[0-9a-fA-F]{64}")


class Reason(StrEnum):
    """Why a message in chunks was given up."""

    MALFORMED = "malformed"
    """Its headers do not follow the format."""
    CONFLICT = "conflict"
    """A chunk came twice with different bytes, or two chunks overlap."""
    INCONSISTENT = "inconsistent"
    """Chunks contradict each other on where the payload ends, or on its digest."""
    DIGEST = "digest"
    """The payload is not the one that the publisher took the digest of."""
    TOO_LARGE = "too large"
    """It is larger than the receiver takes, or came in more chunks than it takes."""
    NO_ROOM = "no room"
    """The receiver holds as much as it may, and this message was the one to go."""
    TIMEOUT = "timeout"
    """No new chunk came for as long as the receiver waits."""
    DISCONNECTED = "disconnected"
    """The connection was lost while it was under way, and what was lost with it did not come again."""
    SPOOL = "spool"
    """The receiver could not write it to disk."""
    HANDLER = "handler"
    """It was whole, and the handler raised an error."""
    SLOW_CONSUMER = "slow consumer"
    """Not given any more: nothing drops chunks here, and a server that cuts us off is a connection that is lost."""
    MISSING = "missing"
    """Chunks of a stored message are not in the stream, or not any more."""
    CLOSED = "closed"
    """The receiver was closed before the message was whole."""


class Refusal(Exception):
    """A chunk that cannot be part of a message; the receiver turns it into an AssemblyError."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the headers of one chunk say. `total` is there on the last chunk only, `digest` at most there."""

    message_id: str
    offset: int
    total: int | None = None
    digest: str | None = None

    @property
    def last(self) -> bool:
        return self.total is not None


def encode(chunk: Chunk) -> dict[str, str]:
    """Write the headers of a chunk, sorted by name."""
    headers = {} if chunk.digest is None else {DIGEST: chunk.digest}
    headers[FLAGS] = str((LAST if chunk.last else 0) | (HAS_DIGEST if chunk.digest is not None else 0))
    headers[MESSAGE_ID] = chunk.message_id
    headers[OFFSET] = str(chunk.offset)
    if chunk.total is not None:
        headers[TOTAL_SIZE] = str(chunk.total)
    return headers


def header_room(message_id: str) -> int:
    """Give the most bytes that the headers of a chunk can take, with the widest numbers and a digest."""
    # The server counts headers and body against max_payload.
    widest = encode(Chunk(message_id, _UINT64, _UINT64, "f" * 64))
    return len("NATS/1.0\r\n\r\n") + sum(len(name) + len(value.encode()) + 4 for name, value in widest.items())


def read_headers(block: bytes | None) -> Headers:
    """Read the headers of a message, of a repeated one the first; none if there are none, or broken ones."""
    try:
        found = {} if block is None else decode_headers(block)[2]
    except RemoteProtocolError:  # another publisher wrote them: it is not a chunk
        found = {}
    return {name: values[0] for name, values in found.items()}


def message_id_of(headers: Headers) -> str | None:
    """Give the id of the message that a chunk belongs to; None if it is not a chunk at all."""
    return headers.get(MESSAGE_ID) or None


def size_of(headers: Headers) -> int:
    """Give the size of a message that was delivered without its body, as the server says it."""
    return read_count(headers.get(MSG_SIZE, "")) or 0


def decode(headers: Headers, size: int) -> Chunk:
    """Read the headers of a chunk with a body of `size` bytes; Refusal if they do not follow the format."""
    message_id = message_id_of(headers)
    if message_id is None:
        raise Refusal(Reason.MALFORMED, f"{MESSAGE_ID} is missing")
    if len(message_id) > MAX_ID:
        raise Refusal(Reason.MALFORMED, f"{MESSAGE_ID} has {len(message_id)} characters, more than {MAX_ID}")
    offset = _number(headers, OFFSET)
    flags = _number(headers, FLAGS)
    if flags & ~(LAST | HAS_DIGEST):
        # Whatever else a flag may come to mean, the body might not be the plain bytes any more.
        raise Refusal(Reason.MALFORMED, f"{FLAGS} is {flags}, which has unknown bits")
    if offset + size > _UINT64:
        raise Refusal(Reason.MALFORMED, f"the chunk at {offset} ends beyond 64 bits")
    if not flags & LAST:
        return Chunk(message_id, offset)
    total = _number(headers, TOTAL_SIZE)
    if offset + size != total:
        raise Refusal(Reason.INCONSISTENT, f"the last chunk ends at {offset + size} and the total is {total}")
    digest = headers.get(DIGEST)
    if digest is None and flags & HAS_DIGEST:
        raise Refusal(Reason.MALFORMED, f"{FLAGS} announces a digest and {DIGEST} is missing")
    if digest is not None and not _HEX.fullmatch(digest):
        raise Refusal(Reason.MALFORMED, f"{DIGEST} is not the 64 hex digits of a SHA-256")
    # A digest that is there was meant, also if the flag is missing.
    return Chunk(message_id, offset, total, None if digest is None else digest.lower())


def _number(headers: Headers, name: str) -> int:
    text = headers.get(name)
    if text is None:
        raise Refusal(Reason.MALFORMED, f"{name} is missing")
    if not _NUMBER.fullmatch(text) or int(text) > _UINT64:
        raise Refusal(Reason.MALFORMED, f"{name} is {text[:40]!r}, not a decimal number of 64 bits")
    return int(text)


class Hash(Protocol):
    """What a splitter feeds the payload to, such as `hashlib.sha256()`."""

    def update(self, body: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


class Splitter:
    """Cuts pieces of any size into chunks, one chunk behind, so that the last one is known to be the last.

    `feed` gives the chunks that are surely not the last one, `finish` gives the last one, which is empty only for an
    empty payload. Chunks are cut out of a piece without copying if that is safe, so send them before you change it.
    """

    def __init__(self, message_id: str, chunk_size: int, digest: Hash | None = None) -> None:
        self.message_id, self.chunk_size, self._digest = message_id, chunk_size, digest
        self.offset = 0
        self._held: bytearray | memoryview = bytearray()

    def feed(self, piece: bytes | bytearray | memoryview) -> Iterator[tuple[Chunk, memoryview]]:
        """Take a piece and give the chunks that are complete."""
        view = memoryview(piece).cast("B")
        size = self.chunk_size
        while len(self._held) + len(view) > size:
            if not self._held:
                body, view = view[:size], view[size:]
            elif len(self._held) == size:
                body, self._held = memoryview(self._held), bytearray()
            else:
                missing = size - len(self._held)
                body, view = memoryview(self._joined(view[:missing])), view[missing:]
                self._held = bytearray()
            yield self._cut(body)
        if not self._held and isinstance(view.obj, bytes):
            self._held = view  # bytes never change; a piece of anybody else's buffer would
        elif view:
            self._held = self._joined(view)

    def _joined(self, view: memoryview) -> bytearray:
        held = self._held if isinstance(self._held, bytearray) else bytearray(self._held)
        held += view
        return held

    def finish(self) -> tuple[Chunk, memoryview]:
        body, self._held = memoryview(self._held), bytearray()
        chunk, _ = self._cut(body)
        digest = self._digest.hexdigest() if self._digest is not None else None
        return Chunk(self.message_id, chunk.offset, self.offset, digest), body

    def _cut(self, body: memoryview) -> tuple[Chunk, memoryview]:
        chunk = Chunk(self.message_id, self.offset)
        self.offset += len(body)
        if self._digest is not None:
            self._digest.update(body)
        return chunk, body


class Tiling:
    """Which parts of a payload have come. It grows with the chunks that come, never with what they claim."""

    def __init__(self, *, max_size: int = _UINT64, max_chunks: int = 2**32) -> None:
        self.max_size, self.max_chunks = max_size, max_chunks
        self.total: int | None = None
        self.digest: str | None = None
        self.received = 0
        # Chunks [start, end), sorted. They are kept apart, so that a chunk that comes again is told from an overlap.
        self._starts = array("Q")
        self._ends = array("Q")

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def complete(self) -> bool:
        """Whether every byte is there: without overlaps, and with no chunk past the end, the sum says so."""
        return self.received == self.total

    def add(self, chunk: Chunk, size: int) -> bool:
        """Put a chunk in its place: True if it is new, False if it came before. Refusal if it fits nowhere."""
        start, end = chunk.offset, chunk.offset + size
        largest = end if chunk.total is None else max(end, chunk.total)
        if largest > self.max_size:
            raise Refusal(Reason.TOO_LARGE, f"it reaches byte {largest}, and {self.max_size} bytes are allowed")
        if self.total is not None and end > self.total:
            raise Refusal(Reason.INCONSISTENT, f"a chunk ends at {end} and the total is {self.total}")
        if chunk.total is not None:
            self._close(chunk.total, chunk.digest)
        if size == 0:
            return False
        place = bisect_right(self._starts, start)
        if place and self._starts[place - 1] == start and self._ends[place - 1] == end:
            return False
        if (place and self._ends[place - 1] > start) or (place < len(self) and self._starts[place] < end):
            raise Refusal(Reason.CONFLICT, f"the chunk [{start}, {end}) overlaps another one")
        if len(self) >= self.max_chunks:
            raise Refusal(Reason.TOO_LARGE, f"it comes in more than {self.max_chunks} chunks")
        self._starts.insert(place, start)
        self._ends.insert(place, end)
        self.received += size
        return True

    def _close(self, total: int, digest: str | None) -> None:
        if self.total is not None and (total, digest) != (self.total, self.digest):
            what = "totals" if total != self.total else "digests"
            raise Refusal(Reason.INCONSISTENT, f"two last chunks have different {what}")
        if self._ends and self._ends[-1] > total:
            raise Refusal(Reason.INCONSISTENT, f"a chunk ends at {self._ends[-1]} and the total is {total}")
        self.total, self.digest = total, digest

    def gaps(self) -> str:
        """Say which bytes are missing, as far as is known."""
        return ", ".join(f"[{start}, {'?' if end is None else end})" for start, end in self.missing())

    def missing(self, most: int = 3) -> list[tuple[int, int | None]]:
        """Give the first gaps as [start, end); the end is None if nobody knows how far it goes."""
        gaps: list[tuple[int, int | None]] = []
        at = 0
        for start, end in zip(self._starts, self._ends, strict=True):
            if start > at:
                gaps.append((at, start))
            if len(gaps) >= most:
                return gaps
            at = end
        if self.total is None or at < self.total:
            gaps.append((at, self.total))
        return gaps
