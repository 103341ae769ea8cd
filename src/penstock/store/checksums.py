# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""The two checksums of a store: HighwayHash-64 over each record, CRC-32C over each compressed piece.

HighwayHash has a state of four lanes in each of four rows, and takes 32 bytes at a step; what is left at the end is
spread over a last step, and four steps over its own state finish it. The C types stand in checksums.pxd, which only the
compiler reads; in the plain form every sum and product is cut to 64 bits, which the compiler has for nothing. Both
are most of what reading a store costs, so the compiled form uses the wide instructions of processors that have them
(wide.pxd).
"""

from __future__ import annotations

from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.penstock.store.wide import penstock_crc, penstock_highway, penstock_is_wide
else:
    _wide: Any = False
    _init: Any = ()  # arrays of C, which the compiled form fills below
    _tables: Any = ()

__all__ = ["COMPILED", "Highway", "crc32c"]

COMPILED: bool = bool(cython.compiled)

_ALL = 0xFFFFFFFFFFFFFFFF
_LOW = 0xFFFFFFFF
_FIRST = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_SECOND = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)


class Highway:
    """HighwayHash-64 with a key of 32 bytes; `wide` may be false to do without wide instructions."""

    def __init__(self, key: bytes, wide: bool = True) -> None:
        if len(key) != 32:
            raise ValueError("A key has 32 bytes.")
        self.wide = wide and _wide
        if not cython.compiled:
            self.key, self.state, self.last = [0] * 4, [0] * 16, bytearray(32)
        for lane in range(4):
            self.key[lane] = int.from_bytes(key[8 * lane : 8 * lane + 8], "little")

    def of(self, content: bytes) -> int:
        """Give the checksum of some bytes."""
        if cython.compiled:
            view = cython.cast(cython.p_uchar, content)
            return self.digest(view, view, 0, len(content))
        else:
            return self.digest(content, content, 0, len(content))

    def digest(self, first: Any, data: Any, start: int, end: int) -> int:
        """Give the checksum of `data[start:end]`; if it is 32 bytes or more, `first` is read for the first 32."""
        if cython.compiled and self.wide:
            return penstock_highway(_init, self.key, first, data + start, end - start)
        state = self.state
        for lane in range(4):
            key = self.key[lane]
            if cython.compiled:
                state[lane] = _init[lane] ^ key
                state[4 + lane] = _init[4 + lane] ^ (key >> 32 | key << 32)
                state[8 + lane] = _init[lane]
                state[12 + lane] = _init[4 + lane]
            else:
                state[lane] = _FIRST[lane] ^ key
                state[4 + lane] = _SECOND[lane] ^ (key >> 32 | (key << 32 & _ALL))
                state[8 + lane] = _FIRST[lane]
                state[12 + lane] = _SECOND[lane]
        if end - start >= 32:
            self._step(first, 0)
            start += 32
        while end - start >= 32:
            self._step(data, start)
            start += 32
        if end > start:
            self._rest(data, start, end - start)
        self._turn()
        self._turn()
        self._turn()
        self._turn()
        if cython.compiled:
            return state[0] + state[4] + state[8] + state[12]
        else:
            return (state[0] + state[4] + state[8] + state[12]) & _ALL

    def _step(self, data: Any, start: int) -> int:
        """Take 32 bytes."""
        word = 0
        if cython.compiled:
            for lane in range(4):
                memcpy(cython.address(word), data + start + 8 * lane, 8)
                self._mix(lane, word)
        else:
            for lane in range(4):
                self._mix(lane, int.from_bytes(data[start + 8 * lane : start + 8 * lane + 8], "little"))
        return self._merge()

    def _mix(self, lane: int, word: int) -> int:
        state = self.state
        if cython.compiled:
            state[4 + lane] += word + state[8 + lane]
            state[8 + lane] ^= cython.cast(cython.uint, state[4 + lane]) * (state[lane] >> 32)
            state[lane] += state[12 + lane]
            state[12 + lane] ^= cython.cast(cython.uint, state[lane]) * (state[4 + lane] >> 32)
        else:
            state[4 + lane] = (state[4 + lane] + word + state[8 + lane]) & _ALL
            state[8 + lane] ^= (state[4 + lane] & 0xFFFFFFFF) * (state[lane] >> 32)
            state[lane] = (state[lane] + state[12 + lane]) & _ALL
            state[12 + lane] ^= (state[lane] & 0xFFFFFFFF) * (state[4 + lane] >> 32)
        return 0

    def _merge(self) -> int:
        self._zip(4, 0)
        self._zip(6, 2)
        self._zip(0, 4)
        return self._zip(2, 6)

    def _zip(self, source: int, target: int) -> int:
        """Add two lanes, their bytes shuffled, to two others."""
        state = self.state
        low, high = state[source], state[source + 1]
        # Each byte is shifted to where it belongs: for a mask above 31 bits Cython would leave C.
        first = (
            low & 0xFF0000
            | ((low & 0xFF00) << 32)
            | (low >> 24 & 0xFF)
            | ((high >> 32 & 0xFF) << 8)
            | ((low >> 40 & 0xFF) << 24)
            | ((high >> 48 & 0xFF) << 32)
            | (high >> 56 << 48)
            | ((low & 0xFF) << 56)
        )
        second = (
            high & 0xFF0000
            | (low >> 56 << 56)
            | ((high & 0xFF) << 48)
            | ((high & 0xFF00) << 24)
            | (high >> 24 & 0xFF)
            | ((low >> 32 & 0xFF) << 8)
            | ((high >> 40 & 0xFF) << 24)
            | ((low >> 48 & 0xFF) << 40)
        )
        if cython.compiled:
            state[target] += first
            state[target + 1] += second
        else:
            state[target] = (state[target] + first) & _ALL
            state[target + 1] = (state[target + 1] + second) & _ALL
        return 0

    def _rest(self, data: Any, start: int, size: int) -> int:
        """Take the last bytes, fewer than 32."""
        state, last, whole, odd = self.state, self.last, size & ~3, size & 3
        for lane in range(4):
            word = state[4 + lane]
            low, high = word & _LOW, word >> 32
            low = (low << size | low >> (32 - size)) & _LOW
            high = (high << size | high >> (32 - size)) & _LOW
            state[4 + lane] = high << 32 | low
            if cython.compiled:
                state[lane] += (cython.cast(cython.ulonglong, size) << 32) + size
            else:
                state[lane] = (state[lane] + (size << 32) + size) & _ALL
        for place in range(32):
            last[place] = data[start + place] if place < whole else 0
        if size & 16:
            for place in range(4):
                last[28 + place] = data[start + size - 4 + place]
        elif odd:
            last[16] = data[start + whole]
            last[17] = data[start + whole + (odd >> 1)]
            last[18] = data[start + size - 1]
        return self._step(last, 0)

    def _turn(self) -> int:
        """Take the state itself, its lanes and their halves exchanged."""
        state = self.state
        low, high, third, fourth = state[2], state[3], state[0], state[1]
        if cython.compiled:
            self._mix(0, low >> 32 | low << 32)
            self._mix(1, high >> 32 | high << 32)
            self._mix(2, third >> 32 | third << 32)
            self._mix(3, fourth >> 32 | fourth << 32)
        else:
            for lane, word in enumerate((low, high, third, fourth)):
                self._mix(lane, word >> 32 | (word << 32 & _ALL))
        return self._merge()


def crc32c(content: bytes, wide: bool = True) -> int:
    """Give the CRC-32C (Castagnoli) of some bytes; `wide` may be false to do without wide instructions."""
    if cython.compiled:
        return crc(cython.cast(cython.p_uchar, content), 0, len(content), wide)
    else:
        return crc(content, 0, len(content))


def crc(data: Any, start: int, end: int, wide: bool = True) -> int:
    """Give the CRC-32C of `data[start:end]`."""
    value, word = _LOW, 0
    if cython.compiled:
        if wide and _wide:
            return penstock_crc(data + start, end - start)
        while end - start >= 8:
            memcpy(cython.address(word), data + start, 8)
            word ^= value
            value = (
                _tables[7][word & 255]
                ^ _tables[6][word >> 8 & 255]
                ^ _tables[5][word >> 16 & 255]
                ^ _tables[4][word >> 24 & 255]
                ^ _tables[3][word >> 32 & 255]
                ^ _tables[2][word >> 40 & 255]
                ^ _tables[1][word >> 48 & 255]
                ^ _tables[0][word >> 56]
            )
            start += 8
        while start < end:
            value = _tables[0][(value ^ data[start]) & 255] ^ value >> 8
            start += 1
    else:
        for byte in data[start:end]:
            value = _TABLE[(value ^ byte) & 255] ^ value >> 8
    return value ^ _LOW


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _prepare() -> int:
    """Fill the tables that C reads: the eighth says what a byte does that seven others follow."""
    global _wide
    if cython.compiled:
        _wide = penstock_is_wide()
        for lane in range(4):
            _init[lane] = _FIRST[lane]
            _init[4 + lane] = _SECOND[lane]
        for place in range(256):
            value = _TABLE[place]
            for row in range(8):
                _tables[row][place] = value
                value = _TABLE[value & 255] ^ value >> 8
    return 0


_prepare()
