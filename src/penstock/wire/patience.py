"""How long something may take, and how often it is tried again: one policy, for blocking and for asyncio code. Pure."""

from __future__ import annotations

import random
import time

from penstock.errors import DeadlineError, NoRespondersError, PenstockError
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["PAUSE", "PAUSE_MOST", "Deadline", "Patience"]

PAUSE = 0.05  # seconds before the second attempt; each pause is twice as long as the one before, up to the most
PAUSE_MOST = 1.0


class Deadline:
    """A moment that a call must not outlive; `seconds` is what the caller allowed."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left, never below zero."""
        return max(0.0, self.at - time.monotonic())

    def check(self) -> None:
        """Raise DeadlineError if the time is over: events may come without end, and none be the one wanted."""
        if time.monotonic() >= self.at:
            raise DeadlineError(f"No answer within {self.seconds:.3g} s.", seconds=self.seconds)

    def within(self, seconds: float) -> Deadline:
        """Give a deadline in so many seconds, or this one if it comes first."""
        return Deadline(min(seconds, self.left))


class Patience:
    """Decides after each failure of something that may be done twice: pause and try again, or give up.

    What is refused is raised at once. NoRespondersError is, too, since waiting turns no JetStream on, unless `nobody`
    says that somebody will be there in a moment. Pauses grow, and are spread by chance, so that many that failed
    together do not come back together.
    """

    def __init__(self, seconds: float, *, nobody: bool = False) -> None:
        self.deadline = Deadline(seconds)
        self._nobody = nobody
        self._pause = PAUSE

    def pause(self, error: PenstockError) -> float:
        """Give the seconds to wait before the next attempt; raise the error if there is none."""
        given_up = isinstance(error, NoRespondersError) and not self._nobody
        if given_up or not may_ask_again(error) or self.deadline.left == 0:
            raise error
        pause, self._pause = self._pause, min(self._pause * 2, PAUSE_MOST)
        return min(pause * random.uniform(0.75, 1.25), self.deadline.left)  # noqa: S311  # spreads attempts only

    def moved(self) -> None:
        """Note that there was progress: patience is for standing still."""
        self.deadline = Deadline(self.deadline.seconds)
        self._pause = PAUSE
