"""SHA-256 beside the event loop: a thread hashes while the loop sends or receives the next chunk."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Digest", "digest_of"]

_INLINE = 64 * 1024  # below this the way to a thread takes longer than the hash
_BEHIND = 4


class Digest:
    """A SHA-256 that is computed on a thread of its own, a few updates behind."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self._jobs: deque[Future[None]] = deque()

    def update(self, body: bytes | memoryview) -> None:
        """Take more bytes; they must not change before `settle` returns."""
        if self._thread is None and len(body) < _INLINE:
            self._hash.update(body)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "penstock-digest")
        self._jobs.append(self._thread.submit(self._hash.update, body))

    async def settle(self, behind: int = 0) -> None:
        """Wait until at most `behind` updates are left to do."""
        while len(self._jobs) > behind:
            await asyncio.wrap_future(self._jobs.popleft())

    async def keep_up(self) -> None:
        """Wait if the thread has fallen behind, so that what it holds stays bounded."""
        await self.settle(_BEHIND)

    def hexdigest(self) -> str:
        """Give the digest; it waits for the last chunk to be hashed, a millisecond at most after `settle`."""
        while self._jobs:
            self._jobs.popleft().result()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Let the thread go."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)


async def digest_of(read: Callable[[int, int], bytes | memoryview], size: int) -> str:
    """Hash `size` bytes that `read(offset, length)` gives, on a thread if there are many."""

    def work() -> str:
        found = hashlib.sha256()
        for offset in range(0, size, 1024 * 1024):
            found.update(read(offset, min(1024 * 1024, size - offset)))
        return found.hexdigest()

    return work() if size < _INLINE else await asyncio.to_thread(work)
