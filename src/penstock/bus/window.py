"""Our extension of the protocol: many elements in flight, large elements in pieces, nothing lost on the way.

A requester that knows it says so in a header of its request; a handler that knows it answers with the same
header on MiscInboxName. A peer of the reference looks at no header and gets the plain protocol::

    Penstock-Bus: 1; window=UNITS; bytes=BYTES; element=BYTES

From then on the handler sends runs of numbered units instead of bare packets, as many as the window has room
for. Numbers are eight bytes and lengths four, the lower first::

    Run  = 0x07 Number_8 {UnitLen_4 Unit}      Number is that of the first unit; without units a probe
    Unit = Section+Elem | Elem | Close | Part | Last
    Part = 0x08 Bytes                          a piece of a packet that is too large for one message
    Last = 0x09 Bytes                          its last piece: all pieces together are one packet

    Misc Stream = GoOn | NoConsumer | SlowConsumer | Resend
    GoOn        = 0x00 Count_8                 so many units were taken since the beginning
    Resend      = 0x03 Number_8                something was lost: send again from this unit on

Room comes back as the reader takes units, not as they arrive, so that a reader that pauses stops the handler.
Counts are of all units since the beginning: a signal that is lost is made good by the next one. Pure.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from penstock.bus.wire import Misc
from penstock.errors import RemoteProtocolError
from penstock.wire.protocol import decode_headers

__all__ = [
    "HEADER",
    "LAST",
    "PART",
    "PIECE",
    "RESEND",
    "RUN",
    "Offer",
    "ReceiveWindow",
    "SendWindow",
    "Signal",
    "decode_signal",
    "header_of",
    "split",
]

HEADER = "Penstock-Bus"
RUN, PART, LAST = 7, 8, 9
RESEND = 3
PIECE = 256 * 1024  # small enough that several share a window of 1 MiB
RUN_HEAD, UNIT_HEAD = 9, 4
CLOSE_ROOM = 64 * 1024  # Close needs no room in a window; its text is shorter than this
LEAST = 1024  # a window of fewer bytes would be all heads
_OFFER = re.compile(r"1; window=(\d{1,6}); bytes=(\d{1,12}); element=(\d{1,12})")


def header_of(block: bytes | None) -> str | None:
    """Give the value of our header in a header block; None if there is none, or the block makes no sense."""
    if block is None:
        return None
    try:
        values = decode_headers(block)[2].get(HEADER)
    except RemoteProtocolError:  # another publisher wrote them
        return None
    return values[-1] if values else None


@dataclass(frozen=True)
class Offer:
    """What a side is ready for: units and bytes in flight, and the largest element."""

    window: int
    bytes: int
    element: int

    def encode(self) -> str:
        return f"1; window={self.window}; bytes={self.bytes}; element={self.element}"

    @classmethod
    def decode(cls, text: str | None) -> Offer | None:
        """Read the header; None if there is none that we understand, which means the plain protocol."""
        match = _OFFER.fullmatch(text or "")
        offer = cls(*map(int, match.groups())) if match else None
        return offer if offer and offer.window and min(offer.bytes, offer.element) >= LEAST else None

    def meet(self, other: Offer) -> Offer:
        """Give what both sides are ready for."""
        # The largest element is a limit of the reader alone.
        return Offer(min(self.window, other.window), min(self.bytes, other.bytes), other.element)


@dataclass(frozen=True, slots=True)
class Signal:
    """A packet of the misc stream, with its number if it has one."""

    kind: int
    number: int = 0

    def encode(self) -> bytes:
        head = bytes((self.kind,))
        return head + self.number.to_bytes(8, "little") if self.kind in (Misc.GO_ON, RESEND) else head


def decode_signal(data: bytes) -> Signal:
    """Read a packet of the misc stream in the extension."""
    if len(data) == 1 and data[0] in (Misc.NO_CONSUMER, Misc.SLOW_CONSUMER):
        return Signal(data[0])
    if len(data) == 9 and data[0] in (Misc.GO_ON, RESEND):
        return Signal(data[0], int.from_bytes(data[1:], "little"))
    raise RemoteProtocolError(f"The requester sent {data[:16]!r}, which is not a signal.", place=0)


def split(packet: bytes, most: int) -> Iterator[bytes]:
    """Give a packet as units of at most `most` bytes: itself, or pieces of it."""
    if len(packet) <= most:
        yield packet
        return
    size, view = most - 1, memoryview(packet)
    for start in range(0, len(packet), size):
        mark = LAST if start + size >= len(packet) else PART
        yield b"".join((bytes((mark,)), view[start : start + size]))


class SendWindow:
    """The handler's side of a window: numbers units, keeps those in flight, and says when there is room."""

    def __init__(self, units: int, size: int) -> None:
        self.units, self.size = units, size
        self.first = 0  # number of the oldest unit in flight
        self.bytes = 0  # bytes in flight
        self._held: deque[bytes] = deque()
        self._next = 0  # number of the next unit to put into a run
        self._sent = 0  # number after the highest that ever was in one

    @property
    def end(self) -> int:
        """The number that the next new unit will have."""
        return self.first + len(self._held)

    def fits(self, size: int) -> bool:
        """Tell whether a unit of so many bytes may be added; one alone always may."""
        return not self._held or (len(self._held) < self.units and self.bytes + size <= self.size)

    def push(self, unit: bytes) -> None:
        self._held.append(unit)
        self.bytes += len(unit)

    def run(self, most: int) -> bytes | None:
        """Give the next run of at most `most` bytes, or None when everything was sent."""
        if self._next >= self.end:
            return None
        parts, size = [bytes((RUN,)), self._next.to_bytes(8, "little")], RUN_HEAD
        for unit in islice(self._held, self._next - self.first, None):
            size += UNIT_HEAD + len(unit)
            if size > most and len(parts) > 2:
                break
            parts += (len(unit).to_bytes(4, "little"), unit)
            self._next += 1
        self._sent = max(self._sent, self._next)
        return b"".join(parts)

    def probe(self) -> bytes:
        """Give an empty run, which makes the reader say what it has."""
        return bytes((RUN,)) + self._sent.to_bytes(8, "little")

    def taken(self, count: int) -> bool:
        """Note that the reader has taken so many units; tell whether that is news."""
        if count > self._sent:
            raise RemoteProtocolError(f"The requester took {count} units, and {self._sent} were sent.", place=1)
        news = count > self.first
        while self.first < count:
            self.bytes -= len(self._held.popleft())
            self.first += 1
        self._next = max(self._next, self.first)
        return news

    def rewind(self, number: int) -> None:
        """Send again from this unit on; what was taken meanwhile is not sent again."""
        if number > self._sent:
            raise RemoteProtocolError(
                f"The requester asks for unit {number} again, and {self._sent} were sent.", place=1
            )
        self._next = max(self.first, min(self._next, number))


class ReceiveWindow:
    """The requester's side of a window: takes each unit once, in order, and notices gaps."""

    def __init__(self, units: int, size: int) -> None:
        self.units, self.size = units, size
        self.expected = 0  # number of the next unit to arrive
        self.taken = 0  # units that the reader has taken
        self.bytes = 0  # bytes that wait for the reader

    def feed(self, run: bytes) -> tuple[list[bytes], bool]:
        """Give the units that are new, and whether some before them are missing."""
        if len(run) < RUN_HEAD or run[0] != RUN:
            raise RemoteProtocolError(f"The handler sent {run[:16]!r} where a run was due.", place=0)
        number, place, units = int.from_bytes(run[1:9], "little"), RUN_HEAD, []
        if number > self.expected:
            return [], True
        while place < len(run):
            end = place + UNIT_HEAD + int.from_bytes(run[place : place + UNIT_HEAD], "little")
            if end > len(run) or end == place + UNIT_HEAD:
                raise RemoteProtocolError("A run holds a unit that is cut or empty.", place=place)
            if number == self.expected:
                units.append(run[place + UNIT_HEAD : end])
                self.bytes += end - place - UNIT_HEAD
                self.expected += 1
            number, place = number + 1, end
        waiting = self.expected - self.taken
        if waiting > self.units + 1 or self.bytes > self.size + CLOSE_ROOM:
            raise RemoteProtocolError(f"The handler sent {waiting} units ({self.bytes:,} bytes), more than the window.")
        return units, False

    def take(self, size: int) -> None:
        self.taken += 1
        self.bytes -= size
