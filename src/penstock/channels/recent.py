"""The newest messages of channels, kept encoded in memory, within one bound for all channels together."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from operator import attrgetter

from penstock.channels.encoded import Encoded, join

__all__ = ["Recent", "RecentRoom"]

_TOGETHER = 64 * 1024  # bytes of small pieces that are put together into one
_EACH = 1152  # bytes of a piece beside its messages and the three numbers of each


class RecentRoom:
    """The room that channels share: whichever of them stored it, what came first makes room for what comes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        """Bytes of memory, as far as they are known: those of the messages, and what goes with them."""
        self._arrivals = count(1)  # not the times of messages: a clock may be set, and each channel has its own
        # An entry for each channel that has something here, with the arrival of its oldest piece when last looked at.
        self._oldest: list[tuple[int, Recent]] = []

    def arrive(self, recent: Recent) -> int:
        """Give what a channel adds a number, by which it is older than all that comes later."""
        number = next(self._arrivals)
        if not recent.entered:
            recent.entered = True
            heappush(self._oldest, (number, recent))
        return number

    def leave(self, recent: Recent) -> None:
        """Count a channel no more."""
        recent.entered = False
        self._oldest = [entry for entry in self._oldest if entry[1] is not recent]
        heapify(self._oldest)

    def keep_within(self) -> None:
        """Let go of the oldest pieces until the rest is within the bound."""
        while self.used > self.limit:
            arrival, recent = self._oldest[0]
            if recent.oldest is None:
                heappop(self._oldest)
                recent.entered = False
            elif recent.oldest > arrival:  # others of it have gone since
                heapreplace(self._oldest, (recent.oldest, recent))
            else:
                recent.drop()


class Recent:
    """The newest messages of a channel, as far as there is room."""

    __slots__ = ("_arrived", "_loose", "_loose_bytes", "_pieces", "_room", "entered", "size")

    def __init__(self, room: RecentRoom) -> None:
        self.size = 0
        """Bytes of the messages alone."""
        self.entered = False
        self._room = room
        self._pieces: list[Encoded] = []  # in the order of their sequences
        self._arrived: list[int] = []  # of each the number of its arrival
        self._loose = 0  # how many of the last ones are small, and are to be joined
        self._loose_bytes = 0

    def __contains__(self, sequence: int) -> bool:
        return self.find(sequence) is not None

    @property
    def oldest(self) -> int | None:
        """The arrival of the oldest piece, if there is one."""
        return self._arrived[0] if self._arrived else None

    def add(self, piece: Encoded) -> None:
        """Keep messages; sequences come in order."""
        large = piece.size >= _TOGETHER
        if self._loose and (large or self._loose_bytes >= _TOGETHER or self._pieces[-1].last + 1 != piece.first):
            self._join()
        self.size += piece.size
        self._room.used += _memory(piece)
        self._pieces.append(piece)
        self._arrived.append(self._room.arrive(self))
        if not large:
            self._loose += 1
            self._loose_bytes += piece.size
        self._room.keep_within()

    def _join(self) -> None:
        """Put small pieces that follow each other into one: each by itself takes more memory than its bytes."""
        if self._loose > 1:
            pieces = self._pieces[-self._loose :]
            joined = join(pieces)
            self._room.used += _memory(joined) - sum(map(_memory, pieces))
            self._pieces[-self._loose :] = [joined]
            self._arrived[-self._loose :] = self._arrived[-1:]
        self._loose = self._loose_bytes = 0

    def drop(self) -> None:
        """Let go of the oldest piece."""
        piece = self._pieces.pop(0)
        del self._arrived[0]
        self.size -= piece.size
        self._room.used -= _memory(piece)
        if self._loose > len(self._pieces):
            self._loose -= 1
            self._loose_bytes -= piece.size

    def find(self, sequence: int) -> Encoded | None:
        """Give the messages among which this one is, if it is still here."""
        place = bisect_right(self._pieces, sequence, key=attrgetter("first")) - 1
        if place < 0:
            return None
        piece = self._pieces[place]
        return piece if sequence <= piece.last else None

    def get(self, sequence: int) -> bytes | None:
        """Give a message, if it is still here."""
        piece = self.find(sequence)
        return None if piece is None else piece.get(sequence)

    def drop_before(self, first: int) -> None:
        """Let go of what the channel no longer has."""
        while self._pieces and self._pieces[0].last < first:
            self.drop()

    def close(self) -> None:
        """Let go of everything."""
        while self._pieces:
            self.drop()
        self._room.leave(self)


def _memory(piece: Encoded) -> int:
    """Estimate the memory of a piece: pieces of one small message each take several times its bytes."""
    return piece.size + 24 * piece.count + _EACH
