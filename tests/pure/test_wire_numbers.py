"""Numbers in text that others wrote."""

from __future__ import annotations

import pytest

from penstock.wire.numbers import read_count


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), (str(2**64 - 1), 2**64 - 1)]
    + [(text, None) for text in ("", "-1", "+1", " 1", "1.0", "x", "²", "٢", "1_0", str(2**64), "9" * 5000)],
)
def test_a_count(text: str, number: int | None) -> None:
    """Only digits make a number, and one that no server counts to is none, however long it is."""
    assert read_count(text) == number
