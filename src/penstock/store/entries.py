# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""The entries of a backup as servers from 2.15 on write it, which become columns as messages from the wire do.

What comes out of the compression is the word NATSARC1 and then entries; numbers are of variable length, the one
marked ± with its sign in the lowest bit::

    size of the name   time ±   sequence   size of the headers   size of the payload   name   headers   payload

The first entry is `state.json`, the state of the stream; then come `consumers/<name>`, both with the sequence 0, and
then the messages, in order, by their subjects, times in nanoseconds. The last one says that the backup is whole: its
name, its sequence and its sizes are nothing.

The C types stand in entries.pxd, which only the compiler reads.
"""

from __future__ import annotations

from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.penstock.store.decoding import Decoder
else:
    from penstock.store.decoding import Decoder

from penstock.store.decoding import BROKEN
from penstock.wire.columns import BEYOND, DISORDER, NEED, OTHER

__all__ = ["COMPILED", "MAGIC", "Entries"]

COMPILED: bool = bool(cython.compiled)

MAGIC = b"NATSARC1"
_BEYOND: int = BEYOND
_BROKEN: int = BROKEN
_DISORDER: int = DISORDER
_NEED: int = NEED
_OTHER: int = OTHER
_LARGEST = 256 << 20  # bytes; a server takes messages of 64 MB at most


class Entries(Decoder):  # type: ignore[misc]  # a class of C, to mypy, is any
    """The rows of a backup, of the sequences from `start` to `end`, and the place of the read."""

    def __init__(self, start: int, end: int, *, max_rows: int, max_bytes: int, headers: bool = True) -> None:
        super().__init__(start, end, max_rows=max_rows, max_bytes=max_bytes, max_payload=_LARGEST, headers=headers)
        self.last = 0
        self.counting = False
        self.counted = 0
        self.stored = 0
        self.whole = False

    def open(self, start: int) -> None:
        """Begin a part, at a sequence."""
        self.next, self.last = start, 0
        if self.rows:  # of a part that was given up
            self.restart()

    def _one(self, data: Any, position: int, end: int) -> int:
        """Take the message at a position; it stops with OTHER at an entry of another kind, which `entry` describes."""
        self.stop = self._entry(data, position, end)
        if self.stop != _NEED or self.body == 0:
            return 0
        if self.sequence == 0:
            self.stop = _OTHER
            return 0
        if self.sequence <= self.last:
            self.stop = _DISORDER
            return 0
        if self.sequence >= self.end:
            self.stop = _BEYOND
            return 0
        self.last = self.sequence
        if self.counting:
            self.counted += 1
            # What a record of a block takes: 30 bytes, and 4 more with headers, beside its parts.
            self.stored += 30 + self.subject_end - self.subject + self.total + (4 if self.head > 0 else 0)
        elif self.sequence >= self.next:
            self._message(data)
        return self.body + self.total - position

    def entry(self, buffer: bytearray, start: int, end: int) -> tuple[bytes, bytes, int] | None:
        """Give name and content of the entry at `start`, and the position behind it; None if it is not whole yet."""
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
        else:
            data = buffer
        if self._entry(data, start, end) != _NEED or self.body == 0:
            return None
        stop = self.body + self.total
        return bytes(buffer[self.subject : self.subject_end]), bytes(buffer[self.body : stop]), stop

    def _entry(self, data: Any, position: int, end: int) -> int:
        """Read the head of an entry; NEED with `body` 0 if it is not whole, BROKEN if it is something else."""
        self.body = 0
        name = self._number(data, position, end)
        time = self._number(data, self.place, end)
        sequence = self._number(data, self.place, end)
        head = self._number(data, self.place, end)
        payload = self._number(data, self.place, end)
        if self.place < 0:
            return _NEED if end - position < 64 else _BROKEN
        if name > 1048576 or head > _LARGEST or payload > _LARGEST or sequence >> 62:
            return _BROKEN
        if end - self.place < name + head + payload:
            return _NEED
        self.subject = self.place
        self.subject_end = self.place + name
        self.head = head
        self.total = head + payload
        self.time = (time >> 1) // 1000 if time & 1 == 0 else -1
        self.sequence = sequence
        self.body = self.subject_end
        return _NEED

    def _number(self, data: Any, place: int, end: int) -> int:
        """Read a number of variable length and set `place` behind it, to -1 if it does not end."""
        value = shift = 0
        if place >= 0:
            while place < end and shift <= 63:
                byte = data[place]
                place += 1
                if cython.compiled:
                    value |= cython.cast(cython.ulonglong, byte & 127) << shift
                else:
                    value |= (byte & 127) << shift
                if byte < 128:
                    if shift == 63 and byte > 1:  # more than 64 bits
                        break
                    self.place = place
                    return value
                shift += 7
        self.place = -1
        return 0
