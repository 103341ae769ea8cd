"""`OrderedRead`: what a stream holds and gets, in order, each message once and none left out, without acks.

The server pushes, through a consumer in memory that is made for this read alone, and stops when we do not answer its
questions: that bounds what waits here. Whatever is lost on the way shows in the numbers of the messages and in the
heartbeats, and everything from there on is read through a new consumer: after a lost connection, too, and after a
consumer was deleted or its server died. A stream that was replaced under its name, or put back to an older state, is an
error, and not read on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from penstock.connection.asking import patiently
from penstock.connection.tasks import end, heed
from penstock.errors import (
    DataLossError,
    DeadlineError,
    DisconnectedError,
    InputError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.jetstream import assets
from penstock.model import Consumer
from penstock.wire.jetstream.ordered import Numbering, OrderedMessage, Said

if TYPE_CHECKING:
    from penstock.connection import Connection, Subscription
    from penstock.info import StreamInfo

__all__ = ["OrderedRead"]

log = logging.getLogger("penstock.jetstream")

HEARTBEAT = 2.0  # seconds between two signs of life; without two of them the consumer is taken for gone
_SLACK = 0.5  # seconds that a heartbeat may be late, beyond one that is missed
_UNUSED = 5.0  # seconds after which the server deletes a consumer that nobody listens to
_STANDING = 60.0  # seconds between two looks at a connection that is away
_LEAVING = 2.0  # seconds for the last word to the server
_UNREAD = 128 * 1024 * 1024  # bytes that may wait to be read: four times what a server sends before it asks
_QUESTION = 64  # bytes that a question takes beside its own

Policy = Literal["all", "last_per_subject", "new"]


class _Current:
    """Stands in the queue behind the last message that was there when the read began."""


_CURRENT = _Current()


class OrderedRead:
    """The messages of one stream, for `async for`. Use it with `async with`.

    `filters` are the subjects that are read, all if none is given. `policy` says where to begin: with `all` there is,
    with the last message of each subject, or with what is `new`; `start` is a sequence to begin with instead.
    `patience` is for how long a server to which there is a connection may fail to serve the read; while there is no
    connection it waits, for as long as the connection itself tries.
    """

    def __init__(
        self,
        client: Connection,
        stream: str,
        *,
        filters: Sequence[str] = (),
        policy: Policy = "all",
        start: int | None = None,
        headers_only: bool = False,
        heartbeat: float | None = None,
        patience: float = 60.0,
    ) -> None:
        self._client, self.stream = client, assets.checked(stream, "stream")
        self._policy, self._start = policy, start
        if start is not None and (isinstance(start, bool) or not isinstance(start, int) or start < 1):
            raise InputError(f"The sequence is {start!r}.", remedy="Sequences begin with 1.")
        self._heartbeat, self._patience = heartbeat or HEARTBEAT, patience
        self._fields: dict[str, Any] = {"headers_only": headers_only, "idle_heartbeat": self._heartbeat}
        if filters:
            self._fields |= {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": list(filters)}
        self.is_current = False
        """Whether everything has been given that was there when the read began."""
        self.last = 0
        """The last sequence that came."""
        self.idle = 0
        """How often the server said that it has sent all there is."""
        self._queue: deque[OrderedMessage | bytes | _Current] = deque()
        self._order: Numbering | None = None  # of the consumer that is read now; None if it must be replaced
        self._initial: int | None = None  # how many messages it had to begin with
        self._marked = False  # whether _CURRENT stands in the queue, or stood there
        self._asked = b""  # the question of the server that waits in the queue
        self._unread = 0  # bytes that came since the queue was empty, or a question answered
        self._consumer = ""
        self._subscription: Subscription | None = None
        self._error: PenstockError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._alarm = asyncio.Event()
        self._denial = ExitStack()
        self._task: asyncio.Task[None] | None = None

    # -- opening and closing -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Look at the stream, and begin to read."""
        self._loop = asyncio.get_running_loop()
        self._stretch = self._client.stretch
        self.info = await assets.stream_info(self._client, self.stream)
        if self._start is not None:
            if self._start > self.info.last_sequence + 1:
                raise self._shorter(self.info, self._start)
            self.last = self._start - 1
        elif self._policy == "new":
            self.last = self.info.last_sequence  # a consumer for what is new would forget what comes while it is away
            self._marked = self.is_current = True
        try:
            await self._make()
        except BaseException:
            await self._leave()
            raise
        self._task = asyncio.ensure_future(self._watch())
        heed(self._task, self._failed)

    async def close(self) -> None:
        """Stop reading; nothing is left at the server."""
        if self._task is not None:
            await end([self._task])
        self._denial.close()
        self.fail(DisconnectedError("This read is closed."))
        consumer = self._consumer
        await self._leave()
        if consumer and self._client.is_connected:
            with suppress(PenstockError, TimeoutError):  # the server deletes by itself what nobody listens to
                async with asyncio.timeout(_LEAVING):
                    await assets.delete_consumer(self._client, self.stream, consumer)

    async def _leave(self) -> None:
        self._order, self._consumer = None, ""
        if self._subscription is not None and not self._client.is_closed:
            with suppress(PenstockError):
                await self._subscription.unsubscribe()
        self._subscription = None

    async def _make(self) -> None:
        """Make a consumer that begins behind the last message that came, and read it."""
        await self._leave()
        order, inbox = Numbering(self.last), self._client.new_inbox()
        self._order, self._initial, self._asked, self._heard_at = order, None, b"", self._loop.time()

        def heard(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
            if order is self._order:
                self._hear(order, subject, reply, payload, block)

        self._subscription = await self._client.tap(inbox, heard, on_end=self.fail)
        where: dict[str, Any] = {"deliver_policy": self._policy}
        if self.last or self._start is not None or self._policy == "new":
            where = {"deliver_policy": "by_start_sequence", "opt_start_seq": self.last + 1}
        self._consumer = f"penstock-read-{secrets.token_hex(8)}"
        consumer = Consumer(
            name=self._consumer,
            deliver_subject=inbox,
            ack_policy="none",
            max_deliver=1,
            flow_control=True,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_UNUSED,
            **where,
            **self._fields,
        )
        made = await assets.add_consumer(self._client, self.stream, consumer)
        self._heard_at = self._loop.time()
        # The server may have begun to send before it answered.
        self._initial = made.pending + made.delivered.consumer
        if order.came >= self._initial:
            self._mark()

    @property
    def waiting(self) -> bool:
        """Whether something came that was not read yet, or the server waits until it is."""
        return bool(self._queue) or self._order is None

    # -- hearing -----------------------------------------------------------------------------------

    def _hear(self, order: Numbering, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        try:
            said = order.hear(subject, reply, payload, block)
        except RemoteProtocolError as error:
            self.fail(error)
            return
        self._heard_at = self._loop.time()
        if isinstance(said, OrderedMessage):
            if not self._queue:
                self._unread = 0
            self._unread += len(reply) + len(payload) + len(block or b"")
            if self._unread > _UNREAD:
                self._overrun()
                return
            self.last = said.sequence
            self._queue.append(said)
            if not self._marked and (not said.pending or order.came == self._initial):
                self._mark()
        elif said is Said.LOST:
            log.info("A message of stream %s was lost on its way, or its consumer is gone; reading again.", self.stream)
            self._order = None
            self._alarm.set()
            return
        elif said is Said.WAITS:
            self._question(order.question)
        else:
            self.idle += 1
            self._mark()  # messages that were counted may have been removed since, and nothing else comes
        self._wake()

    def _overrun(self) -> None:
        self._order = None  # nothing more is taken
        self.fail(
            RemoteProtocolError(
                f"More than {_UNREAD >> 20} MiB of stream {self.stream} wait to be read, and the server goes on behind "
                f"sequence {self.last} without our answer.",
                remedy="Is a nats-server at the other end? It waits. Begin to read again behind what you have.",
            )
        )

    def _mark(self) -> None:
        if not self._marked:
            self._marked = True
            self._queue.append(_CURRENT)
            self._wake()

    def _question(self, question: bytes) -> None:
        """Answer the server when all that came before its question is read."""
        if not self._queue:
            self._answer(question)
        elif question != self._asked:
            self._unread += _QUESTION + len(question)
            if self._unread > _UNREAD:  # a server has one question at a time, and waits
                self._overrun()
                return
            self._asked = question
            self._queue.append(question)

    def _answer(self, question: bytes) -> None:
        self._asked, self._unread = b"", 0
        subject = question.decode("utf-8", "replace")
        self._denial.close()
        self._denial.enter_context(self._client.expecting(subject, self.fail))
        with suppress(PenstockError):  # there is no connection: then there will be another consumer
            self._client.send(subject)

    def fail(self, error: PenstockError) -> None:
        """Take note that no more will come; the first reason counts."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- reading -----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OrderedMessage:
        while (found := self.take()) is None:
            await self.wait()
        return found

    async def current(self) -> AsyncIterator[OrderedMessage]:
        """Give what was there when the read began; the iteration ends when all of it was given."""
        while not self.is_current:
            if (found := self.take()) is not None:
                yield found
            elif not self.is_current:
                await self.wait()

    def take(self) -> OrderedMessage | None:
        """Give the next message if it is here; None if none is, and once more when `is_current` turns true by itself.

        Most messages come many at a time: whoever takes them so goes through the loop once for all of them.
        """
        queue = self._queue
        while queue:
            item = queue.popleft()
            if isinstance(item, OrderedMessage):
                if queue and queue[0] is _CURRENT:
                    queue.popleft()
                    self.is_current = True
                return item
            if item is _CURRENT:
                self.is_current = True
                return None
            if isinstance(item, bytes) and item == self._asked:
                self._answer(item)
        return None

    async def wait(self) -> None:
        """Wait until something came that `take` has not given; raise what ended the read."""
        if self._queue:
            return
        if self._error is not None:
            raise self._error
        if self._task is None:
            raise InputError("This read is not open.", remedy="Use it with `async with`.")
        if self._waiter is not None:
            raise InputError("Somebody else waits for the next message of this read.", remedy="Read it once.")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- watching ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notice silence, a loss and a new connection, and read on through a new consumer."""
        while self._error is None:
            self._client.broken.add_done_callback(self._broke)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat / 2):
                    await self._alarm.wait()
            self._client.broken.remove_done_callback(self._broke)
            self._alarm.clear()
            silent = self._loop.time() - self._heard_at > 2 * self._heartbeat + _SLACK
            if self._client.is_closed or self._order is None or silent or self._client.stretch != self._stretch:
                try:
                    await self._again()
                except PenstockError as error:
                    self.fail(error)

    def _failed(self, error: BaseException) -> None:
        # A fault of ours must not leave anybody waiting for ever.
        self.fail(PenstockError(f"The read of stream {self.stream} failed: {error!r}."))

    def _broke(self, _: object) -> None:
        self._alarm.set()

    async def _again(self) -> None:
        self._order = None
        while not self._client.is_connected:
            if self._client.is_closed:
                raise DisconnectedError("The connection was closed.", remedy="Is the server running?")
            with suppress(DeadlineError):
                await self._client.standing(_STANDING)
        self._stretch = self._client.stretch
        await patiently(self._resume, self._patience, self._client, nobody=True)

    async def _resume(self) -> None:
        there = await assets.stream_info(self._client, self.stream)
        if there.created != self.info.created:
            raise NotFoundError(
                f"Stream {self.stream} was deleted, and another one of that name made.",
                remedy="Begin to read again: what came belongs to the old one.",
                code=404,
            )
        if there.last_sequence < self.last:
            raise self._shorter(there, self.last + 1)
        await self._make()

    def _shorter(self, there: StreamInfo, start: int) -> DataLossError:
        return DataLossError(
            f"Stream {self.stream} ends with {there.last_sequence}, and was to be read from {start} on.",
            remedy="It was put back to an older state, or is another one. Begin to read again.",
            stream=self.stream,
            start=start,
            end=None,
            first=there.first_sequence,
            last=there.last_sequence,
        )
