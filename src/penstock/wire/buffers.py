# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""Growing columns in Arrow's layout, and the few steps on bytes that the batch path is made of.

The C types stand in buffers.pxd, which only the compiler reads. If the compiled and the plain form of a step differ,
both stand side by side, and the tests hold them against each other. `data` is a pointer in the compiled form and a
bytearray in the plain one.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
        PyByteArray_Resize,
    )
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.ref import Py_REFCNT
    from cython.cimports.libc.string import memcmp, memcpy

__all__ = ["COMPILED", "Bytes", "Lines", "Numbers", "Strings"]

COMPILED: bool = bool(cython.compiled)

LARGEST = 9223372036854775807
_NARROW = 2147483647
_HUGE = 4 * 1024 * 1024  # bytes from which on new memory is asked for in huge pages: small ones cost more than the copy


class Numbers:
    """A growing column of 64-bit numbers."""

    def __init__(self, room: int) -> None:
        self.count = 0
        self.room = room if room > 16 else 16
        self.content: Any
        if cython.compiled:
            self.content = PyByteArray_FromStringAndSize(cython.NULL, self.room * 8)
            self.items = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self.content))
        else:
            self.content = self.items = array("q")

    def _grow(self) -> int:
        if cython.compiled:
            with cython.gil:  # whoever appends may do so without it
                self.room *= 2
                PyByteArray_Resize(self.content, self.room * 8)
                self.items = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self.content))
        return 0

    def append(self, value: int) -> int:
        """Add a number."""
        if cython.compiled:
            if self.count == self.room:
                self._grow()
            self.items[self.count] = value
        else:
            self.content.append(value)
        self.count += 1
        return 0

    def close(self, bits: int = 64) -> Any:
        """Give the buffer, its numbers 64 or 32 bits wide; the column must not grow after this.

        OverflowError if a number does not fit: an offset that wraps around would be another place of the memory.
        """
        if cython.compiled:
            if bits == 32:
                narrow = cython.cast(cython.p_int, self.items)
                for place in range(self.count):
                    if self.items[place] > _NARROW:
                        raise OverflowError("a number needs more than 32 bits")
                    narrow[place] = cython.cast(cython.int, self.items[place])
            PyByteArray_Resize(self.content, self.count * bits // 8)
            return self.content
        else:
            return self.content if bits == 64 else array("i", self.content)


class Bytes:
    """Growing bytes, written piece by piece."""

    def __init__(self, room: int, spare: list[bytearray] | None = None) -> None:
        self.used = 0
        self.least = room if room > 64 else 64
        self.room = self.least
        if cython.compiled:
            found = used_again(spare, self.room) if spare else None
            # Not cleared: what is given away was written before.
            self.content = PyByteArray_FromStringAndSize(cython.NULL, self.room) if found is None else found
            self.items = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.content))
            if found is None and self.room >= _HUGE:
                penstock_huge_pages(self.items, self.room)  # type: ignore[name-defined]  # noqa: F821  # in buffers.pxd
        else:
            self.content = bytearray()

    def _grow(self, size: int) -> int:
        if cython.compiled:
            with cython.gil:
                self.room = 2 * (self.room + size)
                PyByteArray_Resize(self.content, self.room)
                self.items = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.content))
                if self.room >= _HUGE:
                    penstock_huge_pages(self.items, self.room)  # type: ignore[name-defined]  # noqa: F821
        return 0

    def piece(self, data: Any, start: int, end: int) -> int:
        """Add `data[start:end]`."""
        if cython.compiled:
            if self.used + end - start > self.room:
                self._grow(end - start)
            memcpy(self.items + self.used, data + start, end - start)
        else:
            self.content += data[start:end]
        self.used += end - start
        return 0

    def text(self, text: bytes) -> int:
        """Add a bytes object."""
        return self.piece(text, 0, len(text))

    def number(self, value: int) -> int:
        """Add a number that is not negative, in digits."""
        if cython.compiled:
            size = digits(value)
            if self.used + size > self.room:
                self._grow(size)
            place = self.used + size
            self.used += size
            while size > 0:
                place -= 1
                size -= 1
                self.items[place] = 48 + value % 10
                value //= 10
        else:
            written = b"%d" % value
            self.content += written
            self.used += len(written)
        return 0

    def varint(self, value: int) -> int:
        """Add a number that is not negative, as protobuf writes it: seven bits a byte, the lowest first."""
        if cython.compiled:
            if self.used + 10 > self.room:
                self._grow(10)
            rest = cython.cast(cython.ulonglong, value)
            while rest > 127:
                self.items[self.used] = cython.cast(cython.uchar, rest & 127 | 128)
                self.used += 1
                rest >>= 7
            self.items[self.used] = cython.cast(cython.uchar, rest)
            self.used += 1
        else:
            while value > 127:
                self.content.append(value & 127 | 128)
                value >>= 7
            self.content.append(value)
            self.used = len(self.content)
        return 0

    def copy(self) -> bytes:
        """Give a copy of the bytes and begin anew, in the same place."""
        size, self.used = self.used, 0
        if cython.compiled:
            taken = PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.items), size)
        else:
            taken = bytes(self.content)
            self.content.clear()
        return taken

    def take(self) -> bytearray:
        """Give the bytes and begin anew."""
        content = self.content
        if cython.compiled:
            PyByteArray_Resize(content, self.used)
            if 4 * self.used < self.room:  # room that was wanted once must not be made anew, and cleared, each time
                self.room = 2 * self.used if 2 * self.used > self.least else self.least
            self.content = PyByteArray_FromStringAndSize(cython.NULL, self.room)
            self.items = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.content))
        else:
            self.content = bytearray()
        self.used = 0
        return content


class Strings(Bytes):
    """A growing column of byte strings: offsets that begin with 0, and the bytes themselves."""

    def __init__(self, rows: int, room: int, spare: list[bytearray] | None = None) -> None:
        super().__init__(room, spare)
        self.offsets = Numbers(rows + 1)
        self.offsets.append(0)
        self.count = 0

    def append(self, data: Any, start: int, end: int) -> int:
        """Add the bytes of `data[start:end]` as one string."""
        self.count += 1
        if cython.compiled:
            self.piece(data, start, end)
            return self.offsets.append(self.used)
        else:  # as those do, without a call for every row
            self.content += data[start:end]
            self.used += end - start
            self.offsets.content.append(self.used)
            self.offsets.count += 1
            return 0

    def close(self) -> tuple[Any, Any]:
        """Give the buffers of offsets and of bytes; the column must not grow after this."""
        if cython.compiled:
            PyByteArray_Resize(self.content, self.used)
        return self.offsets.close(32), self.content


def used_again(spare: list[bytearray], room: int) -> bytearray | None:
    """Take one of these out that nobody has any more, and give it `room` bytes; None if all are in use.

    Memory that was in use is there already; new memory is cleared by the system, page by page.
    """
    if cython.compiled:
        for place in range(len(spare)):
            content = spare[place]
            if Py_REFCNT(content) > 2:  # the list has it and we; an Arrow buffer would be one more
                continue
            PyByteArray_Resize(content, room)
            del spare[place]
            return content
    return None


def find(data: Any, byte: int, start: int, end: int) -> int:
    """Give the place of a byte in `data[start:end]`, -1 if there is none."""
    if cython.compiled:
        return penstock_find(data, byte, start, end)  # type: ignore[name-defined]  # noqa: F821  # in buffers.pxd
    else:
        return data.find(byte, start, end)


def number(data: Any, start: int, end: int) -> int:
    """Read a number of at most 19 digits that fits 63 bits; -1 for anything else."""
    if cython.compiled:
        return penstock_number(data, start, end)  # type: ignore[name-defined]  # noqa: F821
    else:
        if end <= start or end - start > 19:
            return -1
        word = data[start:end]
        found = int(word) if word.isdigit() else -1
        return found if found <= LARGEST else -1


def same(data: Any, start: int, end: int, other: int, other_end: int) -> bool:
    """Tell whether two pieces of `data` are equal."""
    if end - start != other_end - other:
        return False
    if cython.compiled:
        return memcmp(data + start, data + other, end - start) == 0
    else:
        return data[start:end] == data[other:other_end]


def moment(data: Any, start: int, end: int) -> int:
    """Read an RFC 3339 time in UTC, `2026-01-31T12:30:59.123456789Z`, as microseconds since 1970; -1 if it is not."""
    if end - start < 20 or end - start > 30 or data[end - 1] != 90 or data[start + 10] != 84:  # Z, T
        return -1
    year = number(data, start, start + 4)
    month = number(data, start + 5, start + 7)
    day = number(data, start + 8, start + 10)
    hour = number(data, start + 11, start + 13)
    minute = number(data, start + 14, start + 16)
    second = number(data, start + 17, start + 19)
    if year < 1970 or month < 1 or month > 12 or day < 1 or day > 31 or hour < 0 or minute < 0 or second < 0:
        return -1
    micros = 0
    scale = 100000
    for place in range(start + 20, end - 1):
        digit = data[place]
        if digit < 48 or digit > 57:
            return -1
        micros += scale * (digit - 48)
        scale //= 10
    # Days since 1970 in the Gregorian calendar, counted with years that begin in March, so that leap days come last.
    if month <= 2:
        year -= 1
        month += 9
    else:
        month -= 3
    era = year // 400
    year -= era * 400
    days = era * 146097 + year * 365 + year // 4 - year // 100 + (153 * month + 2) // 5 + day - 1 - 719468
    return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000000 + micros


class Lines:
    """Where the lines of a header block stand: begin and end of each name and of each value."""

    def __init__(self) -> None:
        self.spans = Numbers(128)
        self.count = 0

    def split(self, data: Any, start: int, end: int) -> int:
        """Note the lines of the block `data[start:end]`, without its first one if that is a version."""
        self.spans.count = self.count = 0
        if not cython.compiled:
            del self.spans.items[:]
        position = start
        if end - position >= 8 and data[position] == 78 and data[position + 4] == 47:  # N, /
            position = find(data, 10, position, end) + 1
            if position == 0:
                return 0
        while position < end:
            stop = find(data, 10, position, end)
            if stop < 0:
                stop = end
            line_end = stop - 1 if stop < end and stop > position and data[stop - 1] == 13 else stop
            if line_end > position:
                self._line(data, position, line_end)
            position = stop + 1
        return 0

    def _line(self, data: Any, start: int, end: int) -> int:
        colon = find(data, 58, start, end)
        if colon <= start:  # no colon, or no name before it: the whole line is the name
            colon = end
        value = colon + 1 if colon < end else end
        while value < end and (data[value] == 32 or data[value] == 9):
            value += 1
        while end > value and (data[end - 1] == 32 or data[end - 1] == 9):
            end -= 1
        self.spans.append(start)
        self.spans.append(colon)
        self.spans.append(value)
        self.spans.append(end)
        self.count += 1
        return 0

    def at(self, line: int, part: int) -> int:
        """Give begin (0) or end (1) of a line's name, or begin (2) or end (3) of its value."""
        return self.spans.items[4 * line + part]

    def forget(self, line: int) -> int:
        """Mark a line as used: its name begins at -1 from here on."""
        self.spans.items[4 * line] = -1
        return 0


def digits(value: int) -> int:
    """Count the digits of a number that is not negative."""
    count = 1
    while value > 9:
        value //= 10
        count += 1
    return count
