"""Subscriptions whose messages are seen in the order in which the server sent them, and frames sent in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nats.aio.client import Client as NatsClient
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

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

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self._taps.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        elif (wait := handler(subject, reply, data, headers)) is not None:
            await wait
