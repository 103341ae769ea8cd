"""One unbroken stretch of a connection, and what the server has confirmed on it.

nats-py buffers what is published, sends it again after a reconnect, and says nothing of what was lost in between. A
payload in chunks needs to know: this watches for the break, and asks the server how far it has read.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from penstock.chunks.tasks import cancellable
from penstock.connection import foreign_errors, translate
from penstock.errors import DeadlineError, DisconnectedError, LinkError

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Link"]

_LOOK = 0.1  # seconds between looks at a connection that keeps us waiting


class Link:
    """Publishes on `subject` as long as the connection is the one that it was at the start."""

    def __init__(self, nc: Client, subject: str, *, timeout: float) -> None:
        self._nc = nc
        self._subject = subject
        self._timeout = timeout
        self._reconnects = nc.stats["reconnects"]
        self._last_error = nc.last_error
        self._ping: asyncio.Task[None] | None = None

    @property
    def _unbroken(self) -> bool:
        return self._nc.is_connected and self._nc.stats["reconnects"] == self._reconnects

    def check(self) -> None:
        """Raise if the connection broke since the start, or the server refused what we sent."""
        nc = self._nc
        if not self._unbroken:
            reason = f": {nc.last_error}" if nc.is_closed and nc.last_error else ""
            raise DisconnectedError(f"The connection broke while publishing on {self._subject}{reason}.")
        error = nc.last_error
        if error is not None and error is not self._last_error and self._subject.lower() in str(error).lower():
            raise LinkError(f"The server refuses messages on {self._subject}: {error}.")

    async def publish(self, body: bytes | memoryview, headers: dict[str, str], reply: str = "") -> None:
        """Publish one message and let the client write it to the socket."""
        self.check()
        with foreign_errors(self._subject):
            # nats-py joins it with bytes, which any buffer can be.
            await cancellable(self._nc.publish(self._subject, body, reply, headers))  # type: ignore[arg-type]
        # The client writes in a task of its own, which gets its turn here: a chunk is under way while the next is cut.
        await asyncio.sleep(0)

    async def mark(self) -> None:
        """Ask the server to confirm what was published until now; `confirmed` waits for the answer."""
        await self._settle()
        self._ping = asyncio.ensure_future(self._nc.flush(math.ceil(self._timeout)))

    async def confirmed(self) -> None:
        """Wait until the server has confirmed the last mark."""
        if self._ping is not None:
            ping, self._ping = self._ping, None
            await self._await(ping)

    def close(self) -> None:
        """Drop a question that nobody waits for any more."""
        if self._ping is not None:
            self._drop(self._ping)

    def _drop(self, ping: asyncio.Future[None]) -> None:
        # nats-py stops reading for good when the answer to a ping comes that was cancelled. So it is left to be
        # answered, unless the connection that it was sent on is gone.
        if not self._unbroken:
            ping.cancel()
        ping.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _settle(self) -> None:
        """Wait until nothing is left in the client's own buffer, past which its pings jump."""
        while self._nc.pending_data_size > 0:
            await self._await(asyncio.ensure_future(self._nc.flush(math.ceil(self._timeout))))

    async def _await(self, ping: asyncio.Future[None]) -> None:
        # nats-py never answers a ping whose connection broke, so we look for ourselves.
        try:
            while not ping.done():
                await asyncio.wait({ping}, timeout=_LOOK)
                self.check()
        finally:
            if not ping.done():
                self._drop(ping)
        error = ping.exception()
        if isinstance(error, TimeoutError):
            raise DeadlineError(
                f"The server did not confirm what was published on {self._subject} within {self._timeout:g} s.",
                seconds=self._timeout,
                subject=self._subject,
            )
        if isinstance(error, Exception):
            raise translate(error, self._subject) from error
        self.check()
