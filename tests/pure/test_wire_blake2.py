"""Digests of rows, compiled and plain, are those of hashlib over the bytes that a row is."""

from __future__ import annotations

from hashlib import blake2b

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.arrow import HEADERS
from penstock.wire.bulk.rows import offsets
from tests.wire_sets import FORMS, form

Row = tuple[str, list[tuple[str, list[str]]], bytes]


def digests(name: str, rows: list[Row], *, bare: bool = False) -> bytes:
    wire = form(name)

    def texts(column):
        content = column.buffers()[2]
        return wire.frames.Texts(offsets(column), None if content is None else memoryview(content).cast("B"))

    subjects = pa.array([subject for subject, _, _ in rows], pa.string())
    data = pa.array([data for _, _, data in rows], pa.binary())
    own = ()
    if not bare:
        maps = pa.array([headers for _, headers, _ in rows], HEADERS)
        own = offsets(maps), texts(maps.keys), offsets(maps.items), texts(maps.items.values)
    return wire.blake2.row_digests(wire.frames.Rows(len(rows), texts(subjects), texts(data), *own))


def expected(rows: list[Row]) -> bytes:
    found = []
    for subject, headers, data in rows:
        lines = "".join(f"{name}: {value}\r\n" for name, values in headers for value in values)
        found.append(blake2b(f"{subject}\r\n{lines}\r\n".encode() + data, digest_size=16).digest())
    return b"".join(found)


@pytest.mark.parametrize("name", FORMS)
def test_every_size_around_a_block(name: str):
    """Payloads that end before, at and behind the end of a block of 128 bytes, and large ones."""
    sizes = [0, 1, *range(110, 135), *range(240, 262), 4096, 70_000]
    rows: list[Row] = [("a.b", [], bytes(range(256)) * (size // 256) + bytes(size % 256)) for size in sizes]
    assert digests(name, rows, bare=True) == expected(rows)


WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=0x3FF), max_size=60)


@pytest.mark.parametrize("name", FORMS)
@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=200),
            st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=3)), max_size=3),
            st.binary(max_size=300),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_row(name: str, rows: list[Row]):
    """Whatever subject, headers and payload a row has."""
    assert digests(name, rows) == expected(rows)
