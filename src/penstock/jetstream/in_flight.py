"""Messages on their way into a stream: what is in flight, in which order, and what becomes of each.

::

    send ──► room? ──► its turn? ──► launched ──► ack ─────────────────────────► settled
                                        │  └────► refused for good ────────────► failed
                                        └───────► lost, or refused for order ──► mend: all answers in, then one by one

In strict order a message has its turn when nothing is on its way. One that goes `chained` need not wait: it says what
the stream must end with, so that nothing overtakes what is lost: the id of the message before it, or its sequence. A
replicated stream cannot check the id: it remembers the id of what it refuses, and then gives no answer to the repeat.
The sequence says nothing beside other writers: theirs count, too. The server stores what a message says of this, and
refuses the message with it wherever it is published again: so it is for those who ask for it, and never for counters,
nor for streams that publish again what they store.

A message that may have been stored is never left to wait for a connection: who knows when that comes, and whether the
stream still knows the id then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.connection.messages import as_bytes
from penstock.connection.tasks import end
from penstock.errors import (
    DeadlineError,
    DeniedError,
    DisconnectedError,
    JetStreamError,
    PenstockError,
)
from penstock.jetstream.batch import find_stored
from penstock.jetstream.outgoing import Outgoing
from penstock.jetstream.pending import Pending, copied, replaced, unknown
from penstock.model import PubAck, Stream
from penstock.wire import protocol
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import Window
from penstock.wire.jetstream.conditions import explained
from penstock.wire.jetstream.verdicts import Verdict, judge, may_ask_again

if TYPE_CHECKING:
    from penstock.connection import Connection, Subscription

__all__ = ["InFlight"]

log = logging.getLogger("penstock.jetstream")

_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)
_ALONE_FIRST, _ALONE_MOST = 8, 4096
_SUBJECTS = 1000  # that are remembered at a time
_FAILURES = 100  # that are kept for flush
_LOOK = 1.0  # seconds for which a look at the stream is good
# How a message says what it expects before it, and how the server says that it is not so.
_CHECKS = {
    "id": (names.EXPECTED_LAST_ID, names.WRONG_LAST_ID),
    "sequence": (names.EXPECTED_LAST_SEQUENCE, names.WRONG_LAST_SEQUENCE),
}


class InFlight:
    """Everything of one publisher that is on its way, bounded, and the task that mends what fails."""

    def __init__(
        self,
        client: Connection,
        stream: str,
        *,
        order: str,
        made_up: bool,
        remembered: Callable[[], Awaitable[float]],
        most: int,
        most_bytes: int,
        ack_timeout: float,
    ) -> None:
        """Bound what has no ack by `most` messages and `most_bytes`; `order` is what `Publisher` says of it.

        `made_up`: ids that the caller does not give are known to nobody else. `remembered` asks for how many seconds
        after its first sending a message may be repeated, as the stream stands now.
        """
        self.stored = self.duplicates = self.retries = 0
        self.failures: list[PenstockError] = []
        self._client, self._stream, self._order, self._ack_timeout = client, stream, order, ack_timeout
        self._strict, self._made_up = order != "sent", made_up
        self._remembered, self._asked_at = remembered, 0.0
        domain = client.options.domain
        self._window: Window[Pending] = Window(stream, most=most, most_bytes=most_bytes, safe=0.0, domain=domain)
        self._queue: deque[Pending] = deque()  # what has room, and waits for its turn
        self._queued = 0  # bytes of that
        self._replicas, self._chain, self._number = 1, "", 0
        self._highest = 0  # sequence that was acknowledged
        self._base: str | None = None  # what the stream ends with once all that is on its way is stored
        # How many messages go one by one after the order check failed, and how long the chain has held since.
        self._alone, self._alone_next, self._run = 0, _ALONE_FIRST, 0
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending = self._advancing = False
        self.is_open = False
        self._subscription: Subscription | None = None
        self._unsent = 0  # bytes that wait at the connection since the last message
        self._subjects: set[str] = set()  # of what was sent, so that a denial of one is heard
        self._denials = ExitStack()

    async def open(self, patience: float, config: Stream, *, sole_writer: bool) -> None:
        """Listen for acks; `sole_writer` lets a replicated stream check the order by sequence."""
        self._window.safe, self._replicas = patience, config.num_replicas
        if self._order == "chained" and not config.allow_msg_counter and config.republish is None:
            self._chain = "id" if self._replicas == 1 else "sequence" if sole_writer else ""
        inbox = self._client.new_inbox()
        self._loop, self._answers = asyncio.get_running_loop(), f"{inbox}.".encode()
        self._subscription = await self._client.tap(f"{inbox}.*.*", self._answered)
        self.is_open = True
        self._spawn(self._watch())

    async def close(self) -> None:
        """Stop at once; what has no ack yet fails with a DisconnectedError."""
        self.is_open = False
        self._denials.close()
        await end(self._tasks)
        self._fail_all(lambda item: DisconnectedError(f"The publisher was closed before {item.id} was acknowledged."))
        if self._subscription is not None and not self._client.is_closed:
            with suppress(PenstockError):  # the connection may end in this moment, and the subscription with it
                await self._subscription.unsubscribe()
        self._subscription = None

    def _items(self) -> list[Pending]:
        """Give all that has no ack, in order."""
        return [*self._window.items(), *self._queue]

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
            why = f"was acknowledged: {error!r}."
            self._fail_all(lambda item: PenstockError(f"The publisher failed before {item.id} {why}"))

    def _fail_all(self, reason: Callable[[Pending], PenstockError]) -> None:
        """Fail what has no ack, and let go whoever waits for it: nobody mends anything any more."""
        for item in self._items():
            self._fail(item, reason(item))
        self._mending = False
        self._changed.set()

    # -- sending -----------------------------------------------------------------------------------

    async def send(self, out: Outgoing, message_id: str, *, awaited: bool) -> Pending:
        """Wait for room, and send or have it sent in its turn; callers come in the order in which they called."""
        size = out.size
        if self._turn.locked() or not self._has_room(size):
            async with self._turn:
                while not self._has_room(size):
                    self._changed.clear()
                    await self._changed.wait()
                item = self._begin(out, message_id, awaited, size)
        else:
            item = self._begin(out, message_id, awaited, size)
        if self._client.is_full(self._unsent):
            self._unsent = 0
            await self._client.written()
        return item

    def _has_room(self, size: int) -> bool:
        if not self.is_open:
            raise DisconnectedError("The publisher was closed.")
        if not self._queue:
            return self._window.fits(size)
        window = self._window
        held = len(window) + len(self._queue)
        return held < window.most and window.size + self._queued + size <= window.most_bytes

    def _begin(self, out: Outgoing, message_id: str, awaited: bool, size: int) -> Pending:
        self._number += 1
        item = Pending(self._number, out, message_id, self._loop.create_future(), awaited, size)
        if out.subject not in self._subjects:
            self._heed(out.subject)
        if self._queue or not self._goes(item):
            self._queue.append(item)
            self._queued += size
        else:
            self._go(item)
        return item

    def _goes(self, item: Pending) -> bool:
        """Tell whether it is a message's turn, and decide how it goes."""
        if self._mending:
            return False
        alone = item.out.expects
        if self._strict:
            alone = alone or not self._chain or self._base is None or self._alone > 0
            item.chained = not alone
        return not alone or not len(self._window)

    def _go(self, item: Pending) -> None:
        item.behind = self._highest
        self._window.add(item, item.number, item.size, self._loop.time())
        self._launch(item)

    def _advance(self) -> None:
        """Send what waits for its turn, as much of it as has it."""
        if self._advancing:
            return  # one that failed at once: the loop goes on with the next
        self._advancing = True
        while self._queue and self._goes(self._queue[0]):
            item = self._queue.popleft()
            self._queued -= item.size
            self._go(item)
        self._advancing = False

    def _heed(self, subject: str) -> None:
        """Have messages on a subject fail at once if the server does not permit them."""
        if len(self._subjects) >= _SUBJECTS:
            self._denials.close()
            self._subjects.clear()
        self._subjects.add(subject)

        def deny(error: DeniedError) -> None:
            for item in self._items():
                if item.out.subject == subject:
                    self._fail(item, error)
            self._advance()

        self._denials.enter_context(self._client.expecting(subject, deny))

    async def drained(self) -> None:
        """Wait until nothing is on its way."""
        while len(self._window) or self._queue or self._mending:
            self._changed.clear()
            await self._changed.wait()

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Hold everybody back until the block ends, with nothing on its way when it begins."""
        async with self._turn:
            await self.drained()
            if not self.is_open:
                raise DisconnectedError("The publisher was closed.")
            self._base = None
            yield

    def abandon(self, item: Pending) -> None:
        """Let `flush` tell what becomes of a message that nobody waits for alone any more."""
        item.awaited = False
        if item.future.done() and not item.future.cancelled() and (error := item.future.exception()) is not None:
            assert isinstance(error, PenstockError)  # as `_fail` has it
            self._note(error)

    def _launch(self, item: Pending) -> None:
        """Send one message, for the first time or again."""
        out, expected = item.out, None
        if item.chained and self._base is not None:
            expected = (_CHECKS[self._chain][0], self._base)
            self._base = item.id if self._chain == "id" else str(int(self._base) + 1)
        item.attempts += 1
        item.failure = None
        item.sent = self._loop.time()
        reply = b"%b%d.%d" % (self._answers, item.number, item.attempts)
        try:
            data = out.data if type(out.data) is bytes else bytes(out.data)
            block = out.header_block(item.id, expected)
            if item.attempts == 1:
                self._unsent = self._client.send_checked(as_bytes(out.subject), data, reply, block)
            elif not self._client.post(protocol.publish(out.subject, data, reply.decode(), block)):
                self._refused(item, DisconnectedError("The connection is being made again."))
        except PenstockError as error:
            self._refused(item, error)

    # -- answers -----------------------------------------------------------------------------------

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        number, _, attempt = subject[len(self._answers) :].partition(b".")
        item = self._window.get(int(number)) if number.isdigit() and len(number) < 19 else None
        if item is None:
            return  # a late copy of an answer, or no answer at all
        try:
            ack = self._window.read(payload, None if block is None else protocol.decode_status(block)[0])
        except PenstockError as error:
            if attempt == b"%d" % item.attempts:
                self._refused(item, error)
        else:
            self._settle(item, ack)

    def _settle(self, item: Pending, ack: PubAck) -> None:
        self._forget(item)
        repeated, sequence = ack.duplicate, ack.sequence
        if repeated and item.lost:
            ack.duplicate = False  # a repeat of our own: it was stored, by an attempt whose ack was lost
        if ack.duplicate:
            self.duplicates += 1
        else:
            self.stored += 1
        if sequence > self._highest:
            self._highest = sequence
        elif sequence <= item.behind and not repeated:
            self._highest = sequence
            self._tell(item, replaced(self._stream, item.behind, sequence))
        if ack.duplicate and item.attempts == 1 and self._made_up and item.out.id is None:
            self._tell(item, copied(self._stream, item))
        if not item.future.done():
            item.future.set_result(ack)
        if self._mending:
            return
        if self._chain:
            if not item.chained:
                self._base = None if repeated else item.id if self._chain == "id" else str(sequence)
                self._alone = max(self._alone - 1, 0)
            elif repeated:
                self._break(others=True)  # it took no sequence, so all behind it will be refused
                return
            else:
                self._run += 1
                if self._run >= 4 * self._window.most:
                    self._alone_next = _ALONE_FIRST
        if self._queue:
            self._advance()

    def _refused(self, item: Pending, error: PenstockError) -> None:
        """Decide what an answer that is not an ack means: again, or never."""
        if judge(error) is Verdict.UNKNOWN:
            item.lost = True
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
            if self._chain:
                self._break(others=False)
            else:
                self._advance()

    def _is_order_check(self, error: PenstockError) -> bool:
        """Tell whether a message was refused for what it expects before it."""
        code = error.err_code if isinstance(error, JetStreamError) else None
        return bool(self._chain) and code == _CHECKS[self._chain][1]

    def _fail(self, item: Pending, error: PenstockError) -> None:
        self._forget(item)
        self._tell(item, error)

    def _tell(self, item: Pending, error: PenstockError) -> None:
        error = explained(error, item.out.subject, item.out.wire_headers(item.id))
        if not item.awaited:
            self._note(error)
        if not item.future.done():
            item.future.set_exception(error)
            item.future.exception()  # whoever waits, or flush, raises it; asyncio need not complain as well

    def _note(self, error: PenstockError) -> None:
        if len(self.failures) < _FAILURES:  # flush raises the first of them
            self.failures.append(error)

    def _forget(self, item: Pending) -> None:
        if item.attempts:
            self._window.forget(item.number)
        else:
            self._queue.remove(item)
            self._queued -= item.size
        self._changed.set()

    # -- mending -----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notice acks that do not come, and a connection that is closed for good."""
        while True:
            await asyncio.sleep(min(self._ack_timeout / 4, 0.25))
            now = self._loop.time()
            denied = self._subscription.error if self._subscription is not None else None
            if self._client.is_closed or denied is not None:
                for item in self._items():
                    gone = DisconnectedError(f"The connection was closed before {item.id} was acknowledged.")
                    self._fail(item, denied or gone)
            elif not self._mending and any(now - item.sent > self._ack_timeout for item in self._window.items()):
                self._break(others=False)

    def _break(self, *, others: bool) -> None:
        """Send nothing more, and mend what is in flight; `others` says that the order check failed and nothing else."""
        if self._mending:
            return
        self._mending = True
        self._base, self._run = None, 0
        if others:
            self._alone, self._alone_next = self._alone_next, min(self._alone_next * 2, _ALONE_MOST)
        self._spawn(self._mend())

    async def _mend(self) -> None:
        """Wait for the fate of all that is on its way, then send what has none again, one by one, in order."""
        for item in self._window.items():
            await self._fate(item)
        for item in self._window.items():
            await self._redo(item)
        self._mending = False
        self._changed.set()
        self._advance()

    async def _fate(self, item: Pending) -> None:
        """Wait until a message is acknowledged or has failed; without an answer in time its ack counts as lost."""
        while item.number in self._window and item.failure is None:
            left = item.sent + self._ack_timeout - self._loop.time()
            if left <= 0:
                item.lost = True
                item.failure = DeadlineError(f"No ack for {item.id} in {self._ack_timeout:g} s.")
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    async def _redo(self, item: Pending) -> None:
        item.chained = False
        attempt = -1
        while item.number in self._window:
            attempt += 1
            error = item.failure
            order_only = error is not None and self._is_order_check(error) and not item.out.expects
            if error is not None and not may_ask_again(error) and not order_only:
                if not await self._was_stored(item):
                    self._fail(item, error)
                return
            if not self._window.is_safe(self._loop.time()):
                self._fail(item, unknown(item, self._window.safe, error))
                return
            if attempt:
                await asyncio.sleep(_BACKOFF[min(attempt, len(_BACKOFF)) - 1])
            if self._client.is_closed:
                self._fail(item, DisconnectedError(f"The connection was closed before {item.id} was acknowledged."))
                return
            if not self._client.is_connected:
                with suppress(PenstockError):  # what lasts is told below, as that which nobody knows
                    await self._client.standing(self._window.safe)
                attempt = -1
                continue
            if item.lost and not await self._is_remembered(item):
                continue
            self.retries += 1
            self._launch(item)
            await self._fate(item)

    async def _is_remembered(self, item: Pending) -> bool:
        """Look whether the stream still remembers ids for as long as it did: somebody may have changed it meanwhile."""
        if self._loop.time() - self._asked_at > _LOOK:
            try:
                self._window.safe = min(self._window.safe, await self._remembered())
            except PenstockError as error:
                item.failure = error
                return False
            self._asked_at = self._loop.time()
        return self._window.is_safe(self._loop.time())

    async def _was_stored(self, item: Pending) -> bool:
        """Find out whether a condition fails because an earlier attempt, whose ack was lost, is the last message."""
        if not item.out.expects or item.attempts < 2 or self._replicas > 1:
            return False  # several replicas check ids before conditions
        try:
            found = await find_stored(self._client, self._stream, item.out.subject, item.id, self._ack_timeout)
        except PenstockError as error:
            self._fail(item, unknown(item, self._window.safe, error))
            return True
        if found is not None:
            self._settle(item, found)
        return found is not None
