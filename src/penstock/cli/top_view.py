"""What `penstock top` shows: rows of a snapshot, sorted and filtered, in as many columns as fit. Pure.

A view has one column that takes what room is left, and others of a fixed width; those of the highest rank go first
if a terminal is narrow. What is told in colour is told by a sign, too.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.cli.tables import plain
from penstock.durations import format_duration
from penstock.errors import OptionError
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.survey import Snapshot

__all__ = ["VIEWS", "Column", "Row", "View", "rows_of", "short", "sparkline"]

Series = Callable[[tuple[str, ...], str], Sequence[tuple[float, float]]]
TREND = 300.0  # seconds that a sparkline tells of
SHORTEST = 60.0  # seconds that it tells of while less is known
LEAST_NAME = 12  # columns that a name has at least
BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = "_.-=+*%#"


@dataclass(frozen=True)
class Row:
    """One line: cells by column, values to sort by, and what it is about."""

    subject: tuple[str, ...]
    name: str
    values: Mapping[str, Any]
    trouble: str = ""
    """`!` if something stands still or is lost, `~` for a warning."""


@dataclass(frozen=True)
class Column:
    """One column of a view."""

    name: str
    """What `--sort` calls it."""
    head: str
    width: int = 0
    """Letters; 0 takes what is left."""
    show: Callable[[Any], str] = str
    rank: int = 0
    """Columns of a higher rank give way first."""
    right: bool = True
    trend: str = ""
    """The figure whose history it draws."""
    wraps: bool = False
    """Whether it is a sentence, which goes on in the next line."""


def short(number: float | None) -> str:
    """Write a number in up to seven letters."""
    if number is None:
        return "–"
    if abs(number) < 100 and number != int(number):
        return f"{number:.1f}"
    if abs(number) < 100_000:
        return f"{number:,.0f}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}" if abs(number) < 1000 * size else f"{number / size:.0f}{unit}"
    return f"{number:,.0f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 10:
        return f"{value:.1f}s" if value else "0s"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if value >= 2 * size:
            return f"{value / size:.0f}{unit}"
    return format_duration(round(value))


def _size(value: float | None) -> str:
    return "–" if value is None else format_size(int(value))


def _ago(value: float | None) -> str:
    return "never" if value is None else _seconds(value)


VIEWS: dict[str, tuple[Column, ...]] = {
    "streams": (
        Column("name", "Stream", right=False),
        Column("messages", "Messages", 9, short),
        Column("bytes", "Bytes", 9, _size, rank=3),
        Column("rate", "Msgs/s", 7, short),
        Column("trend", "Trend", 12, rank=2, right=False, trend="rate"),
        Column("consumers", "Cons", 5, short, rank=4),
        Column("last", "Last", 6, _ago, rank=1),
    ),
    "consumers": (
        Column("name", "Consumer", right=False),
        Column("lag", "Lag", 7, short),
        Column("oldest", "Oldest", 6, _seconds, rank=1),
        Column("trend", "Lag trend", 12, rank=2, right=False, trend="lag"),
        Column("rate", "Msgs/s", 7, short, rank=1),
        Column("unacked", "No ack", 6, short, rank=3),
        Column("again", "Again", 5, short, rank=5),
        Column("state", "State", 8, rank=4, right=False),
    ),
    "pipelines": (
        Column("name", "Pipeline", right=False),
        Column("state", "State", 9, right=False),
        Column("rows", "Rows", 8, short, rank=3),
        Column("rate", "Rows/s", 7, short, rank=1),
        Column("lag", "Lag", 7, short),
        Column("trend", "Lag trend", 12, rank=2, right=False, trend="lag"),
        Column("batch", "Batch", 6, _seconds, rank=4),
    ),
    "trouble": (
        Column("since", "Since", 6, _ago),
        Column("name", "What", 26, right=False),
        Column("says", "Trouble", right=False, wraps=True),
    ),
}
FIRST = {"streams": "rate", "consumers": "lag", "pipelines": "lag", "trouble": "since"}
"""What each view is sorted by unless somebody says otherwise."""


def rows_of(view: str, snapshot: Snapshot) -> list[Row]:
    """Give the rows of a view, in no order."""
    marks: dict[tuple[str, ...], str] = {}
    for item in snapshot.trouble:
        marks[item.subject] = "!" if item.severe or marks.get(item.subject) == "!" else "~"
    now = snapshot.taken
    make = {"streams": _streams, "consumers": _consumers, "pipelines": _pipelines, "trouble": _troubles}[view]
    return list(make(snapshot, marks, now))


Marks = Mapping[tuple[str, ...], str]


def _streams(snapshot: Snapshot, marks: Marks, now: float) -> Iterable[Row]:
    for state in snapshot.streams.values():
        last = (
            None if state.last_time is None or not state.last_sequence else max(0.0, now - state.last_time.timestamp())
        )
        figures = {
            "messages": state.messages,
            "bytes": state.bytes,
            "rate": state.rate,
            "consumers": state.consumers,
            "last": last,
        }
        yield Row(state.subject, state.name, figures, marks.get(state.subject, ""))


def _consumers(snapshot: Snapshot, marks: Marks, now: float) -> Iterable[Row]:
    for state in snapshot.consumers.values():
        if state.sourcing or state.bookmark:
            continue  # a server reads through the one, nobody through the other
        figures = {
            "lag": state.lag,
            "oldest": state.lag_seconds,
            "rate": state.rate,
            "unacked": state.ack_pending,
            "again": state.redelivered,
            "state": "paused" if state.paused else "listens" if state.listened_to else "nobody",
        }
        yield Row(state.subject, f"{state.stream} › {state.name}", figures, marks.get(state.subject, ""))


def _pipelines(snapshot: Snapshot, marks: Marks, now: float) -> Iterable[Row]:
    for state in snapshot.pipelines:
        name, mark = state.subject[1], marks.get(state.subject, "")
        nothing: dict[str, Any] = {"rows": None, "rate": None, "lag": None, "batch": None}
        if not state.flows:
            yield Row(state.subject, name, {"state": state.state, **nothing}, mark)
        for flow in state.flows:
            figures = {
                "state": state.state if flow.status is None or state.state != "running" else flow.status,
                "rows": flow.rows,
                "rate": flow.rate,
                "lag": flow.lag,
                "batch": flow.batch_seconds,
            }
            yield Row(("flow", name, flow.name), f"{name} › {flow.name}", figures, "!" if flow.failed else mark)


def _troubles(snapshot: Snapshot, marks: Marks, now: float) -> Iterable[Row]:
    for item in snapshot.trouble:
        figures = {"since": max(0.0, now - item.since), "says": item.says}
        yield Row(item.subject, item.about, figures, "!" if item.severe else "~")


def sparkline(series: Sequence[tuple[float, float]], width: int, now: float, blocks: str = BLOCKS) -> str:
    """Draw the last minutes of a figure; blank for the time before the first look. One that stays has few samples."""
    if not series or width < 1:
        return " " * max(0, width)
    span = min(TREND, max(SHORTEST, now - series[0][0]))
    begin, step = now - span, span / width
    marks: list[float | None] = []
    place, value = 0, None
    for number in range(width):
        end = begin + (number + 1) * step
        peak: float | None = None
        while place < len(series) and series[place][0] <= end:
            value = series[place][1]
            peak = value if peak is None or series[place][0] <= end - step else max(peak, value)
            place += 1
        marks.append(value if peak is None else peak)
    top = max((mark for mark in marks if mark is not None), default=0.0)
    return "".join(
        " " if mark is None else blocks[min(len(blocks) - 1, int(mark / top * (len(blocks) - 1) + 0.5)) if top else 0]
        for mark in marks
    )


@dataclass(frozen=True)
class View:
    """What is looked at, and how: every key gives another one."""

    name: str = "streams"
    sort: Mapping[str, str] = field(default_factory=lambda: dict(FIRST))
    """For each view the column that it is sorted by."""
    rising: bool = False
    """The smallest first."""
    filter: str = ""
    typing: bool = False
    """Whether keys go into the filter."""
    top: int = 0
    """The first row that is shown."""
    frozen: bool = False
    """Whether the picture stands still."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of what is looked at."""
        return VIEWS[self.name]

    @property
    def by(self) -> str:
        """The column that it is sorted by."""
        return self.sort[self.name]

    def sorted_by(self, column: str) -> View:
        """Give the view, sorted by a column; OptionError if it has none of that name."""
        known = [item.name for item in self.columns if not item.trend]
        if column not in known:
            remedy = f"{self.name.capitalize()} are sorted by {', '.join(known)}."
            raise OptionError(f"--sort is {column!r}.", remedy=remedy, option="--sort", value=column)
        return replace(self, sort={**self.sort, self.name: column}, rising=column == "name", top=0)

    def pressed(self, key: str, page: int) -> View | None:
        """Give the view after a key; None to end. `page` is how many rows are shown."""
        if self.typing:
            return self._typed(key)
        if key in ("q", "Q"):
            return None
        names = list(VIEWS)
        if key in _TO:
            return replace(self, name=_TO[key], top=0, rising=False)
        if key == "tab":
            return replace(self, name=names[(names.index(self.name) + 1) % len(names)], top=0, rising=False)
        columns = [item.name for item in self.columns if not item.trend]
        if key in ("<", ">", "left", "right"):
            place = columns.index(self.by) + (1 if key in (">", "right") else -1)
            return self.sorted_by(columns[place % len(columns)])
        if key.isdecimal() and 1 <= int(key) <= len(columns):
            return self.sorted_by(columns[int(key) - 1])
        if key == "r":
            return replace(self, rising=not self.rising)
        if key == "/":
            return replace(self, typing=True)
        if key == "esc":
            return replace(self, filter="", top=0)
        if key == " ":
            return replace(self, frozen=not self.frozen)
        moves = {"j": 1, "down": 1, "k": -1, "up": -1, "n": page, "pagedown": page, "b": -page, "pageup": -page}
        if key in moves:
            return replace(self, top=max(0, self.top + moves[key]))
        return replace(self, top=0) if key in ("g", "home") else self

    def within(self, rows: int) -> View:
        """Give the view with a first row that is there."""
        return self if self.top < rows or not self.top else replace(self, top=max(0, rows - 1))

    def _typed(self, key: str) -> View:
        if key in ("enter", "esc"):
            return replace(self, typing=False, filter="" if key == "esc" else self.filter)
        if key == "backspace":
            return replace(self, filter=self.filter[:-1], top=0)
        if len(key) == 1 and key.isprintable() and len(self.filter) < 100:
            return replace(self, filter=self.filter + key, top=0)
        return self

    def rows(self, snapshot: Snapshot) -> list[Row]:
        """Give the rows, filtered and in order; what has no value comes last."""
        wanted = self.filter.casefold()
        found = [row for row in rows_of(self.name, snapshot) if wanted in row.name.casefold()]
        found.sort(key=lambda row: row.name)
        if self.by == "name":
            return found if self.rising else found[::-1]
        known = [row for row in found if row.values.get(self.by) is not None]
        known.sort(key=lambda row: row.values[self.by], reverse=not self.rising)
        return known + [row for row in found if row.values.get(self.by) is None]

    def fitting(self, width: int) -> list[tuple[Column, int]]:
        """Give the columns that fit, with their widths; the trend is longer if there is room."""
        columns = list(self.columns)
        while True:
            taken = sum(item.width + 1 for item in columns if item.width)
            free = width - 2 - taken  # a sign, and a blank
            giving = max(columns, key=lambda item: item.rank)
            if free >= LEAST_NAME or not giving.rank:
                break
            columns.remove(giving)
        more = min(24, max(0, (free - 40) // 2))
        wide = {item.name: item.width + more if item.trend else item.width for item in columns}
        rest = max(1, free - (more if any(item.trend for item in columns) else 0))
        return [(item, wide[item.name] or rest) for item in columns]

    def cells(
        self, row: Row, columns: Sequence[tuple[Column, int]], series: Series, now: float, blocks: str
    ) -> list[list[str]]:
        """Give the lines of a row, and the cells of each, as wide as their columns; only a sentence needs several."""
        found = []
        for item, width in columns:
            if item.trend:
                found.append([sparkline(series(row.subject, item.trend), width, now, blocks)])
                continue
            text = plain(row.name if item.name == "name" else item.show(row.values.get(item.name)))
            parts = textwrap.wrap(text, width) if item.wraps else [text]
            found.append([fitted(part, width, right=item.right) for part in parts])
        lines = max(map(len, found))
        blank = [[" " * width] * lines for _, width in columns]
        return [
            [cell[line] if line < len(cell) else blank[place][line] for place, cell in enumerate(found)]
            for line in range(lines)
        ]


_TO = {"s": "streams", "c": "consumers", "p": "pipelines", "t": "trouble"}


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Give text in just as many columns of the terminal, cut with a sign if it is too long."""
    from rich.cells import cell_len, set_cell_size

    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


def clock(moment: float) -> str:
    """Write a time as the clock on the wall shows it."""
    return time.strftime("%H:%M:%S", time.localtime(moment))
