"""Where the bytes of a block are: in a file of its own, or in the middle of a compressed backup."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.store.blocks import LARGEST, unpack_block
from penstock.store.opening import open_file
from penstock.store.s2 import Broken, resize
from penstock.store.unpacked import Unpacked

__all__ = ["BlockPlace", "InBackup", "InFile", "Room"]


class Room:
    """Memory to read blocks into, one after the other: new memory for each would have to be cleared by the system."""

    def __init__(self) -> None:
        self.packed = bytearray()
        self.content = bytearray()


class BlockPlace(Protocol):
    """Where a block is; it is carried to tasks."""

    @property
    def shown(self) -> str:
        """How errors call it."""

    def load(self, room: Room | None = None) -> bytearray:
        """Read the records; ValueError if they cannot be unpacked, OSError if they cannot be read."""


@dataclass(frozen=True)
class InFile:
    """A block in a file."""

    path: str

    @property
    def shown(self) -> str:
        """How errors call it."""
        return self.path

    def load(self, room: Room | None = None) -> bytearray:
        """Read the records."""
        room = room or Room()
        with open_file(self.path) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            readinto: Callable[[memoryview], int] = file.readinto  # type: ignore[attr-defined]  # both kinds have it
            return unpack_block(_filled(room.packed, size, readinto), room.content)

    def head(self, size: int) -> bytes:
        """Read the first bytes of the file."""
        with open_file(self.path) as file:
            return file.read(size)


@dataclass(frozen=True)
class InBackup:
    """A block inside of a backup; its offset counts what comes out of the compression."""

    path: str
    name: str
    offset: int
    size: int
    anchor: tuple[int, int] = (0, 0)
    """Where reading may begin: in the backup, and in what it becomes."""

    @property
    def shown(self) -> str:
        """How errors call it."""
        return f"{self.name} of {self.path}"

    def load(self, room: Room | None = None) -> bytearray:
        """Read the records."""
        room = room or Room()
        return unpack_block(self.read(room.packed), room.content)

    def read(self, target: bytearray | None = None) -> bytearray:
        """Read the bytes, into a buffer if one is given."""
        with Unpacked(open_file(self.path), self.anchor) as file:
            file.seek(self.offset)
            return _filled(bytearray() if target is None else target, self.size, file.readinto)


def _filled(target: bytearray, size: int, readinto: Callable[[memoryview], int]) -> bytearray:
    """Fill a buffer with so many bytes."""
    if size > LARGEST:
        raise Broken(f"it has more than {LARGEST} bytes")
    resize(target, size)
    with memoryview(target) as view:
        place = 0
        while place < size:
            if not (taken := readinto(view[place:])):
                raise Broken("it ends too early")
            place += taken
    return target
