"""A compressed file as if it were not: any place of it can be read, and only what is wanted is unpacked."""

from __future__ import annotations

import io
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from penstock.store.s2 import Broken, becomes, resize, unpack_piece

__all__ = ["Unpacked"]

_BEGIN = b"\xff\x06\x00\x00S2sTwO"


@dataclass(frozen=True)
class _Piece:
    offset: int
    size: int
    position: int
    length: int


class Unpacked(io.RawIOBase):
    """What an S2 stream becomes, as a file to read; `anchor`, from another look at it, leaves out what is before."""

    def __init__(self, file: Any, anchor: tuple[int, int] = (0, 0)) -> None:
        self._file = file
        self._pieces: list[_Piece] = []
        self._starts: list[int] = []
        self._next = anchor
        self._place = anchor[1]
        self._held, self._content = -1, bytearray()
        self._packed = bytearray()
        self._end = file.seek(0, io.SEEK_END)

    @property
    def size(self) -> int:
        """How many bytes it becomes."""
        while self._find():
            pass
        return self._next[1]

    def anchor(self, place: int) -> tuple[int, int]:
        """Give where a reader may begin that wants nothing from before a place: in the file, and in what it becomes."""
        number = self._number(place)
        return self._next if number is None else (self._pieces[number].offset, self._pieces[number].position)

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
        base = self.size if whence == io.SEEK_END else self._place if whence == io.SEEK_CUR else 0
        self._place = max(base + offset, 0)
        return self._place

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]  # any buffer will do
        """Read into a buffer what one piece has."""
        number = self._number(self._place)
        if number is None or not len(target):
            return 0
        piece = self._pieces[number]
        if self._held != number:
            self._held = -1
            resize(self._content, piece.length)
            self._unpack(piece, self._content, 0)
            self._held = number
        start = self._place - piece.position
        with memoryview(self._content) as content:
            taken = content[start : start + len(target)]
            target[: len(taken)] = taken
            self._place += len(taken)
            return len(taken)

    def append_to(self, target: bytearray, end: int) -> bool:
        """Put what one piece has, up to an end, behind what a buffer holds; tell whether there was anything."""
        number = self._number(self._place) if self._place < end else None
        if number is None:
            return False
        piece, size = self._pieces[number], len(target)
        if self._place == piece.position and piece.position + piece.length <= end:
            resize(target, size + piece.length)
            self._unpack(piece, target, size)
            self._place += piece.length
        else:
            resize(target, size + min(piece.position + piece.length, end) - self._place)
            with memoryview(target) as view:
                self.readinto(view[size:])
        return True

    def close(self) -> None:
        """Close the file below."""
        self._file.close()
        super().close()

    def _number(self, place: int) -> int | None:
        """Give which piece a place is in; None if it is behind the last one."""
        while place >= self._next[1] and self._find():
            pass
        if place >= self._next[1]:
            return None
        return bisect_right(self._starts, place) - 1

    def _find(self) -> bool:
        """Find one piece more; what it becomes stands at its beginning, so that nothing is unpacked."""
        while self._next[0] < self._end:
            offset, position = self._next
            self._file.seek(offset)
            head = bytearray(self._file.read(13))
            kind, length = head[0], int.from_bytes(head[1:4], "little")
            if len(head) < 4 or offset + 4 + length > self._end:
                raise Broken("it ends in the middle of a piece")
            if offset == 0 and head[:10] not in (_BEGIN, b"\xff\x06\x00\x00sNaPpY"):
                raise Broken("it does not begin as S2 does")
            made = 0 if kind >= 0x80 else becomes(head, 0, min(len(head), 4 + length))
            self._next = (offset + 4 + length, position + made)
            if made:
                self._pieces.append(_Piece(offset, 4 + length, position, made))
                self._starts.append(position)
                return True
        return False

    def _unpack(self, piece: _Piece, target: bytearray, place: int) -> None:
        """Unpack a piece to a place of a buffer."""
        self._file.seek(piece.offset)
        resize(self._packed, piece.size)
        if self._file.readinto(self._packed) != piece.size:
            raise Broken("it ends in the middle of a piece")
        if becomes(self._packed, 0, piece.size) != piece.length:
            raise Broken("a piece does not become what it says")
        unpack_piece(self._packed, 0, piece.size, target, place)
