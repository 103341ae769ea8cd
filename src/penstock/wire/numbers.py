"""Numbers in text that others wrote."""

from __future__ import annotations

__all__ = ["read_count"]

_DIGITS = 20  # of the largest number of 64 bits; Python reads no number of more than 4,300
_LARGEST = 2**64 - 1


def read_count(text: str) -> int | None:
    """Read a whole number as a server counts, in digits and of 64 bits; None if the text is none."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        return None
    return found if (found := int(text)) <= _LARGEST else None
