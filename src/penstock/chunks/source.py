"""Where a payload comes from: whatever the caller has, read as a series of pieces."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from penstock.errors import InputError

__all__ = ["Source", "check_source", "read_source", "source_size"]


class Readable(Protocol):
    """A binary file, or anything else with its `read`; a coroutine function will do, too."""

    def read(self, size: int, /) -> Any:
        """Give up to `size` bytes, none at the end."""


Buffer: TypeAlias = bytes | bytearray | memoryview
Source: TypeAlias = Buffer | Readable | os.PathLike[str] | Iterable[Buffer] | AsyncIterable[Buffer]


def check_source(source: Source) -> None:
    """Refuse what is no payload, before anything is sent."""
    if isinstance(source, str):
        raise InputError(
            "The payload is a text, which could mean a file name or the text itself.",
            remedy="Give pathlib.Path(name) for a file, text.encode() for the text.",
        )
    if isinstance(source, os.PathLike):
        path = Path(source)
        if not path.exists():
            raise InputError(f"There is no file {path}.", remedy="Check the path.")
        if path.is_dir():
            raise InputError(f"{path} is a folder.", remedy="Name a file.")
        if not os.access(path, os.R_OK):
            raise InputError(f"{path} cannot be read.", remedy="Check who may read it.")
        return
    if not isinstance(source, bytes | bytearray | memoryview | Iterable | AsyncIterable) and not hasattr(
        source, "read"
    ):
        raise InputError(
            f"A payload cannot be read from a {type(source).__name__}.",
            remedy="Give bytes, a binary file, a pathlib.Path, or an iterable or async iterable of bytes.",
        )
    if isinstance(source, memoryview) and not source.contiguous:
        raise InputError("The payload is a memoryview with gaps.", remedy="Give a contiguous one, or bytes(view).")


def source_size(source: Source) -> int | None:
    """Give the size of a payload if it is known beforehand, for whoever shows progress."""
    if isinstance(source, memoryview):
        return source.nbytes
    if isinstance(source, bytes | bytearray):
        return len(source)
    if isinstance(source, os.PathLike):
        size = Path(source).stat().st_size
        return size or None  # a pipe or a device says 0
    return None


async def read_source(source: Source, size: int) -> AsyncIterator[Buffer]:
    """Read the payload in pieces; files are read `size` bytes at a time, on a thread, one piece ahead."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield source
    elif isinstance(source, os.PathLike):
        file = await asyncio.to_thread(open, source, "rb", buffering=0)
        try:
            async for piece in _read(file, size):
                yield piece
        finally:
            await asyncio.to_thread(file.close)
    elif hasattr(source, "read"):
        async for piece in _read(source, size):
            yield piece
    elif isinstance(source, AsyncIterable):
        async for piece in source:
            yield _checked(piece)
    else:
        items: Iterator[Buffer] = iter(source)
        for piece in items:
            yield _checked(piece)


async def _read(file: Any, size: int) -> AsyncIterator[Buffer]:
    if inspect.iscoroutinefunction(file.read):
        while piece := _checked(await file.read(size)):
            yield piece
        return
    # The next piece is read from the disk while this one goes to the network.
    ahead = asyncio.ensure_future(asyncio.to_thread(file.read, size))
    try:
        while piece := _checked(await ahead):
            ahead = asyncio.ensure_future(asyncio.to_thread(file.read, size))
            yield piece
    finally:
        # The thread cannot be stopped; nobody may close the file before it is done.
        await asyncio.gather(ahead, return_exceptions=True)


def _checked(piece: Any) -> Buffer:
    if not isinstance(piece, bytes | bytearray | memoryview):
        kind = "text" if isinstance(piece, str) else type(piece).__name__
        raise InputError(
            f"The payload gave {kind} where bytes were expected.",
            remedy='Open files with "rb", and give iterables of bytes.',
        )
    return piece
