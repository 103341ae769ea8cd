"""How fast a client may go: a pause after each message, and a number of messages a second at the most."""

from __future__ import annotations

import asyncio
import time

from penstock.bench.client_job import ClientJob

__all__ = ["Pace"]


class Pace:
    """Says how long to wait after a number of messages, counted from the first call."""

    def __init__(self, job: ClientJob) -> None:
        self._sleep, self._rate = job.sleep, job.throughput
        self.is_free = not (self._sleep or self._rate)
        """Whether nothing holds it back."""
        self._done, self._began = 0, 0.0

    def due(self, messages: int = 1) -> float:
        """Count messages, and give the seconds to wait before the next one."""
        if self.is_free:
            return 0.0
        if not self._began:
            self._began = time.monotonic()
        self._done += messages
        pause = self._sleep * messages
        if self._rate:
            pause = max(pause, self._began + self._done / self._rate - time.monotonic())
        return max(pause, 0.0)

    def keep(self, messages: int = 1) -> None:
        """Wait until it is time for the next one."""
        if pause := self.due(messages):
            time.sleep(pause)

    async def keep_async(self, messages: int = 1) -> None:
        """Wait, and let others work."""
        if pause := self.due(messages):
            await asyncio.sleep(pause)
