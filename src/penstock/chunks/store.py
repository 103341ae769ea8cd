"""Where the bytes of an unfinished message are kept: in memory, or in a file that nobody can see.

Nothing here is allocated from a number that a publisher claims. In memory a payload grows at its front, and what came
too early waits beside it. On disk each chunk goes to its own place in a sparse file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections import deque
from collections.abc import AsyncIterable
from io import BytesIO, FileIO
from pathlib import Path

from penstock.chunks.wire import Body

__all__ = ["INLINE", "MemoryStore", "SpoolStore", "UnreadStore", "digest_of", "fill", "join"]

PIECE = 512 * 1024
INLINE = 64 * 1024  # bytes below which the way to a thread takes longer than a hash
LARGE = 256 * 1024  # bytes from which on a payload that grows gets a span of addresses
SPAN = 33 * 1024 * 1024  # glibc takes blocks above 32 MB from the system and gives them back, whatever was before
SPANS = 64  # how many a process has at most: two gigabytes of addresses


class MemoryStore:
    """A payload in memory: one buffer that grows without gaps, and the chunks that came too early.

    The buffer begins as the first chunk and ends as the payload, and neither is copied for it. One that grows is moved
    now and then, and the C library may keep the place where it was. So one that has got large moves once more, into a
    span of addresses that is longer than most payloads: they cost nothing until something is written to them.
    """

    _spans = 0  # how many there are in this process

    def __init__(self) -> None:
        self._front = BytesIO()
        self._early: dict[int, bytes] = {}
        self._wide = False
        self.memory = 0
        self.disk = 0

    def write(self, offset: int, body: Body, *, final: bool = False) -> None:
        """Keep a chunk that the tiling says is new, `final` if the payload is whole with it."""
        self.memory += len(body)
        if offset != self._front.tell():
            self._early[offset] = bytes(body)
            return
        if offset == 0:
            self._front = BytesIO(bytes(body))
            self._front.seek(len(body))
        else:
            self._append(body, final)
        while self._early and (following := self._early.pop(self._front.tell(), None)) is not None:
            self._append(following, final)

    def _append(self, body: Body, final: bool) -> None:
        grows = not final and self._front.tell() + len(body) > LARGE
        if grows and not self._wide and MemoryStore._spans < SPANS:
            self._widen()
        self._front.write(body)

    def _widen(self) -> None:
        try:
            # Fresh zeros that nobody else refers to: BytesIO writes into them, and none is touched before that.
            front = BytesIO(bytes(SPAN))
        except MemoryError:  # addresses are rationed here; growing step by step needs fewer
            return
        front.write(self._front.getbuffer())
        self._front = front
        self._wide = True
        MemoryStore._spans += 1

    def same(self, offset: int, body: Body) -> bool:
        """Whether the bytes at `offset`, which are there, are these."""
        if offset in self._early:
            return self._early[offset] == body
        with self._front.getbuffer() as view:
            return view[offset : offset + len(body)] == body

    def take(self) -> bytes:
        self._shorten()
        return self._front.getvalue()

    def _shorten(self) -> None:
        if self._wide:
            self._front.truncate()
            self._wide = False
            MemoryStore._spans -= 1

    def spill(self, target: SpoolStore) -> None:
        self._shorten()
        with self._front.getbuffer() as view:
            target.write(0, view)
        for offset, body in self._early.items():
            target.write(offset, body)
        self.close()

    def close(self) -> None:
        self._shorten()
        self._front, self._early = BytesIO(), {}
        self.memory = 0


class SpoolStore:
    """A payload on disk, in a file without a name: it is gone when we are, however we end."""

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.TemporaryFile(  # noqa: SIM115  # it lives as long as the store; close ends it
            dir=folder, prefix="penstock-", buffering=0
        )
        self.memory = 0
        self.disk = 0

    def write(self, offset: int, body: Body) -> None:
        """Put a chunk in its place, at once: a disk that cannot keep up holds up the reading, and so the publisher."""
        view = memoryview(body)
        self.disk += len(view)
        while view:
            written = os.pwrite(self._file.fileno(), view, offset)
            view, offset = view[written:], offset + written

    def same(self, offset: int, body: Body) -> bool:
        return self.read(offset, len(body)) == body

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, offset)

    def take(self) -> FileIO:
        """Give the file, at its beginning."""
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        self.disk = 0
        self._file.close()


class UnreadStore:
    """The part of a streamed message that came and was not read yet, in order, `window` bytes of it in memory.

    What comes too early waits in memory. What the reader is too slow for goes to disk.
    """

    def __init__(self, window: int, folder: Path | None) -> None:
        self.window = window
        self.end = 0  # every byte before this has come
        self.taken = 0  # and every byte before this was read
        self.memory = 0
        self._folder = folder
        self._ready: deque[bytes] = deque()
        self._waiting = 0  # bytes of these
        self._early: dict[int, bytes] = {}
        self._file: SpoolStore | None = None
        self._read_at = 0

    @property
    def disk(self) -> int:
        """Bytes on disk; while there are any, what comes next in order goes there, too."""
        return 0 if self._file is None else self._file.disk

    def write(self, offset: int, body: Body, *, spill: bool = False) -> None:
        self.memory += len(body)
        if offset != self.end:
            self._early[offset] = bytes(body)
            return
        following: Body | None = body
        while following is not None:
            self.end += len(following)
            self._append(following, spill)
            following = self._early.pop(self.end, None)

    def _append(self, body: Body, spill: bool) -> None:
        fits = not spill and (self._waiting + len(body) <= self.window or not self._ready)
        if self._file is None and fits:
            self._ready.append(bytes(body))
            self._waiting += len(body)
            return
        if self._file is None:
            self._file = SpoolStore(self._folder)
        self._file.write(self._file.disk, body)
        self.memory -= len(body)

    def take(self) -> bytes | None:
        """Give the next piece, or None if nothing is there yet."""
        if self._ready:
            body = self._ready.popleft()
            self.memory -= len(body)
            self._waiting -= len(body)
        elif self._file is not None:
            body = self._file.read(self._read_at, PIECE)
            self._read_at += len(body)
            if self._read_at == self._file.disk:  # the reader has caught up
                self._remove_file()
        else:
            return None
        self.taken += len(body)
        return body

    def close(self) -> None:
        self._ready.clear()
        self._early.clear()
        self.memory = 0
        self._remove_file()

    def _remove_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._read_at = None, 0


async def fill(store: MemoryStore | SpoolStore, pieces: AsyncIterable[bytes]) -> None:
    """Keep pieces as they come, one behind the other."""
    offset = 0
    async for piece in pieces:
        store.write(offset, piece)
        offset += len(piece)


async def join(pieces: AsyncIterable[bytes]) -> bytes:
    """Join pieces as they come, so that they are in memory once."""
    store = MemoryStore()
    try:
        await fill(store, pieces)
        return store.take()
    finally:
        store.close()


async def digest_of(data: bytes | FileIO, size: int) -> str:
    """Hash a payload of `size` bytes, or what a file holds from where it stands, on a thread if that is much."""

    def work() -> str:
        found = hashlib.sha256(data) if isinstance(data, bytes) else hashlib.file_digest(data, "sha256")
        return found.hexdigest()

    return work() if size < INLINE else await asyncio.to_thread(work)
