"""SHA-256 beside the event loop: a thread hashes while the loop sends or receives the next chunk."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO

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
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)


async def digest_of(data: bytes | FileIO, size: int) -> str:
    """Hash a payload of `size` bytes, or what a file holds from where it stands, on a thread if that is much."""

    def work() -> str:
        found = hashlib.sha256(data) if isinstance(data, bytes) else hashlib.file_digest(data, "sha256")
        return found.hexdigest()

    return work() if size < _INLINE else await asyncio.to_thread(work)
