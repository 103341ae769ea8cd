"""Atomic batches (ADR-50): up to a thousand messages that are stored together or not at all.

Every message says its batch and its place in it; the last one commits, and only its answer counts::

    Nats-Batch-Id: <id>                 made up anew for every attempt
    Nats-Batch-Sequence: <number>       from 1 on, without a gap
    Nats-Batch-Commit: 1                on the last one

What the answer to an attempt means::

    an ack that names the batch, and counts it      STORED
    any other ack                                   nobody knows: RemoteProtocolError
    10201, and an earlier attempt may be stored     STORED by that one: the server refuses ids that it knows
    10176                                           PASSING: a new leader has not seen what the old one took; REFUSED
                                                    in the end, because a message that the server drops does the same
    any other error                                 as it is judged
    no answer                                       UNKNOWN: with ids it may be sent again
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import JetStreamError, PenstockError, RemoteProtocolError
from penstock.wire import frames
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import confirm, hindrance
from penstock.wire.jetstream.answers import PubAck
from penstock.wire.jetstream.verdicts import Verdict, judge

__all__ = [
    "MOST",
    "Attempts",
    "confirm_batch",
    "encode",
    "encode_rows",
    "lines",
    "mark_lines",
    "marks",
    "new_id",
    "together",
]

MOST = 1000  # the server's limit
_TRIES = 3  # for a batch that is incomplete: a message that the server drops makes it so for ever


def new_id() -> str:
    """Make up the id of a batch; no two batches may have the same."""
    return secrets.token_hex(12)


def marks(batch_id: str, number: int, *, commit: bool = False) -> dict[str, str]:
    """Give the headers that make a message part of a batch."""
    found = {names.BATCH_ID: batch_id, names.BATCH_SEQUENCE: str(number)}
    return {**found, names.BATCH_COMMIT: "1"} if commit else found


def lines(headers: Mapping[str, str]) -> str:
    """Write headers as lines; names and values must be ones that the format can carry."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def mark_lines(batch_id: str) -> tuple[bytes, bytes]:
    """Give the lines that every message of a batch has, up to its number, and those that the last one has besides."""
    return f"{names.BATCH_ID}: {batch_id}\r\n{names.BATCH_SEQUENCE}: ".encode(), f"{names.BATCH_COMMIT}: 1\r\n".encode()


def encode(messages: Sequence[tuple[bytes, str, bytes]], batch_id: str, reply: bytes = b"", *, first: int = 1) -> bytes:
    """Write messages, each a subject, its own header lines and a payload, as the frames of a batch.

    With `reply` the last one commits the batch and is answered there; without, the batch stays open. `first` is the
    number of the first one in its batch.
    """
    found = []
    mark, commit = (line.decode() for line in mark_lines(batch_id))
    for number, (subject, own, payload) in enumerate(messages, start=first):
        last = bool(reply) and number == first + len(messages) - 1
        header = f"NATS/1.0\r\n{own}{mark}{number}\r\n{commit if last else ''}\r\n".encode()
        where = b"%b %b" % (subject, reply) if last else subject
        found.append(b"HPUB %b %d %d\r\n%b%b\r\n" % (where, len(header), len(header) + len(payload), header, payload))
    return b"".join(found)


def encode_rows(
    rows: frames.Rows,
    first: int,
    last: int,
    batch_id: str,
    *,
    most_bytes: int = 1 << 40,
    reply: str = "",
    ids: bytes = b"",
    id_offset: int = 0,
    number: int = 1,
) -> tuple[int, bytearray]:
    """Write rows as the frames of a batch, up to about `most_bytes`; give the row behind the last, and the frames.

    With `reply` the last row commits the batch and is answered on that subject with the number of rows behind it;
    without, the batch stays open. Rows without an id get `ids`, their number and `id_offset`. `number` is that of the
    first row in its batch.
    """
    common: dict[str, Any] = {"counter": names.BATCH_SEQUENCE.encode(), "id_prefix": ids, "id_offset": id_offset}
    name = f"{names.BATCH_ID}: {batch_id}\r\n".encode()
    body = frames.Encoder(fixed=name, **common)
    if not reply:
        return body.write(rows, first, last, number, most_bytes), body.take()
    body.write(rows, first, last - 1, number, most_bytes)
    end = frames.Encoder(fixed=name + f"{names.BATCH_COMMIT}: 1\r\n".encode(), reply_prefix=reply.encode(), **common)
    end.write(rows, last - 1, last, number + last - first - 1, 1)
    return last, body.take() + end.take()


def confirm_batch(
    payload: bytes, status: int | None, stream: str, domain: str | None, batch_id: str, count: int
) -> PubAck:
    """Read what answered the commit of a batch of `count` messages; raises what `confirm` and `together` do."""
    return together(confirm(payload, status, stream, domain), batch_id, count)


def together(ack: PubAck, batch_id: str, count: int) -> PubAck:
    """Give an ack back if it says that these messages are stored together; RemoteProtocolError if not.

    A server that does not know batches takes each message for one by itself, and acknowledges the last one.
    """
    if (ack.batch, ack.count) == (batch_id, count):
        return ack
    said = "no batch" if ack.batch is None else f"{'this' if ack.batch == batch_id else 'another'} batch"
    raise RemoteProtocolError(
        f"The ack of an atomic batch of {count:,} messages names {said}, and {ack.count or 0:,} messages: all of them "
        f"may be in stream {ack.stream}, or some, or none.",
        remedy="Does every server of the cluster know atomic batches, and does nobody else answer on the subject? See "
        "what is in the stream before you publish them again.",
    )


class Attempts:
    """The attempts to store one batch, until its fate is known.

    `ids`: every message has one, so that the batch may be sent again. `ours`: we made all of them up, so that a
    duplicate can only be our own. `safe` is for how many seconds the stream remembers them.
    """

    def __init__(self, *, ids: bool, ours: bool, safe: float) -> None:
        self.ids = ids
        self.ours = ours
        self.safe = safe
        self.count = 0
        self.lost = False
        self.batch_id = ""  # of the attempt that is under way
        self._first = 0.0

    def begin(self, now: float) -> str:
        """Begin an attempt and give its batch id."""
        self._first = self._first if self.count else now
        self.count += 1
        self.batch_id = new_id()
        return self.batch_id

    def judge(self, error: PenstockError) -> Verdict:
        """Say what became of the batch, having what the last attempt came to instead of an ack."""
        code = error.err_code if isinstance(error, JetStreamError) else None
        if code == names.DUPLICATE_IN_BATCH:
            return Verdict.STORED if self.ids and (self.lost or (self.ours and self.count > 1)) else Verdict.REFUSED
        if code == names.INCOMPLETE_BATCH:
            return Verdict.PASSING if self.count < _TRIES else Verdict.REFUSED
        verdict = judge(error)
        self.lost = self.lost or verdict is Verdict.UNKNOWN
        return verdict

    def hindrance(self, now: float) -> str:
        """Say why the batch cannot be sent again, nothing if it can."""
        return hindrance("the batch", ids=self.ids, safe=now - self._first <= self.safe)
