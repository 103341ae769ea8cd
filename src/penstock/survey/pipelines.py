"""What a survey sees of pipelines without asking Spark: what runs leave, and what checkpoints say.

`progress.json` is kept fresh by `penstock pipeline run`, also if Spark and the storage are on other machines; the
checkpoints tell for every flow the next sequence of each stream. All of this reads files: it belongs in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError
from penstock.survey.state import FlowSeen, PipelineSeen

if TYPE_CHECKING:
    from penstock.pipelines.checkpoints import FlowState
    from penstock.pipelines.project import Project

__all__ = ["PipelineLook", "look_at", "with_streams"]

_REPLAYS = 20  # of a pipeline that are looked at
_BATCHES = 100

Scrub = Callable[[str], str]


class PipelineLook:
    """A pipeline, and what is needed to complete it with what the streams say."""

    def __init__(self, state: PipelineSeen, created: Mapping[str, Mapping[str, str]], queries: Mapping[str, str]):
        self.state = state
        self.created = created
        """For each flow, when each stream that it reads was made."""
        self.queries = queries
        """For each flow, the id of its streaming query, which names its markers."""


def look_at(project: Project, scrub: Scrub) -> list[PipelineLook]:
    """Read a pipeline's storage and those of its replays."""
    from penstock.pipelines.replays import current_replay, read_replay

    storage = project.local_storage
    if storage is None:
        where = f"Its storage is {project.storage}, which is not on this machine: this is what runs from here told."
        return [_look(project, None, None, scrub, in_use=True, note=scrub(where))]
    lost, kept = None, None
    try:
        kept = current_replay(project)
    except InputError as error:  # it was switched to a replay that is gone: the next run says so, too
        lost = scrub(str(error))
    replays = sorted(path.name for path in (storage / "replays").glob("*") if path.is_dir())
    names = replays[:_REPLAYS]
    current = kept.name if kept is not None else None
    if current in replays[_REPLAYS:]:
        names.append(str(current))
    own = _look(project, storage, None, scrub, in_use=lost is None and current is None, note=lost)
    own.state = replace(own.state, switched_to=current, replays_left_out=len(replays) - len(names))
    others = [
        _look(project, storage / "replays" / name, name, scrub, in_use=lost is None and name == current, note=None)
        for name in names
    ]
    for item in others:
        try:
            begun = read_replay(project, str(item.state.replay))
        except InputError as error:
            item.state = replace(item.state, note=item.state.note or scrub(error.what))
        else:
            if begun is not None:
                item.state = replace(item.state, asked=begun.asked, into=dict(begun.into))
    return [own, *others]


def _look(
    project: Project, storage: Path | None, replay: str | None, scrub: Scrub, *, in_use: bool, note: str | None
) -> PipelineLook:
    """Read what is in a storage; if it is elsewhere, what runs from here left of theirs."""
    from penstock.pipelines.checkpoints import read_flows
    from penstock.pipelines.progress import progress_folder, read_progress, read_runs

    told = storage or progress_folder(project)
    progress = read_progress(told) or {}
    try:
        states = [] if storage is None else read_flows(storage)
    except OSError as error:  # Spark replaces files while we look; the next look is another one
        states, note = [], note or f"Its checkpoints cannot be read: {error.strerror}."
    live = {str(flow["name"]): flow for flow in progress.get("flows", [])}
    flows = [_flow(state.flow, state, live.pop(state.flow, {}), scrub) for state in states]
    flows += [_flow(name, None, flow, scrub) for name, flow in live.items()]
    created = {state.flow: state.created for state in states}
    for flow in progress.get("flows", []):
        created.setdefault(str(flow["name"]), flow.get("created") or {})
    state = str(progress.get("state") or "never run")
    made = PipelineSeen(
        name=project.name,
        replay=replay,
        in_use=in_use,
        looked=time.time(),
        folder=str(project.folder),
        storage=scrub(project.storage) if storage is None else str(storage),
        state="troubled" if state == "running" and any(flow.failed for flow in flows) else state,
        phase=progress.get("phase"),
        failure=scrub(progress["failure"]) if progress.get("failure") else None,
        note=note,
        begun=progress.get("begun"),
        told=progress.get("time"),
        continuous=bool(progress.get("continuous")),
        pid=progress.get("pid"),
        spark=progress.get("spark"),
        updates=progress.get("updates") or 0,
        flows=tuple(flows),
        batches=tuple(progress.get("batches", [])[-_BATCHES:]),
        ui=progress.get("ui") if state == "running" else None,
        runs=tuple(_run(item, scrub) for item in read_runs(told)),
    )
    return PipelineLook(made, created, {item.flow: item.query for item in states if item.query})


def _run(told: Mapping[str, Any], scrub: Scrub) -> Mapping[str, Any]:
    return {**told, "failure": scrub(str(told["failure"])) if told.get("failure") else None}


def _flow(name: str, state: FlowState | None, told: Mapping[str, Any], scrub: Scrub) -> FlowSeen:
    # Without a batch it had nothing to do in this run, and every figure would be a zero.
    figures = told if told.get("batches") else {}
    return FlowSeen(
        name=name,
        target=state.target if state else None,
        status=str(told["status"]).lower() if told.get("status") else None,
        batches=(0 if state.done is None else state.done + 1) if state else told.get("batches") or 0,
        complete=state.complete if state else None,
        rows=figures.get("rows_in"),
        rows_out=figures.get("rows_out"),
        rate=figures.get("rate"),
        batch_seconds=figures.get("batch_seconds"),
        state_rows=figures.get("state_rows"),
        state_bytes=state.state_bytes if state else figures.get("state_bytes") or 0,
        lag=None,
        streams=dict(state.streams if state else told.get("streams") or {}),
        latest={},
        tables=tuple(str(item) for item in told.get("tables") or ()),
        error=scrub(str(told["error"])) if told.get("error") else None,
    )


def with_streams(
    look: PipelineLook, ends: Mapping[str, tuple[str, int]], writers: Mapping[str, str], *, whole: bool
) -> PipelineSeen:
    """Complete a pipeline with what streams say: when each was made and its next sequence, and who writes to which.

    `writers` has for each query with markers the stream that it writes to. `whole`: every stream was looked at, so that
    one which is not in `ends` is gone.
    """
    flows = []
    for flow in look.state.flows:
        made = look.created.get(flow.name, {})
        latest: dict[str, int | None] = {}
        for name in flow.streams:
            found = ends.get(name)
            if found is not None and made.get(name) in (None, found[0]):
                latest[name] = found[1]
            elif found is not None or whole:
                latest[name] = None
        waits = [max(0, end - flow.streams[name]) for name, end in latest.items() if end is not None]
        query = look.queries.get(flow.name)
        written = (writers[query],) if query is not None and query in writers else ()
        flows.append(replace(flow, latest=latest, lag=sum(waits) if waits else None, writes=written))
    return replace(look.state, flows=tuple(flows))
