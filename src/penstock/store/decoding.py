# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""What records of a block and entries of a backup have in common: one behind the other, they become rows.

The compiled form lets go of Python's lock meanwhile, so that several files are read at once, and the next one while the
rows of the last one are used. The C types stand in decoding.pxd, which only the compiler reads.
"""

from __future__ import annotations

from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.penstock.wire.columns import Columns
else:
    from penstock.wire.columns import Columns

from penstock.wire.columns import FULL, NEED

__all__ = ["BROKEN", "COMPILED", "Decoder"]

COMPILED: bool = bool(cython.compiled)

# Why `take` stopped: as the wire says it, and one reason more.
BROKEN = 6  # what is at hand is not whole, or not what its checksum says
_NEED: int = NEED
_FULL: int = FULL


class Decoder(Columns):  # type: ignore[misc]  # a class of C, to mypy, is any
    """The rows of a file, and the place of the read."""

    def take(self, buffer: bytearray, start: int, end: int) -> int:
        """Take messages out of `buffer[start:end]`; give the position behind the last one and set `stop`.

        Nobody else may have the buffer meanwhile.
        """
        position = start
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
            with cython.nogil:
                position = self._take(data, start, end)
        else:
            position = self._take(buffer, start, end)
        return position

    def _take(self, data: Any, position: int, end: int) -> int:
        self.stop = _NEED
        while position < end:
            if self._is_full():
                self.stop = _FULL
                break
            size = self._one(data, position, end)
            if size == 0:
                break
            position += size
        return position

    def _one(self, data: Any, position: int, end: int) -> int:
        """Take the message at a position; give its size there, 0 if it is not to be passed, and `stop` says why."""
        return 0

    def _message(self, data: Any) -> int:
        """Add the message at hand as a row."""
        self.lines.count = 0
        if self.head > 0 and self.with_headers:
            self.lines.split(data, self.body, self.body + self.head)
        self._row(data, self.body + self.total)
        return 0
