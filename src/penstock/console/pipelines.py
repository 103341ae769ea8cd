"""Pipelines: what their runs leave, what their checkpoints say, and what the Spark sink keeps in streams.

Nothing asks Spark. The survey reads what runs and checkpoints say (`survey/pipelines.py`); the heads that every
exactly-once query, of a pipeline or not, keeps in the stream that it writes to are read here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from penstock.connection import Connection, api_request
from penstock.console.backend import Backend, Data, PageRequest, all_of, if_there, iso, page, part_of
from penstock.console.flow_graph import draw_flows
from penstock.console.history import flow_history
from penstock.console.seen import all_streams, series
from penstock.errors import DeadlineError, NotFoundError, RemoteProtocolError
from penstock.jetstream import assets
from penstock.spark.markers import MARKER_ROOT, Head, marker_filter
from penstock.survey import FlowSeen, PipelineSeen, Snapshot
from penstock.wire.jetstream.answers import held_subjects

__all__ = ["pipeline", "pipelines"]

_HISTORY = 60  # batches that are drawn in a row of the list
_HEADS = 100  # of a stream that are read
_STREAMS = 100  # whose heads are read: those written to last
_CHARTS = 6  # flows whose batches are drawn, those of the newest ones
_PHASES = 5  # phases of a batch that have a line of their own


async def _surveyed(backend: Backend) -> Snapshot:
    """Give what the survey saw of pipelines; the first page waits for its first round."""
    survey = backend.survey
    try:
        async with asyncio.timeout(backend.settings.timeout):
            while not survey.snapshot.covered.rounds and survey.snapshot.problem is None:
                await survey.next(survey.snapshot)
    except TimeoutError:
        seconds = backend.settings.timeout
        raise DeadlineError("The first look at everything takes long.", seconds=seconds) from None
    return survey.snapshot


@page("/pipelines", refresh=3, menu=True)
async def pipelines(backend: Backend, request: PageRequest) -> Data:
    """Runs and flows of pipelines with their lag, and where each exactly-once query is."""
    client = await backend.upstream.client()
    seen = await _surveyed(backend)
    # Without a pipeline there is no other part that could be shown.
    asking = _all_sinks(backend, client)
    sinks, trouble = await part_of(backend, asking) if seen.pipelines else (await asking, None)
    return {
        "pipelines": [_facts(backend, item, seen.pipelines) for item in seen.pipelines],
        **(sinks or {"sinks": [], "sinks_left_out": 0, "streams": {"looked_at": 0, "of": 0}}),
        "sinks_trouble": trouble,
    }


@page("/pipelines/one", refresh=3)
async def pipeline(backend: Backend, request: PageRequest) -> Data:
    """One pipeline, `?name=`, or its `?replay=`: its flows as a picture, its batches, its runs, and what went wrong."""
    name, replay = request.query.get("name", ""), request.query.get("replay", "") or None
    await backend.upstream.client()
    seen = await _surveyed(backend)
    found = next((item for item in seen.pipelines if (item.name, item.replay) == (name, replay)), None)
    if found is None:
        what = f"The console knows no pipeline {name[:80]!r}" + (f" with a replay {replay[:80]!r}." if replay else ".")
        raise NotFoundError(what, remedy="Name its folder: penstock console --pipeline DIR.", code=404)
    runs = [_run(found)] if found.begun is not None else []
    runs += [_past(item) for item in reversed(found.runs)]
    hour = {
        flow.name: series(backend, ("flow", found.subject[1], flow.name), "lag")["lag"]
        for flow in found.flows[: backend.settings.rows]
        if flow.streams
    }
    lag, span = await flow_history(backend, request, (name, replay), hour)
    return {
        "pipeline": _facts(backend, found, seen.pipelines),
        "graph": draw_flows(found),
        "charts": [_charts(backend, found, name) for name in _charted(found)],
        "charts_left_out": max(0, len({batch["flow"] for batch in found.batches}) - _CHARTS),
        "lag": lag,
        "span": span,
        "runs": runs[: backend.settings.rows],
        "replays": [
            _facts(backend, item, seen.pipelines) for item in seen.pipelines if item.name == name and item.replay
        ],
    }


# -- a pipeline --------------------------------------------------------------------------------------------------------


def _facts(backend: Backend, state: PipelineSeen, others: Sequence[PipelineSeen]) -> Data:
    """Give what a page says of a pipeline, or of one of its replays."""
    rows = backend.settings.rows
    into = next((item.into for item in others if item.name == state.name and item.replay == state.switched_to), {})
    return {
        "name": state.name,
        "replay": state.replay,
        "page": _page(state),
        "in_use": state.in_use,
        "switched_to": None if state.switched_to is None else {"name": state.switched_to, "into": dict(into)},
        "asked": state.asked,
        "into": dict(state.into),
        "folder": state.folder,
        "storage": state.storage,
        "replays_left_out": state.replays_left_out,
        "note": state.note,
        "run": _run(state) if state.begun is not None else None,
        "ui": _ui(state.ui),
        "flows": [_flow(item) for item in state.flows[:rows]],
        "flows_left_out": max(0, len(state.flows) - rows),
        "failed_flows": sum(1 for item in state.flows if item.failed or item.error),
        "history": [batch["rows"] for batch in state.batches[-_HISTORY:]],
    }


def _page(state: PipelineSeen) -> str:
    return "/pipelines/one?" + urlencode({"name": state.name, **({"replay": state.replay} if state.replay else {})})


def _ui(address: object) -> str | None:
    """Give the address of Spark's pages, if it is one that a page may link to."""
    try:
        parts = urlsplit(str(address))
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return None
    return str(address) if good else None


def _run(state: PipelineSeen) -> Data:
    return {
        "state": state.state,
        "phase": state.phase,
        "updates": state.updates,
        "spark": state.spark,
        "pid": state.pid,
        "failure": state.failure,
        "continuous": state.continuous,
        "begun": _moment(state.begun),
        "time": _moment(state.told),
        "seconds": _between(state.begun, state.told),
        "rows": sum(flow.rows or 0 for flow in state.flows if flow.streams) if state.flows else None,
    }


def _past(run: Mapping[str, Any]) -> Data:
    """Give what is remembered of a run; whatever stands in its file."""
    return {
        "state": str(run.get("state")),
        "phase": None,
        "updates": run.get("updates") if isinstance(run.get("updates"), int) else None,
        "spark": str(run["spark"]) if run.get("spark") else None,
        "pid": None,
        "failure": str(run["failure"]) if run.get("failure") else None,
        "continuous": bool(run.get("continuous")),
        "begun": _moment(run.get("begun")),
        "time": _moment(run.get("time")),
        "seconds": _between(run.get("begun"), run.get("time")),
        "rows": run.get("rows") if isinstance(run.get("rows"), int) else None,
    }


def _between(begun: Any, ended: Any) -> float | None:
    known = isinstance(begun, int | float) and isinstance(ended, int | float)
    return max(0.0, ended - begun) if known else None


def _flow(flow: FlowSeen) -> Data:
    return {
        "flow": flow.name,
        "target": flow.target,
        "status": flow.status,
        "error": flow.error,
        "batches": flow.batches,
        "complete": flow.complete,
        "rows_in": flow.rows,
        "rows_out": flow.rows_out,
        "rate": flow.rate,
        "batch_seconds": flow.batch_seconds,
        "state_rows": flow.state_rows,
        "state_bytes": flow.state_bytes,
        "lag": flow.lag,
        "streams": [
            {
                "name": name,
                "next": following,
                "latest": flow.latest.get(name),
                "gone": name in flow.latest and flow.latest[name] is None,
            }
            for name, following in flow.streams.items()
        ],
        "tables": list(flow.tables),
        "writes": list(flow.writes),
    }


def _moment(seconds: Any) -> str | None:
    try:
        return None if seconds is None else iso(datetime.fromtimestamp(seconds, UTC))
    except (TypeError, ValueError, OverflowError, OSError):
        return None


# -- its batches -------------------------------------------------------------------------------------------------------


def _charted(state: PipelineSeen) -> list[str]:
    """Name the flows whose batches are drawn: those of the newest ones, in the order of the pipeline."""
    recent = list(dict.fromkeys(batch["flow"] for batch in reversed(state.batches)))[:_CHARTS]
    return [flow.name for flow in state.flows if flow.name in recent]


def _charts(backend: Backend, state: PipelineSeen, name: str) -> Data:
    """Give the batches of a flow as lines: how long by phase, how many rows, how large the state, how much waits."""
    batches = [batch for batch in state.batches if batch["flow"] == name]
    took = [(batch["at"], batch.get("phases") or {}) for batch in batches]
    spent: defaultdict[str, float] = defaultdict(float)
    for _, each in took:
        for phase, seconds in each.items():
            spent[str(phase)] += seconds
    shown = sorted(spent, key=lambda phase: -spent[phase])[:_PHASES]
    phases = {phase: [(at, each.get(phase, 0.0)) for at, each in took] for phase in shown}
    if rest := set(spent) - set(shown):
        phases["other phases"] = [(at, sum(each.get(phase, 0.0) for phase in rest)) for at, each in took]
    return {
        "flow": name,
        "batches": len(batches),
        "newest": {key: batches[-1].get(key) for key in ("number", "rows", "seconds")},
        "time": _moment(batches[-1]["at"]),
        "phases": phases or {"batch": [(batch["at"], batch["seconds"]) for batch in batches]},
        "rows": [(batch["at"], batch["rows"]) for batch in batches],
        "state_bytes": [(batch["at"], batch.get("state_bytes") or 0) for batch in batches],
        "has_state": any(batch.get("state_bytes") for batch in batches),
    }


# -- exactly-once queries ----------------------------------------------------------------------------------------------


async def _all_sinks(backend: Backend, client: Connection) -> Data:
    """Read where every exactly-once query is, by what it keeps in streams."""
    streams, _ = await all_streams(backend, client)
    kept = [item for item in streams if item.markers]
    kept.sort(key=lambda item: iso(item.last_time) or "", reverse=True)
    answers = await all_of(kept[:_STREAMS], lambda item: _sinks(client, item.name))
    sinks = [sink for sinks, _ in answers for sink in sinks]
    sinks.sort(key=lambda sink: sink["time"] or "", reverse=True)
    return {
        "sinks": sinks[: backend.settings.rows],
        "sinks_left_out": max(0, sum(count for _, count in answers) - min(len(sinks), backend.settings.rows)),
        "streams": {"looked_at": len(streams) - max(0, len(kept) - _STREAMS), "of": len(streams)},
    }


async def _sinks(client: Connection, stream: str) -> tuple[list[Data], int]:
    """Read the heads in a stream: where each exactly-once query is that writes to it, and how many there are."""
    pattern = marker_filter(stream).removesuffix(">") + "*.head"
    answer = await if_there(api_request(client, f"STREAM.INFO.{stream}", {"subjects_filter": pattern}))
    if answer is None:
        return [], 0
    subjects = sorted(held_subjects(answer))
    heads = await all_of(subjects[:_HEADS], lambda subject: _head(client, stream, subject))
    return [head for head in heads if head], len(subjects)


async def _head(client: Connection, stream: str, subject: str) -> Data | None:
    query = subject.removeprefix(f"{MARKER_ROOT}.{stream}.").removesuffix(".head")
    told: Data = {"stream": stream, "query": query, "batch": None, "retries": 0, "time": None}
    try:
        found = await assets.get_message(client, stream, last_for=subject)
        head = Head.read(found.data, found.sequence or 0)
    except NotFoundError:
        return None  # replaced or removed a moment ago
    except RemoteProtocolError as error:
        return {**told, "state": error.what}
    return {**told, "batch": head.batch, "state": head.state, "retries": len(head.past), "time": iso(found.time)}
