"""Sends payloads of any size in chunks, in constant memory, and says how far it got when it could not finish."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from penstock.chunks.allocator import FOR_PUBLISHERS, keep_freed_memory
from penstock.chunks.digest import Digest
from penstock.chunks.limits import check_count, check_seconds
from penstock.chunks.pacing import Silence
from penstock.chunks.sender import ChunkSender
from penstock.chunks.source import Buffer, Source, check_source, read_source
from penstock.chunks.wire import MAX_ID, Splitter, header_room
from penstock.connection.connecting import check_connection
from penstock.errors import DeniedError, DisconnectedError, InputError, OptionError, UnfinishedError

if TYPE_CHECKING:
    from penstock.chunks.persistent import PersistentPublisher
    from penstock.connection import Connection

__all__ = [
    "CHUNK_SIZE",
    "Publisher",
    "check_chunk_size",
    "check_id",
    "check_subject",
    "largest_chunk",
    "unfinished",
]

CHUNK_SIZE = 512 * 1024
_ID = re.compile(rf"[!-~]{{1,{MAX_ID}}}")
_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f.*>]+(?:\.[^\s\x00-\x20\x7f.*>]+)*")


class Publisher:
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
        keep_freed_memory(FOR_PUBLISHERS)
        self._nc = check_connection(nc)
        self.chunk_size = check_chunk_size(nc, chunk_size)
        self.digest = digest
        self.timeout = check_seconds("timeout", timeout)
        self.flow = flow
        self._silence = Silence()

    @classmethod
    def persistent(
        cls,
        nc: Connection,
        stream: str,
        chunk_size: int = CHUNK_SIZE,
        *,
        digest: bool = True,
        timeout: float = 30.0,
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
        self._check_server(message_id)
        digest = Digest() if self.digest else None
        splitter = Splitter(message_id, self.chunk_size, digest)
        sender = ChunkSender(self._nc, subject, timeout=self.timeout, silence=self._silence if self.flow else None)
        reading = cast("AsyncGenerator[Buffer, None]", read_source(source, self.chunk_size))
        try:
            async with aclosing(reading):
                async for piece in reading:
                    for chunk, body in splitter.feed(piece):
                        await sender.send(chunk, body)
                        if progress is not None:
                            progress(sender.sent)
                        if digest is not None:
                            await digest.keep_up()
                    if digest is not None and not isinstance(piece, bytes):
                        await digest.settle()  # whoever gave the buffer may fill it anew
            if digest is not None:
                await digest.settle()
            await sender.send(*splitter.finish())
            await sender.finish()
        except Exception as error:
            if (isinstance(error, InputError) and sender.sent == 0) or (
                isinstance(error, DeniedError) and sender.confirmed == 0
            ):
                raise  # nobody has anything of it
            raise unfinished(error, subject, message_id, sender.sent, sender.confirmed) from error
        finally:
            await sender.close()
            if digest is not None:
                digest.close()
        if progress is not None:
            progress(sender.sent)
        return message_id

    def _check_server(self, message_id: str) -> None:
        nc = self._nc
        if not nc.is_connected:
            state = "closed" if nc.is_closed else "away, and trying to come back"
            raise DisconnectedError(f"The connection is {state}.", remedy="Publish once it is connected.")
        check_chunk_size(nc, self.chunk_size, message_id)


def unfinished(error: Exception, subject: str, message_id: str, sent: int, confirmed: int) -> UnfinishedError:
    """Say how far a publish got."""
    what = str(error) or type(error).__name__
    return UnfinishedError(
        f"Message {message_id} on {subject} was sent in part, {sent} bytes, of which the server confirmed {confirmed}: "
        f"{what.rstrip('.')}.",
        remedy="Receivers drop the part after their timeout. Publish the payload again.",
        subject=subject,
        message_id=message_id,
        sent=sent,
        confirmed=confirmed,
    )


def largest_chunk(nc: Connection, message_id: str = "x" * 36, extra: int = 0) -> int:
    """Give the largest body that fits into one message of this server beside the headers."""
    return nc.max_payload - header_room(message_id) - extra


def check_chunk_size(nc: Connection, chunk_size: int, message_id: str = "x" * 36, extra: int = 0) -> int:
    """Refuse a chunk size that is no size, or that the server would not take."""
    check_count("chunk_size", chunk_size)
    largest = largest_chunk(nc, message_id, extra)
    if nc.is_connected and chunk_size > largest:
        raise OptionError(
            f"chunk_size is {chunk_size}, and this server takes messages of {nc.max_payload} bytes with their headers.",
            remedy=f"Give {largest} at most, or raise max_payload at the server.",
            option="chunk_size",
            value=chunk_size,
        )
    return chunk_size


def check_id(message_id: str) -> str:
    """Refuse an id that cannot stand in a header."""
    if not isinstance(message_id, str) or not _ID.fullmatch(message_id):
        raise InputError(
            f"{message_id!r} cannot be the id of a message.",
            remedy=f"Use 1 to {MAX_ID} printable ASCII characters without blanks.",
        )
    return message_id


def check_subject(subject: str) -> str:
    """Refuse what is no subject to publish on."""
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise InputError(
            f"{subject!r} is no subject to publish on.", remedy="Write words joined by dots, without wildcards."
        )
    return subject
