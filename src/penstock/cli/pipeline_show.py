"""A pipeline's progress as people see it: a bar and a table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.tables import make_table, print_table, terminal
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.pipelines.outcome import FlowProgress, Outcome

__all__ = ["board", "print_summary"]

COLUMNS = ("Flow", "State", "#Rows in", "#Rows out", "#Lag", "#Rows/s", "#Batch", "#State")
_QUIET = 10.0  # seconds between two lines where nobody has a terminal


def _cells(flow: FlowProgress, counted: bool) -> tuple[str, ...]:
    return (
        flow.name,
        flow.status.lower(),
        f"{flow.rows_in:,}" if flow.batches and counted else "–",
        "–" if flow.rows_out is None or not counted else f"{flow.rows_out:,}",
        "–" if flow.lag is None else f"{flow.lag:,}",
        f"{flow.rate:,.0f}" if flow.rate else "–",
        f"{flow.batch_seconds:.1f} s" if flow.batches else "–",
        f"{flow.state_rows:,} rows, {format_size(flow.state_bytes)}" if flow.state_rows else "–",
    )


def print_summary(outcome: Outcome, title: str = "Flows") -> None:
    """Print what each flow has done."""
    print_table(title, COLUMNS, [_cells(flow, outcome.counted) for flow in outcome.flows.values()])


@contextmanager
def board(title: str, quiet: float | None = None) -> Iterator[Callable[[Outcome, int | None], None]]:
    """Show progress; call the result with the outcome so far, and how many messages wait where that is known.

    Where nobody has a terminal, a line comes with each new phase and every ten seconds, or every `quiet` seconds only.
    """
    if not sys.stderr.isatty():
        yield _lines(quiet)
        return
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TimeElapsedColumn(),
    )
    task, told = bar.add_task(title, total=None), list[str]()
    with Live(Group(bar), console=terminal(stderr=True), refresh_per_second=5, transient=True) as live:

        def show(outcome: Outcome, waiting: int | None = None) -> None:
            for note in _new(outcome, told):
                live.console.print(note, markup=False, highlight=False)
            left = outcome.lag if waiting is None else waiting
            read = outcome.rows_in
            bar.update(
                task, description=f"{title}: {outcome.doing}", completed=read, total=(read + (left or 0)) or None
            )
            rows = [_cells(flow, outcome.counted) for flow in outcome.flows.values()]
            live.update(Group(bar, make_table(COLUMNS, rows, box=None, header_style="dim")))

        yield show


def _new(outcome: Outcome, told: list[str]) -> Iterator[str]:
    """Give the notes of a run that were not told yet, each once: an update after the other may have the same."""
    for note in outcome.notes:
        if note not in told:
            told.append(note)
            yield note


def _lines(quiet: float | None) -> Callable[[Any, int | None], None]:
    said: list[Any] = [0.0, ""]
    told = list[str]()

    def show(outcome: Outcome, waiting: int | None = None) -> None:
        for note in _new(outcome, told):
            typer.echo(note, err=True)
        now, phase = time.monotonic(), outcome.phase
        if (phase == said[1] or quiet is not None) and now - said[0] < (quiet or _QUIET):
            return
        said[:] = [now, phase]
        if outcome.counted:
            left = outcome.lag if waiting is None else waiting
            figures = f"{outcome.rows_in:,} rows in, {'–' if left is None else f'{left:,}'} waiting"
        else:
            figures = (
                ", ".join(f"{flow.name} {flow.status.lower()}" for flow in outcome.flows.values()) or "no flow yet"
            )
        typer.echo(f"  {outcome.doing}: {figures}, {outcome.updates} updates", err=True)

    return show
