"""A compressed file as if it were not: any place of it can be read, and only what is wanted is unpacked."""

from __future__ import annotations

import io
from bisect import bisect_right
from dataclasses import dataclass
from typing import BinaryIO

from penstock.store.s2 import Broken, Pieces

__all__ = ["Unpacked"]

_BEGIN = b"\xff\x06\x00\x00S2sTwO"


@dataclass(frozen=True)
class _Piece:
    offset: int
    size: int
    position: int
    length: int


class Unpacked(io.RawIOBase):
    """What an S2 stream becomes, as a file to read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pieces = _find_pieces(file)
        self._starts = [piece.position for piece in self._pieces]
        self._place = 0
        self._held: tuple[int, bytearray] = (-1, bytearray())
        self.size = self._pieces[-1].position + self._pieces[-1].length if self._pieces else 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Give the place."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def readinto(self, target: bytearray) -> int:  # type: ignore[override]  # any buffer will do
        """Read into a buffer what one piece has."""
        if self._place >= self.size or not len(target):
            return 0
        number = bisect_right(self._starts, self._place) - 1
        content = self._unpack(number)
        start = self._place - self._pieces[number].position
        taken = content[start : start + len(target)]
        target[: len(taken)] = taken
        self._place += len(taken)
        return len(taken)

    def close(self) -> None:
        """Close the file below."""
        self._file.close()
        super().close()

    def _unpack(self, number: int) -> bytearray:
        if self._held[0] != number:
            piece = self._pieces[number]
            self._file.seek(piece.offset)
            found = Pieces()
            found.feed(_BEGIN)
            self._held = (number, found.feed(_exactly(self._file, piece.size))[0])
        return self._held[1]


def _find_pieces(file: BinaryIO) -> list[_Piece]:
    """Go from piece to piece; what each becomes stands at its beginning, so that nothing is unpacked."""
    found: list[_Piece] = []
    offset = position = 0
    size = file.seek(0, io.SEEK_END)
    while offset < size:
        file.seek(offset)
        head = file.read(13)
        kind, length = head[0], int.from_bytes(head[1:4], "little")
        if len(head) < 4 or offset + 4 + length > size:
            raise Broken("it ends in the middle of a piece")
        if offset == 0 and head[:10] not in (_BEGIN, b"\xff\x06\x00\x00sNaPpY"):
            raise Broken("it does not begin as S2 does")
        if kind <= 1:
            becomes = _number(head[8:13]) if kind == 0 else length - 4
            found.append(_Piece(offset, 4 + length, position, becomes))
            position += becomes
        elif kind < 0x80:
            raise Broken(f"it has a piece of the unknown kind {kind}")
        offset += 4 + length
    return found


def _number(content: bytes) -> int:
    value = 0
    for place, byte in enumerate(content):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value
    raise Broken("a block has no size")


def _exactly(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise Broken("it ends in the middle of a piece")
    return content
