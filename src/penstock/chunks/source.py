"""Where a payload comes from: whatever the caller has, read in pieces, cut into chunks, hashed beside the loop."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from penstock.chunks.store import INLINE
from penstock.chunks.wire import Chunk, Splitter
from penstock.errors import InputError

__all__ = ["Digest", "Progress", "Source", "check_source", "cut_source"]

_BEHIND = 4  # updates that the hash may be behind, so that what it holds stays bounded
_TOGETHER = 512 * 1024  # bytes of one update: each way to the thread costs as much as hashing a hundred kilobytes
_PIECE = 1024 * 1024  # bytes that are read from a file at a time, or one chunk


class Readable(Protocol):
    """A binary file, or anything else with its `read`; a coroutine function will do, too."""

    def read(self, size: int, /) -> Any:
        """Give up to `size` bytes, none at the end."""


Buffer: TypeAlias = bytes | bytearray | memoryview
Progress: TypeAlias = Callable[[int], None] | None
Source: TypeAlias = Buffer | Readable | os.PathLike[str] | Iterable[Buffer] | AsyncIterable[Buffer]


def check_source(source: Source) -> None:
    """Refuse what is not a payload, before anything is sent."""
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
    if not isinstance(source, Iterable | AsyncIterable) and not hasattr(source, "read"):
        raise InputError(
            f"A payload cannot be read from a {type(source).__name__}.",
            remedy="Give bytes, a binary file, a pathlib.Path, or an iterable or async iterable of bytes.",
        )
    if isinstance(source, memoryview) and not source.contiguous:
        raise InputError("The payload is a memoryview with gaps.", remedy="Give a contiguous one, or bytes(view).")


async def cut_source(
    source: Source, message_id: str, chunk_size: int, hashing: Digest | None
) -> AsyncGenerator[tuple[Chunk, memoryview], None]:
    """Read the payload and cut it into chunks, of which the last one carries the digest, if any; send each at once."""
    splitter = Splitter(message_id, chunk_size, hashing)
    try:
        async with aclosing(_read_source(source, max(chunk_size, _PIECE))) as pieces:
            async for piece in pieces:
                for cut in splitter.feed(piece):
                    yield cut
                    if hashing is not None:
                        await hashing.settle(_BEHIND)
                if hashing is not None and not isinstance(piece, bytes):
                    await hashing.settle()  # whoever gave the buffer may fill it anew
        if hashing is not None:
            await hashing.settle()
        yield splitter.finish()
    finally:
        if hashing is not None:
            hashing.close()


async def _read_source(source: Source, size: int) -> AsyncGenerator[Buffer, None]:
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
        for item in source:
            yield _checked(item)


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
            f"The payload gave {kind} instead of bytes.",
            remedy='Open files with "rb", and give iterables of bytes.',
        )
    return piece


class Digest:
    """A SHA-256 that is computed on a thread of its own, a few updates behind."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self._jobs: deque[Future[None]] = deque()
        self._held: list[bytes | memoryview] = []  # small ones go to the thread together
        self._size = 0

    def update(self, body: bytes | memoryview) -> None:
        """Take more bytes; they must not change before `settle` returns."""
        if self._thread is None and len(body) < INLINE:
            self._hash.update(body)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "penstock-digest")
        self._held.append(body)
        self._size += len(body)
        if self._size >= _TOGETHER:
            self._submit()

    def _submit(self) -> None:
        if self._thread is not None and self._held:
            held, self._held, self._size = self._held, [], 0
            self._jobs.append(self._thread.submit(self._update, held))

    def _update(self, bodies: list[bytes | memoryview]) -> None:
        for body in bodies:
            self._hash.update(body)

    def so_far(self) -> Future[str]:
        """Give the digest of what was taken up to now, when it is known."""
        if self._thread is not None:
            self._submit()
            return self._thread.submit(lambda: self._hash.copy().hexdigest())
        known: Future[str] = Future()
        known.set_result(self._hash.hexdigest())
        return known

    async def settle(self, behind: int = 0) -> None:
        """Wait until at most `behind` updates are left to do."""
        if not behind:
            self._submit()
        while len(self._jobs) > behind:
            await asyncio.wrap_future(self._jobs.popleft())

    def hexdigest(self) -> str:
        """Give the digest; it waits for the last chunk to be hashed, a millisecond at most after `settle`."""
        self._submit()
        while self._jobs:
            self._jobs.popleft().result()
        return self._hash.hexdigest()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)  # a few chunks at most; who waits for a digest gets it
