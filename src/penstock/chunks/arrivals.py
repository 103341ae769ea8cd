"""Chunks as they come from a client: in one step each, from the socket to where they are kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import nats.errors

from penstock.chunks.wire import Body
from penstock.connection import Client as OwnClient
from penstock.connection import foreign_errors
from penstock.errors import RemoteProtocolError
from penstock.wire.protocol import decode_headers

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = ["Arrivals", "Headers", "Receive"]

log = logging.getLogger("penstock.chunks")

Headers = Mapping[str, str] | None
Receive = Callable[[str, str, Headers, Body], None]
"""What takes a chunk: subject, reply (empty where there is none), headers, body."""

PENDING_BYTES = 64 * 1024 * 1024
"""Chunks that nats-py holds before it drops some; we take each in one step, so there is hardly ever one."""


class Arrivals:
    """A subscription that gives chunks to `receive`.

    A connection of `penstock.connect` lends each chunk from the place that it was received into, so that a chunk is
    copied once, into its payload. Any other client of nats-py makes bytes of it and lets it wait in a queue.
    """

    def __init__(self, nc: Client, subject: str, receive: Receive) -> None:
        self._nc = nc
        self._receive = receive
        self.subject = subject
        self.subscription: Subscription
        self._handled = 0
        self._known_drops = 0

    async def begin(self) -> Self:
        """Subscribe, and wait until the server knows of it."""
        with foreign_errors(self.subject):
            if isinstance(self._nc, OwnClient):
                sid = await self._nc.tap(self.subject, self._lent, lend=True)
                self.subscription = self._nc.tapped(sid)
            else:
                self.subscription = await self._nc.subscribe(
                    self.subject, cb=self._queued, pending_bytes_limit=PENDING_BYTES
                )
            try:
                await self._nc.flush()
            except BaseException:  # nobody would end it later
                with suppress(nats.errors.Error):
                    await self.subscription.unsubscribe()
                raise
        return self

    def _lent(self, subject: bytes, reply: bytes, body: Body, block: bytes | None) -> None:
        try:
            self._receive(subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace"), _headers(block), body)
        except Exception:  # the connection reads on, whatever is wrong here
            log.exception("a chunk on %s could not be taken", self.subject)

    async def _queued(self, message: Msg) -> None:
        self._handled += 1
        self._receive(message.subject, message.reply, message.headers, message.data)

    def drops(self) -> int:
        """Count the chunks that nats-py dropped since the last call, because they came faster than we took them."""
        dropped: int = self.subscription.delivered - self.subscription.pending_msgs - self._handled
        fresh = max(0, dropped - self._known_drops)
        self._known_drops += fresh
        return fresh

    async def end(self) -> None:
        """Take what the server has sent, and unsubscribe."""
        if self._nc.is_closed:
            return
        # Whoever got the subscription may have ended it already, or ended the connection.
        with suppress(nats.errors.Error, TimeoutError):
            if self._nc.is_connected:
                await self.subscription.drain()  # type: ignore[no-untyped-call]  # nats-py leaves its type out
            else:
                await self.subscription.unsubscribe()


def _headers(block: bytes | None) -> Headers:
    if block is None:
        return None
    try:
        found = decode_headers(block)[2]
    except RemoteProtocolError as error:
        log.debug("headers of no chunk: %s", error)
        return None
    return {name: values[0] for name, values in found.items()}
