"""What commands print: tables, facts, JSON, payloads and progress."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import typer

from penstock.cli.tables import plain, terminal
from penstock.durations import format_duration
from penstock.errors import RemoteProtocolError

__all__ = ["ago", "counts", "local", "print_json", "print_pairs", "print_sections", "progress"]

Rows = Iterable[tuple[str, Any]]
NARROW = 30  # columns that a value beside its name has at least


def print_json(value: object, *, line: bool = False) -> None:
    """Print a value as JSON, laid out or, of many, as one line that goes out at once."""
    text = json.dumps(value, indent=None if line else 2, default=str, ensure_ascii=False)
    typer.echo(text.encode("utf-8", "backslashreplace").decode())  # a byte that is not text is \udcff in JSON as well
    if line:
        sys.stdout.flush()


def print_bytes(data: bytes) -> None:
    """Print a payload as it is, and an end of line, behind all that was printed before."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.flush()


def print_headers(block: bytes | None, *, more: bool = True, err: bool = False) -> None:
    """Print headers, one a line and each value of a repeated one, and an empty line if more follows."""
    if block is None:
        return
    status, description, headers = read_block(block)
    if status is not None:
        typer.echo(f"Status: {status} {plain(description)}".rstrip(), err=err)
    for name, values in headers.items():
        for value in values:
            typer.echo(f"{plain(name)}: {plain(value)}", err=err)
    if more and (headers or status is not None):
        typer.echo("", err=err)


def read_block(block: bytes) -> tuple[int | None, str, dict[str, list[str]]]:
    """Read headers to show them: status, description and all values; lines that are none do not count."""
    from penstock.wire.jetstream.direct import read_headers
    from penstock.wire.protocol import decode_headers

    try:
        return decode_headers(block)
    except RemoteProtocolError:  # anybody may send such a block, and it is not a reason to show no more
        return None, "", read_headers(block)


def ago(time: datetime | None) -> str:
    """Say how long ago something was."""
    if time is None:
        return "never"
    seconds = (datetime.now(UTC) - time).total_seconds()
    return f"{format_duration(round(max(seconds, 0), 2))} ago"


def local(time: datetime | None) -> str:
    """Write a time as the clock on the wall shows it."""
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def counts(*numbers: int) -> list[str]:
    """Write numbers with their thousands apart."""
    return [f"{number:,}" for number in numbers]


def print_listed(found: Sequence[Any], json: bool, names: bool = False) -> bool:
    """Print what was found as JSON, or the names alone; tell whether one of them was wanted."""
    if json:
        print_json([info.name if names else info.raw for info in found])
    elif names:
        typer.echo("".join(f"{info.name}\n" for info in found), nl=False)
    return json or names


def print_pairs(title: str, pairs: Rows) -> None:
    """Print facts, one a line, the names right-aligned before a colon."""
    print_sections(title, [("", pairs)])


def print_sections(title: str, sections: Iterable[tuple[str, Rows]]) -> None:
    """Print facts under headings, the names right-aligned before a colon; what is None is left out."""
    listed = [(head, [(name, value) for name, value in rows if value is not None]) for head, rows in sections]
    width = max((len(name) for _, rows in listed for name, _ in rows), default=0) + 2
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < width + NARROW:
        width = 0  # a value needs the room more than the names need to stand below each other
    typer.echo(plain(title))
    for head, rows in listed:
        if rows:
            typer.echo(f"\n{head}:\n" if head else "")
        for name, value in rows:
            typer.echo(f"{name:>{width}}: {plain(_shown(value))}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value)


@contextmanager
def progress(
    what: str, total: int | None, *, as_bytes: bool = False, on: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a bar with rate and time left on a terminal, nothing elsewhere; call the result with each step's size.

    Steps are counted as things, or with `as_bytes` shown as MB and MB/s. `on=False` shows nothing anywhere.
    """
    if not on or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich import progress as bars

    with bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn() if as_bytes else bars.MofNCompleteColumn(),
        bars.TransferSpeedColumn() if as_bytes else bars.TextColumn("{task.fields[rate]}"),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        console=terminal(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(step: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, advance=step, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance
