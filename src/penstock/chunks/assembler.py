"""Puts payloads together from their chunks, hands whole ones to a handler, and reports what it gives up.

A chunk is handled in one step, with no waiting in it, so that nothing can happen in between. Whatever comes, in any
order, a message ends in one of two ways: delivered whole, or given up with a reason that is counted and reported.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import chain
from typing import Any, Self

from penstock.chunks.handler import ErrorFunction, Handler, HandlerFunction, tell
from penstock.chunks.incoming import MOST_PRINTS, Assembly, Counts, Inbox, Incoming, Key, print_of
from penstock.chunks.limits import MESSAGE_COST, Limits, Remembered, check_count
from penstock.chunks.pacing import announce, is_answerable
from penstock.chunks.store import INLINE, MemoryStore, SpoolStore, UnreadStore, digest_of
from penstock.chunks.unfinished import Unfinished
from penstock.chunks.wire import Body, Chunk, Headers, Reason, Refusal, decode, message_id_of, read_headers
from penstock.connection import Connection, Subscription
from penstock.connection.backlog import MEMORY
from penstock.connection.connecting import check_connection
from penstock.connection.messages import as_text
from penstock.connection.subscription import served
from penstock.connection.tasks import end
from penstock.errors import AssemblyError, DeadlineError, InputError, PenstockError

__all__ = ["Assembler"]

log = logging.getLogger("penstock.chunks")

_REPORTS = 1024
_PRINTS = 1024  # messages that were whole, of which the looks of chunks are remembered
_CLOSE_TIMEOUT = 30.0
_CLEANUP = 1.0  # seconds that a handler which was cancelled has for what it does last


class Assembler:
    """Receives payloads in chunks on core NATS.

    `handler(message_id, data)` or `handler(message_id, data, subject)`, a function or a coroutine function, gets each
    whole payload as bytes; above `spool_above` bytes, if that is given, as a binary file that is closed when the
    handler returns. Handlers run `concurrency` at a time, and chunks are taken in the meantime. `on_error(error)`,
    likewise either, gets an AssemblyError for each message that is given up; without one they are logged. `timeout`
    is how many seconds a message may go without a new chunk. The other options are bounds: docs/reference/chunks.md.
    """

    def __init__(
        self,
        nc: Connection,
        timeout: float = 30.0,
        handler: HandlerFunction | None = None,
        on_error: ErrorFunction | None = None,
        **limits: Any,
    ) -> None:
        self._nc = check_connection(nc)
        self._limits = Limits.of("An assembler", Limits.__dataclass_fields__, timeout=timeout, **limits)
        self._handler = None if handler is None else Handler(handler, self._limits.concurrency)
        self._on_error = on_error
        self.counts = Counts()
        """What has happened so far; `docs/reference/chunks.md` names the figures."""
        self._memory = self._disk = 0  # what messages take, from their first chunk to the end of their handler
        self._open = Unfinished(self._limits.timeout)
        self._whole: dict[Assembly, None] = {}  # those that wait for a handler, in order
        self._prints: OrderedDict[Key, dict[int, int]] = OrderedDict()  # what the chunks of those that were whole were
        self._ended = Remembered(self._limits.timeout)  # so that late chunks of what ended begin nothing anew
        self._subscriptions: dict[Subscription, Subscription | None] = {}  # each with what announces it
        self._inboxes: dict[Inbox, set[Assembly]] = {}
        self._deliveries: asyncio.Queue[Assembly] = asyncio.Queue()
        self._reports: asyncio.Queue[AssemblyError] = asyncio.Queue(_REPORTS)
        self._listening = ExitStack()
        self._lost, self._lost_at = "", -math.inf  # why and when the connection was lost last
        self._name = secrets.token_hex(8).encode()  # what we answer publishers with
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.close()

    @property
    def unfinished(self) -> int:
        """How many messages have begun and are not whole."""
        return len(self._open)

    @property
    def held_bytes(self) -> tuple[int, int]:
        """The memory and the disk space that messages take, from their first chunk to the end of their handler."""
        return self._memory, self._disk

    # -- the caller's side --------------------------------------------------------------------------

    async def subscribe(self, subject: str, queue: str | None = None) -> Subscription:
        """Take messages on `subject`, wildcards allowed, to the handler; DeniedError if that is not permitted."""
        if queue:
            raise InputError(
                f"Chunks cannot be shared in the queue group {queue!r}: each member would get some chunks of a message "
                "and none would get all.",
                remedy="Subscribe without a group, or share whole messages through a stream (Archive.consume).",
            )
        if self._handler is None:
            raise InputError("There is no handler to give messages to.", remedy="Give the assembler one, or use open.")
        return await self._listen(subject, None)

    @asynccontextmanager
    async def open(self, subject: str, *, window: int = 8 * 1024 * 1024) -> AsyncIterator[Inbox]:
        """Read messages on `subject` while they arrive: `async for message in inbox: async for piece in message`.

        `window` is how many bytes of a message wait in memory for its reader. Our publishers wait for the reader;
        what other publishers send beyond the window waits on disk.
        """
        inbox = Inbox(subject, check_count("window", window))
        self._inboxes[inbox] = set()
        try:
            subscription = await self._listen(subject, inbox)
            try:
                yield inbox
            finally:
                await self._drain(subscription)
        finally:
            self._abandon(inbox)

    async def close(self) -> None:
        """Take what the server has sent, let handlers finish, give the rest up; a second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _listen(self, subject: str, inbox: Inbox | None) -> Subscription:
        if self._closing is not None:
            raise InputError("The assembler is closed.", remedy="Make a new one.")
        if not self._tasks:
            ahead = max(MEMORY, self._limits.max_total_bytes // 4)
            self._listening.enter_context(self._nc.reading_ahead(self._limits.folder, ahead))
            workers = [self._work() for _ in range(self._limits.concurrency)] if self._handler else []
            tasks = (*workers, self._watch(), self._follow(), self._tell())
            self._tasks = [asyncio.ensure_future(task) for task in tasks]

        def receive(subject: bytes, reply: bytes, body: Body, block: bytes | None) -> None:
            self._receive(as_text(subject), as_text(reply), read_headers(block), body, inbox)

        def ended(error: PenstockError) -> None:
            if inbox is not None:
                inbox.close(error)
            if self._nc.is_closed:
                self._closed(error)

        # The connection lends each chunk from the place that it was received into, so that a chunk is copied once, into
        # its payload. No queue stands between, so nothing is dropped.
        tap = self._nc.tap(subject, receive, lend=True, on_end=ended, lasting=inbox is None)
        subscription = await tap
        told = self._subscriptions[subscription] = await announce(self._nc, subscription) if self._limits.flow else None
        try:
            await served(subscription)
            if told is not None:
                told.was_served = not told.ended  # it was asked for, too, before the server confirmed
        except BaseException:
            await self._drain(subscription)
            raise
        return subscription

    def _closed(self, error: PenstockError) -> None:
        """Tell that the connection is closed."""
        for inbox in self._inboxes:
            inbox.close(error)
        for assembly in self._open:
            self._fail(assembly, Reason.CLOSED, f"no chunk comes any more: {error}")

    async def _close(self) -> None:
        self._listening.close()
        await _a_while(asyncio.gather(*(self._drain(subscription) for subscription in list(self._subscriptions))))
        for inbox in list(self._inboxes):
            self._abandon(inbox)
        for assembly in self._open:
            self._fail(assembly, Reason.CLOSED, "the receiver was closed")
        await _a_while(self._deliveries.join())
        await _a_while(self._reports.join())
        await end(self._tasks, again=_CLEANUP)
        while not self._deliveries.empty():
            self._release(self._deliveries.get_nowait())
        if self._handler is not None:
            self._handler.close()

    async def _drain(self, subscription: Subscription) -> None:
        announced = self._subscriptions.pop(subscription, None)
        with suppress(PenstockError):  # whoever got the subscription may have ended it, or the connection
            if announced is not None:
                await announced.unsubscribe()
            await (subscription.drain() if self._nc.is_connected else subscription.unsubscribe())

    def _abandon(self, inbox: Inbox) -> None:
        inbox.close()
        for assembly in list(self._inboxes.pop(inbox, ())):
            if assembly in self._open:
                self._fail(assembly, Reason.CLOSED, "its inbox was closed")
            elif assembly.incoming is not None:  # it came whole, and nobody wants it
                assembly.incoming.fail(assembly.error(Reason.CLOSED, "its inbox was closed"))
                self._release(assembly)

    # -- one chunk ----------------------------------------------------------------------------------

    def _receive(self, subject: str, reply: str, headers: Headers, body: Body, inbox: Inbox | None) -> None:
        self.counts.chunks += 1
        message_id = message_id_of(headers)
        if message_id is None or (inbox is not None and inbox not in self._inboxes):
            self.counts.ignored += 1
            return
        key: Key = (0 if inbox is None else id(inbox), subject, message_id)
        if key in self._ended:
            self._ended.add(key)  # chunks of it are still under way
            self.counts.duplicates += 1
            self._compare(key, headers, body)
            return
        assembly = self._open.get(key)
        try:
            chunk = decode(headers, len(body))
            if not body and not chunk.last:
                self.counts.ignored += 1  # it says nothing
                return
            if assembly is None:
                assembly = self._begin(key, inbox, len(body))
            self._add(assembly, chunk, body)
            if reply and self._limits.flow and is_answerable(reply):
                assembly.owed.append((chunk.offset + len(body), reply))
                if assembly.room_until < chunk.offset + len(body):
                    self._say(reply, assembly.room_until)  # the publisher shall know that we are there
                self._answer(assembly)
        except Refusal as refusal:
            self._fail(assembly or Assembly(key, self._limits), refusal.reason, str(refusal))
        except OSError as error:
            self._fail(assembly or Assembly(key, self._limits), Reason.SPOOL, f"the spool failed: {error}")

    def _compare(self, key: Key, headers: Headers, body: Body) -> None:
        """Look whether a late chunk is of the payload that was whole before: an id may be used twice."""
        prints = self._prints.get(key)
        if prints is None or not body:
            return
        try:
            offset = decode(headers, len(body)).offset
        except Refusal:
            offset = -1
        if prints.get(offset) != print_of(body) and (offset in prints or len(prints) < MOST_PRINTS):
            del self._prints[key]  # once
            self._report(
                Assembly(key, self._limits).error(
                    Reason.CONFLICT,
                    f"a chunk at {offset} came that is not of the payload which was whole before it; either that one "
                    f"is a mixture of two, or another one followed under the same id within {self._limits.timeout:g} s",
                )
            )

    def _begin(self, key: Key, inbox: Inbox | None, size: int) -> Assembly:
        """Begin a message whose first chunk has so many bytes."""
        incoming = None
        if inbox is not None:
            unread = UnreadStore(inbox.window, self._limits.folder)
            incoming = Incoming(key[2], key[1], unread, lambda: self._taken(assembly), self._report)
        assembly = Assembly(key, self._limits, incoming)
        assembly.rank = size.bit_length()
        while len(self._open) >= self._limits.max_messages:
            self._give_way(assembly, f"{self._limits.max_messages} messages are under way")
        self._make_room(assembly, MESSAGE_COST, 0)
        self._open.add(assembly)
        self._settle(assembly)
        if inbox is not None and incoming is not None:
            inbox.put(incoming)
            self._inboxes[inbox].add(assembly)
        return assembly

    def _add(self, assembly: Assembly, chunk: Chunk, body: Body) -> None:
        if assembly.tiling.add(chunk, len(body)):
            memory, disk = assembly.needs(len(body))
            # What has no room in memory goes to disk; of a message that is read meanwhile, what is next in order.
            spill = memory > 0 and self._crowded(memory) and assembly.can_spill(chunk.offset)
            if spill:
                on_disk = assembly.needs(len(body), spill=True)
                if self._full(*on_disk) == "max_spool_bytes":
                    spill = False  # who goes is decided by the memory then
                else:
                    memory, disk = on_disk
                    self.counts.spilled += not assembly.store.disk
            self._make_room(assembly, memory, disk)
            assembly.write(chunk.offset, body, spill=spill)
            assembly.remember(chunk.offset, body)
            self._settle(assembly)
            self._open.touch(assembly)
        elif body:
            self.counts.duplicates += 1
            if not assembly.same(chunk.offset, body):
                raise Refusal(Reason.CONFLICT, f"the chunk at {chunk.offset} came twice with different bytes")
        if assembly.tiling.complete:
            self._open.remove(assembly)
            self._ended.add(assembly.key)
            self._prints[assembly.key] = assembly.prints
            while len(self._prints) > _PRINTS:
                self._prints.popitem(last=False)
            if assembly.incoming is None:
                self._whole[assembly] = None
                self._deliveries.put_nowait(assembly)
            else:
                self.counts.messages += 1
                self.counts.bytes += assembly.tiling.received
                assembly.incoming.complete(assembly.tiling.received, assembly.tiling.digest)

    def _make_room(self, assembly: Assembly, memory: int, disk: int) -> None:
        """Give up messages that came no further, or for which nothing came for long, until this fits; else refuse."""
        while (full := self._full(memory, disk)) is not None:
            if full == "max_total_bytes" and self._spill_another(assembly):
                continue
            why = f"the {getattr(self._limits, full)} bytes of {full} are taken"
            self._give_way(assembly, why, on_disk=full == "max_spool_bytes")

    def _give_way(self, assembly: Assembly, why: str, *, on_disk: bool = False) -> None:
        victim = self._open.victim(assembly, on_disk=on_disk)
        if victim is None:
            raise Refusal(Reason.NO_ROOM, f"{why}, by others that came further" if len(self._open) > 1 else why)
        self._fail(victim, Reason.NO_ROOM, why)

    def _spill_another(self, assembly: Assembly) -> bool:
        """Move a message from memory to disk, so that there is room for what must be in memory."""
        for other in chain(self._open, reversed(list(self._whole))):
            store = other.store
            if other is not assembly and isinstance(store, MemoryStore) and store.memory:
                if self._full(0, store.memory) is not None:
                    return False
                other.spill()
                self.counts.spilled += 1
                self._settle(other)
                return True
        return False

    def _crowded(self, memory: int) -> bool:
        """Tell whether so much more of payloads would leave too little for what is known of each chunk."""
        return self._full(memory + self._limits.max_total_bytes // 16, 0) is not None

    def _full(self, memory: int, disk: int) -> str | None:
        """Name the limit that so much more would pass, or None."""
        if memory > 0 and self._memory + memory > self._limits.max_total_bytes:
            return "max_total_bytes"
        if disk > 0 and self._disk + disk > self._limits.max_spool_bytes:
            return "max_spool_bytes"
        return None

    def _settle(self, assembly: Assembly) -> None:
        memory, disk = assembly.charge()
        self._memory += memory
        self._disk += disk

    def _answer(self, assembly: Assembly) -> None:
        """Give the answers that are due: the reader's window reaches to where the chunk ends."""
        while assembly.owed and assembly.owed[0][0] <= assembly.room_until:
            end_of_chunk, reply = assembly.owed.popleft()
            self._say(reply, end_of_chunk)

    def _say(self, reply: str, position: int) -> None:
        """Tell a publisher how far we are; one that gets no answer waits a little, then goes on."""
        if self._nc.is_connected:
            with suppress(PenstockError):  # nobody vouches for the reply subject
                self._nc.send(reply, b"%s %d" % (self._name, position))

    def _taken(self, assembly: Assembly) -> None:
        self._settle(assembly)
        self._answer(assembly)
        if assembly.incoming is not None and assembly.incoming.gone:
            if assembly in self._open:  # discarded before it was whole
                self._open.remove(assembly)
                self._ended.add(assembly.key)
            self._release(assembly)

    def _release(self, assembly: Assembly) -> None:
        assembly.close()
        self._settle(assembly)
        self._answer(assembly)
        for inbox, waiting in self._inboxes.items():
            waiting.discard(assembly)
            if assembly.incoming is not None:
                inbox.drop(assembly.incoming)

    # -- giving up ----------------------------------------------------------------------------------

    def _fail(self, assembly: Assembly, reason: Reason, why: str) -> None:
        self._open.remove(assembly)
        # After a timeout nothing of the message is under way any more, and the same id may be sent again.
        if reason not in (Reason.TIMEOUT, Reason.DISCONNECTED):
            self._ended.add(assembly.key)
        error = assembly.error(reason, why)
        if assembly.incoming is not None:
            assembly.incoming.fail(error)
        self._release(assembly)
        self._report(error)

    def _report(self, error: AssemblyError) -> None:
        self.counts.failures[str(error.reason)] += 1
        try:
            self._reports.put_nowait(error)
        except asyncio.QueueFull:
            self.counts.unreported += 1

    async def _tell(self) -> None:
        while True:
            error = await self._reports.get()
            try:
                await tell(self._on_error, error)
            finally:
                self._reports.task_done()

    async def _watch(self) -> None:
        """Give up what got no chunk for too long."""
        while True:
            now, wait = time.monotonic(), self._limits.timeout  # what begins meanwhile has as long as that
            while (oldest := self._open.longest_waiting) is not None:
                if (left := oldest.touched + self._limits.timeout - now) > 0:
                    wait = left
                    break
                late = f"no new chunk came for {self._limits.timeout:g} s"
                if oldest.began - self._lost_at < self._limits.timeout:  # its beginning may be lost
                    oldest.lost = oldest.lost or self._lost
                if oldest.lost:
                    self._fail(oldest, Reason.DISCONNECTED, f"the connection was lost ({oldest.lost}), and {late}")
                else:
                    self._fail(oldest, Reason.TIMEOUT, late)
            self._ended.forget()
            await asyncio.sleep(wait)

    async def _follow(self) -> None:
        """Count the times that the connection is lost, and know what was under way then."""
        nc = self._nc
        while True:
            broken, before = nc.broken, nc.cut_off
            error = await asyncio.shield(broken)
            if nc.is_closed:  # by somebody who drained it, perhaps, so that no subscription was told
                self._closed(error)
                return
            self.counts.disconnects += 1
            self.counts.cut_off += nc.cut_off > before
            self._lost, self._lost_at = error.what.rstrip("."), time.monotonic()
            for assembly in self._open:
                assembly.lost = self._lost
            lost = "The connection was lost with %d payloads under way; what is sent meanwhile is lost."
            log.warning(lost, len(self._open))
            while nc.broken is broken:
                with suppress(DeadlineError):
                    await nc.standing(60.0)

    # -- delivery -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            assembly = await self._deliveries.get()
            self._whole.pop(assembly, None)
            try:
                await self._deliver(assembly)
            except asyncio.CancelledError:
                self._report(assembly.error(Reason.CLOSED, "the receiver was closed while its handler ran"))
                raise
            except Exception as error:
                failed = assembly.error(Reason.HANDLER, f"the handler raised {type(error).__name__}: {error}")
                failed.__cause__ = error
                self._report(failed)
            finally:
                self._release(assembly)
                self._deliveries.task_done()

    async def _deliver(self, assembly: Assembly) -> None:
        assert self._handler is not None  # subscribe refuses without one
        size = assembly.tiling.received
        if isinstance(assembly.store, SpoolStore) and not self._limits.spools(size):
            await self._load(assembly, assembly.store, size)
        store = assembly.store
        assert isinstance(store, MemoryStore | SpoolStore)
        expected = assembly.tiling.digest
        if expected is not None and await digest_of(store.take(), size) != expected:
            self._report(assembly.error(Reason.DIGEST, "its digest is not the one that its publisher sent"))
            return
        await self._handler(assembly.message_id, store.take(), assembly.subject)
        self.counts.messages += 1
        self.counts.bytes += size

    async def _load(self, assembly: Assembly, spool: SpoolStore, size: int) -> None:
        """Bring a payload back that went to disk for want of memory: its handler gets bytes, as of any other."""
        with suppress(OSError):  # then there is one payload more in memory, for as long as its handler takes
            while self._full(size, 0) is not None and self._spill_another(assembly):
                pass
        assembly.load(await asyncio.to_thread(spool.read, 0, size) if size >= INLINE else spool.read(0, size))
        self._settle(assembly)


async def _a_while(what: Awaitable[object]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await what
