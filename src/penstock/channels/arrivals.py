# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""What arrives most often: publishes, which wait for their turn with all other requests, and acks of subscribers.

An ack is nearly always the bytes that every ack of its channel begins with, and a sequence::

    0a size channel   10 sequence

The C types stand in arrivals.pxd, which only the compiler reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

from penstock.connection.waiter import Lookout, Waiter

__all__ = ["COMPILED", "RESERVED", "SOON", "AckEntry", "ArrivingAcks", "RequestQueue", "sequence_in"]

COMPILED: bool = bool(cython.compiled)

RESERVED = b"$"
"""What begins the subjects of JetStream: an answer there would be a request in our name."""
SOON = 0.0005
"""Seconds for which the gateway does not sleep, if a lone publish, or its ack, may come soon."""
_REQUEST_BYTES = 64  # that a request costs us beside its content

Item = tuple[Any, bytes, bytes]


class RequestQueue:
    """Requests that wait to be handled: who handles each, where its answer goes, its content.

    A publish has no handler: those that follow each other are taken together. Beyond `most` bytes whoever adds is to
    wait.
    """

    def __init__(self, most: int, soon: Callable[[Callable[[], None]], object]) -> None:
        """Begin; `soon` calls what lets whoever takes go on, when nothing more arrives at the moment."""
        self._most = most
        self._soon = soon
        self._items: deque[Item] = deque()
        self._size = 0
        self._waiter: Waiter | None = None  # of whoever takes
        self._watch = Lookout(SOON)
        self._alone = False  # whether the last publish came without others
        self._room = asyncio.Event()
        self._room.set()

    def put(self, handle: Any, reply: bytes, content: bytes) -> Awaitable[object] | None:
        """Add a request; what is returned, if anything, is to be awaited before more is read.

        One that wants its answer on a subject that is `RESERVED` gets none.
        """
        self.add(handle, b"" if reply[:1] == RESERVED else reply, content)
        if self._size <= self._most:
            return None
        self._room.clear()
        return self._room.wait()

    def publish(self, subject: bytes, reply: bytes, content: bytes, header: bytes | None) -> Awaitable[object] | None:
        """Add a publish as it arrives."""
        return self.put(None, reply, content)

    def add(self, handle: Any, reply: bytes, content: bytes) -> int:
        """Add a request of our own, for which there is always room."""
        self._items.append((handle, reply, content))
        self._size += len(content) + _REQUEST_BYTES
        if self._waiter is not None:
            self._soon(self._waiter.wake_now)
            self._waiter = None
        return 0

    async def arrival(self) -> None:
        """Wait until there is a request."""
        while not self._items:
            self._waiter = waiter = Waiter(asyncio.get_running_loop())
            await (self._watch.wait(waiter) if self._alone else waiter)

    def take(self) -> Item:
        """Take the first request."""
        item = self._items.popleft()
        self._size -= len(item[2]) + _REQUEST_BYTES
        if self._size <= self._most // 2:
            self._room.set()
        return item

    def take_publishes(self, most: int) -> list[tuple[bytes, bytes]]:
        """Take the publishes that stand in front of everything else: subjects for the answers, and contents."""
        found: list[tuple[bytes, bytes]] = []
        items = self._items
        while items and len(found) < most and items[0][0] is None:
            item = items.popleft()
            self._size -= len(item[2]) + _REQUEST_BYTES
            found.append((item[1], item[2]))
        self._alone = len(found) == 1
        if self._size <= self._most // 2:
            self._room.set()
        return found

    def release(self) -> None:
        """Let whoever waits for room go: nobody will take anything any more."""
        self._room.set()


def sequence_in(content: bytes, place: int) -> int:
    """Read the sequence of an ack that stands from `place` to its end; -1 for anything but one number of 63 bits."""
    end = len(content)
    if end - place > 9:
        return -1
    value = shift = 0
    while place < end:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value if place == end else -1
    return -1


class AckEntry:
    """A subscription whose acks arrive on a subject: its channel, its member, and how its acks begin."""

    def __init__(self, channel: Any, member: Any, start: bytes) -> None:
        self.channel = channel
        self.member = member
        self.start = start
        self.settled = False
        """Whether it was told in this turn of the event loop that something is settled."""


class ArrivingAcks:
    """Acks as they arrive, by the subject that they come on; they take effect at once.

    `settled` is called for a subscription when an ack has settled a message, once a turn of the event loop. `other`
    gives the sequence of an ack that is written in another way; None if it is not an ack, or not for the channel.
    """

    def __init__(self, settled: Callable[[AckEntry], None], other: Callable[[AckEntry, bytes], int | None]) -> None:
        self.entries: dict[bytes, AckEntry] = {}
        self._settled = settled
        self._other = other
        self._now: list[AckEntry] = []
        self._loop = asyncio.get_running_loop()

    def take(self, subject: bytes, reply: bytes, content: bytes, header: bytes | None) -> None:
        """Take an ack."""
        entry = self.entries.get(subject)
        if entry is None:
            return
        sequence = sequence_in(content, len(entry.start)) if content.startswith(entry.start) else -1
        if sequence < 0:
            found = self._other(entry, content)
            if found is None:
                return
            sequence = found
        member = entry.member
        group = member.group
        if group is None or not group.ack(member, sequence) or entry.settled:
            return
        if not self._now:
            # It comes behind the deliveries that `settled` may wake: they see all acks that came with this one.
            self._loop.call_soon(self._turn)
        entry.settled = True
        self._now.append(entry)
        self._settled(entry)

    def _turn(self) -> None:
        for entry in self._now:
            entry.settled = False
        self._now.clear()
