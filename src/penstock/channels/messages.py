"""How a channel's message lies in its stream, how it is written there, and how it goes out.

The payload is the publisher's, untouched. What the protocol needs beside it stands in headers:

- `Penstock-Time`: when the gateway took the message, in nanoseconds since 1970; never less than the one before.
- `Penstock-Bytes`: the bytes of all messages of the channel so far, this one included, counted as they are delivered.
- `Penstock-Reply`: the reply subject that the publisher gave, if it gave one; what a header cannot carry is written
  as in a URL, `%0A` for a line break.
- `Penstock-Batch`: the attempt that stored it, unless that was an atomic batch, which has a header of its own.
- `Penstock-Sequence`: for a message that was copied from elsewhere, its sequence there.
- `Penstock-Gap`: for a place that shall be empty because it was so where the channel was copied from; such a message is
  deleted right after it was stored.

A message that somebody else wrote to the stream has none of these; its time is the stream's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from penstock.channels.encoded import Encoded, channel_field, read_answers
from penstock.channels.limits import ChannelLimits
from penstock.channels.publishes import NewMessages, Words, encode_new, write_new
from penstock.errors import RemoteProtocolError
from penstock.wire.jetstream import atomic as batches
from penstock.wire.jetstream import names
from penstock.wire.jetstream.direct import nanoseconds, value, whole

__all__ = [
    "ChannelMessage",
    "ChannelStream",
    "encode",
    "more_lines",
    "quote_reply",
    "read_encoded",
    "read_message",
    "write_frames",
]

TIME = "Penstock-Time"
BYTES = "Penstock-Bytes"
REPLY = "Penstock-Reply"
SEQUENCE = "Penstock-Sequence"
BATCH = "Penstock-Batch"
GAP = "Penstock-Gap"
_TIME, _BYTES, _REPLY, _SEQUENCE, _GAP, _BATCH, _ATOMIC, _AT, _STAMP = (
    f"\r\n{name}:".encode()
    for name in (TIME, BYTES, REPLY, SEQUENCE, GAP, BATCH, names.BATCH_ID, names.SEQUENCE, names.TIME)
)
_OURS = f"NATS/1.0\r\n{TIME}: ".encode()
_WORDS = Words(*(f"{name}: ".encode() for name in (TIME, BYTES, names.EXPECTED_LAST_SEQUENCE)))
_LATEST = 2**63 - 1


def encode(channel: str, sequence: int, data: bytes, time: int, reply: str) -> bytes:
    """Give the bytes of a first delivery."""
    encoded = Encoded(channel_field(channel.encode()))
    encoded.add(sequence, data, 0, len(data), time, reply.encode())
    content = encoded.get(sequence)
    assert content is not None, "it was added"
    return content


def quote_reply(reply: str) -> str:
    """Write a reply subject so that a header can carry it."""
    return quote(reply, safe="!#$&'()*+,/:;=?@[]<>^`{|}~\"\\")


# -- reading ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ChannelMessage:
    """A message as its channel's stream holds it, with its header block as it came."""

    sequence: int
    time: int
    data: bytes
    reply: str
    header: bytes

    @property
    def bytes_so_far(self) -> int | None:
        """The bytes of the channel up to this message; None if somebody else wrote it."""
        return whole(value(self.header, _BYTES))

    @property
    def batch(self) -> str:
        """The attempt that stored it."""
        return (value(self.header, _BATCH) or value(self.header, _ATOMIC)).decode("utf-8", "replace")

    @property
    def origin(self) -> int | None:
        """Its sequence where it was copied from."""
        return whole(value(self.header, _SEQUENCE))

    @property
    def gap(self) -> bool:
        """Whether it only holds the place of what was missing where the channel was copied from."""
        return bool(value(self.header, _GAP))

    def encode(self, channel: str) -> bytes:
        """Give the bytes of its first delivery."""
        return encode(channel, self.sequence, self.data, self.time, self.reply)


def read_message(data: bytes, header: bytes | None) -> ChannelMessage:
    """Read the answer to a direct get. A backlog comes this way: only what a delivery needs is looked for."""
    block = header or b""
    sequence = whole(value(block, _AT))
    if block.startswith(_OURS):  # as we write it
        stamp = whole(block[len(_OURS) : block.find(b"\r\n", len(_OURS))])
    else:
        stamp = whole(value(block, _TIME))
    if stamp is None or stamp > _LATEST:  # somebody else wrote it
        stamp = nanoseconds(value(block, _STAMP).decode("utf-8", "replace"))
    if sequence is None or stamp is None:
        raise RemoteProtocolError("An answer to a direct get does not say its sequence and its time.")
    reply = unquote(value(block, _REPLY).decode("utf-8", "replace")) if _REPLY in block else ""
    return ChannelMessage(sequence, stamp, data, reply, block)


# -- writing ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ChannelStream:
    """One channel's stream: its name and subject, its limits, and how far it goes as far as we know."""

    channel: str
    name: str
    subject: str
    limits: ChannelLimits
    created: str = ""
    """When it was made, as the server says it: another stream of its name was made at another time."""
    restored: bool = False
    """Whether it holds messages that are older than itself: it was restored from a backup."""
    first: int = 1
    last: int = 0
    replaced: str = ""
    """When another stream of its name was made that is there now; empty if it is the same."""
    short_since: float | None = None
    """Since when its leader says that it ends before `last`; None if it does not."""
    last_time: int = 0
    bytes_so_far: int = 0
    """Bytes of all messages up to `last`, as delivered."""
    bytes_before: int = 0
    """Bytes of those before `first`."""
    in_step: bool = True
    """Whether the stream's configuration has these limits."""
    oldest: deque[tuple[int, int]] = field(default_factory=deque)
    """Sequences at the front, and the bytes of all messages up to each."""

    @property
    def field(self) -> bytes:
        """The channel as it stands in each delivery."""
        return channel_field(self.channel.encode())

    @property
    def count(self) -> int:
        """How many messages there are, if nothing is missing between the first and the last."""
        return max(0, self.last - self.first + 1)


def more_lines(*, reply: bytes = b"", origin: int | None = None, gap: bool = False) -> bytes:
    """Write the header lines that few messages have: a reply subject; `origin` and `gap` of what is copied."""
    lines = ""
    if reply:
        lines += f"{REPLY}: {quote_reply(reply.decode())}\r\n"
    if origin is not None:
        lines += f"{SEQUENCE}: {origin}\r\n"
    if gap:
        lines += f"{GAP}: 1\r\n"
    return lines.encode()


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames for the subject that their ack goes to, and what they store, encoded for delivery."""

    make: Callable[[bytes], bytes]
    encoded: list[Encoded]


def write_frames(
    stream: ChannelStream, messages: NewMessages, batch: str, *, now: int, atomic: bool, first: int, end: int
) -> Frames:
    """Write the messages `[first, end)`, which follow what a stream holds by now.

    Without an atomic batch each message names the one it follows, so after one that was not stored none is. Either way
    the answer to the last one tells of all of them.
    """
    encoded = encode_new(messages, first, end, stream.field, stream.last + 1, now, stream.last_time)
    subject, expected, so_far = stream.subject.encode(), stream.last, stream.bytes_so_far
    each, mark, commit = f"{BATCH}: {batch}\r\n".encode(), b"", b""
    if atomic:
        mark, commit = batches.mark_lines(batch)

    def make(reply: bytes) -> bytes:
        return write_new(messages, first, end, encoded, _WORDS, subject, reply, expected, so_far, each, mark, commit)

    return Frames(make, encoded)


def read_encoded(stream: ChannelStream, answers: list[tuple[bytes, bytes | None]]) -> Encoded:
    """Encode what a direct get gave for delivery."""
    return read_answers(answers, stream.field, _OURS, _REPLY, _AT, _read_other)


def _read_other(data: bytes, header: bytes | None) -> tuple[int, int, bytes]:
    found = read_message(data, header)
    return found.sequence, found.time, found.reply.encode()
