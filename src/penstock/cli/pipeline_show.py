"""A pipeline's progress as people see it: a bar and a table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from penstock.cli.screen import Screen, clock, open_screen
from penstock.cli.tables import make_table, plain, print_table, terminal
from penstock.cli.time_left import TimeLeft
from penstock.sizes import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.pipelines.outcome import FlowProgress, Outcome

__all__ = ["Board", "board", "print_summary"]

COLUMNS = ("Flow", "Status", "#Rows in", "#Rows out", "#Lag", "#Rows/s", "#Last batch", "#State rows", "#State size")
"""The columns, those that people look at first in front: if there is no room, the last ones are left out."""
_LEAST = 5  # columns that a summary has at least, or each flow becomes a block of lines
_BAR = 12  # columns that a bar has at least
_QUIET = 10.0  # seconds between two lines if nobody has a terminal
_UNKNOWN = "–"


def _cells(flow: FlowProgress, counted: bool) -> list[str]:
    return [
        flow.name,
        flow.status.lower(),
        f"{flow.rows_in:,}" if flow.batches and counted else _UNKNOWN,
        _UNKNOWN if flow.rows_out is None or not counted else f"{flow.rows_out:,}",
        _UNKNOWN if flow.lag is None else f"{flow.lag:,}",
        f"{flow.rate:,.0f}" if flow.rate else _UNKNOWN,
        f"{flow.batch_seconds:.1f} s" if flow.batches else _UNKNOWN,
        f"{flow.state_rows:,}" if flow.state_rows else _UNKNOWN,
        format_size(flow.state_bytes) if flow.state_rows else _UNKNOWN,
    ]


def _table(outcome: Outcome, room: int, between: int, least: int) -> tuple[Sequence[str], list[list[str]]]:
    """Give the columns that say something and fit, and the flows by name, so that each stays in its place.

    If not even the least number of columns fits, none is left out: the caller has another form for them.
    """
    rows = [_cells(flow, outcome.counted) for _, flow in sorted(outcome.flows.items())]
    told = [place for place, _ in enumerate(COLUMNS) if place < least or any(row[place] != _UNKNOWN for row in rows)]
    fitting = next(
        (count for count in range(len(told), least - 1, -1) if _width(told[:count], rows, between) <= room), 0
    )
    kept = told[: fitting or len(told)]
    return [COLUMNS[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _width(places: Sequence[int], rows: Sequence[Sequence[str]], between: int) -> int:
    from rich.cells import cell_len

    def widest(place: int) -> int:
        words = COLUMNS[place].lstrip("#").split()  # heads wrap between words
        return max([*map(len, words), *(cell_len(plain(row[place])) for row in rows)])

    return sum(map(widest, places)) + between * len(places) + 1


def print_summary(outcome: Outcome, title: str = "Flows") -> None:
    """Print what each flow has done."""
    print_table(title, *_table(outcome, terminal().width, between=3, least=_LEAST))


class Board:
    """Shows how a run goes on; call it with the outcome so far, and if that is known better than the outcome knows it,
    how many messages wait, and how many are read.
    """

    def __init__(self, screen: Screen, title: str, total: int | None, quiet: float | None) -> None:
        self.say, self.shout = screen.say, screen.shout
        self._screen, self._title, self._total = screen, title, total
        self._quiet = quiet
        self._told: list[str] = []  # an update after the other may have the same notes
        self._said: tuple[float, str] = (0.0, "")
        self._time = TimeLeft()
        self._begun = time.monotonic()

    def __call__(self, outcome: Outcome, waiting: int | None = None, read: int | None = None) -> None:
        for note in outcome.notes:
            if note not in self._told:
                self._told.append(note)
                self.say(note)
        left = outcome.lag if waiting is None else waiting
        done = outcome.rows_in if read is None else read
        total = self._total if self._total is not None else None if left is None else done + left
        self._time.mark(time.monotonic(), done)
        if self._screen.is_drawn:
            self._screen.draw(lambda width: self._picture(outcome, done, total, width))
        else:
            self._line(outcome, done, left)

    def _picture(self, outcome: Outcome, done: int, total: int | None, width: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        head = Text(f"{self._title}: {outcome.doing}", style="bold", overflow="fold")
        columns, rows = _table(outcome, width, between=2, least=1)
        room = width + len(columns) + 1  # a table without lines needs less
        flows = make_table(columns, rows, room, box=None, header_style="dim", padding=(0, 2, 0, 0))
        return Group(head, self._bar(done, total, width), *([flows] if outcome.flows else []))

    def _bar(self, done: int, total: int | None, width: int) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        parts = [f"{done:,} rows" if total is None else f"{done:,} of {total:,}"]
        rest = None if total is None else self._time.left(total)
        if self._time.rate:
            parts.append(f"{self._time.rate:,.0f}/s")
        if rest:
            parts.append(f"about {clock(rest)} left")
        parts.append(f"{clock(time.monotonic() - self._begun)} gone")
        while len(parts) > 1 and len("  ".join(parts)) + _BAR + 1 > width:
            parts.pop()
        bar = ProgressBar(total=total or None, completed=done, pulse=not total)
        line = Table.grid(expand=True, padding=(0, 1, 0, 0))
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_row(bar, Text("  ".join(parts)))
        return line

    def _line(self, outcome: Outcome, done: int, left: int | None) -> None:
        """Say how far it is, with each new phase and now and then; only now and then if it is to be quiet."""
        now, phase = time.monotonic(), outcome.phase
        at, before = self._said
        if (phase == before or self._quiet is not None) and now - at < (self._quiet or _QUIET):
            return
        self._said = now, phase
        if outcome.counted:
            rate = f", {self._time.rate:,.0f} a second" if self._time.rate else ""
            figures = f"{done:,} rows in, {_UNKNOWN if left is None else f'{left:,}'} waiting{rate}"
        else:
            flows = (f"{name} {flow.status.lower()}" for name, flow in sorted(outcome.flows.items()))
            figures = ", ".join(flows) or "no flow yet"
        typer.echo(
            f"  {outcome.doing}: {figures}, {outcome.updates} update{'s' if outcome.updates != 1 else ''}", err=True
        )


@contextmanager
def board(
    title: str, quiet: float | None = None, *, total: int | None = None, err: bool = True, timed: bool = False
) -> Iterator[Board]:
    """Show progress, towards `total` messages if that is known.

    Without a terminal, a line comes with each new phase and every ten seconds, or every `quiet` seconds only. `err` and
    `timed` are those of `open_screen`.
    """
    with open_screen(err=err, timed=timed) as screen:
        yield Board(screen, title, total, quiet)
