"""`Publisher`: messages into one stream, in order, each stored once.

Each message has an id, so that a repeat after a lost ack is recognised. In strict order each goes when the one before
it is stored: right with any stream and any number of writers, and nothing is stored that the caller did not give.

`order="chained"` keeps the same order with many messages on their way: each says which one it expects before it. If
one is lost, the server refuses those behind it, and all of them are sent again, one by one. The server stores what a
message says of this: such a message cannot be published again with all its headers, by nobody. With other writers on
the stream the check fails often, and the publisher goes message by message for a while. A replicated stream can check
the order only if nobody else writes into it (`sole_writer`); without that promise its messages go one by one, and so
do counters, and messages of a stream that publishes them again (`republish`).

`order="sent"` leaves all that out: fast, and in order but for what is on its way when something fails. Batches are in
order and fast, too.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.jetstream import assets
from penstock.jetstream.batch import BatchAck, Route, publish_atomic, publish_fast, refuse_empty
from penstock.jetstream.in_flight import InFlight
from penstock.jetstream.outgoing import Outgoing
from penstock.jetstream.pending import Pending
from penstock.jetstream.schedule import check_taken
from penstock.model import PubAck, Stream
from penstock.wire.jetstream.acked import no_window
from penstock.wire.jetstream.atomic import MOST
from penstock.wire.subjects import covers

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Publisher"]

log = logging.getLogger("penstock.jetstream")

_LOOK = 30.0  # how long a stream may be without a leader when we first look at it
# Repeats end after this share of the duplicate window. The rest is for the way there: the server counts from when it
# stored the first copy.
_SAFE = 2 / 3
_KNOWN = 1000  # subjects that are known to be the stream's
# What a stream must allow for a batch, and what publishes it.
_WAYS = {"atomic": ("allow_atomic", publish_atomic), "fast": ("allow_batched", publish_fast)}


class Publisher:
    """Publishes into one stream. Use it with `async with`; leaving the block waits for every ack.

    `ids` makes the id of a message that has none of its own. `in_flight` and `in_flight_bytes` bound what has no ack.
    An ack that is not there after `ack_timeout` counts as lost. Retries end after `patience`, which cannot be longer
    than the stream remembers ids; then the error says that nobody knows whether the message is stored. A stream that
    remembers no ids is refused.
    """

    def __init__(
        self,
        client: Connection,
        stream: str,
        *,
        ids: Callable[[Outgoing], str] | None = None,
        order: Literal["strict", "chained", "sent"] = "strict",
        sole_writer: bool = False,
        in_flight: int = 256,
        in_flight_bytes: int = 8 * 1024 * 1024,
        ack_timeout: str | float = 5.0,
        patience: str | float | None = None,
    ) -> None:
        if order not in ("strict", "chained", "sent"):
            raise InputError(f"order is {order!r}.", remedy='Use "strict", "chained" or "sent".')
        if sole_writer and order != "chained":
            what = f"sole_writer is given, and order is {order!r}."
            raise InputError(what, remedy='It is for order="chained": leave it out, or give both.')
        if in_flight < 1 or in_flight_bytes < 1:
            raise InputError("in_flight and in_flight_bytes are at least 1.", remedy="Leave them out, or raise them.")
        self.stream = assets.checked(stream, "stream")
        self._client, self._ids, self._most = client, ids, in_flight
        self._sole_writer = sole_writer
        self._ack_timeout = parse_duration(ack_timeout, option="ack_timeout")
        self._asked_patience = None if patience is None else parse_duration(patience, option="patience")
        if self._ack_timeout <= 0:
            raise InputError("ack_timeout is zero.", remedy="Give some time, such as 5s.")
        self._in_flight = InFlight(
            client,
            self.stream,
            order=order,
            made_up=ids is None,
            remembered=self._remembered,
            most=in_flight,
            most_bytes=in_flight_bytes,
            ack_timeout=self._ack_timeout,
        )
        self._count = 0
        self._prefix = secrets.token_hex(8)

    @property
    def stored(self) -> int:
        """How many messages were stored, batches not counted."""
        return self._in_flight.stored

    @property
    def duplicates(self) -> int:
        """How many were there already, and added nothing."""
        return self._in_flight.duplicates

    @property
    def retries(self) -> int:
        """How often a message was sent again."""
        return self._in_flight.retries

    # -- opening and closing -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def open(self) -> None:
        """Look at the stream, and listen for acks."""
        await self._look()
        config = self._config
        if self._unwanted:
            log.warning("Stream %s has no consumer: what it acknowledges now, it does not keep.", self.stream)
        if config.no_ack:
            what = f"Stream {self.stream} gives no acks (no_ack), so nobody can know what it stored."
            raise InputError(what, remedy="Publish with nc.publish, or let the stream ack.")
        if config.mirror is not None or config.sealed:
            what = "a mirror" if config.mirror else "sealed"
            raise InputError(f"Stream {self.stream} is {what} and takes no messages.", remedy="Choose another stream.")
        window, asked = config.duplicate_window or 0.0, self._asked_patience
        if not window:
            raise no_window(self.stream)
        most = window * _SAFE
        if asked is not None and asked > most:
            what = f"patience is {asked:g} s, and stream {self.stream} remembers ids for {window:g} s only."
            remedy = f"A later retry could store a message twice: give {most:g} s or less, or widen duplicate_window."
            raise InputError(what, remedy=remedy)
        self._patience = asked if asked is not None else min(60.0, window / 2)
        await self._in_flight.open(self._patience, config, sole_writer=self._sole_writer)

    async def close(self) -> None:
        """Stop at once; what has no ack yet fails with a DisconnectedError."""
        await self._in_flight.close()

    async def _remembered(self) -> float:
        await self._look(patience=0.0)
        return (self._config.duplicate_window or 0.0) * _SAFE

    async def _look(self, patience: float = _LOOK) -> None:
        info = await assets.stream_info(self._client, self.stream, patience=patience)
        self._config: Stream = info.config
        self._unwanted = info.config.retention == "interest" and not info.consumers
        self._captured: set[str] = set()

    # -- publishing --------------------------------------------------------------------------------

    async def publish(self, subject: str, data: bytes = b"", **about: Any) -> PubAck:
        """Publish a message and wait until it is stored; `about` are the further fields of `Outgoing`.

        The result says the sequence, and whether the id was there already (`duplicate`), so that nothing was added.
        """
        item = await self._send(Outgoing(subject, data, **about), awaited=True)
        try:
            return await asyncio.shield(item.future)
        except asyncio.CancelledError:
            self._in_flight.abandon(item)
            raise

    async def send(self, subject: str, data: bytes = b"", **about: Any) -> asyncio.Future[PubAck]:
        """Publish a message without waiting for its ack, only for room; the result can be awaited for the ack.

        A failure is raised by the result, and by `flush`.
        """
        return (await self._send(Outgoing(subject, data, **about), awaited=False)).future

    async def publish_all(self, messages: Iterable[Outgoing] | AsyncIterable[Outgoing]) -> AsyncIterator[PubAck]:
        """Publish many messages, and give their acks in order.

        `messages` are values of `Outgoing`: a list or a tuple, or any iterable, also an asynchronous one, which is read
        as there is room. A list or tuple is checked whole before anything of it is sent, what comes from elsewhere when
        it comes: a message that cannot be sent is an InputError that says which one, counted from 0. The first failure
        is raised, and ends it; what becomes of those that were sent behind it, `flush` tells.
        """
        self._check_open()
        _check_many(messages)
        if isinstance(messages, Sequence):
            await self._check_all(messages)
        waiting: deque[Pending] = deque()
        number = -1
        try:
            async for out in _each(messages):
                number += 1
                try:
                    waiting.append(await self._send(out, awaited=True))
                except InputError as error:
                    raise _numbered(number, error) from None
                while waiting and (waiting[0].future.done() or len(waiting) >= self._most):
                    yield await self._ack(waiting)
            while waiting:
                yield await self._ack(waiting)
        finally:
            for item in waiting:
                self._in_flight.abandon(item)

    async def _check_all(self, messages: Sequence[Outgoing]) -> None:
        """Refuse messages of which one cannot be sent."""
        if not all(isinstance(out, Outgoing) and self._captures(out.subject) for out in messages):
            await self._look()  # the stream may have been edited
        for _ in self._checked(messages):
            pass

    def _checked(self, messages: Iterable[Outgoing]) -> Iterator[Outgoing]:
        """Give messages, each once it is known that it can be sent."""
        for number, out in enumerate(messages):
            try:
                self._check(out)
            except InputError as error:
                raise _numbered(number, error) from None
            yield out

    async def _ack(self, waiting: deque[Pending]) -> PubAck:
        try:
            return await asyncio.shield(waiting[0].future)
        finally:
            if waiting[0].future.done():
                waiting.popleft()

    async def publish_batch(
        self, messages: Iterable[Outgoing], how: Literal["atomic", "fast", "plain"] | None = None
    ) -> BatchAck:
        """Publish messages together: all or none (`atomic`), by fast ingest (`fast`), or one by one (`plain`).

        A list or tuple is checked whole before anything of it is sent, as `publish_all` does, and so is what is stored
        all or none.
        Without `how` the stream decides: atomic if it allows that and there are at most 1,000, or fast, or else plain.
        Messages of an atomic batch keep its headers: published again with them, by a stream that does so (`republish`)
        or by anybody, they are taken for part of a batch. So such a stream gets none unless it is asked for.
        """
        self._check_open()
        _check_many(messages)
        await self._look()
        if isinstance(messages, Sequence) or how in (None, "atomic"):
            messages = list(messages)
            await self._check_all(messages)
        if how is None:
            messages = list(messages)
            fits = self._config.allow_atomic and len(messages) <= MOST and self._config.republish is None
            how = "atomic" if fits else "fast" if self._config.allow_batched else "plain"
        if how == "plain":
            acks = [ack async for ack in self.publish_all(messages)]
            refuse_empty(acks)
            return BatchAck(self.stream, "plain", len(acks), acks[-1].sequence, sum(ack.duplicate for ack in acks))
        if how not in _WAYS:
            raise InputError(f"how is {how!r}.", remedy='Use "atomic", "fast" or "plain".')
        allowed, publish = _WAYS[how]
        if not getattr(self._config, allowed):
            remedy = f"Set {allowed} on the stream, or leave how out."
            raise InputError(f"Stream {self.stream} takes no {how} batches.", remedy=remedy)
        route = Route(self._client, self.stream, self._ack_timeout, self._patience, self._checked_id)
        async with self._in_flight.quiet():
            return await publish(route, self._checked(messages))

    async def flush(self) -> None:
        """Wait until everything sent has met its fate; raise the first failure of what was only sent."""
        await self._in_flight.drained()
        if self._in_flight.failures:
            first, self._in_flight.failures = self._in_flight.failures[0], []
            raise first

    def _send(self, out: Outgoing, *, awaited: bool) -> Coroutine[Any, Any, Pending]:
        self._check_open()
        if isinstance(out, Outgoing) and not self._captures(out.subject):
            return self._look_and_send(out, awaited=awaited)
        return self._in_flight.send(out, self._checked_id(out), awaited=awaited)

    async def _look_and_send(self, out: Outgoing, *, awaited: bool) -> Pending:
        await self._look()  # the stream may have been edited
        return await self._in_flight.send(out, self._checked_id(out), awaited=awaited)

    def _check_open(self) -> None:
        if not self._in_flight.is_open:
            raise InputError("The publisher is not open.", remedy="Use it with `async with`.")

    def _captures(self, subject: str) -> bool:
        if subject not in self._captured:
            if not any(covers(pattern, subject) for pattern in self._config.subjects):
                return False
            if len(self._captured) >= _KNOWN:
                self._captured.clear()
            self._captured.add(subject)
        return True

    def _check(self, out: Outgoing) -> None:
        """Refuse what the stream cannot take before it is sent."""
        given: object = out
        if not isinstance(given, Outgoing):
            what = f"A message is given as {type(out).__name__}."
            raise InputError(what, remedy="Give penstock.jetstream.Outgoing(subject, data).")
        if not self._captures(out.subject):  # nobody would ever answer
            what = f"Stream {self.stream} does not capture the subject {out.subject}."
            raise InputError(what, remedy=f"It captures {', '.join(self._config.subjects) or 'nothing'}.")
        most = self._client.max_payload
        if len(out.data) > most:
            what = f"The message for {out.subject} has {len(out.data):,} bytes; the server takes {most:,}."
            raise InputError(what, remedy="Send it in chunks (penstock.chunks), or raise max_payload at the server.")
        if out.schedule is not None:
            check_taken(out.schedule, out.subject, self._config)

    def _checked_id(self, out: Outgoing) -> str:
        """Give the id of a message that can be sent."""
        self._check(out)
        if out.id is not None:
            return out.id
        if self._ids is None:
            self._count += 1
            return f"{self._prefix}.{self._count}"
        made = self._ids(out)
        if not isinstance(made, str) or not made.strip():
            raise InputError(f"ids gave {made!r} for a message.", remedy="It gives some text for each message.")
        return made


def _check_many(messages: object) -> None:
    if not isinstance(messages, Iterable | AsyncIterable):
        raise InputError(f"Messages are given as {type(messages).__name__}.", remedy="Give a list of Outgoing.")


def _numbered(number: int, error: InputError) -> InputError:
    return InputError(f"Message {number} (counted from 0): {error.what}", remedy=error.remedy)


async def _each(messages: Iterable[Outgoing] | AsyncIterable[Outgoing]) -> AsyncIterator[Outgoing]:
    if isinstance(messages, AsyncIterable):
        async for out in messages:
            yield out
    else:
        for out in messages:
            yield out
