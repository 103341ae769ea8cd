"""Which of the chunks on a subject make up its message: several publishers may have left some there. Pure.

Each publish is an upload of its own, and says so in the id of every chunk that it stores::

    Nats-Msg-Id = <message id>:<offset>/<upload>[/<so far>]
    upload        16 hex digits that are made up for each publish, so that no chunk is taken for one of another time
    so far        32 hex digits of the SHA-256 of the payload up to the end of this chunk; if there is a digest

An upload looks at what is there, takes it over if all of it is its own payload, and stores its first chunk on the
condition that nothing has come since. So of a message with an end, everything before the first chunk of the upload that
stored the end is the same payload, and whatever others stored later does not count. Chunks without such an id, of other
programs and of earlier versions, all count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from penstock.chunks.wire import Chunk, Headers
from penstock.times import format_time
from penstock.wire.jetstream.names import MSG_ID

__all__ = [
    "SO_FAR",
    "UPLOAD",
    "Findings",
    "StoredChunk",
    "StoredChunks",
    "StoredInfo",
    "by_offset",
    "counting",
    "read_name",
    "write_name",
]

UPLOAD, SO_FAR = 16, 32
_NAME = re.compile(rf":[0-9]{{1,20}}/([0-9a-f]{{{UPLOAD}}})(?:/([0-9a-f]{{{SO_FAR}}}))?")


class StoredChunk(NamedTuple):
    """One chunk in the stream."""

    sequence: int
    chunk: Chunk
    size: int
    upload: str = ""
    """Which publish stored it, if it says so."""
    so_far: str = ""
    """What it says of the payload up to its end."""
    again: tuple[int, ...] = ()
    """Where it is once more, if nobody is known to have compared the two."""


class Findings(NamedTuple):
    """What a subject holds of a message: its chunks in the order of the stream, and the last sequence of them all."""

    chunks: list[StoredChunk]
    last: int
    time: datetime | None = None
    """When the last of its chunks was stored."""


@dataclass(frozen=True, slots=True)
class StoredInfo:
    """What a stream holds of one message in chunks."""

    message_id: str
    """Its id."""
    subject: str
    """The subject that its chunks are stored on."""
    size: int
    """How many bytes of it are there."""
    total: int | None
    """How many bytes it has; None if its end is not there yet."""
    chunks: int
    """How many chunks hold them, those that count."""
    digest: str | None
    """Its SHA-256, 64 hex digits, if its publisher said one."""
    time: datetime | None
    """When the last of its chunks was stored."""
    problem: str = ""
    """Why it cannot be read; empty if it can."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is there, so that it can be read."""
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """Give it for programs."""
        time = None if self.time is None else format_time(self.time)
        about = {"id": self.message_id, "subject": self.subject, "bytes": self.size, "total": self.total}
        about |= {"chunks": self.chunks, "digest": self.digest, "time": time, "whole": self.is_whole}
        return about | ({"problem": self.problem} if self.problem else {})


StoredChunks: TypeAlias = dict[int, StoredChunk]
"""The chunks of a message in the stream that count, by offset."""


def write_name(chunk: Chunk, upload: str, so_far: str = "") -> str:
    """Give the id of a chunk in its stream."""
    return f"{chunk.message_id}:{chunk.offset}/{upload}{so_far and '/'}{so_far[:SO_FAR]}"


def read_name(headers: Headers, message_id: str) -> tuple[str, str]:
    """Give the upload that a chunk belongs to, and what it says of the payload so far; empty if it says neither."""
    name = headers.get(MSG_ID, "")
    found = _NAME.fullmatch(name, len(message_id)) if name.startswith(message_id) else None
    return (found[1], found[2] or "") if found else ("", "")


def counting(found: Sequence[StoredChunk]) -> list[StoredChunk]:
    """Give those of the chunks of a message, in the order of the stream, that count."""
    end = next((item for item in reversed(found) if item.chunk.last), None)
    if end is None or not end.upload:
        return list(found)
    first = next(item.sequence for item in found if item.upload == end.upload)
    # What the upload stored itself comes before what it found: it is the same, and surely there.
    own = [item for item in found if item.upload == end.upload]
    return own + [item for item in found if item.sequence < first and not item.chunk.last]


def by_offset(found: Sequence[StoredChunk]) -> StoredChunks:
    """Give the chunks that count by offset; of a chunk that is stored twice the first counts."""
    stored: StoredChunks = {}
    counted = counting(found)
    compared = any(item.chunk.last and item.upload for item in counted)  # by whoever stored the end
    for item in counted:
        first = stored.setdefault(item.chunk.offset, item)
        if first is not item and not compared:
            stored[item.chunk.offset] = first._replace(again=(*first.again, item.sequence))
    return stored
