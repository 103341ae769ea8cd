"""The replays that a pipeline keeps: what each was asked for, and which one the pipeline was switched to.

A replay keeps its state in `replays/NAME` under the storage of the pipeline, with what it was asked for in
`replay.json`. Switching writes the name into `switched.json`; from then on a run goes on where that replay was, into
the streams that the replay filled. Switching back removes the file: the pipeline's own state was never touched.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.errors import InputError
from penstock.json_text import load_json
from penstock.model import format_time
from penstock.pipelines.files import write_whole
from penstock.pipelines.process import is_running
from penstock.pipelines.project import Project, names_catalog
from penstock.spark.pipeline_replay import PipelineReplay
from penstock.spark.positions import parse_position

__all__ = [
    "NAME",
    "SWITCH",
    "KeptReplay",
    "begun_replay",
    "beside",
    "check_can_switch",
    "current_replay",
    "database",
    "keep_replay",
    "other_replays",
    "place",
    "read_replay",
    "switch",
    "switch_back",
    "switched_to",
]

SWITCH = "switched.json"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class KeptReplay:
    """What a replay was asked for."""

    name: str
    asked: str
    """Where to begin, as it was said."""
    start: str
    """Where its sources begin; if a duration ago was asked for, the time that this was at the beginning."""
    into: Mapping[str, str]
    """For each stream that the files name, the one that is written to instead."""
    backfill: Mapping[str, str] = field(default_factory=dict)
    """For each stream whose source begins in a backup or an archive, where that is."""

    def settings(self, *, switched: bool = False) -> str:
        """Give what the pipeline's files, sources and sinks are told."""
        # A run that is switched to comes after one to the end of what was there: it is behind the backup.
        return PipelineReplay(self.start, self.into, switched, {} if switched else self.backfill).to_json()


def beside(project: Project, name: str) -> Project:
    """Give the project with its state where the replay of that name keeps it."""
    local = project.local_storage
    if local is None:
        return project.at(f"{project.storage.rstrip('/')}/replays/{name}")
    # A warehouse that the spec names would be shared with the pipeline itself.
    return project.at(local / "replays" / name).with_warehouse(local / "replays" / name / "warehouse")


def database(project: Project, name: str, remote: str | None, conf: Mapping[str, str] | None = None) -> str | None:
    """Give the database for the tables of a replay, if it shares a catalog with the pipeline; None if not."""
    settings = {**project.configuration, **(conf or {})}
    if remote is None and project.local_storage is not None and not names_catalog(project.catalog, settings):
        return None
    return re.sub(r"\W", "_", f"{project.database or 'default'}_replay_{name}").lower()


def begun_replay(
    project: Project, name: str, asked: str, into: Mapping[str, str], backfill: Mapping[str, str] | None = None
) -> KeptReplay | None:
    """Give the replay to go on with, None for a new one; refused if it was begun otherwise, as its state was, too."""
    before, places = read_replay(project, name), dict(backfill or {})
    if before is not None and (before.asked, dict(before.into), dict(before.backfill)) != (asked, dict(into), places):
        pairs = ", ".join(f"{old}={new}" for old, new in before.into.items()) or "no stream"
        backups = "".join(f", with the backup {place}" for place in before.backfill.values())
        what = f"The replay {name} was begun from {before.asked} into {pairs}{backups}."
        raise InputError(what, remedy="Say the same again to go on with it, or give this one another name.")
    return before


def keep_replay(
    project: Project, name: str, asked: str, into: Mapping[str, str], backfill: Mapping[str, str] | None = None
) -> KeptReplay:
    """Note what a replay is asked for, once; `begun_replay` says what is refused."""
    before = begun_replay(project, name, asked, into, backfill)
    if before is not None:
        return before
    state = beside(project, name).local_storage
    if state is not None and (state / "_checkpoints").exists():
        what = f"There is a state of a replay {name} in {state}, and nothing says what it was begun with."
        raise InputError(what, remedy="Delete that folder, or give this replay another name.")
    position = parse_position(asked, option="from")
    # All sources begin at the same moment, however long Spark takes to come to them.
    start = asked if position.ago is None else format_time(datetime.now(UTC) - timedelta(seconds=position.ago))
    kept = KeptReplay(name, asked, start, dict(into), dict(backfill or {}))
    if project.local_storage is not None:  # elsewhere Spark keeps its checkpoints, and we keep nothing
        noted = {key: value for key, value in asdict(kept).items() if key != "backfill" or value}
        write_whole(project.local_storage / "replays" / name / "replay.json", noted)
    return kept


def read_replay(project: Project, name: str) -> KeptReplay | None:
    """Give what the replay of that name was asked for; None if there is none."""
    local = project.local_storage
    path = local / "replays" / name / "replay.json" if local is not None else None
    found = _read(path) if path is not None else None
    if found is None:
        return None
    into, backfill = found.get("into"), found.get("backfill", {})
    texts = [found.get(key) for key in ("name", "asked", "start")]
    pairs = [*into.values(), *backfill.values()] if isinstance(into, dict) and isinstance(backfill, dict) else [None]
    if all(isinstance(text, str) for text in (*texts, *pairs)):
        with contextlib.suppress(TypeError):
            return KeptReplay(**found)
    raise InputError(f"{path} is not what a replay writes.", remedy="Give the replay another name.")


def current_replay(project: Project) -> KeptReplay | None:
    """Give the replay that the pipeline was switched to; None if it is in its own state."""
    local = project.local_storage
    switched = _read_switch(local) if local is not None else None
    if switched is None:
        return None
    name = str(switched.get("name", "without a name"))
    kept = read_replay(project, name)
    if kept is None:
        what = f"The pipeline {project.name} was switched to its replay {name}, which is gone."
        raise InputError(what, remedy="Switch back: penstock pipeline switch --back.")
    return kept


def place(project: Project) -> Project:
    """Give the project with its state where it is now: its own, or that of the replay that it was switched to."""
    kept = current_replay(project)
    return project if kept is None else beside(project, kept.name)


def check_can_switch(project: Project) -> Path:
    """Refuse if a switch would be lost, or would pull the state away under a run."""
    local = project.local_storage
    if local is None:
        raise InputError(
            f"The storage of {project.name} is {project.storage}, where no switch can be noted.",
            remedy="Keep the storage in a folder, or write the new streams into the pipeline's files.",
        )
    for there in (project, *(beside(project, name) for name in switched_to(local))):
        if is_running(there):
            raise InputError(f"The pipeline {project.name} runs.", remedy="Stop it first.")
    return local


def switch(project: Project, name: str) -> KeptReplay:
    """Let the next run go on in the state of a replay, and into its streams."""
    local = check_can_switch(project)
    kept = read_replay(project, name)
    if kept is None:
        known = sorted(path.parent.name for path in local.glob("replays/*/replay.json"))
        raise InputError(
            f"The pipeline {project.name} has no replay {name}.",
            remedy=f"There is {', '.join(known)}." if known else "Make one: penstock pipeline replay.",
        )
    if is_running(beside(project, name)):
        raise InputError(f"The replay {name} runs.", remedy="Wait for it, or stop it.")
    write_whole(local / SWITCH, {"name": name})
    return kept


def switch_back(project: Project) -> None:
    """Let the next run go on in the pipeline's own state, and into its own streams."""
    local = project.local_storage
    if local is None or not (local / SWITCH).exists():
        raise InputError(f"The pipeline {project.name} is not switched.", remedy="There is nothing to do.")
    if any(is_running(beside(project, name)) for name in switched_to(local)):
        raise InputError(f"The pipeline {project.name} runs.", remedy="Stop it first.")
    (local / SWITCH).unlink()


def other_replays(project: Project, name: str) -> Iterator[KeptReplay]:
    """Give the other replays of a pipeline, as far as they can be read."""
    local = project.local_storage
    for path in sorted(local.glob("replays/*/replay.json")) if local is not None else ():
        if path.parent.name != name:
            with contextlib.suppress(InputError):
                if (kept := read_replay(project, path.parent.name)) is not None:
                    yield kept


def switched_to(local: Path) -> list[str]:
    """Give the name of the replay that is switched to; one whose file is broken has none, and can be switched anew."""
    with contextlib.suppress(InputError):
        if (found := _read(local / SWITCH)) is not None and _is_name(found.get("name")):
            return [str(found["name"])]
    return []


def _is_name(name: object) -> bool:
    """Whether this is the name of a replay, which becomes that of a folder."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def _read_switch(local: Path) -> dict[str, Any] | None:
    try:
        return _read(local / SWITCH)
    except InputError as error:
        raise InputError(
            error.what, remedy="Say it again: penstock pipeline switch --to NAME, or --back for the pipeline's own."
        ) from None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = load_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.", remedy="Delete it.") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no fields.", remedy="Delete it.")
    return found
