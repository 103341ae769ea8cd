"""Puts the chunks of one object into its bucket: in order, a bounded number of bytes without acks, or none at all.

Chunks are messages of one subject, and their order there is the order of the bytes. They go out many in one piece, each
asking for its ack, and none is ever sent a second time: a repeat would stand behind those that follow it. So what goes
wrong ends the write, and all that was stored of it is purged. Nothing describes the object before every ack was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.connection.asking import api_request, store_frames
from penstock.connection.tasks import end
from penstock.errors import DataLossError, DeniedError, JetStreamError, PenstockError
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import meant
from penstock.wire.jetstream.answers import check_done, held_subjects
from penstock.wire.protocol import encode_headers

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["ChunkWriter", "purge_chunks"]

log = logging.getLogger("penstock.buckets")

GROUP = 1024 * 1024
"""Bytes that are sent in one piece."""
_MOST = 250  # chunks that are, if they are small: a server holds thousands before it refuses more
_GROUPS = 6  # that may wait for their acks
_UNDER_WAY = 1.0  # seconds that a write which is given up waits for acks that are on their way
_LATE = 0.2  # seconds for what was sent on a connection that is gone
_PURGING = 15.0  # for a leader that is being chosen
_SETTLE = 5.0  # and for the server to have taken all that was sent, before it purges


class ChunkWriter:
    """Stores chunks on a subject. `close` afterwards, whatever happened; `purge` takes back what was stored."""

    def __init__(self, nc: Connection, stream: str, subject: str, *, timeout: float) -> None:
        self._nc, self._stream, self._subject, self._timeout = nc, stream, subject, timeout
        self._line = f"{subject} ".encode()
        self._waiting: list[tuple[bytes | None, bytes | memoryview]] = []
        self._size = 0  # bytes of what waits to be sent
        self._under_way: deque[asyncio.Task[None]] = deque()
        self._last = 0  # the sequence of the last chunk that was acknowledged
        self._stretch = nc.stretch
        self.chunks = 0
        """How many chunks were given to it."""
        self.size = 0
        """How many bytes they have."""

    async def write(self, body: bytes | memoryview, headers: Mapping[str, str] | None = None) -> None:
        """Take a chunk; waits while too much has no ack, and raises what an earlier chunk died of.

        Bytes that may change are copied before this returns.
        """
        lasting = body if isinstance(body, bytes) or isinstance(body.obj, bytes) else bytes(body)
        self._waiting.append((encode_headers(headers) if headers else None, lasting))
        self._size += len(body)
        self.size += len(body)
        self.chunks += 1
        if self._size >= GROUP or len(self._waiting) >= _MOST:
            self._send()
            while len(self._under_way) >= _GROUPS or (self._under_way and self._under_way[0].done()):
                await self._settle_first()

    async def finish(self) -> None:
        """Send what is left, wait until all is stored, and see to it that all of it is where it belongs."""
        if self._waiting:
            self._send()
        while self._under_way:
            await self._settle_first()
        if not self.chunks:
            return
        body = {"subjects_filter": self._subject}
        try:
            info = await api_request(self._nc, names.stream_info(self._stream), body, timeout=self._timeout)
        except DeniedError:
            return  # every chunk has its ack
        held = held_subjects(info)
        if held.get(self._subject) != self.chunks:
            raise JetStreamError(
                f"Stream {self._stream} acknowledged {self.chunks:,} chunks, and holds {held.get(self._subject, 0)} on "
                f"{self._subject}: a limit or a purge took some, or they are stored under another subject.",
                remedy="Look at the limits and the subject transform of the stream, and the mappings of the account.",
            )

    async def _settle_first(self) -> None:
        await asyncio.shield(self._under_way[0])
        self._under_way.popleft()

    def _send(self) -> None:
        group, self._waiting, self._size = self._waiting, [], 0
        self._under_way.append(asyncio.ensure_future(self._store(group)))

    async def _store(self, group: list[tuple[bytes | None, bytes | memoryview]]) -> None:
        def make(reply: bytes) -> bytes:
            frames: list[bytes | memoryview] = []
            for block, body in group:
                if block is None:
                    frames += (b"PUB %b%b %d\r\n" % (self._line, reply, len(body)), body, b"\r\n")
                else:
                    size = len(block) + len(body)
                    frames += (b"HPUB %b%b %d %d\r\n" % (self._line, reply, len(block), size), block, body, b"\r\n")
            return b"".join(frames)

        acks = await store_frames(self._nc, make, (self._subject,), count=len(group), timeout=self._timeout)
        for ack in acks:
            meant(ack, self._stream, self._nc.options.domain)
            if ack.sequence <= self._last or ack.duplicate:
                raise DataLossError(
                    f"Stream {self._stream} stored a chunk as {ack.sequence}, and the one before it as {self._last}: "
                    "it was replaced or restored meanwhile.",
                    remedy="Put the object again.",
                    stream=self._stream,
                    start=ack.sequence,
                    last=ack.sequence,
                )
            self._last = ack.sequence

    async def close(self) -> None:
        """End what is under way."""
        await end(self._under_way)
        self._under_way.clear()

    async def purge(self) -> None:
        """Remove what was stored, once nothing is on its way any more; what cannot be removed is logged."""
        try:
            async with asyncio.timeout(_UNDER_WAY):
                await asyncio.gather(*self._under_way, return_exceptions=True)
        except TimeoutError:
            pass
        await self.close()
        if not self.chunks:
            return
        try:
            if self._nc.stretch != self._stretch or not self._nc.is_connected:
                await self._nc.standing(_SETTLE)
                await asyncio.sleep(_LATE)  # what an old connection had sent the server may read now
            # Behind everything that this connection sent: once it has an answer, nothing of ours comes after it.
            await self._nc.jetstream(timeout=_SETTLE).publish(self._subject)
        except PenstockError as error:
            log.debug("no ack behind the chunks on %s: %s", self._subject, error)
        await purge_chunks(self._nc, self._stream, self._subject)


async def purge_chunks(nc: Connection, stream: str, subject: str) -> None:
    """Remove the chunks on a subject that no object has any more.

    A failure is logged and not raised: the object itself is as it should be, and only the room is lost.
    """
    try:
        method = names.stream_purge(stream)
        check_done(await api_request(nc, method, {"filter": subject}, again=True, patience=_PURGING))
    except PenstockError as error:
        what = "The chunks on %s in stream %s, which no object has, could not be removed: %s"
        log.warning(what, subject, stream, error)
