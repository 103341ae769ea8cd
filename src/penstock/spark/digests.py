"""Digests of rows, and bags of them: what makes a replay independent of the order and the partitions of the rows."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np

from penstock.spark.markers import DIGEST_SIZE, Tally

__all__ = ["Bag", "digest", "from_bytes", "tally"]

_KIND = f"S{DIGEST_SIZE}"


def digest(head: bytes, data: bytes) -> bytes:
    """Give the digest of a row: of what stands before its payload, and of the payload."""
    if len(data) < 65536:
        return blake2b(head + data, digest_size=DIGEST_SIZE).digest()
    state = blake2b(head, digest_size=DIGEST_SIZE)  # the same digest without a copy of the payload
    state.update(data)
    return state.digest()


def from_bytes(digests: bytes) -> Any:
    """See digests that stand one behind the other as an array."""
    return np.frombuffer(digests, dtype=_KIND)


def tally(digests: bytes) -> Tally:
    """Count digests that stand one behind the other, and add them up."""
    words = np.frombuffer(digests, dtype="<u4").reshape(-1, DIGEST_SIZE // 4)
    sums = [int(words[:, place].sum(dtype=np.uint64)) for place in range(DIGEST_SIZE // 4)]  # room for billions of rows
    return Tally(len(words)) + Tally(0, sum(word << (32 * place) for place, word in enumerate(sums)))


class Bag:
    """A bag of digests, in which each may be several times: 16 bytes each and 8 for a count."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        found = from_bytes(b"".join(digests))
        self._known, self._left = np.unique(found, return_counts=True)
        self.size = len(found)

    def take(self, digests: Any) -> Any:
        """Take those of `digests` that are in the bag out of it, and tell which they were, as a mask.

        Where one is asked for more often than it is there, the first ones get it.
        """
        mask = np.zeros(len(digests), dtype=bool)
        if self.size == 0 or len(digests) == 0:
            return mask
        order = np.argsort(digests, kind="stable")
        ordered = digests[order]
        begins = np.concatenate(([True], ordered[1:] != ordered[:-1]))
        firsts = np.flatnonzero(begins)
        rank = np.arange(len(ordered)) - np.repeat(firsts, np.diff(np.append(firsts, len(ordered))))
        place = np.searchsorted(self._known, ordered)
        place[place == len(self._known)] = 0
        taken = (self._known[place] == ordered) & (rank < self._left[place])
        np.subtract.at(self._left, place[taken], 1)
        mask[order[taken]] = True
        self.size -= int(taken.sum())
        return mask
