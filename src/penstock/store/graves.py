"""Which sequences are dead: a bit for each, in pieces of 2,048, one behind the other in their order.

A piece is its first sequence (8 bytes, little-endian, a multiple of 2,048) and 256 bytes of bits. So the index of a
store has them, too, and no distance between two of them takes room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["PIECE", "SPAN", "Graves", "alive_runs", "is_alive_between", "members", "pieces"]

SPAN = 2048
PIECE = 8 + SPAN // 8
_ALL = (1 << SPAN) - 1


class Graves:
    """A set of sequences that grows."""

    def __init__(self, packed: bytes = b"") -> None:
        self._pieces = dict(pieces(packed))

    def __contains__(self, sequence: int) -> bool:
        return bool(self._pieces.get(sequence // SPAN * SPAN, 0) >> sequence % SPAN & 1)

    def piece(self, base: int) -> int:
        """Give the bits of the piece that begins at a sequence."""
        return self._pieces.get(base, 0)

    def add(self, sequences: Iterable[int]) -> None:
        """Take more sequences in."""
        base, bits = -1, 0
        for sequence in sequences:  # neighbours come together, mostly: a piece is put back when another one is wanted
            if sequence // SPAN * SPAN != base:
                if bits:
                    self._pieces[base] = bits
                base = sequence // SPAN * SPAN
                bits = self._pieces.get(base, 0)
            bits |= 1 << sequence % SPAN
        if bits:
            self._pieces[base] = bits

    def among(self, present: bytes) -> tuple[bytes, int, int, int]:
        """Bury some of the sequences that are present, which are packed as the dead are.

        Gives the dead ones of them, packed, how many are alive, and the first and the last of those.
        """
        dead, count, first, last = [], 0, 0, 0
        for base, bits in pieces(present):
            buried = self._pieces.get(base, 0) & bits
            if buried:
                dead.append(pack(base, buried))
            if alive := bits & ~buried:
                count += alive.bit_count()
                first = first or base + (alive & -alive).bit_length() - 1
                last = base + alive.bit_length() - 1
        return b"".join(dead), count, first, last


def pieces(packed: bytes) -> Iterator[tuple[int, int]]:
    """Give the first sequence and the bits of each piece."""
    for at in range(0, len(packed), PIECE):
        yield int.from_bytes(packed[at : at + 8], "little"), int.from_bytes(packed[at + 8 : at + PIECE], "little")


def members(packed: bytes, end: int = 1 << 62) -> Iterator[int]:
    """Give the sequences that are packed, up to an end."""
    for base, bits in pieces(packed):
        while bits and base < end:
            lowest = (bits & -bits).bit_length() - 1
            if base + lowest >= end:
                return
            yield base + lowest
            bits &= bits - 1


def pack(base: int, bits: int) -> bytes:
    """Write a piece."""
    return base.to_bytes(8, "little") + bits.to_bytes(SPAN // 8, "little")


def is_alive_between(packed: bytes, start: int, end: int) -> bool:
    """Tell whether a sequence of [start, end) is not dead."""
    for base, bits in pieces(packed):
        if base + SPAN <= start:
            continue
        if base > start:
            break
        alive = ~bits & _ALL & ~((1 << start - base) - 1)
        if alive:
            return base + (alive & -alive).bit_length() - 1 < end
        start = base + SPAN
    return start < end


def alive_runs(present: bytes, dead: Graves, first: int, last: int) -> list[tuple[int, int]]:
    """Give the stretches of sequences that are present and not dead, from `first` to `last`, ends included."""
    found: list[tuple[int, int]] = []
    for base, bits in pieces(present):
        alive = bits & ~dead.piece(base)
        if base < first:
            alive &= ~((1 << first - base) - 1)
        if base + SPAN > last + 1:
            alive &= (1 << max(last + 1 - base, 0)) - 1
        while alive:
            start = (alive & -alive).bit_length() - 1
            length = ((~(alive >> start)) & -(~(alive >> start))).bit_length() - 1
            begin, stop = base + start, base + start + length - 1
            if found and found[-1][1] + 1 == begin:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((begin, stop))
            alive &= ~(((1 << length) - 1) << start)
    return found
