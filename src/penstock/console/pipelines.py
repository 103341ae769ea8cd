"""Pipelines: what their runs leave, what their checkpoints say, and what the Spark sink keeps in streams.

Three things can be read without asking Spark: `progress.json`, which a run of `penstock pipeline run` keeps fresh, also
where Spark and the storage are on other machines; the checkpoints, which tell for every flow the next sequence of each
stream; and the heads that every exactly-once query, of a pipeline or not, keeps in the stream that it writes to.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connection import Connection, api_request
from penstock.console.backend import Backend, Data, PageRequest, all_of, if_there, iso, page, stream_page
from penstock.errors import InputError, NotFoundError, RemoteProtocolError
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.spark.markers import MARKER_ROOT, Head, is_marker, marker_filter

if TYPE_CHECKING:
    from penstock.pipelines.project import Project

__all__ = ["pipelines"]

_REPLAYS = 20  # of a pipeline that are shown
_HISTORY = 60  # batches that are drawn
_HEADS = 100  # of a stream that are read


@page("/pipelines", refresh=3, menu=True)
async def pipelines(backend: Backend, request: PageRequest) -> Data:
    """Runs and flows of pipelines with their lag, and where each exactly-once query is."""
    client = await backend.upstream.client()
    loop = asyncio.get_running_loop()
    shown = [
        item
        for project in backend.projects
        for item in await loop.run_in_executor(backend.disk, _look, backend, project)
    ]
    names = {stream for item in shown for flow in item["flows"] for stream in flow["streams"]}
    latest = dict(zip(names, await all_of(names, lambda name: _latest(client, name)), strict=True))
    for item in shown:
        for flow in item["flows"]:
            made = flow.pop("created")
            newest = {name: _newest(made.get(name), latest.get(name)) for name in flow["streams"]}
            flow["lag"] = _lag(flow["streams"], newest)
            flow["streams"] = [
                {"name": name, "next": following, "latest": newest[name]} for name, following in flow["streams"].items()
            ]
    found, total = await stream_page(client)
    kept = [info for info in found if any(is_marker(subject) for subject in info.config.subjects)]
    answers = await all_of(kept, lambda info: _sinks(client, info))
    sinks = [sink for sinks, _ in answers for sink in sinks]
    sinks.sort(key=lambda sink: sink["time"] or "", reverse=True)
    return {
        "pipelines": shown,
        "sinks": sinks[: backend.settings.rows],
        "sinks_left_out": max(0, sum(count for _, count in answers) - min(len(sinks), backend.settings.rows)),
        "streams": {"looked_at": len(found), "of": total},
    }


# -- what is on disk ---------------------------------------------------------------------------------------------------


def _look(backend: Backend, project: Project) -> list[Data]:
    """Read a pipeline's storage and those of its replays, in a thread."""
    from penstock.pipelines.replays import current_replay

    storage = project.local_storage
    if storage is None:
        where = f"Its storage is {project.storage}, which is not on this machine: this is what runs from here told."
        return [{**_pipeline(backend, project, None, None), "in_use": True, "note": backend.mask.text(where)}]
    lost, kept = None, None
    try:
        kept = current_replay(project)
    except InputError as error:  # it was switched to a replay that is gone: the next run says so, too
        lost = backend.mask.text(str(error))
    own = _pipeline(backend, project, storage, None)
    if kept is not None:
        own["switched_to"] = {"name": kept.name, "into": dict(kept.into)}
    replays = sorted(path.name for path in (storage / "replays").glob("*") if path.is_dir())
    names = replays[:_REPLAYS]
    if kept is not None and kept.name in replays[_REPLAYS:]:
        names.append(kept.name)
    own["replays_left_out"] = len(replays) - len(names)
    found = [own] + [_pipeline(backend, project, storage / "replays" / name, name) for name in names]
    for item in found:
        item["in_use"] = lost is None and item["replay"] == (kept.name if kept is not None else None)
    own["note"] = lost or own["note"]
    return found


def _pipeline(backend: Backend, project: Project, storage: Path | None, replay: str | None) -> Data:
    """Read what is in a storage; where it is elsewhere, what runs from here left of theirs."""
    from penstock.pipelines.checkpoints import read_flows
    from penstock.pipelines.progress import progress_folder, read_progress

    progress = read_progress(storage or progress_folder(project))
    note = None
    try:
        states = [] if storage is None else read_flows(storage)
    except OSError as error:  # Spark replaces files while we look; the next look is another one
        states, note = [], f"Its checkpoints cannot be read: {error.strerror}."
    live = {flow["name"]: flow for flow in (progress or {}).get("flows", [])}
    flows = [
        {
            "flow": state.flow,
            "target": state.target,
            "batches": 0 if state.done is None else state.done + 1,
            "complete": state.complete,
            "state_bytes": state.state_bytes,
            "streams": state.streams,
            "created": state.created,
            **_live(live.pop(state.flow, {})),
        }
        for state in states
    ]
    for name, flow in live.items():
        known = {key: flow[key] for key in ("batches", "state_bytes", "streams")}
        known["created"] = flow.get("created", {})
        flows.append({"flow": name, "target": None, "complete": None, **known, **_live(flow)})
    return {
        "name": project.name,
        "replay": replay,
        "switched_to": None,
        "folder": str(project.folder),
        "storage": backend.mask.text(project.storage) if storage is None else str(storage),
        "replays_left_out": 0,
        "note": note,
        "run": _run(backend, progress),
        "flows": flows[: backend.settings.rows],
        "flows_left_out": max(0, len(flows) - backend.settings.rows),
        "history": [batch["rows"] for batch in (progress or {}).get("batches", [])[-_HISTORY:]],
    }


def _live(flow: dict[str, Any]) -> Data:
    """Give what the newest run says of a flow."""
    status = str(flow["status"]).lower() if flow.get("status") else None
    if not flow.get("batches"):  # it had nothing to do in this run, and every figure would be a zero
        flow = {}
    figures = ("rows_in", "rows_out", "rate", "batch_seconds", "state_rows")
    return {"status": status, **{name: flow.get(name) for name in figures}}


def _run(backend: Backend, progress: dict[str, Any] | None) -> Data | None:
    if progress is None:
        return None
    return {
        "state": progress["state"],
        **{name: progress.get(name) for name in ("phase", "updates", "spark", "pid")},
        "failure": backend.mask.text(progress["failure"]) if progress.get("failure") else None,
        "continuous": bool(progress.get("continuous")),
        "begun": _moment(progress.get("begun")),
        "time": _moment(progress.get("time")),
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else iso(datetime.fromtimestamp(seconds, UTC))


# -- what is in NATS ---------------------------------------------------------------------------------------------------


async def _latest(client: Connection, name: str) -> tuple[str, int] | None:
    """Give when a stream was made, and the next sequence that it will give out."""
    found = await if_there(api_request(client, f"STREAM.INFO.{name}"))
    return (str(found["created"]), int(found["state"]["last_seq"]) + 1) if found else None


def _newest(made: str | None, found: tuple[str, int] | None) -> int | None:
    """Give the next sequence of the stream that a flow reads; None where it is gone, or another one is there."""
    return None if found is None or (made is not None and made != found[0]) else found[1]


def _lag(streams: dict[str, int], latest: dict[str, int | None]) -> int | None:
    known = [
        max(0, newest - following) for name, following in streams.items() if (newest := latest.get(name)) is not None
    ]
    return sum(known) if known else None


async def _sinks(client: Connection, info: StreamInfo) -> tuple[list[Data], int]:
    """Read the heads in a stream: where each exactly-once query is that writes to it, and how many there are."""
    pattern = marker_filter(info.name).removesuffix(">") + "*.head"
    answer = await if_there(api_request(client, f"STREAM.INFO.{info.name}", {"subjects_filter": pattern}))
    if answer is None:
        return [], 0
    subjects = sorted(answer["state"].get("subjects") or {})
    heads = await all_of(subjects[:_HEADS], lambda subject: _head(client, info.name, subject))
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
