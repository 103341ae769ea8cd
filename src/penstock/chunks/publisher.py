"""Sends payloads of any size in chunks, in constant memory, and says how far it got when it could not finish."""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from penstock.chunks.limits import Recent, check_count, check_seconds
from penstock.chunks.sender import ChunkSender, ChunkStorer
from penstock.chunks.source import Source, check_source, cut_source
from penstock.chunks.wire import MAX_ID, header_room
from penstock.connection.connecting import check_connection
from penstock.errors import DeniedError, DisconnectedError, InputError, OptionError, UnfinishedError

if TYPE_CHECKING:
    from penstock.chunks.persistent import PersistentPublisher
    from penstock.connection import Connection

__all__ = ["CHUNK_SIZE", "ChunkPublisher", "Publisher", "check_chunk_size", "check_id", "check_subject"]

CHUNK_SIZE = 512 * 1024
_ID = re.compile(rf"[!-~]{{1,{MAX_ID}}}")
_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f.*>]+(?:\.[^\s\x00-\x20\x7f.*>]+)*")


class ChunkPublisher:
    """What the publishers share: their options, and the way of a payload through a sender."""

    def __init__(self, nc: Connection, chunk_size: int, *, digest: bool, timeout: float, extra: int = 0) -> None:
        _keep_freed_memory()
        self._nc = check_connection(nc)
        self.chunk_size = check_chunk_size(nc, chunk_size, extra=extra)
        self.digest = digest
        self.timeout = check_seconds("timeout", timeout)

    async def _transfer(
        self,
        sender: ChunkSender | ChunkStorer,
        subject: str,
        message_id: str,
        source: Source,
        progress: Callable[[int], None] | None,
    ) -> str:
        """Send a payload and give its id; UnfinishedError says how far it got if it stopped half way."""
        try:
            async with aclosing(cut_source(source, message_id, self.chunk_size, digest=self.digest)) as chunks:
                async for chunk, body in chunks:
                    await sender.send(chunk, body)
                    if progress is not None and not chunk.last:
                        progress(sender.sent)
            await sender.finish()
        except Exception as error:
            confirmed = await sender.confirmed()
            if (isinstance(error, InputError) and not sender.started) or (
                isinstance(error, DeniedError) and not confirmed
            ):
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


class Publisher(ChunkPublisher):
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
        self._silence = Recent(60.0, most=1024)  # subjects on which nobody answered lately

    @classmethod
    def persistent(
        cls, nc: Connection, stream: str, chunk_size: int = CHUNK_SIZE, *, digest: bool = True, timeout: float = 30.0
    ) -> PersistentPublisher:
        """Give a publisher that stores the chunks in a JetStream stream, acknowledged one by one."""
        from penstock.chunks.persistent import PersistentPublisher

        return PersistentPublisher(nc, stream, chunk_size, digest=digest, timeout=timeout)

    async def publish(
        self,
        subject: str,
        source: Source,
        *,
        message_id: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> str:
        """Send a payload and give its message id, once the server has taken every chunk.

        `source` is bytes, a binary file, a `pathlib.Path`, or an iterable or async iterable of bytes. `progress` is
        called with the bytes sent so far. Raises DeniedError if the server does not permit the subject, and
        UnfinishedError if it stopped half way: receivers drop the part that came, and the payload can be sent again.
        """
        check_subject(subject)
        check_source(source)
        message_id = str(uuid.uuid4()) if message_id is None else check_id(message_id)
        nc = self._nc
        if not nc.is_connected:
            state = "closed" if nc.is_closed else "away, and trying to come back"
            raise DisconnectedError(f"The connection is {state}.", remedy="Publish once it is connected.")
        check_chunk_size(nc, self.chunk_size, message_id)
        sender = ChunkSender(nc, subject, timeout=self.timeout, silence=self._silence if self.flow else None)
        return await self._transfer(sender, subject, message_id, source, progress)


def check_chunk_size(nc: Connection, chunk_size: int, message_id: str = "x" * 36, extra: int = 0) -> int:
    """Refuse a chunk size that is no size, or that the server would not take."""
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


def check_id(message_id: str, *, stored: bool = False) -> str:
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


def check_subject(subject: str) -> str:
    """Refuse what is no subject to publish on."""
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise InputError(
            f"{subject!r} is no subject to publish on.", remedy="Write words joined by dots, without wildcards."
        )
    return subject


@functools.cache
def _keep_freed_memory() -> None:
    """Let the C library reuse the memory of a chunk for the next one, instead of giving it back in between.

    glibc returns the memory of large blocks to the system at once, and new memory comes page by page, at several times
    the cost of copying a chunk. It learns from what is freed: a block of this size, which is never touched and so costs
    nothing, makes it keep blocks up to this size: those of a window, each of which is put into a frame before it is
    written. Other C libraries pay no attention.
    """
    bytes(4 * 1024 * 1024)
