"""`Connection`: our NATS client for asyncio, with the names and meanings of nats-py's core client.

What is published is put together and written once a turn of the event loop; a publisher waits while the socket takes
no more. What arrives is handed out in the order of the wire. A lost connection is made again: subscriptions go on,
what was not yet handed to the socket is sent then, and whoever waits for the server to confirm what it got, as `flush`
does, is told at once. `stretch` counts the unbroken stretches: what was sent in one and not confirmed in it may or may
not have arrived.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.connection.backlog import MEMORY
from penstock.connection.callbacks import Callbacks, Expecting, is_coroutine_function
from penstock.connection.lifeline import Phase
from penstock.connection.messages import HeaderValues, Msg, Payload
from penstock.connection.publishing import PublishingConnection
from penstock.connection.requests import Answer, Requests
from penstock.connection.subscription import PENDING_BYTES, PENDING_MESSAGES, Callback, Subscription
from penstock.connection.tasks import end
from penstock.errors import (
    DeadlineError,
    DeniedError,
    DisconnectedError,
    InputError,
    PenstockError,
)
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.dispatch import Taker
from penstock.wire.session import check_size

if TYPE_CHECKING:
    from penstock.connection.jetstream import JetStream
    from penstock.connection.waiter import Lookout

__all__ = ["Connection"]

log = logging.getLogger("penstock.connection")

GOODBYE = 5.0  # seconds that a peer has to take what is on its way when we close
DRAIN = 30.0  # seconds that callbacks have to handle what has arrived


class Connection(PublishingConnection):
    """A connection to NATS, made by `penstock.connect`; for one event loop."""

    def __init__(
        self,
        options: ConnectionOptions,
        callbacks: Callbacks,
        *,
        tls: ssl.SSLContext | None = None,
        drain_timeout: float = DRAIN,
    ) -> None:
        super().__init__(options, callbacks, tls)
        self._drain_timeout = drain_timeout
        self._requests = Requests(self)
        self._closers: set[asyncio.Task[Any]] = set()
        self._over = False  # everything is closed, and callbacks hear of it

    async def open(self) -> None:
        """Make the first connection."""
        try:
            await self._lifeline.open()
        except BaseException:
            self._lifeline.phase = Phase.CLOSED
            raise

    def __repr__(self) -> str:
        return f"<Connection to {self.options.url}, {self._lifeline.phase.value}>"

    # -- subscribing ----------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        subject: str,
        queue: str = "",
        cb: Callback | None = None,
        future: asyncio.Future[Msg] | None = None,
        max_msgs: int = 0,
        pending_msgs_limit: int = PENDING_MESSAGES,
        pending_bytes_limit: int = PENDING_BYTES,
    ) -> Subscription:
        """Subscribe to a subject or pattern; messages go to `cb`, or are read from the subscription.

        A queue group gets each message once. A subscription that the server denies fails: reading from it raises
        DeniedError, and the error callback is told.
        """
        if cb is not None and not is_coroutine_function(cb):
            raise InputError("cb is not a coroutine function.", remedy="Give an async function of one message.")
        self._check_subscribable()
        return self.subscribed(
            subject,
            queue,
            cb=cb,
            future=future,
            max_msgs=max_msgs,
            pending_msgs_limit=pending_msgs_limit,
            pending_bytes_limit=pending_bytes_limit,
        )

    async def tap(
        self,
        subject: str,
        handler: Taker,
        *,
        queue: str = "",
        lend: bool = False,
        on_end: Callable[[PenstockError], None] | None = None,
        quiet: bool = False,
        guard: bool = True,
        lasting: bool = False,
    ) -> Subscription:
        """Subscribe with a handler that is called as each message is read: subject, reply, payload, header block.

        A handler must not raise. One that returns an awaitable stops the reading until that is done: that is back
        pressure. With `lend` the payload is a view of the place that it was received into, and is gone when the
        handler is done: what is to be kept must be copied. `on_end` is called with the reason when no message will
        come any more and nobody here asked for that: the server denies the subscription, or the connection is closed.
        If a `quiet` subscription is denied, only its caller is told: it was a try, and no error of the connection.
        Without `guard` the handler sees to it itself that it does not raise, and saves a call a message. If the server
        ends a `lasting` subscription that it has served, it is asked for again until it is served, or unsubscribed.
        """

        def guarded(name: bytes, reply: bytes, payload: Any, block: bytes | None) -> Any:
            try:
                wait = handler(name, reply, payload, block)
                if lend and wait is None:
                    payload.release()  # raises if the handler keeps hold of it
                return wait
            except Exception as error:  # the connection reads on, whatever is wrong there
                log.exception("The function that takes the messages of %s failed.", subject)
                self.report(error)
                return None

        self._check_subscribable()
        tap = guarded if guard else handler
        return self.subscribed(subject, queue, tap=tap, lend=lend, on_end=on_end, quiet=quiet, lasting=lasting)

    def after_reading(self, call: Callable[[], None]) -> None:
        """Have something called when all that was received at once is handed out; in the next turn if nothing is."""
        wire = self._lifeline.wire
        if wire is not None and wire.reading:
            wire.after.append(call)
        else:
            self._loop.call_soon(call)

    def _check_subscribable(self) -> None:
        self.check_open()
        if self._draining:
            raise self.drained("Subscribe")

    def subscribed(self, subject: str, queue: str, **about: Any) -> Subscription:
        """Subscribe, also while the connection is being drained: callbacks may still ask."""
        self._sid += 1
        _asking(subject, self._sid, queue)  # raises before it is made: what calls back begins then
        made = Subscription(self, self._sid, subject, queue, **about)
        self.ask_for(made)
        return made

    def ask_for(self, subscription: Subscription) -> None:
        """Ask the server for a subscription, a new one or one that it has ended."""
        frame = _asking(subscription.subject, subscription.id, subscription.queue)
        self._subscriptions[subscription.id] = subscription
        (self._borrowers if subscription.lend else self._takers)[subscription.id] = subscription.taker
        if subscription.max_msgs:
            frame += protocol.unsubscribe(subscription.id, subscription.max_msgs)
        self.post(frame)

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription at the server."""
        if subscription.id in self._subscriptions:
            self.forget(subscription)
            self.post(protocol.unsubscribe(subscription.id))

    def end_after(self, subscription: Subscription, count: int) -> None:
        """Let the server end a subscription after so many messages in all."""
        self.post(protocol.unsubscribe(subscription.id, count))

    async def drain_subscription(self, subscription: Subscription) -> None:
        """Stop a subscription at the server, and wait until what it had sent was handled.

        DisconnectedError if the connection breaks meanwhile: what the server had sent may be lost.
        """
        try:
            if self.is_connected:
                self.post(protocol.unsubscribe(subscription.id))
                await self.confirm(self.stretch, self._drain_timeout)
        finally:
            self.forget(subscription)  # before a new wire could subscribe again
            subscription.finish()
        await subscription.handled(self._drain_timeout)

    # -- asking ---------------------------------------------------------------------------------------------------

    def new_inbox(self) -> str:
        """Give a subject that nobody else uses, for answers."""
        return f"{self.options.inbox_prefix}.{secrets.token_hex(11)}"

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        timeout: float | None = None,
        old_style: bool = False,
        headers: HeaderValues | None = None,
    ) -> Msg:
        """Ask, and give the first answer.

        NoRespondersError at once if nobody listens, DeniedError at once if we may not ask, else DeadlineError.
        Every request of a connection shares one subscription; `old_style` is taken for nats-py's sake.
        """
        return Msg(self, 0, *await self._requests.ask(subject, payload, timeout, headers))

    def ask(
        self, subject: str, payload: Payload = b"", timeout: float | None = None, headers: HeaderValues | None = None
    ) -> Coroutine[Any, Any, Answer]:
        """Ask as `request` does, and give the answer as it came: subject, reply, payload and header block."""
        return self._requests.ask(subject, payload, timeout, headers)

    async def exchange(
        self,
        make: Callable[[bytes], bytes],
        hear: Callable[[bytes, bytes | None], bool],
        subjects: Collection[str],
        timeout: float | None = None,
        *,
        watch: Lookout | None = None,
    ) -> None:
        """Send ready frames in one piece and hear their answers: many messages at once, or many answers to one.

        `make` gives the frames for the reply subject that it gets; `hear` gets payload and header block of every
        answer, tells whether it was the last one, and must not raise; `subjects` are those that the frames go to.
        Nothing is kept for a later connection: DisconnectedError at once if there is none, or if it breaks before
        the last answer. DeniedError at once if the server denies one of the subjects, else DeadlineError. With `watch`
        the loop does not go to sleep meanwhile, if the answers came soon the last time.
        """
        await self._requests.exchange(make, hear, subjects, timeout, watch)

    def _fail_requests(self, error: DeniedError, inbox: Subscription | None) -> int:
        return self._requests.denied(error, inbox)

    def jetstream(self, *, timeout: float | None = None) -> JetStream:
        """Give the JetStream API on this connection, with its domain or prefix."""
        from penstock.connection.jetstream import JetStream

        return JetStream(self, timeout=timeout)

    def expecting(self, subject: str, fail: Callable[[DeniedError], None], *, mapped: bool = False) -> Expecting:
        """Have `fail` called at once, within the block, when the server denies publishing to `subject`.

        A server that maps subjects names what it made of a subject, and nobody can tell what that was: with `mapped`
        it is called as well when the server denies a subject that nobody here published to.
        """
        return Expecting(self._expecting, subject, fail, self._expecting_mapped if mapped else None)

    @contextmanager
    def reading_ahead(self, folder: Path | None = None, memory: int = MEMORY) -> Iterator[None]:
        """Within the block, receive before what came earlier is handled, so that the server need not wait for us.

        A server gives up who is 64 MB behind, and not every publisher waits for us. What was received ahead waits in
        memory, 16 MiB unless more is given, and then in files without names in `folder`, or where the system has its
        own, 4 GiB at most.
        """
        self._lifeline.ahead.want(key := object(), folder, memory)
        try:
            yield
        finally:
            self._lifeline.ahead.release(key)

    async def flush(self, timeout: float = 10.0) -> None:
        """Wait until the server has handled everything that was sent before.

        DisconnectedError at once if the connection breaks meanwhile: then nobody knows how far the server came.
        """
        self.check_open()
        await self._confirmed(timeout)

    async def confirm(self, stretch: int, timeout: float = 10.0) -> None:
        """Wait as `flush` does, for what was sent in one stretch: DisconnectedError if that is over."""
        if stretch != self.stretch or self._lifeline.wire is None:
            raise DisconnectedError("The connection broke since this was sent.", urls=self.options.urls)
        await self._confirmed(timeout)

    async def _confirmed(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while self._lifeline.wire is None:
                    await self._until_standing()
                waiter: asyncio.Future[None] = self._loop.create_future()
                self._write_out()
                self._lifeline.ping(waiter)
                await waiter
        except TimeoutError:
            raise DeadlineError(
                f"The server did not confirm what was sent within {timeout:g} s.", seconds=timeout
            ) from None

    async def rtt(self) -> float:
        """Give the seconds of a round trip to the server."""
        began = self._loop.time()
        await self.flush()
        return self._loop.time() - began

    async def _until_standing(self) -> None:
        self.check_open()
        await self._standing.wait()
        self.check_open()

    async def standing(self, timeout: float, subject: str | None = None) -> None:
        """Wait until the connection stands: DeadlineError if it does not in time, DisconnectedError if never."""
        try:
            async with asyncio.timeout(max(timeout, 0)):
                while self._lifeline.wire is None:
                    await self._until_standing()
        except TimeoutError:
            raise DeadlineError(
                f"The connection was lost{f' with a question on {subject}' if subject else ''}, and did not come back "
                f"within {timeout:.3g} s.",
                remedy="Is the server still running?",
                seconds=timeout,
                subject=subject,
            ) from None

    @property
    def broken(self) -> asyncio.Future[PenstockError]:
        """A future that is done, with the reason, when this stretch of the connection is over; wait with `shield`."""
        return self._break

    # -- ending ---------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Ask for no more messages, handle what has arrived, send what is waiting, then close."""
        if self._draining or self.is_closed:
            return
        self._draining = True
        subscriptions = [item for item in self._subscriptions.values() if item is not self._requests.inbox]
        try:
            async with asyncio.timeout(self._drain_timeout):
                if self.is_connected:
                    for item in subscriptions:
                        self.post(protocol.unsubscribe(item.id))
                    await self.flush(self._drain_timeout)
                for item in subscriptions:
                    self.forget(item)
                    item.finish()
                if working := self.pumps - {asyncio.current_task()}:  # those of ended subscriptions, too
                    await asyncio.wait(working)
                self._draining_pubs = True
                self._let_write(False)
                if self.is_connected:
                    await self.flush(self._drain_timeout)
        except TimeoutError:
            left = sum(item.pending_msgs for item in subscriptions)
            self.report(
                DeadlineError(
                    f"The connection was not drained within {self._drain_timeout:g} s: {left:,} messages that had "
                    "come were not handled.",
                    remedy="Give a longer drain_timeout, or handle them faster.",
                    seconds=self._drain_timeout,
                )
            )
        except PenstockError as error:
            self.report(error)
        await self.close()

    async def close(self, *, within: float | None = None) -> None:
        """Close the connection for good; safe to call twice.

        What was published is sent first. What cannot be, since the connection is away or the server does not take it
        `within` so many seconds, 5 if none are given, is told to the error callback.
        """
        self._asked_to_end = True
        self._goodbye = within
        await self._shut()

    async def _shut(self) -> None:
        if self._closing is None or self._closing.cancelled():
            self._closing = self._loop.create_task(self._shut_down())
        task = asyncio.current_task()
        assert task is not None
        if self._over and task is self._teller.task:  # the closed callback, which the end waits for
            return
        self._closers.add(task)  # a callback, perhaps: the end must not wait for who waits for it, nor cancel it
        try:
            await asyncio.shield(self._closing)
        finally:
            self._closers.discard(task)

    async def _shut_down(self) -> None:
        self._write_out()
        before, reason = self._lifeline.phase, self._gone()
        unsent = await self._lifeline.close(GOODBYE if self._goodbye is None else self._goodbye, reason)
        self._drop_posted()
        if unsent := unsent + self._outbox.size:
            self.report(
                DisconnectedError(
                    f"The connection is closed, and {unsent:,} bytes that were published were never sent.",
                    remedy="Wait with flush before you close, and publish them again on a new connection.",
                    urls=self.options.urls,
                )
            )
        self._outbox.take()
        self._let_write(False)
        if not self._break.done():
            self._break.set_result(reason)
        self._standing.set()  # whoever waits for a connection sees that there will be none
        self._requests.end(reason)
        subscriptions = list(self._subscriptions.values())
        self._subscriptions.clear()
        self._takers.clear()
        self._borrowers.clear()
        for item in subscriptions:
            item.end(gone=reason, asked=self._asked_to_end)
        if not self._asked_to_end and (working := self.pumps - self._closers):
            await asyncio.wait(working, timeout=self._drain_timeout)  # what had come is handled
        await end((self.pumps | self.asking_again) - self._closers, within=1.0)
        self._over = True
        if before is not Phase.CONNECTING:
            self._teller.tell(self._callbacks.closed)
        if self._teller.task not in self._closers:
            await self._teller.finish(GOODBYE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.close()


def _asking(subject: str, sid: int, queue: str) -> bytes:
    """Give the frame that asks for a subscription; LocalProtocolError if there can be none."""
    frame = protocol.subscribe(subject, sid, queue or None)
    check_size(len(frame), 0, 1, subject)
    return frame
