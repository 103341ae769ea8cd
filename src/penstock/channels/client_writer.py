"""The way out to the clients: what is to be sent is gathered and goes out in one piece, in order.

Deliveries, acks and answers share one connection and one queue, so a client sees them in the order in which they were
decided. While the connection is down nothing is sent and nothing is kept: what is due later is decided later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.channels.encoded import ClientFrames, Encoded
from penstock.channels.publishes import Publishes
from penstock.connection import Connection

if TYPE_CHECKING:
    from penstock.channels.channel import GroupDelivery

__all__ = ["ClientWriter"]

log = logging.getLogger("penstock.channels")

# Beyond this many bytes that the server has not taken, deliveries wait.
_FULL = 4 * 1024 * 1024


class ClientWriter:
    """Gathers frames, and lets deliveries decide what to send, once for each turn of the event loop."""

    def __init__(self, connection: Connection, may_send: Callable[[], bool]) -> None:
        self.connection = connection
        self.messages = 0
        self.bytes = 0
        self._may_send = may_send
        self._gathered = ClientFrames()
        self._awake: dict[GroupDelivery, None] = {}
        self._loop = asyncio.get_running_loop()
        self._scheduled: asyncio.Handle | None = None
        self._ended = False

    @property
    def up(self) -> bool:
        """Whether anything can be sent, and may be."""
        return self.connection.is_connected and self._may_send() and not self._ended

    @property
    def full(self) -> bool:
        """Whether the server is slow to take what we send."""
        return self._gathered.size + self.connection.unsent > _FULL

    def send(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        """Send a message with this turn's others; nothing to no subject, as when a request wants no answer."""
        if subject:
            self._gathered.send(subject, payload, reply)
            self._schedule()

    def answer(self, publishes: Publishes) -> None:
        """Send the acks of publishes, and what was gathered before them, now."""
        publishes.write_acks(self._gathered)
        self.flush()
        self.connection.push()

    def deliver(self, inbox: str, encoded: Encoded, place: int, end: int) -> int:
        """Send messages of a channel, up to the first that is larger than the server carries; give where they end."""
        stop = self._gathered.deliver(encoded, place, end, inbox.encode(), self.connection.max_payload)
        self.messages += stop - place
        self.bytes += encoded.start(stop) - encoded.start(place)
        self._schedule()
        return stop

    def deliver_again(self, inbox: str, content: bytes) -> None:
        """Send a message of a channel once more."""
        self.messages += 1
        self.bytes += len(content)
        self.send(inbox.encode(), content)

    def wake(self, delivery: GroupDelivery) -> None:
        """Let a group's delivery look, this turn, for what it can send."""
        self._awake[delivery] = None
        self._schedule()

    def _schedule(self) -> None:
        if self._scheduled is None and not self._ended:
            self._scheduled = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = None
        awake, self._awake = self._awake, {}
        for delivery in awake:
            try:
                delivery.pump()
            except Exception:  # one subscription's trouble must not stop the others
                log.exception("Channels: a delivery failed.")
        self.flush()

    def flush(self) -> None:
        """Send what was gathered now."""
        frames = self._gathered.take()
        if frames and self.up:
            self.connection.post(frames)

    def end(self) -> None:
        """Send what was gathered, and nothing after it."""
        self.flush()
        self._ended = True
        if self._scheduled is not None:
            self._scheduled.cancel()
