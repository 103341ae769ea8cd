"""How a channel's message lies in its stream, and how it goes out.

The payload is the publisher's, untouched. What the protocol needs beside it stands in headers:

- `Penstock-Time`: when the gateway took the message, in nanoseconds since 1970; never less than the one before.
- `Penstock-Bytes`: the bytes of all messages of the channel so far, this one included, counted as they are delivered.
- `Penstock-Reply`: the reply subject that the publisher gave, where it gave one; what a header cannot carry is written
  as in a URL, `%0A` for a line break.
- `Penstock-Batch`: the attempt that stored it, unless that was an atomic batch, which has a header of its own.
- `Penstock-Sequence`: for a message that was copied from elsewhere, its sequence there.
- `Penstock-Gap`: for a place that shall be empty because it was so where the channel was copied from; such a message is
  deleted right after it was stored.

A message that somebody else wrote to the stream has none of these; its time is the stream's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote

from penstock.channels.wire import MsgProto
from penstock.errors import RemoteProtocolError

__all__ = [
    "BATCH",
    "BYTES",
    "GAP",
    "REPLY",
    "SEQUENCE",
    "TIME",
    "Stored",
    "encode",
    "headers_of",
    "parse_stored",
    "quote_reply",
]

TIME = "Penstock-Time"
BYTES = "Penstock-Bytes"
REPLY = "Penstock-Reply"
SEQUENCE = "Penstock-Sequence"
BATCH = "Penstock-Batch"
GAP = "Penstock-Gap"
_TIME, _BYTES, _REPLY, _SEQUENCE, _GAP, _BATCH, _ATOMIC, _AT, _STAMP = (
    f"\r\n{name}:".encode()
    for name in (TIME, BYTES, REPLY, SEQUENCE, GAP, BATCH, "Nats-Batch-Id", "Nats-Sequence", "Nats-Time-Stamp")
)


_OURS = f"NATS/1.0\r\n{TIME}: ".encode()


@dataclass(slots=True)
class Stored:
    """A message as read from its stream, with its header block as it came."""

    sequence: int
    time: int
    data: bytes
    reply: str
    header: bytes

    @property
    def bytes_so_far(self) -> int | None:
        """The bytes of the channel up to this message; None where somebody else wrote it."""
        return _number(_field(self.header, _BYTES))

    @property
    def batch(self) -> str:
        """The attempt that stored it."""
        return (_field(self.header, _BATCH) or _field(self.header, _ATOMIC)).decode("utf-8", "replace")

    @property
    def origin(self) -> int | None:
        """Its sequence where it was copied from."""
        return _number(_field(self.header, _SEQUENCE))

    @property
    def gap(self) -> bool:
        """Whether it only holds the place of what was missing where the channel was copied from."""
        return bool(_field(self.header, _GAP))

    def encode(self, channel: str) -> bytes:
        """Give the bytes of its first delivery."""
        return encode(channel, self.sequence, self.data, self.time, self.reply)


def encode(channel: str, sequence: int, data: bytes, time: int, reply: str) -> bytes:
    """Give the bytes of a first delivery."""
    content: bytes = MsgProto(
        sequence=sequence, subject=channel, reply=reply, data=data, timestamp=time
    ).SerializeToString()
    return content


def quote_reply(reply: str) -> str:
    """Write a reply subject so that a header can carry it."""
    return quote(reply, safe="!#$&'()*+,/:;=?@[]<>^`{|}~\"\\")


def headers_of(header: bytes | None) -> dict[str, str]:
    """Read a header block; of a name that comes twice, the last, which is what the server added."""
    found: dict[str, str] = {}
    for line in (header or b"").split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            found[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return found


def parse_stored(data: bytes, header: bytes | None) -> Stored:
    """Read the answer to a direct get. A backlog comes this way: only what a delivery needs is looked for."""
    block = header or b""
    sequence = _number(_field(block, _AT))
    if block.startswith(_OURS):  # as we write it
        stamp = _number(block[len(_OURS) : block.find(b"\r\n", len(_OURS))])
    else:
        stamp = _number(_field(block, _TIME))
    if stamp is None:
        stamp = _nanoseconds(_field(block, _STAMP).decode("utf-8", "replace"))
    if sequence is None or stamp is None:
        raise RemoteProtocolError(f"The answer to a direct get has the headers {sorted(headers_of(header))}.")
    reply = unquote(_field(block, _REPLY).decode("utf-8", "replace")) if _REPLY in block else ""
    return Stored(sequence, stamp, data, reply, block)


def _field(block: bytes, name: bytes) -> bytes:
    """Give a header's value; of a name that comes twice the last, which is what the server added."""
    place = block.rfind(name)
    if place < 0:
        return b""
    start = place + len(name)
    return block[start : block.find(b"\r\n", start)].strip()


def _number(value: bytes) -> int | None:
    """Read a number; what somebody else wrote under the name and is none counts as not there."""
    return int(value) if value.isdigit() and len(value) < 20 else None


def _nanoseconds(text: str) -> int | None:
    """Read the server's time, exact to the nanosecond, which datetime is not; None where it is none."""
    whole, _, rest = text.rstrip("Z").partition(".")
    try:
        seconds = datetime.fromisoformat(whole + "+00:00").timestamp()
        return int(seconds) * 1_000_000_000 + int((rest + "000000000")[:9])
    except ValueError:
        return None
