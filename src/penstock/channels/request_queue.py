"""Requests in the order in which NATS delivered them, whatever subject they came on; bounded by their bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.channels.service import Service

__all__ = ["Handle", "RequestQueue"]

_BYTES = 64 * 1024 * 1024
_EACH = 64  # bytes that a request costs us beside its content

Handle = Callable[["Service", bytes, bytes], Awaitable[None]]
"""What handles a request, given the subject for the answer and the content."""
Item = tuple["Handle | None", bytes, bytes]


class RequestQueue:
    """Requests that wait to be handled: who handles each, where its answer goes, its content.

    A publish has no handler: those that follow each other are taken together.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, handle: Handle | None, reply: bytes, content: bytes) -> Awaitable[object] | None:
        """Add a request; what is returned, if anything, is to be awaited before more is read."""
        self._items.append((handle, reply, content))
        self._bytes += len(content) + _EACH
        self._arrived.set()
        if self._bytes <= _BYTES:
            return None
        self._room.clear()
        return self._room.wait()

    async def arrival(self) -> None:
        """Wait until there is a request."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()

    def take(self) -> Item:
        """Take the first request."""
        item = self._items.popleft()
        self._bytes -= len(item[2]) + _EACH
        if self._bytes <= _BYTES // 2:
            self._room.set()
        return item

    def take_publishes(self, most: int) -> list[tuple[bytes, bytes]]:
        """Take the publishes that stand in front of everything else: subjects for the answers, and contents."""
        found: list[tuple[bytes, bytes]] = []
        while self._items and self._items[0][0] is None and len(found) < most:
            found.append(self.take()[1:])
        return found

    def release(self) -> None:
        """Let whoever waits for room go: nobody will take anything any more."""
        self._room.set()
