"""`Service`: the partitions of a queue that this process serves, and the handlers that are at work."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self

from penstock.bus.handler import Sender, explain
from penstock.bus.limits import MIB, subject_of
from penstock.bus.mailbox import Mailbox
from penstock.bus.request import Request, decode_request
from penstock.bus.wire import Response, encode_response
from penstock.connection import Msg, Subscription
from penstock.connection.subscription import served
from penstock.connection.tasks import end
from penstock.errors import DeadlineError, NoConsumerError, PenstockError, RemoteProtocolError, SlowConsumerError

__all__ = ["Handler", "Service"]

log = logging.getLogger("penstock.bus")
Handler = Callable[[Request, Sender], Awaitable[None]]
BACKLOG_BYTES = 64 * MIB
CLEANUP = 1.0  # seconds that a handler which was cancelled has for what it does last


class Service:
    """Serves partitions from `await service` or `async with service` until `stop()`."""

    def __init__(
        self, mail: Mailbox, queue: str, partitions: range, handler: Handler, concurrency: int, backlog: int
    ) -> None:
        self.queue, self.partitions = queue, partitions
        self._mail, self._handler = mail, handler
        self._served = [_Partition(self, subject_of(queue, number), concurrency, backlog) for number in partitions]
        self._state = "new"
        self.handled = 0
        """Requests whose handler has ended."""
        self.refused: Counter[int] = Counter()
        """Requests that were answered in the place of a handler, by status: 503 while it was busy, 500 if it failed."""

    def __repr__(self) -> str:
        return f"<Service of {self.queue} {self.partitions.start}–{self.partitions.stop}, {self.active} at work>"

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    async def __aenter__(self) -> Self:
        return await self._start()

    async def __aexit__(self, *about: object) -> None:
        await self.stop()

    @property
    def active(self) -> int:
        """How many handlers are at work."""
        return sum(len(item.active) for item in self._served)

    @property
    def waiting(self) -> int:
        """How many requests wait for a handler."""
        return sum(len(item.waiting) for item in self._served)

    async def _start(self) -> Self:
        if self._state == "new":
            self._state = "serving"
            if not self._served:
                log.warning("%s has fewer partitions than parts: nothing is left for this one.", self.queue)
            try:
                await self._mail.open()
                made = []
                for item in self._served:
                    tap = self._mail.nc.tap(item.subject, item.received, queue=item.subject, lasting=True)
                    item.subscription = await tap
                    made.append(item.subscription)
                await served(*made)
            except BaseException:
                self._state = "new"
                raise
        return self

    async def stop(self, timeout: float = 10.0) -> None:
        """Take no more requests, let the handlers end, and after `timeout` seconds cancel those that have not."""
        before, self._state = self._state, "stopped"
        if before != "serving":
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        try:
            await self._drain(timeout)
            while self.active and loop.time() < until:
                await asyncio.wait(self._tasks(), timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for item in self._served:
                item.give_up("the service was stopped")
            if tasks := self._tasks():
                log.warning("%s: %d handlers did not end in %g s and were cancelled.", self.queue, len(tasks), timeout)
                await end(tasks, again=CLEANUP)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for item in self._served for task in item.active]

    async def _drain(self, timeout: float) -> None:
        """Unsubscribe, and take in what the server had already sent."""
        if self._mail.nc.is_closed or self._mail.nc.is_draining:
            return
        subscriptions = [item.subscription for item in self._served if item.subscription is not None]
        try:
            async with asyncio.timeout(timeout):
                results = await asyncio.gather(*(one.drain() for one in subscriptions), return_exceptions=True)
        except TimeoutError:
            log.warning("%s: the server did not confirm in time that nothing more comes.", self.queue)
            return
        for result in results:
            if isinstance(result, Exception):
                log.warning("%s: a partition could not be given up: %s", self.queue, result)

    async def handle(self, message: Msg) -> None:
        """Run the handler for one request, and see to it that the requester gets an answer."""
        sender = Sender(self._mail, message)
        try:
            request = decode_request(message.data)
        except RemoteProtocolError as error:
            log.warning("%s: %s", message.subject, error)
            self._answer(sender, message, 400, str(error))
            return
        try:
            await self._handler(request, sender)
        except asyncio.CancelledError as error:
            self._answer(sender, message, 503, explain(error))
            raise
        except Exception as error:
            if (
                isinstance(error, NoConsumerError | SlowConsumerError | DeadlineError)
                and error.subject == message.reply
            ):
                log.info("%s: %s", message.subject, error)  # the reader of the reply caused it
                return
            log.exception("%s: the handler failed.", message.subject)
            self._answer(sender, message, 500, explain(error))
        else:
            self._answer(sender, message, 500, "the handler ended without an answer")

    def _answer(self, sender: Sender, message: Msg, status: int, text: str) -> None:
        """Answer in the handler's place, unless it has answered."""
        if not sender.answered:
            self.refuse(message.reply, status, text)

    def refuse(self, reply: str, status: int, text: str) -> None:
        """Answer a request that no handler answers."""
        self.refused[status] += 1
        try:
            self._mail.nc.send(reply, encode_response(Response.text(status, text)))
        except PenstockError as error:
            log.warning("%s: an answer of %d could not be sent: %s", self.queue, status, error)


class _Partition:
    """One partition: its subscription, the handlers at work, and the requests that wait for one."""

    def __init__(self, service: Service, subject: str, concurrency: int, backlog: int) -> None:
        self.service, self.subject = service, subject
        self.subscription: Subscription | None = None
        self.active: set[asyncio.Task[None]] = set()
        self.waiting: deque[Msg] = deque()
        self._bytes = 0
        self._concurrency, self._backlog = concurrency, backlog

    def received(self, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        message = Msg(self.service._mail.nc, 0, subject, reply, data, block)
        if not reply:
            log.warning("%s: a request without a reply subject cannot be answered.", self.subject)
        elif not self.service._mail.is_inbox(message.reply):
            text = (
                "%s: a request wants its answer on %r, which is not an inbox. It is not handled. If requesters have a"
            )
            log.warning(
                f"{text} prefix of their own, give it: Bus(..., inboxes=[...]).", self.subject, message.reply[:80]
            )
        elif len(self.active) < self._concurrency:
            self._run(message)
        elif len(self.waiting) < self._backlog and self._bytes + len(data) <= BACKLOG_BYTES:
            self.waiting.append(message)
            self._bytes += len(data)
        else:
            text = f"{self.subject} is busy: {len(self.active)} at work, {len(self.waiting)} waiting"
            log.warning("%s", text)
            self.service.refuse(message.reply, 503, text)

    def give_up(self, why: str) -> None:
        """Tell the requests that wait that nobody will handle them."""
        waiting, self.waiting, self._bytes = self.waiting, deque(), 0
        for message in waiting:
            self.service.refuse(message.reply, 503, why)

    def _run(self, message: Msg) -> None:
        task = asyncio.get_running_loop().create_task(self.service.handle(message))
        self.active.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.active.discard(task)
        self.service.handled += 1
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a request could not be handled: %s", self.subject, error)
        if self.waiting:
            message = self.waiting.popleft()
            self._bytes -= len(message.data)
            self._run(message)
