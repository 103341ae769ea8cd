"""How often a survey may ask: so many requests a second and so many at once, and fewer if the server is slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["SurveyPace"]

Answer = TypeVar("Answer")

_LEAST = 50.0  # requests a second that are asked whatever the server does: a thousand streams in twenty seconds
_SLOW = 0.25  # seconds for an answer from which on the server counts as busy, and
_SLOWER = 5.0  # so many times as long as the quickest answer: it may just be far away
_BACK, _ON = 0.7, 1.02  # what becomes of the rate after a slow answer, and after a quick one


class SurveyPace:
    """Lets requests pass, one after the other or some together, never more than allowed."""

    def __init__(self, most: float, at_once: int) -> None:
        self.most = most
        self.at_once = at_once
        self.rate = most
        """Requests a second that are let through now."""
        self._room = asyncio.Semaphore(at_once)
        self._next = 0.0
        self._quickest: float | None = None

    async def ask(self, asking: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask when it is time to, and learn from how long the answer takes."""
        async with self._room:
            now = time.monotonic()
            self._next = max(self._next, now) + 1.0 / self.rate
            await asyncio.sleep(max(0.0, self._next - 1.0 / self.rate - now))
            begun = time.monotonic()
            try:
                return await asking()
            finally:
                self._learn(time.monotonic() - begun)

    def _learn(self, took: float) -> None:
        self._quickest = took if self._quickest is None else min(self._quickest, took)
        if took > max(_SLOW, _SLOWER * self._quickest):
            self.rate = max(min(_LEAST, self.most), self.rate * _BACK)
        else:
            self.rate = min(self.most, self.rate * _ON)
