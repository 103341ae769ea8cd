# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""Messages on their way into a channel: many PubMsgs read at once, their frames for JetStream, and their PubAcks.

A PubMsg is read where it arrived: `Publishes` notes where its fields stand, and sorts the payloads by channel. Nearly
every PubMsg has each of these fields at most once, text in ASCII, and nothing else::

    0a clientID   12 guid   1a subject   22 reply   2a data   32 connID

Any other one is brought into that form first, by the caller's `canonical`, which refuses what is not a PubMsg. No
Python object is made for a message on this way, but for the few that have a reply subject.

The C types stand in publishes.pxd, which only the compiler reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp
    from cython.cimports.penstock.channels.encoded import ClientFrames, Encoded
    from cython.cimports.penstock.wire.buffers import Bytes, Numbers
else:
    from penstock.channels.encoded import ClientFrames, Encoded
    from penstock.wire.buffers import Bytes, Numbers

__all__ = ["COMPILED", "NewMessages", "Publishes", "Words", "encode_new", "write_new"]

COMPILED: bool = bool(cython.compiled)

_PIECE = 256 * 1024  # bytes that stay in one piece of memory, or one message


class NewMessages:
    """Messages to append to one channel, in order: where each payload stands, and what goes with it."""

    def __init__(self) -> None:
        self.count = 0
        self.contents: list[bytes] = []
        self.starts = Numbers(16)
        self.ends = Numbers(16)
        self.places = Numbers(16)
        """Where in the publishes each one stands."""
        self.more: dict[int, tuple[bytes, int, bytes]] = {}
        """The reply subject, the time or -1, and the header lines of those messages that have any of them."""

    def __len__(self) -> int:
        return self.count

    def put(self, content: bytes, start: int, end: int, place: int) -> int:
        """Add a message whose payload is `content[start:end]`."""
        self.contents.append(content)
        self.starts.append(start)
        self.ends.append(end)
        self.places.append(place)
        self.count += 1
        return 0

    def add(self, data: bytes, reply: bytes = b"", time: int = -1, lines: bytes = b"") -> None:
        """Add a message with all that goes with it."""
        if reply or lines or time >= 0:
            self.more[self.count] = (reply, time, lines)
        self.put(data, 0, len(data), self.count)

    def place(self, number: int) -> int:
        """Give the place in the publishes of a message."""
        return self.places.items[number]


def encode_new(
    messages: NewMessages, first: int, end: int, field: bytes, sequence: int, now: int, stamp: int
) -> list[Any]:
    """Encode the messages `[first, end)` for delivery, from `sequence` on, in pieces.

    None is older than `stamp`, nor than the one before it; those without a time of their own have the time `now`.
    """
    found: list[Encoded] = []
    encoded = None
    for place in range(first, end):
        reply = b""
        time = now
        if messages.more:
            more = messages.more.get(place)
            if more is not None:
                reply = more[0]
                if more[1] >= 0:
                    time = more[1]
        if time > stamp:
            stamp = time
        if encoded is None or encoded.size > _PIECE:
            size = 0
            ahead = place
            while ahead < end and size <= _PIECE:
                size += messages.ends.items[ahead] - messages.starts.items[ahead]
                ahead += 1
            encoded = Encoded(field, ahead - place, size)
            found.append(encoded)
        start = messages.starts.items[place]
        encoded.add(sequence, messages.contents[place], start, messages.ends.items[place], stamp, reply)
        sequence += 1
    return found


class Words:
    """The words of headers, as they stand in a block: each name with its colon."""

    def __init__(self, time: bytes, size: bytes, expected: bytes) -> None:
        self.time = b"NATS/1.0\r\n" + time
        self.size = b"\r\n" + size
        self.expected = expected


def write_new(
    messages: NewMessages,
    first: int,
    end: int,
    encoded: list[Encoded],
    words: Words,
    subject: bytes,
    reply: bytes,
    expected: int,
    so_far: int,
    each: bytes,
    mark: bytes,
    commit: bytes,
) -> bytes:
    """Write the frames of the messages `[first, end)`, which `encode_new` encoded.

    Without a `mark` each names the message that it follows, beginning with `expected`, and has the lines `each`. With
    one, they are an atomic batch: each has the mark and its number, the first names what it follows, the last has the
    lines `commit`. Either way the last asks for an answer on `reply`. `so_far` counts the bytes of those before.
    """
    out = Bytes(_PIECE)
    head = Bytes(1024)
    number = 0
    place = first
    for piece in encoded:
        before = 0
        for row in range(piece.count):
            number += 1
            start, stop = messages.starts.items[place], messages.ends.items[place]
            so_far += piece.ends.items[row] - before
            before = piece.ends.items[row]
            head.text(words.time)
            head.number(piece.times.items[row])
            head.text(words.size)
            head.number(so_far)
            head.text(b"\r\n")
            if not mark or number == 1:
                if not mark:
                    head.text(each)
                head.text(words.expected)
                head.number(expected + number - 1)
                head.text(b"\r\n")
            if messages.more:
                more = messages.more.get(place)
                if more is not None:
                    head.text(more[2])
            place += 1
            if mark:
                head.text(mark)
                head.number(number)
                head.text(b"\r\n")
                if place == end:
                    head.text(commit)
            head.text(b"\r\n")
            out.text(b"HPUB ")
            out.text(subject)
            if place == end:
                out.text(b" ")
                out.text(reply)
            out.text(b" ")
            out.number(head.used)
            out.text(b" ")
            out.number(head.used + stop - start)
            out.text(b"\r\n")
            out.text(head.copy())
            out.piece(messages.contents[place - 1], start, stop)
            out.text(b"\r\n")
    written: bytes = out.copy()
    return written


class Publishes:
    """PubMsgs that came one behind the other: what they say, and the PubAcks for them.

    `batch` has for each the subject for its PubAck, empty if none is wanted, and its bytes.
    """

    def __init__(self, batch: list[tuple[bytes, bytes]]) -> None:
        self.batch = batch
        self.size = 0
        """How many bytes they have."""
        self.contents: list[bytes] = []
        self.guids = Numbers(2 * len(batch))
        self.errors: dict[int, bytes] = {}
        """What is wrong with some of them, by their places."""
        self.channels: dict[bytes, NewMessages] = {}
        """What is to be stored, by channel."""

    def sort(
        self,
        is_client: Callable[[str, bytes], bool],
        is_channel: Callable[[str], bool],
        canonical: Callable[[bytes], bytes | None],
        reply_line: Callable[[bytes], bytes],
        most: int,
        invalid: bytes,
        too_large: bytes,
    ) -> None:
        """Read all of them.

        `most` is how many bytes payload and reply subject may have together; `invalid` and `too_large` are said of
        those that are wrong.
        """
        client = conn = channel = b""
        messages = None
        place = -1
        for _, arrived in self.batch:
            place += 1
            content = arrived
            self.size += len(content)
            if not self.read(content, False):
                content = canonical(content) or b""
                self.read(content, True)
            self.contents.append(content)
            self.guids.append(self.guid)
            self.guids.append(self.guid_end)
            if self.guid_end == self.guid:
                self.errors[place] = invalid
                continue
            if messages is None or not self.same(content, self.subject, self.subject_end, channel):
                channel = content[self.subject : self.subject_end]
                messages = self.channels.get(channel)
                client = conn = b""  # whoever it was, it is looked at again
                if messages is None:
                    if not is_channel(channel.decode()):
                        self.errors[place] = invalid
                        continue
                    messages = self.channels[channel] = NewMessages()
            if not (
                (client or conn)
                and self.same(content, self.client, self.client_end, client)
                and self.same(content, self.conn, self.conn_end, conn)
            ):
                name, key = content[self.client : self.client_end], content[self.conn : self.conn_end]
                if not is_client(name.decode(), key):
                    self.errors[place] = invalid
                    continue
                client, conn = name, key
            if self.data_end - self.data + self.reply_end - self.reply > most:
                self.errors[place] = too_large
                continue
            if self.reply_end > self.reply:
                reply = content[self.reply : self.reply_end]
                messages.more[messages.count] = (reply, -1, reply_line(reply))
            messages.put(content, self.data, self.data_end, place)

    def same(self, content: bytes, start: int, end: int, other: bytes) -> bool:
        """Tell whether `content[start:end]` is `other`."""
        if cython.compiled:
            size = len(other)
            data = cython.cast(cython.p_char, content)
            return end - start == size and memcmp(data + start, cython.cast(cython.p_char, other), size) == 0
        return content[start:end] == other

    def read(self, content: bytes, known: bool) -> bool:
        """Note where the fields of a PubMsg stand; False if it is not of the usual form.

        Of one that is `known` to be right the text need not be in ASCII.
        """
        self.client = self.client_end = self.guid = self.guid_end = self.subject = self.subject_end = 0
        self.reply = self.reply_end = self.data = self.data_end = self.conn = self.conn_end = 0
        place, end = 0, len(content)
        data = cython.cast(cython.p_uchar, content) if cython.compiled else content
        while place < end:
            tag = data[place]
            place += 1
            size = shift = 0
            while True:
                if place == end or shift > 28:
                    return False
                byte = data[place]
                place += 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            if size > end - place:
                return False
            stop = place + size
            if tag == 42:
                self.data, self.data_end = place, stop
            elif tag == 50:
                self.conn, self.conn_end = place, stop
            elif tag == 82:
                pass  # sha256, of which nobody makes use
            else:
                if tag == 10:
                    self.client, self.client_end = place, stop
                elif tag == 18:
                    self.guid, self.guid_end = place, stop
                elif tag == 26:
                    self.subject, self.subject_end = place, stop
                elif tag == 34:
                    self.reply, self.reply_end = place, stop
                else:
                    return False
                if not known:
                    while place < stop:
                        if data[place] > 127:
                            return False
                        place += 1
            place = stop
        return True

    def fail(self, messages: NewMessages, error: bytes) -> None:
        """Note what is wrong with all messages of a channel."""
        for number in range(messages.count):
            self.errors[messages.places.items[number]] = error

    def write_acks(self, out: ClientFrames) -> None:
        """Write the PubAcks, in the order of the PubMsgs."""
        ack = Bytes(256)
        for place, (reply, _) in enumerate(self.batch):
            if len(reply) > 0:
                start, end = self.guids.items[2 * place], self.guids.items[2 * place + 1]
                if end > start:
                    ack.varint(10)
                    ack.varint(end - start)
                    ack.piece(self.contents[place], start, end)
                if self.errors:
                    error = self.errors.get(place)
                    if error:
                        ack.varint(18)
                        ack.varint(len(error))
                        ack.text(error)
                out.send(reply, ack.copy(), b"")
