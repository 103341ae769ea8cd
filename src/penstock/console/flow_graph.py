"""A picture of one pipeline: the streams and tables that its flows read, the flows, and what they write to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.console.formatting import cut, rate, size
from penstock.console.layout import WIDTH, Box, lay_out
from penstock.console.picture import short
from penstock.survey.state import FlowSeen, PipelineSeen, Subject, page_of

__all__ = ["draw_flows"]

_LETTERS = 25  # of a line that fit into a box
_FLOWS = 40  # that are drawn


@dataclass
class _Drawn(Box):
    kind: str = ""
    title: str = ""
    line: str = ""
    state: str = ""
    page: str | None = None
    says: str = ""


def draw_flows(pipeline: PipelineSeen) -> dict[str, Any]:
    """Lay out the flows of a pipeline with what they read and write, as the macro `picture` draws it."""
    boxes: dict[Subject, _Drawn] = {}
    ways: list[tuple[Subject, Subject, dict[str, Any]]] = []
    for flow in pipeline.flows[:_FLOWS]:
        mine: Subject = ("flow", pipeline.subject[1], flow.name)
        boxes[mine] = _flow_box(pipeline, flow)
        for name, following in flow.streams.items():
            latest = flow.latest.get(name)
            lag = None if latest is None else max(0, latest - following)
            key = ("stream", name)
            boxes.setdefault(key, _stream_box(name, gone=name in flow.latest and latest is None))
            ways.append((key, mine, _way("read", f"{flow.name} reads {name}", flow.rate, lag)))
        for name in flow.tables:
            boxes.setdefault(("table", name), _table_box(name))
            ways.append((("table", name), mine, _way("read", f"{flow.name} reads the table {name}", flow.rate, None)))
        for name in flow.writes:
            boxes.setdefault(("stream", name), _stream_box(name))
            ways.append((mine, ("stream", name), _way("write", f"{flow.name} writes to {name}", flow.rate, None)))
        if not flow.writes and flow.target is not None:
            boxes.setdefault(("table", flow.target), _table_box(flow.target))
            says = f"{flow.name} writes to {flow.target}"
            ways.append((mine, ("table", flow.target), _way("write", says, flow.rate, None)))
    width, height, paths = lay_out(boxes, [(source, target) for source, target, _ in ways])
    return {
        "width": width,
        "height": height,
        "boxes": [_plain(box) for box in boxes.values()],
        "ways": [
            {**about, "path": path.d, "state": f"{about['state']} back" if path.back else about["state"]}
            for (_, _, about), path in zip(ways, paths, strict=True)
        ],
        "flows_left_out": max(0, len(pipeline.flows) - _FLOWS),
    }


def _flow_box(pipeline: PipelineSeen, flow: FlowSeen) -> _Drawn:
    words = [
        flow.status or pipeline.state,
        "" if flow.rate is None else f"{rate(flow.rate)} rows/s",
        "" if flow.lag is None else f"lag {short(flow.lag)}",
    ]
    facts = [
        f"Flow {flow.name}: {words[0]}",
        "" if flow.rows is None else f"{flow.rows:,} rows in",
        "" if flow.rows_out is None else f"{flow.rows_out:,} rows out",
        "" if flow.lag is None else f"{flow.lag:,} messages wait",
        f"state of {size(flow.state_bytes)}" if flow.state_bytes else "",
        flow.error or "",
    ]
    state = "bad" if flow.failed or flow.error else "warn" if flow.complete is False and not _runs(pipeline) else ""
    return _Drawn(
        kind="flow",
        title=flow.name,
        line=" · ".join(word for word in words if word),
        state=state,
        says="; ".join(fact for fact in facts if fact),
    )


def _runs(pipeline: PipelineSeen) -> bool:
    return pipeline.state in ("running", "troubled")


def _stream_box(name: str, *, gone: bool = False) -> _Drawn:
    if gone:
        says = f"Stream {name} is gone, or another one has its name"
        return _Drawn(kind="stream", title=name, line="gone", state="bad", says=says)
    return _Drawn(kind="stream", title=name, line="stream", page=page_of(("stream", name)), says=f"Stream {name}")


def _table_box(name: str) -> _Drawn:
    return _Drawn(kind="table", title=name, line="table or sink", says=f"The table or sink {name}")


def _way(kind: str, says: str, passing: float | None, lag: int | None) -> dict[str, Any]:
    waits = f", {lag:,} messages wait" if lag else ""
    moves = f", {rate(passing)} rows/s" if passing else ""
    state = " ".join(word for word, so in (("moves", passing), ("waits", lag)) if so)
    return {"kind": kind, "says": cut(f"{says}{moves}{waits}", 300), "state": state}


def _plain(box: _Drawn) -> Mapping[str, Any]:
    return {
        "kind": box.kind,
        "title": cut(box.title, _LETTERS),
        "line": cut(box.line, _LETTERS + 7),
        "state": box.state,
        "page": box.page,
        "says": cut(box.says, 600),
        **{"x": round(box.x), "y": round(box.y), "width": WIDTH, "height": round(box.height)},
    }
