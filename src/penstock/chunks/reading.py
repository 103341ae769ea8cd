"""A payload that is read piece by piece, whatever the pieces come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from penstock.chunks.store import join

__all__ = ["PayloadReader"]


class PayloadReader(ABC):
    """Bytes in order: iterate over them as they come, or `read` as many as you want."""

    def __init__(self) -> None:
        self.position = 0
        """Bytes read so far."""
        self._rest = b""

    @abstractmethod
    async def _next(self) -> bytes:
        """Give the next bytes, or none at the end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece, self._rest = self._rest or await self._next(), b""
        if not piece:
            raise StopAsyncIteration
        self.position += len(piece)
        return piece

    async def read(self, size: int = -1) -> bytes:
        """Give up to `size` bytes, waiting for the first of them; nothing at the end. Without a size, all the rest."""
        if size < 0:
            return await join(self)
        if not self._rest:
            self._rest = await self._next()
        piece, self._rest = self._rest[:size], self._rest[size:]
        self.position += len(piece)
        return piece
