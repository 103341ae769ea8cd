"""A subscription of our client: messages in order, handed over one at a time, acknowledged after each."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.channels.wire import Ack, MsgProto, decode, frame
from penstock.errors import DeniedError, DisconnectedError, PenstockError, RemoteProtocolError

if TYPE_CHECKING:
    from penstock.channels.client import Client
    from penstock.connection import Connection
    from penstock.connection import Subscription as TapSubscription

__all__ = ["Message", "Subscription"]

log = logging.getLogger("penstock.channels")

_BEYOND = 16  # times max_in_flight that are kept; the server may send more: see `_receive`


@dataclass(slots=True, eq=False, repr=False)
class Message:
    """A message of a channel; `timestamp` is nanoseconds since 1970."""

    _subscription: Subscription
    channel: str
    sequence: int
    timestamp: int
    data: bytes
    reply: str
    redelivery_count: int
    redelivered: bool

    @property
    def time(self) -> datetime:
        """When the server took the message."""
        return datetime.fromtimestamp(self.timestamp / 1e9, UTC)

    def ack(self) -> None:
        """Acknowledge the message; if the connection is down, the server sends it again."""
        self._subscription.acknowledge(self)

    def __repr__(self) -> str:
        return f"<Message {self.sequence} of {self.channel}, {len(self.data)} bytes>"


@dataclass(eq=False, repr=False)
class Subscription:
    """What `Client.subscribe` gives: iterate over it, or let its handler work, and end it."""

    client: Client
    channel: str
    inbox: str
    _handler: Callable[[Message], Awaitable[None]] | None
    _manual_acks: bool
    _most: int  # messages that the server may wait for our acks of
    _durable: bool = False
    ack_inbox: str = ""
    _ack_subject: bytes = b""
    _acks: Connection | None = None  # where they go, until the end
    _tap: TapSubscription | None = None
    # A message that comes again while it still waits here is kept once.
    _waiting: OrderedDict[int, Message] = field(default_factory=OrderedDict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _current: Message | None = None
    _ended: bool = False
    _full: bool = False  # whether it was told that more came than is kept
    _left: bool = False  # whether it ended by itself, and the server was told
    _error: PenstockError | None = None  # why it cannot go on
    _watch: ExitStack = field(default_factory=ExitStack)

    # -- life --------------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Begin to receive, before the server is asked to send."""
        self._tap = await self.client.connection.tap(self.inbox, self._receive, on_end=self._deaf)

    def begin(self, ack_inbox: str) -> None:
        """Begin to hand messages over: the server said where acks go. DeniedError if NATS does not let us receive."""
        if self._tap is not None and self._tap.error is not None:
            raise self._tap.error
        self.ack_inbox, self._ack_subject = ack_inbox, ack_inbox.encode()
        self._acks = self.client.connection
        self._watch.enter_context(self._acks.expecting(ack_inbox, self._denied))
        if self._handler is not None:
            self._task = asyncio.get_running_loop().create_task(self._work(self._handler))

    async def end(self, reason: PenstockError | None = None) -> None:
        """Stop receiving; the server is not told. Whoever iterates is told the reason, if there is one."""
        self._ended, self._acks = True, None
        self._error = self._error or reason
        self._arrived.set()
        self._watch.close()
        if self._tap is not None:
            await self._tap.unsubscribe()
            self._tap = None
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def unsubscribe(self) -> None:
        """End the subscription for good: a durable one loses its position."""
        await self._leave(unsubscribe=True)

    async def close(self) -> None:
        """End the subscription; a durable one keeps its position at the server."""
        await self._leave(unsubscribe=False)

    async def _leave(self, *, unsubscribe: bool) -> None:
        if self._ended:
            raise DisconnectedError(f"The subscription to {self.channel} has ended already.")
        await self.end()
        if not self._left:
            await self.client.leave(self, unsubscribe=unsubscribe)
            return
        self.client.forget(self)
        if unsubscribe and self._durable:
            raise DisconnectedError(
                f"The subscription to {self.channel} has ended by itself, and the server keeps its position.",
                remedy="Subscribe again under its name, and unsubscribe.",
            )

    def _deaf(self, error: PenstockError) -> None:
        """End if NATS does not let us receive any more; if the connection is gone, the client ends all that it has."""
        if isinstance(error, DeniedError) and self._acks is not None:
            self._denied(error)

    def _denied(self, error: DeniedError) -> None:
        """Hand nothing more over: what cannot be acknowledged comes again and again."""
        self._error = error
        self._arrived.set()
        self._give_up()

    def _give_up(self) -> None:
        """Let the server send to others what nobody acknowledges here."""
        if not (self._ended or self._left):
            self._left = self.client.post_close(self)

    @property
    def pending(self) -> int:
        """Messages that were received and not handed over yet."""
        return len(self._waiting)

    # -- messages ----------------------------------------------------------------------------------------------------

    def _receive(self, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        if self._error is not None:
            return  # nobody will take it
        try:
            got = decode(MsgProto, data)
        except RemoteProtocolError as error:
            log.warning("Channels: bytes on the inbox of a subscription are not a message: %s", error)
            return
        if got.sequence in self._waiting:
            return
        if len(self._waiting) >= _BEYOND * self._most:
            # The server may send on though nothing was acknowledged: it gives a message of a queue group to another
            # member after ack_wait, and forgets one that a limit removed. What is not kept comes again if it must.
            if not self._full:
                self._full = True
                log.warning(
                    "Channels: %d messages of %s wait to be read, and more come. They are not kept, and the server "
                    "sends them again, here or to others of the queue group. Read them sooner, or raise ack_wait.",
                    len(self._waiting),
                    self.channel,
                )
            return
        self._waiting[got.sequence] = Message(
            self, got.subject, got.sequence, got.timestamp, got.data, got.reply, got.redeliveryCount, got.redelivered
        )
        self._arrived.set()

    def acknowledge(self, message: Message) -> None:
        """Acknowledge one of this subscription's messages."""
        if self._acks is not None:
            content = Ack(subject=message.channel, sequence=message.sequence).SerializeToString()
            self._acks.post(frame(self._ack_subject, content))

    async def _work(self, handler: Callable[[Message], Awaitable[None]]) -> None:
        try:
            async for message in self:
                try:
                    await handler(message)
                except Exception as error:
                    self._current = None  # it is not acknowledged
                    await self.client.failed(error)
                if self._ended:
                    return
        except DeniedError as error:
            await self.client.failed(error)
        except asyncio.CancelledError:
            self._give_up()  # a handler that was cancelled by itself, if this is not the end
            raise

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        done, self._current = self._current, None
        if done is not None and not self._manual_acks:
            self.acknowledge(done)
        while self._error is not None or not self._waiting:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        _, self._current = self._waiting.popitem(last=False)
        return self._current

    async def next(self, timeout: float) -> Message:
        """Give the next message, or raise TimeoutError; the one given before is acknowledged."""
        async with asyncio.timeout(timeout):
            try:
                return await anext(self)
            except StopAsyncIteration:
                raise DisconnectedError(f"The subscription to {self.channel} has ended.") from None
