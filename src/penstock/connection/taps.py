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
Tap = Callable[[bytes, bytes, Any, bytes | None], Awaitable[None] | None]

_GRAIN = 16 * 1024  # room grows in steps: the next message is often a few bytes longer
_KEPT = 2 * 1024 * 1024  # bytes of room for a large message that are kept for the next one


class TappedClient(NatsClient):
    """nats-py's client with taps.

    nats-py gives every subscription a queue and a task, so messages of two subscriptions may overtake each other, and
    each message costs a turn of the event loop. A tap is called as the message is read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._taps: dict[int, Tap] = {}
        self._borrowers: set[int] = set()
        self._ps = _TapParser(self)

    async def tap(self, subject: str, handler: Tap, *, queue: str = "", lend: bool = False) -> int:
        """Subscribe with a handler that is called as each message is read, and give the subscription's number.

        A handler must not raise. One that returns an awaitable stops the reading until that is done: that is back
        pressure. With `lend`, the payload of a large message is a memoryview of the place that it was received into,
        and is gone when the handler is done: what is to be kept must be copied.
        """
        self._sid += 1
        sid = self._sid
        # nats-py subscribes again after a reconnection to everything in this table.
        self._subs[sid] = subscription = Subscription(self, sid, subject=subject, queue=queue)
        self._taps[sid] = handler
        if lend:
            self._borrowers.add(sid)
        await self._send_subscribe(subscription)
        return sid

    def tapped(self, sid: int) -> Subscription:
        """Give nats-py's subscription of a tap, which may be drained and ended as any other."""
        return self._subs[sid]

    async def untap(self, sid: int) -> None:
        """End the subscription of a tap."""
        if sid in self._taps:
            self._remove_sub(sid)
            if not self.is_closed:
                await self._send_unsubscribe(sid)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        super()._remove_sub(sid, max_msgs)
        self._taps.pop(sid, None)
        self._borrowers.discard(sid)

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
    """nats-py's parser with a short way for messages.

    Messages that have arrived whole are handed out of the bytes they came in. One that has not gets a place of its
    own, is received into it, and leaves it when it is whole: a large message is copied once on its way to a tap. What
    is no message goes nats-py's own way, a line at a time, so that its state never leaves the start of a line.
    """

    nc: TappedClient

    def reset(self) -> None:
        """Begin anew, on a new connection."""
        super().reset()
        self._wanted = 0  # bytes that the message in the room has as a whole
        self._filled = 0  # and how many of them have come
        self._room = bytearray()

    @property
    def rest(self) -> bytes:
        """What has come and was not handed out."""
        return bytes(self.buf) + bytes(self._room[: self._filled])

    async def parse(self, data: bytes = b"") -> None:
        """Read what has arrived, and keep what is not whole."""
        if self._wanted:
            data = await self._gather(data)
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        place, size, taps = 0, len(data), self.nc._taps
        while place < size:
            try:
                place, wanted, wait = hand_out(data, place, taps)
            except RemoteProtocolError as error:
                raise ProtocolError(f"nats: {error.what}") from None
            if wait is not None:
                await wait
                continue
            if not wanted:
                if (line_end := data.find(b"\r\n", place)) < 0:
                    break
                place, wanted = await self._one(data, place, line_end + 2)
            if wanted:
                self._make_room(wanted)
                await self._gather(data[place:])
                return
        if place < size:
            self.buf += data[place:]

    async def _one(self, buffer: bytes, place: int, start: int) -> tuple[int, int]:
        """Take what no tap takes: a message for nats-py, or a line that is none.

        Gives the place behind it; or where it begins and the bytes that it has as a whole, until all of it has come.
        """
        words = buffer[place:start].split()
        if not words or words[0] not in (b"MSG", b"HMSG"):
            await super().parse(buffer[place:start])
            return start, 0
        end = start + int(words[-1])
        if end + 2 > len(buffer):
            return place, end + 2 - place
        await self._pass_on(words, memoryview(buffer)[start:end])
        return end + 2, 0

    def _make_room(self, wanted: int) -> None:
        self._wanted, self._filled = wanted, 0
        if len(self._room) < wanted:
            self._room = bytearray()  # so that there are never two
            self._room = bytearray((wanted // _GRAIN + 1) * _GRAIN)

    async def _gather(self, data: bytes) -> bytes:
        """Receive into the room; when the message there is whole, hand it out and give what follows it."""
        taken = min(len(data), self._wanted - self._filled)
        with memoryview(self._room) as place, memoryview(data) as source:
            place[self._filled : self._filled + taken] = source[:taken]
        self._filled += taken
        if self._filled < self._wanted:
            return b""
        room, size = self._room, self._wanted
        self._wanted = self._filled = 0
        start = room.find(b"\r\n") + 2
        if room[size - 2 : size] != b"\r\n":
            raise ProtocolError("nats: a message does not end where its line says")
        with memoryview(room) as view, view[start : size - 2] as message:
            await self._pass_on(bytes(view[:start]).split(), message)
        if len(room) > _KEPT:
            self._room = bytearray()
        return data[taken:]

    async def _pass_on(self, words: list[bytes], message: memoryview) -> None:
        """Give a whole message to the tap of its subscription, or to nats-py where there is none."""
        headed = words[0] == b"HMSG"
        head, sid = int(words[-2]) if headed else 0, int(words[2])
        reply = words[3] if len(words) > (5 if headed else 4) else b""
        header: Any = bytes(message[:head]) if head else None  # nats-py wants bytes, and takes None
        if (tap := self.nc._taps.get(sid)) is None:
            await self.nc._process_msg(sid, words[1], reply, bytes(message[head:]), header)
            return
        with message[head:] as payload:
            wait = tap(words[1], reply, payload if sid in self.nc._borrowers else bytes(payload), header)
            if wait is not None:
                await wait
