"""Stores payloads in a JetStream stream, chunk by chunk, and goes on where an earlier attempt stopped.

Every message has a subject of its own, `<subject>.<message id>`, so that its chunks are found without a search. Each
chunk carries a `Nats-Msg-Id` of message and offset, so that a chunk sent again is stored once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.chunks.archive import Archive
from penstock.chunks.publisher import CHUNK_SIZE, ChunkPublisher, check_chunk_size, check_id, check_subject
from penstock.chunks.sender import STORE_WINDOW, ChunkStorer, mark
from penstock.chunks.source import Source, check_source
from penstock.errors import InputError
from penstock.wire.jetstream.names import EXPECTED_STREAM, MSG_ID, check_name

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["PersistentPublisher"]


class PersistentPublisher(ChunkPublisher):
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

    def _extra(self, message_id: str) -> int:
        """Room for the headers that JetStream reads."""
        return len(f"{MSG_ID}: {message_id}:{2**64}:{mark()}\r\n{EXPECTED_STREAM}: {self.stream}\r\n")

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
        message_id = str(uuid.uuid4()) if message_id is None else check_id(message_id, stored=True)
        check_chunk_size(self._nc, self.chunk_size, message_id, self._extra(message_id))
        target = f"{subject}.{message_id}"
        await self._check_stream(archive, target)
        stored = None if fresh else await archive.stored(message_id)
        if stored and any(item.chunk.last for item in stored.values()):
            return message_id
        most = max(2, STORE_WINDOW // self.chunk_size)
        storer = ChunkStorer(self._nc, archive, target, stored, most=most, timeout=self.timeout)
        return await self._transfer(storer, subject, message_id, source, progress)

    async def _check_stream(self, archive: Archive, target: str) -> None:
        config = await archive.config()
        if not await archive.captures(target):
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
