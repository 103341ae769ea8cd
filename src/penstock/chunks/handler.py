"""The caller's functions: how many arguments a handler takes and where it runs, and who is told of errors."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeAlias

from penstock.connection.callbacks import is_coroutine_function
from penstock.errors import AssemblyError, InputError

__all__ = ["ErrorFunction", "Handler", "HandlerFunction", "tell"]

log = logging.getLogger("penstock.chunks")

Data: TypeAlias = Any  # bytes, or a binary file if spool_above is given: the caller knows which
HandlerFunction: TypeAlias = (
    Callable[[str, Data], Awaitable[None] | None] | Callable[[str, Data, str], Awaitable[None] | None]
)
ErrorFunction: TypeAlias = Callable[[AssemblyError], Awaitable[None] | None]
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Handler:
    """Calls `handler(message_id, data)`, with the subject as well if the handler takes it.

    It takes it if it has a parameter called `subject`, or a third parameter that must be given. A coroutine function
    runs on the event loop, any other function on a thread, so that it may block.
    """

    def __init__(self, function: HandlerFunction, threads: int) -> None:
        if not callable(function):
            raise InputError("The handler cannot be called.", remedy="Give a function or a coroutine function.")
        self._function: Callable[..., Any] = function
        self._named, self._third = _shape(function)
        alone = not is_coroutine_function(function)
        self._threads = ThreadPoolExecutor(threads, "penstock-handler") if alone else None

    async def __call__(self, message_id: str, data: bytes | IO[bytes], subject: str) -> None:
        """Run the handler to its end; what it raises is raised."""

        def call() -> Any:
            if self._named:
                return self._function(message_id, data, subject=subject)
            return self._function(message_id, data, subject) if self._third else self._function(message_id, data)

        if self._threads is None:
            await call()
            return
        result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        if inspect.isawaitable(result):  # a lambda around a coroutine function looks like any other function
            await result

    def close(self) -> None:
        """Let the threads go; one that still works ends on its own."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _shape(function: Callable[..., Any]) -> tuple[bool, bool]:
    """Say whether the handler takes the subject by name, and whether as the third argument."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin does not always say
        return False, False

    def takes(*arguments: None, **named: None) -> bool:
        try:
            signature.bind(*arguments, **named)
        except TypeError:
            return False
        return True

    subject = signature.parameters.get("subject")
    if subject is not None and subject.kind in _BY_NAME and takes(None, None, subject=None):
        return True, False
    if takes(None, None):
        return False, False
    if takes(None, None, None):
        return False, True
    raise InputError(
        f"The handler cannot be called with (message_id, data): it takes {signature}.",
        remedy="Give it the parameters (message_id, data) or (message_id, data, subject).",
    )


async def tell(on_error: ErrorFunction | None, error: AssemblyError) -> None:
    """Tell of a message that was given up, in the log if nobody else wants to know."""
    if on_error is None:
        log.warning("%s", error)
        return
    try:
        result = on_error(error)
        if result is not None:
            await result
    except Exception:
        log.exception("on_error raised while it was told: %s", error)
