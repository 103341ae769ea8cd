"""The flow of messages into a stream: what is on its way, in which order, and what becomes of each.

::

    send ──► room? ──► launched ──► ack ─────────────────────────► settled
                          │  └────► refused for good ────────────► failed
                          └───────► lost, or refused for order ──► mend: all answers in, then one by one, in order

A message that goes `chained` says what the stream must end with, so that nothing overtakes what is lost: the id of the
message before it, or its sequence. A replicated stream cannot check the id: it remembers the id of what it refuses, and
then gives no answer to the repeat. The sequence says nothing beside other writers: theirs count, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.jetstream.outgoing import WRONG_LAST_ID, WRONG_LAST_SEQUENCE, Outgoing
from penstock.model import PubAck
from penstock.wire.jetstream.answers import api_error
from penstock.wire.jetstream.verdicts import may_ask_again

if TYPE_CHECKING:
    from penstock.connection import Connection, Msg, Subscription

__all__ = ["Flow", "Pending"]

log = logging.getLogger("penstock.jetstream")

_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)
_ALONE_FIRST, _ALONE_MOST = 8, 4096
# How a message says what it expects before it, and how the server says that it is not so.
_CHECKS = {
    "id": ("Nats-Expected-Last-Msg-Id", WRONG_LAST_ID),
    "sequence": ("Nats-Expected-Last-Sequence", WRONG_LAST_SEQUENCE),
}


class Pending:
    """One message between its first sending and its fate."""

    __slots__ = ("attempts", "awaited", "chained", "failure", "first", "future", "id", "lost", "number", "out", "sent")

    def __init__(self, number: int, out: Outgoing, message_id: str, future: asyncio.Future[PubAck]) -> None:
        self.number, self.out, self.id, self.future = number, out, message_id, future
        self.attempts = 0
        self.sent = self.first = 0.0
        self.chained = False
        self.lost = False  # whether an attempt got no answer, so that it may have been stored
        self.awaited = False  # whether somebody waits for it alone, and will see its failure
        self.failure: PenstockError | None = None  # why the last attempt failed; None while it is on its way


class Flow:
    """Everything of one publisher that is on its way, bounded, and the task that mends what fails."""

    def __init__(
        self, client: Connection, stream: str, *, strict: bool, most: int, most_bytes: int, ack_timeout: float
    ) -> None:
        """Bound what is on its way by `most` messages and `most_bytes`; `strict` keeps the order over failures."""
        self.stored = self.duplicates = self.retries = 0
        self.failures: list[PenstockError] = []
        self._client, self._stream, self._strict = client, stream, strict
        self._most, self._most_bytes, self._ack_timeout = most, most_bytes, ack_timeout
        self._patience, self._replicas, self._chain = 0.0, 1, ""
        self._pending: dict[int, Pending] = {}
        self._bytes = self._number = 0
        self._base: str | None = None  # what the stream ends with once all that is on its way is stored
        # How many messages go one by one after the order check failed, and how long the chain has held since.
        self._alone, self._alone_next, self._run = 0, _ALONE_FIRST, 0
        self._turn, self._clear, self._changed = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self._clear.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending = False
        self.is_open = False
        self._subscription: Subscription | None = None

    async def open(self, patience: float, replicas: int, *, sole_writer: bool) -> None:
        """Listen for acks; `sole_writer` lets a replicated stream check the order by sequence."""
        self._patience, self._replicas = patience, replicas
        if self._strict:
            self._chain = "id" if replicas == 1 else "sequence" if sole_writer else ""
        self._inbox = self._client.new_inbox()
        self._subscription = await self._client.subscribe(f"{self._inbox}.*.*", cb=self._answered)
        self.is_open = True
        self._spawn(self._watch())

    async def close(self) -> None:
        """Stop at once; what has no ack yet fails with a DisconnectedError."""
        self.is_open = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in list(self._pending.values()):
            self._fail(item, DisconnectedError(f"The publisher was closed before {item.id} was acknowledged."))
        if self._subscription is not None and not self._client.is_closed:
            with suppress(PenstockError):  # the connection may end in this moment, and the subscription with it
                await self._subscription.unsubscribe()
        self._subscription = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault of ours must not leave anybody waiting for ever.
            log.error("The publisher into %s failed: %r", self._stream, error)
            self.is_open = False
            for item in list(self._pending.values()):
                self._fail(item, PenstockError(f"The publisher failed before {item.id} was acknowledged: {error!r}."))

    # -- sending -----------------------------------------------------------------------------------

    async def send(self, out: Outgoing, message_id: str, *, awaited: bool) -> Pending:
        """Wait for room, and send; callers get their turn in the order in which they came."""
        async with self._turn:
            alone = await self._room(out)
            self._number += 1
            item = Pending(self._number, out, message_id, asyncio.get_running_loop().create_future())
            item.awaited = awaited
            self._pending[item.number] = item
            self._bytes += out.size
            item.chained = self._strict and not alone
            await self._launch(item)
        return item

    async def drained(self) -> None:
        """Wait until nothing is on its way."""
        while self._pending or not self._clear.is_set():
            self._changed.clear()
            await self._changed.wait()

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Hold everybody back until the block ends, with nothing on its way when it begins."""
        async with self._turn:
            await self.drained()
            self._base = None
            yield

    async def _room(self, out: Outgoing) -> bool:
        """Wait until a message may go; tell whether it goes alone."""
        while True:
            if not self.is_open:
                raise DisconnectedError("The publisher was closed.")
            alone = out.expects or (self._strict and (not self._chain or self._base is None or self._alone > 0))
            fits = len(self._pending) < self._most and self._bytes + out.size <= self._most_bytes
            if self._clear.is_set() and (not self._pending or (fits and not alone)):
                return alone
            self._changed.clear()
            await self._changed.wait()

    async def _launch(self, item: Pending) -> None:
        """Send one message, for the first time or again."""
        headers = item.out.wire_headers(item.id)
        if item.chained and self._base is not None:
            headers[_CHECKS[self._chain][0]] = self._base
            self._base = item.id if self._chain == "id" else str(int(self._base) + 1)
        item.attempts += 1
        item.failure = None
        item.sent = asyncio.get_running_loop().time()
        item.first = item.first or item.sent
        reply = f"{self._inbox}.{item.number}.{item.attempts}"
        try:
            await self._client.publish(item.out.subject, bytes(item.out.data), reply=reply, headers=headers)
        except PenstockError as error:
            self._refused(item, error)

    # -- answers -----------------------------------------------------------------------------------

    async def _answered(self, message: Msg) -> None:
        number, attempt = message.subject.rsplit(".", 2)[-2:]
        item = self._pending.get(int(number))
        if item is None:
            return  # a late copy of an answer
        answer = _read(message, item.out.subject)
        if isinstance(answer, PubAck) and answer.stream != self._stream:
            what = f"{item.out.subject} is captured by stream {answer.stream} now, which stored {item.id}."
            self._fail(item, JetStreamError(what, remedy=f"Publish what is meant for {self._stream} on its subjects."))
        elif isinstance(answer, PubAck):
            self._settle(item, answer)
        elif int(attempt) == item.attempts:
            self._refused(item, answer)

    def _settle(self, item: Pending, ack: PubAck) -> None:
        self._forget(item)
        # A repeat of our own is no duplicate: it was stored, by an attempt whose ack was lost.
        duplicate = ack.duplicate and not item.lost
        if duplicate:
            self.duplicates += 1
        else:
            self.stored += 1
        if not item.future.done():
            item.future.set_result(ack.model_copy(update={"duplicate": duplicate}))
        if not self._strict or self._mending:
            return
        if not item.chained:
            self._base = None if ack.duplicate else item.id if self._chain == "id" else str(ack.sequence)
            self._alone = max(self._alone - 1, 0)
        elif ack.duplicate:
            self._break(others=True)  # it took no sequence, so all behind it will be refused
        else:
            self._run += 1
            if self._run >= 4 * self._most:
                self._alone_next = _ALONE_FIRST

    def _refused(self, item: Pending, error: PenstockError) -> None:
        """Decide what an answer that is no ack means: again, or never."""
        if self._mending:
            item.failure = error
            self._changed.set()
            return
        wrong = item.chained and self._is_order_check(error)
        if wrong or may_ask_again(error):
            item.failure = error
            self._break(others=wrong)
        else:
            self._fail(item, error)
            if self._strict:
                self._break(others=False)

    def _is_order_check(self, error: PenstockError) -> bool:
        """Tell whether a message was refused for what it expects before it."""
        code = error.err_code if isinstance(error, JetStreamError) else None
        return bool(self._chain) and code == _CHECKS[self._chain][1]

    def _fail(self, item: Pending, error: PenstockError) -> None:
        self._forget(item)
        if not item.awaited:
            self.failures.append(error)
        if not item.future.done():
            item.future.set_exception(error)
            if not item.awaited:
                item.future.exception()  # flush raises it; asyncio need not complain as well

    def _forget(self, item: Pending) -> None:
        if self._pending.pop(item.number, None) is not None:
            self._bytes -= item.out.size
        self._changed.set()

    # -- mending -----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notice acks that do not come, and a connection that is closed for good."""
        while True:
            await asyncio.sleep(min(self._ack_timeout / 4, 0.25))
            now = asyncio.get_running_loop().time()
            if self._client.is_closed:
                for item in list(self._pending.values()):
                    self._fail(item, DisconnectedError(f"The connection was closed before {item.id} was acknowledged."))
            elif not self._mending and any(now - item.sent > self._ack_timeout for item in self._pending.values()):
                self._break(others=False)

    def _break(self, *, others: bool) -> None:
        """Stop the flow, and mend it; `others` says that the order check failed and nothing else."""
        if self._mending:
            return
        self._mending = True
        self._clear.clear()
        self._base, self._run = None, 0
        if others:
            self._alone, self._alone_next = self._alone_next, min(self._alone_next * 2, _ALONE_MOST)
        self._spawn(self._mend())

    async def _mend(self) -> None:
        """Wait for the fate of all that is on its way, then send what has none again, one by one, in order."""
        loop = asyncio.get_running_loop()
        while waiting := [item for item in self._pending.values() if item.failure is None]:
            left = min(item.sent for item in waiting) + self._ack_timeout - loop.time()
            if left <= 0:
                for item in waiting:
                    if loop.time() - item.sent >= self._ack_timeout:
                        self._lose(item)
                continue
            await self._next_change(left)
        for item in sorted(self._pending.values(), key=lambda item: item.number):
            await self._redo(item)
        self._mending = False
        self._clear.set()
        self._changed.set()

    def _lose(self, item: Pending) -> None:
        item.lost = True
        item.failure = DeadlineError(f"No ack for {item.id} in {self._ack_timeout:g} s.")

    async def _next_change(self, seconds: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass  # the caller looks at the clock itself

    async def _redo(self, item: Pending) -> None:
        loop = asyncio.get_running_loop()
        item.chained = False
        attempt = -1
        while item.number in self._pending:
            attempt += 1
            error = item.failure
            order_only = error is not None and self._is_order_check(error) and not item.out.expects
            if error is not None and not may_ask_again(error) and not order_only:
                if not await self._was_stored(item):
                    self._fail(item, error)
                return
            if loop.time() - item.first > self._patience:
                self._fail(item, _unknown(item, self._patience, error))
                return
            if attempt:
                await asyncio.sleep(_BACKOFF[min(attempt - 1, len(_BACKOFF) - 1)])
            self.retries += 1
            await self._launch(item)
            deadline = loop.time() + self._ack_timeout
            while item.number in self._pending and item.failure is None:
                left = deadline - loop.time()
                if left <= 0:
                    self._lose(item)
                    break
                await self._next_change(left)

    async def _was_stored(self, item: Pending) -> bool:
        """Find out whether a condition fails because an earlier attempt, whose ack was lost, is the last message.

        A stream with one replica checks conditions before ids. This asks with a condition that cannot hold and that
        is checked after the id: a known id is acknowledged, an unknown one is refused, and nothing is stored.
        """
        if not item.out.expects or item.attempts < 2 or self._replicas > 1:
            return False
        headers = {"Nats-Msg-Id": item.id, "Nats-Expected-Last-Msg-Id": f"never-{secrets.token_hex(8)}"}
        try:
            reply = await self._client.request(item.out.subject, b"", timeout=self._ack_timeout, headers=headers)
        except PenstockError as error:
            self._fail(item, _unknown(item, self._patience, error))
            return True
        answer = _read(reply, item.out.subject)
        if not isinstance(answer, PubAck):
            return False
        self._settle(item, answer)
        return True


def _unknown(item: Pending, patience: float, error: PenstockError | None) -> DeadlineError:
    reason = f" The last attempt: {error}" if error else ""
    return DeadlineError(
        f"No ack for message {item.id} on {item.out.subject} in {patience:g} s; it may be stored or not.{reason}",
        remedy="Publish it again with the same id once the server answers.",
        seconds=patience,
        subject=item.out.subject,
    )


def _read(message: Msg, subject: str) -> PubAck | PenstockError:
    """Turn what answered a publish into an ack or an error."""
    if not message.data and (message.headers or {}).get("Status") == "503":
        return NoRespondersError(
            f"No stream listens on {subject}.",
            remedy="Does the stream capture the subject, and is JetStream up?",
            subject=subject,
        )
    try:
        content = json.loads(message.data)
        return api_error(content["error"]) if "error" in content else PubAck.from_json(content)
    except (ValueError, KeyError, TypeError, PenstockError):
        return RemoteProtocolError(f"What answered on {subject} is no ack: {message.data[:40]!r}.")
