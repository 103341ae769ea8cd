"""What commands print, and how they run: tables, JSON, progress, and Ctrl-C that ends cleanly."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

__all__ = ["Json", "print_json", "print_pairs", "print_table", "progress", "run", "until_signal"]

Json = Annotated[bool, typer.Option("-j", "--json", help="Print JSON for programs instead of text for people.")]


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a command's coroutine to its end; Ctrl-C cancels it, so that it can clean up."""
    return asyncio.run(coroutine)


@contextmanager
def until_signal() -> Iterator[asyncio.Event]:
    """Give an event that Ctrl-C or SIGTERM sets, for commands that run until they are told to stop."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows as a table; columns whose name begins with `#` are numbers and stand to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.ROUNDED, header_style="bold")
    for column in columns:
        table.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # A pipe has no width: let every row be one line there.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def print_pairs(title: str, pairs: Iterable[tuple[str, object]]) -> None:
    """Print facts, one a line, the names right-aligned before a colon."""
    listed = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in listed), default=0) + 2
    typer.echo(f"{title}\n")
    for name, value in listed:
        typer.echo(f"{name:>{width}}: {value}")


@contextmanager
def progress(what: str, total: int | None, *, as_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar with rate and time left on a terminal, nothing elsewhere; call the result with each step's size.

    Steps are counted as things, or with `as_bytes` shown as MB and MB/s.
    """
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if as_bytes else MofNCompleteColumn(),
        TransferSpeedColumn() if as_bytes else TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(step: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, advance=step, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance


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
