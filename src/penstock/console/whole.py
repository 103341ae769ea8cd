"""Payloads that a stream holds in chunks, put together: what a chunk says of itself, and all of them as one."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.chunks.archive import Archive, StoredChunks
from penstock.chunks.wire import Refusal, decode, message_id_of
from penstock.connection import Connection
from penstock.console.backend import Backend, Data
from penstock.errors import InputError
from penstock.jetstream import assets
from penstock.model import Message

__all__ = ["chunk_facts", "whole_payload", "whole_pieces"]


def chunk_facts(backend: Backend, message: Message) -> Data | None:
    """Give what a chunk says of its place in a payload; None for a message that is not a chunk."""
    headers = {name: values[-1] for name, values in message.headers.items()}
    message_id = message_id_of(headers)
    if message_id is None:
        return None
    facts: Data = {"id": backend.mask.plain(message_id), "offset": None, "total": None, "trouble": None}
    try:
        chunk = decode(headers, len(message.data))
    except Refusal as refusal:
        return {**facts, "trouble": f"It says that it is a chunk, and cannot be one: {refusal}."}
    return {**facts, "offset": chunk.offset, "total": chunk.total}


async def _found(client: Connection, message: Message) -> tuple[Archive, str, StoredChunks]:
    """Find all chunks of the payload that a message is a chunk of, by their headers."""
    stream = str(message.stream)
    info = await assets.stream_info(client, stream)
    if info.config.retention != "limits":
        raise InputError(
            f"Stream {stream} keeps messages for its consumers, and a look through its headers would be one more.",
            remedy="The chunks can be shown one by one.",
        )
    message_id = message_id_of({name: values[-1] for name, values in message.headers.items()})
    if message_id is None:
        raise InputError(f"Message {message.sequence} of {stream} is not a chunk.", remedy="Leave whole out.")
    archive = Archive(client, stream, message.subject)
    return archive, message_id, await archive.stored_on(message.subject, message_id)


async def whole_payload(backend: Backend, client: Connection, message: Message) -> tuple[bytes, int]:
    """Give the payload of which a message is a chunk, or its beginning if it is large, and its size.

    AssemblyError if it is not whole, or its digest is wrong; the digest of one that is cut is not looked at.
    """
    archive, message_id, chunks = await _found(client, message)
    most = backend.settings.whole_bytes
    async with archive.reading(message_id, message.subject, chunks) as reader:
        if reader.size <= most:
            return await reader.read(), reader.size
        start = bytearray()
        while len(start) < most and (piece := await reader.read(most - len(start))):
            start += piece
        return bytes(start), reader.size


async def whole_pieces(client: Connection, message: Message) -> AsyncIterator[bytes]:
    """Find a payload, and give its bytes; AssemblyError at the end if its digest is wrong."""
    archive, message_id, chunks = await _found(client, message)
    async with archive.reading(message_id, message.subject, chunks):
        pass  # what is not whole, or contradicts itself, is told before the first byte

    async def read() -> AsyncIterator[bytes]:
        async with archive.reading(message_id, message.subject, chunks) as reader:
            async for piece in reader:
                yield piece

    return read()
