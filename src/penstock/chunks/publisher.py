"""Sends payloads of any size in chunks, in constant memory, and says how far it got when it could not finish.

In a JetStream stream every message has a subject of its own, `<subject>.<message id>`, so that its chunks are found
without a search, and an attempt goes on where an earlier one stopped. One id is one payload.
"""

from __future__ import annotations

import functools
import hashlib
import re
import uuid
from contextlib import aclosing
from typing import Literal, TypeAlias

from penstock.chunks.archive import Archive
from penstock.chunks.limits import Remembered, check_count, check_seconds, check_subject
from penstock.chunks.sender import ChunkSender
from penstock.chunks.source import Digest, Progress, Source, check_source, cut_source
from penstock.chunks.stored import SO_FAR, UPLOAD, Findings, by_offset
from penstock.chunks.storer import STORE_WINDOW, ChunkStorer
from penstock.chunks.wire import MAX_ID, header_room
from penstock.connection import Connection
from penstock.connection.connecting import check_connection
from penstock.errors import (
    ConflictError,
    DeniedError,
    DisconnectedError,
    InputError,
    OptionError,
    UnfinishedError,
)
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE, EXPECTED_STREAM, MSG_ID, check_name
from penstock.wire.subjects import covers

__all__ = ["MessageId", "PersistentPublisher", "Publisher"]

CHUNK_SIZE = 512 * 1024
Outcome: TypeAlias = Literal["stored", "continued", "found"]
_ID = re.compile(rf"[!-~]{{1,{MAX_ID}}}")


class MessageId(str):
    """The id of a stored message, and what its publish did: `outcome` says it.

    `stored`: all of it was sent now. `continued`: an earlier attempt had stored a part, and the rest was sent. `found`:
    its payload was in the stream already, and nothing was stored; `duplicate` is true then.
    """

    outcome: Outcome

    def __new__(cls, text: str, *, outcome: Outcome = "stored") -> MessageId:
        made = super().__new__(cls, text)
        made.outcome = outcome
        return made

    @property
    def duplicate(self) -> bool:
        """Whether the payload was in the stream already."""
        return self.outcome == "found"


class _Publishing:
    """What the publishers share: their options, and the way of a payload through a sender."""

    def __init__(self, nc: Connection, chunk_size: int, *, digest: bool, timeout: float, extra: int = 0) -> None:
        _keep_freed_memory()
        self._nc = check_connection(nc)
        self.chunk_size = _check_chunk_size(nc, chunk_size, extra=extra)
        self.digest = digest
        self.timeout = check_seconds("timeout", timeout)

    async def _transfer(
        self,
        sender: ChunkSender | ChunkStorer,
        subject: str,
        message_id: str,
        source: Source,
        progress: Progress,
        hashing: Digest | None,
    ) -> str:
        """Send a payload and give its id; UnfinishedError says how far it got if it stopped half way."""
        try:
            async with aclosing(cut_source(source, message_id, self.chunk_size, hashing)) as chunks:
                async for chunk, body in chunks:
                    await sender.send(chunk, body)
                    if progress is not None and not chunk.last:
                        progress(sender.sent)
            await sender.finish()
        except ConflictError:
            raise  # nothing of it counts, and going on would not help
        except Exception as error:
            confirmed = await sender.confirmed()
            unusable = isinstance(error, InputError) and not sender.started
            # The subject of a denial is another one if the server maps it: then others may have got their part.
            denied = isinstance(error, DeniedError) and error.subject in (subject, f"{subject}.{message_id}")
            if unusable or (denied and not confirmed):
                raise  # nobody has anything of it
            what = str(error) or type(error).__name__
            raise UnfinishedError(
                f"Message {message_id} on {subject} was sent in part, {sender.sent} bytes, of which the server "
                f"confirmed {confirmed}: {what.rstrip('.')}.",
                remedy=sender.remedy,
                subject=subject,
                message_id=message_id,
                sent=sender.sent,
                confirmed=confirmed,
            ) from error
        finally:
            await sender.close()
        if progress is not None:
            progress(sender.sent)
        return message_id


class Publisher(_Publishing):
    """Publishes payloads in chunks on core NATS: at most once, for whoever listens right now.

    `chunk_size` is the size of a chunk's body; with its headers it must fit into the server's max_payload. `digest`
    adds a SHA-256 of the payload, which receivers verify. `timeout` is how many seconds the server may leave us
    without a confirmation. With `flow` a large payload waits for receivers that are slower. One publisher may send
    several payloads at the same time.
    """

    def __init__(
        self,
        nc: Connection,
        chunk_size: int = CHUNK_SIZE,
        *,
        digest: bool = False,
        timeout: float = 30.0,
        flow: bool = True,
    ) -> None:
        super().__init__(nc, chunk_size, digest=digest, timeout=timeout)
        self.flow = flow
        self._silence = Remembered(60.0, most=1024)  # subjects on which nobody answered lately

    @classmethod
    def persistent(
        cls, nc: Connection, stream: str, chunk_size: int = CHUNK_SIZE, *, digest: bool = True, timeout: float = 30.0
    ) -> PersistentPublisher:
        """Give a publisher that stores the chunks in a JetStream stream, acknowledged one by one."""

        return PersistentPublisher(nc, stream, chunk_size, digest=digest, timeout=timeout)

    async def publish(
        self, subject: str, source: Source, *, message_id: str | None = None, progress: Progress = None
    ) -> str:
        """Send a payload and give its message id, once the server has taken every chunk.

        `source` is bytes, a binary file, a `pathlib.Path`, or an iterable or async iterable of bytes. `progress` is
        called with the bytes sent so far. Raises DeniedError if the server does not permit the subject, and
        UnfinishedError if it stopped half way: receivers drop the part that came, and the payload can be sent again.
        """
        check_subject(subject)
        check_source(source)
        message_id = str(uuid.uuid4()) if message_id is None else _check_id(message_id)
        nc = self._nc
        if not nc.is_connected:
            state = "closed" if nc.is_closed else "away, and trying to come back"
            raise DisconnectedError(f"The connection is {state}.", remedy="Publish once it is connected.")
        _check_chunk_size(nc, self.chunk_size, message_id)
        sender = ChunkSender(nc, subject, timeout=self.timeout, silence=self._silence if self.flow else None)
        return await self._transfer(sender, subject, message_id, source, progress, Digest() if self.digest else None)


class PersistentPublisher(_Publishing):
    """Publishes payloads in chunks into `stream`: `Publisher.persistent` makes one.

    The stream must hold `<subject>.*`; `Archive.create` declares such a stream. `timeout` is how many seconds a chunk
    is tried before the publish gives up; while the connection is away it waits and goes on.
    """

    def __init__(
        self, nc: Connection, stream: str, chunk_size: int = CHUNK_SIZE, *, digest: bool = True, timeout: float = 30.0
    ) -> None:
        check_name(stream)
        self.stream = stream
        super().__init__(nc, chunk_size, digest=digest, timeout=timeout, extra=self._extra("x" * 36))
        self._proved = Remembered(3600.0, most=1024)  # subjects under which a message was found

    def _extra(self, message_id: str) -> int:
        """Room for the headers that JetStream reads."""
        name = f"{MSG_ID}: {message_id}:{2**64}/{'f' * UPLOAD}/{'f' * SO_FAR}\r\n"
        return len(f"{name}{EXPECTED_STREAM}: {self.stream}\r\n{EXPECTED_LAST_SUBJECT_SEQUENCE}: {2**64}\r\n")

    async def publish(
        self, subject: str, source: Source, *, message_id: str | None = None, progress: Progress = None
    ) -> MessageId:
        """Store a payload under `<subject>.<message id>` and give the id, once all of it is in the stream.

        With the `message_id` of an attempt that stopped half way and the same source, only the chunks that are
        missing are sent. If the message is stored whole already, nothing is sent. `outcome` of the id that is given
        says which of these it was. Raises ConflictError if another payload is stored, or being stored, under the id.
        """
        check_subject(subject)
        check_source(source)
        archive = Archive(self._nc, self.stream, subject)
        fresh = message_id is None  # then nobody else has stored anything under it
        message_id = str(uuid.uuid4()) if message_id is None else _check_id(message_id, stored=True)
        _check_chunk_size(self._nc, self.chunk_size, message_id, self._extra(message_id))
        target = f"{subject}.{message_id}"
        await self._check_stream(archive, target)
        before = None if fresh else await archive.chunks_on(target, message_id)
        if before is not None and await self._is_there(archive, subject, message_id, source, before):
            return MessageId(message_id, outcome="found")
        most = max(2, STORE_WINDOW // self.chunk_size)
        hashing = Digest() if self.digest else None
        proved, timeout = subject in self._proved, self.timeout
        storer = ChunkStorer(
            self._nc, archive, target, before, hashing=hashing, proved=proved, most=most, timeout=timeout
        )
        await self._transfer(storer, subject, message_id, source, progress, hashing)
        self._proved.add(subject)
        went_on = before is not None and bool(before.chunks)
        return MessageId(message_id, outcome="found" if storer.duplicate else "continued" if went_on else "stored")

    async def _is_there(
        self, archive: Archive, subject: str, message_id: str, source: Source, before: Findings
    ) -> bool:
        """Tell whether a payload is stored whole; ConflictError if another one is, under its id."""
        where, stored = f"{subject}.{message_id}", by_offset(before.chunks)
        if not stored:  # a plain publisher may have sent it on a subject that the stream holds
            where, stored = subject, await archive.stored_on(subject, message_id)
        if not any(item.chunk.last for item in stored.values()):
            return False
        tiling = archive.tile(message_id, where, stored)
        if not tiling.complete:
            return False
        async with aclosing(cut_source(source, message_id, self.chunk_size, Digest())) as chunks:
            mine = [chunk async for chunk, _ in chunks if chunk.last][-1]
        total, digest = tiling.total, tiling.digest
        if mine.total == total and digest is None:
            theirs = hashlib.sha256()
            async with archive.reading(message_id, where, stored) as message:
                async for piece in message:
                    theirs.update(piece)
            digest = theirs.hexdigest()
        if (mine.total, mine.digest) != (total, digest):
            raise ConflictError(
                f"Message {message_id} in stream {self.stream} is another payload, of {total} bytes.",
                remedy="Publish this one under an id of its own, or delete the other one first (Archive.delete).",
                subject=subject,
                message_id=message_id,
            )
        return True

    async def _check_stream(self, archive: Archive, target: str) -> None:
        config = await archive.config()
        if not await archive.captures(target):
            raise InputError(
                f"The stream {self.stream} does not hold {target}: it holds {', '.join(config.get('subjects') or [])}.",
                remedy=f"Let it hold {target.rpartition('.')[0]}.*.",
            )
        moved = config.get("subject_transform") or {}
        if moved and covers(moved.get("src") or ">", target):
            raise InputError(
                f"The stream {self.stream} stores what comes on {target} under another subject, {moved.get('dest')}, "
                "where nobody would find it.",
                remedy="Use a stream without subject_transform.",
            )
        largest = config.get("max_msg_size") or -1
        if 0 <= largest < self.chunk_size + 512:
            raise InputError(
                f"The stream {self.stream} takes messages of {largest} bytes with their headers, less than a chunk.",
                remedy=f"Use chunk_size={largest - 512} or raise max_msg_size.",
            )


def _check_chunk_size(nc: Connection, chunk_size: int, message_id: str = "x" * 36, extra: int = 0) -> int:
    """Refuse a chunk size that is not a size, or that the server would not take."""
    check_count("chunk_size", chunk_size)
    largest = nc.max_payload - header_room(message_id) - extra
    if nc.is_connected and chunk_size > largest:
        raise OptionError(
            f"chunk_size is {chunk_size}, and this server takes messages of {nc.max_payload} bytes with their headers.",
            remedy=f"Give {largest} at most, or raise max_payload at the server.",
            option="chunk_size",
            value=chunk_size,
        )
    return chunk_size


def _check_id(message_id: str, *, stored: bool = False) -> str:
    """Refuse an id that cannot stand in a header or, of a `stored` message, be the last word of a subject."""
    fits = isinstance(message_id, str) and _ID.fullmatch(message_id) is not None
    if not fits or (stored and set(".*>") & set(message_id)):
        characters = (
            "ASCII characters without blanks, dots, * and >" if stored else "printable ASCII characters without blanks"
        )
        raise InputError(
            f"{message_id!r} cannot be the id of a {'stored ' if stored else ''}message.",
            remedy=f"Use 1 to {MAX_ID} {characters}.",
        )
    return message_id


@functools.cache
def _keep_freed_memory() -> None:
    """Let the C library reuse the memory of a chunk for the next one, instead of giving it back in between.

    glibc gives large blocks back at once, and new memory comes page by page, at several times the cost of copying a
    chunk. It learns from what is freed to keep blocks of that size; one that was never touched costs nothing.
    """
    bytes(4 * 1024 * 1024)
