"""An ordered read of a stream: which of a push consumer's messages is the next one, and whether one was lost. Pure.

The consumer acknowledges nothing, and counts what it sends. So a message is the next one if its number is the next
number; a heartbeat says the last number, so that a loss at the end shows, too::

    $JS.ACK.<stream>.<consumer>.1.<sequence>.<number>.<nanoseconds>.<pending>     the reply subject of a message
    NATS/1.0 100 Idle Heartbeat       Nats-Last-Consumer: <number>  Nats-Consumer-Stalled: <subject>
    NATS/1.0 100 FlowControl Request  its reply subject, and that of a stalled one, want an empty answer

(<domain>.<account> stand before the stream if the server speaks of domains.) What was lost is had from a new consumer,
which begins behind the last sequence that came.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.wire.jetstream.direct import value, whole
from penstock.wire.jetstream.names import ACK, CONSUMER_STALLED, LAST_CONSUMER

__all__ = ["Numbering", "OrderedMessage", "Said"]

_ACK = f"{ACK}.".encode()
_LAST_CONSUMER, _STALLED = (f"\r\n{name}:".encode() for name in (LAST_CONSUMER, CONSUMER_STALLED))
_HEARTBEAT = b"NATS/1.0 100"
_LATEST = 2**63  # nanoseconds, in the year 2262: the server counts no further


class OrderedMessage(NamedTuple):
    """A message as an ordered read gives it."""

    subject: bytes
    sequence: int
    nanoseconds: int
    """When it was stored, since 1970."""
    pending: int
    """How many wait behind it."""
    data: bytes
    header_block: bytes | None


class Said(enum.Enum):
    """What the server said when it sent no message."""

    ALIVE = "alive"
    """It has sent all there is, and all of it came."""
    WAITS = "waits"
    """It sends no more until its question is answered."""
    LOST = "lost"
    """It sent something that did not come, or that is not part of this read."""


class Numbering:
    """The messages of one consumer, checked for order."""

    __slots__ = ("came", "question", "sequence")

    def __init__(self, sequence: int = 0) -> None:
        self.came = 0
        """How many messages of this consumer came."""
        self.sequence = sequence
        """The last sequence that came, of this consumer or of one before it."""
        self.question = b""
        """The subject that wants an empty answer, once all before it is read."""

    def hear(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> OrderedMessage | Said:
        """Take what came: give the message, or what was said instead."""
        if not reply.startswith(_ACK):
            return self._status(reply, block or b"")
        tokens = reply.split(b".")
        first = 5 if len(tokens) == 9 else 7
        try:
            sequence, number, nanoseconds, pending = map(int, tokens[first : first + 4])
            if not 0 <= nanoseconds < _LATEST:
                raise ValueError
        except ValueError:
            raise RemoteProtocolError(f"{reply[:200]!r} is not the reply subject of a delivery.") from None
        if number != self.came + 1 or sequence <= self.sequence:
            return Said.LOST
        self.came, self.sequence = number, sequence
        return OrderedMessage(subject, sequence, nanoseconds, pending, payload, block)

    def _status(self, reply: bytes, block: bytes) -> Said:
        if not block.startswith(_HEARTBEAT):
            return Said.LOST  # the consumer was deleted, or its server stops
        self.question = reply or value(block, _STALLED)
        last = whole(value(block, _LAST_CONSUMER))
        if last is not None and last != self.came:
            return Said.LOST
        return Said.WAITS if self.question else Said.ALIVE
