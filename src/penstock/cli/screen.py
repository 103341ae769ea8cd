"""A screen with one owner: lines that stay, and below them a picture of the moment that is drawn anew.

Everything that is written while the picture is there goes through the same console: our lines, those of the log, and
what other code prints. Without a terminal that can move its cursor there is no picture, and every line is a line.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import typer

from penstock.cli.tables import plain, terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["Screen", "clock", "open_screen"]

_LEAST = 20  # columns that a line of text gets at least


class Screen:
    """Writes lines, and shows a picture if there is a terminal for it."""

    def __init__(self, live: Live | None, *, err: bool, timed: bool) -> None:
        self._live = live
        self._err = err
        self._timed = timed
        self._begun = time.monotonic()

    @property
    def is_drawn(self) -> bool:
        """Whether there is a picture; a line now and then must do if not."""
        return self._live is not None

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._write(text, None)

    def shout(self, text: str) -> None:
        """Write a line that nobody can miss: in a frame, or between stars."""
        self._write(text, "bold white on red")

    def draw(self, picture: Callable[[int], RenderableType]) -> None:
        """Show a picture, made for so many columns, in the place of the last one."""
        if self._live is not None:
            self._live.update(picture(self._live.console.width))

    def _write(self, text: str, style: str | None) -> None:
        at = f"{clock(time.monotonic() - self._begun):>6}  " if self._timed else ""
        if self._live is None:
            typer.echo(f"{at}{plain(text) if style is None else f'*** {plain(text)} ***'}", err=self._err)
            return
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        console = self._live.console
        if style is not None:
            frame = Panel(Text(plain(text), style=style, justify="center"), style=style)
            console.print(Padding(frame, (1, 0)))
            return
        if console.width - len(at) < _LEAST:
            console.print(Text(f"{at.strip()} {plain(text)}".strip()))
            return
        line = Table.grid()  # so that a long text goes on below itself, and not below the time
        line.add_column(width=len(at), style="dim")
        line.add_column(overflow="fold")
        line.add_row(at, Text(plain(text)))
        console.print(line)


@contextmanager
def open_screen(*, err: bool = True, timed: bool = False) -> Iterator[Screen]:
    """Own the screen for a while; nothing of the picture is left at the end.

    Lines go to standard error, or with `err=False` to standard output, if there is no picture; `timed` writes the time
    from the beginning before each.
    """
    if not _can_draw() or not (err or sys.stdout.isatty()):
        yield Screen(None, err=err, timed=timed)
        return
    from rich.live import Live
    from rich.text import Text

    before, ours = sys.stderr, sys.stdout.isatty()  # what goes to a file or a pipe goes on going there
    picture = Live(Text(""), console=terminal(stderr=True), refresh_per_second=5, transient=True, redirect_stdout=ours)
    with picture as live, _logging_here(before):
        yield Screen(live, err=err, timed=timed)


def _can_draw() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


@contextmanager
def _logging_here(before: TextIO) -> Iterator[None]:
    """Let handlers that write to what was standard error before write to what stands in its place now."""
    moved: list[tuple[logging.StreamHandler[Any], Any]] = []
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            moved.append((handler, handler.setStream(sys.stderr)))
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)


def clock(seconds: float) -> str:
    """Write a time as minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
