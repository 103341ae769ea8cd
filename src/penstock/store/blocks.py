"""A block file, unpacked if it is compressed.

A compressed block is the word `cmp`, the kind (1: S2), the size of what it becomes as a number of variable length, the
compressed records without the last checksum, and that checksum (8 bytes) as it is.
"""

from __future__ import annotations

from penstock.store.s2 import decompress

__all__ = ["LARGEST", "unpack_block"]

_S2 = 1
_CHECKSUM = 8
LARGEST = 256 << 20  # bytes; a server begins a new block at 8 MB, and the last message of one may have 32


def unpack_block(content: bytearray, room: bytearray | None = None) -> bytearray:
    """Give the records of a block; ValueError if it is not a block that a server writes.

    What is compressed is unpacked in `room`, if that is given.
    """
    if len(content) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    if content[:3] != b"cmp" or len(content) < 5 + _CHECKSUM:
        return content
    if content[3] != _S2:
        raise ValueError(f"it is compressed in the unknown way {content[3]}")
    size, place = 0, 4
    while True:
        byte = content[place]
        size |= (byte & 127) << 7 * (place - 4)
        place += 1
        if byte < 128:
            break
        if place > 13 or place >= len(content):
            raise ValueError("it does not say its size")
    if size > LARGEST:
        raise ValueError(f"it would become {size} bytes")
    records = decompress(content, place, len(content) - _CHECKSUM, size, room)
    records += content[-_CHECKSUM:]
    if len(records) != size:
        raise ValueError(f"it becomes {len(records)} bytes and not {size}")
    return records
