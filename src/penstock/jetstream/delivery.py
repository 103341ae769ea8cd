"""A delivered message, where it stands, and every way to answer for it.

The place is in the reply subject:

    $JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<time>.<pending>

with <domain>.<account> before the stream if the server speaks of domains. The answers are small bodies sent there:
`+ACK`, `-NAK {"delay": ns}`, `+WPI`, `+NXT {...}`, `+TERM reason`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.connection import Msg
from penstock.connection.asking import api_request
from penstock.connection.messages import UNREAD, as_bytes
from penstock.durations import parse_duration
from penstock.errors import (
    DeadlineError,
    DeniedError,
    DisconnectedError,
    InputError,
    JetStreamError,
    NotFoundError,
    RemoteProtocolError,
)
from penstock.wire.jetstream import names, pull
from penstock.wire.jetstream.answers import StatusKind, read_status
from penstock.wire.jetstream.direct import nanoseconds, read_message
from penstock.wire.jetstream.names import ACK, MSG_ID, PIN_ID
from penstock.wire.jetstream.verdicts import Verdict, may_ask_again
from penstock.wire.patience import Deadline

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Delivery", "Place", "is_delivery", "parse_place"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANO = 1_000_000_000


@dataclass(frozen=True)
class Place:
    """Where a delivery stands in its stream and its consumer."""

    stream: str
    consumer: str
    delivered: int
    """How often this message was delivered, this time included."""
    sequence: int
    """Its sequence in the stream."""
    consumer_sequence: int
    """How many deliveries the consumer made, this one included."""
    time: datetime
    """When the stream stored it."""
    pending: int
    """How many messages wait behind it."""
    domain: str | None = None


def is_delivery(message: Msg) -> bool:
    """Tell a delivery from a status; only a delivery can be answered for."""
    return message.reply.startswith(f"{ACK}.")


def parse_place(reply: str) -> Place:
    """Read the reply subject of a delivery."""
    tokens = reply.split(".")
    domain = None
    if len(tokens) >= 11:
        domain = None if tokens[2] == "_" else tokens[2]
        tokens = [*tokens[:2], *tokens[4:11]]
    try:
        if tokens[:2] != ["$JS", "ACK"] or len(tokens) != 9:
            raise ValueError
        delivered, sequence, consumer_sequence, stored, pending = (int(token) for token in tokens[4:])
        time = _time(stored)
    except (ValueError, OverflowError):
        raise RemoteProtocolError(f"{reply[:200]!r} is not the reply subject of a delivery.") from None
    return Place(tokens[2], tokens[3], delivered, sequence, consumer_sequence, time, pending, domain)


def _time(stored: int) -> datetime:
    """Give the moment of so many nanoseconds since 1970, as exact as Python has it."""
    return _EPOCH + timedelta(microseconds=stored // 1000)


class _Unknown(Exception):
    """A stream does not tell whether it has a message: `why`."""

    def __init__(self, why: JetStreamError | DeniedError) -> None:
        super().__init__(str(why))
        self.why = why


class Delivery(Msg):
    """A message as a consumer delivers it. Answer once: `ack`, `ack_sync`, `nak`, `term` or `ack_next`."""

    __slots__ = ("_place", "_stretch", "settled")

    def __init__(self, client: Connection, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        # As a message has it, without a call more for each of them.
        self._connection, self.sid, self._subject, self._reply = client, 0, subject, reply
        self.data, self.header_block, self._headers = data, block, UNREAD
        self._place: Place | None = None
        # The stretch of the connection in which its sequence is known to be this message's.
        self._stretch = client._lifeline.stretch
        self.settled = False
        """Whether it was acknowledged, refused or given back."""

    @classmethod
    def of(cls, message: Msg) -> Delivery:
        """Make a delivery of a message that is one."""
        return cls(
            message._connection, as_bytes(message.subject), as_bytes(message.reply), message.data, message.header_block
        )

    @property
    def headers(self) -> dict[str, str]:
        """The headers, of a repeated one the last; none is empty."""
        return super().headers or {}

    @property
    def place(self) -> Place:
        """Where it stands in its stream and its consumer."""
        if self._place is None:
            self._place = parse_place(self.reply)
        return self._place

    @property
    def sequence(self) -> int:
        """Its sequence in the stream."""
        return self.place.sequence

    @property
    def delivered(self) -> int:
        """How often it was delivered, this time included."""
        return self.place.delivered

    @property
    def id(self) -> str | None:
        """The `Nats-Msg-Id` it was published with."""
        return self.headers.get(MSG_ID)

    def __repr__(self) -> str:
        where = f"{self.place.stream} {self.sequence} on {self.subject}"
        return f"<Delivery {where}, {len(self.data)} bytes, #{self.delivered}>"

    async def ack(self) -> None:
        """Say that it is done; the server may not hear it, and then delivers it again.

        If the connection broke since it was delivered, nothing is sent: see `_answer`.
        """
        self._settle()
        connection = self._connection  # as `_answer` has it, without a coroutine more for each message
        if connection.is_full(connection.send_within(self._stretch, self._reply, b"+ACK")):
            await connection.written()

    async def ack_sync(self, *, timeout: str | float = 30.0) -> None:
        """Say that it is done, and wait until the server has confirmed it.

        It is not delivered again then, unless the power of the server fails before it has written that down: acks are
        confirmed up to a tenth of a second earlier.
        """
        await self._answer(b"+ACK", timeout)

    async def nak(self, delay: str | float = 0.0, *, sync: bool = False, timeout: str | float = 30.0) -> None:
        """Give it back, to be delivered again, at once or after a delay; `sync` waits for the confirmation."""
        seconds = parse_duration(delay, option="delay")
        body = b"-NAK" + (json.dumps({"delay": round(seconds * _NANO)}).encode() if seconds else b"")
        await self._answer(body, timeout if sync else None)

    async def in_progress(self, *, sync: bool = False, timeout: str | float = 30.0) -> None:
        """Say that work goes on, which starts the ack wait anew; `sync` waits for the confirmation."""
        await self._answer(b"+WPI", timeout if sync else None, settles=False)

    async def term(self, reason: str = "", *, sync: bool = False, timeout: str | float = 30.0) -> None:
        """Say that it will never be done, so that it is not delivered again; the reason is in the server's advisory."""
        body = b"+TERM" + (b" " + " ".join(reason.split()).encode() if reason else b"")
        await self._answer(body, timeout if sync else None)

    async def ack_next(
        self, *, wait: str | float = 5.0, no_wait: bool = False, group: str | None = None
    ) -> Delivery | None:
        """Say that it is done and ask for the next message; None if none comes in time, or is there with `no_wait`.

        A consumer with priority groups wants to know which `group` this is.
        """
        found = await self.ack_next_batch(1, wait=wait, no_wait=no_wait, group=group)
        return found[0] if found else None

    async def ack_next_batch(
        self, count: int, *, wait: str | float = 5.0, no_wait: bool = False, group: str | None = None
    ) -> list[Delivery]:
        """Say that it is done and ask for the next messages in one step; fewer if no more come in time."""
        seconds = parse_duration(wait, option="wait")
        if seconds <= 0 or count < 1:
            raise InputError("wait and count are more than zero.", remedy="Give some time, such as 5s.")
        self._settle()
        about = {"group": group, "id": self.headers.get(PIN_ID)} if group is not None else {}
        about = {name: value for name, value in about.items() if value is not None}
        body = pull.body(count, expires=None if no_wait else seconds, no_wait=no_wait, about=about)
        inbox = self._connection.new_inbox()
        found: list[Delivery] = []
        subscription = await self._connection.subscribe(inbox)
        try:
            asked = b"+NXT " + json.dumps(body).encode()
            if not self._connection.send_within(self._stretch, self._reply, asked, as_bytes(inbox)):
                what = f"The connection broke since message {self.sequence} of {self.place.stream} was delivered."
                raise DisconnectedError(what, remedy="It comes again; ask the consumer for the next one.")
            while len(found) < count:
                try:
                    message = await subscription.next_msg(timeout=seconds + 1)
                except TimeoutError:
                    break
                if not is_delivery(message):
                    self._check_end(message)
                    break
                found.append(Delivery.of(message))
        finally:
            if not self._connection.is_closed:
                await subscription.unsubscribe()
        return found

    def _check_end(self, message: Msg) -> None:
        """Raise if the server says something else than that there are no more messages now."""
        said = read_status(message.status or 0, message.description or "")
        consumer = f"Consumer {self.place.consumer} of {self.place.stream}"
        if said.kind is StatusKind.DELETED:
            raise NotFoundError(f"{consumer} was deleted.", code=404)
        if said.verdict is Verdict.REFUSED:
            what = f"{consumer} refuses to deliver: {said.code} {said.description}."
            raise JetStreamError(what, code=said.code, description=said.description)

    def _settle(self) -> None:
        if self.settled:
            raise InputError(f"Message {self.sequence} was answered already.", remedy="Answer once.")
        self.settled = True

    async def _answer(self, body: bytes, timeout: str | float | None = None, *, settles: bool = True) -> None:
        """Send an answer; with a timeout, repeat it until the server confirms it.

        That is harmless while the connection stands. Beyond a break its sequence may be another message's, because a
        store was put back from an older copy, or the stream was made anew: an answer would take that one away unread.
        So one that is not confirmed is not sent beyond a break, and the message comes again.
        """
        seconds = None if timeout is None else parse_duration(timeout, option="timeout")
        if settles:
            self._settle()
        if seconds is not None:
            await self._insist(body, seconds)
        elif self._connection.is_full(self._connection.send_within(self._stretch, self._reply, body)):
            await self._connection.written()

    async def _insist(self, body: bytes, seconds: float) -> None:
        deadline, attempt = Deadline(seconds), 0.5
        while True:
            wait = max(min(attempt, deadline.left), 0.01)
            try:
                if await self._is_there(wait):
                    await self._connection.request(self.reply, body, timeout=wait)
                return
            except (DeadlineError, DisconnectedError) as error:
                if self._connection.is_closed or not deadline.left:
                    raise self._unconfirmed(body, seconds, f"in {seconds:g} s") from error
            except _Unknown as error:
                if not deadline.left or not may_ask_again(error.why):
                    why = f"before the connection broke, and the stream does not tell whether it has it: {error.why}"
                    raise self._unconfirmed(body, seconds, why.rstrip(".")) from error.why
            attempt = min(attempt * 2, 5.0)
            await asyncio.sleep(min(0.1, deadline.left))

    def _unconfirmed(self, body: bytes, seconds: float, why: str) -> DeadlineError:
        answer, message = body.split(b" ")[0].decode(), f"message {self.sequence} of {self.place.stream}"
        what = f"The server did not confirm {answer} for {message} {why}."
        return DeadlineError(what, remedy="It may be delivered again.", seconds=seconds, subject=self.subject)

    async def _is_there(self, timeout: float) -> bool:
        """Tell whether the stream still has this message; what is gone, or another one, is not answered for.

        It is asked after a break of the connection only, and nothing is kept to be sent behind the next one. Raises
        _Unknown if the stream refuses to tell.
        """
        stretch = self._connection.stretch
        if not self._connection.is_connected:
            raise DisconnectedError("The connection is away.", urls=self._connection.options.urls)
        if stretch != self._stretch:
            method = names.message_get(self.place.stream)
            try:
                found = read_message(
                    await api_request(self._connection, method, {"seq": self.sequence}, timeout=timeout)
                )
            except (JetStreamError, DeniedError) as error:
                if isinstance(error, NotFoundError) and error.err_code == names.NO_MESSAGE:
                    return False
                raise _Unknown(error) from error
            if _time(nanoseconds(found.time) or 0) != self.place.time:
                return False
            self._stretch = stretch
        return True
