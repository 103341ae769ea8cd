"""Payloads that are stored in a JetStream stream: found by id, read with backpressure, put together once and for all.

What is stored of a message is learned from the headers of its chunks alone. Only a message that tiles exactly is
read, chunk by chunk in order, a few chunks ahead of whoever reads it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from penstock.chunks.consumer import StoredConsumer
from penstock.chunks.handler import HandlerFunction
from penstock.chunks.incoming import PayloadReader
from penstock.chunks.limits import check_subject
from penstock.chunks.stored import Findings, StoredChunk, StoredChunks, StoredInfo, by_offset, read_name
from penstock.chunks.wire import Headers, Reason, Refusal, Tiling, decode, message_id_of, read_headers, size_of
from penstock.connection import Connection, api_request
from penstock.connection.asking import direct_get, patiently
from penstock.connection.connecting import check_connection
from penstock.connection.tasks import end
from penstock.errors import AssemblyError, InputError, NoRespondersError, NotFoundError
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.jetstream.scan import scan_headers
from penstock.model import Stream
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import text
from penstock.wire.jetstream.direct import question, read_message
from penstock.wire.subjects import covers

__all__ = ["Archive", "StoredChunks", "StoredMessage"]

_AHEAD = 8 * 1024 * 1024  # bytes that are asked for before the reader wants them


class Archive:
    """The payloads that `Publisher.persistent` stored in `stream` under `subject`.

    `subject` may be left out if the stream holds one subject, such as `events.large.*`. Messages that a plain
    `Publisher` sent on a subject that the stream holds are found as well, by looking through the headers of all that
    is stored on it.
    """

    def __init__(self, nc: Connection, stream: str, subject: str | None = None) -> None:
        names.check_name(stream)
        self._nc = check_connection(nc)
        self.stream = stream
        self._subject = subject
        self._config: dict[str, Any] | None = None
        self.domain: str | None = None
        """The JetStream domain that the stream is in, empty if it is in none; None before the stream was asked for."""

    @classmethod
    async def create(cls, nc: Connection, stream: str, subject: str, **options: Any) -> Archive:
        """Declare a stream for payloads under `subject`; `options` are fields of `penstock.Stream`, such as max_age."""
        check_subject(subject)
        archive = cls(nc, stream, subject)
        config = Stream(name=stream, subjects=[f"{subject}.*"], allow_direct=True, **options)
        await nc.jetstream().add_stream(config)
        return archive

    async def config(self) -> dict[str, Any]:
        """Give the configuration of the stream; NotFoundError if there is none."""
        if self._config is None:
            try:
                answer = await api_request(self._nc, names.stream_info(self.stream), patience=self._patience)
            except NotFoundError as error:
                remedy = "Archive.create declares a stream for payloads; so does `penstock chunks send --persistent`."
                raise NotFoundError(f"There is no stream {self.stream}.", remedy=remedy, **error.facts) from None
            info = StreamInfo.from_json(answer)
            Stream.from_json(info.raw["config"])  # whoever looks at a field of it finds what belongs there
            self._config, self.domain = dict(info.raw["config"]), text(answer, "domain", "")
        return self._config

    @property
    def _patience(self) -> float:
        """For how many seconds a failure that passes is waited out if nobody says so."""
        return 2 * self._nc.options.request_timeout

    @property
    def known_config(self) -> dict[str, Any]:
        """The configuration of the stream as it was last asked for; empty before that."""
        return self._config or {}

    async def subject(self) -> str:
        """Give the subject that the messages are stored under."""
        if self._subject is None:
            subjects = (await self.config()).get("subjects") or []
            stem = subjects[0].removesuffix(".*").removesuffix(".>") if len(subjects) == 1 else ""
            if not stem or "*" in stem or ">" in stem:
                raise InputError(
                    f"The stream {self.stream} holds {', '.join(subjects) or 'no subject of its own'}.",
                    remedy="Say under which subject the messages were published.",
                )
            self._subject = stem
        return self._subject

    async def stored(self, message_id: str) -> StoredChunks:
        """Give the chunks of a message that are in the stream, by offset; none if there is no such message."""
        subject = await self.subject()
        own = await self.stored_on(f"{subject}.{message_id}", message_id)
        return own or await self.stored_on(subject, message_id)

    async def stored_on(self, subject: str, message_id: str) -> StoredChunks:
        """Give the chunks of a message that are stored on exactly this subject and count, by offset."""
        return by_offset((await self.chunks_on(subject, message_id)).chunks)

    async def chunks_on(self, subject: str, message_id: str) -> Findings:
        """Give all chunks of a message that are stored on exactly this subject, whoever stored them."""
        found: list[StoredChunk] = []
        last, time = 0, None
        if await self.may_hold(subject):
            async for message in scan_headers(self._nc, self.stream, subject=subject):
                last = message.sequence
                if message_id_of(message.headers) != message_id:
                    continue
                time = message.place.time
                size = size_of(message.headers)
                try:
                    chunk = decode(message.headers, size)
                except Refusal as refusal:
                    raise self._error(message_id, subject, Tiling(), refusal.reason, str(refusal)) from None
                found.append(StoredChunk(last, chunk, size, *read_name(message.headers, message_id)))
        return Findings(found, last, time)

    async def captures(self, subject: str) -> bool:
        """Tell whether the stream takes what is published on a subject."""
        return any(covers(pattern, subject) for pattern in (await self.config()).get("subjects") or [])

    async def may_hold(self, subject: str) -> bool:
        """Tell whether messages of a subject can be in the stream: it may also have them from other streams."""
        config = await self.config()
        return bool(config.get("mirror") or config.get("sources")) or await self.captures(subject)

    @asynccontextmanager
    async def open(self, message_id: str) -> AsyncIterator[StoredMessage]:
        """Read a message: iterate over what this gives, or `read` from it; memory stays small whatever the size."""
        async with self.reading(message_id, await self.subject(), await self.stored(message_id)) as message:
            yield message

    async def info(self, message_id: str) -> StoredInfo:
        """Say what is stored of a message, also of one that is not whole; NotFoundError if nothing is."""
        subject = await self.subject()
        for where in (f"{subject}.{message_id}", subject):
            try:
                found = await self.chunks_on(where, message_id)
            except AssemblyError as error:
                return StoredInfo(message_id, where, 0, None, 0, None, None, str(error.what))
            if found.chunks:
                return self._info(message_id, where, found)
        raise self._not_found(message_id)

    def _info(self, message_id: str, subject: str, found: Findings) -> StoredInfo:
        stored, problem = by_offset(found.chunks), ""
        tiling = Tiling()
        try:
            tiling = self.tile(message_id, subject, stored)
            if not tiling.complete:
                problem = f"the stream does not hold {tiling.gaps()}"
        except AssemblyError as error:
            problem = error.what
        return StoredInfo(
            message_id, subject, tiling.received, tiling.total, len(stored), tiling.digest, found.time, problem
        )

    async def list(self) -> AsyncIterator[StoredInfo]:
        """Give every message of which something is stored: those with a subject of their own by id, then the others.

        Each is looked at when its turn comes, so memory stays small; one that is removed meanwhile is left out.
        """
        subject = await self.subject()
        for where in await assets.stream_subjects_held(self._nc, self.stream, f"{subject}.*"):
            with suppress(NotFoundError):
                yield await self.info(where.rpartition(".")[2])
        if not await self.may_hold(subject):
            return
        ids: dict[str, None] = {}
        async for message in scan_headers(self._nc, self.stream, subject=subject):
            if (message_id := message_id_of(message.headers)) is not None:
                ids[message_id] = None
        for message_id in ids:
            with suppress(NotFoundError):
                yield await self.info(message_id)

    async def fetch(self, message_id: str) -> bytes:
        """Give the payload of a message, whole."""
        async with self.open(message_id) as message:
            return await message.read()

    async def delete(self, message_id: str) -> None:
        """Remove the chunks of a message from the stream, also of one that was never finished."""
        subject = f"{await self.subject()}.{message_id}"
        if not await self.stored_on(subject, message_id):
            raise self._not_found(message_id)
        await self._nc.jetstream().purge_stream(self.stream, subject=subject)

    def consume(self, handler: HandlerFunction, durable: str | None = None, **options: Any) -> StoredConsumer:
        """Give a consumer that hands every stored message to `handler` once: `async with archive.consume(...)`.

        With a `durable` name the stream remembers what was handled, over crashes and among several processes.
        """
        return StoredConsumer(self._nc, self, handler, durable, **options)

    @asynccontextmanager
    async def reading(self, message_id: str, subject: str, stored: StoredChunks) -> AsyncIterator[StoredMessage]:
        """Read a message of these chunks."""
        if not stored:
            raise self._not_found(message_id)
        tiling = self.tile(message_id, subject, stored)
        if not tiling.complete:
            why = f"the stream does not hold {tiling.gaps()}"
            raise self._error(message_id, subject, tiling, Reason.MISSING, why)
        order = [stored[offset] for offset in sorted(stored) if stored[offset].size]
        direct = bool((await self.config()).get("allow_direct"))
        message = StoredMessage(self, message_id, subject, tiling, order, direct)
        try:
            yield message
        finally:
            await message.close()

    def tile(self, message_id: str, subject: str, stored: StoredChunks) -> Tiling:
        """Put the chunks of a message in their places; AssemblyError if they contradict each other."""
        tiling = Tiling()
        try:
            for item in stored.values():
                tiling.add(item.chunk, item.size)
        except Refusal as refusal:
            raise self._error(message_id, subject, tiling, refusal.reason, str(refusal)) from None
        return tiling

    def _not_found(self, message_id: str) -> NotFoundError:
        return NotFoundError(
            f"The stream {self.stream} holds no message {message_id}.",
            remedy="Check the id and the subject; the limits of the stream may have removed it.",
            code=404,
        )

    def _error(self, message_id: str, subject: str, tiling: Tiling, reason: Reason, why: str) -> AssemblyError:
        remedy = "Is its publisher still at work? Publishing it again under its id adds what is missing."
        return AssemblyError(
            f"Message {message_id} in stream {self.stream} cannot be put together ({reason}): {why}.",
            remedy=remedy if reason is Reason.MISSING else "Delete it (Archive.delete), and publish it again.",
            subject=subject,
            message_id=message_id,
            reason=reason,
            received=tiling.received,
            total=tiling.total,
        )

    async def get(self, sequence: int, *, direct: bool = False, patience: float | None = None) -> tuple[Headers, bytes]:
        """Fetch one message of the stream; a leader that is being chosen is waited for, for `patience` seconds."""

        async def get() -> tuple[Headers, bytes]:
            if not direct:
                found = read_message(await api_request(self._nc, names.message_get(self.stream), question(sequence)))
                return read_headers(found.header), found.payload
            for body, block in await direct_get(self._nc, self.stream, question(sequence)):
                return read_headers(block), body
            raise NotFoundError(f"The stream {self.stream} holds no message {sequence}.", code=404)

        seconds = self._patience if patience is None else patience
        return await patiently(get, seconds, self._nc, nobody=True)

    async def body(self, item: StoredChunk, *, direct: bool) -> bytes | None:
        """Fetch the bytes of a chunk; None if the stream does not hold it any more, or something else in its place.

        Mirrors answer a direct get as well, and may hold less, or what another stream of this name once held. So only
        the leader is believed that a chunk is not there.
        """
        for whom in (True, False) if direct else (False,):
            try:
                headers, body = await self.get(item.sequence, direct=whom)
                same = (decode(headers, len(body)), len(body)) == (item.chunk, item.size)
                if same and read_name(headers, item.chunk.message_id) == (item.upload, item.so_far):
                    return body
            except (NotFoundError, Refusal):
                continue
            except NoRespondersError:
                if not whom:
                    raise
        return None


class StoredMessage(PayloadReader):
    """A stored message that is being read: iterate over it for its bytes in order, or `read` them.

    The end of the iteration says that the digest was right; AssemblyError is raised if it was not.
    """

    def __init__(
        self, archive: Archive, message_id: str, subject: str, tiling: Tiling, order: list[StoredChunk], direct: bool
    ) -> None:
        super().__init__(message_id, subject)
        self.size: int = tiling.received
        self._archive, self._direct, self._expected = archive, direct, tiling.digest
        self._order = deque(order)
        self._ahead: deque[tuple[StoredChunk, asyncio.Task[bytes | None]]] = deque()
        self._asked = 0
        self._digest = hashlib.sha256() if tiling.digest is not None else None

    async def _next(self) -> bytes:
        while self._order and (self._asked < _AHEAD or not self._ahead):
            item = self._order.popleft()
            self._asked += item.size
            getting = self._archive.body(item, direct=self._direct)
            self._ahead.append((item, asyncio.ensure_future(getting)))
        if not self._ahead:
            if self._digest is not None and self._digest.hexdigest() != self._expected:
                raise self._wrong(Reason.DIGEST, "its digest is not the one that its publisher sent")
            return b""
        item, task = self._ahead[0]
        body = await asyncio.shield(task)
        self._ahead.popleft()
        self._asked -= item.size
        if body is None:
            why = f"the chunk at {item.chunk.offset} was removed while it was read, or the stream was replaced"
            raise self._wrong(Reason.MISSING, why)
        for sequence in item.again:  # stored by programs that do not compare, which may have had another payload each
            if (await self._archive.get(sequence))[1] != body:
                raise self._wrong(Reason.CONFLICT, f"the chunk at {item.chunk.offset} is there with other bytes, too")
        if self._digest is not None:
            self._digest.update(body)
        return body

    def _wrong(self, reason: Reason, why: str) -> AssemblyError:
        return self._broken(reason, f"was given up ({reason}): {why}")

    async def close(self) -> None:
        """End what was asked for ahead."""
        await end([task for _, task in self._ahead])
        self._ahead.clear()
        self._order.clear()
