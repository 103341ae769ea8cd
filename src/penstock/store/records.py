# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""The records of a block file of nats-server, which become columns as messages from the wire do.

A record, all numbers little-endian::

    size (4)      of the whole record; the highest bit says that it has headers
    sequence (8)  bit 63: the message was erased; bit 62: a tombstone, which says that this sequence was deleted
    time (8)      nanoseconds since 1970
    subject size (2)
    subject
    headers size (4), headers      if it has headers
    payload
    checksum (8)  HighwayHash-64 of sequence, time, subject, headers and payload

The key of the checksum is the SHA-256 of `<stream>-<number of the block>`. A record that is not whole, or is not what
its checksum says, ends the block: the server cuts the file off there, too. Sequences only ever rise: a record with a
sequence that was passed is of no account. What was deleted is not to be seen in its own block: its tombstone may stand
in any later one, or only the index of the stream knows it. So the caller says which sequences are dead.

Two sizes are outside of the checksum, those of the subject and of the headers: a byte that moves from one of them to
the next leaves it as it was. So a subject must be one that a server takes, and headers must end as headers do.

The C types stand in records.pxd, which only the compiler reads.
"""

from __future__ import annotations

import hashlib
from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcmp, memcpy
    from cython.cimports.penstock.store.checksums import Highway
    from cython.cimports.penstock.store.decoding import Decoder
    from cython.cimports.penstock.wire.buffers import Bytes, Numbers
else:
    from penstock.store.checksums import Highway
    from penstock.store.decoding import Decoder
    from penstock.wire.buffers import Bytes, Numbers

from penstock.store.decoding import BROKEN
from penstock.wire.columns import BEYOND

__all__ = ["COMPILED", "Records", "key_of"]

COMPILED: bool = bool(cython.compiled)

_BEYOND: int = BEYOND
_BROKEN: int = BROKEN

_HEAD = 22
_CHECKSUM = 8
_LARGEST = 32 << 20  # no record is larger, says the server
_SEQUENCE = (1 << 62) - 1

MESSAGE, ERASED, TOMBSTONE = 0, 1, 2


def key_of(stream: str, index: int) -> bytes:
    """Give the key of a block's checksums."""
    return hashlib.sha256(f"{stream}-{index}".encode()).digest()


class Records(Decoder):  # type: ignore[misc]  # a class of C, to mypy, is any
    """The rows of the blocks of a stream, of the sequences from `start` to `end`, and the place of the read.

    `sized` notes how many bytes each row takes in its block.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        max_rows: int,
        max_bytes: int,
        headers: bool = True,
        verify: bool = True,
        sized: bool = False,
    ) -> None:
        super().__init__(start, end, max_rows=max_rows, max_bytes=max_bytes, max_payload=_LARGEST, headers=headers)
        self.verify = verify
        self.sized = sized
        self.scratch = Bytes(4096)
        self.tombstones = Numbers(16)
        self.sizes = Numbers(16)
        self.open(bytes(32))

    def open(self, key: bytes, graves: bytes = b"") -> None:
        """Begin a block; `graves` are the sequences that are dead, packed as `penstock.store.graves` says."""
        self.hash = Highway(key)
        self.graves, self.graves_size = graves, len(graves)
        if cython.compiled:
            self.graves_data = cython.cast(cython.p_uchar, self.graves)
        self.grave, self.grave_base = 0, -1
        self.last = 0

    def _one(self, data: Any, position: int, end: int) -> int:
        size = self._record(data, position, end)
        if size == 0:
            self.stop = _BROKEN
        elif self.kind == MESSAGE and self.sequence > self.last:
            if self.sequence >= self.end:
                self.stop = _BEYOND
                return 0
            self.last = self.sequence
            if self.sequence >= self.next and not self._is_dead(self.sequence):
                self._message(data)
                if self.sized:
                    self.sizes.append(size)
        elif self.kind == ERASED and self.sequence > self.last:
            self.last = self.sequence
        return size

    def restart(self) -> None:
        """Begin a new batch."""
        super().restart()
        self.sizes = Numbers(16)

    def stored_sizes(self) -> list[int]:
        """Give how many bytes each row of the batch takes in the block."""
        count = self.sizes.count
        return memoryview(self.sizes.close()).cast("B").cast("q").tolist()[:count]

    def survey(self, buffer: bytearray, start: int, end: int) -> dict[str, Any]:
        """Say what records `buffer[start:end]` holds: how many, from where to where, what they erase, where it breaks.

        `messages` are those that are not erased here; a tombstone elsewhere may still say that one is dead. `present`
        are their sequences, packed as the dead are.
        """
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
        else:
            data = buffer
        self.tombstones = Numbers(16)
        position, records, messages, first, highest, first_time, last_time = start, 0, 0, 0, 0, 0, 0
        payload = 0
        present, base, bits = bytearray(), -1, bytearray(256)
        while position < end:
            size = self._record(data, position, end)
            if size == 0:
                break
            records += 1
            if self.kind == TOMBSTONE:
                self.tombstones.append(self.sequence)
            elif self.sequence > self.last:
                self.last = self.sequence
                if self.kind == MESSAGE:
                    if messages == 0:
                        first, first_time = self.sequence, self.time
                    messages += 1
                    highest, last_time = self.sequence, self.time
                    payload += size
                    place = self.sequence & 2047
                    if self.sequence - place != base:
                        if base >= 0:
                            present += base.to_bytes(8, "little") + bits
                        base, bits = self.sequence - place, bytearray(256)
                    bits[place >> 3] |= 1 << (place & 7)
            position += size
        if base >= 0:
            present += base.to_bytes(8, "little") + bits
        count = self.tombstones.count
        return {
            "records": records,
            "messages": messages,
            "bytes": payload,
            "first": first,
            "last": self.last,
            "last_message": highest,
            "first_time": first_time,
            "last_time": last_time,
            "tombstones": memoryview(self.tombstones.close()).cast("B").cast("q").tolist()[:count],
            "present": bytes(present),
            "end": position,
        }

    def _record(self, data: Any, position: int, end: int) -> int:
        """Read a record; give its size, 0 if it is broken."""
        if end - position < _HEAD:
            return 0
        size = sequence = time = subject_size = head = 0
        if cython.compiled:
            memcpy(cython.address(size), data + position, 4)
            memcpy(cython.address(sequence), data + position + 4, 8)
            memcpy(cython.address(time), data + position + 12, 8)
            memcpy(cython.address(subject_size), data + position + 20, 2)
        else:
            size = int.from_bytes(data[position : position + 4], "little")
            sequence = int.from_bytes(data[position + 4 : position + 12], "little")
            time = int.from_bytes(data[position + 12 : position + 20], "little", signed=True)
            subject_size = int.from_bytes(data[position + 20 : position + 22], "little")
        headed = size >> 31
        size &= 0x7FFFFFFF
        extra = 4 if headed else 0
        if size > _LARGEST or size < _HEAD + _CHECKSUM + subject_size + extra or end - position < size:
            return 0
        self.subject = position + _HEAD
        self.subject_end = self.subject + subject_size
        self.body = self.subject_end + extra
        self.total = position + size - _CHECKSUM - self.body
        if headed:
            if cython.compiled:
                memcpy(cython.address(head), data + self.subject_end, 4)
            else:
                head = int.from_bytes(data[self.subject_end : self.body], "little")
            if head > self.total:
                return 0
            self.head = head
        else:
            self.head = 0
        self.kind = TOMBSTONE if sequence >> 62 & 1 else ERASED if sequence >> 63 or sequence == 0 else MESSAGE
        if self.verify:
            if not self._holds(data, position, size):
                return 0
            if self.kind == MESSAGE and not (self._is_split(data) and self._is_subject(data)):
                return 0
        # Rounded down also before 1970, which C does not do by itself.
        self.time = time // 1000 if time >= 0 else -(-(time + 1) // 1000) - 1
        self.sequence = sequence & _SEQUENCE
        return size

    def _holds(self, data: Any, position: int, size: int) -> bool:
        """Tell whether a record is what its checksum says."""
        stop = self.body + self.total
        if cython.compiled:
            if self.body == self.subject_end and stop - position >= 38:
                # Two bytes lie between the time and the subject, and nothing else: the rest is read where it is.
                memcpy(self.first, data + position + 4, 16)
                memcpy(self.first + 16, data + position + 22, 16)
                value = self.hash.digest(self.first, data, position + 6, stop)
            else:
                self.scratch.used = 0
                self.scratch.piece(data, position + 4, position + 20)
                self.scratch.piece(data, self.subject, self.subject_end)
                self.scratch.piece(data, self.body, stop)
                value = self.hash.digest(self.scratch.items, self.scratch.items, 0, self.scratch.used)
            return memcmp(cython.address(value), data + stop, 8) == 0
        else:
            gathered = (
                data[position + 4 : position + 20] + data[self.subject : self.subject_end] + data[self.body : stop]
            )
            return self.hash.of(gathered) == int.from_bytes(data[stop : stop + 8], "little")

    def _is_split(self, data: Any) -> bool:
        """Tell whether headers end where the record says, which its checksum does not cover.

        Headers end with an empty line. Others may be meant so, unless there is such a line elsewhere.
        """
        if self.head == 0:
            return True
        stop = self.body + self.head
        if cython.compiled:
            if self.head >= 4 and memcmp(data + stop - 4, b"\r\n\r\n", 4) == 0:
                return True
            with cython.gil:
                return data[self.body : self.body + self.total].find(b"\r\n\r\n") < 0
        else:
            if self.head >= 4 and data[stop - 4 : stop] == b"\r\n\r\n":
                return True
            return data[self.body : self.body + self.total].find(b"\r\n\r\n") < 0

    def _is_subject(self, data: Any) -> bool:
        """Tell whether a subject is tokens between dots, without white space: the server matches no other."""
        before = 46
        for place in range(self.subject, self.subject_end):
            byte = data[place]
            if byte == 32 or byte == 9 or byte == 10 or byte == 13 or (byte == 46 and before == 46):
                return False
            before = byte
        return before != 46

    def _is_dead(self, sequence: int) -> bool:
        """Tell whether a sequence, higher than those that were asked for before, is dead."""
        while self.grave_base < 0 or sequence - self.grave_base >= 2048:
            if self.grave_base >= 0:
                self.grave += 264
            if self.grave + 264 > self.graves_size:
                self.grave_base = _SEQUENCE  # behind every sequence
                return False
            self._open_grave()
        place = sequence - self.grave_base
        if place < 0:
            return False
        if cython.compiled:
            return self.graves_data[self.grave + 8 + (place >> 3)] >> (place & 7) & 1
        else:
            return bool(self.graves[self.grave + 8 + (place >> 3)] >> (place & 7) & 1)

    def _open_grave(self) -> int:
        """Read the first sequence of the piece at hand."""
        base = 0
        if cython.compiled:
            memcpy(cython.address(base), self.graves_data + self.grave, 8)
        else:
            base = int.from_bytes(self.graves[self.grave : self.grave + 8], "little")
        self.grave_base = base & _SEQUENCE
        return 0
