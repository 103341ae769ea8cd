"""Ending tasks that call nats-py, which now and then takes a cancellation for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

__all__ = ["cancellable", "end"]

T = TypeVar("T")

_AGAIN = 0.1


async def end(tasks: Iterable[asyncio.Future[T]]) -> None:
    """Cancel tasks until they are done; what they raise is not raised here."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)


async def cancellable(action: Awaitable[T]) -> T:
    """Await something of nats-py, and be cancelled also where it swallows the cancellation."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    result = await action
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result
