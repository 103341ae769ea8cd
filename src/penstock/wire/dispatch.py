# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""The message path of asyncio connections: messages that arrive, handed out; messages that leave, put together.

`hand_out` takes the messages that stand whole at the start of a buffer and calls the taker of each one's subscription,
in the order of the wire. It stops at the first thing that is anything else: `Parser.next_event` says what that is, and
is the one place that complains about broken frames. An `Outbox` gathers what is published until it is written.

The C types stand in dispatch.pxd, which only the compiler reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcmp
    from cython.cimports.penstock.wire.buffers import Bytes, find, number
else:
    from penstock.wire.buffers import Bytes

__all__ = ["COMPILED", "Outbox", "Reading", "Taker", "hand_out"]

COMPILED: bool = bool(cython.compiled)

# What a taker gets: subject, reply (empty if there is none), payload, and the header block as it came, None if
# there is none. What it returns, if it is not None, is waited for before the next message is handed out.
Taker = Callable[[bytes, bytes, Any, bytes | None], Any]

_MAX_LINE = 8192  # twice what a server takes of a publisher: a longer line is left to the parser
_LARGEST = 80 * 1024 * 1024  # more than the parser lets pass
_ROOM, _ROOMY = 64 * 1024, 512 * 1024  # bytes that an outbox begins with, and beyond which it begins anew
_LINE = re.compile(rb"(H?)MSG ([^\x00-\x20]+) ([0-9]{1,18}) (?:([^\x00-\x20]+) )??(?:([0-9]{1,10}) )?([0-9]{1,10})\r\n")


def hand_out(
    buffer: bytearray, start: int, end: int, takers: dict[int, Taker], borrowers: dict[int, Taker]
) -> tuple[int, int, Any]:
    """Hand the messages of `buffer[start:end]` to their takers.

    Gives the place behind the last one, how many there were, and what to wait for before the next, None for nothing.

    A taker gets the payload as bytes. A borrower gets a view of the buffer, which is gone when the borrower returns,
    or, if it returned something to wait for, belongs to that: the buffer must not change until then.
    """
    place = start
    count = 0
    while place < end:
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
            limit = end if end - place < _MAX_LINE else place + _MAX_LINE
            headed = 1 if data[place] == 72 else 0  # H
            stop = find(data, 10, place, limit)
            first = place + headed + 4
            if stop < 0 or first >= stop or data[stop - 1] != 13 or memcmp(data + place + headed, b"MSG ", 4) != 0:
                break
            for body in range(first, stop - 1):
                if data[body] < 32:
                    break
            else:
                body = stop - 1
            if body != stop - 1:
                break
            # The words are subject, sid, [reply], [header size], size; each find gives the blank behind one.
            subject_end = find(data, 32, first, stop - 1)
            sid_end = find(data, 32, subject_end + 1, stop - 1) if subject_end > first else -1
            if sid_end < 0 or sid_end - subject_end > 19:
                break
            sid = number(data, subject_end + 1, sid_end)
            third_end = find(data, 32, sid_end + 1, stop - 1)
            fourth_end = find(data, 32, third_end + 1, stop - 1) if third_end >= 0 else -1
            reply = reply_end = 0
            head = 0
            if headed == 0:
                if third_end >= 0:
                    reply, reply_end = sid_end + 1, third_end
                    sid_end = third_end
                if fourth_end >= 0:
                    break
            else:
                if third_end < 0:
                    break
                if fourth_end >= 0:
                    reply, reply_end = sid_end + 1, third_end
                    sid_end, third_end = third_end, fourth_end
                head = number(data, sid_end + 1, third_end) if third_end - sid_end < 12 else -1
                sid_end = third_end
            if stop - sid_end > 12:
                break
            total = number(data, sid_end + 1, stop - 1)
            if sid < 0 or head < 0 or total < head or total > _LARGEST or (reply > 0 and reply_end == reply):
                break
            body = stop + 1
            tail = body + total
            if tail + 2 > end or data[tail] != 13 or data[tail + 1] != 10:
                break
            subject = PyBytes_FromStringAndSize(cython.cast(cython.p_char, data) + first, subject_end - first)
            answer = PyBytes_FromStringAndSize(cython.cast(cython.p_char, data) + reply, reply_end - reply)
            block = PyBytes_FromStringAndSize(cython.cast(cython.p_char, data) + body, head) if headed == 1 else None
        else:
            found = _LINE.match(buffer, place, min(end, place + _MAX_LINE))
            if found is None:
                break
            kind, subject, number_text, answer, head_text, total_text = found.groups()
            if (kind == b"H") != (head_text is not None):
                # Without headers a reply may look like a number.
                if kind == b"H" or answer is not None:
                    break
                answer, head_text = head_text, None
            sid, head, total = int(number_text), int(head_text or 0), int(total_text)
            body = found.end()
            tail = body + total
            if head > total or total > _LARGEST or tail + 2 > end or buffer[tail : tail + 2] != b"\r\n":
                break
            subject, answer = bytes(subject), bytes(answer or b"")
            block = bytes(buffer[body : body + head]) if head_text is not None else None
        taker = takers.get(sid)
        if taker is not None:
            if cython.compiled:
                payload = PyBytes_FromStringAndSize(cython.cast(cython.p_char, data) + body + head, tail - body - head)
            else:
                payload = bytes(buffer[body + head : tail])
            wait = taker(subject, answer, payload, block)
        else:
            taker = borrowers.get(sid)
            if taker is None:
                break
            view = memoryview(buffer)[body + head : tail]
            wait = taker(subject, answer, view, block)
            if wait is None:
                # Who keeps hold of it sees what is received next, and nobody else is disturbed.
                try:  # noqa: SIM105  # a context manager for each message would cost more than all the rest
                    view.release()
                except BufferError:
                    pass
        place = tail + 2
        count += 1
        if wait is not None:
            return place, count, wait
    return place, count, None


class Reading:
    """The reading half of a wire while all that comes is whole messages, which is nearly always; `Wire` has the rest.

    asyncio calls `get_buffer` and `buffer_updated` for each piece that is received.
    """

    def __init__(self, parser: Any, session: Any, opened: Any, takers: dict[int, Taker], borrowers: dict[int, Taker]):
        self.session = session
        self.messages = 0
        """How many messages were handed out."""
        self.bytes = 0
        """How many bytes they had, lines and headers included."""
        self._parser, self._opened = parser, opened  # `opened` is the session's state while there may be messages
        self._takers, self._borrowers = takers, borrowers
        self._held: Any = None  # what the reading waits for
        self._backlog: Any = None  # what was received ahead, if anything was
        self._ahead: Any = None  # whether that is wanted
        self._view: Any = memoryview(b"")  # room at the start of a buffer
        self._viewed: Any = None  # that buffer
        self._asked = 0  # bytes that there was room for
        self._streak = 0  # bytes that came without a pause
        self.reading = False
        """Whether messages of what was received are being handed out."""
        self.after: list[Callable[[], None]] = []
        """What is called when they all were."""

    def get_buffer(self, sizehint: int) -> Any:
        """Give room to receive into."""
        parser = self._parser
        if self._backlog is None and parser.buffer is self._viewed and parser.start == parser.end:
            parser.begin()  # most often nothing is left over, and the room is the same as before
            self._asked = len(self._view)
            return self._view
        return self.make_room()

    def buffer_updated(self, nbytes: int) -> None:
        """Read what was received."""
        if self._backlog is not None or self._held is not None or self.session.state is not self._opened:
            self.read_closely(nbytes)
            return
        parser = self._parser
        start = parser.start
        end = parser.end + nbytes
        parser.end = end
        self.reading = True
        try:
            place, count, wait = hand_out(parser.buffer, start, end, self._takers, self._borrowers)
        finally:
            self.reading = False
        if count > 0:
            self.messages += count
            self.bytes += place - start
            parser.take(place)
        if wait is not None or place != end:
            self.read_on(wait)
        if nbytes == self._asked or self._streak > 0 or self._ahead:
            self.notice(nbytes)
        if self.after:
            calls = self.after
            self.after = []
            for call in calls:
                call()

    def make_room(self) -> Any:
        """Give room to receive into if there is something to consider."""
        raise NotImplementedError

    def read_closely(self, nbytes: int) -> None:
        """Read what was received if it may be anything."""
        raise NotImplementedError

    def read_on(self, wait: Any) -> None:
        """Wait, if there is something to wait for, and read what follows the messages."""
        raise NotImplementedError

    def notice(self, nbytes: int) -> None:
        """Notice how much came at once."""
        raise NotImplementedError


class Outbox:
    """Frames that wait to be written, in one piece."""

    def __init__(self) -> None:
        self.out = Bytes(_ROOM)
        self.subjects: dict[str, bytes] = {}
        """Subjects that were checked lately, as they stand on the wire."""
        self.plain = 0
        """Bytes of a payload from which on `post` leaves it to others; 0 while nothing may be posted."""
        self.size = 0
        """How many bytes wait."""
        self.messages = 0
        """How many messages were ever put in."""
        self.bytes = 0
        """How many bytes they had, headers included."""

    def post(self, subject: str, payload: Any, reply: bytes = b"") -> int:
        """Add PUB to a known subject with a plain payload; -1, and nothing is added, if that needs a closer look."""
        name = self.subjects.get(subject)
        if name is None or type(payload) is not bytes or len(payload) >= self.plain:
            return -1
        return self.publish(name, reply, None, payload)

    def publish(self, subject: bytes, reply: bytes, block: bytes | None, payload: bytes) -> int:
        """Add PUB, or HPUB if there is a header block; give how many bytes wait now. Sizes were checked before."""
        self.begin(subject, reply, block, len(payload))
        self.out.text(payload)
        self.out.text(b"\r\n")
        self.size = self.out.used
        return self.size

    def begin(self, subject: bytes, reply: bytes, block: bytes | None, size: int) -> int:
        """Add a message up to its payload of `size` bytes, which is written apart, and a line break behind it."""
        out = self.out
        if block is None:
            out.text(b"PUB ")
        else:
            size += len(block)
            out.text(b"HPUB ")
        out.text(subject)
        if len(reply) > 0:
            out.text(b" ")
            out.text(reply)
        if block is not None:
            out.text(b" ")
            out.number(len(block))
        out.text(b" ")
        out.number(size)
        out.text(b"\r\n")
        if block is not None:
            out.text(block)
        self.messages += 1
        self.bytes += size
        self.size = out.used
        return self.size

    def add(self, frames: bytes) -> int:
        """Add ready frames; give how many bytes wait now."""
        self.out.text(frames)
        self.size = self.out.used
        return self.size

    def take(self) -> bytes | bytearray:
        """Give what waits, and begin anew."""
        self.size = 0
        if self.out.used <= _ROOMY:  # copying is less work than making room anew, and clearing it
            copied: bytes = self.out.copy()
            return copied
        taken: bytearray = self.out.take()
        self.out = Bytes(_ROOM)  # what waited for a connection was much; what follows is not
        return taken
