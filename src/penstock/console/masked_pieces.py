"""Payloads that are masked while they are sent, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from penstock.console.masking import Mask

__all__ = ["masked_pieces"]


async def masked_pieces(mask: Mask, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Mask a payload that comes in pieces: a secret may lie across two of them.

    The last piece is given when the source has ended well, so that nobody takes a broken one for whole.
    """
    across = max(0, mask.longest - 1)
    rest, held = b"", b""
    async for piece in pieces:
        if held:
            yield held
        rest = mask.data(rest + piece)
        cut = max(0, len(rest) - across)
        held, rest = rest[:cut], rest[cut:]
    yield held + rest
