"""Sends the chunks of one message to whoever listens, and knows what the server has of them.

Over core NATS a payload must not go on over a break of the connection: what the socket had taken may or may not have
arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack

from penstock.chunks.limits import Remembered
from penstock.chunks.pacing import Pacing
from penstock.chunks.wire import Chunk, encode
from penstock.connection import Connection
from penstock.connection.tasks import end
from penstock.errors import DeadlineError, DisconnectedError, PenstockError

__all__ = ["ChunkSender"]

WINDOW = 4 * 1024 * 1024
"""Bytes after which the server is asked to confirm."""
QUESTIONS = 3  # that wait for their answer while more is sent: a server that is held up for a moment holds up nobody


class ChunkSender:
    """Publishes on `subject` as long as the connection is the one that it was at the start.

    With `silence` it waits for slower receivers, and learns there on which subjects nobody answers.
    """

    remedy = "Receivers drop the part after their timeout. Publish the payload again."

    def __init__(self, nc: Connection, subject: str, *, timeout: float, silence: Remembered | None) -> None:
        self._nc, self._subject, self._timeout = nc, subject, timeout
        self._stretch = nc.stretch
        self._failure: PenstockError | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pacing = None if silence is None else Pacing(nc, subject, silence, self._over)
        self._confirming: deque[tuple[asyncio.Task[None], int]] = deque()  # each with the bytes that it asks about
        self._asked = 0  # bytes that the server was asked about
        self._confirmed = 0
        self.sent = 0
        """Bytes that were handed to the connection."""
        self.started = False
        """Whether anything was sent."""
        self._broken = nc.broken
        self._broken.add_done_callback(self._broke)
        self._expecting = ExitStack()
        self._expecting.enter_context(nc.expecting(subject, self._fail, mapped=True))

    def _broke(self, reason: asyncio.Future[PenstockError]) -> None:
        what = f"The connection broke while publishing on {self._subject}: {str(reason.result()).rstrip('.')}."
        self._fail(DisconnectedError(what, urls=self._nc.options.urls))

    def _fail(self, error: PenstockError) -> None:
        if self._failure is None:
            self._failure = error
            self._over.set_result(None)

    def _check(self) -> None:
        if self._broken.done():  # its callbacks are called a moment later
            self._broke(self._broken)
        if self._failure is not None:
            raise self._failure

    async def send(self, chunk: Chunk, body: memoryview) -> None:
        """Send a chunk, and wait while the server or a receiver is too far behind."""
        self._check()
        full = self.sent + len(body) - self._asked >= WINDOW and not chunk.last
        reply = await self._pacing.reply_to(self.sent + len(body)) if full and self._pacing is not None else ""
        await self._nc.publish(self._subject, body, reply, encode(chunk))
        self.sent += len(body)
        self.started = True
        if full:
            await self._confirm(QUESTIONS - 1)
            self._ask()
            if self._pacing is not None:
                await self._pacing.wait(self.sent)

    async def finish(self) -> None:
        """Wait until the server has everything."""
        self._ask()
        await self._confirm(0)

    def _ask(self) -> None:
        self._asked = self.sent
        self._confirming.append((asyncio.ensure_future(self._nc.confirm(self._stretch, self._timeout)), self.sent))

    async def _confirm(self, most: int) -> None:
        """Wait until so many questions at most have no answer from the server."""
        while len(self._confirming) > most:
            confirming, asked = self._confirming[0]
            try:
                await confirming
            except PenstockError as error:
                self._check()  # what ended the message says more than what ended the waiting
                if isinstance(error, DeadlineError):
                    raise DeadlineError(
                        f"The server did not confirm what was published on {self._subject} within {self._timeout:g} s.",
                        seconds=self._timeout,
                        subject=self._subject,
                    ) from None
                raise
            self._confirming.popleft()
            self._check()
            self._confirmed = asked

    async def confirmed(self) -> int:
        """Give the bytes that the server surely has."""
        return self._confirmed

    async def close(self) -> None:
        """Drop a question that nobody waits for any more."""
        self._broken.remove_done_callback(self._broke)
        self._expecting.close()
        await end([confirming for confirming, _ in self._confirming])
        if self._pacing is not None:
            await self._pacing.close()
