"""Bytes that were received and not read yet: taken from the socket first, and read when there is time.

A server gives up a client that is some 64 MB behind, and core NATS has nothing to slow a publisher down with. So a
connection that a receiver of large payloads listens on receives before it reads, once it has fallen behind. The first
bytes wait in memory, the others in files without names: they are gone when we are, however we end.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import deque
from io import FileIO
from pathlib import Path

__all__ = ["MEMORY", "Ahead", "Backlog"]

BLOCK = 4 * 1024 * 1024  # bytes that are received at once
MEMORY = 16 * 1024 * 1024  # bytes that wait in memory, if nobody allows more
DISK = 4 * 1024**3  # bytes that wait on disk
FILE = 64 * 1024 * 1024  # bytes of one file: what was read of it is given back with the whole of it
PIECE = 512 * 1024  # bytes that are read at once


class Ahead:
    """Whether a connection receives before it reads, and where what it received may wait."""

    def __init__(self) -> None:
        self._wanted: dict[object, tuple[Path | None, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._wanted)

    @property
    def folder(self) -> Path | None:
        """Where the files are made: the folder that was named first, None for the system's own."""
        return next((folder for folder, _ in self._wanted.values() if folder is not None), None)

    @property
    def memory(self) -> int:
        """Bytes that may wait in memory."""
        return max((memory for _, memory in self._wanted.values()), default=MEMORY)

    def want(self, who: object, folder: Path | None, memory: int) -> None:
        self._wanted[who] = folder, memory

    def release(self, who: object) -> None:
        self._wanted.pop(who, None)


class _Block:
    """A part that waits in memory."""

    def __init__(self) -> None:
        # Huge pages, if there are some: to touch a megabyte in small ones may take longer than to receive it.
        self._map = mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._map)
        self.size = self.read = 0

    def take(self) -> memoryview:
        piece = self.view[self.read : min(self.size, self.read + PIECE)]
        self.read += len(piece)
        return piece


class _File:
    """A part that waits on disk: it is written once and read once."""

    def __init__(self, folder: Path | None) -> None:
        self._file: FileIO = tempfile.TemporaryFile(  # noqa: SIM115  # it lives until it was read; close ends it
            dir=folder, prefix="penstock-", buffering=0
        )
        self.size = self.read = 0

    def write(self, data: memoryview) -> None:
        at = self.size
        while data:
            count = os.pwrite(self._file.fileno(), data, at)
            at, data = at + count, data[count:]
        self.size = at

    def take(self) -> bytes:
        piece = os.pread(self._file.fileno(), min(PIECE, self.size - self.read), self.read)
        self.read += len(piece)
        return piece

    def close(self) -> None:
        self._file.close()


class Backlog:
    """What was received and not read yet, first in, first out."""

    def __init__(self, folder: Path | None, memory: int = MEMORY) -> None:
        self._folder = folder
        self._most = max(2, memory // BLOCK)
        self._parts: deque[_Block | _File] = deque()
        self._made = 1
        self._free = [_Block()]
        self.size = 0
        """Bytes that wait."""
        self.disk = 0
        """Bytes that files take."""
        self.error: OSError | None = None
        """Why the disk takes nothing, if it does not."""

    def __bool__(self) -> bool:
        return self.size > 0

    @property
    def full(self) -> bool:
        """Whether nothing more should be received for now."""
        return self.disk >= DISK or self.error is not None

    @property
    def room(self) -> memoryview:
        """Where to receive; say with `received` how much of it was filled."""
        return self._free[-1].view

    def received(self, size: int) -> None:
        """Keep what was received."""
        block = self._free[-1]
        self.size += size
        if len(self._free) == 1 and self._made < self._most:
            self._made += 1
            self._free.insert(0, _Block())
        if len(self._free) == 1:
            try:
                self._write(block.view[:size])
                return
            except OSError as error:  # this much waits in memory nevertheless, and nothing more is received
                self.error = error
                self._free.insert(0, _Block())
        self._free.pop()
        block.size, block.read = size, 0
        self._parts.append(block)

    def _write(self, data: memoryview) -> None:
        last = self._parts[-1]
        if not isinstance(last, _File) or last.size >= FILE:
            last = _File(self._folder)
            self._parts.append(last)
        last.write(data)
        self.disk += len(data)

    def take(self) -> bytes | memoryview:
        """Give a piece of what came first, good until the next call; nothing if there is nothing."""
        while self._parts:
            first = self._parts[0]
            if piece := first.take():
                self.size -= len(piece)
                return piece
            self._parts.popleft()
            if isinstance(first, _File):
                self.disk -= first.size
                first.close()
            else:
                self._free.insert(0, first)
        self.error = None  # there may be room the next time
        return b""

    def close(self) -> None:
        """Give the files back."""
        for part in self._parts:
            if isinstance(part, _File):
                part.close()
        self._parts.clear()
        self.size = self.disk = 0
