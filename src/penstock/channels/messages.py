"""How a channel's message lies in its stream, and how it goes out.

The payload is the publisher's, untouched. What the protocol needs beside it stands in headers:

- `Penstock-Time`: when the gateway took the message, in nanoseconds since 1970; never less than the one before.
- `Penstock-Bytes`: the bytes of all messages of the channel so far, this one included, counted as they are delivered.
- `Penstock-Reply`: the reply subject that the publisher gave, where it gave one; what a header cannot carry is written
  as in a URL, `%0A` for a line break.
- `Penstock-Batch`: the attempt that stored it, unless that was an atomic batch, which has a header of its own.
- `Penstock-Sequence`: for a message that was copied from elsewhere, its sequence there.

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
_TIME, _BYTES, _REPLY, _SEQUENCE, _BATCH = (name.encode() for name in (TIME, BYTES, REPLY, SEQUENCE, BATCH))


@dataclass(slots=True)
class Stored:
    """A message as read from its stream; `bytes_so_far` is None where somebody else wrote it."""

    sequence: int
    time: int
    data: bytes
    reply: str
    bytes_so_far: int | None
    batch: str
    origin: int | None

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
    """Read the answer to a direct get."""
    fields: dict[bytes, bytes] = {}
    for line in (header or b"").split(b"\r\n"):  # the hot path of a backlog: nothing is decoded that is not needed
        name, _, value = line.partition(b":")
        fields[name] = value
    try:
        stamp = _number(fields, _TIME)
        return Stored(
            int(fields[b"Nats-Sequence"]),
            _nanoseconds(fields[b"Nats-Time-Stamp"].decode().strip()) if stamp is None else stamp,
            data,
            unquote(fields[_REPLY].decode("utf-8", "replace").strip()) if _REPLY in fields else "",
            _number(fields, _BYTES),
            (fields.get(_BATCH) or fields.get(b"Nats-Batch-Id", b"")).strip().decode("utf-8", "replace"),
            _number(fields, _SEQUENCE),
        )
    except (KeyError, ValueError):
        names = b", ".join(sorted(fields)).decode("utf-8", "replace")
        raise RemoteProtocolError(f"A stored message has headers that cannot be read: {names}.") from None


def _number(fields: dict[bytes, bytes], name: bytes) -> int | None:
    """Read a number; what somebody else wrote under the name and is none counts as not there."""
    value = fields.get(name, b"").strip()
    return int(value) if value.isdigit() and len(value) < 20 else None


def _nanoseconds(text: str) -> int:
    """Read the server's time, exact to the nanosecond, which datetime is not."""
    whole, _, rest = text.rstrip("Z").partition(".")
    seconds = datetime.fromisoformat(whole + "+00:00").timestamp()
    return int(seconds) * 1_000_000_000 + int((rest + "000000000")[:9])
