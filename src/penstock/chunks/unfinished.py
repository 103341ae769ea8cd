"""Messages that have begun and are not whole: which of them waits longest, and which goes first when room is short.

The message that came least far goes first, so that a payload which has nearly come is not lost for a stranger's first
chunk: within a factor of two, so much as a message has must have come of every other before it is the one to go. Of
messages that came equally far, the one that waited longest for a chunk goes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from penstock.chunks.incoming import Assembly, Key

__all__ = ["Unfinished"]


class Unfinished:
    """A table of messages by their key; `timeout` is how long one may wait for a chunk."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._all: OrderedDict[Key, Assembly] = OrderedDict()  # the one that waited longest comes first
        self._ranks: dict[int, OrderedDict[Key, Assembly]] = {}  # the same, of those that came equally far

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, assembly: Assembly) -> bool:
        return self._all.get(assembly.key) is assembly

    def __iter__(self) -> Iterator[Assembly]:
        """Give all, the one that waited longest first."""
        return iter(list(self._all.values()))

    @property
    def longest_waiting(self) -> Assembly | None:
        return next(iter(self._all.values()), None)

    def get(self, key: Key) -> Assembly | None:
        return self._all.get(key)

    def add(self, assembly: Assembly) -> None:
        self._all[assembly.key] = assembly
        self._ranks.setdefault(assembly.rank, OrderedDict())[assembly.key] = assembly

    def touch(self, assembly: Assembly) -> None:
        """Say that a chunk came."""
        key = assembly.key
        assembly.touched = time.monotonic()
        self._all.move_to_end(key)
        rank = assembly.tiling.received.bit_length()
        if rank == assembly.rank:
            self._ranks[rank].move_to_end(key)
        else:
            self._leave(assembly)
            assembly.rank = rank
            self._ranks.setdefault(rank, OrderedDict())[key] = assembly

    def remove(self, assembly: Assembly) -> None:
        if assembly in self:
            del self._all[assembly.key]
            self._leave(assembly)

    def _leave(self, assembly: Assembly) -> None:
        rank = self._ranks[assembly.rank]
        del rank[assembly.key]
        if not rank:
            del self._ranks[assembly.rank]

    def victim(self, asking: Assembly, *, on_disk: bool = False) -> Assembly | None:
        """Give the one that goes first, so that `asking` has room: None if nobody came less far, or waited so long.

        If the disk is full, only a message on disk makes room.
        """

        def fits(item: Assembly) -> bool:
            return item is not asking and (not on_disk or item.store.disk > 0)

        late = time.monotonic() - self._timeout / 2  # nothing came for so long that it hardly will
        first = self.longest_waiting
        if first is not None and first.touched < late and fits(first):
            return first
        ranks = (self._ranks[rank].values() for rank in sorted(self._ranks) if rank <= asking.rank)
        return next((item for item in chain.from_iterable(ranks) if fits(item)), None)
