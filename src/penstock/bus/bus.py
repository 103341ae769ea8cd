"""`Bus`: requests to queues and their partitions, and services that answer them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self
from weakref import WeakSet

from penstock.bus.limits import GRACE, KBITS, MIB, BusOptions, partitions, subject_of
from penstock.bus.mailbox import Mailbox
from penstock.bus.request import Request
from penstock.bus.requester import Reply
from penstock.bus.service import Handler, Service
from penstock.connection import Connection
from penstock.connection.callbacks import is_coroutine_function
from penstock.errors import InputError, LocalProtocolError, OptionError

__all__ = ["Bus"]

OFFER_ROOM = 128  # bytes of a request that are kept for the header with our offer


class Bus:
    """A bus over a connection, which stays yours to close.

    `queues` gives the number of partitions of each queue. Everything else is in `BusOptions`: the window that
    we offer and accept (0 for the plain protocol), the largest element, the rate that a reader must keep, and what the
    inboxes of peers look like.
    """

    def __init__(
        self,
        nc: Connection,
        queues: Mapping[str, int],
        *,
        window: int = 64,
        window_bytes: int = MIB,
        max_element: int = 64 * MIB,
        kbits: float = KBITS,
        grace: float = GRACE,
        inboxes: Sequence[str] = (),
    ) -> None:
        self.options = BusOptions(queues, window, window_bytes, max_element, kbits, grace, inboxes)
        self._mail = Mailbox(nc, self.options)
        self._services: WeakSet[Service] = WeakSet()  # their subscriptions keep those that serve

    def __repr__(self) -> str:
        return f"<Bus of {', '.join(self.options.queues)}: {len(self._mail)} conversations>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.close()

    @property
    def conversations(self) -> int:
        """How many replies are being read or sent."""
        return len(self._mail)

    async def request(self, request: Request, timeout: float = 10.0) -> Reply:
        """Send a request and give the reply as soon as its first packet is there.

        `timeout` is for each packet, not for the whole reply. Raises NoRespondersError at once if nobody serves the
        partition, DeniedError at once if the server does not permit it, and DeadlineError if nothing comes.
        """
        count = self._count(request.queue)
        if request.partition >= count:
            raise InputError(
                f"{request.queue} has {count} partitions, and {request.partition} is none of them.",
                remedy=f"Give one of [0, {count}).",
            )
        if not (isinstance(timeout, int | float) and math.isfinite(timeout) and timeout > 0):
            raise OptionError(f"timeout is {timeout!r}.", remedy="Give seconds above 0.", option="timeout")
        data, most = request.encode(), self._mail.nc.max_payload
        if len(data) > most - OFFER_ROOM:
            raise LocalProtocolError(
                f"The request makes {len(data):,} bytes, and the server takes {most - OFFER_ROOM:,}.",
                remedy="A body is a third larger on the way; send large ones with penstock.chunks and name them here.",
            )
        if not self._mail.is_open:
            await self._mail.open(timeout)
        subject = subject_of(request.queue, request.partition)
        reply = Reply(self._mail, subject, timeout)
        try:
            await reply.ask(subject.encode(), data)
        except BaseException:
            await reply.close()
            raise
        return reply

    def serve(
        self, queue: str, handler: Handler, *, parts: int = 1, part: int = 1, concurrency: int = 64, backlog: int = 1024
    ) -> Service:
        """Serve a queue, or one part of its partitions: `await` the result, or use it with `async with`.

        `handler(request, sender)` is a coroutine function. Of each partition up to `concurrency` requests are
        handled at once (1 for one after the other) and `backlog` wait; more are answered with 503.
        """
        count = self._count(queue)
        if not is_coroutine_function(handler):
            raise InputError(f"The handler {handler!r} is not a coroutine function.", remedy="Write it with async def.")
        for name, value, low in (("concurrency", concurrency, 1), ("backlog", backlog, 0)):
            if not isinstance(value, int) or value < low:
                raise OptionError(f"{name} is {value!r}.", remedy=f"Give at least {low}.", option=name, value=value)
        service = Service(self._mail, queue, partitions(count, parts, part), handler, concurrency, backlog)
        self._services.add(service)
        return service

    async def close(self, timeout: float = 10.0) -> None:
        """Stop the services within `timeout`, leave the replies that are being read, and unsubscribe."""
        for service in list(self._services):
            await service.stop(timeout)
        for conversation in self._mail.conversations():
            if isinstance(conversation, Reply):
                await conversation.close()
        await self._mail.close()

    def _count(self, queue: str) -> int:
        try:
            return self.options.queues[queue]
        except KeyError:
            known = ", ".join(self.options.queues) or "none"
            raise InputError(f"unknown queue: {queue}.", remedy=f"This bus knows: {known}.") from None
