"""`Entry`: what a bucket says of a key at one revision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.buckets.key_wire import KV_OPERATION, PUT, Operation, marker_reason, operation_of
from penstock.wire.jetstream.direct import read_headers
from penstock.wire.jetstream.names import MARKER_REASON

if TYPE_CHECKING:
    from penstock.model import Message
    from penstock.wire.jetstream.ordered import StoredMessage

__all__ = ["Entry", "entry_of_message", "entry_of_stored"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TELLING = (KV_OPERATION.encode(), MARKER_REASON.encode())


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as it was written once: a value, or the word that the key was deleted or purged."""

    bucket: str
    key: str
    value: bytes
    """The value; nothing of a key that was deleted, and of a watch for keys alone."""
    revision: int
    """Its number in the bucket: a later write has a higher one."""
    time: datetime | None
    """When it was stored."""
    operation: Operation
    """What was done: "PUT", "DEL" or "PURGE"."""
    delta: int = 0
    """How many entries wait behind it, in a watch."""
    reason: str | None = None
    """Why the server itself ended the key: "MaxAge", "Purge" or "Remove"; None if a client did, or it is a value."""

    @property
    def is_deleted(self) -> bool:
        """Whether it says that the key is gone."""
        return self.operation != PUT


def entry_of_message(bucket: str, key: str, message: Message) -> Entry:
    """Read a stored message of a key."""
    return Entry(
        bucket,
        key,
        message.data,
        message.sequence or 0,
        message.time,
        operation_of(message.headers),
        reason=marker_reason(message.headers),
    )


def entry_of_stored(bucket: str, key: str, message: StoredMessage) -> Entry:
    """Read a message of an ordered read."""
    time = _EPOCH + timedelta(microseconds=message.nanoseconds // 1000)
    block = message.header_block
    if block is None or not any(name in block for name in _TELLING):
        return Entry(bucket, key, message.data, message.sequence, time, PUT, message.pending)
    headers = read_headers(block)
    operation, reason = operation_of(headers), marker_reason(headers)
    return Entry(bucket, key, message.data, message.sequence, time, operation, message.pending, reason)
