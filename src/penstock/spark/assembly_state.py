"""Chunks on their way to a whole message, as Spark keeps them between micro-batches. Pure: no Spark, no I/O.

`Open` is a message that has begun. Spark's state store holds it as bytes, so the form never changes; golden files in
the tests freeze it::

    state   = length (4 bytes, big endian) meta bodies
    meta    = JSON: {"v": 1, "chunks": [[offset, size, total, digest], ...], "headers": text, "sequence": n,
              "micros": n, "failed": reason or null, "done": whether it was given out,
              "given": {offset: hash, ...} of the chunks of a message that was given out whole}
    bodies  = the payloads of the chunks, in the order of `chunks`

A message that was given out, whole or failed, leaves a short note behind until the timeout, so that a chunk which
comes again does not begin it anew. Other bytes under its id are another payload: that is reported, once, and not
dropped in silence. States of earlier versions have no `given`, and those versions read past it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.chunks.wire import Chunk, Reason, Refusal, Tiling, decode
from penstock.errors import InputError
from penstock.json_text import load_json

__all__ = ["Open", "Whole"]

VERSION = 1


class Whole(NamedTuple):
    """What comes of a message: its payload, or why there is none."""

    data: bytes | None
    headers: str | None
    """The headers of the chunk at offset 0 that are not the chunk format's, as JSON."""
    sequence: int
    """The highest sequence of its chunks."""
    micros: int
    """When that one was stored, in microseconds since 1970."""
    chunks: int
    error: str | None


@dataclass
class Open:
    """A message that has begun: the chunks that came, and what became of it."""

    max_size: int
    chunks: list[tuple[Chunk, bytes]] = field(default_factory=list)
    headers: str | None = None
    sequence: int = 0
    micros: int = 0
    failed: str | None = None
    done: bool = False
    given: dict[str, str] = field(default_factory=dict)
    """A short hash of each chunk, by its offset, of a message that was given out whole."""
    _tiling: Tiling | None = None

    def add(self, headers: Mapping[str, str], body: bytes, extra: str | None, sequence: int, micros: int) -> None:
        """Take a chunk; one that contradicts the others fails the message."""
        if self.done and not self._is_another(headers, body):
            return
        if sequence > self.sequence:
            self.sequence, self.micros = sequence, micros
        if self.failed is not None:
            return
        try:
            chunk = decode(headers, len(body))
            new = self._tiles().add(chunk, len(body))
            if not new and body and not any(held.offset == chunk.offset and data == body for held, data in self.chunks):
                raise Refusal(Reason.CONFLICT, f"the chunk at {chunk.offset} came twice with different bytes")
        except Refusal as refusal:
            self.failed = f"{refusal.reason}: {refusal}"
            return
        if new or (chunk.last and not any(held.last for held, _ in self.chunks)):
            self.chunks.append((chunk, body if new else b""))
        if chunk.offset == 0 and self.headers is None:
            self.headers = extra

    def _is_another(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Tell whether a late chunk is of another payload under the same id, which is a failure of its own."""
        if self.failed is not None or not body or not self.given:
            return False
        if self.given.get(headers.get("X-Offset", "")) == _hash(body):
            return False
        self.failed = f"{Reason.CONFLICT}: another payload came under the id of one that was given out"
        self.done = False
        return True

    def give(self) -> Whole | None:
        """Give the message once it is whole or failed, and once only; None before that."""
        if self.done:
            return None
        if self.failed is None and self._tiles().complete:
            bodies = sorted(((chunk.offset, body) for chunk, body in self.chunks if body), key=lambda item: item[0])
            data = b"".join(body for _, body in bodies)
            digest = self._tiles().digest
            if digest is None or hashlib.sha256(data).hexdigest() == digest:
                self.given = {str(chunk.offset): _hash(body) for chunk, body in self.chunks if body}
                return self._end(data, None)
            self.failed = f"{Reason.DIGEST}: the payload is not the one that its publisher took the digest of"
        return None if self.failed is None else self._end(None, self.failed)

    def give_up(self, reason: Reason) -> Whole | None:
        """Give what is known of a message that will not become whole."""
        if self.done:
            return None
        tiling = self._tiles()
        total = "an unknown total" if tiling.total is None else f"{tiling.total} bytes"
        gaps = ", ".join(f"[{start}, {'…' if end is None else end})" for start, end in tiling.missing())
        return self._end(None, f"{reason}: {tiling.received} bytes of {total} came; missing are {gaps}")

    def _end(self, data: bytes | None, error: str | None) -> Whole:
        count = len(self.chunks)
        headers, self.done, self.chunks, self.headers, self._tiling = self.headers, True, [], None, None
        return Whole(data, headers, self.sequence, self.micros, count, error)

    def _tiles(self) -> Tiling:
        if self._tiling is None:
            # What was taken under a larger limit, before the query was started again, is not refused now.
            ends = (max(chunk.offset + len(body), chunk.total or 0) for chunk, body in self.chunks)
            self._tiling = Tiling(max_size=max(self.max_size, *ends, 0))
            for chunk, body in self.chunks:
                self._tiling.add(chunk, len(body))
        return self._tiling

    # -- the state ---------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Write the state."""
        chunks = [[chunk.offset, len(body), chunk.total, chunk.digest] for chunk, body in self.chunks]
        meta = {
            "v": VERSION,
            "chunks": chunks,
            "headers": self.headers,
            "sequence": self.sequence,
            "micros": self.micros,
            "failed": self.failed,
            "done": self.done,
        } | ({"given": self.given} if self.given else {})
        text = json.dumps(meta, separators=(",", ":")).encode()
        return b"".join([len(text).to_bytes(4, "big"), text, *(body for _, body in self.chunks)])

    @classmethod
    def from_bytes(cls, state: bytes, max_size: int) -> Open:
        """Read a state; InputError if it is none of ours."""
        try:
            size = int.from_bytes(state[:4], "big")
            meta: dict[str, Any] = load_json(state[4 : 4 + size])
            if meta["v"] != VERSION:
                raise KeyError("v")
            place, chunks = 4 + size, []
            for offset, length, total, digest in meta["chunks"]:
                _check(offset, length, 0 if total is None else total, meta["sequence"], meta["micros"])
                chunks.append((Chunk("", offset, total, digest), state[place : place + length]))
                place += length
            given = dict(meta.get("given") or {})
            texts = meta["headers"], meta["failed"], *(digest for *_, digest in meta["chunks"]), *given.values()
            if place != len(state) or not all(isinstance(text, str | None) for text in texts):
                raise ValueError(place)
            facts = meta["headers"], meta["sequence"], meta["micros"], meta["failed"], bool(meta["done"])
            made = cls(max_size, chunks, *facts, given)
            made._tiles()
        except (ValueError, KeyError, TypeError, Refusal):
            raise InputError(
                "The state store holds something that is not a message in chunks of this version.",
                remedy="Use the Penstock that wrote the checkpoint, or start with another one.",
            ) from None
        return made


def _check(*numbers: Any) -> None:
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(numbers)


def _hash(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=8).hexdigest()
