# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""S2, the compression of backups and blocks, read: a stream of pieces, each with the CRC of what it becomes.

A stream is pieces, one behind the other, and the first one says so::

    kind (1)  size (3, little-endian)  content
    ff        the words S2sTwO or sNaPpY
    00        CRC (4), then a compressed block
    01        CRC (4), then bytes as they are
    80 to fe  to be passed over

A block is the size of what it becomes, as a variable-length number, and then steps. The two low bits of a step's first
byte say what it is: bytes that follow (0), or a copy of what was written before, by an offset of 11 (1), 16 (2) or 32
bits (3). An offset of 11 bits that is 0 means the offset of the copy before; its size may then stand behind.
The CRC is CRC-32C, turned by 15 bits, plus a constant.
"""

from __future__ import annotations

from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy
    from cython.cimports.penstock.store.checksums import crc
else:
    from penstock.store.checksums import crc

__all__ = ["COMPILED", "Broken", "Pieces", "decompress"]

COMPILED: bool = bool(cython.compiled)

LARGEST = 4 << 20  # what a piece may become: S2's own limit
_WORDS = (b"S2sTwO", b"sNaPpY")


class Broken(ValueError):
    """Bytes that are no S2, or not what their CRC says."""


class Pieces:
    """Takes the bytes of a stream as they come and gives what they become, piece by piece."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._begun = False

    def feed(self, content: bytes) -> list[bytearray]:
        """Take bytes, give what whole pieces became."""
        self._waiting += content
        found, position, waiting = [], 0, self._waiting
        while len(waiting) - position >= 4:
            kind = waiting[position]
            if kind != 0xFF and not self._begun:
                raise Broken("it does not begin as S2 does")
            size = int.from_bytes(waiting[position + 1 : position + 4], "little")
            if kind <= 1 and size > LARGEST + LARGEST // 6 + 64:
                raise Broken(f"a piece has {size} bytes, more than any may have")
            if len(waiting) - position < 4 + size:
                break
            piece = self._piece(kind, waiting, position + 4, position + 4 + size)
            if piece is not None:
                found.append(piece)
            position += 4 + size
        del waiting[:position]
        return found

    def end(self) -> None:
        """Say that nothing more comes."""
        if self._waiting:
            raise Broken(f"it ends in the middle of a piece, {len(self._waiting)} bytes into it")

    def _piece(self, kind: int, data: bytearray, start: int, end: int) -> bytearray | None:
        if kind == 0xFF:
            if data[start:end] not in _WORDS:
                raise Broken("it does not begin as S2 does")
            self._begun = True
            return None
        if kind >= 0x80:
            return None
        if kind > 1:
            raise Broken(f"it has a piece of the unknown kind {kind}")
        if end - start < 4:
            raise Broken("a piece has no CRC")
        content = unpack(data, start + 4, end) if kind == 0 else data[start + 4 : end]
        if len(content) > LARGEST:
            raise Broken(f"a piece becomes {len(content)} bytes, more than any may")
        told = int.from_bytes(data[start : start + 4], "little")
        if told != masked(content):
            raise Broken("a piece is not what its CRC says")
        return content


def decompress(content: Any, limit: int = 1 << 30) -> bytearray:
    """Give what a whole stream becomes, which may be `limit` bytes at most."""
    pieces, found, place = Pieces(), bytearray(), 0
    while place < len(content):  # one by one: a few bytes may become megabytes, and what is too much is never made
        stop = place + 4 + int.from_bytes(content[place + 1 : place + 4], "little")
        for piece in pieces.feed(content[place:stop]):
            if len(found) + len(piece) > limit:
                raise Broken(f"it becomes more than {limit} bytes")
            found += piece
        place = stop
    pieces.end()
    return found


def masked(content: bytearray) -> int:
    """Give the CRC as a piece has it."""
    if cython.compiled:
        value = crc(cython.cast(cython.p_uchar, PyByteArray_AS_STRING(content)), 0, len(content))
        return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
    else:
        value = crc(content, 0, len(content))
        return ((value >> 15 | value << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def unpack(data: bytearray, start: int, end: int) -> bytearray:
    """Give what the block `data[start:end]` becomes."""
    size = shift = 0
    while True:
        if start >= end or shift > 28:
            raise Broken("a block has no size")
        byte = data[start]
        start += 1
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > LARGEST:
        raise Broken(f"a block becomes {size} bytes, more than any may")
    target = bytearray(size)
    if cython.compiled:
        source = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(data))
        written = steps(source, start, end, cython.cast(cython.p_uchar, PyByteArray_AS_STRING(target)), size)
    else:
        written = steps(data, start, end, target, size)
    if written != size:
        raise Broken("a block is broken")
    return target


def steps(data: Any, place: int, end: int, target: Any, room: int) -> int:
    """Take the steps of a block; give how many bytes they wrote, -1 if one of them is broken."""
    written = offset = 0
    while place < end:
        tag = data[place]
        kind = tag & 3
        place += 1
        if kind == 0:
            size = tag >> 2
            if size >= 60:
                more = size - 59
                if end - place < more:
                    return -1
                size = 0
                for part in range(more):
                    size |= data[place + part] << (8 * part)
                place += more
            size += 1
            if size > room - written or size > end - place:
                return -1
            if cython.compiled:
                memcpy(target + written, data + place, size)
            else:
                target[written : written + size] = data[place : place + size]
            place += size
            written += size
            continue
        if kind == 1:
            if place >= end:
                return -1
            near = (tag & 0xE0) << 3 | data[place]
            place += 1
            size = tag >> 2 & 7
            if near:
                offset = near
            elif size >= 5:
                more = size - 4
                if end - place < more:
                    return -1
                size = 4 if more == 1 else 256 if more == 2 else 65536
                for part in range(more):
                    size += data[place + part] << (8 * part)
                place += more
            size += 4
        else:
            more = 2 if kind == 2 else 4
            if end - place < more:
                return -1
            offset = 0
            for part in range(more):
                offset |= data[place + part] << (8 * part)
            place += more
            size = 1 + (tag >> 2)
        if offset <= 0 or offset > written or size > room - written:
            return -1
        if cython.compiled:
            if offset >= size:
                memcpy(target + written, target + written - offset, size)
            else:  # it copies what it writes, byte by byte
                for part in range(size):
                    target[written + part] = target[written - offset + part]
        elif offset >= size:
            target[written : written + size] = target[written - offset : written - offset + size]
        else:
            again = bytes(target[written - offset : written])
            target[written : written + size] = (again * (size // offset + 1))[:size]
        written += size
    return written
