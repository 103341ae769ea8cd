# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""Messages on their way to subscribers: encoded once, kept in one piece of memory, sent many in one piece.

A delivery is a MsgProto, as protobuf writes it, what is zero or empty left out::

    08 sequence   12 size channel   1a size reply   22 size data   28 time

An `Encoded` holds the deliveries of messages that stand behind each other in a channel, some perhaps missing.
`ClientFrames` puts frames for clients together. No Python object is made for a message on this way.

The C types stand in encoded.pxd, which only the compiler reads.
"""

from __future__ import annotations

from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.penstock.wire.buffers import Bytes, Numbers, find, number
else:
    from penstock.wire.buffers import Bytes, Numbers, find, number

__all__ = ["COMPILED", "ClientFrames", "Encoded", "channel_field", "join", "read_answers"]

COMPILED: bool = bool(cython.compiled)

_ROOM = 64 * 1024
_BESIDE = 26  # bytes of a delivery beside its channel, its payload and its reply subject: sequence, time, tags, size


def channel_field(channel: bytes) -> bytes:
    """Give the channel as it stands in each of its deliveries."""
    out = Bytes(64)
    out.varint(18)
    out.varint(len(channel))
    out.text(channel)
    return out.copy()


class Encoded:
    """Deliveries of one channel in the order of their sequences."""

    def __init__(self, field: bytes, room: int = 16, size: int = 2048) -> None:
        self.field = field
        """The channel, as `channel_field` writes it."""
        self.count = 0
        """How many messages there are."""
        self.size = 0
        """How many bytes they have."""
        self.sequences = Numbers(room)
        self.times = Numbers(room)
        self.ends = Numbers(room)
        self.content = Bytes(size + room * (len(field) + _BESIDE))

    def add(self, sequence: int, data: bytes, start: int, end: int, time: int, reply: bytes) -> int:
        """Add a message whose payload is `data[start:end]`; its sequence is behind those before it."""
        out = self.content
        out.varint(8)
        out.varint(sequence)
        out.text(self.field)
        if len(reply) > 0:
            out.varint(26)
            out.varint(len(reply))
            out.text(reply)
        if end > start:
            out.varint(34)
            out.varint(end - start)
            out.piece(data, start, end)
        if time > 0:
            out.varint(40)
            out.varint(time)
        self.sequences.append(sequence)
        self.times.append(time)
        self.ends.append(out.used)
        self.size = out.used
        self.count += 1
        return 0

    def extend(self, other: Encoded) -> int:
        """Add the messages of another one, which stand behind those of this one."""
        before = self.size
        if cython.compiled:
            self.content.piece(other.content.items, 0, other.size)
        else:
            self.content.piece(other.content.content, 0, other.size)
        for place in range(other.count):
            self.sequences.append(other.sequences.items[place])
            self.times.append(other.times.items[place])
            self.ends.append(before + other.ends.items[place])
        self.size = self.content.used
        self.count += other.count
        return 0

    @property
    def first(self) -> int:
        """The first sequence; there must be one."""
        return self.sequences.items[0]

    @property
    def last(self) -> int:
        """The last sequence; there must be one."""
        return self.sequences.items[self.count - 1]

    @property
    def last_time(self) -> int:
        """The time of the last message; there must be one."""
        return self.times.items[self.count - 1]

    def sequence(self, place: int) -> int:
        """Give the sequence at a place."""
        return self.sequences.items[place]

    def place(self, sequence: int) -> int:
        """Give the place of the first message that has this sequence or a later one; `count` if none has."""
        low = 0
        high = self.count
        if high > 0 and sequence >= self.sequences.items[0]:
            low = sequence - self.sequences.items[0]
            if low < high and self.sequences.items[low] == sequence:  # nothing is missing before it
                return low
            low = 0
        while low < high:
            middle = (low + high) // 2
            if self.sequences.items[middle] < sequence:
                low = middle + 1
            else:
                high = middle
        return low

    def run(self, place: int, most: int) -> int:
        """Count the messages from a place on that follow each other without a gap, up to `most`."""
        end = self.count if self.count - place < most else place + most
        stop = place + 1
        while stop < end and self.sequences.items[stop] == self.sequences.items[stop - 1] + 1:
            stop += 1
        return stop - place

    def start(self, place: int) -> int:
        """Tell where in the content the message at a place begins; at `count`, where the last one ends."""
        return self.ends.items[place - 1] if place > 0 else 0

    def get(self, sequence: int) -> bytes | None:
        """Give the delivery of one message; None if it is not here."""
        where = self.place(sequence)
        if where == self.count or self.sequences.items[where] != sequence:
            return None
        first = self.start(where)
        if cython.compiled:
            items = cython.cast(cython.p_char, self.content.items)
            return PyBytes_FromStringAndSize(items + first, self.ends.items[where] - first)
        return bytes(self.content.content[first : self.ends.items[where]])


def join(pieces: list[Encoded]) -> Encoded:
    """Put the messages of several into one that takes no more memory than they need."""
    count = size = 0
    for piece in pieces:
        count += piece.count
        size += piece.size
    field = pieces[0].field
    joined = Encoded(field, count, size - count * (len(field) + _BESIDE))
    for piece in pieces:
        joined.extend(piece)
    return joined


class ClientFrames:
    """Frames for clients that go out in one piece."""

    def __init__(self) -> None:
        self.out = Bytes(_ROOM)

    @property
    def size(self) -> int:
        """How many bytes are waiting."""
        return self.out.used

    def send(self, subject: bytes, payload: bytes, reply: bytes) -> int:
        """Add one message."""
        out = self.out
        out.text(b"PUB ")
        out.text(subject)
        if len(reply) > 0:
            out.text(b" ")
            out.text(reply)
        out.text(b" ")
        out.number(len(payload))
        out.text(b"\r\n")
        out.text(payload)
        return out.text(b"\r\n")

    def deliver(self, encoded: Encoded, place: int, end: int, inbox: bytes, most: int) -> int:
        """Add the deliveries from `place` to `end` for one inbox, up to the first that is larger than `most`.

        Give the place behind the last one that was added.
        """
        out = self.out
        start = encoded.start(place)
        while place < end:
            stop = encoded.ends.items[place]
            if stop - start > most:
                break
            out.text(b"PUB ")
            out.text(inbox)
            out.text(b" ")
            out.number(stop - start)
            out.text(b"\r\n")
            if cython.compiled:
                out.piece(encoded.content.items, start, stop)
            else:
                out.piece(encoded.content.content, start, stop)
            out.text(b"\r\n")
            start = stop
            place += 1
        return place

    def take(self) -> bytes:
        """Give the frames, and begin anew."""
        taken: bytes = self.out.copy()
        return taken


def read_answers(answers: list[Any], field: bytes, ours: bytes, reply: bytes, sequence: bytes, read: Any) -> Encoded:
    """Encode what a direct get gave, each a payload and a header block.

    Nearly every block begins with `ours` and the time, has no `reply`, and says its sequence in a line `sequence` near
    its end. `read` gives sequence, time and reply subject of any other one.
    """
    size = 0
    for payload, _ in answers:
        size += len(payload)
    encoded = Encoded(field, len(answers), size)
    for payload, block in answers:
        found = time = -1
        if block is not None and block.startswith(ours) and reply not in block:
            start = len(ours)
            time = number(block, start, find(block, 13, start, len(block)))
            start = block.rfind(sequence)
            if start > 0:
                start += len(sequence)
                if start < len(block) and block[start] == 32:
                    start += 1
                found = number(block, start, find(block, 13, start, len(block)))
        if found > 0 and time >= 0:
            encoded.add(found, payload, 0, len(payload), time, b"")
        else:
            found, time, where = read(payload, block)
            encoded.add(found, payload, 0, len(payload), time, where)
    return encoded
