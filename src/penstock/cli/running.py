"""How commands run: connected as the global flags say, and until Ctrl-C if they go on."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.standard_output import watched
from penstock.errors import DisconnectedError

if TYPE_CHECKING:
    from penstock.connection import Connection, Subscription
    from penstock.options import ConnectionOptions

__all__ = ["Staying", "connected", "first", "run", "staying", "stop_on_signal", "until_signal"]


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Run a command to its end. SystemExit in a task ends the command, and nobody is told of the task."""

    async def working() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_tell)
        await work

    asyncio.run(working())


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), SystemExit):
        loop.default_exception_handler(context)


@asynccontextmanager
async def connected(
    ctx: typer.Context, options: ConnectionOptions | None = None, **callbacks: Any
) -> AsyncIterator[Connection]:
    """Connect as the global flags say, or with these options, and close at the end."""
    from penstock.connection import connect

    client = await connect(ctx.obj.options() if options is None else options, **callbacks)
    try:
        yield client
    finally:
        await client.close()


@dataclass(frozen=True)
class Staying:
    """A connection that stays until somebody stops the command."""

    client: Connection
    seconds: float
    """The time to wait for an answer."""
    stop: asyncio.Event
    lost: asyncio.Event

    async def until(self, *others: Awaitable[Any]) -> None:
        """Wait for Ctrl-C or for one of these; DisconnectedError when the connection is gone for good."""
        await first(self.stop.wait(), self.lost.wait(), *others)
        if self.lost.is_set() and not self.stop.is_set():
            raise DisconnectedError("The connection is gone and did not come back.", remedy="Is the server running?")

    async def confirm(self, *subscriptions: Subscription) -> None:
        """Wait until the server knows of these; raise what it said if it denies one, which it says before."""
        await self.client.flush(timeout=max(1, round(self.seconds)))
        for subscription in subscriptions:
            if subscription.error is not None:
                raise subscription.error


@asynccontextmanager
async def staying(ctx: typer.Context, **callbacks: Any) -> AsyncIterator[Staying]:
    """Connect for a command that goes on until it is told to stop."""
    lost = asyncio.Event()

    async def closed() -> None:
        lost.set()

    with until_signal() as stop:
        async with connected(ctx, on_close=closed, **callbacks) as client:
            yield Staying(client, ctx.obj.seconds, stop, lost)


@contextmanager
def until_signal() -> Iterator[asyncio.Event]:
    """Give an event that Ctrl-C or SIGTERM sets, for commands that run until they are told to stop, or nobody reads."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        with watched():
            yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def stop_on_signal(
    continuous: bool, what: str = "the update in hand", say: Callable[[str], None] | None = None
) -> Iterator[threading.Event]:
    """Give an event that the first Ctrl-C or SIGTERM sets; the second one interrupts, as the first does elsewhere.

    `say` takes what there is to tell; standard error does if nobody owns the screen.
    """
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        if not continuous or stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        (say or partial(typer.echo, err=True))(f"Stopping after {what}; once more to stop at once.")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def first(*awaitables: Awaitable[Any]) -> None:
    """Wait until one of them is done, cancel the others, and raise what the done ones raised."""
    tasks = [asyncio.ensure_future(item) for item in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
