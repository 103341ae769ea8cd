"""Sends the chunks of one message, to whoever listens or into a stream, and knows what the server has of them.

Over core NATS a payload must not go on over a break of the connection: what the socket had taken may or may not have
arrived. Into a stream it may: each chunk is acknowledged, and one that is sent again is stored once.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack

from penstock.chunks.archive import Archive, StoredChunks
from penstock.chunks.limits import Remembered
from penstock.chunks.pacing import Pacing
from penstock.chunks.wire import Chunk, encode
from penstock.connection import Connection
from penstock.connection.asking import insist, patiently
from penstock.connection.tasks import end
from penstock.errors import DeadlineError, DisconnectedError, InputError, PenstockError
from penstock.model import PubAck
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.names import EXPECTED_STREAM, MSG_ID

__all__ = ["STORE_WINDOW", "ChunkSender", "ChunkStorer"]

WINDOW = 4 * 1024 * 1024
"""Bytes after which the server is asked to confirm; twice as many are under way at most."""
STORE_WINDOW = 8 * 1024 * 1024
"""Bytes that may wait for their acknowledgement."""
_AGAIN = 5.0  # seconds after which a chunk is sent again; a slow way to the server must not carry everything twice
_SETTLE = 1.0  # seconds that chunks which are under way have, to be known as stored, when the source fails


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
        self._confirming: asyncio.Task[None] | None = None
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
            await self._confirm()
            self._ask()
            if self._pacing is not None:
                await self._pacing.wait(self.sent)

    async def finish(self) -> None:
        """Wait until the server has everything."""
        await self._confirm()
        self._ask()
        await self._confirm()

    def _ask(self) -> None:
        self._asked = self.sent
        self._confirming = asyncio.ensure_future(self._nc.confirm(self._stretch, self._timeout))

    async def _confirm(self) -> None:
        """Wait until the server has confirmed what it was asked about."""
        if self._confirming is None:
            return
        confirming, self._confirming = self._confirming, None
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
        self._check()
        self._confirmed = self._asked

    async def confirmed(self) -> int:
        """Give the bytes that the server surely has."""
        return self._confirmed

    async def close(self) -> None:
        """Drop a question that nobody waits for any more."""
        self._broken.remove_done_callback(self._broke)
        self._expecting.close()
        if self._confirming is not None:
            await end([self._confirming])
        if self._pacing is not None:
            await self._pacing.close()


class ChunkStorer:
    """Stores the chunks of a message on `target`, a window of them at a time; those that are `stored` are passed over.

    The last chunk is sent when all others are acknowledged: a message whose last chunk is there, is there. `stored` is
    None for a message that is new, so that nobody can have stored anything of it, nor deleted it.
    """

    def __init__(
        self, nc: Connection, archive: Archive, target: str, stored: StoredChunks | None, most: int, timeout: float
    ) -> None:
        self._nc, self._archive, self._target = nc, archive, target
        self._new, self._stored = stored is None, stored or {}
        self._most, self._timeout = most, timeout
        self._tasks: dict[asyncio.Task[None], int] = {}  # and the offset of each one's chunk
        self.remedy = f"Publish it again with message_id={target.rpartition('.')[2]!r} to go on where it stopped."
        self.started = False
        """Whether anything was sent."""
        self.sent = 0
        """Bytes that were sent, or are in the stream already."""

    async def send(self, chunk: Chunk, body: memoryview) -> None:
        """Begin to store a chunk, and wait until there is room for the next; raise what an earlier one died of."""
        self.sent = chunk.offset + len(body)
        if chunk.last:
            await self.finish()
            before = next((item for offset, item in self._stored.items() if 0 < self.sent <= offset), None)
        else:
            before = self._stored.get(chunk.offset)
        if before is None:
            # The body waits for its acknowledgement longer than a buffer of the caller's may last.
            kept = body if isinstance(body.obj, bytes) else bytes(body)
            self.started = True
            self._tasks[asyncio.ensure_future(self._store(chunk, kept))] = chunk.offset
            await self._shrink(self._most)
        elif chunk.last or before.size != len(body):
            raise InputError(
                f"Message {chunk.message_id} was begun with a chunk of {before.size} bytes where there would now be "
                f"one of {len(body)}.",
                remedy="Continue it with the same chunk_size and the same payload, or send it under a new id.",
            )

    async def finish(self) -> None:
        await self._shrink(0)

    async def _shrink(self, most: int) -> None:
        await asyncio.sleep(0)
        while self._tasks:
            for task in [task for task in self._tasks if task.done()]:
                task.result()  # one that failed stays: `confirmed` sees where
                del self._tasks[task]
            if len(self._tasks) <= most:
                return
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _store(self, chunk: Chunk, body: bytes | memoryview) -> None:
        headers = encode(chunk)
        headers[EXPECTED_STREAM] = self._archive.stream
        headers[MSG_ID] = f"{chunk.message_id}:{chunk.offset}"
        ack = await self._acked(body, headers)
        if ack.duplicate and not self._new and not await self._archive.holds(chunk, ack.sequence, self._timeout):
            # The stream remembers a chunk of that name, and does not hold it: the message was deleted a moment ago.
            headers[MSG_ID] += f":{secrets.token_hex(8)}"
            await self._acked(body, headers)

    async def _acked(self, body: bytes | memoryview, headers: dict[str, str]) -> PubAck:
        async def store() -> PubAck:
            reply = await insist(self._nc, self._target, body, self._timeout, headers, again=_AGAIN)
            return confirm(reply.data, reply.status, self._archive.stream)

        # What was under way when the connection broke may be lost; storing it again does no harm.
        return await patiently(store, self._timeout, self._nc, nobody=True)

    async def confirmed(self) -> int:
        """Give the bytes from the start that are surely stored; if the source failed, what is under way arrives."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_SETTLE, return_when=asyncio.FIRST_EXCEPTION)
        lost = (offset for task, offset in self._tasks.items() if not task.done() or task.exception() is not None)
        return min(lost, default=self.sent)

    async def close(self) -> None:
        await end(self._tasks)
