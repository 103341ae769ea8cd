"""A pipeline that does not run, or runs elsewhere: how far it is, how much waits, and how to forget it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import InputError
from penstock.model import format_time
from penstock.options import ConnectionOptions
from penstock.pipelines.checkpoints import FlowState, read_flows
from penstock.pipelines.process import is_running
from penstock.pipelines.progress import NAME as PROGRESS
from penstock.pipelines.progress import progress_folder, read_progress
from penstock.pipelines.project import Project
from penstock.pipelines.remote import stream_infos
from penstock.pipelines.replays import KeptReplay, current_replay, place

__all__ = ["PipelineState", "pipeline_state", "reset_pipeline", "state_paths"]


@dataclass(frozen=True)
class PipelineState:
    """How far every flow of a pipeline is."""

    name: str
    running: bool
    flows: tuple[FlowState, ...]
    latest: Mapping[str, int | None]
    """For each stream, the next sequence that it will give out; None where it is gone."""
    replay: KeptReplay | None = None
    """The replay that it was switched to."""
    told: datetime | None = None
    """When the newest run from here told this; None where the checkpoints did."""

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
    """Read the checkpoints, or what the newest run told where they are elsewhere; ask NATS how far the streams are."""
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
    return PipelineState(project.name, running, flows, latest, kept, told)


def _told(progress: Mapping[str, Any]) -> Iterator[FlowState]:
    """Give the flows that the newest run had something to do for; what it has planned, nobody told."""
    newest = {batch["flow"]: batch["number"] for batch in progress["batches"]}
    for flow in progress["flows"]:
        if flow["batches"]:
            yield FlowState(None, flow["name"], None, newest.get(flow["name"]), flow["streams"], flow["state_bytes"])


def state_paths(project: Project) -> list[Path]:
    """Give what a reset deletes, as far as it is there: of the replay, where the pipeline was switched to one."""
    project = place(project)
    if project.local_storage is None:
        what = f"The storage of {project.name} is {project.storage}, which is not on this machine."
        raise InputError(what, remedy="Look at it with the tools of that storage.")
    paths = [project.local_storage / name for name in ("_checkpoints", "catalog", "derby.log", "spark.log", PROGRESS)]
    if project.warehouse is not None:
        paths.append(project.warehouse)
    return [path for path in paths if path.exists()]


def reset_pipeline(project: Project) -> None:
    """Delete checkpoints, catalog and tables; refused while the pipeline runs."""
    if is_running(place(project)):
        raise InputError(f"The pipeline {project.name} runs.", remedy="Stop it first.")
    for path in state_paths(project):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
