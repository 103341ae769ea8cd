"""Tables that fit the terminal and show what came from outside as it is: never as markup, never as a control code.

A column's name may begin with a mark: `#` for numbers, which stand to the right, `~` for prose, which may wrap. All
other cells stay whole. If even that is too wide, each row becomes a block of lines.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["SCHEMES", "make_table", "plain", "print_table", "terminal", "use_scheme"]

PIPE = 100_000  # a pipe has no width: every row is one line there
PROSE = 16  # columns that a wrapping cell gets at least
SCHEMES = ("rounded", "double", "blue", "cyan", "green", "magenta", "red", "yellow")
"""The looks of tables that --colors and contexts choose between: two kinds of lines, and rounded ones in a colour."""
_scheme = SCHEMES[0]
# Controls, and what turns the direction of text: a terminal obeys them, wherever they came from.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Give text that a terminal shows and does not obey: controls are written as `\\x1b`."""
    return _CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def use_scheme(name: str) -> None:
    """Draw tables in another look from now on, so that contexts can be told apart."""
    global _scheme
    _scheme = name


def terminal(*, stderr: bool = False) -> Console:
    """Give the console to print to; NO_COLOR takes away bold, too."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else PIPE,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") or not stream.isatty() else "auto",
    )


def make_table(columns: Sequence[str], rows: Iterable[Iterable[object]], width: int = PIPE, **style: Any) -> Table:
    """Make a table of cells that are text and nothing else."""
    from rich.table import Table
    from rich.text import Text

    cells = [[plain(str(cell)) for cell in row] for row in rows]
    if "title" in style:
        style["title"] = Text(plain(style["title"]), style="bold")
    table = Table(**style)
    widths: Sequence[int | None] = _widths(columns, cells, width) or [None] * len(columns)
    for column, fitting in zip(columns, widths, strict=True):
        right = column.startswith("#")
        table.add_column(
            column.lstrip("#~"), justify="right" if right else "left", overflow="fold", width=fitting, vertical="top"
        )
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def print_table(title: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows as a table, or as blocks of lines if the terminal is too narrow for it."""
    from rich import box

    cells = [[plain(str(cell)) for cell in row] for row in rows]
    console = terminal()
    if _widths(columns, cells, console.width):
        lines = box.DOUBLE if _scheme == "double" else box.ROUNDED
        look = {"title_justify": "left", "box": lines, "header_style": "bold"}
        if _scheme not in ("rounded", "double"):
            look["border_style"] = _scheme
        console.print(make_table(columns, cells, console.width, title=title, **look))
        return
    names = [column.lstrip("#~") for column in columns]
    indent = max(map(len, names))
    console.print(plain(title), style="bold")
    for row in cells:
        console.print()
        for name, cell in zip(names, row, strict=True):
            console.print(f"{name:>{indent}}: {cell}", soft_wrap=True)


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """Give the width of each column; empty if only cut names would fit.

    Heads wrap between words, and prose wraps; whatever is left goes to them.
    """
    from rich.cells import cell_len

    least, most = [], []
    for place, column in enumerate(columns):
        head = column.lstrip("#~")
        widest = max((cell_len(row[place]) for row in cells), default=0)
        word = max(map(len, head.split()), default=0)
        least.append(max(min(widest, PROSE) if column.startswith("~") else widest, word))
        most.append(max(widest, len(head)))
    spare = room - 3 * len(columns) - 1 - sum(least)
    if spare < 0:
        return []
    widths = list(least)
    # Heads first: one that wraps is read less well than prose that does.
    for place in sorted(range(len(columns)), key=lambda place: columns[place].startswith("~")):
        more = min(most[place] - least[place], spare)
        widths[place] += more
        spare -= more
    return widths
