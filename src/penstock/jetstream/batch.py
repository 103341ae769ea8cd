"""Batches into a stream: atomic ones, all or nothing, and fast ingest, in order and without a gap.

An atomic batch is marked by headers: `Nats-Batch-Id`, `Nats-Batch-Sequence` from 1 on, and `Nats-Batch-Commit` on the
last message, whose ack ends the batch. Fast ingest is marked by reply subjects,

    <inbox>.<batch>.<flow>.<gap mode>.<sequence>.<operation>.$FI

with the operations 0 start, 1 append, 2 commit with a message, 4 ping. The server acknowledges every so many messages;
we keep two such acks outstanding. In gap mode `fail` it stores in order, and ends the batch at a gap; what is not
acknowledged then is sent again in a new batch, and the ids keep it from being stored twice.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    NoRespondersError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.jetstream.outgoing import DUPLICATE_IN_BATCH, Outgoing
from penstock.model import PubAck
from penstock.wire.jetstream.answers import api_error
from penstock.wire.jetstream.verdicts import Verdict, judge, may_ask_again

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg

__all__ = ["BatchAck", "Route", "publish_atomic", "publish_fast"]

_FLOW = 1000  # the most messages for each ack that we ask for; the server may choose fewer
_ACKS_OUT = 2
_PAUSE = 0.2


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
    """How many of them were there before; None where the server does not say (fast ingest)."""


@dataclass(frozen=True)
class Route:
    """Where a batch goes, and how patiently."""

    client: Connection
    stream: str
    ack_timeout: float
    patience: float
    made_id: Callable[[Outgoing], str]


class _Patience:
    """Counts down from the first failure; a failure that may pass is waited out, any other is raised."""

    def __init__(self, route: Route, what: str) -> None:
        self._end = asyncio.get_running_loop().time() + route.patience
        self._route, self._what = route, what

    async def wait_out(self, error: PenstockError) -> None:
        if not may_ask_again(error):
            raise error
        if self._route.client.is_closed:
            raise DisconnectedError(f"The connection was closed during {self._what}.") from error
        if asyncio.get_running_loop().time() > self._end:
            raise DeadlineError(
                f"{self._what} was not acknowledged in {self._route.patience:g} s; it may be stored or not. {error}",
                remedy="Publish it again with the same ids once the server answers.",
                seconds=self._route.patience,
            ) from error
        await asyncio.sleep(_PAUSE)


# -- atomic ----------------------------------------------------------------------------------------------------------


async def publish_atomic(route: Route, messages: list[Outgoing]) -> BatchAck:
    """Store all messages or none; repeat until that is known."""
    ids = [route.made_id(out) for out in messages]
    if len(set(ids)) < len(ids):
        raise InputError("Two messages of the atomic batch have the same id.", remedy="Give each its own.")
    patience = _Patience(route, f"An atomic batch of {len(messages):,} messages")
    lost = False  # whether an attempt ended without an answer, so that it may be stored
    while True:
        try:
            ack = await _attempt(route, messages, ids)
            return BatchAck(route.stream, "atomic", ack.count or len(messages), ack.sequence, 0)
        except PenstockError as error:
            # A duplicate after a lost answer is our own batch, stored by an earlier attempt.
            repeated = lost and isinstance(error, JetStreamError) and error.err_code == DUPLICATE_IN_BATCH
            if repeated and (found := await _known(route, messages[-1], ids[-1])):
                return BatchAck(route.stream, "atomic", len(messages), found.sequence, 0)
            await patience.wait_out(error)
            lost = lost or judge(error) is Verdict.UNKNOWN


async def _attempt(route: Route, messages: list[Outgoing], ids: list[str]) -> PubAck:
    batch, last = secrets.token_hex(16), len(messages)
    for number, (out, message_id) in enumerate(zip(messages, ids, strict=True), 1):
        headers = out.wire_headers(message_id)
        headers |= {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        if number == last:
            headers["Nats-Batch-Commit"] = "1"
        if number in (1, last):  # the first tells early whether the stream takes batches
            reply = await route.client.request(out.subject, bytes(out.data), timeout=route.ack_timeout, headers=headers)
            if number == last or reply.data:
                ack = _ack(reply)
                if number == last:
                    return ack
        else:
            await route.client.publish(out.subject, bytes(out.data), headers=headers)
    raise AssertionError("a batch has a last message")


def _ack(reply: Msg) -> PubAck:
    try:
        content = json.loads(reply.data)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise RemoteProtocolError(f"What answered the batch is no ack: {reply.data[:40]!r}.")
    if "error" in content:
        raise api_error(content["error"])
    return PubAck.from_json(content)


async def _known(route: Route, out: Outgoing, message_id: str) -> PubAck | None:
    """Ask whether the stream knows an id, and its sequence; nothing is stored."""
    headers = {"Nats-Msg-Id": message_id, "Nats-Expected-Last-Msg-Id": f"never-{secrets.token_hex(8)}"}
    reply = await route.client.request(out.subject, b"", timeout=route.ack_timeout, headers=headers)
    try:
        return _ack(reply)
    except JetStreamError:
        return None


# -- fast ------------------------------------------------------------------------------------------------------------


class _Feed:
    """The messages of a fast batch: those not acknowledged yet, before those not taken yet."""

    def __init__(self, route: Route, messages: Iterable[Outgoing]) -> None:
        self._source = iter(messages)
        self._made_id = route.made_id
        self._next = self._take()
        self.again: deque[tuple[Outgoing, str]] = deque()
        self.sent: deque[tuple[Outgoing, str]] = deque()
        self.done = 0

    def _take(self) -> tuple[Outgoing, str] | None:
        out = next(self._source, None)
        return None if out is None else (out, self._made_id(out))

    @property
    def empty(self) -> bool:
        return not self.again and self._next is None

    def pop(self) -> tuple[Outgoing, str]:
        if self.again:
            item = self.again.popleft()
        else:
            assert self._next is not None
            item, self._next = self._next, self._take()
        self.sent.append(item)
        return item

    def acknowledge(self, count: int) -> None:
        """Forget the first `count` messages of those sent."""
        for _ in range(min(count, len(self.sent))):
            self.sent.popleft()
            self.done += 1

    def rewind(self) -> None:
        """Put everything that has no ack back to the front."""
        self.again = deque([*self.sent, *self.again])
        self.sent.clear()


async def publish_fast(route: Route, messages: Iterable[Outgoing]) -> BatchAck:
    """Store messages in order by fast ingest, as many batches as it takes; what fails in the middle is resumed."""
    feed = _Feed(route, messages)
    if feed.empty:
        raise InputError("The batch is empty.", remedy="Give at least one message.")
    patience = _Patience(route, "A fast batch")
    last: tuple[Outgoing, str] | None = None
    while True:
        before = feed.done
        try:
            sequence, last = await _Ingest(route, feed).run()
            break
        except PenstockError as error:
            feed.rewind()
            if feed.done > before:
                patience = _Patience(route, "A fast batch")  # it moves: patience is for standing still
            try:
                await patience.wait_out(error)
            except JetStreamError as final:
                raise type(final)(
                    final.what, remedy=f"The {feed.done:,} messages before it are stored.", **final.facts
                ) from None
    if not sequence:  # the last one was a duplicate, and the server names no sequence
        found = await _known(route, *last)
        sequence = found.sequence if found else 0
    return BatchAck(route.stream, "fast", feed.done, sequence, None)


class _Ingest:
    """One fast batch from its start to its end, or to the first thing that goes wrong."""

    def __init__(self, route: Route, feed: _Feed) -> None:
        self._route, self._feed = route, feed
        self._batch = secrets.token_hex(16)
        self._inbox = route.client.new_inbox()
        self._sent = self._acked = 0
        self._every = 1
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._fault: JetStreamError | None = None

    async def run(self) -> tuple[int, tuple[Outgoing, str]]:
        subscription = await self._route.client.subscribe(f"{self._inbox}.{self._batch}.>", cb=self._heard)
        try:
            return await self._run()
        finally:
            if not self._route.client.is_closed:
                await subscription.unsubscribe()

    async def _heard(self, message: Msg) -> None:
        if not message.data and (message.headers or {}).get("Status") == "503":
            content: dict[str, Any] = {"type": "nobody"}
        else:
            try:
                content = json.loads(message.data)
            except ValueError:
                content = {"type": "strange", "data": message.data[:40]}
        self._answers.put_nowait(content)

    async def _run(self) -> tuple[int, tuple[Outgoing, str]]:
        while True:
            item = self._feed.pop()
            end = self._feed.empty
            await self._put(item, 2 if end else 0 if self._sent == 0 else 1)
            if end:
                while (final := await self._answer()) is None:
                    pass
                self._feed.acknowledge(len(self._feed.sent))
                return final, item
            if self._sent == 1:
                await self._answer()
            while not self._answers.empty() or self._sent - self._acked >= self._every * _ACKS_OUT:
                await self._answer()

    async def _put(self, item: tuple[Outgoing, str], operation: int) -> None:
        out, message_id = item
        self._sent += 1
        await self._route.client.publish(
            out.subject,
            bytes(out.data),
            reply=self._reply(operation),
            headers=out.wire_headers(message_id),
        )

    def _reply(self, operation: int) -> str:
        return f"{self._inbox}.{self._batch}.{_FLOW}.fail.{self._sent}.{operation}.$FI"

    async def _answer(self) -> int | None:
        """Take one answer; give the last sequence where it ends the batch as a whole."""
        content = await self._next()
        kind = content.get("type")
        if kind == "ack":
            reached = int(content.get("seq", 0))
            self._every = max(int(content.get("msgs", 1)), 1)
            self._feed.acknowledge(reached - self._acked)
            self._acked = max(self._acked, reached)
            return None
        if kind == "err":
            self._fault = api_error(content.get("error") or {})
            return None
        if kind == "gap":
            return None  # the final ack, with what is stored, follows
        if kind == "nobody":
            raise NoRespondersError(f"No stream answers on a subject of {self._route.stream}.")
        if content.get("error"):
            raise api_error(content["error"])
        if "count" not in content:
            raise RemoteProtocolError(f"What answered the fast batch is unknown: {str(content)[:60]}.")
        # The end: either of all, or before a gap or a refused message.
        count = int(content["count"])
        if count < self._sent or not self._feed.empty:
            self._feed.acknowledge(count - self._acked)
            raise self._fault or DeadlineError(f"The fast batch ended after {count:,} of {self._sent:,} messages.")
        return int(content.get("seq", 0))

    async def _next(self) -> dict[str, Any]:
        for attempt in range(2):
            try:
                async with asyncio.timeout(self._route.ack_timeout):
                    return await self._answers.get()
            except TimeoutError:
                if attempt == 0 and self._sent:  # an ack may be lost: a ping makes the server say it again
                    subject = self._feed.sent[-1][0].subject if self._feed.sent else None
                    if subject is not None:
                        await self._route.client.publish(subject, b"", reply=self._reply(4))
        raise DeadlineError(f"The fast batch got no ack in {2 * self._route.ack_timeout:g} s.")
