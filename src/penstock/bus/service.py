"""`Service`: the partitions of a queue that this process serves, and the handlers that are at work."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Self

from penstock.bus.handler import Sender, explain
from penstock.bus.limits import MIB, subject_of
from penstock.bus.request import Request, decode_request
from penstock.bus.wire import Response
from penstock.errors import DeadlineError, NoConsumerError, PenstockError, RemoteProtocolError, SlowConsumerError

if TYPE_CHECKING:
    from penstock.bus.limits import BusOptions
    from penstock.bus.mailbox import Mailbox
    from penstock.connection import Msg, Subscription

__all__ = ["Handler", "Service"]

log = logging.getLogger("penstock.bus")
Handler = Callable[[Request, Sender], Awaitable[None]]
BACKLOG_BYTES = 64 * MIB


class Service:
    """Serves partitions from `await service` or `async with service` until `stop()`."""

    def __init__(
        self,
        mail: Mailbox,
        options: BusOptions,
        queue: str,
        partitions: range,
        handler: Handler,
        *,
        concurrency: int,
        backlog: int,
        ended: Callable[[Service], None],
    ) -> None:
        self.queue, self.partitions = queue, partitions
        self._mail, self._options, self._handler = mail, options, handler
        self._ended = ended
        self._lines = [
            _Line(self, subject_of(queue, number), concurrency=concurrency, backlog=backlog) for number in partitions
        ]
        self._state = "new"

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
        return sum(len(line.active) for line in self._lines)

    @property
    def waiting(self) -> int:
        """How many requests wait for a handler."""
        return sum(len(line.waiting) for line in self._lines)

    async def _start(self) -> Self:
        if self._state == "new":
            self._state = "serving"
            if not self._lines:
                log.warning("%s has fewer partitions than parts: nothing is left for this one.", self.queue)
            await self._mail.open()
            client = self._mail.client
            for line in self._lines:
                line.subscription = await client.subscribe(line.subject, queue=line.subject, cb=line.received)
            await client.flush()
        return self

    async def stop(self, timeout: float = 10.0) -> None:
        """Take no more requests, let the handlers end, and after `timeout` seconds cancel those that have not."""
        before, self._state = self._state, "stopped"
        if before == "new":
            self._ended(self)
        if before != "serving":
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        try:
            await self._drain(timeout)
            while self.active and loop.time() < until:
                tasks = [task for line in self._lines for task in line.active]
                await asyncio.wait(tasks, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for line in self._lines:
                line.waiting.clear()
            tasks = [task for line in self._lines for task in line.active]
            for task in tasks:
                task.cancel()
            if tasks:
                log.warning("%s: %d handlers did not end in %g s and were cancelled.", self.queue, len(tasks), timeout)
                await asyncio.gather(*tasks, return_exceptions=True)
            self._ended(self)

    async def _drain(self, timeout: float) -> None:
        """Unsubscribe, and take in what the server had already sent."""
        if self._mail.client.is_closed or self._mail.client.is_draining:
            return
        subscriptions = [line.subscription for line in self._lines if line.subscription is not None]
        try:
            async with asyncio.timeout(timeout):
                drains = (one.drain() for one in subscriptions)
                results = await asyncio.gather(*drains, return_exceptions=True)
        except TimeoutError:
            log.warning("%s: the server did not confirm in time that nothing more comes.", self.queue)
            return
        for result in results:
            if isinstance(result, Exception):
                log.warning("%s: a partition could not be given up: %s", self.queue, result)

    async def handle(self, message: Msg) -> None:
        """Run the handler for one request, and see to it that the requester gets an answer."""
        sender = Sender(self._mail, self._options, message)
        try:
            request = decode_request(message.data)
        except RemoteProtocolError as error:
            log.warning("%s: %s", message.subject, error)
            await self._answer(sender, 400, str(error))
            return
        try:
            await self._handler(request, sender)
        except asyncio.CancelledError as error:
            await self._answer(sender, 503, explain(error))
            raise
        except Exception as error:
            if _is_the_readers(error, message.reply):
                log.info("%s: %s", message.subject, error)
                return
            log.exception("%s: the handler failed.", message.subject)
            await self._answer(sender, 500, explain(error))
        else:
            await self._answer(sender, 500, "the handler ended without an answer")

    async def _answer(self, sender: Sender, status: int, text: str) -> None:
        """Answer in the handler's place, unless it has answered."""
        if not sender.answered:
            try:
                await sender.respond(Response.text(status, text))
            except PenstockError as error:
                log.warning("%s: an answer of %d could not be sent: %s", self.queue, status, error)


def _is_the_readers(error: Exception, reply: str) -> bool:
    """Tell an error that the reader of the reply caused from one of the handler's own."""
    return isinstance(error, NoConsumerError | SlowConsumerError | DeadlineError) and error.subject == reply


class _Line:
    """One partition: its subscription, the handlers at work, and the requests that wait for one."""

    def __init__(self, service: Service, subject: str, *, concurrency: int, backlog: int) -> None:
        self.service, self.subject = service, subject
        self.subscription: Subscription | None = None
        self.active: set[asyncio.Task[None]] = set()
        self.waiting: deque[Msg] = deque()
        self._bytes = 0
        self._concurrency, self._backlog = concurrency, backlog

    async def received(self, message: Msg) -> None:
        if not message.reply:
            log.warning("%s: a request without a reply subject cannot be answered.", self.subject)
        elif len(self.active) < self._concurrency:
            self._run(message)
        elif len(self.waiting) < self._backlog and self._bytes + len(message.data) <= BACKLOG_BYTES:
            self.waiting.append(message)
            self._bytes += len(message.data)
        else:
            text = f"{self.subject} is busy: {len(self.active)} at work, {len(self.waiting)} waiting"
            log.warning("%s", text)
            sender = Sender(self.service._mail, self.service._options, message)
            await self.service._answer(sender, 503, text)

    def _run(self, message: Msg) -> None:
        task = asyncio.get_running_loop().create_task(self.service.handle(message))
        self.active.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.active.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a request could not be handled: %s", self.subject, error)
        if self.waiting:
            message = self.waiting.popleft()
            self._bytes -= len(message.data)
            self._run(message)
