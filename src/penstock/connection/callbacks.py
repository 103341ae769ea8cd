"""What a program wants to be told of its connection: coroutine functions, called one after the other, in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import DeniedError

__all__ = ["Callbacks", "Expecting", "Teller", "is_coroutine_function"]

log = logging.getLogger("penstock.connection")

_MOST = 1000  # calls that wait; a program that does not keep up with its own errors misses some, and the log says so


def is_coroutine_function(given: object) -> bool:
    """Tell what can be called and awaited, objects with an asynchronous call included."""
    return asyncio.iscoroutinefunction(given) or (callable(given) and asyncio.iscoroutinefunction(type(given).__call__))


Deny = Callable[[DeniedError], None]


class Expecting:
    """A time in which somebody wants to know that publishing to a subject is denied. For each request there is one."""

    __slots__ = ("_fail", "_listeners", "_mapped", "_subject")

    def __init__(
        self, listeners: dict[str, dict[object, Deny]], subject: str, fail: Deny, mapped: dict[object, Deny] | None
    ) -> None:
        self._listeners, self._subject, self._fail, self._mapped = listeners, subject, fail, mapped

    def __enter__(self) -> None:
        self._listeners.setdefault(self._subject, {})[self] = self._fail
        if self._mapped is not None:
            self._mapped[self] = self._fail

    def __exit__(self, *about: object) -> None:
        if self._mapped is not None:
            self._mapped.pop(self, None)
        listeners = self._listeners.get(self._subject, {})
        listeners.pop(self, None)
        if not listeners:
            self._listeners.pop(self._subject, None)


@dataclass(frozen=True)
class Callbacks:
    """Coroutine functions that a connection calls."""

    error: Callable[[Exception], Awaitable[None]] | None = None
    """Something went wrong that nobody waits for: a denied subscription, a dropped message, a failed attempt."""
    disconnected: Callable[[], Awaitable[None]] | None = None
    """The connection was lost."""
    reconnected: Callable[[], Awaitable[None]] | None = None
    """It stands again."""
    closed: Callable[[], Awaitable[None]] | None = None
    """It is closed for good."""
    discovered: Callable[[], Awaitable[None]] | None = None
    """The cluster told an address that was not known."""
    lame_duck: Callable[[], Awaitable[None]] | None = None
    """The server will go soon; the connection moves by itself when it does."""


class Teller:
    """Makes the calls."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]] = deque()
        self._full = False
        self.task: asyncio.Task[None] | None = None
        """What makes the calls now, or made the last one."""

    def tell(self, callback: Callable[..., Awaitable[None]] | None, *facts: Any) -> None:
        """Call a callback after those that were told before."""
        if callback is None:
            return
        if len(self._calls) >= _MOST:
            if not self._full:  # once, until it has caught up
                log.warning("A callback of the connection is slower than what it is told; calls are left out.")
            self._full = True
            return
        self._calls.append((callback, facts))
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._calls:
            callback, facts = self._calls.popleft()
            try:
                await callback(*facts)
            except Exception:  # a callback may raise anything, and the connection goes on
                log.exception("A callback of the connection failed.")
        self._full = False

    async def finish(self, within: float) -> None:
        """Wait until all calls were made."""
        if self.task is not None and not self.task.done():
            await asyncio.wait({self.task}, timeout=within)
