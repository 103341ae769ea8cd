"""A subscription: messages for a callback or an iterator, in a bounded queue."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.connection.messages import Msg
from penstock.errors import DeadlineError, DisconnectedError, InputError, PenstockError

if TYPE_CHECKING:
    from penstock.connection.connection import Connection
    from penstock.wire.dispatch import Taker

__all__ = ["PENDING_BYTES", "PENDING_MESSAGES", "Subscription", "served"]

log = logging.getLogger("penstock.connection")

PENDING_MESSAGES = 512 * 1024
PENDING_BYTES = 128 * 1024 * 1024
AGAIN = 2.0  # seconds between two times that a lasting subscription is asked for: permissions come back

Callback = Callable[[Msg], Awaitable[None]]


class Subscription:
    """Messages of a subject, or of a pattern; made by `Connection.subscribe` and `Connection.tap`.

    What arrives waits in a queue until a callback or an iteration takes it. A message that finds the queue full is
    dropped, counted in `dropped`, and told to the connection's error callback. A tap has no queue.
    """

    def __init__(
        self,
        connection: Connection,
        sid: int,
        subject: str,
        queue: str = "",
        *,
        cb: Callback | None = None,
        future: asyncio.Future[Msg] | None = None,
        max_msgs: int = 0,
        pending_msgs_limit: int = PENDING_MESSAGES,
        pending_bytes_limit: int = PENDING_BYTES,
        tap: Taker | None = None,
        on_end: Callable[[PenstockError], None] | None = None,
        quiet: bool = False,
        lend: bool = False,
        lasting: bool = False,
    ) -> None:
        self._connection = connection
        self.id = sid
        self.subject = subject
        self.queue = queue
        self.delivered = 0
        """How many messages came, dropped ones included; taps do not count."""
        self.dropped = 0
        """How many found the queue full."""
        self.max_msgs = max_msgs
        """After how many messages it ends by itself; 0 for never."""
        self.error: PenstockError | None = None
        """Why the server does not serve it, if it does not."""
        self.ended = False
        self.quiet = quiet
        """Whether it may be denied without anybody being told but who made it."""
        self.lend = lend
        """Whether its tap gets payloads in the place that they were received into."""
        self.lasting = lasting
        """Whether it is asked for again if the server ends it."""
        self.was_served = False
        self._cb = cb
        self._future = future
        self._on_end = on_end
        self._messages_limit = pending_msgs_limit if pending_msgs_limit > 0 else 1 << 62
        self._bytes_limit = pending_bytes_limit if pending_bytes_limit > 0 else 1 << 62
        self._queue: deque[Msg] = deque()
        self._pending_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self.taker: Taker = tap or self._take
        if cb is not None:
            self._pump = asyncio.get_running_loop().create_task(self._call_back(cb))
            connection.pumps.add(self._pump)
            self._pump.add_done_callback(connection.pumps.discard)

    @property
    def pending_msgs(self) -> int:
        """How many messages wait here."""
        return len(self._queue)

    @property
    def pending_bytes(self) -> int:
        """How many bytes of payloads and headers wait here."""
        return self._pending_bytes

    # -- arrivals -------------------------------------------------------------------------------------------------

    def _take(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        self.delivered += 1
        queue = self._queue
        size = self._pending_bytes + len(payload)
        if block is not None:
            size += len(block)
        if len(queue) >= self._messages_limit or size > self._bytes_limit:
            self.dropped += 1
            self._connection.report_slow(self)
        else:
            queue.append(Msg(self._connection, self.id, subject, reply, payload, block))
            self._pending_bytes = size
            if self._idle is not None:
                idle, self._idle = self._idle, None
                if not idle.done():
                    idle.set_result(None)
            elif self._waiters or self._future is not None:
                self._wake()
        if self.max_msgs and self.delivered >= self.max_msgs:
            self.ended = True
            self._connection.forget(self)
            self._wake_all()

    def _wake(self) -> None:
        if self._future is not None:
            future, self._future = self._future, None
            if not future.done():
                future.set_result(self._pop())
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _pop(self) -> Msg:
        message = self._queue.popleft()
        self._pending_bytes -= len(message.data)
        if message.header_block is not None:
            self._pending_bytes -= len(message.header_block)
        if self.dropped and not self._queue:
            self._connection.caught_up(self)
        return message

    async def _call_back(self, cb: Callback) -> None:
        queue = self._queue
        loop = asyncio.get_running_loop()
        while True:
            while queue:
                message = queue.popleft()
                self._pending_bytes -= len(message.data)
                if message.header_block is not None:
                    self._pending_bytes -= len(message.header_block)
                try:
                    await cb(message)
                except Exception as error:  # a callback may raise anything; the next message is not its fault
                    self._connection.report(error)
            if self.dropped:
                self._connection.caught_up(self)
            if self.ended:
                return
            self._idle = idle = loop.create_future()
            await idle

    # -- reading --------------------------------------------------------------------------------------------------

    async def next_msg(self, timeout: float | None = 1.0) -> Msg:
        """Give the next message; DeadlineError if none comes in time; with None it waits for as long as it takes."""
        self._check_readable()
        if not self._queue:
            try:
                async with asyncio.timeout(timeout):
                    while not self._queue:
                        self._check_served()
                        await self._arrival()
            except TimeoutError:
                raise DeadlineError(
                    f"No message on {self.subject} within {timeout:g} s.", seconds=timeout, subject=self.subject
                ) from None
        return self._pop()

    @property
    def messages(self) -> AsyncIterator[Msg]:
        """The messages as they come, for `async for`; ends when the subscription or the connection does."""
        self._check_readable()
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Msg]:
        while True:
            while self._queue:
                yield self._pop()
            if self.error is not None:
                raise self.error
            if self.ended:
                return
            await self._arrival()

    async def _arrival(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():  # woken and cancelled at once: somebody else shall have the message
                self._wake()
            raise

    def _check_readable(self) -> None:
        if self._cb is not None or self.taker != self._take:
            raise InputError(
                f"The subscription to {self.subject} has a {'callback' if self._cb else 'handler'}, which gets its "
                "messages.",
                remedy="Subscribe without cb to read them one by one.",
            )

    def _check_served(self) -> None:
        if self.error is not None:
            raise self.error
        if self.ended:
            gone = "The connection was closed" if self._connection.is_closed else f"{self.subject} was unsubscribed"
            raise DisconnectedError(f"{gone}: no message comes any more.")

    # -- ending ---------------------------------------------------------------------------------------------------

    async def unsubscribe(self, limit: int = 0) -> None:
        """End the subscription, at once or after `limit` messages in all."""
        self.lasting = False
        if self.ended:
            return
        self._connection.check_open()
        if limit > self.delivered:
            self.max_msgs = limit
            self._connection.end_after(self, limit)
            return
        self._connection.unsubscribe(self)
        self.end()

    async def drain(self) -> None:
        """Ask for no more messages, and wait until those that were sent are handled."""
        self.lasting = False
        if self.ended:
            return
        self._connection.check_open()
        await self._connection.drain_subscription(self)

    def end(self, error: PenstockError | None = None, *, gone: PenstockError | None = None, asked: bool = True) -> None:
        """Let whoever waits go; if somebody `asked` for the end, what waits for a callback is dropped.

        `error` is why the server does not serve it, `gone` why there is no connection any more.
        """
        if error is not None:
            self.error = error
        self.ended = True
        if self._cb is not None and asked and error is None:
            self._queue.clear()
            self._pending_bytes = 0
        self._wake_all()
        if self._future is not None and not self._future.done():
            self._future.cancel()
        if self._on_end is not None and (reason := error or gone) is not None:
            self._on_end(reason)
        if error is not None and self.lasting and self.was_served:
            again = asyncio.get_running_loop().create_task(_serve_again(self, error))
            self._connection.asking_again.add(again)
            again.add_done_callback(self._connection.asking_again.discard)

    def begin_again(self) -> None:
        """Ask the server for it once more."""
        self.ended, self.error, self.was_served = False, None, False
        self._connection.ask_for(self)

    def finish(self) -> None:
        """End when everything in the queue was handled."""
        self.ended = True
        self._wake_all()

    async def handled(self, within: float) -> None:
        """Wait until a callback has handled all that arrived; DeadlineError if that takes too long."""
        if self._pump is None or self._pump is asyncio.current_task():
            return
        if not (await asyncio.wait({self._pump}, timeout=within))[0]:
            raise DeadlineError(
                f"The callback of {self.subject} has not handled all that arrived within {within:g} s.",
                seconds=within,
                subject=self.subject,
            )


async def served(*subscriptions: Subscription, timeout: float = 10.0) -> None:
    """Wait until the server serves subscriptions of one connection: DeniedError if it does not permit one of them.

    If that fails, they are all ended.
    """
    try:
        if subscriptions:
            await subscriptions[0]._connection.flush(timeout)
        for item in subscriptions:
            if item.error is not None:
                raise item.error
            item.was_served = True
    except BaseException:
        for item in subscriptions:
            if not item.ended:
                item._connection.unsubscribe(item)
                item.end()
        raise


async def _serve_again(subscription: Subscription, error: PenstockError) -> None:
    """Ask for a subscription that the server has ended until it serves it, or nobody wants it any more."""
    subject, quiet = subscription.subject, subscription.quiet
    why = subscription._connection.options.scrub(str(error))
    level = logging.DEBUG if quiet else logging.ERROR
    log.log(level, "No message comes on %s any more: %s It is asked for again every %g s.", subject, why, AGAIN)
    while True:
        await asyncio.sleep(AGAIN)
        connection = subscription._connection
        if not subscription.lasting or connection.is_closed or connection.is_draining:
            return
        try:
            subscription.quiet = True  # who had to be told knows of it
            subscription.begin_again()
            await served(subscription)
        except PenstockError as reason:
            log.debug("Still no message comes on %s: %s", subject, reason)
        else:
            log.log(min(level, logging.WARNING), "Messages come on %s again.", subject)
            return
        finally:
            subscription.quiet = quiet
