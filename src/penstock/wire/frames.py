# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""The other batch path: rows in Arrow's layout become PUB and HPUB frames, with no Python object a message.

Every frame of an `Encoder` has a number that counts up. It stands where the settings want it::

    HPUB <subject> <reply prefix><number><reply suffix> <header size> <size>
    NATS/1.0
    <fixed header lines>
    <counter name>: <number>
    Nats-Msg-Id: <id prefix><number + id offset>      (not if the row has one of its own)
    <the row's own headers>

    <payload>

The rows must have been checked before: this writes what it is given. The C types stand in frames.pxd, which only the
compiler reads.
"""

from __future__ import annotations

from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp
    from cython.cimports.penstock.wire.buffers import Bytes, digits
else:
    from penstock.wire.buffers import Bytes, digits

__all__ = ["COMPILED", "Encoder", "Rows", "Texts", "doubtful_subject", "sizes"]

COMPILED: bool = bool(cython.compiled)

_ID = b"Nats-Msg-Id"
_NOTHING = memoryview(b"\x00")
_ZERO = memoryview(b"\x00\x00\x00\x00").cast("i")


class Texts:
    """A column of byte strings: 32-bit offsets and bytes, both seen through memoryviews."""

    def __init__(self, offsets: memoryview | None, content: memoryview | None) -> None:
        self.offsets = _ZERO if offsets is None else offsets
        self.view = _NOTHING if content is None or len(content) == 0 else content
        if cython.compiled:
            self.content = cython.address(self.view[0])
        else:
            self.content = self.view


class Rows:
    """The rows of one batch: subjects, payloads and, if there are any, headers in three levels."""

    def __init__(
        self,
        count: int,
        subjects: Texts,
        payloads: Texts,
        maps: memoryview | None = None,
        names: Texts | None = None,
        lists: memoryview | None = None,
        values: Texts | None = None,
    ) -> None:
        self.count = count
        self.subjects = subjects
        self.payloads = payloads
        self.has_headers = maps is not None
        self.maps = _ZERO if maps is None else maps
        self.lists = _ZERO if lists is None else lists
        self.names = Texts(None, None) if names is None else names
        self.values = Texts(None, None) if values is None else values

    def subject(self, row: int) -> bytes:
        """Give the subject of a row."""
        texts = self.subjects
        return bytes(texts.view[texts.offsets[row] : texts.offsets[row + 1]])

    def header_size(self, row: int) -> int:
        """Count the bytes of the lines that a row's own headers have."""
        names, values = self.names, self.values
        size = 0
        if self.has_headers:
            for entry in range(self.maps[row], self.maps[row + 1]):
                name = names.offsets[entry + 1] - names.offsets[entry]
                first, last = self.lists[entry], self.lists[entry + 1]
                size += (last - first) * (name + 4) + values.offsets[last] - values.offsets[first]
        return size


class Encoder:
    """Writes frames of rows, in the form that its settings say."""

    def __init__(
        self,
        *,
        reply_prefix: bytes = b"",
        reply_suffix: bytes = b"",
        fixed: bytes = b"",
        counter: bytes = b"",
        id_prefix: bytes = b"",
        id_offset: int = 0,
    ) -> None:
        self.reply = b" " + reply_prefix if reply_prefix else b""
        self.reply_suffix = reply_suffix
        self.fixed = fixed
        self.counter = counter + b": " if counter else b""
        self.id = _ID + b": " + id_prefix if id_prefix else b""
        self.id_offset = id_offset
        self.out = Bytes(65536)

    def take(self) -> bytearray:
        """Give the frames that were written and begin anew."""
        return self.out.take()

    @property
    def size(self) -> int:
        """The bytes that were written since the last `take`."""
        return self.out.used

    def write(self, rows: Rows, first: int, last: int, number: int, limit: int) -> int:
        """Write frames of the rows from `first`, numbered from `number`, until `last` or `limit` bytes.

        Give the row behind the last one that was written; at least one is.
        """
        for row in range(first, last):
            self._frame(rows, row, number + row - first)
            if self.out.used >= limit:
                return row + 1
        return last

    def _frame(self, rows: Rows, row: int, number: int) -> int:
        out = self.out
        size = rows.payloads.offsets[row + 1] - rows.payloads.offsets[row]
        own = rows.has_headers and rows.maps[row + 1] > rows.maps[row]
        add_id = len(self.id) > 0 and not (own and self._has_id(rows, row))
        head = len(self.fixed)
        if self.counter:
            head += len(self.counter) + digits(number) + 2
        if add_id:
            head += len(self.id) + digits(number + self.id_offset) + 2
        if own:
            head += rows.header_size(row)
        if head > 0:
            head += 12  # NATS/1.0, its line end and the empty line
            out.text(b"HPUB ")
        else:
            out.text(b"PUB ")
        out.piece(rows.subjects.content, rows.subjects.offsets[row], rows.subjects.offsets[row + 1])
        if self.reply:
            out.text(self.reply)
            out.number(number)
            out.text(self.reply_suffix)
        out.text(b" ")
        if head > 0:
            out.number(head)
            out.text(b" ")
        out.number(head + size)
        out.text(b"\r\n")
        if head > 0:
            out.text(b"NATS/1.0\r\n")
            out.text(self.fixed)
            if self.counter:
                out.text(self.counter)
                out.number(number)
                out.text(b"\r\n")
            if add_id:
                out.text(self.id)
                out.number(number + self.id_offset)
                out.text(b"\r\n")
            if own:
                self._own_headers(rows, row)
            out.text(b"\r\n")
        out.piece(rows.payloads.content, rows.payloads.offsets[row], rows.payloads.offsets[row + 1])
        return out.text(b"\r\n")

    def _has_id(self, rows: Rows, row: int) -> bool:
        names = rows.names
        for entry in range(rows.maps[row], rows.maps[row + 1]):
            start = names.offsets[entry]
            if names.offsets[entry + 1] - start != len(_ID):
                continue
            if cython.compiled:
                if memcmp(names.content + start, b"Nats-Msg-Id", 11) == 0:
                    return True
            elif names.content[start : start + len(_ID)] == _ID:
                return True
        return False

    def _own_headers(self, rows: Rows, row: int) -> int:
        names, values, out = rows.names, rows.values, self.out
        for entry in range(rows.maps[row], rows.maps[row + 1]):
            for value in range(rows.lists[entry], rows.lists[entry + 1]):
                out.piece(names.content, names.offsets[entry], names.offsets[entry + 1])
                out.text(b": ")
                out.piece(values.content, values.offsets[value], values.offsets[value + 1])
                out.text(b"\r\n")
        return 0


def sizes(rows: Rows) -> Any:
    """Give the size of the largest message of these rows, headers included but not those of the encoder."""
    largest = 0
    for row in range(rows.count):
        size = rows.payloads.offsets[row + 1] - rows.payloads.offsets[row]
        head = rows.header_size(row)
        if head > 0:
            size += 12 + head
        if size > largest:
            largest = size
    return largest


def doubtful_subject(subjects: Texts, count: int, first: int, patterns: list[bytes]) -> int:
    """Give the first subject from `first` on that needs a closer look, or `count`.

    All others are plain: tokens of printable ASCII without wildcards, and one of the patterns fits. One that is the
    same as that of the row before needs no second look.
    """
    content = subjects.content
    start = end = 0
    for row in range(first, count):
        before, size = start, end - start
        start, end = subjects.offsets[row], subjects.offsets[row + 1]
        if start == end:
            return row
        if end - start == size:
            if cython.compiled:
                if memcmp(content + before, content + start, size) == 0:
                    continue
            elif content[before : before + size] == content[start:end]:
                continue
        if cython.compiled:
            plain = penstock_is_plain(content, start, end)  # type: ignore[name-defined]  # noqa: F821  # in frames.pxd
        else:
            plain = _is_plain(content, start, end)
        if not plain:
            return row
        for pattern in patterns:
            if _fits(content, start, end, pattern):
                break
        else:
            return row
    return count


def _is_plain(content: Any, start: int, end: int) -> bool:
    """Tell whether a subject is tokens of printable ASCII without wildcards, as the compiled form does."""
    if not cython.compiled:
        dot = True  # as if one stood before: no token is empty
        for place in range(start, end):
            byte = content[place]
            if byte <= 32 or byte >= 127 or byte == 42 or byte == 62 or (byte == 46 and dot):
                return False
            dot = byte == 46
        return not dot
    return False


def _fits(content: Any, start: int, end: int, pattern: bytes) -> bool:
    """Tell whether a pattern fits a subject, of which no token is empty."""
    place = start
    whole = True  # whether a token begins
    size = len(pattern)
    for index in range(size):
        byte = pattern[index]
        if whole and byte == 62 and index == size - 1:
            return place < end
        if whole and byte == 42 and (index == size - 1 or pattern[index + 1] == 46):
            if place == end:
                return False
            while place < end and content[place] != 46:
                place += 1
        else:
            if place == end or content[place] != byte:
                return False
            place += 1
        whole = byte == 46
    return place == end
