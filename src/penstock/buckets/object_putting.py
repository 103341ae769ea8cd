"""The way of an object's bytes into its bucket: read from wherever they are, cut, hashed, stored, or taken back."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from penstock.buckets.object_info import ObjectInfo
from penstock.buckets.object_wire import chunk_subject, format_digest, new_nuid
from penstock.buckets.object_writing import ChunkWriter
from penstock.chunks.source import Digest, Progress, Source, check_source, cut_source
from penstock.chunks.wire import encode, header_room
from penstock.errors import OptionError, PenstockError
from penstock.wire.jetstream.verdicts import may_ask_again

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["check_put", "put_chunks"]

log = logging.getLogger("penstock.buckets")

_ATTEMPTS = 3
_LARGEST = 2**32 - 1  # what other clients count chunks and their bytes in


def check_put(nc: Connection, source: Source, chunk_size: int, *, chunk_headers: bool) -> None:
    """Refuse what cannot be put before anything is asked."""
    check_source(source)
    room = header_room(new_nuid()) if chunk_headers else 0
    largest = min(_LARGEST, nc.max_payload - room) if nc.is_connected else _LARGEST
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or not 0 < chunk_size <= largest:
        raise OptionError(
            f"chunk_size is {chunk_size!r}.",
            remedy=f"Give a number of bytes from 1 to {largest:,}, which this server takes in one message.",
            option="chunk_size",
            value=chunk_size,
        )


async def put_chunks(
    nc: Connection,
    stream: str,
    info: ObjectInfo,
    source: Source,
    *,
    chunk_headers: bool,
    timeout: float,
    progress: Progress,
) -> ObjectInfo:
    """Store the bytes of an object, and give its description with what is known of them now.

    What can be read again is stored anew, under an id of its own, if something went wrong that passes by itself.
    """
    assert info.chunk_size is not None

    async def attempt(size: int) -> ObjectInfo:
        nuid, hashing, digest = new_nuid(), Digest(), ""
        writer = ChunkWriter(nc, stream, chunk_subject(info.bucket, nuid), timeout=timeout)
        try:
            async with aclosing(cut_source(source, nuid, size, hashing)) as chunks:
                async for chunk, body in chunks:
                    digest = chunk.digest or ""
                    if len(body) or chunk_headers:
                        await writer.write(body, encode(chunk) if chunk_headers else None)
                        if progress is not None:
                            progress(writer.size)
            await writer.finish()
        except BaseException:
            # Also if it is cancelled: what nobody describes would stay for ever.
            await asyncio.shield(writer.purge())
            raise
        finally:
            await writer.close()
        said = format_digest(bytes.fromhex(digest))
        return info.changed(nuid=nuid, size=writer.size, chunks=writer.chunks, digest=said)

    rewind = _rewinding(source)
    for number in range(1, _ATTEMPTS + 1):
        try:
            return await attempt(info.chunk_size)
        except PenstockError as error:
            if rewind is None or number == _ATTEMPTS or nc.is_closed or not may_ask_again(error):
                raise
            log.info("Object %r is put into bucket %s anew: %s", info.name, info.bucket, error)
            await nc.standing(timeout)
            rewind()
    raise AssertionError("unreachable")


def _rewinding(source: Any) -> Callable[[], None] | None:
    """Give what sets a source to where it began; None if it can be read only once."""
    if isinstance(source, bytes | bytearray | memoryview | os.PathLike | list | tuple):
        return lambda: None
    try:
        if hasattr(source, "read") and not inspect.iscoroutinefunction(source.read) and source.seekable():
            place = source.tell()
            return lambda: source.seek(place) and None
    except (AttributeError, OSError, TypeError):
        pass
    return None
