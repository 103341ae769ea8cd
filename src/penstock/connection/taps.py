"""Subscriptions whose messages are seen in the order in which the server sent them, and frames sent in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.client import Client as NatsClient
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from penstock.errors import RemoteProtocolError
from penstock.wire.protocol import hand_out

__all__ = ["Tap", "TappedClient"]

# What a tap gets: subject, reply (empty where there is none), payload, and the header block as it came.
Tap = Callable[[bytes, bytes, bytes, bytes | None], Awaitable[None] | None]


class TappedClient(NatsClient):
    """nats-py's client with taps.

    nats-py gives every subscription a queue and a task, so messages of two subscriptions may overtake each other, and
    each message costs a turn of the event loop. A tap is called as the message is read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._taps: dict[int, Tap] = {}
        self._ps = _TapParser(self)

    async def tap(self, subject: str, handler: Tap, *, queue: str = "") -> int:
        """Subscribe with a handler that is called as each message is read, and give the subscription's number.

        A handler must not raise. One that returns an awaitable stops the reading until that is done: that is back
        pressure.
        """
        self._sid += 1
        sid = self._sid
        # nats-py subscribes again after a reconnection to everything in this table.
        self._subs[sid] = subscription = Subscription(self, sid, subject=subject, queue=queue)
        self._taps[sid] = handler
        await self._send_subscribe(subscription)
        return sid

    async def untap(self, sid: int) -> None:
        """End the subscription of a tap."""
        if self._taps.pop(sid, None) is not None:
            self._remove_sub(sid)
            if not self.is_closed:
                await self._send_unsubscribe(sid)

    def post(self, frames: bytes) -> bool:
        """Send ready frames, many in one piece; False, and nothing is sent or kept, while there is no connection."""
        if not self.is_connected:
            return False
        self._pending.append(frames)
        self._pending_data_size += len(frames)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
        return True

    @property
    def unsent(self) -> int:
        """Bytes that wait here for the server to take them."""
        waiting: int = self._pending_data_size
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer is not None:
            waiting += self._transport._io_writer.transport.get_write_buffer_size()
        return waiting


class _TapParser(Parser):
    """nats-py's parser with a short way for messages that have arrived whole.

    What is no message goes nats-py's own way, a line at a time, so that its state never leaves the start of a line.
    """

    nc: TappedClient

    def reset(self) -> None:
        """Begin anew, on a new connection."""
        super().reset()
        self.wanted = 0  # bytes that the message at the start of the buffer has as a whole

    async def parse(self, data: bytes = b"") -> None:
        """Read what has arrived, and keep what is not whole."""
        if len(self.buf) + len(data) < self.wanted:  # a large message: gather it before looking at it again
            self.buf += data
            return
        buffer = bytes(self.buf) + data if self.buf else data
        self.buf.clear()
        self.wanted = 0
        place, size, taps = 0, len(buffer), self.nc._taps
        while place < size:
            try:
                place, self.wanted, wait = hand_out(buffer, place, taps)
            except RemoteProtocolError as error:
                raise ProtocolError(f"nats: {error.what}") from None
            if wait is not None:
                await wait
                continue
            if self.wanted or (line_end := buffer.find(b"\r\n", place)) < 0:
                break
            place, self.wanted = await self._one(buffer, place, line_end + 2)
            if self.wanted:
                break
        if place < size:
            self.buf += buffer[place:]

    async def _one(self, buffer: bytes, place: int, start: int) -> tuple[int, int]:
        """Take what no tap takes: a message for nats-py, or a line that is none.

        Gives the place behind it; or where it begins and the bytes that it has as a whole, until all of it has come.
        """
        words = buffer[place:start].split()
        if not words or words[0] not in (b"MSG", b"HMSG"):
            await super().parse(buffer[place:start])
            return start, 0
        head = int(words[-2]) if words[0] == b"HMSG" else 0
        end = start + int(words[-1])
        if end + 2 > len(buffer):
            return place, end + 2 - place
        reply = words[3] if len(words) > (5 if words[0] == b"HMSG" else 4) else b""
        header: Any = buffer[start : start + head] if head else None  # nats-py wants bytes, and takes None
        await self.nc._process_msg(int(words[2]), words[1], reply, buffer[start + head : end], header)
        return end + 2, 0
