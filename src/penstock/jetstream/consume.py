"""`Deliveries`: messages of a pull consumer, with the server's heartbeats watched.

Pull requests are ours, on an inbox of our own: a batch, a time after which it ends, and heartbeats in between. As
long as a request is out, the server says something at least every heartbeat. If it does not, or if it says that
leadership moved, we ask whether the consumer is still there and pull anew; a consumer that is gone is an error at
once, and a server that stays away is one after `patience`. What waits here, unread, is kept alive with progress acks,
and given back when reading ends. So is the pin of a priority group, and another client goes on at once; one that is
lost is logged, and taken up again when it is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

from penstock.connection.messages import as_text
from penstock.connection.tasks import end, heed
from penstock.durations import parse_duration
from penstock.errors import DisconnectedError, InputError, NotFoundError, PenstockError, RemoteProtocolError
from penstock.info import ConsumerInfo
from penstock.jetstream import assets
from penstock.jetstream.delivery import Delivery
from penstock.wire.jetstream.acked import number_behind
from penstock.wire.jetstream.answers import read_status
from penstock.wire.jetstream.names import ACK, PIN_ID, consumer_next
from penstock.wire.jetstream.pull import Pulls
from penstock.wire.jetstream.verdicts import may_ask_again
from penstock.wire.protocol import decode_status

if TYPE_CHECKING:
    from penstock.connection import Connection, Subscription

__all__ = ["Deliveries"]

log = logging.getLogger("penstock.jetstream")

_ACK = f"{ACK}.".encode()
_PAUSE = 0.25  # between attempts while the server is in trouble
_LEAVING = 2.0  # seconds that a reader that leaves waits for what is on its way, and to give up a pin


class Deliveries:
    """Deliveries of one pull consumer, for `async for`. Use it with `async with`.

    `batch` and `max_bytes` bound what is asked for and held. `heartbeat` is how often the server shows that it is
    alive; `expires` how long one request lasts. `limit` ends the iteration after so many; `wait` ends it when nothing
    came for so long. `keep_alive` sends progress acks for what waits here, and for the one that is being worked on.

    A consumer with priority groups is read in one of them, `group`. If its policy is `pinned_client`, one client at a
    time gets messages (`pin` says whether it is this one), and the others wait. If it is `overflow`, a client with
    `min_pending` or `min_ack_pending` gets messages only if so many wait, or wait for acks. If it is `prioritized`,
    those with the lowest `priority`, 0 to 9, come first.
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
        self.patience = parse_duration(patience, option="patience")
        """How long a server may stay away."""
        self._wait = None if wait is None else parse_duration(wait, option="wait")
        if batch < 1 or (max_bytes is not None and max_bytes < 1) or (limit is not None and limit < 1):
            raise InputError("batch, max_bytes and limit are at least 1.", remedy="Leave them out, or raise them.")
        if not 0.1 <= self._heartbeat <= self._expires / 2:
            what = f"heartbeat is {self._heartbeat:g} s, with requests of {self._expires:g} s."
            raise InputError(what, remedy="It is at least 100ms and at most half of expires.")
        self._batch, self._max_bytes, self._limit, self._keep_alive = batch, max_bytes, limit, keep_alive
        about = {"group": group, "min_pending": min_pending, "min_ack_pending": min_ack_pending, "priority": priority}
        self._about: dict[str, Any] = {key: value for key, value in about.items() if value is not None}
        _check_about(self._about)
        self._pinned = False
        self._queue: deque[Delivery] = deque()
        self._given = 0
        self._fresh = 0  # deliveries that `_pulls` does not know of yet: it is told of many at once
        self._due = 0  # deliveries that may be given before more are asked for
        self._current: Delivery | None = None
        self.working: Iterable[Delivery] = ()
        """What was given and is still worked on, beside the last one: it is kept alive, too."""
        self._waiter: asyncio.Future[None] | None = None
        self._denial = ExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None
        self.given_up = 0
        """How many were given back unread with their last delivery, and never come again."""
        self.info: ConsumerInfo | None = None
        """The consumer as it was when reading began."""

    # -- opening and closing -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Look at the consumer, and begin to pull."""
        self.info = await assets.consumer_info(self._client, self.stream, self.consumer, patience=self.patience)
        config = self.info.config
        if config.deliver_subject:
            what = f"Consumer {self.consumer} of {self.stream} is a push consumer."
            raise InputError(what, remedy=f"Subscribe to {config.deliver_subject}, or use a pull consumer.")
        _check_group(self._about, self.info)
        self._loop = asyncio.get_running_loop()
        expires = min(self._expires, config.max_expires or self._expires)
        self._pulls = Pulls(
            self.stream,
            self.consumer,
            batch=min(self._batch, config.max_batch or self._batch),
            expires=expires,
            heartbeat=min(self._heartbeat, expires / 2),
            now=self._loop.time(),
            max_bytes=self._max_bytes,
            limit=self._limit,
            about=self._about,
            pinned=config.priority_policy == "pinned_client",
        )
        self._pinned = self._pulls.pinned
        self._next = f"{self._client.options.js_prefix}.{consumer_next(self.stream, self.consumer)}"
        self._inbox = f"{self._client.new_inbox()}."
        self._subscription = await self._client.tap(f"{self._inbox}*", self._heard)
        self._denial.enter_context(self._client.expecting(self._next, self._deny))
        self._tasks.append(asyncio.ensure_future(self._watch()))
        if self._keep_alive and config.ack_policy != "none":
            waits = [config.ack_wait or 30.0, *config.backoff]
            self._tasks.append(asyncio.ensure_future(self._keep(min(waits) / 3)))
        for task in self._tasks:
            heed(task, self._failed)

    async def close(self) -> None:
        """Stop pulling, and give back what was not read, and what was on its way."""
        self._denial.close()
        await end(self._tasks)
        self._tasks.clear()
        if self._subscription is not None and not self._client.is_closed:
            self._pulls.fail(DisconnectedError("These deliveries are closed."))  # no more is asked for
            with suppress(PenstockError, TimeoutError):  # the connection may end in this moment
                async with asyncio.timeout(min(_LEAVING, self._client.options.request_timeout)):
                    await self._subscription.drain()
            with suppress(PenstockError):
                if self.info is not None and self.info.config.ack_policy != "none":
                    for delivery in self._queue:
                        await self._give_back(delivery, self.info.config.max_deliver)
                if self.pin is not None:
                    await self._give_up_pin()
        self._subscription = None
        self._queue.clear()

    async def _give_back(self, delivery: Delivery, most: int) -> None:
        await self._client.publish(delivery.reply, b"-NAK")
        if 0 < most <= delivery.delivered:  # each delivery counts, also one that nobody read
            self.given_up += 1
            log.error("%r was not read, and this was its last delivery: max_deliver is %d.", delivery, most)

    @property
    def pin(self) -> str | None:
        """The id under which the server delivers to this client in a pinned group; None while it does not."""
        return self._pulls.pin if self._pinned else None

    async def _give_up_pin(self) -> None:
        """Let another client of the group go on now, and not when the pin runs out; nobody else's pin is touched."""
        pin, self._pulls.about = self.pin, {}
        with suppress(TimeoutError):  # then it runs out
            async with asyncio.timeout(_LEAVING):
                there = await assets.consumer_info(self._client, self.stream, self.consumer)
                for group in there.groups:
                    if group.pin == pin:
                        await assets.unpin_consumer(self._client, self.stream, self.consumer, group.name)

    # -- reading -----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        if self._due <= 0 or not self._queue:
            await self._more()
        self._due -= 1
        self._given += 1
        self._current = found = self._queue.popleft()
        return found

    async def consume(self, handler: Callable[[Delivery], Awaitable[None]]) -> None:
        """Give every delivery to a coroutine function, one after the other, until `limit` or `wait` ends it.

        What the handler raises ends it, too. It is the quickest way to read; `Worker` acks, repeats and sorts out.
        """
        queue = self._queue
        with suppress(StopAsyncIteration):
            while True:
                await self._more()
                given = 0
                try:
                    while queue and given < self._due:
                        given += 1
                        self._current = found = queue.popleft()
                        await handler(found)
                finally:
                    self._given += given
                    self._due -= given

    async def _more(self) -> None:
        """Ask for more if it is time to, and wait until there is a delivery; StopAsyncIteration if none will be."""
        if self._subscription is None:
            raise InputError("These deliveries are not open.", remedy="Use them with `async with`.")
        self._current = None
        if self._limit is not None and self._given >= self._limit:
            raise StopAsyncIteration
        self._fill()
        if not self._queue:
            try:
                async with asyncio.timeout(self._wait):
                    await self._arrival()
            except TimeoutError:
                raise StopAsyncIteration from None
        self._due = max(1, min(len(self._queue), self._pulls.batch // 4))
        if self._limit is not None:
            self._due = min(self._due, self._limit - self._given)

    async def _arrival(self) -> None:
        """Wait for a delivery, whatever else the server says meanwhile."""
        try:
            while not self._queue:
                if self._pulls.error is not None:
                    raise self._pulls.error
                self._waiter = self._loop.create_future()
                await self._waiter
        finally:
            self._waiter = None

    async def take(self, count: int, *, wait: str | float = 5.0) -> list[Delivery]:
        """Give up to `count` deliveries, as soon as they are there; fewer when `wait` is over, or no more will come."""
        taken: list[Delivery] = []
        with suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(parse_duration(wait, option="wait")):
                while len(taken) < count:
                    taken.append(await anext(self))
        return taken

    # -- pulling -----------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Ask for more once less than half of a batch is here or on its way."""
        now = self._loop.time()
        self._count(now)
        if want := self._pulls.want(len(self._queue)):
            number, body = self._pulls.ask(want, now)
            try:
                self._client.send(self._next, body, f"{self._inbox}{number}")
            except PenstockError as error:
                self._pulls.begin_trouble(f"pulling failed: {error}", now)

    def _count(self, now: float) -> None:
        if self._fresh:
            count, self._fresh = self._fresh, 0
            self._pulls.came(now, count=count)

    def _heard(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        if reply.startswith(_ACK):
            held = len(self._queue)
            if (held >= self._pulls.batch or self._max_bytes is not None) and not self._pulls.check(held):
                self._wake()
                return
            delivery = Delivery(self._client, subject, reply, payload, block)
            self._queue.append(delivery)
            if self._max_bytes is None:
                self._fresh += 1
            else:
                size = len(subject) + len(reply) + len(payload) + len(block or b"")
                self._pulls.came(self._loop.time(), size=size)
            if self._pinned and (pin := delivery.headers.get(PIN_ID)):
                self._pulls.about["id"] = pin
            if self._waiter is not None:
                self._wake()
            return
        now = self._loop.time()
        self._count(now)
        try:
            code, description = (0, "") if block is None else decode_status(block)
            number = number_behind(as_text(subject), self._inbox)
            idle, pin = not self._queue and self._current is None, self.pin
            self._pulls.told(number, read_status(code or 0, description), now, idle=idle)
            if pin is not None and self.pin is None:
                said = "The pin of group %s of consumer %s of %s was taken away; waiting for it."
                log.warning(said, self._about["group"], self.consumer, self.stream)
        except RemoteProtocolError as error:
            self._pulls.fail(error)
        self._wake()
        self._fill()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _deny(self, error: PenstockError) -> None:
        self._pulls.fail(error)
        self._wake()

    def _failed(self, error: BaseException) -> None:
        # A fault of ours must not leave anybody waiting for ever.
        self._deny(PenstockError(f"The deliveries of consumer {self.consumer} of {self.stream} failed: {error!r}."))

    # -- watching ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notice silence, and a connection that is closed; find out why, and pull again."""
        loop, stretch, pulls, noted = self._loop, self._client.stretch, self._pulls, 0.0
        while pulls.error is None:
            await asyncio.sleep(min(pulls.heartbeat / 4, _PAUSE))
            self._count(loop.time())
            gone = self._subscription.error if self._subscription is not None else None
            if self._client.is_closed:
                gone = DisconnectedError("The connection was closed.", remedy="Is the server running?")
            if gone is not None:
                pulls.fail(gone)
                break
            if self._client.stretch != stretch:  # the old one took our requests with it
                stretch = self._client.stretch
                pulls.begin_trouble("the connection was made anew", loop.time())
            if pulls.is_in_trouble(loop.time()):
                if pulls.trouble_since != noted:
                    noted = pulls.trouble_since
                    log.info("Consumer %s of %s: %s; pulling again.", self.consumer, self.stream, pulls.trouble)
                await self._recover()
            self._fill()
        self._wake()

    async def _recover(self) -> None:
        """Ask whether the consumer is there; pull anew if it is, fail if it is not or nobody answers."""
        assert self.info is not None
        try:
            there = await assets.consumer_info(self._client, self.stream, self.consumer)
            if there.created != self.info.created:
                raise NotFoundError(
                    f"Consumer {self.consumer} of {self.stream} was deleted, and another one of that name made.",
                    remedy="Begin to read again: the new one knows nothing of what was acknowledged.",
                    code=404,
                )
        except PenstockError as error:
            if may_ask_again(error):
                self._pulls.give_up(error, self.patience, self._loop.time())
            else:
                self._pulls.fail(error)
        else:
            self._pulls.restart(self._loop.time())

    async def _keep(self, interval: float) -> None:
        """Say that work goes on for what waits here, and for what is being worked on."""
        while True:
            await asyncio.sleep(interval)
            held = {*self._queue, *self.working, *([self._current] if self._current is not None else [])}
            with suppress(PenstockError):  # while disconnected nothing can be said; the watch deals with it
                for delivery in held:
                    if not delivery.settled:
                        await self._client.publish(delivery.reply, b"+WPI")


def _check_about(about: Mapping[str, Any]) -> None:
    if about and "group" not in about:
        raise InputError(f"{' and '.join(about)} mean nothing without a priority group.", remedy="Give group.")
    if not 0 <= about.get("priority", 0) <= 9:
        raise InputError(f"priority is {about['priority']}.", remedy="It is from 0, which comes first, to 9.")
    for name in ("min_pending", "min_ack_pending"):
        if about.get(name, 1) < 1:
            raise InputError(f"{name} is {about[name]}.", remedy="It is at least 1.")


def _check_group(about: Mapping[str, Any], info: ConsumerInfo) -> None:
    """Refuse a group that the consumer does not serve, and what its policy gives no meaning to."""
    policy, groups = info.config.priority_policy, ", ".join(info.config.priority_groups)
    whose = f"Consumer {info.name} of {info.stream}"
    if not groups:
        if about:
            raise InputError(f"{whose} serves no priority groups.", remedy="Leave group out.")
        return
    if "group" not in about:
        raise InputError(f"{whose} serves priority groups.", remedy=f"Give group, one of {groups}.")
    if about["group"] not in info.config.priority_groups:
        raise InputError(f"{whose} serves no group {about['group']}.", remedy=f"Give one of {groups}.")
    for name, needed in (("min_pending", "overflow"), ("min_ack_pending", "overflow"), ("priority", "prioritized")):
        if name in about and policy != needed:
            raise InputError(f"{whose} serves its groups as {policy}: {name} means nothing.", remedy="Leave it out.")
