"""How values become text in pages: counts, sizes, times, and whatever others wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.console.payload import visible
from penstock.sizes import format_size

__all__ = ["FILTERS", "ago", "cut", "points"]

_LONG = 300
_STEPS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def count(value: float | None) -> str:
    """Write a number with its thousands apart; nothing known is a dash."""
    return "–" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """Write a number of bytes."""
    return "–" if value is None else format_size(value)


def rate(value: float | None) -> str:
    """Write a number a second."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """Write a duration."""
    if value is None:
        return "–"
    if value < 0.001:
        return f"{value * 1_000_000:.0f} µs"
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    for step, unit in _STEPS:
        if value >= step:
            return f"{value / step:.1f} {unit}" if value < 10 * step else f"{value / step:.0f} {unit}"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def ago(value: str | None, now: datetime | None = None) -> str:
    """Write how long ago a time was."""
    if value is None:
        return "never"
    passed = ((now or datetime.now(UTC)) - datetime.fromisoformat(value)).total_seconds()
    return "now" if passed < 1 else f"{seconds(passed)} ago"


def clock(value: str | None) -> str:
    """Write a time as the clock of this machine shows it."""
    return "" if value is None else datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def cut(value: Any, most: int = _LONG) -> str:
    """Write what others wrote, such as a subject: no control character, and not without end."""
    text = visible(str(value))
    return text if len(text) <= most else text[: most - 1] + "…"


def points(values: Sequence[float], width: int = 100, height: int = 20) -> str:
    """Give the points of a line through the values, for SVG; nothing if there are too few."""
    top = max(values, default=0.0)
    if len(values) < 2 or top <= 0:
        return ""
    step = width / (len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{height - 1 - (height - 2) * max(0.0, value) / top:.1f}"
        for place, value in enumerate(values)
    )


def share(part: float, whole: float | None) -> int:
    """Give a part in hundredths of the whole."""
    return 0 if not whole else max(0, min(100, round(100 * part / whole)))


FILTERS: dict[str, Callable[..., Any]] = {
    write.__name__: write for write in (count, size, rate, seconds, ago, clock, cut, points, share)
}
