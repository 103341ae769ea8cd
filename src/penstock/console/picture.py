"""The picture of the overview: who publishes, which streams, who reads them, and where messages wait. Pure.

What does not fit into a picture that can be read is left out and counted: troubled things, those that pipelines read or
write, and the busiest ones are drawn first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.console.formatting import count, cut, rate, seconds
from penstock.console.layout import WIDTH, Box, Path, lay_out
from penstock.survey.edges import find_edges
from penstock.survey.snapshot import Snapshot
from penstock.survey.state import ConsumerState, Edge, FlowSeen, PipelineSeen, StreamState, Subject, page_of

__all__ = ["Picture", "draw"]

STREAMS = 16  # that are drawn
READERS = 4  # consumers of a stream that are drawn, more if they are in trouble; one box for the others
FEW = 6  # streams up to which that is so; with more of them, only consumers in trouble have boxes of their own
TROUBLED = 8  # consumers in trouble that are drawn
_PADDING = 12
_WIDE, _NARROW = 9.2, 7.2  # how much of a box a letter takes, one of the wide ones and others
_KINDS = {"subjects": "publishers", "stream": "stream", "consumer": "consumer", "flow": "flow", "others": "consumers"}


@dataclass
class _Thing(Box):
    """A box of the picture, and what it says."""

    subject: Subject = ()
    title: str = ""
    lines: tuple[str, ...] = ()
    says: str = ""
    state: str = ""
    page: str | None = None


@dataclass(frozen=True)
class Picture:
    """Boxes and ways with their places, and what is not drawn."""

    width: int = 0
    height: int = 0
    boxes: list[dict[str, Any]] = field(default_factory=list)
    ways: list[dict[str, Any]] = field(default_factory=list)
    streams_left_out: int = 0
    consumers_left_out: int = 0
    """Consumers of streams that are not drawn; those of drawn ones have a box together."""


def draw(snapshot: Snapshot, mask: Callable[[str], str] = str, most: int = STREAMS) -> Picture:
    """Lay out what a survey saw; `mask` takes secrets out of what is written, before it is cut."""
    chosen = _choose(snapshot, most)
    troubles: defaultdict[Subject, list[Any]] = defaultdict(list)
    for trouble in snapshot.trouble:
        troubles[trouble.subject].append(trouble)
    boxes: dict[Subject, _Thing] = {}
    ways = find_edges({name: snapshot.streams[name] for name in sorted(chosen)}, {}, snapshot.pipelines)
    published = {edge.source for edge in ways if edge.kind == "publish"}
    for name in sorted(chosen):  # the same things have the same places, look after look
        state = snapshot.streams[name]
        boxes[state.subject] = _stream_box(state)
        if ("subjects", name) in published:
            boxes["subjects", name] = _publishers_box(state)
    for pipeline in snapshot.pipelines:
        if pipeline.in_use or pipeline.state in ("running", "troubled"):
            for flow in pipeline.flows:
                if not flow.streams or chosen & {*flow.streams, *flow.writes}:
                    box = _flow_box(pipeline, flow)
                    boxes[box.subject] = box
    edges = [edge for edge in ways if edge.source in boxes and edge.target in boxes]
    # What a flow writes has no other publisher, as far as anybody knows.
    written = {edge.target[1] for edge in edges if edge.kind == "write"}
    for name in written:
        boxes.pop(("subjects", name), None)
    edges = [edge for edge in edges if edge.source in boxes]
    drawn, gathered = _readers(snapshot, chosen, troubles)
    for reader in drawn:
        boxes[reader.subject] = _consumer_box(reader)
        edges.append(Edge(("stream", reader.stream), reader.subject, "consume", reader.rate, reader.lag))
    for name, others in gathered.items():
        box = _others_box(name, others, any(reader.stream == name for reader in drawn))
        boxes[box.subject] = box
        waiting = sum(item.lag for item in others)
        edges.append(Edge(("stream", name), box.subject, "consume", _sum(item.rate for item in others), waiting))
    for subject, box in boxes.items():
        _mark(box, troubles.get(subject, []))
    for name, others in gathered.items():
        behind = [trouble for item in others for trouble in troubles.get(item.subject, [])]
        _mark(boxes["others", name], behind[:5])
    outside = sum(state.consumers for name, state in snapshot.streams.items() if name not in chosen)
    edges = [edge for edge in edges if edge.source != edge.target]
    width, height, paths = lay_out(boxes, [(edge.source, edge.target) for edge in edges])
    drawn_ways = [_way(edge, path, mask) for edge, path in zip(edges, paths, strict=True)]
    return Picture(
        width,
        height,
        [_plain(box, mask) for box in boxes.values()],
        drawn_ways,
        len(snapshot.streams) - len(chosen),
        outside,
    )


# -- what is drawn -----------------------------------------------------------------------------------------------------


def _choose(snapshot: Snapshot, most: int) -> set[str]:
    """Name the streams that are drawn: those in trouble, those of pipelines, the busiest, those written to last."""
    severe, mild = set[str](), set[str]()
    for trouble in snapshot.trouble:
        if trouble.subject[0] in ("stream", "consumer"):
            (severe if trouble.severe else mild).add(trouble.subject[1])
    flows = {name for item in snapshot.pipelines for flow in item.flows for name in (*flow.streams, *flow.writes)}

    def weight(state: StreamState) -> tuple[Any, ...]:
        last = state.last_time.timestamp() if state.last_time else 0.0
        return (state.name in severe, state.name in flows, state.name in mild, state.rate or 0.0, last, state.name)

    return {state.name for state in sorted(snapshot.streams.values(), key=weight, reverse=True)[:most]}


def _readers(
    snapshot: Snapshot, chosen: set[str], troubles: Mapping[Subject, Sequence[Any]]
) -> tuple[list[ConsumerState], dict[str, list[ConsumerState]]]:
    """Give the consumers that have a box of their own, and for each stream those that share one."""
    read: defaultdict[str, list[ConsumerState]] = defaultdict(list)
    for state in snapshot.consumers.values():
        if state.stream in chosen and not state.sourcing and not state.bookmark:
            read[state.stream].append(state)
    drawn, gathered = [], {}
    for name, states in read.items():
        states.sort(key=lambda item: (item.subject not in troubles, -(item.rate or 0.0), -item.lag, item.name))
        troubled = sum(item.subject in troubles for item in states)
        room = max(READERS - 1 if len(read) <= FEW else 0, min(TROUBLED, troubled))
        room += len(states) == room + 1  # a box for one other would be no smaller
        drawn += states[:room]
        if states[room:]:
            gathered[name] = states[room:]
    return drawn, gathered


def _publishers_box(state: StreamState) -> _Thing:
    more = len(state.subjects) - 1 + state.more_subjects
    lines = (f"and {more} more",) if more else ()
    says = f"Publishers to {', '.join(state.subjects[:5])}{' …' if more > 4 else ''}"
    return _Thing(
        subject=("subjects", state.name), title=state.subjects[0], lines=(*lines, _rate(state.rate)), says=says
    )


def _stream_box(state: StreamState) -> _Thing:
    held = f"{short(state.messages)} message{'s' * (state.messages != 1)}"
    return _Thing(subject=state.subject, title=state.name, lines=(held, _rate(state.rate)), says=f"Stream {state.name}")


def _flow_box(pipeline: PipelineSeen, flow: FlowSeen) -> _Thing:
    lag = "" if flow.lag is None else f"lag {short(flow.lag)}"
    state = "failed" if flow.failed else flow.status or pipeline.state
    mine = ("flow", pipeline.subject[1], flow.name)
    box = _Thing(subject=mine, title=flow.name, lines=(state, lag, _rate(flow.rate)))
    box.says = f"Flow {flow.name} of pipeline {pipeline.subject[1]}: {state}"
    box.state = "bad" if flow.failed or pipeline.state == "failed" else ""
    return box


def _consumer_box(state: ConsumerState) -> _Thing:
    age = f", {seconds(state.lag_seconds)}" if state.lag and state.lag_seconds else ""
    says = f"Consumer {state.name} of {state.stream}"
    lines = (f"lag {short(state.lag)}{age}", _rate(state.rate))
    return _Thing(subject=state.subject, title=state.name, lines=lines, says=says)


def _others_box(stream: str, states: Sequence[ConsumerState], more: bool) -> _Thing:
    lag = f"lag {short(sum(state.lag for state in states))}"
    lines = (lag, _rate(_sum(state.rate for state in states)))
    box = _Thing(subject=("others", stream), title=f"{count(len(states))} {'more ' * more}consumers", lines=lines)
    box.page, box.says = page_of(("stream", stream)), f"Further consumers of {stream}"
    return box


def _mark(box: _Thing, troubles: Sequence[Any]) -> None:
    box.page = box.page or page_of(box.subject)
    if troubles:
        box.state = "bad" if any(item.severe for item in troubles) or box.state == "bad" else "warn"
        box.says = f"{box.says}: {'; '.join(item.says for item in troubles)}"


def _plain(box: _Thing, mask: Callable[[str], str]) -> dict[str, Any]:
    lines = " · ".join(line for line in box.lines if line)
    return {
        "kind": _KINDS[box.subject[0]],
        "title": _fitting(mask(box.title), WIDTH - 2 * _PADDING - (_WIDE * 2 if box.state else 0)),
        "line": _fitting(lines, 1.1 * (WIDTH - 2 * _PADDING)),  # it is written smaller
        "state": box.state,
        "page": box.page,
        "says": cut(mask(box.says), 400),
        **{"x": round(box.x), "y": round(box.y), "width": WIDTH, "height": round(box.height)},
    }


def _fitting(text: str, width: float) -> str:
    """Cut a text so that it fits into a box, in most fonts."""
    shown = cut(text)
    used = 0.0
    for place, letter in enumerate(shown):
        used += _WIDE if letter.isupper() or letter in "mwMW@%" else _NARROW
        if used > width and place < len(shown) - 1:
            return shown[: max(1, place - 1)] + "…"
    return shown


def _rate(value: float | None) -> str:
    return "" if value is None else f"{rate(value)}/s" if value < 10_000 else f"{short(value)}/s"


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def short(value: float) -> str:
    """Write a count in few letters."""
    for step, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= step:
            scaled = value / (1e3 if unit == "k" else step)
            return f"{scaled:.1f} {unit}" if scaled < 100 else f"{scaled:,.0f} {unit}"
    return f"{value:,.0f}"


def _way(edge: Edge, path: Path, mask: Callable[[str], str]) -> dict[str, Any]:
    lag = f", {count(edge.lag)} messages wait" if edge.lag else ""
    passing = f", {rate(edge.rate)} messages/s" if edge.rate is not None else ""
    states = (("moves", edge.rate), ("waits", edge.lag), ("back", path.back))
    return {
        "path": path.d,
        "kind": edge.kind,
        "state": " ".join(word for word, so in states if so),
        "says": cut(mask(f"{edge.source[-1]} → {edge.target[-1]}: {edge.kind}{passing}{lag}"), 300),
    }
