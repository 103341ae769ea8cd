"""Stores the chunks of one message in a stream, beside whoever else may do so, and ends it once everything is there.

A break of the connection is waited out: chunks are acknowledged one by one, a window of them under way, and one that is
sent again is stored once. Two of them carry a condition on the last message of the subject: the first that is stored,
so that everything before it was looked at, and the last, which is stored when all others are found in the stream. So
one id gets one end, of one payload, and what was removed meanwhile is noticed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from bisect import bisect_right
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from penstock.chunks.archive import Archive
from penstock.chunks.source import Digest
from penstock.chunks.stored import Findings, StoredChunk, write_name
from penstock.chunks.wire import Chunk, Refusal, decode, encode, read_headers
from penstock.connection import Connection, api_request
from penstock.connection.asking import insist, patiently
from penstock.connection.tasks import end
from penstock.errors import ConflictError, InputError, JetStreamError, NotFoundError
from penstock.info import StreamInfo
from penstock.model import PubAck
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.direct import question, read_message

__all__ = ["STORE_WINDOW", "ChunkStorer"]

STORE_WINDOW = 8 * 1024 * 1024
"""Bytes that may wait for their acknowledgement."""
_AGAIN = 5.0  # seconds after which a chunk is sent again; a slow way to the server must not carry everything twice
_SETTLE = 1.0  # seconds that chunks which are under way have, to be known as stored, when the source fails
_PAUSE = 0.05  # seconds before a condition that did not hold is looked at again
_WRONG_LAST = (10071, 10164)  # the last message of the subject is another one, or is just being stored


class ChunkStorer:
    """Stores the chunks of a message on `target`, a window of them at a time; those that are there are compared.

    `before` is what was found there, None for an id that was just made up: nobody else can have stored anything of it.
    `proved` says that a message was found under its subject before: the server may store it under another one.
    """

    def __init__(
        self,
        nc: Connection,
        archive: Archive,
        target: str,
        before: Findings | None,
        *,
        hashing: Digest | None,
        proved: bool,
        most: int,
        timeout: float,
    ) -> None:
        self._nc, self._archive, self._target, self._hashing = nc, archive, target, hashing
        self._message_id = target.rpartition(".")[2]
        self._proved, self._most, self._timeout = proved, most, timeout
        self._upload = secrets.token_hex(8)
        self._new = before is None
        self._look(before or Findings([], 0))
        self._since = self._found.last  # what is stored later than this, others have stored meanwhile, or we
        # The chunks that make up the message: those we stored, and those that were there.
        self._offsets, self._sequences = array("Q"), array("Q")
        self._tasks: dict[asyncio.Task[None], int] = {}  # and the offset of each one's chunk
        self._gone: int | None = None
        self._chunks = 0  # of the message, so far
        self.remedy = f"Publish it again with message_id={self._message_id!r} to go on where it stopped."
        self.started = False
        """Whether anything was sent."""
        self.sent = 0
        """Bytes that were sent, or are in the stream already."""
        self.duplicate = False
        """Whether somebody else ended the message meanwhile, with the same payload."""

    def _look(self, found: Findings) -> None:
        """Note what the subject holds."""
        self._found = found
        self._there: dict[int, list[StoredChunk]] = {}
        for item in found.chunks:
            self._there.setdefault(item.chunk.offset, []).append(item)
        self._starts = sorted(self._there)

    async def send(self, chunk: Chunk, body: memoryview) -> None:
        """Begin to store a chunk, and wait until there is room for the next; raise what an earlier one died of."""
        so_far = self._hashing.so_far() if self._hashing is not None else None
        # The body waits for its acknowledgement longer than a buffer of the caller's may last.
        kept = body if isinstance(body.obj, bytes) else bytes(body)
        self._refuse_other_cut(chunk, len(body))
        if copies := self._there.get(chunk.offset):
            self._begin(self._compare(copies, chunk, kept, so_far), chunk)
        else:
            self._check_room()
        self.sent = chunk.offset + len(body)
        self._chunks += 1
        if chunk.last or not (copies or self._new or self.started):
            await self._shrink(0)  # what was there is compared, and what was sent is stored
            self._begin((self._conclude if chunk.last else self._first)(chunk, kept, so_far), chunk)
            await self._shrink(0)
        else:
            if not copies:
                self.started = True
                self._begin(self._store(chunk, kept, so_far), chunk)
            await self._shrink(self._most)

    def _begin(self, work: Coroutine[Any, Any, None], chunk: Chunk) -> None:
        self._tasks[asyncio.ensure_future(work)] = chunk.offset

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

    # -- what was there -----------------------------------------------------------------------------------------------

    def _refuse_other_cut(self, chunk: Chunk, size: int) -> None:
        """Refuse a message that was begun with chunks of another size, or that has another end."""
        copies, place = self._there.get(chunk.offset, []), bisect_right(self._starts, chunk.offset)
        following = self._starts[place] if place < len(self._starts) else None
        other = next((item.size for item in copies if item.size != size), None)
        if following is not None and following < chunk.offset + size:
            other = following - chunk.offset
        if other is not None:
            raise InputError(
                f"Message {self._message_id} was begun with a chunk of {other} bytes at {chunk.offset}, and now there "
                f"would be one of {size}.",
                remedy="Continue it with the same chunk_size and the same payload, or use a new id, or delete it.",
            )
        if any(item.chunk.last != chunk.last for item in copies) or (chunk.last and following is not None):
            raise self._conflict(f"only one of them ends at {chunk.offset + size}")

    async def _compare(
        self, copies: list[StoredChunk], chunk: Chunk, body: bytes | memoryview, so_far: Future[str] | None
    ) -> None:
        """See to it that what is stored of a chunk is what would be stored now."""
        mine = "" if so_far is None else write_name(chunk, self._upload, await asyncio.wrap_future(so_far))
        for item in copies:
            if item.so_far and mine:
                same = mine.endswith(item.so_far)
            else:
                try:
                    same = body == (await self._archive.get(item.sequence, patience=self._timeout))[1]
                except NotFoundError:
                    raise self._removed(chunk.offset) from None
            if not same:
                raise self._conflict(f"its chunk at {chunk.offset} has other bytes")
        self._note(chunk.offset, copies[0].sequence)

    def _note(self, offset: int, sequence: int) -> None:
        self._offsets.append(offset)
        self._sequences.append(sequence)

    def _conflict(self, why: str) -> ConflictError:
        return ConflictError(
            f"Message {self._message_id} in stream {self._archive.stream} is another payload: {why}.",
            remedy="Publish this one under an id of its own, or delete the other one first (Archive.delete).",
            subject=self._target.rpartition(".")[0],
            message_id=self._message_id,
        )

    def _removed(self, offset: int) -> NotFoundError:
        self._gone = offset if self._gone is None else min(self._gone, offset)
        return NotFoundError(
            f"The stream {self._archive.stream} does not hold the chunk at {offset} any more, not on {self._target}: "
            "a limit, a purge or a delete removed it while the message was stored, or the stream was replaced, or the "
            "server stores it under another subject.",
            remedy="Check the limits of the stream, and the mappings of the account.",
            code=404,
        )

    # -- storing ------------------------------------------------------------------------------------------------------

    def _check_room(self) -> None:
        most = self._archive.known_config.get("max_msgs_per_subject", -1)
        if 0 < most <= self._chunks:
            raise InputError(
                f"The stream {self._archive.stream} keeps {most} messages of a subject, and this one has more chunks.",
                remedy="Raise max_msgs_per_subject, or use larger chunks.",
            )

    async def _store(
        self, chunk: Chunk, body: bytes | memoryview, so_far: Future[str] | None, expected: int | None = None
    ) -> None:
        """Store a chunk; if `expected` is given, on the condition that it is the last sequence of the subject."""
        headers = encode(chunk)
        headers[names.EXPECTED_STREAM] = self._archive.stream
        digest = "" if so_far is None else await asyncio.wrap_future(so_far)
        headers[names.MSG_ID] = write_name(chunk, self._upload, digest)
        if expected is not None:
            headers[names.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(expected)

        async def store() -> PubAck:
            reply = await insist(self._nc, self._target, body, self._timeout, headers, again=_AGAIN)
            return confirm(reply.data, reply.status, self._archive.stream, self._archive.domain)

        # What was under way when the connection broke may be lost; storing it again does no harm. An ack that says
        # "duplicate" is about a chunk that this upload sent twice: nobody else makes up this id.
        ack = await patiently(store, self._timeout, self._nc, nobody=True)
        self._note(chunk.offset, ack.sequence)

    async def _first(self, chunk: Chunk, body: bytes | memoryview, so_far: Future[str] | None) -> None:
        """Store the first chunk of ours if nothing came since we looked; what came is compared first."""
        until = time.monotonic() + self._timeout
        while True:
            before = self._found.last
            try:
                await self._store(chunk, body, so_far, before)
                self.started = True
                return
            except JetStreamError as error:
                if error.err_code not in _WRONG_LAST or time.monotonic() >= until:
                    raise
            found = await self._scan()
            if mine := next((item for item in found.chunks if item.upload == self._upload), None):
                self._note(chunk.offset, mine.sequence)  # the ack was lost, and the window of duplicates was short
                self.started = True
                return
            await self._check_there(found)
            if await self._look_again(found, chunk, body, so_far):
                return
            if found.last == before:
                await asyncio.sleep(_PAUSE)  # a server that is a little behind was asked

    async def _look_again(
        self, found: Findings, chunk: Chunk, body: bytes | memoryview, so_far: Future[str] | None
    ) -> bool:
        """Compare what came since we looked, while nothing of ours is there; tell whether this chunk came."""
        before = self._found.last
        if any(item.sequence > before and item.chunk.offset < chunk.offset for item in found.chunks):
            raise self._conflict("another publisher stores it at the same time")
        self._look(found)
        self._refuse_other_cut(chunk, len(body))
        copies = self._there.get(chunk.offset, [])
        if copies:
            await self._compare(copies, chunk, body, so_far)
        return bool(copies)

    async def _conclude(self, chunk: Chunk, body: bytes | memoryview, so_far: Future[str] | None) -> None:
        """Store the last chunk, once everything before it is in the stream and nobody else has ended the message."""
        until, alone = time.monotonic() + self._timeout, not self.started
        looked = alone  # while nothing of ours is there, what we found at first was compared, and counts
        while True:
            if self._new and not self._offsets:
                expected = None  # the only chunk, of an id that nobody knows
            elif self._new and await self._count() == len(self._sequences):
                expected = max(self._sequences)
            else:
                found = self._found if looked else await self._scan()
                if any(item.upload == self._upload and item.chunk.last for item in found.chunks):
                    return  # the ack was lost, and the window of duplicates was short
                if self._is_ended(found, chunk):
                    self.duplicate = True
                    return
                if not looked:
                    await self._check_there(found)
                    if alone:
                        await self._look_again(found, chunk, body, so_far)
                expected = found.last
            self.started = True
            try:
                await self._store(chunk, body, so_far, expected)
                await self._check_kept()
                return
            except JetStreamError as error:
                if error.err_code not in _WRONG_LAST or time.monotonic() >= until:
                    raise
            looked, self.started = False, not alone
            await asyncio.sleep(_PAUSE)

    async def _check_kept(self) -> None:
        """See to it that the end of the message has not pushed out its beginning, and that all is where it belongs."""
        config = self._archive.known_config
        limited = any(config.get(name, -1) > 0 for name in ("max_msgs", "max_bytes", "max_msgs_per_subject"))
        limited = limited and config.get("discard") != "new"
        if self._proved and not limited:
            return
        count = await self._count()
        if not count or (limited and not (self._new and count == len(self._sequences))):
            await self._check_there(await self._scan())

    async def _scan(self) -> Findings:
        look = self._archive.chunks_on
        return await patiently(lambda: look(self._target, self._message_id), self._timeout, self._nc, nobody=True)

    async def _count(self) -> int:
        """Ask the leader how many messages the subject has."""
        body = {"subjects_filter": self._target}
        info = await api_request(self._nc, names.stream_info(self._archive.stream), body, patience=self._timeout)
        return StreamInfo.from_json(info).held.get(self._target, 0)

    async def _check_there(self, found: Findings) -> None:
        """See to it that every chunk of the message is in the stream."""
        there = {item.sequence: item.chunk.offset for item in found.chunks}
        for offset, sequence in zip(self._offsets, self._sequences, strict=True):
            # A server that is a little behind may have been looked at; the leader knows.
            if there.get(sequence) != offset and not await self._holds(sequence, offset):
                raise self._removed(offset)

    async def _holds(self, sequence: int, offset: int) -> bool:
        ask = names.message_get(self._archive.stream)
        try:
            found = read_message(await api_request(self._nc, ask, question(sequence), patience=self._timeout))
            chunk = decode(read_headers(found.header), len(found.payload))
        except (NotFoundError, Refusal):
            return False
        return (found.subject, chunk.message_id, chunk.offset) == (self._target, self._message_id, offset)

    def _is_ended(self, found: Findings, chunk: Chunk) -> bool:
        """Tell whether another publisher has ended the message meanwhile; ConflictError if with another payload."""
        ended = False
        for item in found.chunks:
            if not item.chunk.last:
                continue
            if item.chunk.total != chunk.total:
                raise self._conflict(f"it has {item.chunk.total} bytes, and this one {chunk.total}")
            known = item.chunk.digest is not None and chunk.digest is not None
            if known and item.chunk.digest != chunk.digest:
                raise self._conflict("its digest is another one")
            if item.sequence > self._since:
                if not known and item not in self._found.chunks:  # what was found was compared
                    raise ConflictError(
                        f"Somebody else ended message {self._message_id} in stream {self._archive.stream} meanwhile, "
                        "and without a digest nobody can tell whether its payload is the same.",
                        remedy="Publish it once more: then it is compared byte by byte.",
                        subject=self._target.rpartition(".")[0],
                        message_id=self._message_id,
                    )
                ended = True
        return ended

    async def confirmed(self) -> int:
        """Give the bytes from the start that are surely stored; if the source failed, what is under way arrives."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_SETTLE, return_when=asyncio.FIRST_EXCEPTION)
        lost = [offset for task, offset in self._tasks.items() if not task.done() or task.exception() is not None]
        lost += [] if self._gone is None else [self._gone]
        return min(lost, default=self.sent)

    async def close(self) -> None:
        await end(self._tasks)
