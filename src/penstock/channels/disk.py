"""Syncs the files of streams to disk on behalf of a server that does so only now and then: once for many messages.

A server that syncs always does it for each message, or, for an atomic batch, half a dozen times. One that does not has
still written a message to its file before it acknowledges it, if the stream has one replica: what is missing is the
sync. It does not matter who asks the system for that, so the gateway does, once for all the messages that it is about
to acknowledge. Synced is what a restart of the server after a loss of power begins with: the blocks of messages, the
folder in which they are, and the description of the stream.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.errors import InputError, ServerError

__all__ = ["Disk"]

_BRIEF = 0.0005  # seconds
_AGAIN = 3  # looks at a folder whose blocks go while we look
_HELD = 64  # blocks that are kept open
_DESCRIPTION = ("meta.inf", "meta.sum")


class Disk:
    """The store of a server on this machine, of which `folder` is the root: the one that has `jetstream` in it."""

    def __init__(self, folder: str | Path, account: str = "$G") -> None:
        self._streams = Path(folder) / "jetstream" / account / "streams"
        self._newest: dict[str, tuple[int, int]] = {}  # of each stream the newest block that was synced, and its size
        self._took = 0.0  # seconds, as it was lately
        self._held: dict[str, tuple[int, tuple[int, int]]] = {}  # newest blocks, open, and which files they are
        self._threads = ThreadPoolExecutor(4, "penstock-disk")

    async def sync(self, stream: str, *, grown: bool = True) -> None:
        """Sync what a stream has by now; InputError if it is not there or, if it must have `grown`, has not.

        ServerError if the disk fails. While syncs are brief everything else waits for them: to hand one to a thread and
        to come back to it takes nearly as long. A disk that becomes slow holds us up once, as it does the server.
        """
        if self._took < _BRIEF:
            self._sync(stream, grown, self._sync_held)
        else:  # which opens each file for itself: what is kept open belongs to this thread
            await asyncio.get_running_loop().run_in_executor(self._threads, self._sync, stream, grown, _sync_path)

    def forget(self, stream: str) -> None:
        """Forget a stream: another one may come in its place."""
        known, _ = self._newest.pop(stream, (0, 0))
        self._let_go(f"{self._streams}/{stream}/msgs/{known}.blk")

    def close(self) -> None:
        """End the threads, when nothing more is to be synced; what they are about is finished."""
        self._threads.shutdown(wait=False)
        for path in list(self._held):
            self._let_go(path)

    def _let_go(self, path: str) -> None:
        if (held := self._held.pop(path, None)) is not None:
            os.close(held[0])

    def _sync_held(self, path: str) -> int:
        """Sync a block that is kept open, and give its size before that; it is opened anew if another is in its place.

        What is synced is the content, and of the description what it takes to read it: the size, not the times.
        """
        found = os.stat(path)
        which = found.st_dev, found.st_ino  # no other file has this while we have it open
        opened, known = self._held.get(path, (-1, None))
        if known != which:
            self._let_go(path)
            if len(self._held) >= _HELD:
                self._let_go(next(iter(self._held)))
            opened = os.open(path, os.O_RDONLY)
            found = os.fstat(opened)
            self._held[path] = opened, (found.st_dev, found.st_ino)
        getattr(os, "fdatasync", os.fsync)(opened)  # which not every system has
        return found.st_size

    def _sync(self, stream: str, grown: bool, sync_block: Callable[[str], int]) -> None:
        folder, began = f"{self._streams}/{stream}/msgs", time.perf_counter()
        known, before = self._newest.get(stream, (0, 0))
        try:
            newest, size = self._sync_newest(folder, known, before, sync_block) or self._sync_all(folder, known)
        except FileNotFoundError as error:
            raise InputError(
                f"{error.filename} is not there: what stream {stream} stored cannot be synced to disk.",
                remedy="Is this the store of the server that the gateway uses? Let the server sync (--sync always).",
            ) from None
        except OSError as error:
            raise ServerError(
                f"What stream {stream} stored cannot be synced to disk: {error.strerror}.",
                remedy="Look after the disk; what was not acknowledged may be gone.",
            ) from None
        if grown and (newest, size) == (known, before):
            raise InputError(
                f"The server stored messages of stream {stream}, and its newest file in {folder} has not grown.",
                remedy="Is this the store of the server that the gateway uses, and persist_mode of the stream default?",
            )
        if newest != known and sync_block == self._sync_held:
            self._let_go(f"{folder}/{known}.blk")
        self._newest[stream] = newest, size
        self._took += 0.2 * (time.perf_counter() - began - self._took)

    def _sync_newest(
        self, folder: str, known: int, before: int, sync_block: Callable[[str], int]
    ) -> tuple[int, int] | None:
        """Sync the block that was the newest, if all that came since is in it; blocks are numbered one by one."""
        if not known or os.path.exists(f"{folder}/{known + 1}.blk"):
            return None
        try:
            size = sync_block(f"{folder}/{known}.blk")
        except FileNotFoundError:
            return None
        return (known, size) if size > before else None

    def _sync_all(self, folder: str, known: int) -> tuple[int, int]:
        """Sync all blocks from the one that was the newest, if there was one; give the newest now, and its size."""
        if not known:
            self._sync_description(Path(folder).parent)
        for attempt in range(1, _AGAIN + 1):
            blocks = sorted(int(name[:-4]) for name in os.listdir(folder) if name.endswith(".blk"))
            newest, size = blocks[-1] if blocks else 0, 0
            try:
                for block in blocks:
                    if block >= known:
                        size = _sync_path(f"{folder}/{block}.blk")
            except FileNotFoundError:  # a limit, or a purge, has taken it meanwhile
                if attempt == _AGAIN:
                    raise
                continue
            break
        if newest != known:
            _sync_path(folder)
        return newest, size

    def _sync_description(self, folder: Path) -> None:
        for name in _DESCRIPTION:
            _sync_path(str(folder / name))
        for place in (folder, *list(folder.parents)[:3]):  # up to the folder of the account, and of all accounts
            _sync_path(str(place))


def _sync_path(path: str) -> int:
    """Sync a file or folder, and give its size before that; it is opened anew, as another may be in its place."""
    opened = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(opened).st_size
        os.fsync(opened)
        return size
    finally:
        os.close(opened)
