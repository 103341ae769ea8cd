"""Messages on their way in: what has come of each, where that is kept, and how it is read while it arrives."""

from __future__ import annotations

import asyncio
import hashlib
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from penstock.chunks.limits import CHUNK_COST, MESSAGE_COST, Limits
from penstock.chunks.store import MemoryStore, SpoolStore, UnreadStore, join
from penstock.chunks.wire import Body, Reason, Tiling
from penstock.errors import AssemblyError, InputError, PenstockError

__all__ = ["MOST_PRINTS", "Assembly", "Counts", "Inbox", "Incoming", "Key", "PayloadReader", "print_of"]

Key = tuple[int, str, str]
"""Which reader, which subject, which message: the same id on two subjects is two messages."""
MOST_PRINTS = 64
"""Chunks of one message whose looks are remembered."""
_MOST_OWED = 64  # answers to a publisher that wait for a slow reader: the newest says all that older ones would
_REMEDIES = {
    Reason.TIMEOUT: "Core NATS loses what is sent while a connection is down: send it again, or through a stream.",
    Reason.CONFLICT: "One id is one payload: give each its own, or none, and one is made up.",
    Reason.DISCONNECTED: "Send it again, or through a stream.",
    Reason.NO_ROOM: "Raise the limit, or take messages faster.",
    Reason.TOO_LARGE: "Raise max_message_bytes or max_chunks if such messages are wanted.",
    Reason.SPOOL: "Is there space in spool_dir?",
}


@dataclass
class Counts:
    """What an assembler has seen."""

    chunks: int = 0
    """Messages of NATS that came on its subjects."""
    messages: int = 0
    """Payloads that were delivered: their handler returned, or all of their bytes stand ready for their reader."""
    bytes: int = 0
    """Bytes of those payloads."""
    duplicates: int = 0
    """Chunks that had come before, or whose message has ended."""
    ignored: int = 0
    """Messages that are not chunks, and chunks that say nothing."""
    unreported: int = 0
    """Errors that on_error was not told of, because it was too slow."""
    spilled: int = 0
    """Payloads that went to disk because max_total_bytes had no room for them."""
    disconnects: int = 0
    """How often the connection was lost: chunks that were sent meanwhile are lost, too."""
    cut_off: int = 0
    """How many of these look like a server that gave up a slow reader: it hung up while much was on its way."""
    failures: Counter[str] = field(default_factory=Counter)
    """Messages that were given up, by reason."""

    @property
    def dropped(self) -> int:
        """Zero: no queue stands between the socket and an assembler. Deprecated."""
        warnings.warn("Counts.dropped is always 0: nothing drops chunks any more", DeprecationWarning, stacklevel=2)
        return 0


class PayloadReader(ABC):
    """Bytes in order: iterate over them as they come, or `read` as many as you want."""

    size: int | None = None
    """The size of the payload, once it is known."""

    def __init__(self, message_id: str, subject: str) -> None:
        self.message_id, self.subject = message_id, subject
        self.position = 0
        """Bytes read so far."""
        self._rest = b""

    @abstractmethod
    async def _next(self) -> bytes:
        """Give the next bytes, or none at the end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece, self._rest = self._rest or await self._next(), b""
        if not piece:
            raise StopAsyncIteration
        self.position += len(piece)
        return piece

    async def read(self, size: int = -1) -> bytes:
        """Give up to `size` bytes, waiting for the first of them; nothing at the end. Without a size, all the rest."""
        if size < 0:
            return await join(self)
        if not self._rest:
            self._rest = await self._next()
        piece, self._rest = self._rest[:size], self._rest[size:]
        self.position += len(piece)
        return piece

    def _broken(self, reason: Reason, what: str) -> AssemblyError:
        return AssemblyError(
            f"Message {self.message_id} on {self.subject} {what}.",
            remedy="Throw away what was read of it.",
            subject=self.subject,
            message_id=self.message_id,
            reason=reason,
            received=self.position,
            total=self.size,
        )


class Incoming(PayloadReader):
    """A message that is arriving: iterate over it for its bytes in order, or `read` them.

    The end of the iteration says that the payload was whole and its digest right. Until then the bytes are
    provisional: AssemblyError is raised if the rest never came, or was not what the publisher sent.
    """

    def __init__(
        self,
        message_id: str,
        subject: str,
        unread: UnreadStore,
        taken: Callable[[], None],
        wrong: Callable[[AssemblyError], None],
    ) -> None:
        super().__init__(message_id, subject)
        self.unread, self._taken, self._wrong = unread, taken, wrong
        self._changed = asyncio.Event()
        self._error: PenstockError | None = None
        self._expected: str | None = None
        self._verified = False
        self._digest = hashlib.sha256()

    def notify(self) -> None:
        """More has come."""
        self._changed.set()

    def complete(self, size: int, digest: str | None) -> None:
        """Everything has come."""
        self.size, self._expected = size, digest
        self._changed.set()

    def fail(self, error: PenstockError) -> None:
        """The rest will not come."""
        self._error = error
        self.unread.close()
        self._changed.set()

    @property
    def gone(self) -> bool:
        """Whether there is nothing to read any more: all was read, it failed, or the reader does not want it."""
        return self._verified or self._error is not None

    def discard(self) -> None:
        """Let go of what came and will come; reading on is an error."""
        self.fail(InputError("The message was discarded.", remedy="Read it before you discard it."))
        self._taken()

    async def _next(self) -> bytes:
        while True:
            if self._error is not None:
                raise self._error
            if (piece := self.unread.take()) is not None:
                self._digest.update(piece)
                self._taken()
                return piece
            if self.size is not None:
                return self._end()
            self._changed.clear()
            await self._changed.wait()  # the assembler's timeout ends this, too

    def _end(self) -> bytes:
        if self._verified:
            return b""
        if self._expected is not None and self._digest.hexdigest() != self._expected:
            self._error = error = self._broken(Reason.DIGEST, "does not have the digest that its publisher sent")
            self._taken()
            self._wrong(error)
            raise error
        self._verified = True
        self._taken()
        return b""


class Inbox:
    """The messages that arrive on one subject, each from its first chunk on; iterate over it.

    DeniedError is raised if the server does not permit the subject any more, DisconnectedError if the connection
    is closed for good.
    """

    def __init__(self, subject: str, window: int) -> None:
        self.subject, self.window = subject, window
        self._messages: OrderedDict[Incoming, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._closed = False
        self._error: PenstockError | None = None

    def put(self, message: Incoming) -> None:
        """A message begins."""
        self._messages[message] = None
        self._changed.set()

    def drop(self, message: Incoming) -> None:
        """A message ended; if nobody has seen it yet, nobody will: what failed was reported."""
        self._messages.pop(message, None)

    def close(self, error: PenstockError | None = None) -> None:
        """No more messages begin; there is an error if nobody here asked for that."""
        if not self._closed:
            self._closed, self._error = True, error
        self._changed.set()

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> Incoming:
        while True:
            while self._messages:
                message, _ = self._messages.popitem(last=False)
                if not message.gone:  # what the end of the inbox took with it was reported
                    return message
            if self._closed:
                raise self._error or StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()


def print_of(body: Body) -> int:
    """Give a number that tells chunks of different payloads apart, by their size, beginning and end."""
    return hash((len(body), bytes(body[:64]), bytes(body[-64:])))


class Assembly:
    """A message that has begun: what has come of it, and where that is kept."""

    def __init__(self, key: Key, limits: Limits, incoming: Incoming | None = None) -> None:
        self.key = key
        _, self.subject, self.message_id = key
        self._limits = limits
        self.tiling = Tiling(max_size=limits.largest(streamed=incoming is not None), max_chunks=limits.max_chunks)
        self.began = self.touched = time.monotonic()
        self.rank = 0
        """How far it came: so many bits has the number of its bytes."""
        self.prints: dict[int, int] = {}
        """What each chunk looked like, by its offset, of the first ones."""
        self.lost = ""
        """Why the connection was lost while it was under way, if it was."""
        self.incoming = incoming
        self.store: MemoryStore | SpoolStore | UnreadStore = MemoryStore() if incoming is None else incoming.unread
        self.owed: deque[tuple[int, str]] = deque(maxlen=_MOST_OWED)
        """Chunks whose publisher wants an answer: where they end, and where to answer."""
        self._charged = (0, 0)
        self._closed = False

    def needs(self, size: int, *, spill: bool = False) -> tuple[int, int]:
        """Say how much memory and disk space a new chunk of this size takes, on disk if it `spill`s there."""
        if isinstance(self.store, MemoryStore) and (spill or self._limits.spools(self.store.memory + size)):
            return CHUNK_COST - self.store.memory, self.store.memory + size
        on_disk = self.store.disk or spill or isinstance(self.store, SpoolStore)
        return (CHUNK_COST, size) if on_disk else (CHUNK_COST + size, 0)

    def write(self, offset: int, body: Body, *, spill: bool = False) -> None:
        if isinstance(self.store, MemoryStore) and (spill or self._limits.spools(self.store.memory + len(body))):
            self.spill()
        if isinstance(self.store, MemoryStore):
            self.store.write(offset, body, final=self.tiling.complete)
        elif isinstance(self.store, UnreadStore):
            self.store.write(offset, body, spill=spill)
        else:
            self.store.write(offset, body)
        if self.incoming is not None:
            self.incoming.notify()

    def remember(self, offset: int, body: Body) -> None:
        """Note what a chunk looks like, so that another payload under the same id is told from a repetition."""
        if len(self.prints) < MOST_PRINTS:
            self.prints[offset] = print_of(body)

    def can_spill(self, offset: int) -> bool:
        """Tell whether a chunk can go to disk; of a message that is read while it arrives, only the next in order."""
        return not isinstance(self.store, UnreadStore) or offset == self.store.end

    def spill(self) -> None:
        """Move what came from memory to disk."""
        assert isinstance(self.store, MemoryStore)
        spool = SpoolStore(self._limits.folder)
        try:
            self.store.spill(spool)
        except BaseException:
            spool.close()
            raise
        self.store = spool

    def load(self, data: bytes) -> None:
        """Keep the payload in memory again."""
        self.store.close()
        self.store = MemoryStore()
        self.store.write(0, data, final=True)

    def same(self, offset: int, body: Body) -> bool:
        """Whether a chunk that came again brings the same bytes; what a reader has taken cannot be compared."""
        return isinstance(self.store, UnreadStore) or self.store.same(offset, body)

    @property
    def room_until(self) -> int:
        """How far the publisher may be: without end, or as far as the reader's window goes."""
        if self._closed or not isinstance(self.store, UnreadStore):
            return 2**64 - 1
        return self.store.taken + self.store.window

    def charge(self) -> tuple[int, int]:
        """Give the change in memory and disk space since the last call."""
        memory = 0 if self._closed else MESSAGE_COST + CHUNK_COST * len(self.tiling) + self.store.memory
        before, self._charged = self._charged, (memory, self.store.disk)
        return memory - before[0], self.store.disk - before[1]

    def close(self) -> None:
        self._closed = True
        self.store.close()

    def error(self, reason: Reason, why: str) -> AssemblyError:
        total = "an unknown number of" if self.tiling.total is None else self.tiling.total
        gaps = ""
        if reason in (Reason.TIMEOUT, Reason.DISCONNECTED, Reason.CLOSED) and not self.tiling.complete:
            gaps = f"; missing {self.tiling.gaps()}"
        return AssemblyError(
            f"Message {self.message_id[:80]} on {self.subject} was given up ({reason}): {why}; "
            f"{self.tiling.received} of {total} bytes had come{gaps}.",
            remedy=_REMEDIES.get(reason, ""),
            subject=self.subject,
            message_id=self.message_id,
            reason=reason,
            received=self.tiling.received,
            total=self.tiling.total,
        )
