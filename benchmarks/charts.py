"""Charts as SVG files: bars and curves, for light and for dark pages, with nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["bars", "curves", "quantity"]

WIDTH, LEFT, RIGHT = 760, 190, 90
ROW, GAP, TOP = 20, 12, 46
_STYLE = """<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .note { fill: #59636e }
  .axis { stroke: #59636e; stroke-width: 1; fill: none }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .ours { fill: #0969da } .limit { fill: #8c959f } .peer { fill: #d4a72c }
  .s0 { stroke: #0969da } .s1 { stroke: #bc4c00 } .s2 { stroke: #1a7f37 } .s3 { stroke: #8250df }
  .t0 { fill: #0969da } .t1 { fill: #bc4c00 } .t2 { fill: #1a7f37 } .t3 { fill: #8250df }
  .line { fill: none; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .note { fill: #9198a1 }
    .axis { stroke: #9198a1 } .grid { stroke: #3d444d }
    .ours { fill: #4493f8 } .limit { fill: #656c76 } .peer { fill: #d29922 }
    .s0 { stroke: #4493f8 } .s1 { stroke: #f0883e } .s2 { stroke: #3fb950 } .s3 { stroke: #ab7df8 }
    .t0 { fill: #4493f8 } .t1 { fill: #f0883e } .t2 { fill: #3fb950 } .t3 { fill: #ab7df8 }
  }
</style>"""


def quantity(value: float) -> str:
    """Write a number as people read it: 1.2 M, 340 k, 12."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _frame(height: float, title: str, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    lines = [
        head,
        f"<title>{escape(title)}</title>",
        _STYLE,
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
    ]
    return "\n".join([*lines, *body, "</svg>"]) + "\n"


def bars(title: str, groups: Mapping[str, Mapping[str, tuple[float, float, float]]], kinds: Mapping[str, str]) -> str:
    """Draw horizontal bars: for each group its sides, each with median, least and most; `kinds` says who is who."""
    body, y = list[str](), float(TOP)
    for group, sides in groups.items():
        # Each group has a scale of its own: large messages are fewer by far, and only sides are compared.
        scale = (WIDTH - LEFT - RIGHT) / (max((most for _, _, most in sides.values()), default=0.0) or 1.0)
        if len(groups) > 1:
            body.append(f'<text class="note" x="12" y="{y + 13:.0f}">{escape(group)}</text>')
            y += ROW
        for side, (median, least, most) in sides.items():
            middle = y + ROW / 2 - 2
            body.append(f'<text x="{LEFT - 8}" y="{y + 13:.0f}" text-anchor="end">{escape(side)}</text>')
            kind = kinds.get(side, "peer")
            width = max(median * scale, 1)
            body.append(f'<rect class="{kind}" x="{LEFT}" y="{y:.0f}" width="{width:.1f}" height="{ROW - 5}" rx="2"/>')
            ends = LEFT + least * scale, LEFT + most * scale
            body.append(f'<path class="axis" d="M{ends[0]:.1f},{middle:.1f} L{ends[1]:.1f},{middle:.1f}"/>')
            label = max(ends[1], LEFT + width) + 6
            body.append(f'<text class="note" x="{label:.1f}" y="{y + 13:.0f}">{quantity(median)}</text>')
            y += ROW
        y += GAP
    return _frame(y, title, body)


def curves(
    title: str, across: str, up: str, series: Mapping[str, Sequence[tuple[float, float]]], *, log: bool = False
) -> str:
    """Draw curves over a logarithmic axis, with `log` up another one; what they are of stands at their ends."""
    height, left, bottom = 260, 70, 220
    points = [point for line in series.values() for point in line]
    if not points:
        return _frame(60, title, ['<text class="note" x="12" y="46">not measured</text>'])
    low, high = (math.log10(max(edge(x for x, _ in points), 1e-9)) for edge in (min, max))
    width, marks = WIDTH - left - 120, _marks([value for _, value in points], log)
    least, most = (_level(marks[place], log) for place in (0, -1))

    def place(x: float, value: float) -> tuple[float, float]:
        share = (math.log10(max(x, 1e-9)) - low) / (high - low) if high > low else 0.5
        part = (_level(value, log) - least) / (most - least)
        return left + share * width, bottom - part * (bottom - TOP - 10)

    body = []
    for mark in marks:
        _, y = place(10**low, mark)
        body.append(f'<path class="grid" d="M{left},{y:.1f} L{left + width},{y:.1f}"/>')
        body.append(f'<text class="note" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{quantity(mark)}</text>')
    for x in sorted({x for x, _ in points}):
        at, _ = place(x, marks[0])
        body.append(f'<text class="note" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{quantity(x)}</text>')
    body.append(f'<path class="axis" d="M{left},{bottom} L{left + width},{bottom}"/>')
    middle = left + width / 2
    body.append(f'<text class="note" x="{middle}" y="{bottom + 34}" text-anchor="middle">{escape(across)}</text>')
    body.append(f'<text class="note" x="12" y="{TOP - 4}">{escape(up)}</text>')
    labels: list[float] = []
    for number, (name, line) in enumerate(series.items()):
        drawn = " L".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        body.append(f'<path class="line s{number % 4}" d="M{drawn}"/>')
        body += [
            f'<circle class="t{number % 4}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in (place(*one) for one in line)
        ]
        x, y = place(*line[-1])
        while any(abs(y - other) < 14 for other in labels):
            y -= 7  # upwards: below are the numbers of the axis
        labels.append(y)
        body.append(f'<text class="t{number % 4}" x="{x + 10:.1f}" y="{y + 4:.1f}">{escape(name)}</text>')
    return _frame(height, title, body)


def _level(value: float, log: bool) -> float:
    return math.log10(max(value, 1e-9)) if log else value


def _marks(values: Sequence[float], log: bool) -> list[float]:
    """Give the values at which lines are drawn: powers of ten around all of them, or quarters of the largest."""
    if not log:
        top = max(values) or 1.0
        return [top * share for share in (0, 0.25, 0.5, 0.75, 1)]
    first, last = math.floor(_level(min(values), True)), math.ceil(_level(max(values), True))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]
