"""Messages that a stream is asked for: from any replica (direct get, one or many at once), or from its leader.

A direct get is answered by the messages themselves, in order. The server's headers stand behind the publisher's, which
may have the same names::

    Nats-Stream  Nats-Subject  Nats-Sequence  Nats-Time-Stamp  and, of many, Nats-Num-Pending  Nats-Last-Sequence

Many end with a status: 204 EOB. 404: there is none. 408, 413: the server takes no request of this form.

Who answers is not said by whom was asked. A replica may lag behind the leader. A mirror answers for its origin, with
whatever it holds: less, other subjects, messages that the origin has deleted, or those of a stream that had the name
before; then Nats-Stream names the mirror. So messages count if Nats-Stream is the stream that was asked, and nothing is
gone unless the leader says so.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from penstock.errors import JetStreamError, NoRespondersError, PenstockError, RemoteProtocolError
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import StatusKind, number, part, read_status, text
from penstock.wire.protocol import decode_status

__all__ = [
    "DirectGet",
    "Found",
    "answers_for",
    "leader_question",
    "nanoseconds",
    "published_headers",
    "question",
    "read_answer",
    "read_found",
    "read_headers",
    "read_message",
    "value",
    "whole",
]

_STREAM, _SUBJECT, _SEQUENCE, _TIME, _PENDING = (
    f"\r\n{name}:".encode() for name in (names.STREAM, names.SUBJECT, names.SEQUENCE, names.TIME, names.NUM_PENDING)
)
_TOLD = (names.STREAM, names.SUBJECT, names.SEQUENCE, names.TIME)
_TOLD_OF_MANY = (names.NUM_PENDING, names.LAST_SEQUENCE)
_DIGITS = 20
# All that a server tells of one message, in its order, and nothing behind it: the quick way to read it.
_OF_ONE = re.compile(
    rb"\r\nNats-Stream: ([!-~]+)\r\nNats-Subject: ([^\x00-\x20]+)\r\nNats-Sequence: ([0-9]{1,%d})\r\n"
    rb"Nats-Time-Stamp: ([!-~]*)\r\n\r\n" % _DIGITS
)


def question(
    sequence: int | None = None,
    *,
    subject: str | None = None,
    last: str | None = None,
    since: str | None = None,
    batch: int | None = None,
    max_bytes: int | None = None,
) -> dict[str, Any]:
    """Ask for the message at `sequence`, for the first from there on that matches `subject`, or for the `last` of one.

    `since` is a time, instead of a sequence. With `batch`, for so many from there on, and only up to `max_bytes`, but
    at least one.
    """
    body = {"seq": sequence, "start_time": since, "next_by_subj": subject, "last_by_subj": last}
    body |= {"batch": batch, "max_bytes": max_bytes}
    return {name: item for name, item in body.items() if item is not None}


def leader_question(body: Mapping[str, Any], sequence: int | None = None) -> dict[str, Any]:
    """Turn a direct get into what a leader answers: for one message, or for the next from a sequence on."""
    if "batch" not in body:
        return dict(body)
    start = {"seq": sequence} if sequence else {name: body[name] for name in ("seq", "start_time") if name in body}
    return {**start, "next_by_subj": body.get("next_by_subj", ">")}


def value(block: bytes, name: bytes) -> bytes:
    r"""Give a header's value, nothing if there is none; of several the last, which is the server's.

    `name` is written as it stands in the block, `b"\r\nNats-Sequence:"`.
    """
    place = block.rfind(name)
    if place < 0:
        return b""
    start = place + len(name)
    return block[start : block.find(b"\r\n", start)].strip()


def answers_for(block: bytes | None) -> str:
    """Tell which stream a message that answers a direct get is of: the one that was asked, or a mirror of it."""
    return value(block or b"", _STREAM).decode("utf-8", "replace")


def is_answer_of(stream: str, block: bytes | None) -> bool:
    """Tell whether a message that answers a direct get is of this stream, as `answers_for` says."""
    if block is None:
        return False
    line = b"%b %b\r\n" % (_STREAM, stream.encode())
    return block.startswith(line, block.rfind(_STREAM)) or answers_for(block) == stream


def read_headers(block: bytes) -> dict[str, list[str]]:
    """Read headers, all values of each name in order; other lines, which anybody may store, do not count.

    Bytes that are not UTF-8 survive, as in `protocol.decode_headers`.
    """
    headers: dict[str, list[str]] = {}
    for line in block.decode("utf-8", "surrogateescape").split("\r\n")[1:]:
        name, colon, said = line.partition(":")
        if colon:
            headers.setdefault(name, []).append(said.strip(" \t"))
    return headers


def published_headers(block: bytes, *, many: bool = False) -> dict[str, list[str]]:
    """Read the publisher's headers of a message that answers a direct get, for one or for many, without the server's.

    The server's stand behind them, and may have the same names.
    """
    headers = read_headers(block)
    for name in (*_TOLD, *(_TOLD_OF_MANY if many else ())):
        if name in headers and not headers[name][:-1]:
            del headers[name]
        elif name in headers:
            headers[name].pop()
    return headers


def whole(digits: bytes) -> int | None:
    """Read a whole number of 64 bits; None for what is none."""
    return int(digits) if digits.isdigit() and len(digits) <= _DIGITS else None


def nanoseconds(time: str) -> int | None:
    """Read the server's time, exact to the nanosecond, which datetime is not; None for what is none."""
    seconds, _, rest = time.removesuffix("Z").partition(".")
    try:
        moment = datetime.fromisoformat(f"{seconds}+00:00").timestamp()
        return int(moment) * 1_000_000_000 + int(f"{rest:0<9}") if len(rest) <= 9 else None
    except ValueError:
        return None


class Found(NamedTuple):
    """A message that a stream holds."""

    subject: str
    sequence: int
    payload: bytes
    header: bytes
    """The block of headers as it came, nothing if there is none; a direct get adds to the publisher's."""
    time: str
    """When it was stored, as the server writes it."""
    pending: int | None = None
    """How many follow, if many were asked for."""

    def as_answer(self, stream: str) -> tuple[bytes, bytes]:
        """Give payload and header block as a direct get gives them, the server's headers behind the publisher's."""
        told = {names.STREAM: stream, names.SUBJECT: self.subject, names.SEQUENCE: self.sequence, names.TIME: self.time}
        lines = "".join(f"{name}: {item}\r\n" for name, item in told.items())
        return self.payload, (self.header[:-2] or b"NATS/1.0\r\n") + lines.encode() + b"\r\n"


def read_found(payload: bytes, header: bytes | None) -> Found:
    """Read a message that answers a direct get."""
    block = header or b""
    subject, sequence = value(block, _SUBJECT), whole(value(block, _SEQUENCE))
    if not subject or sequence is None:
        raise RemoteProtocolError("An answer to a direct get does not say its subject and sequence.")
    time = value(block, _TIME).decode("utf-8", "replace")
    return Found(subject.decode("utf-8", "replace"), sequence, payload, block, time, whole(value(block, _PENDING)))


def read_answer(payload: bytes, block: bytes, stream: str) -> Found | None:
    """Read the message that answers a direct get for one; None if it is not of the stream that was asked."""
    place = block.rfind(_STREAM)
    told = _OF_ONE.fullmatch(block, place) if place >= 0 else None
    if told is None:
        return read_found(payload, block) if answers_for(block) == stream else None
    answered, subject, sequence, time = told.groups()
    if answered.decode("ascii") != stream:
        return None
    return Found(subject.decode("utf-8", "replace"), int(sequence), payload, block, time.decode("ascii"))


def read_message(answer: Mapping[str, Any]) -> Found:
    """Read the leader's answer to STREAM.MSG.GET."""
    message = part(answer, "message")
    try:
        payload, header = (base64.b64decode(text(message, name, ""), validate=True) for name in ("data", "hdrs"))
    except (binascii.Error, ValueError):
        raise RemoteProtocolError("A message of JetStream's answer is not written in base64.") from None
    return Found(text(message, "subject"), number(message, "seq"), payload, header, text(message, "time", ""))


class DirectGet:
    """One direct get, from the request to the last of its answers."""

    def __init__(self, stream: str, body: Mapping[str, Any]) -> None:
        self.stream = stream
        self.payload = json.dumps(body, separators=(",", ":")).encode()
        self.answers: list[tuple[bytes, bytes | None]] = []
        """The messages so far, each a payload and a header block."""
        self._many, self._most = "batch" in body, body.get("batch", 1)
        self._error: PenstockError | None = None

    def hear(self, payload: bytes, header: bytes | None) -> bool:
        """Take an answer and tell whether it is the last one. What is wrong with it is raised by `result`."""
        if header is None or header[8:9] == b"\r":
            if len(self.answers) >= self._most:  # and what follows is kept by nobody
                what = f"Stream {self.stream} gives more than the {self._most:,} messages that were asked for."
                self._error = RemoteProtocolError(what, remedy="Is a nats-server at the other end?")
                return True
            self.answers.append((payload, header))
            return not self._many
        try:
            self._end(header)
        except PenstockError as error:
            self._error = error
        return True

    def _end(self, header: bytes) -> None:
        code, description = decode_status(header)
        status = read_status(code or 0, description)
        if status.kind is StatusKind.NOBODY:
            raise NoRespondersError(
                f"Nobody gives messages of stream {self.stream}.", remedy="Is it there, and does it allow direct get?"
            )
        if status.kind not in (StatusKind.END, StatusKind.NONE):
            raise JetStreamError(
                f"Stream {self.stream} refuses a direct get: {description} ({code}).",
                remedy="Is the server 2.11 or newer?",
                code=code,
                description=description,
            )

    def result(self) -> list[tuple[bytes, bytes | None]]:
        """Give the messages, none if there are none."""
        if self._error is not None:
            raise self._error
        return self.answers
