"""`Deliveries`: messages of a pull consumer, with the server's heartbeats watched.

Pull requests are ours, on an inbox of our own: a batch, a time after which it ends, and heartbeats in between. As
long as a request is out, the server says something at least every heartbeat. Where it does not, or where it says that
leadership moved, we ask whether the consumer is still there and pull anew; a consumer that is gone is an error at
once, and a server that stays away is one after `patience`. What waits here, unread, is kept alive with progress acks,
and given back when reading ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.durations import parse_duration
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    LinkError,
    NotFoundError,
    PenstockError,
)
from penstock.info import ConsumerInfo
from penstock.jetstream import assets
from penstock.jetstream.delivery import Delivery, is_delivery

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg, Subscription

__all__ = ["Deliveries"]

log = logging.getLogger("penstock.jetstream")

_NANO = 1_000_000_000
_PAUSE = 0.25  # between attempts while the server is in trouble


class Deliveries:
    """Deliveries of one pull consumer, for `async for`. Use it with `async with`.

    `batch` and `max_bytes` bound what is asked for and held. `heartbeat` is how often the server shows that it is
    alive; `expires` how long one request lasts. `limit` ends the iteration after so many; `wait` ends it when nothing
    came for so long. `keep_alive` sends progress acks for what waits here, and for the one that is being worked on.
    """

    def __init__(
        self,
        client: Connection,
        stream: str,
        consumer: str,
        *,
        batch: int = 100,
        max_bytes: int | None = None,
        expires: str | float = 30.0,
        heartbeat: str | float = 5.0,
        patience: str | float = 60.0,
        limit: int | None = None,
        wait: str | float | None = None,
        keep_alive: bool = True,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> None:
        self._client = client
        self.stream, self.consumer = assets.checked(stream, "stream"), assets.checked(consumer, "consumer")
        self._expires = parse_duration(expires, option="expires")
        self._heartbeat = parse_duration(heartbeat, option="heartbeat")
        self._patience = parse_duration(patience, option="patience")
        self._wait = None if wait is None else parse_duration(wait, option="wait")
        if batch < 1 or (max_bytes is not None and max_bytes < 1) or (limit is not None and limit < 1):
            raise InputError("batch, max_bytes and limit are at least 1.", remedy="Leave them out, or raise them.")
        if not 0.1 <= self._heartbeat <= self._expires / 2:
            raise InputError(
                f"heartbeat is {self._heartbeat:g} s, with requests of {self._expires:g} s.",
                remedy="It is at least 100ms and at most half of expires.",
            )
        self._batch = min(batch, limit) if limit else batch
        self._max_bytes, self._limit, self._keep_alive = max_bytes, limit, keep_alive
        about = {"group": group, "min_pending": min_pending, "min_ack_pending": min_ack_pending, "priority": priority}
        self._about: dict[str, Any] = {key: value for key, value in about.items() if value is not None}
        self._queue: deque[Delivery] = deque()
        self._pulls: dict[int, int] = {}  # what each pull request may still bring
        self._pull_count = self._given = self._taken = 0
        self._current: Delivery | None = None
        self._arrived = asyncio.Event()
        self._error: PenstockError | None = None
        self._trouble: float | None = None  # since when the server does not answer as it should
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None
        self.info: ConsumerInfo | None = None
        """The consumer as it was when reading began."""

    # -- opening and closing -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Look at the consumer, and begin to pull."""
        self.info = await assets.patiently(
            lambda: assets.consumer_info(self._client, self.stream, self.consumer), self._patience
        )
        config = self.info.config
        if config.deliver_subject:
            raise InputError(
                f"Consumer {self.consumer} of {self.stream} is a push consumer.",
                remedy=f"Subscribe to {config.deliver_subject}, or use a pull consumer.",
            )
        if config.max_batch:
            self._batch = min(self._batch, config.max_batch)
        if config.max_expires and config.max_expires < self._expires:
            self._expires = config.max_expires
            self._heartbeat = min(self._heartbeat, self._expires / 2)
        prefix = self._client.options.js_prefix
        self._next = f"{prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}"
        self._inbox = self._client.new_inbox()
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._heard)
        self._tasks.append(asyncio.ensure_future(self._watch()))
        if self._keep_alive and config.ack_policy != "none":
            waits = [config.ack_wait or 30.0, *config.backoff]
            self._tasks.append(asyncio.ensure_future(self._keep(min(waits) / 3)))

    async def close(self) -> None:
        """Stop pulling, and give back what was not read."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._subscription is not None and not self._client.is_closed:
            with suppress(PenstockError):  # the connection may end in this moment
                await self._subscription.unsubscribe()
                if self.info is not None and self.info.config.ack_policy != "none":
                    for delivery in self._queue:
                        await self._client.publish(delivery.reply, b"-NAK")
        self._subscription = None
        self._queue.clear()

    # -- reading -----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        if self._subscription is None:
            raise InputError("These deliveries are not open.", remedy="Use them with `async with`.")
        self._current = None
        if self._limit is not None and self._given >= self._limit:
            raise StopAsyncIteration
        await self._fill()
        while not self._queue:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            try:
                async with asyncio.timeout(self._wait):
                    await self._arrived.wait()
            except TimeoutError:
                raise StopAsyncIteration from None
        self._given += 1
        self._current = self._queue.popleft()
        return self._current

    async def take(self, count: int, *, wait: str | float = 5.0) -> list[Delivery]:
        """Give up to `count` deliveries, as soon as they are there; fewer when `wait` is over."""
        taken: list[Delivery] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(parse_duration(wait, option="wait")):
                while len(taken) < count:
                    taken.append(await anext(self))
        return taken

    # -- pulling -----------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Ask for more once less than half of a batch is here or on its way."""
        if self._trouble is not None or self._error is not None or len(self._pulls) >= 2:
            return
        here = len(self._queue) + sum(self._pulls.values())
        want = self._batch - here
        if self._limit is not None:
            want = min(want, self._limit - self._taken - sum(self._pulls.values()))
        if want > 0 and (here == 0 or here < self._batch // 2):
            await self._pull(want)

    async def _pull(self, count: int) -> None:
        self._pull_count += 1
        self._pulls[self._pull_count] = count
        body = {
            "batch": count,
            "expires": round(self._expires * _NANO),
            "idle_heartbeat": round(self._heartbeat * _NANO),
            **self._about,
        }
        if self._max_bytes is not None:
            body["max_bytes"] = self._max_bytes
        if len(self._pulls) == 1:
            self._heard_at = asyncio.get_running_loop().time()
        try:
            await self._client.publish(self._next, json.dumps(body).encode(), reply=f"{self._inbox}.{self._pull_count}")
        except PenstockError as error:
            self._pulls.pop(self._pull_count, None)
            self._begin_trouble(f"pulling failed: {error}")

    async def _heard(self, message: Msg) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if is_delivery(message):
            self._trouble = None
            if pin := (message.headers or {}).get("Nats-Pin-Id"):
                self._about["id"] = pin
            for number, left in self._pulls.items():
                self._pulls[number] = left - 1
                if left <= 1:
                    del self._pulls[number]
                break
            self._taken += 1
            self._queue.append(Delivery(self._client, message))
            self._arrived.set()
            return
        headers = message.headers or {}
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            self._trouble = None
            return
        number = int(message.subject.rpartition(".")[2])
        fresh = self._pulls.pop(number, -1) >= 0
        self._status(status, text, fresh=fresh)
        await self._fill()

    def _status(self, status: str, text: str, *, fresh: bool) -> None:
        """Decide what the end of a pull request means."""
        lowered = text.lower()
        if status in ("404", "408") or "batch completed" in lowered:
            return
        if "exceeds maxbytes" in lowered:
            if not self._queue and self._current is None:
                self._fail(
                    InputError(
                        f"The next message of {self.stream} is larger than max_bytes ({self._max_bytes:,}).",
                        remedy="Raise max_bytes.",
                    )
                )
        elif "consumer deleted" in lowered:
            self._fail(NotFoundError(f"Consumer {self.consumer} of {self.stream} was deleted.", code=404))
        elif status == "423":
            self._about.pop("id", None)  # another client holds the pin now
        elif status == "503" or "leadership" in lowered or "shutdown" in lowered or "maxwaiting" in lowered:
            self._begin_trouble(f"{status} {text}".strip())
        elif fresh:
            self._fail(JetStreamError(f"The server refuses to deliver: {status} {text}.", code=int(status or 0)))

    def _fail(self, error: PenstockError) -> None:
        self._error = self._error or error
        self._arrived.set()

    # -- watching ----------------------------------------------------------------------------------

    def _begin_trouble(self, what: str) -> None:
        if self._trouble is None:
            self._trouble = asyncio.get_running_loop().time()
            log.info("Consumer %s of %s: %s; pulling again.", self.consumer, self.stream, what)

    async def _watch(self) -> None:
        """Notice silence, and a connection that is closed; find out why, and pull again."""
        loop, reconnects = asyncio.get_running_loop(), self._client.stats["reconnects"]
        while self._error is None:
            await asyncio.sleep(min(self._heartbeat / 4, _PAUSE))
            if self._client.is_closed:
                self._fail(DisconnectedError("The connection was closed.", remedy="Is the server running?"))
                return
            if self._client.stats["reconnects"] != reconnects:
                reconnects = self._client.stats["reconnects"]
                self._begin_trouble("the connection was made anew")  # the old one took our requests with it
            silent = bool(self._pulls) and loop.time() - self._heard_at > 2 * self._heartbeat + 0.5
            if silent:
                self._begin_trouble(f"no heartbeat for {loop.time() - self._heard_at:.1f} s")
            if self._trouble is not None:
                await self._recover()
            else:
                await self._fill()

    async def _recover(self) -> None:
        """Ask whether the consumer is there; pull anew where it is, fail where it is not or nobody answers."""
        assert self._trouble is not None
        since = self._trouble
        try:
            await assets.consumer_info(self._client, self.stream, self.consumer)
        except NotFoundError as error:
            self._fail(error)
        except (DeadlineError, LinkError, JetStreamError) as error:
            if asyncio.get_running_loop().time() - since > self._patience:
                self._fail(
                    DisconnectedError(
                        f"Consumer {self.consumer} of {self.stream} gave no sign for {self._patience:g} s: {error}",
                        remedy="Is the server running, and does the stream have a leader?",
                    )
                )
        else:
            self._pulls.clear()
            self._trouble = None
            self._heard_at = asyncio.get_running_loop().time()
            await self._fill()

    async def _keep(self, interval: float) -> None:
        """Say that work goes on for what waits here, and for what is being worked on."""
        while True:
            await asyncio.sleep(interval)
            held = [*self._queue, *([self._current] if self._current is not None else [])]
            with suppress(PenstockError):  # while disconnected nothing can be said; the watch deals with it
                for delivery in held:
                    if not delivery.settled:
                        await self._client.publish(delivery.reply, b"+WPI")
