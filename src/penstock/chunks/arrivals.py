"""Chunks as they come from a client: in one step each, from the socket to where they are kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from penstock.chunks.wire import Body
from penstock.errors import PenstockError, RemoteProtocolError
from penstock.wire.protocol import decode_headers

if TYPE_CHECKING:
    from penstock.connection import Connection, Subscription

__all__ = ["Arrivals", "Headers", "Receive"]

log = logging.getLogger("penstock.chunks")

Headers = Mapping[str, str] | None
Receive = Callable[[str, str, Headers, Body], None]
"""What takes a chunk: subject, reply (empty where there is none), headers, body."""


class Arrivals:
    """A subscription that gives chunks to `receive`.

    The connection lends each chunk from the place that it was received into, so that a chunk is copied once, into its
    payload. No queue stands between, so nothing is dropped here.
    """

    def __init__(self, nc: Connection, subject: str, receive: Receive) -> None:
        self._nc = nc
        self._receive = receive
        self.subject = subject
        self.subscription: Subscription

    async def begin(self) -> Self:
        """Subscribe, and wait until the server knows of it."""
        self.subscription = await self._nc.tap(self.subject, self._lent, lend=True)
        try:
            await self._nc.flush()
        except BaseException:  # nobody would end it later
            with suppress(PenstockError):
                await self.subscription.unsubscribe()
            raise
        return self

    def _lent(self, subject: bytes, reply: bytes, body: Body, block: bytes | None) -> None:
        self._receive(subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace"), _headers(block), body)

    async def end(self) -> None:
        """Take what the server has sent, and unsubscribe."""
        if self._nc.is_closed:
            return
        # Whoever got the subscription may have ended it already, or ended the connection.
        with suppress(PenstockError, TimeoutError):
            if self._nc.is_connected:
                await self.subscription.drain()
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
