"""Where the bytes of a block are: in a file of its own, or in the middle of a compressed backup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.store.blocks import LARGEST, unpack_block
from penstock.store.opening import open_file
from penstock.store.s2 import Broken
from penstock.store.unpacked import Unpacked

__all__ = ["BlockPlace", "InBackup", "InFile"]


class BlockPlace(Protocol):
    """Where a block is; it is carried to tasks."""

    @property
    def shown(self) -> str:
        """How errors call it."""

    def load(self) -> bytearray:
        """Read the records; ValueError if they cannot be unpacked, OSError if they cannot be read."""


@dataclass(frozen=True)
class InFile:
    """A block in a file."""

    path: str

    @property
    def shown(self) -> str:
        """How errors call it."""
        return self.path

    def load(self) -> bytearray:
        """Read the records."""
        with open_file(self.path) as file:
            return unpack_block(bytearray(file.read(LARGEST + 1)))

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

    def load(self) -> bytearray:
        """Read the records."""
        return unpack_block(self.read())

    def read(self) -> bytearray:
        """Read the bytes."""
        content = bytearray()
        if self.size > LARGEST:
            raise Broken(f"it has more than {LARGEST} bytes")
        with Unpacked(open_file(self.path), self.anchor) as file:
            file.seek(self.offset)
            while len(content) < self.size:
                if not (part := file.read(self.size - len(content))):
                    raise Broken("it ends too early")
                content += part
        return content
