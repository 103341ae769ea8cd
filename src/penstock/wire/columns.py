# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""The batch path: a receive buffer full of messages of a stream becomes columns, with no Python object a message.

Two kinds of messages carry a stream's sequence and time::

    delivery    MSG  <subject> <sid> $JS.ACK.<stream>.<consumer>.<tries>.<sequence>.<count>.<time>.<pending> <size>
                HMSG ... likewise; <count> numbers the consumer's deliveries from 1; newer servers may write
                $JS.ACK.<domain>.<account>. before <stream>, and more tokens after <pending>
    direct get  HMSG <inbox> <sid> <header> <size>, the last six headers being Nats-Stream, Nats-Subject,
                Nats-Sequence, Nats-Time-Stamp, Nats-Num-Pending and Nats-Last-Sequence; Nats-Stream names the
                stream that answers, and a mirror answers for its origin: what is of another stream is none of ours

`Columns.fill` takes such messages of one subscription out of a buffer and stops at the first thing that is anything
else; `Parser.next_event` says what that is, and is the one place that complains about broken frames. The columns are
Arrow's own layout: offsets of 32 bits and bytes for text, 64 bits for numbers, three levels of offsets for headers.

A header line that is broken (another publisher may have written anything) becomes a header with the line as its name.
A repeated name becomes one name with several values, in the order of first appearance.

The C types stand in columns.pxd, which only the compiler reads.
"""

from __future__ import annotations

import re
from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcmp, memcpy
    from cython.cimports.penstock.wire.buffers import Lines, Numbers, Strings, moment, penstock_digits, same
    from cython.cimports.penstock.wire.buffers import penstock_find as find
    from cython.cimports.penstock.wire.buffers import penstock_number as number
else:
    from penstock.wire.buffers import Lines, Numbers, Strings, moment, number, same

__all__ = ["BEYOND", "COMPILED", "DISORDER", "FULL", "MOST_ROWS", "NEED", "OTHER", "SKIPPED", "Columns"]

COMPILED: bool = bool(cython.compiled)

# Why `fill` stopped.
NEED = 0  # the buffer holds no further whole message
OTHER = 1  # the next frame is not a message of the stream: ask the parser
FULL = 2  # the batch has its rows or bytes
BEYOND = 3  # the next message lies behind the end of the range
DISORDER = 4  # a delivery is missing or came twice
SKIPPED = 5  # sequences are missing before the next message, and `strict` wants to know it

# The same as numbers of C: what `fill` compares for each message must not be looked up, and made into an object.
_NEED: int = NEED
_OTHER: int = OTHER
_FULL: int = FULL
_BEYOND: int = BEYOND
_DISORDER: int = DISORDER
_SKIPPED: int = SKIPPED

MOST_ROWS = 16_777_216  # of a batch
_MAX_LINE = 4096
_MAX_TEXT = 268_435_456
_LARGEST = 9223372036854775807
_MOST_KNOWN = 256  # bytes of a reply subject's beginning that are remembered
_FEW_LINES = 32  # so many names are compared each with each; with more, a hostile block would make that slow

_DELIVERY = re.compile(
    rb"(H?)MSG ([^\x00-\x20]+) ([0-9]{1,18}) (\$JS\.ACK\.[^\x00-\x20]+) (?:([0-9]{1,10}) )?([0-9]{1,10})\r\n"
)
_TOKEN, _NUMBER = rb"[^\x00-\x20.]*\.", rb"([0-9]{1,19})\."
_ACK = re.compile(rb"\$JS\.ACK\.(?:%b[^.]*|%b.*)" % (3 * _TOKEN + 3 * _NUMBER, 5 * _TOKEN + 3 * _NUMBER))
_BARE = re.compile(
    rb"MSG ([^\x00-\x20]+) ([0-9]{1,18}) (\$JS\.ACK\.%b[^\x00-\x20.]*) ([0-9]{1,10})\r\n" % (3 * _TOKEN + 3 * _NUMBER)
)
_DIRECT = re.compile(rb"(H)MSG ([^\x00-\x20]+) ([0-9]{1,18})() ([0-9]{1,10}) ([0-9]{1,10})\r\n")
_TRANSPORT = (
    b"Nats-Stream",
    b"Nats-Subject",
    b"Nats-Sequence",
    b"Nats-Time-Stamp",
    b"Nats-Num-Pending",
    b"Nats-Last-Sequence",
)


class Columns:
    """The rows of one batch, and the place of a read in its stream.

    A batch takes rows until it has `max_rows`, `max_bytes` of payload and headers, or `max_text` bytes of subjects, so
    that no column has more bytes than offsets of 32 bits can tell apart, also if text is escaped, which makes four
    bytes of one; `restart` begins the next one.
    `stream` is the name that an answer to a direct get must carry.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        max_rows: int,
        max_bytes: int,
        max_payload: int,
        headers: bool = True,
        stream: bytes = b"",
    ) -> None:
        self.next = start  # the sequence that comes next if nothing was deleted
        self.end = end
        self.gap = 0  # the first sequence that was skipped since somebody set this to 0
        self.sid = 0
        self.count = 1  # the number that the consumer's next delivery has
        self.direct = False
        self.strict = False
        self.stream = stream
        self.stop = _NEED
        self.wire_size = 0  # bytes as the server counts them against a pull request, since somebody set this to 0
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.max_text = _MAX_TEXT
        self.max_payload = max_payload
        self.with_headers = headers
        self.lines = Lines()
        # The frame at hand.
        self.subject = self.subject_end = self.body = self.head = self.total = self.reply_size = 0
        self.sequence = self.delivery = self.time = 0
        self.known_size = self.known_reply = self.known_sid = self.at_sequence = 0
        if not cython.compiled:
            self.known = b""  # an array of C; the plain form remembers nothing
        self.rows = 0
        self.size = 0
        self.spare: list[bytearray] = []  # payloads of the last batches, to be used again once nobody has them
        self.subjects = self.payloads = self.names = self.values = Strings(0, 0)
        self.restart()

    def restart(self) -> None:
        """Begin a new batch, as roomy as the last one came to be."""
        if cython.compiled and self.payloads.used >= 65536:
            self.spare.append(self.payloads.content)
            if len(self.spare) > 3:
                del self.spare[0]
        rows = min(self.rows + self.rows // 16, self.max_rows)
        self.subjects = Strings(rows, self.subjects.used + self.subjects.used // 16)
        self.payloads = Strings(rows, self.payloads.used + self.payloads.used // 16, self.spare)
        self.names = Strings(self.names.count, self.names.used)
        self.values = Strings(self.values.count, self.values.used)
        self.lists = Numbers(self.names.count)
        self.lists.append(0)
        self.maps = Numbers(rows + 1)
        self.maps.append(0)
        self.sequences = Numbers(rows)
        self.times = Numbers(rows)
        self.rows = 0
        self.size = 0

    def close(self) -> dict[str, Any]:
        """Give the batch as buffers by name; `restart` before filling again."""
        return {
            "rows": self.rows,
            "subject": self.subjects.close(),
            "data": self.payloads.close(),
            "sequence": self.sequences.close(),
            "time": self.times.close(),
            "header_maps": self.maps.close(32),
            "header_names": self.names.close(),
            "header_lists": self.lists.close(32),
            "header_values": self.values.close(),
            "names": self.names.count,
            "values": self.values.count,
        }

    def fill(self, buffer: bytearray, start: int, end: int) -> int:
        """Take messages out of `buffer[start:end]`; give the position behind the last one and set `stop`."""
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
        else:
            data = buffer
        position = start
        self.stop = _NEED
        while position < end:
            if not cython.compiled:
                position = self._run(data, position, end)
                if position >= end:
                    break
            if self._is_full():
                self.stop = _FULL
                break
            self.stop = self._line(data, position, end)
            if self.stop != _NEED or self.body == 0:
                break
            stop = self.body + self.total
            if self.total > self.max_payload or self.head > self.total:
                self.stop = _OTHER
                break
            if end < stop + 2:
                break
            if data[stop] != 13 or data[stop + 1] != 10:
                self.stop = _OTHER
                break
            self.lines.count = 0
            if self.head > 0 and (self.direct or self.with_headers):
                self.lines.split(data, self.body, self.body + self.head)
            if self.direct and not self._transport(data):
                self.stop = _OTHER
                break
            if self.sequence >= self.end:
                self.stop = _BEYOND
                break
            if self.sequence < self.next or (not self.direct and self.delivery != self.count):
                self.stop = _DISORDER
                break
            if self.strict and self.sequence != self.next:
                self.stop = _SKIPPED
                break
            self._row(data, stop)
            position = stop + 2
        return position

    def _is_full(self) -> bool:
        """Tell whether the next row belongs to another batch."""
        return self.rows >= self.max_rows or self.size >= self.max_bytes or self.subjects.used >= self.max_text

    def _run(self, data: Any, position: int, end: int) -> int:
        """Take a run of the commonest messages, without headers, as the plain form does it best: in one loop.

        It stops at the first message that is anything else, which the other steps then look at.
        """
        if cython.compiled or self.direct:
            return position
        subjects, payloads, maps = self.subjects, self.payloads, self.maps
        sequences, times, names = self.sequences, self.times, self.names.count
        upcoming, count, rows, size, wire_size = self.next, self.count, self.rows, self.size, self.wire_size
        while rows < self.max_rows and size < self.max_bytes and len(subjects.content) < self.max_text:
            found = _BARE.match(data, position, end)
            if found is None:
                break
            subject, sid, reply, sequence, delivery, digits, size_digits = found.groups()
            number, time, total, body = int(sequence), int(digits), int(size_digits), found.end()
            stop = body + total
            if total > self.max_payload or stop + 2 > end or data[stop : stop + 2] != b"\r\n":
                break
            if int(sid) != self.sid or int(delivery) != count or not upcoming <= number < self.end:
                break
            if time > _LARGEST or body - position > _MAX_LINE:
                break
            if number != upcoming and self.strict:
                break
            if number != upcoming and self.gap == 0:
                self.gap = upcoming
            upcoming = number + 1
            count += 1
            rows += 1
            size += total
            wire_size += total + len(subject) + len(reply)
            subjects.content += subject
            subjects.offsets.content.append(len(subjects.content))
            payloads.content += data[body:stop]
            payloads.offsets.content.append(len(payloads.content))
            sequences.content.append(number)
            times.content.append(time // 1000)
            maps.content.append(names)
            position = stop + 2
        subjects.used, payloads.used = len(subjects.content), len(payloads.content)
        self.next, self.count, self.rows, self.size, self.wire_size = upcoming, count, rows, size, wire_size
        return position

    def _row(self, data: Any, stop: int) -> int:
        if self.sequence != self.next and self.gap == 0:
            self.gap = self.next
        self.next = self.sequence + 1
        self.count += 1
        self.rows += 1
        self.size += self.total
        self.wire_size += self.total + self.subject_end - self.subject + self.reply_size
        self.subjects.append(data, self.subject, self.subject_end)
        self.payloads.append(data, self.body + self.head, stop)
        self.sequences.append(self.sequence)
        self.times.append(self.time)
        if self.lines.count > 0 and self.with_headers:
            self._headers(data)
        return self.maps.append(self.names.count)

    def _line(self, data: Any, position: int, end: int) -> int:
        """Read the line of a message of ours; OTHER if it is not one. `body` stays 0 if the line is not whole."""
        self.body = 0
        limit = end if end - position < _MAX_LINE else position + _MAX_LINE
        if cython.compiled:
            known = self.known_size > 0 and self.known_sid == self.sid and not self.direct
            if known and self._known_line(data, position, limit):
                return _NEED
            headed = 1 if data[position] == 72 else 0  # H
            stop = find(data, 10, position, limit)
            if stop < 0:
                unfinished = end - position < _MAX_LINE and (headed or data[position] == 77)  # M
                return _NEED if unfinished else _OTHER
            first = position + headed + 4
            if first >= stop or data[stop - 1] != 13 or memcmp(data + position + headed, b"MSG ", 4) != 0:
                return _OTHER
            # The words are subject, sid, [reply], [header size], size; each find gives the blank behind one.
            subject_end = find(data, 32, first, stop - 1)
            sid_end = find(data, 32, subject_end + 1, stop - 1)
            if subject_end <= first or sid_end < 0 or number(data, subject_end + 1, sid_end) != self.sid:
                return _OTHER
            reply_end = sid_end if self.direct else find(data, 32, sid_end + 1, stop - 1)
            head_end = find(data, 32, reply_end + 1, stop - 1) if headed else reply_end
            if reply_end < 0 or head_end < 0 or (self.direct and not headed):
                return _OTHER
            # As many digits as the parser takes; literals, because C knows no module's names.
            if sid_end - subject_end > 19 or stop - head_end > 12 or (headed and head_end - reply_end > 11):
                return _OTHER
            low = 0
            for place in range(first, subject_end):
                low |= data[place] < 32
            if low:  # a lone CR, a tab: the parser says what that is
                return _OTHER
            self.subject = first
            self.subject_end = subject_end
            self.head = number(data, reply_end + 1, head_end) if headed else 0
            self.total = number(data, head_end + 1, stop - 1)
            self.body = stop + 1
            if self.head < 0 or self.total < 0:
                return _OTHER
        else:
            found = (_DIRECT if self.direct else _DELIVERY).match(data, position, limit)
            if found is None:
                whole = data.find(10, position, limit) >= 0 or end - position >= _MAX_LINE
                return _OTHER if whole or data[position] not in (77, 72) else _NEED
            kind, _, sid, _, head, total = found.groups()
            if int(sid) != self.sid or (head is None) == (kind == b"H"):
                return _OTHER
            self.subject, self.subject_end = found.span(2)
            sid_end, reply_end = found.end(3), found.end(4)
            self.body = found.end()
            self.total = int(total)
            self.head = int(head or 0)
        if self.direct:
            return _NEED
        self.reply_size = reply_end - sid_end - 1
        stop = self._reply(data, sid_end + 1, reply_end)
        if cython.compiled:
            size = self.at_sequence - self.subject_end
            if stop == _NEED and 0 < size <= _MOST_KNOWN:
                memcpy(self.known, data + self.subject_end, size)
                self.known_size, self.known_reply, self.known_sid = size, sid_end + 1 - self.subject_end, self.sid
        return stop

    def _known_line(self, data: Any, position: int, limit: int) -> bool:
        """Read a line that is like the last one from behind its subject to the sequence; False if it is not.

        A consumer's deliveries differ in nothing else: one comparison stands for most of what `_line` looks for. What
        is not as plain as can be is left to that.
        """
        if cython.compiled:
            place = position + 4 if data[position] == 77 else position + 5
            if limit - place <= self.known_size or memcmp(data + place - 4, b"MSG ", 4) != 0:
                return False
            if place - position == 5 and data[position] != 72:
                return False
            self.subject = place
            while place < limit and data[place] > 32:
                place += 1
            self.subject_end = place
            if place == self.subject or limit - place <= self.known_size:
                return False
            if memcmp(data + place, self.known, self.known_size) != 0:
                return False
            place += self.known_size
            self.sequence = penstock_digits(data, cython.address(place), limit)
            if self.sequence < 0 or data[place] != 46:
                return False
            place += 1
            self.delivery = penstock_digits(data, cython.address(place), limit)
            if self.delivery < 0 or data[place] != 46:
                return False
            place += 1
            self.time = penstock_digits(data, cython.address(place), limit)
            if self.time < 0 or data[place] != 46:
                return False
            place += 1
            if penstock_digits(data, cython.address(place), limit) < 0 or data[place] != 32:  # how many are pending
                return False
            self.reply_size = place - self.subject_end - self.known_reply
            self.head = 0
            if data[position] == 72:
                stop = place + 11
                place += 1
                self.head = penstock_digits(data, cython.address(place), limit)
                if self.head < 0 or place > stop or data[place] != 32:
                    return False
            stop = place + 11
            place += 1
            self.total = penstock_digits(data, cython.address(place), limit)
            if self.total < 0 or place > stop or place + 1 >= limit or data[place] != 13 or data[place + 1] != 10:
                return False
            self.time //= 1000
            self.body = place + 2
            return True
        else:
            return False

    def _reply(self, data: Any, start: int, end: int) -> int:
        """Read sequence, delivery and time out of a reply subject that acknowledges a delivery."""
        # Tokens after $JS.ACK: stream, consumer, tries and so on are seven; domain and account make nine or more.
        if cython.compiled:
            if end - start < 8 or memcmp(data + start, b"$JS.ACK.", 8) != 0:
                return _OTHER
            count = 1
            start += 8
            low = 0
            for place in range(start, end):
                count += data[place] == 46
                low |= data[place] < 32
            if (count != 7 and count < 9) or low:
                return _OTHER
            for _ in range(3 if count == 7 else 5):
                start = find(data, 46, start, end) + 1
            stop = find(data, 46, start, end)
            self.sequence = number(data, start, stop)
            self.at_sequence = start if count == 7 else 0  # longer ones are not remembered
            start = stop + 1
            stop = find(data, 46, start, end)
            self.delivery = number(data, start, stop)
            start = stop + 1
            self.time = number(data, start, find(data, 46, start, end))
            if self.sequence < 0 or self.delivery < 0 or self.time < 0:
                return _OTHER
            self.time //= 1000
            return _NEED
        else:
            found = _ACK.fullmatch(data, start, end)
            if found is None:
                return _OTHER
            self.sequence, self.delivery, time = (int(digits) for digits in found.groups() if digits is not None)
            self.time = time // 1000
            return _OTHER if max(self.sequence, self.delivery, time) > _LARGEST else _NEED

    def _transport(self, data: Any) -> bool:
        """Take the six headers that direct get adds off the end, and with them subject, sequence and time."""
        lines = self.lines
        first = lines.count - 6
        if first < 0 or data[self.body + 8] != 13:  # a status stands there instead
            return False
        for line in range(6):
            if data[lines.at(first + line, 0) : lines.at(first + line, 1)] != _TRANSPORT[line]:
                return False
        if data[lines.at(first, 2) : lines.at(first, 3)] != self.stream:
            return False
        self.subject = lines.at(first + 1, 2)
        self.subject_end = lines.at(first + 1, 3)
        self.sequence = number(data, lines.at(first + 2, 2), lines.at(first + 2, 3))
        self.time = moment(data, lines.at(first + 3, 2), lines.at(first + 3, 3))
        lines.count = first
        return self.sequence >= 0 and self.time >= 0

    def _headers(self, data: Any) -> int:
        """Add a row's headers, the values of a repeated name together."""
        if self.lines.count > _FEW_LINES:
            if cython.compiled:
                with cython.gil:  # files are read without it
                    return self._many_headers(data)
            else:
                return self._many_headers(data)
        for line in range(self.lines.count):
            if self.lines.at(line, 0) < 0:
                continue
            self._value(data, line)
            for other in range(line + 1, self.lines.count):
                begin, stop = self.lines.at(other, 0), self.lines.at(other, 1)
                if begin >= 0 and same(data, self.lines.at(line, 0), self.lines.at(line, 1), begin, stop):
                    self._value(data, other)
                    self.lines.forget(other)
            self._name(data, line)
        return 0

    def _many_headers(self, data: Any) -> int:
        lines = self.lines
        groups: dict[bytes, list[int]] = {}
        for line in range(lines.count):
            groups.setdefault(bytes(data[lines.at(line, 0) : lines.at(line, 1)]), []).append(line)
        for group in groups.values():
            for line in group:
                self._value(data, line)
            self._name(data, group[0])
        return 0

    def _value(self, data: Any, line: int) -> int:
        return self.values.append(data, self.lines.at(line, 2), self.lines.at(line, 3))

    def _name(self, data: Any, line: int) -> int:
        self.names.append(data, self.lines.at(line, 0), self.lines.at(line, 1))
        return self.lists.append(self.values.count)
