"""The files of a NATS Streaming file store, as bytes: a version, then records.

::

    file      4 bytes: the version, 1   records
    record    4 bytes: size, or type << 24 | size in typed files   4: CRC-32 of the content   content
    index     8 bytes: sequence   8: offset   8: time   4: size   4: CRC-32 of the 28 bytes before

All numbers are little-endian; contents are protobuf. `server.dat` has one record, `clients.dat` typed ones (1 a client
came, 2 it went), `<channel>/subs.dat` typed ones (1 new, 2 changed, 3 gone, 4 acknowledged, 5 sent), and
`<channel>/msgs.<n>.dat` one for each message, beside an index `msgs.<n>.idx`. A file that was made larger in advance
ends with zeros.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from penstock.errors import RemoteProtocolError, StoreDamagedError

__all__ = [
    "SubscriptionRecord",
    "Subscriptions",
    "checksum",
    "fields_of",
    "is_encrypted",
    "read_subscription",
    "records",
    "text_of",
]

VERSION = 1
HEAD = struct.Struct("<II")
INDEX = struct.Struct("<QqqII")
_IEEE = 0xEDB88320
_NONCE = slice(5, 13)  # the number that counts up in a nonce, behind one byte for the cipher and four random ones
_LEAST_ENCRYPTED = 1 + 12 + 16

Checksum = Callable[[bytes], int]


def checksum(polynomial: int = _IEEE) -> Checksum:
    """Give the function for CRC-32 with this polynomial, written as the old server's -file_crc_poly has it."""
    if polynomial == _IEEE:
        return zlib.crc32
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (polynomial if number & 1 else 0)
        table.append(number)

    def count(content: bytes) -> int:
        crc = 0xFFFFFFFF
        for byte in content:
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        return crc ^ 0xFFFFFFFF

    return count


def records(
    file: BinaryIO, name: str, size: int, crc: Checksum, torn: Callable[[int], None], *, typed: bool
) -> Iterator[tuple[int, int, bytes]]:
    """Give type, offset and content of each record of a file of this size; StoreDamagedError for anything else.

    When a file ends within a record, as after a power failure, `torn` is told where that begins; it may raise.
    """
    head = file.read(4)
    if len(head) < 4 or not 0 < (version := int.from_bytes(head, "little")) <= VERSION:
        told = "is too short to say its version" if len(head) < 4 else f"is of version {version}"
        raise damaged(name, 0, told, "Is this a store of NATS Streaming? Only version 1 is known.")
    offset = 4
    while offset < size:
        head = file.read(HEAD.size)
        if len(head) < HEAD.size:
            return torn(offset)
        first, stored = HEAD.unpack(head)
        if first == stored == 0:
            return  # room that was made in advance
        kind, length = (first >> 24, first & 0xFFFFFF) if typed else (0, first)
        content = file.read(length) if offset + HEAD.size + length <= size else b""
        if len(content) < length:
            return torn(offset)
        if crc(content) != stored:
            raise damaged(
                name,
                offset,
                "has a record whose checksum is wrong",
                "Put back a copy of the file; if the old server ran with -file_crc_poly, give --crc-poly.",
            )
        yield kind, offset, content
        offset += HEAD.size + length


def damaged(name: str, offset: int, what: str, remedy: str) -> StoreDamagedError:
    """Say what is wrong with a file, and where."""
    return StoreDamagedError(f"The file {name} {what}, at byte {offset}.", remedy=remedy, store=name)


def cut_off(name: str, offset: int) -> StoreDamagedError:
    """Say that a file ends within a record."""
    what = f"The file {name} ends within a record that begins at byte {offset}: the old server was cut off there."
    remedy = "Give --truncate-bad-eof to go on without that record, as the old server's -file_truncate_bad_eof does."
    return StoreDamagedError(what, remedy=remedy, store=name)


# -- contents ----------------------------------------------------------------------------------------------------------


def fields_of(content: bytes) -> dict[int, int | bytes]:
    """Read the fields of a protobuf message that has numbers and bytes only; RemoteProtocolError for other bytes."""
    found: dict[int, int | bytes] = {}
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            if place >= len(content) or shift > 63:
                raise RemoteProtocolError("A number in a record does not end.")
            byte = content[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(content):
        tag = number()
        if tag & 7 == 0:
            found[tag >> 3] = number()
        elif tag & 7 == 2:
            length = number()
            if place + length > len(content):
                raise RemoteProtocolError("A text in a record does not end.")
            found[tag >> 3] = content[place : place + length]
            place += length
        else:
            raise RemoteProtocolError(f"Field {tag >> 3} of a record is neither a number nor bytes.")
    return found


def text_of(fields: dict[int, int | bytes], number: int) -> str:
    """Give a field that is text, empty if it is missing."""
    value = fields.get(number, b"")
    if isinstance(value, int):
        raise RemoteProtocolError(f"Field {number} of a record is a number, and not a text.")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"Field {number} of a record is not UTF-8.") from None


def _number(fields: dict[int, int | bytes], number: int) -> int:
    value = fields.get(number, 0)
    if not isinstance(value, int):
        raise RemoteProtocolError(f"Field {number} of a record is a text, and not a number.")
    return value


@dataclass
class SubscriptionRecord:
    """A subscription as the old server stored it, and the messages that it sent and that were not acknowledged."""

    id: int
    client: str
    queue: str
    """For a durable queue, `durable:queue`."""
    durable: str
    max_in_flight: int
    ack_wait: int
    last_sent: int
    keep: bool
    """Whether it is durable."""
    pending: set[int] = field(default_factory=set)


def read_subscription(content: bytes) -> SubscriptionRecord:
    """Read a subscription, with nothing pending."""
    fields = fields_of(content)
    texts = text_of(fields, 2), text_of(fields, 3), text_of(fields, 8)
    numbers = _number(fields, 6), _number(fields, 7), _number(fields, 9)
    # Servers before 0.3 did not say that a durable is one.
    keep = bool(_number(fields, 10)) or (bool(texts[2]) and not texts[1])
    return SubscriptionRecord(_number(fields, 1), *texts, *numbers, keep)


class Subscriptions:
    """What the records of one `subs.dat` add up to."""

    def __init__(self) -> None:
        self.known: dict[int, SubscriptionRecord] = {}

    def add(self, kind: int, content: bytes) -> None:
        """Take one record more."""
        fields = fields_of(content)
        id = _number(fields, 1)
        known = self.known.get(id)
        if kind in (1, 2):
            made = read_subscription(content)
            if kind == 2 and known is not None:
                made.pending = known.pending
            self.known[id] = made
        elif kind == 3:
            self.known.pop(id, None)
        elif kind in (4, 5):
            sequence = _number(fields, 2)
            if known is not None and kind == 5:
                known.last_sent = max(known.last_sent, sequence)
                known.pending.add(sequence)
            elif known is not None:
                known.pending.discard(sequence)
        else:
            raise RemoteProtocolError(f"There is no record of type {kind}.")


def is_encrypted(sequence: int, data: bytes) -> bool:
    """Tell a message that the old server encrypted: a cipher's number, and a nonce that counts as the sequence does."""
    return len(data) >= _LEAST_ENCRYPTED and data[0] in (1, 2) and int.from_bytes(data[_NONCE], "big") == sequence
