"""What is known of one channel's stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.channels.limits import ChannelLimits

__all__ = ["ChannelStream"]


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
