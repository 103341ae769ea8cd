"""`Worker`: a handler for each message of a pull consumer, and everything around it.

The handler returns: the message is acknowledged, and the server confirms it. It raises: the message is given back, to
come again after the consumer's backoff. It raises `Reject`, or has failed `max_deliver` times: the message goes to the
dead-letter stream, with the reason, where it came from, and how often it was tried. However long it runs, progress
acks keep the message its own.
A message that comes again although its handler succeeded, because the ack was lost, is acknowledged and not handled;
one that comes as if for the first time, because somebody set the consumer back, is handled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.connection.asking import patiently
from penstock.connection.tasks import end, heed
from penstock.errors import DeadlineError, DeniedError, InputError, LinkError, PenstockError, RemoteProtocolError
from penstock.jetstream import assets
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.deadletter import DeadLetters, is_too_large
from penstock.jetstream.delivery import Delivery
from penstock.jetstream.letter import read_exhausted
from penstock.model import Consumer
from penstock.wire.jetstream import names
from penstock.wire.jetstream.verdicts import Verdict, judge

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import ConsumerInfo

__all__ = ["Reject", "Worker", "WorkerCounts"]

log = logging.getLogger("penstock.jetstream")

_REMEMBERED = 10_000  # messages whose handler succeeded, in case one comes again
_BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # if the consumer has none


class Reject(Exception):
    """A handler raises this for a message that no repeat will mend: it becomes a dead letter at once."""


@dataclass
class WorkerCounts:
    """What a worker did so far."""

    handled: int = 0
    """Messages whose handler returned, and whose ack was confirmed."""
    failed: int = 0
    """Times that a handler raised."""
    dead: int = 0
    """Messages that became dead letters."""
    given_up: int = 0
    """Messages that never come again and have no dead letter: refused, failed for the last time, or given back unread
    with their last delivery."""
    missed: int = 0
    """Messages that limits or deletions took while no worker was there to get them, as far as that can be known."""
    repeats: int = 0
    """Deliveries of messages that were handled already; they were acknowledged only."""
    unconfirmed: int = 0
    """Acks that the server did not confirm in time; the message may come again."""


class Worker:
    """Runs a handler for each message, `workers` at a time.

    `dead_letters` is a stream's name, or a `DeadLetters`; without it, a message that failed too often is only logged,
    and so is what the server says of messages that ran out of deliveries. Further options are those of `Deliveries`.
    """

    def __init__(
        self,
        client: Connection,
        stream: str,
        consumer: str,
        handler: Callable[[Delivery], Awaitable[Any]],
        *,
        workers: int = 1,
        dead_letters: str | DeadLetters | None = None,
        on_failure: Callable[[Delivery, Exception], None] | None = None,
        ack_timeout: str | float = 30.0,
        **options: Any,
    ) -> None:
        if workers < 1:
            raise InputError("workers is at least 1.", remedy="Leave it out, or raise it.")
        options.setdefault("batch", max(2 * workers, 10))
        self.counts = WorkerCounts()
        self._client, self._handler, self._workers = client, handler, workers
        self._on_failure, self._ack_timeout = on_failure, ack_timeout
        self._deliveries = Deliveries(client, stream, consumer, **options)
        self._dead = DeadLetters(client, stream, dead_letters) if isinstance(dead_letters, str) else dead_letters
        # By sequence and time: a stream that was restored or made anew has other messages under the same sequences.
        self._running: dict[tuple[int, datetime], Delivery] = {}
        # With the stretch of the connection in which the server confirmed the ack; -1 if it did not.
        self._done: OrderedDict[tuple[int, datetime], int] = OrderedDict()
        self._slots = asyncio.Semaphore(workers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Let `run` end once the handlers that run now have ended."""
        self._stop.set()

    async def run(self) -> WorkerCounts:
        """Handle messages until `stop`, or until `limit` or `wait` ends the deliveries; give the counts."""
        if self._dead is not None:
            await patiently(self._dead.ensure, self._deliveries.patience, self._client)
        async with self._deliveries as deliveries:
            assert deliveries.info is not None
            config = deliveries.info.config
            self._check(config)
            await self._look_for_missed(deliveries.info)
            self._backoff, self._max_deliver = tuple(config.backoff) or _BACKOFF, config.max_deliver
            deliveries.working = self._running.values()
            beside: list[asyncio.Task[Any]] = [stopped := asyncio.ensure_future(self._stop.wait())]
            if self._dead is not None:
                beside.append(asyncio.ensure_future(self._dead.collect_for_ever(deliveries.consumer)))
            elif self._max_deliver > 0:
                beside.append(asyncio.ensure_future(self._hear_of_losses()))
            for task in beside:
                heed(task, self._broke)
            try:
                while not self._stop.is_set():
                    await self._slots.acquire()
                    if self._stop.is_set():
                        break
                    delivery = await self._next(deliveries, stopped)
                    if delivery is None:
                        break
                    task = asyncio.ensure_future(self._work(delivery))
                    self._tasks.add(task)
                    task.add_done_callback(self._worked)
                    heed(task, self._broke)
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
            finally:
                await end([*self._tasks, *beside])
        if self._dead is None:  # or else they become letters, by what the server says of them
            self.counts.given_up += self._deliveries.given_up
        if self._fault is not None:
            raise self._fault
        return self.counts

    async def _look_for_missed(self, info: ConsumerInfo) -> None:
        """Say what is gone between the last delivery and the stream's first message; a filter hides what was for it."""
        config = info.config
        if not info.delivered.consumer or config.filter_subject or config.filter_subjects:
            return
        try:
            stream = await assets.stream_info(self._client, info.stream, patience=self._deliveries.patience)
        except DeniedError as error:
            log.warning("Whether messages of %s were missed cannot be known: %s", info.stream, error)
            return
        first = stream.first_sequence
        self.counts.missed = max(0, first - info.delivered.stream - 1)
        if self.counts.missed:
            lost = "%d messages of %s, [%d, %d), are gone before consumer %s got them: limits or a deletion took them."
            log.error(lost, self.counts.missed, info.stream, info.delivered.stream + 1, first, info.name)

    async def _hear_of_losses(self) -> None:
        """Say which messages ran out of deliveries, of any worker of the consumer, if nobody keeps them."""
        stream, consumer = self._deliveries.stream, self._deliveries.consumer
        subscription = await self._client.subscribe(f"{names.MAX_DELIVERIES}.{stream}.{consumer}")
        try:
            async for message in subscription.messages:
                lost = "Message %s of %s was delivered %s times and is given up: there is no dead-letter stream for it."
                with suppress(InputError, RemoteProtocolError):  # not of the server
                    _, sequence, deliveries = read_exhausted(message.data)
                    log.error(lost, sequence, stream, deliveries)
        except PenstockError as error:
            log.warning("Messages of %s that run out of deliveries cannot be watched for: %s", stream, error)
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    def _check(self, config: Consumer) -> None:
        if config.ack_policy == "none":
            what = f"Consumer {self._deliveries.consumer} takes no acks, so nothing can be handled once."
            raise InputError(what, remedy="Use a consumer with explicit acks.")
        if config.ack_policy == "all" and self._workers > 1:
            what = "With ack_policy = all, the ack of one message acknowledges those that others still work on."
            raise InputError(what, remedy="Use one worker, or explicit acks.")

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    def _broke(self, error: BaseException) -> None:
        self._fault = self._fault or error  # not the handler's: that is dealt with in _failed
        self._stop.set()

    async def _next(self, deliveries: Deliveries, stopped: asyncio.Future[Any]) -> Delivery | None:
        wanted = asyncio.ensure_future(anext(deliveries, None))
        try:
            await asyncio.wait([wanted, stopped], return_when=asyncio.FIRST_COMPLETED)
            return wanted.result() if wanted.done() else None
        finally:
            if not wanted.done():
                await end([wanted])

    async def _work(self, delivery: Delivery) -> None:
        message = delivery.sequence, delivery.place.time
        if message in self._running:
            return  # it came again while its handler runs, and that one will answer for it
        if message in self._done and not self._is_set_back(message, delivery):
            self.counts.repeats += 1
            await self._acknowledge(delivery)
            return
        self._running[message] = delivery
        try:
            await self._handler(delivery)
        except asyncio.CancelledError:
            if not delivery.settled:
                await delivery.nak()
            raise
        except Exception as error:  # a handler may raise anything; what it means is decided in _failed
            await self._failed(delivery, error)
        else:
            self._done[message] = -1
            while len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
            if delivery.settled:
                self.counts.handled += 1
            elif await self._acknowledge(delivery):
                self.counts.handled += 1
                self._done[message] = self._client.stretch
        finally:
            self._running.pop(message, None)

    def _is_set_back(self, message: tuple[int, datetime], delivery: Delivery) -> bool:
        """Tell whether somebody reset the consumer, so that what was done is wanted once more.

        A first delivery of what the same server confirmed is not a repeat. After a break it may be: a server that
        crashed can have forgotten what it confirmed.
        """
        again = delivery.delivered == 1 and self._done[message] == self._client.stretch
        if again:
            log.warning("Consumer %s was set back: %r is handled once more.", self._deliveries.consumer, delivery)
        return again

    async def _acknowledge(self, delivery: Delivery) -> bool:
        try:
            await delivery.ack_sync(timeout=self._ack_timeout)
        except (DeadlineError, LinkError) as error:
            self.counts.unconfirmed += 1
            log.warning("%s", error)
            return False
        return True

    async def _failed(self, delivery: Delivery, error: Exception) -> None:
        self.counts.failed += 1
        log.warning("The handler failed for %r: %s: %s", delivery, type(error).__name__, error)
        if self._on_failure is not None:
            self._on_failure(delivery, error)
        if delivery.settled:
            return
        last = 0 < self._max_deliver <= delivery.delivered
        dies = last or isinstance(error, Reject)
        try:
            if dies and self._dead is not None and await self._keep(self._dead, delivery, _reason(error)):
                await delivery.term(_reason(error), sync=True, timeout=self._ack_timeout)
                self.counts.dead += 1
            elif isinstance(error, Reject) and self._dead is None:
                await delivery.term(_reason(error), sync=True, timeout=self._ack_timeout)
                self.counts.given_up += 1
                log.error("%r is refused, and there is no dead-letter stream for it.", delivery)
            else:
                if last:
                    self.counts.given_up += 1
                    log.error("%r failed for the last time, and no dead letter is kept of it.", delivery)
                await delivery.nak(self._backoff[min(delivery.delivered, len(self._backoff)) - 1])
        except PenstockError as trouble:
            if dies and judge(trouble) is Verdict.REFUSED:
                raise  # nobody would keep it, nor the next one: that ends the worker
            # The message is still the server's: it comes again after its ack wait.
            log.warning("%r could not be given back: %s", delivery, trouble)

    async def _keep(self, dead: DeadLetters, delivery: Delivery, reason: str) -> bool:
        """Keep a dead letter; tell whether there is one now: a message can be too large for it."""
        try:
            await dead.put(delivery, reason)
        except PenstockError as error:
            if not is_too_large(error):
                raise
            log.error("%r has no letter, and stays in the stream: %s", delivery, error)
            return False
        return True


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, Reject) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:500] or "refused"
