"""The bytes of one object, read from its bucket with backpressure: a bounded number of chunks ahead of the reader.

Chunks come by direct get, many at a time, and from the leader if any replica, or a mirror, may lack some. The end of
the object is told when as many chunks and bytes came as its description says, with the digest that it says, and the
subject holds no other chunk.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from penstock.chunks.incoming import PayloadReader
from penstock.chunks.wire import Reason
from penstock.connection.asking import api_request, direct_get, patiently
from penstock.connection.tasks import end
from penstock.errors import AssemblyError, NoRespondersError, NotFoundError, RemoteProtocolError
from penstock.wire.jetstream import names
from penstock.wire.jetstream.direct import Found, leader_question, question, read_found, read_message

if TYPE_CHECKING:
    from penstock.buckets.object_info import ObjectInfo
    from penstock.connection import Connection

__all__ = ["StoredObject"]

AHEAD = 4 * 1024 * 1024
"""Bytes that are asked for at a time; one such part is read ahead."""
_MOST = 512  # chunks of one part


class StoredObject(PayloadReader):
    """An object that is being read: iterate over it for its bytes in order, or `read` them.

    The end of the iteration says that size, number of chunks and digest were right. AssemblyError is raised if not, and
    if somebody replaced or deleted the object meanwhile, which removes its chunks.
    """

    def __init__(
        self,
        nc: Connection,
        stream: str,
        subject: str,
        info: ObjectInfo,
        *,
        look: Callable[[], Awaitable[ObjectInfo | None]],
        verify: bool = True,
    ) -> None:
        super().__init__(info.nuid, subject)
        self.info = info
        """What the bucket said of the object when the reading began."""
        self.size: int = info.size
        self._nc, self._stream, self._look = nc, stream, look
        self._expected = info.sha256 if verify else None
        self._digest = hashlib.sha256()
        self._hashing: asyncio.Future[None] | None = None
        self._ready: deque[bytes] = deque()
        self._ahead: asyncio.Task[list[Found]] | None = None
        self._sequence = 1  # where the next chunk may be
        self._taken = 0  # chunks
        self._came = 0  # bytes
        self._pending: int | None = None  # chunks that the server said were behind the last one
        self._ended = False
        if verify and self._expected is None and info.size:
            what = f"says the digest {info.digest!r}" if info.digest else "has no digest"
            raise self._broken(Reason.DIGEST, f"{what}, so that nobody can tell whether its bytes are right")

    async def _next(self) -> bytes:
        while not self._ready:
            if self._taken >= self.info.chunks or not self.size:
                await self._check_end()
                return b""
            await self._take()
        return self._ready.popleft()

    async def _take(self) -> None:
        """Take the chunks that were asked for, have more asked for, and have them hashed beside the loop."""
        if self._ahead is None:
            self._ahead = asyncio.ensure_future(self._part())
        found = await asyncio.shield(self._ahead)
        self._ahead = None
        if not found:
            raise await self._missing()
        for item in found:
            if item.subject != self.subject or item.sequence < self._sequence:
                raise RemoteProtocolError(f"Stream {self._stream} gave message {item.sequence} of {item.subject}.")
            self._sequence = item.sequence + 1
            self._taken += 1
            self._came += len(item.payload)
        self._pending = found[-1].pending
        if self._taken > self.info.chunks or self._came > self.size:
            raise self._foreign()
        if self._taken < self.info.chunks:
            self._ahead = asyncio.ensure_future(self._part())
        bodies = [item.payload for item in found]
        await self._hashed()
        if self._expected is not None:
            self._hashing = asyncio.get_running_loop().run_in_executor(None, self._hash, bodies)
        self._ready.extend(body for body in bodies if body)

    def _hash(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self._digest.update(body)

    async def _hashed(self) -> None:
        hashing, self._hashing = self._hashing, None
        if hashing is not None:
            await hashing

    async def _part(self) -> list[Found]:
        """Ask for the next chunks; none if the leader says that there is none."""
        most = min(_MOST, self.info.chunks - self._taken)
        body = question(self._sequence, subject=self.subject, batch=most, max_bytes=AHEAD)

        async def get() -> list[Found]:
            try:
                return [read_found(*item) for item in await direct_get(self._nc, self._stream, body)]
            except NoRespondersError:  # the bucket allows no direct get, or there is none
                return await self._from_leader()

        return await patiently(get, 2 * self._nc.options.request_timeout, self._nc)

    async def _from_leader(self) -> list[Found]:
        body = leader_question(question(self._sequence, subject=self.subject, batch=1))
        try:
            return [read_message(await api_request(self._nc, names.message_get(self._stream), body))]
        except NotFoundError as error:
            if error.err_code != names.NO_MESSAGE:
                raise
            return []

    async def _check_end(self) -> None:
        """See to it that what came is the object, and that nothing else stands behind it."""
        if self._ended:
            return
        await self._hashed()
        if self.size:
            pending = self._pending if self._pending is not None else len(await self._from_leader())
            if pending:
                raise self._foreign()
        if self._came != self.size:
            why = f"has {self._came:,} bytes in its chunks, and its description says {self.size:,}"
            raise self._broken(Reason.INCONSISTENT, why)
        if self._expected is not None and self._digest.digest() != self._expected:
            raise self._broken(Reason.DIGEST, "has another digest than its description says")
        self._ended = True

    def _foreign(self) -> AssemblyError:
        why = f"has more in its chunks than the {self.size:,} bytes in {self.info.chunks:,} that its description says"
        return self._broken(Reason.CONFLICT, why)

    async def _missing(self) -> AssemblyError:
        """Say why chunks are gone."""
        now = await self._look()
        if now is None or now.nuid != self.info.nuid:
            return self._broken(Reason.MISSING, "was replaced or deleted while it was read")
        why = f"has {self._taken:,} of its {self.info.chunks:,} chunks in the bucket"
        return self._broken(Reason.MISSING, f"{why}: a limit, a purge or a delete took the others")

    def _broken(self, reason: Reason, what: str) -> AssemblyError:
        return AssemblyError(
            f"Object {self.info.name!r} of bucket {self.info.bucket} {what}.",
            remedy="Throw away what was read of it, and read it again; if that is no better, put it again.",
            subject=self.subject,
            message_id=self.info.nuid,
            reason=reason,
            received=self.position,
            total=self.size,
        )

    async def close(self) -> None:
        """End what was asked for ahead."""
        self._ready.clear()
        if self._ahead is not None:
            await end([self._ahead])
            self._ahead = None
        await self._hashed()
