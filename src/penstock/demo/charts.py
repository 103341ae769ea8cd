"""Charts for a page, drawn by hand: lines, areas, stacked columns, bars. Pure: numbers in, text out.

A drawing is a hundred wide and a hundred high, and the page stretches it; its style draws the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "bars", "columns", "lines"]

_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Line:
    """A line through points, in a colour of the page; filled down to the axis if asked."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    fill: bool = False


def _top(values: Iterable[float]) -> float:
    """Give a round end for an axis that must reach all values."""
    most = max(values, default=0.0)
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(size * factor for factor in (1, 2, 4, 6, 8, 10) if size * factor >= most)


def _chart(
    title: str, top: float, labels: Iterable[str], body: Iterable[str], legend: Iterable[tuple[str, str]]
) -> str:
    """Put a drawing between its axes, labelled at each quarter of the height, and the legend under it."""
    heights = "".join(f"<span>{top * part:,.10g}</span>" for part in reversed(_QUARTERS))
    widths = "".join(f"<span>{escape(label)}</span>" for label in labels)
    keys = "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in legend)
    return (
        f'<div class="chart"><div class="y">{heights}</div><svg viewBox="0 0 100 100" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(title)}">{"".join(body)}</svg><div class="x">{widths}</div></div>'
        f'<div class="legend">{keys}</div>'
    )


def _rect(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect {place} fill="{colour}"><title>{escape(title)}</title></rect>'


def lines(title: str, series: Sequence[Line], bands: Sequence[tuple[float, float, str]] = ()) -> str:
    """Draw lines over time, from zero on; a band shows what was so from one time to another."""
    right = max((x for line in series for x, _ in line.points), default=0.0) or 1.0
    top = _top(y for line in series for _, y in line.points)
    body = []
    for start, end, text in bands:
        left, width = 100 * start / right, 100 * (min(end, right) - start) / right
        body.append(_rect(left, 0, max(width, 0.2), 100, "var(--band)", text))
    for line in series:
        points = [(f"{100 * x / right:.2f}", f"{100 - 100 * y / top:.2f}") for x, y in line.points]
        path = " ".join(f"{x},{y}" for x, y in points)
        if line.fill and points:
            area = f"{points[0][0]},100 {path} {points[-1][0]},100"
            body.append(f'<polygon points="{area}" fill="{line.colour}" opacity="0.22"/>')
        body.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}"/>')
    legend = dict([(line.name, line.colour) for line in series] + [(text, "var(--band)") for _, _, text in bands])
    return _chart(title, top, (f"{right * part:.0f} s" for part in _QUARTERS), body, legend.items())


def columns(title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], colours: Sequence[str]) -> str:
    """Draw stacked columns, one for each group."""
    top = _top(sum(values) for values in zip(*series.values(), strict=True))
    legend = list(zip(series, colours, strict=False))
    slot = 100 / max(len(groups), 1)
    body = []
    for index, group in enumerate(groups):
        y = 100.0
        for name, colour in legend:
            value = series[name][index]
            height = 100 * value / top
            y -= height
            body.append(_rect(slot * (index + 0.1), y, slot * 0.8, height, colour, f"{group} {name}: {value:,.2f}"))
    labels = [groups[int((len(groups) - 1) * part)] for part in _QUARTERS] if groups else []
    return _chart(title, top, labels, body, legend)


def bars(rows: Sequence[tuple[str, float, str]], colour: str) -> str:
    """Draw lying bars, each with a name before it and a text behind it."""
    most = max((value for _, value, _ in rows), default=1.0) or 1.0
    cells = "".join(
        f'<div class="name">{escape(name)}</div><div class="track"><div style="width:{100 * value / most:.1f}%;'
        f'background:{colour}"></div></div><div class="value">{escape(text)}</div>'
        for name, value, text in rows
    )
    return f'<div class="bars">{cells}</div>'
