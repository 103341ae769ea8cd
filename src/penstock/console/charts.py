"""Lines through what was seen over time, drawn here as SVG: no script, no library, and the same on every machine."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.console.formatting import count, rate, seconds, size

__all__ = ["Chart", "Curve", "Points", "plot"]

WIDTH, HEIGHT = 600, 120
_MOST = 200  # points of a line; the highest of those that fall together is drawn
_GAP = 4  # times the usual distance, from which on two points are not joined, and
_LEAST = 30.0  # seconds, below which they always are
_RECENT = 0.25  # the part of the time shown that a trend is taken from
_STEADY = 0.02  # of the height: a trend below that is none, and
_SURE = 0.7  # of a correlation with time: what goes up and down has no trend
_LATE = 60.0  # seconds after its newest point from which on a chart does not end now
_RATE = 0.3  # of a rate, which goes up and down all the time

Points = Sequence[tuple[float, float | None]]
"""Seconds since 1970 and a value, oldest first; None breaks the line: nothing was known from there on."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart."""

    name: str
    path: str
    """The line, as the `d` of a path in a picture of WIDTH times HEIGHT."""
    area: str
    """The same down to the ground, to be filled."""
    last: str
    """Its newest value, in words."""


@dataclass(frozen=True)
class Chart:
    """A chart that is ready to be drawn: lines, and the words around them."""

    lines: tuple[Curve, ...]
    top: str
    """What the upper edge stands for."""
    middle: str
    begin: float
    """Seconds from its left edge to its right one."""
    late: float
    """Seconds from its right edge to now; 0 if it ends now."""
    last: str
    trend: str
    """In words; empty if it is steady."""
    direction: str
    """up, down, or nothing."""
    highest: float
    """The value of the upper edge, for who wants to read values off the line."""
    width: int = WIDTH
    height: int = HEIGHT


def written(value: float | None, unit: str) -> str:
    """Write a value as people read it: `bytes`, `s`, or a number of whatever the unit names."""
    if unit == "bytes":
        return size(None if value is None else round(value))
    if unit == "s":
        return "0 s" if value == 0 else seconds(value)
    if unit.endswith("/s"):
        return rate(value)
    return count(None if value is None else round(value))


def plot(
    series: Points | Mapping[str, Points], unit: str = "", since: float | None = None, until: float | None = None
) -> Chart | None:
    """Draw one line, or several by their names, in one picture; None if there are no two points to join.

    It goes from the first point to the last one, or from `since` to `until`.
    """
    named = dict(series) if isinstance(series, Mapping) else {"": series}
    known = {name: [(at, value) for at, value in points if value is not None] for name, points in named.items()}
    known = {name: points for name, points in known.items() if len(points) > 1}
    if not known:
        return None
    begin = min(points[0][0] for points in known.values()) if since is None else since
    end = max(points[-1][0] for points in known.values()) if until is None else until
    if end <= begin:
        return None
    top = _ceiling(max(value for points in known.values() for _, value in points), unit)
    breaks = {name: [at for at, value in named[name] if value is None] for name in known}
    lines = tuple(_line(name, points, breaks[name], (begin, end), top, unit) for name, points in known.items())
    first = next(iter(known.values()))
    trend, direction = _trend(first, begin, end, top, unit)
    halves = (written(top, unit), written(top / 2, unit) if top != 1 or unit in ("s", "bytes") else "")
    late = time.time() - end
    return Chart(lines, *halves, end - begin, late if late > _LATE else 0.0, lines[0].last, trend, direction, top)


def _line(
    name: str, points: list[tuple[float, float]], breaks: list[float], edges: tuple[float, float], top: float, unit: str
) -> Curve:
    begin, end = edges
    thin = _thinned(points, begin, end)
    usual = statistics.median(later[0] - before[0] for before, later in itertools.pairwise(thin))
    runs: list[list[tuple[float, float]]] = [[]]
    before = thin[0]
    for at, value in thin:
        # What stays the same is kept as its first and last point: such a distance is not a gap.
        gap = value != before[1] and at - before[0] > max(_GAP * usual, _LEAST)
        if gap or bisect.bisect(breaks, before[0]) != bisect.bisect(breaks, at):
            runs.append([])
        before = at, value
        x = WIDTH * (at - begin) / (end - begin)
        y = HEIGHT - 1 - (HEIGHT - 4) * max(0.0, value) / top
        runs[-1].append((x, y))
    drawn = [" L".join(f"{x:.1f},{y:.1f}" for x, y in run) for run in runs]
    # A point that stands alone is drawn as a dot: round ends make one of a line without length.
    path = " ".join(f"M{text}" + ("h0" if len(run) == 1 else "") for text, run in zip(drawn, runs, strict=True))
    area = " ".join(
        f"M{run[0][0]:.1f},{HEIGHT} L{text} L{run[-1][0]:.1f},{HEIGHT}Z"
        for text, run in zip(drawn, runs, strict=True)
        if len(run) > 1
    )
    return Curve(name, path, area, written(points[-1][1], unit))


def _thinned(points: list[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    """Give as many points as can be told apart: the highest of each stretch, at its own time, and always the last."""
    if len(points) <= _MOST:
        return points
    best: dict[int, tuple[float, float]] = {}
    for at, value in points[:-1]:
        place = int((at - begin) / (end - begin) * (_MOST - 1))
        if place not in best or value > best[place][1]:
            best[place] = (at, value)
    return [*best.values(), points[-1]]


def _ceiling(most: float, unit: str) -> float:
    """Give a round number that is not below the highest value."""
    if most <= 0:
        return 1.0
    base = 1024.0 if unit == "bytes" else 10.0
    power = base ** math.floor(math.log(most, base))
    steps = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if unit == "bytes" else (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
    return next((power * step for step in steps if power * step >= most * 0.9999), most)


def _trend(points: list[tuple[float, float]], begin: float, end: float, top: float, unit: str) -> tuple[str, str]:
    """Say where a line goes; of a number of things by how much a minute, and when there are none left."""
    recent = [point for point in points if point[0] >= end - (end - begin) * _RECENT]
    recent = recent if len(recent) > 2 else points[-3:]
    span = recent[-1][0] - recent[0][0]
    if len(recent) < 3 or span <= 0:
        return "", ""
    slope = statistics.linear_regression(*zip(*recent, strict=True)).slope
    is_rate = unit.endswith("/s")
    if not slope or abs(slope) * span < (_RATE if is_rate else _STEADY) * top:
        return "", ""
    try:
        if abs(statistics.correlation(*zip(*recent, strict=True))) < _SURE:
            return "", ""  # it goes up and down, and nowhere
    except statistics.StatisticsError:
        return "", ""  # too small to tell from nothing
    word, direction = ("rising", "up") if slope > 0 else ("falling", "down")
    if is_rate or unit == "s":
        return word, direction
    each = f"{word} by {written(abs(slope) * 60, unit)} a minute"
    rest = f", gone in {seconds(recent[-1][1] / -slope)}" if slope < 0 < recent[-1][1] and unit != "bytes" else ""
    return each + rest, direction
