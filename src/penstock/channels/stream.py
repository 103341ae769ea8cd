"""One channel's stream: what is known of it, and its newest messages, ready to go out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.channels.limits import ChannelLimits

__all__ = ["ChannelStream", "Recent"]


@dataclass(slots=True)
class ChannelStream:
    """One channel's stream: its name and subject, its limits, and how far it goes as far as we know."""

    channel: str
    name: str
    subject: str
    limits: ChannelLimits
    first: int = 1
    last: int = 0
    last_time: int = 0
    bytes_so_far: int = 0
    """Bytes of all messages up to `last`, as delivered."""
    bytes_before: int = 0
    """Bytes of those before `first`."""
    in_step: bool = True
    """Whether the stream's configuration has these limits."""
    oldest: deque[tuple[int, int]] = field(default_factory=deque)
    """Sequences at the front, and the bytes of all messages up to each."""

    @property
    def count(self) -> int:
        """How many messages there are, if nothing is missing between the first and the last."""
        return max(0, self.last - self.first + 1)


class Recent:
    """Encoded messages by sequence, within a bound of bytes; the oldest make room for the newest."""

    __slots__ = ("_contents", "_order", "limit", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._contents: dict[int, bytes] = {}
        self._order: deque[int] = deque()  # a dict that loses its oldest all the time takes long to find the next

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
