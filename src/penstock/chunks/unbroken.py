"""One unbroken stretch of a connection, and what the server has confirmed on it.

A payload in chunks must not go on over a break: what the socket had taken may or may not have arrived.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.errors import DeadlineError, DeniedError, DisconnectedError

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Unbroken"]


class Unbroken:
    """Publishes on `subject` as long as the connection is the one that it was at the start."""

    def __init__(self, nc: Connection, subject: str, *, timeout: float) -> None:
        self._nc = nc
        self._subject = subject
        self._timeout = timeout
        self._stretch = nc.stretch
        self._denied: DeniedError | None = None
        self._mark: asyncio.Task[None] | None = None
        self._watch = ExitStack()
        self._watch.enter_context(nc.expecting(subject, self._deny))

    def _deny(self, error: DeniedError) -> None:
        self._denied = error

    def check(self) -> None:
        """Raise if the connection broke since the start, or the server does not permit what we sent."""
        nc = self._nc
        if nc.stretch != self._stretch or not nc.is_connected:
            reason = f": {nc.last_error}" if nc.is_closed and nc.last_error else ""
            raise DisconnectedError(f"The connection broke while publishing on {self._subject}{reason}.")
        if self._denied is not None:
            raise self._denied

    async def publish(self, body: bytes | memoryview, headers: dict[str, str], reply: str = "") -> None:
        """Publish one message, and wait until the socket has room for it."""
        self.check()
        self._nc.send(self._subject, body, reply, headers)
        await self._nc.written()

    def mark(self) -> None:
        """Ask the server to confirm what was published until now; `confirmed` waits for the answer."""
        self._mark = asyncio.ensure_future(self._nc.confirm(self._stretch, self._timeout))

    async def confirmed(self) -> None:
        """Wait until the server has confirmed the last mark."""
        if self._mark is None:
            return
        mark, self._mark = self._mark, None
        try:
            await mark
        except DeadlineError:
            raise DeadlineError(
                f"The server did not confirm what was published on {self._subject} within {self._timeout:g} s.",
                seconds=self._timeout,
                subject=self._subject,
            ) from None
        self.check()

    def close(self) -> None:
        """Drop a question that nobody waits for any more."""
        self._watch.close()
        if self._mark is not None:
            self._mark.cancel()
            self._mark = None
