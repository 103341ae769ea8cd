"""Charts as inline SVG, drawn by hand: lines, areas, stacked columns, bars. Pure: numbers in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Band", "Line", "bars", "columns", "lines"]

WIDTH, HEIGHT = 860, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 34


@dataclass(frozen=True)
class Line:
    """A line through points, in a colour of the page; filled down to the axis where asked."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    fill: bool = False


@dataclass(frozen=True)
class Band:
    """Something that happened from one time to another, shown as a band with a word."""

    start: float
    end: float
    text: str


def _nice(most: float, steps: int = 4) -> tuple[float, float]:
    """Give a round top and step for an axis that must reach `most`."""
    if most <= 0:
        return 1.0, 1.0
    raw = most / steps
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    return step * math.ceil(most / step), step


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):g}{letter}"
    return f"{value:g}"


def _text(kind: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(title: str, top: float, step: float, body: list[str], ticks: Sequence[tuple[float, str]]) -> str:
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for value in _steps(0.0, top + step / 1000, step):
        y = _y(value, top)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text("tick", LEFT - 8, y + 4, _short(value), "end"))
    parts += [_text("tick", x, HEIGHT - 12, text) for x, text in ticks]
    return "".join([*parts, *body, "</svg>"])


def _steps(low: float, high: float, step: float) -> Iterator[float]:
    while low <= high:
        yield low
        low += step


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _legend(items: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in items)
    return f'<div class="legend">{keys}</div>'


def lines(title: str, series: Sequence[Line], bands: Sequence[Band] = ()) -> str:
    """Draw lines over time."""
    ends = [x for line in series for x, _ in line.points]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    span = (high - low) or 1.0
    top, step = _nice(max((y for line in series for _, y in line.points), default=0.0))

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / span

    body = []
    for band in bands:
        left, right = x_of(max(band.start, low)), x_of(min(band.end, high))
        body.append(
            f'<rect class="band" x="{left:.1f}" y="{TOP}" width="{max(right - left, 2):.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        body.append(_text("mark", (left + right) / 2, TOP + 14, band.text))
    for line in series:
        path = " ".join(f"{x_of(x):.1f},{_y(y, top):.1f}" for x, y in line.points)
        if line.fill and line.points:
            first, last = (f"{x_of(x):.1f},{HEIGHT - BOTTOM}" for x, _ in (line.points[0], line.points[-1]))
            body.append(f'<polygon points="{first} {path} {last}" fill="{line.colour}" opacity="0.22"/>')
        body.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2.4"/>')
    _, wide = _nice(span, 8)
    ticks = [(x_of(value), f"{value:g} s") for value in _steps(math.ceil(low / wide) * wide, high, wide)]
    return _frame(title, top, step, body, ticks) + _legend([(line.name, line.colour) for line in series])


def columns(title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], colours: Sequence[str]) -> str:
    """Draw stacked columns, one for each group."""
    totals = [sum(values[index] for values in series.values()) for index in range(len(groups))]
    top, step = _nice(max(totals, default=0.0))
    slot = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    body = []
    for index, group in enumerate(groups):
        below = 0.0
        for (name, values), colour in zip(series.items(), colours, strict=False):
            value = values[index]
            upper, lower = _y(below + value, top), _y(below, top)
            body.append(
                f'<rect x="{LEFT + slot * index + slot * 0.1:.1f}" y="{upper:.1f}" width="{slot * 0.8:.1f}" '
                f'height="{max(lower - upper, 0):.1f}" fill="{colour}"><title>{escape(f"{group} {name}: {value:,.2f}")}'
                "</title></rect>"
            )
            below += value
    every = max(1, len(groups) // 10)
    ticks = [(LEFT + slot * (index + 0.5), groups[index]) for index in range(0, len(groups), every)]
    return _frame(title, top, step, body, ticks) + _legend(list(zip(series, colours, strict=False)))


def bars(rows: Sequence[tuple[str, float, str]], colour: str) -> str:
    """Draw lying bars, each with a name before it and a text behind it."""
    most = max((value for _, value, _ in rows), default=1.0) or 1.0
    cells = "".join(
        f'<div class="name">{escape(name)}</div><div class="track"><div style="width:{100 * value / most:.1f}%;'
        f'background:{colour}"></div></div><div class="value">{escape(text)}</div>'
        for name, value, text in rows
    )
    return f'<div class="bars">{cells}</div>'
