"""Boxes in columns and ways between them, laid out by nobody's hand. Pure: keys and pairs of keys in, places out.

A box stands to the right of whatever feeds it, so that things flow from left to right; a way that closes a circle leads
back. Within a column boxes are sorted so that ways cross little: each one goes to the middle of its neighbours, a few
times to and fro. Then each one moves as near to its neighbours as those above and below it let it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

__all__ = ["HEIGHT", "WIDTH", "Box", "Path", "lay_out"]

WIDTH, HEIGHT = 190, 44  # of a box
_ACROSS, _BETWEEN, _EDGE = 70, 14, 8
_BEND = 10  # the height of the place where a long way passes through a column
_SWEEPS = 6

Key = TypeVar("Key", bound=Hashable)
Columns = Mapping[int, list["Box"]]
Near = Mapping[int, Sequence["Box"]]


@dataclass
class Box:
    """Something that has a place; a way over several columns has such a place in each of them, too."""

    column: int = 0
    x: float = 0.0
    y: float = 0.0
    height: float = HEIGHT
    bend: bool = False


class Path(NamedTuple):
    """A way as SVG draws it, and whether it leads back."""

    d: str
    back: bool


def lay_out(boxes: Mapping[Key, Box], edges: Sequence[tuple[Key, Key]]) -> tuple[int, int, list[Path]]:
    """Give every box its place, and give the size of the picture and a path for each edge, in their order."""
    back = _set_columns(boxes, edges)
    columns: defaultdict[int, list[Box]] = defaultdict(list)
    for box in boxes.values():
        columns[box.column].append(box)
    routes: list[tuple[list[Box], bool]] = []
    near: defaultdict[int, list[Box]] = defaultdict(list)
    for edge in edges:
        begin, end = boxes[edge[0]], boxes[edge[1]]
        if edge in back:
            begin, end = end, begin
        bends = [Box(place, height=_BEND, bend=True) for place in range(begin.column + 1, end.column)]
        for bend in bends:
            columns[bend.column].append(bend)
        route = [begin, *bends, end]
        routes.append((route, edge in back))
        for one, other in itertools.pairwise(route):
            near[id(one)].append(other)
            near[id(other)].append(one)
    _order(columns, near)
    height = _place(columns, near)
    for box in (box for column in columns.values() for box in column):
        box.x = _EDGE + box.column * (WIDTH + _ACROSS)
    width = 2 * _EDGE + (max(columns) + 1) * (WIDTH + _ACROSS) - _ACROSS if columns else 0
    return width, height, [Path(_draw(route), leads_back) for route, leads_back in routes]


def _set_columns(boxes: Mapping[Key, Box], edges: Sequence[tuple[Key, Key]]) -> set[tuple[Key, Key]]:
    """Put every box to the right of what feeds it; give the edges that close a circle."""
    out: defaultdict[Key, list[Key]] = defaultdict(list)
    for source, target in edges:
        out[source].append(target)
    fed = {target for _, target in edges}
    back, order = _walk([key for key in boxes if key not in fed] + list(boxes), out)
    for key in reversed(order):
        for target in out[key]:
            if (key, target) not in back:
                boxes[target].column = max(boxes[target].column, boxes[key].column + 1)
    # A box that nothing feeds stands just before what it feeds, not at the far left.
    for key, box in boxes.items():
        ahead = [boxes[target].column for target in out[key] if (key, target) not in back]
        if key not in fed and ahead:
            box.column = min(ahead) - 1
    return back


def _walk(starts: Sequence[Key], out: Mapping[Key, Sequence[Key]]) -> tuple[set[tuple[Key, Key]], list[Key]]:
    """Go as deep as may be: give the edges that lead back, and the keys, each one behind all that it leads to."""
    back, done, under_way, order = set[tuple[Key, Key]](), set[Key](), set[Key](), list[Key]()
    for start in starts:
        if start in done:
            continue
        walk = [(start, iter(out.get(start, ())))]
        under_way.add(start)
        while walk:
            key, following = walk[-1]
            target = next(following, None)
            if target is None:
                walk.pop()
                under_way.discard(key)
                done.add(key)
                order.append(key)
            elif target in under_way:
                back.add((key, target))
            elif target not in done:
                under_way.add(target)
                walk.append((target, iter(out.get(target, ()))))
    return back, order


def _order(columns: Columns, near: Near) -> None:
    """Sort the boxes of each column by where their neighbours are, to the right and back, so that few ways cross."""
    place = {id(box): spot / len(column) for column in columns.values() for spot, box in enumerate(column)}
    for sweep in range(_SWEEPS):
        step = 1 if sweep % 2 == 0 else -1
        for number in sorted(columns, reverse=step < 0):
            column = columns[number]
            middles = {}
            for box in column:
                known = [place[id(other)] for other in near.get(id(box), ()) if other.column == number - step]
                middles[id(box)] = sum(known) / len(known) if known else place[id(box)]
            column.sort(key=lambda box, middles=middles: middles[id(box)])  # type: ignore[misc]
            place |= {id(box): spot / len(column) for spot, box in enumerate(column)}


def _place(columns: Columns, near: Near) -> int:
    """Give each box its height in the picture, and give how high that is."""
    for column in columns.values():
        _stack(column, [0.0] * len(column))
    for sweep in range(_SWEEPS):
        step = 1 if sweep % 2 == 0 else -1
        for number in sorted(columns, reverse=step < 0):
            wanted = []
            for box in columns[number]:
                beside = [other for other in near.get(id(box), ()) if sweep > 1 or other.column == number - step]
                middle = sum(other.y + other.height / 2 for other in beside) / max(1, len(beside))
                wanted.append(middle - box.height / 2 if beside else box.y)
            _stack(columns[number], wanted)
    boxes = [box for column in columns.values() for box in column]
    top = min((box.y for box in boxes), default=0.0)
    for box in boxes:
        box.y += _EDGE - top
    return round(max((box.y + box.height for box in boxes), default=0.0) + _EDGE)


def _stack(column: Sequence[Box], wanted: Sequence[float]) -> None:
    """Put boxes as near as may be to where they want to be, in their order, and none on another."""
    groups: list[tuple[float, float, list[Box]]] = []  # the sum of where its boxes want it, its height, its boxes
    for box, want in zip(column, wanted, strict=True):
        total, size, members = want, box.height + _BETWEEN, [box]
        while groups and groups[-1][0] / len(groups[-1][2]) + groups[-1][1] > total / len(members):
            above_total, above_size, above = groups.pop()
            total = above_total + total - above_size * len(members)
            size, members = above_size + size, above + members
        groups.append((total, size, members))
    for total, _, members in groups:
        y = total / len(members)
        for box in members:
            box.y = y
            y += box.height + _BETWEEN


def _draw(route: Sequence[Box]) -> str:
    drawn = []
    for place, (one, other) in enumerate(itertools.pairwise(route)):
        begin, end = (one.x + WIDTH, one.y + one.height / 2), (other.x, other.y + other.height / 2)
        drawn.append(f"{'L' if place else 'M'}{begin[0]:.0f} {begin[1]:.0f}")
        half = (begin[0] + end[0]) / 2
        drawn.append(f"C{half:.0f} {begin[1]:.0f} {half:.0f} {end[1]:.0f} {end[0]:.0f} {end[1]:.0f}")
    return "".join(drawn)
