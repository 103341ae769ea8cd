"""How quickly something goes on, and how long the rest takes: what the last seconds say. Pure."""

from __future__ import annotations

from collections import deque

__all__ = ["TimeLeft"]

WINDOW = 20.0  # seconds that are looked at: work comes in batches of a few seconds each


class TimeLeft:
    """Takes how much is done at what time, and gives a rate and an estimate."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, now: float, done: int) -> None:
        """Note how much is done; less than before is a new beginning."""
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW:
            self._marks.popleft()

    @property
    def rate(self) -> float:
        """Things a second; 0 before anything is known."""
        if not self._marks:
            return 0.0
        (begun, first), (now, last) = self._marks[0], self._marks[-1]
        return (last - first) / (now - begun) if now > begun else 0.0

    def left(self, total: int) -> float | None:
        """Give the seconds until the total is reached; None if nothing tells."""
        rest = total - (self._marks[-1][1] if self._marks else 0)
        if rest <= 0:
            return 0.0
        return rest / self.rate if self.rate > 0 else None
