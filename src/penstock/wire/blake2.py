# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""Digests of rows in Arrow's layout: BLAKE2b of 16 bytes over each, with no Python object a row.

What is digested of a row is what is stored of it, in lines, so that no two different rows are the same bytes::

    <subject>
    <header name>: <value>
    ...
    (an empty line)
    <payload>

Compiled, this is BLAKE2b itself (RFC 7693); plain Python asks hashlib, which gives the same bytes. The C types stand in
blake2.pxd, which only the compiler reads.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy, memset
    from cython.cimports.penstock.wire.frames import Rows
else:
    from penstock.wire.frames import Rows

__all__ = ["COMPILED", "SIZE", "row_digests"]

COMPILED: bool = bool(cython.compiled)
SIZE = 16  # bytes of a digest
# The fractions of the square roots of the first primes, 64 bits of each.
FIRST = (
    0x6A09E667F3BCC908,
    0xBB67AE8584CAA73B,
    0x3C6EF372FE94F82B,
    0xA54FF53A5F1D36F1,
    0x510E527FADE682D1,
    0x9B05688C2B3E6C1F,
    0x1F83D9ABFB41BD6B,
    0x5BE0CD19137E2179,
)
# In which order the sixteen words of a block are mixed in, in each of ten rounds; the last two begin again.
ORDER: bytes = bytes.fromhex(
    "000102030405060708090a0b0c0d0e0f"
    "0e0a0408090f0d06010c00020b070503"
    "0b080c0005020f0d0a0e030607010904"
    "070903010d0c0b0e0206050a04000f08"
    "0900050702040a0f0e010b0c0608030d"
    "020c060a000b0803040d07050f0e0109"
    "0c05010f0e0d040a000706030902080b"
    "0d0b070e0c01030905000f040806020a"
    "060f0e090b0300080c020d0701040a05"
    "0a020804070601050f0b090e030c0d00"
)


def row_digests(rows: Rows) -> bytes:
    """Give the digest of each row, one behind the other."""
    if cython.compiled:
        found = bytearray(16 * rows.count)
        target = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(found))
        state = State()
        for row in range(rows.count):
            state.begin()
            state.head(rows, row)
            state.update(rows.payloads.content, rows.payloads.offsets[row], rows.payloads.offsets[row + 1])
            state.finish(target + 16 * row)
        return bytes(found)
    else:
        return b"".join([_digest(rows, row) for row in range(rows.count)])


def _digest(rows: Any, row: int) -> bytes:
    subjects, payloads, names, values = rows.subjects, rows.payloads, rows.names, rows.values
    head = bytearray(subjects.view[subjects.offsets[row] : subjects.offsets[row + 1]])
    head += b"\r\n"
    if rows.has_headers:
        for entry in range(rows.maps[row], rows.maps[row + 1]):
            name = bytes(names.view[names.offsets[entry] : names.offsets[entry + 1]])
            for place in range(rows.lists[entry], rows.lists[entry + 1]):
                value = bytes(values.view[values.offsets[place] : values.offsets[place + 1]])
                head += b"%b: %b\r\n" % (name, value)
    head += b"\r\n"
    state = blake2b(head, digest_size=SIZE)
    state.update(payloads.view[payloads.offsets[row] : payloads.offsets[row + 1]])
    return state.digest()


class State:
    """BLAKE2b in the middle of a row; only compiled code uses it."""

    def __init__(self) -> None:
        if not cython.compiled:
            self.hash, self.first, self.block = [0] * 8, [0] * 8, bytearray(128)  # arrays of C, compiled
        for place in range(8):
            self.first[place] = FIRST[place]
        self.order = cython.cast(cython.p_uchar, ORDER)

    def begin(self) -> int:
        """Begin a row."""
        for place in range(8):
            self.hash[place] = self.first[place]
        self.hash[0] ^= 0x01010000 | 16  # no key, one leaf, the size of a digest
        self.count = 0
        self.filled = 0
        return 0

    def head(self, rows: Rows, row: int) -> int:
        """Add what stands before the payload of a row."""
        names, values = rows.names, rows.values
        self.update(rows.subjects.content, rows.subjects.offsets[row], rows.subjects.offsets[row + 1])
        self.text(b"\r\n", 2)
        if rows.has_headers:
            for entry in range(rows.maps[row], rows.maps[row + 1]):
                for place in range(rows.lists[entry], rows.lists[entry + 1]):
                    self.update(names.content, names.offsets[entry], names.offsets[entry + 1])
                    self.text(b": ", 2)
                    self.update(values.content, values.offsets[place], values.offsets[place + 1])
                    self.text(b"\r\n", 2)
        return self.text(b"\r\n", 2)

    def text(self, content: Any, size: int) -> int:
        """Add a few bytes."""
        return self.update(cython.cast(cython.p_uchar, content), 0, size)

    def update(self, content: Any, start: int, end: int) -> int:
        """Add the bytes from `start` up to `end`."""
        while start < end:
            if self.filled == 128:  # more comes behind it, so it is not the last one
                self.count += 128
                self.compress(False)
                self.filled = 0
            size = min(end - start, 128 - self.filled)
            memcpy(cython.address(self.block[0]) + self.filled, content + start, size)
            self.filled += size
            start += size
        return 0

    def finish(self, target: Any) -> int:
        """Write the digest of all that was added."""
        self.count += self.filled
        memset(cython.address(self.block[0]) + self.filled, 0, 128 - self.filled)
        self.compress(True)
        for place in range(16):
            target[place] = (self.hash[place // 8] >> (8 * (place % 8))) & 255
        return 0

    def compress(self, last: bool) -> int:
        """Mix the block into the state."""
        v, m = cython.declare(cython.ulonglong[16]), cython.declare(cython.ulonglong[16])
        for place in range(16):
            m[place] = 0
            for byte in range(8):
                m[place] |= cython.cast(cython.ulonglong, self.block[8 * place + byte]) << (8 * byte)
        for place in range(8):
            v[place] = self.hash[place]
            v[place + 8] = self.first[place]
        v[12] ^= self.count  # no row has 2^64 bytes
        if last:
            v[14] = ~v[14]
        for turn in range(12):
            order = self.order + 16 * (turn % 10)
            quarter(v, 0, 4, 8, 12, m[order[0]], m[order[1]])
            quarter(v, 1, 5, 9, 13, m[order[2]], m[order[3]])
            quarter(v, 2, 6, 10, 14, m[order[4]], m[order[5]])
            quarter(v, 3, 7, 11, 15, m[order[6]], m[order[7]])
            quarter(v, 0, 5, 10, 15, m[order[8]], m[order[9]])
            quarter(v, 1, 6, 11, 12, m[order[10]], m[order[11]])
            quarter(v, 2, 7, 8, 13, m[order[12]], m[order[13]])
            quarter(v, 3, 4, 9, 14, m[order[14]], m[order[15]])
        for place in range(8):
            self.hash[place] ^= v[place] ^ v[place + 8]
        return 0


def quarter(v: Any, place_a: int, place_b: int, place_c: int, place_d: int, x: int, y: int) -> int:
    """Mix two words of the block into four of the state."""
    a, b, c, d = v[place_a], v[place_b], v[place_c], v[place_d]
    a = a + b + x
    d = (d ^ a) >> 32 | (d ^ a) << 32
    c = c + d
    b = (b ^ c) >> 24 | (b ^ c) << 40
    a = a + b + y
    d = (d ^ a) >> 16 | (d ^ a) << 48
    c = c + d
    b = (b ^ c) >> 63 | (b ^ c) << 1
    v[place_a], v[place_b], v[place_c], v[place_d] = a, b, c, d
    return 0
