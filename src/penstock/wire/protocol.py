# cython: language_level=3, annotation_typing=False, binding=True
"""The NATS client protocol with no I/O: bytes in, events out, and bytes for what a client sends.

What a server sends (every line ends with CR LF and holds neither before that; blanks or tabs separate its words)::

    INFO {json}
    MSG <subject> <sid> [reply] <size>            then <size> bytes and CR LF
    HMSG <subject> <sid> [reply] <header> <size>  then <header> bytes of headers, <size> - <header> of payload, CR LF
    PING | PONG | +OK | -ERR '<text>'

What a client sends::

    CONNECT {json}
    PUB <subject> [reply] <size>                  then <size> bytes and CR LF
    HPUB <subject> [reply] <header> <size>        then headers, payload, CR LF
    SUB <subject> [queue] <sid>
    UNSUB <sid> [max]
    PING | PONG

Headers (ADR-4): `NATS/1.0`, a status and its description if there is one, then `Name: value` lines and an empty one.

The parser is incremental: any split of the bytes gives the same events. It holds one bounded buffer that a socket can
receive into. A frame that breaks the grammar or a limit raises RemoteProtocolError with the place of its first byte in
all that was fed; the parser is of no use after that. What other publishers wrote into headers is not the server's
fault, so a message keeps its header block as it came, and reading it is a step of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

try:
    import cython  # the compiler needs to see this import; at run time Cython need not be there
except ModuleNotFoundError:
    from penstock.wire import _shadow as cython

from penstock.errors import LocalProtocolError, RemoteProtocolError

__all__ = [
    "COMPILED",
    "MAX_HEADER",
    "MAX_LINE",
    "MAX_PAYLOAD",
    "PING",
    "PONG",
    "Err",
    "Event",
    "Headers",
    "Info",
    "Message",
    "Ok",
    "Parser",
    "Ping",
    "Pong",
    "check_subject",
    "connect",
    "decode_headers",
    "decode_status",
    "encode_headers",
    "publish",
    "subscribe",
    "unsubscribe",
]

COMPILED: bool = bool(cython.compiled)

MAX_LINE = 64 * 1024  # INFO of a large cluster lists hundreds of addresses in some ten thousand bytes
MAX_HEADER = 4 * 1024 * 1024
MAX_PAYLOAD = 64 * 1024 * 1024 + MAX_HEADER  # what a server can be configured to carry, and headers that it adds
RECEIVE_SIZE = 1024 * 1024
SMALL_REST = 16 * 1024  # bytes of a frame that is not whole yet, and is moved to the front of the buffer at once

PING = b"PING\r\n"
PONG = b"PONG\r\n"
VERSION = b"NATS/1.0"

Headers = dict[str, list[str]]

_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f.]+(?:\.[^\s\x00-\x20\x7f.]+)*")
_QUEUE = re.compile(r"[^\s\x00-\x20\x7f]+")
_NAME = re.compile(r"[!-9;-~]+")  # printable ASCII but the colon
_STATUS = re.compile(rb"NATS/1\.0(?:[ \t]+([0-9]{3})(?:[ \t]+([^\r\n]*?))?)?[ \t]*")


@dataclass(slots=True)
class Event:
    """Something that the server said."""


class Ping(Event):
    """The server wants a PONG."""

    __slots__ = ()


class Pong(Event):
    """The server has handled everything that we sent before our PING."""

    __slots__ = ()


class Ok(Event):
    """The server took a command, in verbose mode."""

    __slots__ = ()


_BARE: dict[bytes, type[Event]] = {b"PING": Ping, b"PONG": Pong, b"+OK": Ok}


@dataclass(slots=True)
class Info(Event):
    """The server describes itself."""

    fields: dict[str, Any]


@dataclass(slots=True)
class Err(Event):
    """The server complains, and mostly closes the connection next."""

    text: str


@dataclass(slots=True)
class Message(Event):
    """A message for subscription `sid`; `header` is the block as it came, `None` if there is none."""

    subject: str
    sid: int
    reply: str | None
    header: bytes | None
    payload: bytes

    @property
    def headers(self) -> Headers:
        """The headers by name, as written; RemoteProtocolError if the block is broken."""
        return {} if self.header is None else decode_headers(self.header)[2]

    @property
    def status(self) -> int | None:
        """The status code of a message that has one, such as 404."""
        return None if self.header is None else decode_status(self.header)[0]

    @property
    def description(self) -> str:
        """What the server says beside the status."""
        return "" if self.header is None else decode_status(self.header)[1]


def decode_status(block: bytes) -> tuple[int | None, str]:
    """Read the first line of a header block: the status, `None` for an ordinary message, and its description."""
    end = block.find(b"\r\n")
    found = _STATUS.fullmatch(block, 0, end if end >= 0 else len(block))
    if found is None or end < 0:
        raise RemoteProtocolError("A header block does not begin with NATS/1.0.", place=0)
    code, description = found.groups()
    return (None if code is None else int(code)), (description or b"").decode("utf-8", "replace")


def decode_headers(block: bytes) -> tuple[int | None, str, Headers]:
    """Read a header block whole: status, description and headers. Names keep their case, values lose outer blanks.

    Bytes that are not UTF-8 survive as `surrogateescape` decodes them, and `encode_headers` gives them back.
    """
    status, description = decode_status(block)
    if not block.endswith(b"\r\n\r\n") and block != b"NATS/1.0\r\n":
        raise RemoteProtocolError("A header block does not end with an empty line.", place=len(block))
    headers: Headers = {}
    place = block.find(b"\r\n") + 2
    for line in block[place:-2].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if line and (not colon or not name):
            raise RemoteProtocolError(f"A header line without a name or a colon: {line[:80]!r}.", place=place)
        if line:
            headers.setdefault(name.decode("utf-8", "surrogateescape"), []).append(
                value.strip(b" \t").decode("utf-8", "surrogateescape")
            )
        place += len(line) + 2
    return status, description, headers


def encode_headers(headers: Mapping[str, str | Iterable[str]]) -> bytes:
    """Write a header block; LocalProtocolError for a name or a value that the format cannot carry."""
    lines = [VERSION]
    for name, values in headers.items():
        if not _NAME.fullmatch(name):
            raise LocalProtocolError(
                f"{name!r} is not a name for a header.", remedy="Use printable ASCII without blanks and colons."
            )
        for value in (values,) if isinstance(values, str) else values:
            if "\r" in value or "\n" in value:
                raise LocalProtocolError(f"The value of header {name} holds a line break.", remedy="Take it out.")
            lines.append(_written(f"{name}: {value}", "surrogateescape"))
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def check_subject(subject: str, *, wildcards: bool = False) -> str:
    """Give the subject back if it is one; LocalProtocolError if not. Wildcards are for subscribing only."""
    if not _SUBJECT.fullmatch(subject):
        raise LocalProtocolError(
            f"{subject[:200]!r} is not a subject.",
            remedy="Write tokens joined by dots, without blanks or empty tokens.",
        )
    if "*" in subject or ">" in subject:
        tokens = subject.split(".")
        wild = "*" in tokens or ">" in tokens
        if wild and not wildcards:
            raise LocalProtocolError(f"{subject[:200]!r} has wildcards.", remedy="Name one subject.")
        if ">" in tokens[:-1]:
            raise LocalProtocolError(f"{subject[:200]!r} has > before its last token.", remedy="Use * there.")
    return subject


def connect(fields: Mapping[str, Any]) -> bytes:
    """Write CONNECT with these fields."""
    return b"CONNECT " + json.dumps(fields, separators=(",", ":")).encode() + b"\r\n"


def publish(subject: str, payload: bytes, reply: str | None = None, header: bytes | None = None) -> bytes:
    """Write PUB, or HPUB if there is a header block."""
    line = check_subject(subject) if reply is None else f"{check_subject(subject)} {check_subject(reply)}"
    if header is None:
        return b"PUB %s %d\r\n%s\r\n" % (line.encode(), len(payload), payload)
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (line.encode(), len(header), len(header) + len(payload), header, payload)


def subscribe(subject: str, sid: int, queue: str | None = None) -> bytes:
    """Write SUB; bytes that are not UTF-8, as `surrogateescape` decodes them, come out again as they were."""
    check_subject(subject, wildcards=True)
    if queue is None:
        return _written(f"SUB {subject} {sid}\r\n", "surrogateescape")
    if not _QUEUE.fullmatch(queue):
        raise LocalProtocolError(
            f"{queue[:200]!r} is not a name for a queue group.", remedy="Write a name without blanks."
        )
    return _written(f"SUB {subject} {queue} {sid}\r\n", "surrogateescape")


def _written(text: str, errors: str) -> bytes:
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise LocalProtocolError(
            f"{text[:80]!r} cannot be written as UTF-8.", remedy="Take lone surrogates out."
        ) from None


def unsubscribe(sid: int, after: int | None = None) -> bytes:
    """Write UNSUB, at once or after a number of messages."""
    return b"UNSUB %d\r\n" % sid if after is None else b"UNSUB %d %d\r\n" % (sid, after)


class Parser:
    """Turns the bytes that a server sends into events.

    `buffer[start:end]` is what was received and not yet taken. `columns` and `frames` take from it directly.
    """

    def __init__(
        self, *, max_line: int = MAX_LINE, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD
    ) -> None:
        self.max_line = max_line
        self.max_header = max_header
        self.max_payload = max_payload
        self.buffer = bytearray(min(RECEIVE_SIZE, self.limit))
        self.start = 0
        self.end = 0
        self.taken = 0  # bytes that left the buffer, so that `place` counts from the first byte ever fed
        self.missing = 0  # the frame at `start` is known to need this many bytes

    @property
    def limit(self) -> int:
        """The most bytes that the buffer ever holds: the largest frame that is allowed."""
        return self.max_line + self.max_payload + 4

    @property
    def place(self) -> int:
        """The offset, in all that was fed, of the first byte that was not taken."""
        return self.taken + self.start

    def space(self) -> memoryview:
        """Give room to receive into; say with `received` how much of it was filled."""
        if self.start == self.end:
            self.begin()
        size, rest = len(self.buffer), self.end - self.start
        # Moving a rest of a few kilobytes is cheap; receiving into the last few bytes of the buffer is not, and neither
        # is going through all of it, again and again, if a part that stays in the processor's cache is enough.
        if self.start > 0 and (rest <= SMALL_REST or size - self.end < size // 4):
            with memoryview(self.buffer) as view:
                view[:rest] = view[self.start : self.end]
            self.taken += self.start
            self.start, self.end = 0, rest
        if self.end == size:
            self.resize(min(2 * size, self.limit))
        return memoryview(self.buffer)[self.end :]

    def begin(self) -> None:
        """Begin at the start of the buffer again, as everything in it was taken."""
        self.taken += self.start
        self.start = self.end = 0

    def resize(self, size: int) -> None:
        """Go on with a buffer of another size; what waits in it must fit."""
        fresh = bytearray(size)
        rest = self.end - self.start
        with memoryview(self.buffer) as view:
            fresh[:rest] = view[self.start : self.end]
        self.taken += self.start
        self.buffer, self.start, self.end = fresh, 0, rest

    def received(self, size: int) -> None:
        """Say that `size` bytes stand in the room given by `space`."""
        self.end += size

    def feed(self, content: bytes | bytearray | memoryview) -> None:
        """Add bytes; take the events out before adding more than `limit` bytes."""
        view = memoryview(content)
        while view:
            room = self.space()
            size = min(len(room), len(view))
            if size == 0:
                raise LocalProtocolError("More bytes than the limit were fed without taking events out.")
            room[:size] = view[:size]
            self.end += size
            view = view[size:]

    def take(self, position: int) -> None:
        """Say that everything before `position` of the buffer was taken."""
        self.start = position
        self.missing = 0

    def next_event(self) -> Event | None:
        """Give the next event, or None until more bytes come."""
        start, end = self.start, self.end
        if end - start < self.missing:
            return None
        stop = self.buffer.find(b"\n", start, min(end, start + self.max_line))
        if stop < 0:
            if end - start >= self.max_line:
                raise self._error(f"A line is longer than {self.max_line} bytes")
            return None
        if stop == start or self.buffer[stop - 1] != 13:
            raise self._error("A line does not end with CR LF")
        line = bytes(self.buffer[start : stop - 1])
        if b"\r" in line:
            raise self._error("A line holds a CR before its end")
        words = line.split(None, 1)
        kind = words[0].upper() if words and line[0] not in b" \t" else b""
        if kind == b"MSG" or kind == b"HMSG":
            return self._message(line, kind == b"HMSG", stop + 1)
        event = self._plain(kind, words[1] if len(words) > 1 else b"", line)
        self.take(stop + 1)
        return event

    def _plain(self, kind: bytes, rest: bytes, line: bytes) -> Event:
        if kind == b"INFO":
            try:
                fields = json.loads(rest)
            except (ValueError, RecursionError):
                raise self._error("INFO does not carry JSON") from None
            if not isinstance(fields, dict):
                raise self._error("INFO does not carry an object")
            return Info(fields)
        if kind == b"-ERR":
            return Err(rest.strip().strip(b"'").decode("utf-8", "replace"))
        if kind in _BARE and not rest.strip():
            return _BARE[kind]()
        raise self._error(f"An unknown command {line[:40]!r}")

    def _message(self, line: bytes, with_header: bool, body: int) -> Message | None:
        words = line.split()
        least = 5 if with_header else 4
        if len(words) not in (least, least + 1):
            raise self._error(f"A message line with {len(words)} words")
        sid = self._number(words[2], "subscription", 18)
        total = self._number(words[-1], "size", 10)
        head = self._number(words[-2], "header size", 10) if with_header else 0
        if total > self.max_payload:
            raise self._error(f"A message of {total} bytes, more than the {self.max_payload} allowed")
        if head > total or head > self.max_header:
            raise self._error(f"A header of {head} bytes in a message of {total}, {self.max_header} being allowed")
        stop = body + total
        if self.end < stop + 2:
            self.missing = stop + 2 - self.start
            return None
        buffer = self.buffer
        if buffer[stop] != 13 or buffer[stop + 1] != 10:
            raise self._error("A payload does not end with CR LF")
        message = Message(
            words[1].decode("utf-8", "replace"),
            sid,
            words[3].decode("utf-8", "replace") if len(words) > least else None,
            bytes(buffer[body : body + head]) if with_header else None,
            bytes(buffer[body + head : stop]),
        )
        self.take(stop + 2)
        return message

    def _number(self, word: bytes, what: str, digits: int) -> int:
        if not word.isdigit() or len(word) > digits:
            raise self._error(f"A {what} that is not a number: {word[:40]!r}")
        return int(word)

    def _error(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{what}, at byte {self.place} of what the server sent.",
            remedy="Is this the client port of a NATS server, and does nothing change the bytes on the way?",
            place=self.place,
        )
