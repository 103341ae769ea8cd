"""`Entry`: what a bucket says of a key at one revision."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.buckets.key_wire import KV_OPERATION, PUT, Operation, marker_reason, operation_of
from penstock.errors import RemoteProtocolError
from penstock.times import format_time
from penstock.wire.jetstream.direct import read_headers
from penstock.wire.jetstream.names import MARKER_REASON

if TYPE_CHECKING:
    from penstock.model import Message
    from penstock.wire.jetstream.direct import Found
    from penstock.wire.jetstream.ordered import OrderedMessage

__all__ = ["Entry", "entry_of_found", "entry_of_message", "entry_of_ordered"]

_OPERATION, _REASON = KV_OPERATION.encode(), MARKER_REASON.encode()


class Entry(NamedTuple):
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

    def to_json(self) -> dict[str, Any]:
        """Give it for programs; the value is base64."""
        return {
            "bucket": self.bucket,
            "key": self.key,
            "value": base64.b64encode(self.value).decode(),
            "revision": self.revision,
            "created": None if self.time is None else format_time(self.time),
            "operation": self.operation,
            "delta": self.delta,
            **({} if self.reason is None else {"reason": self.reason}),
        }

    @property
    def is_deleted(self) -> bool:
        """Whether it says that the key is gone."""
        return self.operation != PUT


def entry_of_found(bucket: str, key: str, found: Found) -> Entry:
    """Read a message as a stream gives it; what a direct get adds to its headers says nothing of the key."""
    try:
        time = datetime.fromisoformat(found.time)
    except ValueError:
        raise RemoteProtocolError(f"Revision {found.sequence} has the time {found.time[:40]!r}.") from None
    operation, reason = _told(found.header)
    return Entry(bucket, key, found.payload, found.sequence, time, operation, reason=reason)


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


def entry_of_ordered(bucket: str, key: str, message: OrderedMessage) -> Entry:
    """Read a message of an ordered read."""
    _, sequence, nanoseconds, pending, data, block = message
    # A float has room for all microseconds until the year 2242, and this is the quickest way.
    time = datetime.fromtimestamp(nanoseconds // 1000 / 1e6, UTC)
    operation, reason = (PUT, None) if block is None else _told(block)
    return Entry(bucket, key, data, sequence, time, operation, pending, reason)


def _told(block: bytes | None) -> tuple[Operation, str | None]:
    """Say what a message did to its key, and why the server did it; most have no such headers."""
    if block is None or not (_OPERATION in block or _REASON in block):
        return PUT, None
    headers = read_headers(block)
    return operation_of(headers), marker_reason(headers)
