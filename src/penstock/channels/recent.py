"""The newest messages of a channel, ready to go out, within a bound of bytes."""

from __future__ import annotations

__all__ = ["Recent"]


class Recent:
    """Encoded messages by sequence; the oldest make room for the newest."""

    __slots__ = ("_contents", "limit", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._contents: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._contents)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._contents

    def add(self, sequence: int, content: bytes) -> None:
        """Keep a message; sequences come in order."""
        self._contents[sequence] = content
        self.size += len(content)
        while self.size > self.limit and self._contents:
            oldest = next(iter(self._contents))
            self.size -= len(self._contents.pop(oldest))

    def get(self, sequence: int) -> bytes | None:
        """Give a message, if it is still here."""
        return self._contents.get(sequence)

    def drop_before(self, first: int) -> None:
        """Let go of what the channel no longer has."""
        while self._contents and (oldest := next(iter(self._contents))) < first:
            self.size -= len(self._contents.pop(oldest))

    def clear(self) -> None:
        """Let go of everything."""
        self._contents.clear()
        self.size = 0
