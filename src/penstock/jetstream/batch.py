"""Batches into a stream: atomic ones, all or nothing, and fast ingest, in order and without a gap.

The rules of both are in `penstock.wire.jetstream`; here they are driven over a connection. Every message has an id, so
that what is in doubt is sent again and stored once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

from penstock.connection.asking import patiently
from penstock.errors import DeadlineError, DeniedError, DisconnectedError, InputError, JetStreamError, PenstockError
from penstock.jetstream.outgoing import Outgoing
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.answers import PubAck
from penstock.wire.jetstream.atomic import MOST, Attempts, confirm_batch, marks
from penstock.wire.jetstream.conditions import explained
from penstock.wire.jetstream.fast import Batch, Operation, Silence
from penstock.wire.jetstream.verdicts import Verdict, may_ask_again
from penstock.wire.patience import Patience
from penstock.wire.protocol import decode_status

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["BatchAck", "Route", "find_stored", "publish_atomic", "publish_fast", "refuse_empty"]


@dataclass(frozen=True)
class BatchAck:
    """What became of a batch."""

    stream: str
    """The stream that took it."""
    how: Literal["atomic", "fast", "plain"]
    """The way it went."""
    count: int
    """How many messages of it the stream holds now."""
    sequence: int
    """The sequence of its last message."""
    duplicates: int | None
    """How many of them were there before; None if the server does not say (fast ingest)."""


@dataclass(frozen=True)
class Route:
    """Where a batch goes, and how patiently."""

    client: Connection
    stream: str
    ack_timeout: float
    patience: float
    made_id: Callable[[Outgoing], str]

    @property
    def domain(self) -> str | None:
        """The domain of the stream, if the connection names one."""
        return self.client.options.domain

    async def find(self, out: Outgoing, message_id: str) -> PubAck | None:
        """Ask whether the stream knows the id of a message, and its sequence; what passes by itself is waited out."""

        def find() -> Awaitable[PubAck | None]:
            return find_stored(self.client, self.stream, out.subject, message_id, self.ack_timeout)

        return await patiently(find, self.patience, self.client, nobody=True)


async def _wait_out(route: Route, patience: Patience, error: PenstockError, what: str) -> None:
    """Pause after a failure that may pass; raise any other, and what is still unknown when the patience is over."""
    if may_ask_again(error) and route.client.is_closed:
        raise DisconnectedError(f"The connection was closed during {what}.") from error
    if may_ask_again(error) and not patience.deadline.left:
        told = f"{what} was not acknowledged in {route.patience:g} s; it may be stored or not. {error}"
        remedy = "Publish it again with the same ids once the server answers."
        raise DeadlineError(told, remedy=remedy, seconds=route.patience) from error
    await asyncio.sleep(patience.pause(error))
    if not route.client.is_connected:
        # Nothing is left waiting for a connection: the stream may have forgotten the ids when that comes.
        with suppress(PenstockError):
            await route.client.standing(patience.deadline.left)


async def find_stored(client: Connection, stream: str, subject: str, message_id: str, timeout: float) -> PubAck | None:
    """Ask whether the stream knows an id, and its sequence.

    The condition cannot hold, and is checked after the id: a known id is acknowledged, an unknown one refused, and
    nothing is stored. Any other refusal says nothing of the id, and is raised.
    """
    headers = {names.MSG_ID: message_id, names.EXPECTED_LAST_ID: f"never-{secrets.token_hex(8)}"}
    reply = await client.request(subject, b"", timeout, headers=headers)
    try:
        return confirm(reply.data, reply.status, stream, client.options.domain)
    except JetStreamError as error:
        if error.err_code != names.WRONG_LAST_ID:
            raise
        return None


# -- atomic ----------------------------------------------------------------------------------------------------------


def refuse_empty(messages: Sequence[object]) -> None:
    """Refuse a batch without messages."""
    if not messages:
        raise InputError("The batch is empty.", remedy="Give at least one message.")


async def publish_atomic(route: Route, given: Iterable[Outgoing]) -> BatchAck:
    """Store all messages or none; repeat until that is known."""
    messages = list(given)
    refuse_empty(messages)
    if len(messages) > MOST:
        what = f"An atomic batch of {len(messages):,} messages is too large; the server takes {MOST:,}."
        raise InputError(what, remedy="Split it, or use fast ingest.")
    ids = [route.made_id(out) for out in messages]
    if len(set(ids)) < len(ids):
        raise InputError("Two messages of the atomic batch have the same id.", remedy="Give each its own.")
    patience = Patience(route.patience, nobody=True)
    attempts = Attempts(ids=True, ours=False, safe=route.patience)
    while True:
        try:
            ack: PubAck | None = await _attempt(route, messages, ids, attempts)
        except PenstockError as error:
            verdict, ack = attempts.judge(error), None
            if verdict is Verdict.STORED:  # by an earlier attempt, whose answer was lost
                ack = await route.find(messages[-1], ids[-1])
            if verdict is Verdict.REFUSED:
                asking = [out for out in messages if out.expects]
                if len(asking) == 1:  # of several the server does not say which
                    error = explained(error, asking[0].subject, asking[0].wire_headers(""))
                raise error
            if ack is None:
                await _wait_out(route, patience, error, f"An atomic batch of {len(messages):,} messages")
        if ack is not None:
            return BatchAck(route.stream, "atomic", len(messages), ack.sequence, 0)


async def _attempt(route: Route, messages: list[Outgoing], ids: list[str], attempts: Attempts) -> PubAck:
    batch_id, last = attempts.begin(asyncio.get_running_loop().time()), len(messages)
    for number, (out, message_id) in enumerate(zip(messages, ids, strict=True), 1):
        headers = {**out.wire_headers(message_id), **marks(batch_id, number, commit=number == last)}
        if number in (1, last):  # the first tells early whether the stream takes batches
            reply = await route.client.request(out.subject, out.data, timeout=route.ack_timeout, headers=headers)
            if number == last or reply.data:
                ack = confirm_batch(reply.data, reply.status, route.stream, route.domain, batch_id, last)
        else:
            await route.client.publish(out.subject, out.data, headers=headers)
    return ack


# -- fast ------------------------------------------------------------------------------------------------------------


async def publish_fast(route: Route, messages: Iterable[Outgoing]) -> BatchAck:
    """Store messages in order by fast ingest, as many batches as it takes; what fails in the middle is resumed."""
    ingest = _Ingest(route, messages)
    refuse_empty(ingest.kept)
    while (error := await ingest.run()) is not None:
        if not may_ask_again(error):
            out, message_id = ingest.kept[0]
            error = explained(error, out.subject, out.wire_headers(message_id))
            error.remedy = f"The {ingest.done:,} messages before it are stored."
            raise error
        await _wait_out(route, ingest.patience, error, "A fast batch")
        ingest.follow()
        if why := ingest.batch.hindrance(asyncio.get_running_loop().time()):
            what = (
                f"A fast batch broke after {ingest.done:,} messages, and {why}; the next may be stored or not. {error}"
            )
            raise DeadlineError(what, remedy="Publish them again with the same ids.", seconds=route.patience) from error
    sequence = ingest.batch.sequence or 0
    if not sequence:  # the last one was a duplicate, and the server names no sequence
        with suppress(PenstockError):  # all of it is stored: if nobody tells where, that is not a failure
            found = await route.find(*ingest.last)
            sequence = 0 if found is None else found.sequence
    return BatchAck(route.stream, "fast", ingest.done, sequence, None)


class _Ingest:
    """Drives fast batches, each to its end or to the first thing that goes wrong; the next one goes on from there."""

    def __init__(self, route: Route, messages: Iterable[Outgoing]) -> None:
        self._client, wait = route.client, route.ack_timeout
        self._source = ((out, route.made_id(out)) for out in messages)
        self.kept = deque(islice(self._source, 1))  # what has no ack, and the next message, so that the end is known
        self.done = 0
        self.patience = Patience(route.patience, nobody=True)
        inbox = self._client.new_inbox()
        self.batch = Batch(
            inbox, route.stream, ids=True, safe=route.patience, domain=route.domain, ping=wait, silence=wait
        )
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._acked = 0  # of this batch, and not kept any more
        self._fault: PenstockError | None = None

    def follow(self) -> None:
        """Begin a batch with the first message that has no ack."""
        self.batch = self.batch.follow(self._client.new_inbox())
        self._acked, self._fault = 0, None

    async def run(self) -> PenstockError | None:
        """Send what there is; None if all of it is stored, or why not."""
        batch = self.batch
        try:
            subscription = await self._client.tap(batch.listen, self._heard)
            try:
                with self._client.expecting(self.kept[0][0].subject, self._deny):
                    await self._send_all()
            finally:
                if not self._client.is_closed:
                    await subscription.unsubscribe()
        except PenstockError as error:
            return error if self.kept else None  # only the end of the batch is lost
        if not self.kept:
            return None
        # What is not refused for good goes into the next batch.
        return batch.reason if batch.is_refused else DeadlineError(batch.reason.what)

    async def _send_all(self) -> None:
        batch, kept = self.batch, self.kept
        while (place := batch.sent - self._acked) < len(kept) and not batch.is_over and not batch.is_broken:
            if not batch.room:
                await self._hear()
                continue
            self.last = out, message_id = kept[place]
            if place + 1 == len(kept):
                kept.extend(islice(self._source, 1))
            is_last = place + 1 == len(kept)
            operation = Operation.COMMIT if is_last else Operation.APPEND if batch.sent else Operation.START
            reply = batch.reply(operation)
            batch.send(1, self._loop.time())
            await self._client.publish(out.subject, out.data, reply=reply, headers=out.wire_headers(message_id))
            self._settle()
        while not batch.is_over:
            await self._hear()

    def _heard(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        try:
            self.batch.hear(payload, None if block is None else decode_status(block)[0])
        except PenstockError as error:
            self._fault = self._fault or error
        self._news.set()

    def _deny(self, error: DeniedError) -> None:
        self._fault = error
        self._news.set()

    def _settle(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self.batch.acked > self._acked:
            for _ in range(self.batch.acked - self._acked):
                self.kept.popleft()
            self.done += self.batch.acked - self._acked
            self._acked = self.batch.acked
            self.patience.moved()  # it is for standing still

    async def _hear(self) -> None:
        self._news.clear()
        self.patience.deadline.check()  # acks without progress may come without end
        try:
            async with asyncio.timeout(min(self.batch.patience, self.patience.deadline.left)):
                await self._news.wait()
        except TimeoutError:
            silence = self.batch.silent()
            if silence is Silence.LOST:
                raise DeadlineError("The server went silent in the middle of a fast batch.") from None
            if silence is Silence.PING:
                await self._client.publish(self.last[0].subject, b"", reply=self.batch.reply(Operation.PING))
        self._settle()
