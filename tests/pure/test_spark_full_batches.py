"""Rows of a sink in full batches: none is lost, doubled or moved, whatever the pieces they come in."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.exactly_once import in_full_batches
from penstock.spark.markers import DIGEST_SIZE
from penstock.spark.messages import OWN_HEADERS, Messages
from penstock.wire.arrow import HEADERS

PLENTY = 1 << 30


def rows(first: int, count: int, size: int = 1, *, with_headers: bool = False) -> Messages:
    """Make rows whose subject says their number."""
    names = [f"a.{number}" for number in range(first, first + count)]
    headers = pa.array([[("n", [name])] for name in names], HEADERS) if with_headers else None
    return Messages(pa.array(names, pa.string()), pa.array([b"x" * size] * count, pa.binary()), headers)


def pieces(counts: list[int], size: int = 1) -> list[tuple[Messages, bytes]]:
    """Make pieces with so many rows each, every other one with headers."""
    found, first = [], 0
    for place, count in enumerate(counts):
        part = rows(first, count, size, with_headers=place % 2 == 1)
        found.append((part, part.digests()))
        first += count
    return found


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 12), st.integers(0, 3000), st.integers(1, 200))
def test_rows_stay_what_and_where_they_are(counts: list[int], most: int, most_bytes: int, size: int) -> None:
    """Whatever is joined and cut, the rows come out in their order, each with its digest, and within the bounds."""
    given_rows = pieces(counts, size)
    found = list(in_full_batches(given_rows, most, most_bytes))
    names = [name for part, _ in found for name in part.subjects.to_pylist()]
    assert names == [f"a.{number}" for number in range(sum(counts))]
    assert b"".join(digests for _, digests in found) == b"".join(digests for _, digests in given_rows)
    assert all(part.digests() == digests for part, digests in found)
    assert all(len(digests) == len(part) * DIGEST_SIZE for part, digests in found)


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 12))
def test_every_batch_but_the_last_is_full(counts: list[int], most: int) -> None:
    """Small rows fill batches across pieces, so that there are as few batches as there can be."""
    found = [len(part) for part, _ in in_full_batches(pieces(counts), most, PLENTY)]
    assert all(count % most == 0 for count in found[:-1])


def test_large_rows_do_not_wait() -> None:
    """Rows that fill a batch by their bytes are not copied to be joined with others, nor held longer than a piece."""
    size = 1000
    ten = 10 * (size + OWN_HEADERS)
    found = [len(part) for part, _ in in_full_batches(pieces([8, 8, 8], size), 999, ten)]
    assert found == [8, 8, 8]


def test_no_row_at_all_is_no_batch() -> None:
    """Nothing comes of nothing."""
    assert list(in_full_batches(iter([]), 5, PLENTY)) == []
    assert list(in_full_batches(pieces([0, 0]), 5, PLENTY)) == []
