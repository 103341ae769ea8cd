"""Digests of rows, and bags of them: what makes a replay independent of the order and the partitions of the rows; and
hashes of keys, which tell whether the order of rows was kept where it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from penstock.spark.markers import DIGEST_SIZE, Tally

__all__ = ["Bag", "disordered", "from_bytes", "key_hashes", "repeated", "tally"]

_KIND = f"S{DIGEST_SIZE}"


def from_bytes(digests: bytes) -> Any:
    """See digests that stand one behind the other as an array."""
    return np.frombuffer(digests, dtype=_KIND)


def tally(digests: bytes) -> Tally:
    """Count digests that stand one behind the other, and add them up."""
    words = np.frombuffer(digests, dtype="<u4").reshape(-1, DIGEST_SIZE // 4)
    sums = [int(words[:, place].sum(dtype=np.uint64)) for place in range(DIGEST_SIZE // 4)]  # room for billions of rows
    return Tally(len(words)) + Tally(0, sum(word << (32 * place) for place, word in enumerate(sums)))


def key_hashes(keys: Any) -> Any:
    """Give a hash of 8 bytes for each key of an Arrow column; equal keys are hashed once."""
    coded = keys.dictionary_encode()
    own = (blake2b(key.encode(), digest_size=8).digest() for key in coded.dictionary.to_pylist())
    return np.frombuffer(b"".join(own), dtype="<u8")[coded.indices.to_numpy()]


def repeated(parts: Sequence[bytes]) -> int:
    """Count the keys that are in more than one part; each part has the hashes of its keys, once each."""
    _, counts = np.unique(np.frombuffer(b"".join(parts), dtype="<u8"), return_counts=True)
    return int((counts > 1).sum())


def disordered(keys: Any, own: Any, stored: Any) -> int:
    """Count the keys whose rows were stored in another order than the rows have now, or a later one without an earlier.

    `keys` are the hashes of the rows' keys and `own` their digests, in the order of the rows; `stored` are digests in
    the order in which they were stored. Of equal rows, the first is taken for the one that was stored first.
    """
    place = np.full(len(own), len(stored))
    ranks = [_ranks(side) for side in (stored, own)]
    seen = {pair: where for where, pair in enumerate(zip(stored.tolist(), ranks[0].tolist(), strict=True))}
    for row, pair in enumerate(zip(own.tolist(), ranks[1].tolist(), strict=True)):
        place[row] = seen.get(pair, len(stored))
    order = np.argsort(keys, kind="stable")
    key, where = keys[order], place[order]
    wrong = (key[1:] == key[:-1]) & (where[1:] < where[:-1])
    return len(np.unique(key[1:][wrong]))


def _ranks(digests: Any) -> Any:
    """Number equal digests from 0 on, in their order."""
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    firsts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(ordered) else order
    ranks = np.empty(len(digests), dtype=np.int64)
    ranks[order] = np.arange(len(ordered)) - np.repeat(firsts, np.diff(np.append(firsts, len(ordered))))
    return ranks


class Bag:
    """A bag of digests, in which each may be several times: 16 bytes each and 8 for a count."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        found = from_bytes(b"".join(digests))
        self._known, self._left = np.unique(found, return_counts=True)
        self.size = len(found)

    def take(self, digests: Any) -> Any:
        """Take those of `digests` that are in the bag out of it, and tell which they were, as a mask.

        If one is asked for more often than it is there, the first ones get it.
        """
        mask = np.zeros(len(digests), dtype=bool)
        if self.size == 0 or len(digests) == 0:
            return mask
        order = np.argsort(digests, kind="stable")
        ordered, rank = digests[order], _ranks(digests)[order]
        place = np.searchsorted(self._known, ordered)
        place[place == len(self._known)] = 0
        taken = (self._known[place] == ordered) & (rank < self._left[place])
        np.subtract.at(self._left, place[taken], 1)
        mask[order[taken]] = True
        self.size -= int(taken.sum())
        return mask
