"""The newest messages of a channel, ready to go out, within a bound of bytes."""

from __future__ import annotations

from collections import deque

__all__ = ["Recent"]


class Recent:
    """Encoded messages by sequence; the oldest make room for the newest."""

    __slots__ = ("_contents", "_order", "limit", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._contents: dict[int, bytes] = {}
        self._order: deque[int] = deque()  # a dict that loses its oldest all the time takes long to find the next

    def __len__(self) -> int:
        return len(self._contents)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._contents

    def add(self, sequence: int, content: bytes) -> None:
        """Keep a message; sequences come in order."""
        self._contents[sequence] = content
        self._order.append(sequence)
        self.size += len(content)
        while self.size > self.limit and self._order:
            self.size -= len(self._contents.pop(self._order.popleft()))

    def get(self, sequence: int) -> bytes | None:
        """Give a message, if it is still here."""
        return self._contents.get(sequence)

    def drop_before(self, first: int) -> None:
        """Let go of what the channel no longer has."""
        while self._order and self._order[0] < first:
            self.size -= len(self._contents.pop(self._order.popleft()))

    def clear(self) -> None:
        """Let go of everything."""
        self._contents.clear()
        self._order.clear()
        self.size = 0
