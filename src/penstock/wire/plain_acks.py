# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""The way back of a publisher: a receive buffer full of acks becomes runs, with no Python object an ack.

Nearly every ack looks the same, and is the answer to the message behind the one that the last ack was for::

    MSG <inbox><number> <sid> <size>
    {"stream":"<stream>","seq":<sequence>}

`PlainAcks.take` takes such acks out of a buffer and stops at the first thing that is anything else: an ack that says
more, a refusal, another subscription. `Parser.next_event` says what that is.

The C types stand in plain_acks.pxd, which only the compiler reads.
"""

from __future__ import annotations

import re

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcmp
    from cython.cimports.penstock.wire.buffers import find, number
else:
    from penstock.wire.buffers import LARGEST

__all__ = ["COMPILED", "PlainAcks"]

COMPILED: bool = bool(cython.compiled)

Run = tuple[int, int, int]
"""The first number, how many follow each other, and the sequence of the first."""


class PlainAcks:
    """Reads acks on `<inbox><number>` whose payload begins with `words` and ends with a sequence and a brace."""

    def __init__(self, inbox: bytes, words: bytes) -> None:
        self.head = b"MSG " + inbox
        self.words = words
        self.sid = 0
        if not cython.compiled:
            self.pattern = re.compile(
                rb"%b([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19})\r\n%b([0-9]{1,19})}\r\n"
                % (re.escape(self.head), re.escape(words))
            )

    def take(self, buffer: bytearray, start: int, end: int, runs: list[Run]) -> int:
        """Take acks out of `buffer[start:end]` and add them to `runs`; give the position behind the last one."""
        first = last = count = 0  # the last run: number, sequence and length
        position = start
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
            head_size, words_size = len(self.head), len(self.words)
            head, words = cython.cast(cython.p_char, self.head), cython.cast(cython.p_char, self.words)
            while end - position > head_size and memcmp(data + position, head, head_size) == 0:
                place = position + head_size
                stop = find(data, 32, place, end)
                message = number(data, place, stop)
                place = stop + 1
                stop = find(data, 32, place, end)
                if message < 0 or stop < 0 or number(data, place, stop) != self.sid:
                    break
                place = stop + 1
                stop = find(data, 13, place, end)
                size = number(data, place, stop)
                place = stop + 2
                if stop < 0 or size <= words_size + 1 or size > 9999 or place + size + 2 > end:
                    break
                stop = place + size  # behind the payload
                if (
                    data[place - 1] != 10
                    or data[stop - 1] != 125
                    or data[stop] != 13
                    or data[stop + 1] != 10
                    or memcmp(data + place, words, words_size) != 0
                ):
                    break
                sequence = number(data, place + words_size, stop - 1)
                if sequence <= 0:
                    break
                position = stop + 2
                if count > 0 and message == first + count and sequence == last + count:
                    count += 1
                else:
                    if count > 0:
                        runs.append((first, count, last))
                    first, last, count = message, sequence, 1
        else:
            while (found := self.pattern.match(buffer, position, end)) is not None:
                message, sid, size, sequence = map(int, found.groups())
                if sid != self.sid or sequence == 0 or size != found.end() - 2 - found.start(4) + len(self.words):
                    break
                if message > LARGEST or sequence > LARGEST or size > 9999:
                    break
                position = found.end()
                if count > 0 and message == first + count and sequence == last + count:
                    count += 1
                else:
                    if count > 0:
                        runs.append((first, count, last))
                    first, last, count = message, sequence, 1
        if count > 0:
            runs.append((first, count, last))
        return position
