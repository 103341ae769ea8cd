"""Ending tasks and transports for sure, and hearing of tasks that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

__all__ = ["cut", "end", "heed"]

log = logging.getLogger("penstock.connection")

_AGAIN = 0.1  # seconds after which a task that was cancelled is cancelled again: it may have passed over the first time


class _Abortable(Protocol):
    def abort(self) -> None:
        """Close at once."""


def cut(transport: _Abortable, gone: asyncio.Future[Any]) -> None:
    """Close a transport at once, unless it is gone; its protocol has `gone` done when it is told so.

    A transport of asyncio that was closed ends by itself with its last write, and has no loop any more: to abort it
    then raises, and so would the turn after `connection_lost` if it were aborted in there.
    """
    if not gone.done():
        transport.abort()


def heed(task: asyncio.Task[Any], tell: Callable[[BaseException], object]) -> None:
    """Let somebody be told if a task fails that nobody waits for; what it raises when it is cancelled is not told."""

    def ended(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not task.cancelling():
            tell(error)

    task.add_done_callback(ended)


async def end(tasks: Iterable[asyncio.Future[Any]], *, within: float = 10.0, again: float = _AGAIN) -> None:
    """Cancel tasks, again and again until they are done; what they raise is not raised here.

    A task that passes over a cancellation is told again, after `again` seconds: code that is not ours may have
    something to do last. One that is not done `within` so many seconds is left, with a word in the log.
    """
    mine = asyncio.current_task()
    wanted = [task for task in tasks if task is not mine]
    left = {task for task in wanted if not task.done()}
    rounds = 0
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again)
        rounds += 1
        if left and rounds * again >= within:
            log.warning("%d tasks were cancelled and have not ended after %g s: %r", len(left), within, left)
            break
    await asyncio.gather(*(task for task in wanted if task.done()), return_exceptions=True)
