"""A future for one task, which can be run on at once instead of in the next turn of the event loop.

asyncio runs a task on one turn after what it waits for came: a look at all sockets and timers lies between. If two
programs take turns, each waiting for the other, that turn stands in the way of every message. asyncio takes any object
for a future that behaves like one; this one can hand the task on from within the callback that has read the message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

__all__ = ["Lookout", "Waiter"]


class Waiter:
    """What one task awaits, once, until somebody wakes it."""

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_cancelled",
        "_context",
        "_done",
        "_error",
        "_loop",
        "_message",
        "_watched",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False  # by this name asyncio knows a future, and that it is awaited
        self._done = self._cancelled = False
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._message: Any = None
        self._error: BaseException | None = None
        self._watched = 0.0

    def __await__(self) -> Generator[Any, None, None]:
        if self._callback is not None:
            raise RuntimeError("Two tasks await one waiter.")
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        self.result()

    def set_exception(self, error: BaseException) -> None:
        """Wake the task, in the next turn of the loop, with an error."""
        self._error = error
        self.wake()

    def watch(self, seconds: float) -> None:
        """Keep the loop from going to sleep for so long, unless it is woken before."""
        self._watched = time.perf_counter() + seconds
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        if not self._done and time.perf_counter() < self._watched:
            self._loop.call_soon(self._look)

    def wake(self) -> None:
        """Let the task go on in the next turn of the loop."""
        if not self._done:
            self._done = True
            self._go_on()

    def wake_now(self) -> None:
        """Run the task on before this returns; as `wake` does if a task runs already."""
        if self._done:
            return
        self._done = True
        callback, context = self._callback, self._context
        if callback is None or context is None or asyncio.current_task(self._loop) is not None:
            self._go_on()
        else:
            self._callback = None
            context.run(callback, self)

    def _go_on(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            self._loop.call_soon(callback, self, context=self._context)

    def _cancellation(self) -> asyncio.CancelledError:
        return asyncio.CancelledError() if self._message is None else asyncio.CancelledError(self._message)

    # -- what asyncio asks of a future ----------------------------------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Give the loop that it belongs to."""
        return self._loop

    def done(self) -> bool:
        """Tell whether it was woken, or cancelled."""
        return self._done

    def cancelled(self) -> bool:
        """Tell whether it was cancelled."""
        return self._cancelled

    def result(self) -> None:
        """Give nothing, or raise the error, or that it was cancelled."""
        if self._cancelled:
            raise self._cancellation()
        if self._error is not None:
            raise self._error
        if not self._done:
            raise asyncio.InvalidStateError("It was not woken.")

    def exception(self) -> BaseException | None:
        """Give the error that it was woken with, if it was."""
        if self._error is None:
            self.result()
        return self._error

    def cancel(self, msg: Any = None) -> bool:
        """Wake the task with a cancellation; False if it was woken already."""
        if self._done:
            return False
        self._done = self._cancelled = True
        self._message = msg
        self._go_on()
        return True

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Keep what runs the task on; there is one, because one task waits."""
        self._callback, self._context = callback, context
        if self._done:
            self._go_on()

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Forget what runs the task on."""
        if self._callback is None or self._callback != callback:
            return 0
        self._callback = None
        return 1


class Lookout:
    """Waits without going to sleep, if what is waited for came soon the last time.

    To put a program to sleep and to wake it takes the system as long as a small message takes on its way. Who waits for
    one answer after the other, each of which is there at once, has it sooner if the loop looks again and again; who
    waits for longer sleeps.
    """

    def __init__(self, seconds: float) -> None:
        """Begin; what comes within `seconds` came soon."""
        self._seconds = seconds
        self._soon = False

    async def wait(self, waiter: Waiter) -> None:
        """Wait until a waiter is woken."""
        began = time.perf_counter()
        if self._soon:
            waiter.watch(self._seconds)
        try:
            await waiter
        finally:
            self._soon = time.perf_counter() - began < self._seconds
