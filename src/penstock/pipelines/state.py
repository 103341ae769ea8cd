"""A pipeline that does not run, or runs elsewhere: how far it is, how much waits, and how to forget it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import InputError
from penstock.model import format_time
from penstock.options import ConnectionOptions
from penstock.pipelines.agreement import HOME
from penstock.pipelines.checkpoints import FlowState, read_flows
from penstock.pipelines.process import is_running, no_run
from penstock.pipelines.progress import NAME as PROGRESS
from penstock.pipelines.progress import RUNS, progress_folder, read_progress
from penstock.pipelines.project import Project
from penstock.pipelines.remote import stream_infos
from penstock.pipelines.replays import SWITCH, KeptReplay, beside, current_replay, place, switched_to

__all__ = ["PipelineState", "pipeline_state", "reset_pipeline", "state_paths"]


@dataclass(frozen=True)
class PipelineState:
    """How far every flow of a pipeline is."""

    name: str
    running: bool
    flows: tuple[FlowState, ...]
    latest: Mapping[str, int | None]
    """For each stream, the next sequence that it will give out; None if it is gone, or another one is there."""
    replay: KeptReplay | None = None
    """The replay that it was switched to."""
    told: datetime | None = None
    """When the newest run from here told this; None if the checkpoints did."""
    others: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Streams whose name another stream has here: when the one that the flows read was made, and when this one."""

    def rows(self) -> Iterator[tuple[FlowState, str | None, int | None, int | None]]:
        """Give each flow with each stream that it reads, the next sequence, and how many wait."""
        for flow in self.flows:
            if not flow.streams:
                yield flow, None, None, None
            for stream, following in flow.streams.items():
                yield flow, stream, following, self._lag(stream, following)

    def _lag(self, stream: str, following: int) -> int | None:
        newest = self.latest.get(stream)
        return None if newest is None else max(0, newest - following)

    def plain(self) -> dict[str, Any]:
        """Give it as JSON wants it."""
        return {
            "name": self.name,
            "running": self.running,
            "others": sorted(self.others),
            "told": None if self.told is None else format_time(self.told),
            "replay": None if self.replay is None else {"name": self.replay.name, "into": dict(self.replay.into)},
            "flows": [
                {
                    **asdict(flow),
                    "complete": flow.complete if self.told is None else None,
                    "lag": {stream: self._lag(stream, following) for stream, following in flow.streams.items()},
                }
                for flow in self.flows
            ],
        }


def pipeline_state(project: Project, options: ConnectionOptions) -> PipelineState:
    """Read the checkpoints, or what the newest run told if they are elsewhere; ask NATS how far the streams are."""
    kept = current_replay(project)
    here = place(project)
    running, told = is_running(here), None
    flows = () if here.local_storage is None else tuple(read_flows(here.local_storage))
    if not flows:
        progress = read_progress(progress_folder(here))
        if progress is not None:
            flows, told = tuple(_told(progress)), datetime.fromtimestamp(progress["time"], UTC)
            running = running or progress["state"] == "running"
        elif here.local_storage is None:
            raise InputError(
                f"The storage of {project.name} is {project.storage}, which is not on this machine, and no run from "
                "here has told how far it is.",
                remedy="Run it from here, or look where it is run.",
            )
    names = sorted({stream for flow in flows for stream in flow.streams})
    infos = stream_infos(options, names) if names else {}
    latest = {name: None if info is None else int(info["state"]["last_seq"]) + 1 for name, info in infos.items()}
    others = {
        name: (made, str(info["created"]))
        for flow in flows
        for name, made in flow.created.items()
        if (info := infos.get(name)) is not None and info["created"] != made
    }
    return PipelineState(project.name, running, flows, {**latest, **dict.fromkeys(others)}, kept, told, others)


def _told(progress: Mapping[str, Any]) -> Iterator[FlowState]:
    """Give the flows that the newest run had something to do for; what it has planned, nobody told."""
    newest = {batch["flow"]: batch["number"] for batch in progress["batches"]}
    for flow in progress["flows"]:
        if flow["batches"]:
            done, made = newest.get(flow["name"]), flow.get("created", {})
            yield FlowState(None, flow["name"], None, done, flow["streams"], flow["state_bytes"], made)


def state_paths(project: Project) -> list[Path]:
    """Give what a reset deletes, if it is there: the state of the pipeline, the switch, and the replay in use."""
    local = project.local_storage
    if local is None:
        what = f"The storage of {project.name} is {project.storage}, which is not on this machine."
        raise InputError(what, remedy="Look at it with the tools of that storage.")
    names = ("_checkpoints", "catalog", "derby.log", "spark.log", PROGRESS, RUNS, HOME, SWITCH)
    paths = [local / name for name in names]
    if project.warehouse is not None:
        paths.append(project.warehouse)
    paths += [local / "replays" / name for name in switched_to(local)]
    return [path for path in paths if path.exists()]


def reset_pipeline(project: Project) -> None:
    """Delete what `state_paths` gives; refused while the pipeline runs, and none begins meanwhile."""
    paths, local = state_paths(project), project.local_storage
    with contextlib.ExitStack() as held:
        for there in (project, *(beside(project, name) for name in (switched_to(local) if local is not None else ()))):
            held.enter_context(no_run(there))
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
