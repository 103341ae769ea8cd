"""One message on its way in, and what it takes."""

from __future__ import annotations

import time
import warnings
from collections import Counter, deque
from dataclasses import dataclass, field

from penstock.chunks.limits import CHUNK_COST, MESSAGE_COST, Limits
from penstock.chunks.reading import Incoming
from penstock.chunks.store import MemoryStore, SpoolStore, UnreadStore
from penstock.chunks.wire import Body, Reason, Tiling
from penstock.errors import AssemblyError

__all__ = ["Assembly", "Counts", "Key"]

Key = tuple[int, str, str]
"""Which reader, which subject, which message: the same id on two subjects is two messages."""


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
    """Messages that are no chunks, and chunks that say nothing."""
    unreported: int = 0
    """Errors that on_error was not told of, because it was too slow."""
    failures: Counter[str] = field(default_factory=Counter)
    """Messages that were given up, by reason."""

    @property
    def dropped(self) -> int:
        """Zero: no queue stands between the socket and an assembler. Deprecated."""
        warnings.warn("Counts.dropped is always 0: nothing drops chunks any more", DeprecationWarning, stacklevel=2)
        return 0


class Assembly:
    """A message that has begun: what has come of it, and where that is kept."""

    def __init__(self, key: Key, limits: Limits, incoming: Incoming | None = None) -> None:
        self.key = key
        _, self.subject, self.message_id = key
        self._limits = limits
        self.tiling = Tiling(max_size=limits.largest(streamed=incoming is not None), max_chunks=limits.max_chunks)
        self.touched = time.monotonic()
        self.incoming = incoming
        self.store: MemoryStore | SpoolStore | UnreadStore = MemoryStore() if incoming is None else incoming.unread
        self.owed: deque[tuple[int, str]] = deque()
        """Chunks whose publisher wants an answer: where they end, and where to answer."""
        self._charged = (0, 0)
        self._closed = False

    def needs(self, size: int) -> tuple[int, int]:
        """Say how much memory and disk space a new chunk of this size takes."""
        if isinstance(self.store, MemoryStore):
            if self._spills(size):
                return CHUNK_COST - self.store.memory, self.store.memory + size
            return CHUNK_COST + size, 0
        return (CHUNK_COST, size) if self.store.disk else (CHUNK_COST + size, 0)

    def _spills(self, size: int) -> bool:
        above = self._limits.spool_above
        return above is not None and self.store.memory + size > above

    def write(self, offset: int, body: Body) -> None:
        if isinstance(self.store, MemoryStore) and self._spills(len(body)):
            spool = SpoolStore(self._limits.folder)
            try:
                self.store.spill(spool)
            except BaseException:
                spool.close()
                raise
            self.store = spool
        if isinstance(self.store, MemoryStore):
            self.store.write(offset, body, final=self.tiling.complete)
        else:
            self.store.write(offset, body)
        if self.incoming is not None:
            self.incoming.notify()

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
        """Say what became of this message."""
        total = "an unknown number of" if self.tiling.total is None else self.tiling.total
        gaps = ""
        if reason in (Reason.TIMEOUT, Reason.CLOSED) and not self.tiling.complete:
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


_REMEDIES = {
    Reason.TIMEOUT: "Core NATS loses what is sent while a link is down: send it again, or through a stream.",
    Reason.NO_ROOM: "Raise the limit, or take messages faster.",
    Reason.TOO_LARGE: "Raise max_message_bytes or max_chunks if such messages are wanted.",
    Reason.SPOOL: "Is there space in spool_dir?",
}
