"""Stores payloads in a JetStream stream, chunk by chunk, and goes on where an earlier attempt stopped.

Every message has a subject of its own, `<subject>.<message id>`, so that its chunks are found without a search. Each
chunk is acknowledged. Each carries a `Nats-Msg-Id` of message and offset, so that a chunk sent again is stored once.
The last chunk is sent when all others are acknowledged: a message whose last chunk is there, is there.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from penstock.chunks.allocator import FOR_PUBLISHERS, keep_freed_memory
from penstock.chunks.archive import Archive
from penstock.chunks.digest import Digest
from penstock.chunks.limits import check_seconds
from penstock.chunks.publisher import CHUNK_SIZE, check_chunk_size, check_subject, unfinished
from penstock.chunks.source import Buffer, Source, check_source, read_source
from penstock.chunks.wire import MAX_ID, Chunk, Splitter, encode
from penstock.connection.asking import insist, patiently
from penstock.connection.connecting import check_connection
from penstock.connection.tasks import end
from penstock.errors import DeniedError, InputError
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.names import EXPECTED_STREAM, MSG_ID, check_name
from penstock.wire.subjects import covers

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.model import PubAck

__all__ = ["PersistentPublisher", "check_token"]

WINDOW = 8 * 1024 * 1024
"""Bytes that may wait for their acknowledgement."""
_AGAIN = 5.0  # seconds after which a chunk is sent again; a slow way to the server must not carry everything twice
_SETTLE = 1.0  # seconds that chunks which are under way have, to be known as stored, when the source fails
_TOKEN = re.compile(rf"[^\s.*>\x00-\x20\x7f-\U0010ffff]{{1,{MAX_ID}}}")


class PersistentPublisher:
    """Publishes payloads in chunks into `stream`: `Publisher.persistent` makes one.

    The stream must hold `<subject>.*`; `Archive.create` declares such a stream. `timeout` is how many seconds a chunk
    is tried before the publish gives up; while the connection is away it waits and goes on.
    """

    def __init__(
        self,
        nc: Connection,
        stream: str,
        chunk_size: int = CHUNK_SIZE,
        *,
        digest: bool = True,
        timeout: float = 30.0,
    ) -> None:
        keep_freed_memory(FOR_PUBLISHERS)
        check_name(stream)
        self._nc = check_connection(nc)
        self.stream = stream
        self.chunk_size = check_chunk_size(nc, chunk_size, extra=self._extra("x" * 36))
        self.digest = digest
        self.timeout = check_seconds("timeout", timeout)

    def _extra(self, message_id: str) -> int:
        """Room for the headers that JetStream reads."""
        return len(f"{MSG_ID}: {message_id}:{2**64}:{_mark()}\r\n{EXPECTED_STREAM}: {self.stream}\r\n")

    async def publish(
        self,
        subject: str,
        source: Source,
        *,
        message_id: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> str:
        """Store a payload under `<subject>.<message id>` and give the id, once every chunk is acknowledged.

        With the `message_id` of an attempt that stopped half way and the same source, only the chunks that are
        missing are sent. Where the message is stored whole already, nothing is sent.
        """
        check_subject(subject)
        check_source(source)
        archive = Archive(self._nc, self.stream, subject)
        fresh = message_id is None  # then nobody else has stored anything under it
        message_id = str(uuid.uuid4()) if message_id is None else check_token(message_id)
        check_chunk_size(self._nc, self.chunk_size, message_id, self._extra(message_id))
        target = f"{subject}.{message_id}"
        await self._check_stream(archive, target)
        stored = {} if fresh else await archive.stored(message_id)
        known = None if fresh else archive
        if any(item.chunk.last for item in stored.values()):
            return message_id
        digest = Digest() if self.digest else None
        splitter = Splitter(message_id, self.chunk_size, digest)
        storing = _Storing(max(2, WINDOW // self.chunk_size))
        reading = cast("AsyncGenerator[Buffer, None]", read_source(source, self.chunk_size))
        try:
            async with aclosing(reading):
                async for piece in reading:
                    for chunk, body in splitter.feed(piece):
                        if chunk.offset not in stored:
                            # The body waits for its acknowledgement longer than a buffer of the caller's may last.
                            kept = body if isinstance(body.obj, bytes) else bytes(body)
                            await storing.start(chunk.offset, self._store(target, chunk, kept, known))
                        elif stored[chunk.offset].size != len(body):
                            raise _other_size(message_id, stored[chunk.offset].size, len(body))
                        if digest is not None:
                            await digest.keep_up()
                        if progress is not None:
                            progress(splitter.offset)
                    if digest is not None and not isinstance(piece, bytes):
                        await digest.settle()
            await storing.finish()
            if digest is not None:
                await digest.settle()
            chunk, body = splitter.finish()
            if wrong := [offset for offset in stored if offset >= splitter.offset and splitter.offset]:
                raise _other_size(message_id, stored[wrong[0]].size, len(body))
            await storing.start(chunk.offset, self._store(target, chunk, body, known))
            await storing.finish()
        except Exception as error:
            confirmed = await storing.confirmed(splitter.offset)
            if (isinstance(error, InputError) and not storing.started) or (
                isinstance(error, DeniedError) and not confirmed
            ):
                raise  # nothing of it is there
            failed = unfinished(error, subject, message_id, splitter.offset, confirmed)
            failed.remedy = f"Publish it again with message_id={message_id!r} to go on where it stopped."
            raise failed from error
        finally:
            await storing.cancel()
            if digest is not None:
                digest.close()
        if progress is not None:
            progress(splitter.offset)
        return message_id

    async def _check_stream(self, archive: Archive, target: str) -> None:
        config = await archive.config()
        if not any(covers(pattern, target) for pattern in config.get("subjects") or []):
            raise InputError(
                f"The stream {self.stream} does not hold {target}: it holds {', '.join(config.get('subjects') or [])}.",
                remedy=f"Let it hold {target.rpartition('.')[0]}.*.",
            )
        largest = config.get("max_msg_size") or -1
        if 0 <= largest < self.chunk_size + 512:
            raise InputError(
                f"The stream {self.stream} takes messages of {largest} bytes with their headers, less than a chunk.",
                remedy=f"Use chunk_size={largest - 512} or raise max_msg_size.",
            )

    async def _store(self, target: str, chunk: Chunk, body: bytes | memoryview, known: Archive | None) -> None:
        headers = encode(chunk)
        headers[EXPECTED_STREAM] = self.stream
        headers[MSG_ID] = f"{chunk.message_id}:{chunk.offset}"
        ack = await self._acked(target, body, headers)
        if ack.duplicate and known is not None and not await known.holds(chunk, ack.sequence, self.timeout):
            # The stream remembers a chunk of that name, and does not hold it: the message was deleted a moment ago.
            headers[MSG_ID] += f":{_mark()}"
            await self._acked(target, body, headers)

    async def _acked(self, target: str, body: bytes | memoryview, headers: dict[str, str]) -> PubAck:
        async def store() -> PubAck:
            reply = await insist(self._nc, target, body, self.timeout, headers, again=_AGAIN)
            return confirm(reply.data, reply.status, self.stream)

        # What was under way when the connection broke may be lost; storing it again does no harm.
        return await patiently(store, self.timeout, self._nc, nobody=True)


def _mark() -> str:
    """Make up a word that tells a chunk from one of the same name that is gone."""
    return secrets.token_hex(8)


class _Storing:
    """Chunks that wait for their acknowledgement, a bounded number of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._failed: int | None = None
        self.started = False

    async def start(self, offset: int, store: Coroutine[Any, Any, None]) -> None:
        """Begin to store a chunk, and wait until there is room for the next; raise what an earlier one died of."""
        self.started = True
        self._tasks[asyncio.ensure_future(store)] = offset
        await self._shrink(self._most)

    async def finish(self) -> None:
        """Wait for all of them."""
        await self._shrink(0)

    async def _shrink(self, most: int) -> None:
        await asyncio.sleep(0)
        while self._tasks:
            done = [task for task in self._tasks if task.done()]
            for task in done:
                offset = self._tasks.pop(task)
                if task.exception() is not None:
                    self._failed = offset if self._failed is None else min(offset, self._failed)
                task.result()
            if len(self._tasks) <= most:
                return
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def confirmed(self, sent: int) -> int:
        """Give the bytes from the start that are surely stored; if the source failed, what is under way arrives."""
        if self._tasks and self._failed is None:
            await asyncio.wait(self._tasks, timeout=_SETTLE)
        lost = [offset for task, offset in self._tasks.items() if not task.done() or task.exception() is not None]
        return min([*lost, *([] if self._failed is None else [self._failed])], default=sent)

    async def cancel(self) -> None:
        """End what is still under way."""
        await end(self._tasks)


def _other_size(message_id: str, before: int, now: int) -> InputError:
    return InputError(
        f"Message {message_id} was begun with a chunk of {before} bytes where there would now be one of {now}.",
        remedy="Continue it with the same chunk_size and the same payload, or send it under a new id.",
    )


def check_token(message_id: str) -> str:
    """Refuse an id that cannot be the last word of a subject."""
    if not isinstance(message_id, str) or not _TOKEN.fullmatch(message_id):
        raise InputError(
            f"{message_id!r} cannot be the id of a stored message.",
            remedy=f"Use 1 to {MAX_ID} ASCII characters without blanks, dots, * and >.",
        )
    return message_id
