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
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.penstock.store.checksums import crc
else:
    from penstock.store.checksums import crc

__all__ = ["COMPILED", "LARGEST", "Broken", "becomes", "decompress", "resize", "unpack_piece"]

COMPILED: bool = bool(cython.compiled)

LARGEST = 4 << 20  # what a piece may become: S2's own limit
_LONGEST = LARGEST + LARGEST // 6 + 64
_WORDS = (b"S2sTwO", b"sNaPpY")


class Broken(ValueError):
    """Bytes that are not S2, or not what their CRC says."""


def decompress(
    data: bytearray, start: int = 0, end: int = -1, limit: int = 1 << 30, room: bytearray | None = None
) -> bytearray:
    """Give what the whole stream `data[start:end]` becomes, `limit` bytes at most; in `room`, if that is given."""
    found, written, begun = bytearray() if room is None else room, 0, False
    end = len(data) if end < 0 else end
    while start < end:
        stop = start + 4 + int.from_bytes(data[start + 1 : start + 4], "little")
        kind = data[start]
        if kind != 0xFF and not begun:
            raise Broken("it does not begin as S2 does")
        if kind <= 1 and stop - start - 4 > _LONGEST:
            raise Broken(f"a piece has {stop - start - 4} bytes, more than any may have")
        if end - start < 4 or stop > end:
            raise Broken(f"it ends in the middle of a piece, {end - start} bytes into it")
        if kind == 0xFF:
            if data[start + 4 : stop] not in _WORDS:
                raise Broken("it does not begin as S2 does")
            begun = True
        elif kind < 0x80:
            size = becomes(data, start, stop)
            if written + size > limit:  # a few bytes may become megabytes, and what is too much is never made
                raise Broken(f"it becomes more than {limit} bytes")
            if written + size > len(found):
                resize(found, written + size)
            unpack_piece(data, start, stop, found, written)
            written += size
        start = stop
    resize(found, written)
    return found


def resize(buffer: bytearray, size: int) -> None:
    """Make a buffer so large; what is new in it may be anything."""
    if cython.compiled:
        PyByteArray_Resize(buffer, size)
    elif size < len(buffer):
        del buffer[size:]
    else:
        buffer += bytes(size - len(buffer))


def becomes(data: bytearray, start: int, end: int) -> int:
    """Give how many bytes the piece `data[start:end]` says that it becomes, of which the beginning is enough."""
    kind = data[start]
    if kind > 1:
        raise Broken(f"it has a piece of the unknown kind {kind}")
    if end - start < 8:
        raise Broken("a piece has no CRC")
    size = (
        block_size(data, start + 8, end)[0] if kind == 0 else int.from_bytes(data[start + 1 : start + 4], "little") - 4
    )
    if not 0 <= size <= LARGEST:
        raise Broken(f"a piece becomes {size} bytes, more than any may")
    return size


def block_size(data: bytearray, start: int, end: int) -> tuple[int, int]:
    """Read what the block that begins at `start` becomes, and where its steps begin."""
    size = shift = 0
    while start < end and shift <= 28:
        byte = data[start]
        start += 1
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return size, start
    raise Broken("a block has no size")


def unpack_piece(data: bytearray, start: int, end: int, target: bytearray, place: int) -> None:
    """Write what the piece `data[start:end]` becomes at a place of `target`, which has room for it.

    Nobody else may have the two meanwhile: the compiled form lets go of Python's lock.
    """
    size = becomes(data, start, end)
    is_block = data[start] == 0
    begin = block_size(data, start + 8, end)[1] if is_block else start + 8
    told = int.from_bytes(data[start + 4 : start + 8], "little")
    if size > len(target) - place or (not is_block and end - begin != size):
        raise Broken("a piece has not the size that it says")
    written = value = 0
    if cython.compiled:
        source = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(data))
        goal = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(target)) + place
        with cython.nogil:
            if is_block:
                written = steps(source, begin, end, goal, size)
            else:
                memcpy(goal, source + begin, size)
                written = size
            value = crc(goal, 0, size)
        value = value >> 15 | value << 17
    else:
        if is_block:
            made = bytearray(size)
            written = steps(data, begin, end, made, size)
            target[place : place + size] = made
        else:
            target[place : place + size] = data[begin:end]
            written = size
        value = crc(target, place, place + size)
        value = value >> 15 | value << 17 & 0xFFFFFFFF
    if written != size:
        raise Broken("a block is broken")
    if told != (value + 0xA282EAD8) & 0xFFFFFFFF:
        raise Broken("a piece is not what its CRC says")


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
            # In C, four bytes with the highest bit set make a negative number.
            if size < 1 or size > room - written or size > end - place:
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
