"""Asking a run to stop from outside: a file beside its progress names the run, and whoever follows the run reads it.

The run is the process that `progress.json` names, with the moment at which it began. A request that is left over, of a
run that ended by itself, names no later run, and is removed by the next one.
"""

from __future__ import annotations

import time

from penstock.errors import DeadlineError, InputError
from penstock.pipelines.files import write_whole
from penstock.pipelines.process import is_running
from penstock.pipelines.progress import STOP, progress_folder, read_progress
from penstock.pipelines.project import Project
from penstock.pipelines.replays import beside, current_replay

__all__ = ["ask_to_stop", "running_project", "wait_until_stopped"]

_LOOK = 0.2  # seconds between two looks


def running_project(project: Project) -> Project | None:
    """Give the project with the state of the run that is under way: its own, or the replay's that it goes on in."""
    kept = current_replay(project)
    found = project if kept is None else beside(project, kept.name)
    told = read_progress(progress_folder(found))
    return found if told is not None and told.get("state") == "running" else None


def ask_to_stop(project: Project) -> int:
    """Ask the run of a pipeline to end after the update in hand; give its process id. InputError if none runs here."""
    found = running_project(project)
    told = None if found is None else read_progress(progress_folder(found))
    if found is None or told is None or told.get("state") != "running":
        what = f"The pipeline {project.name} does not run, as far as this machine knows."
        raise InputError(what, remedy="A run on another machine is stopped there.")
    write_whole(progress_folder(found) / STOP, {"pid": told["pid"], "since": told["since"]})
    return int(told["pid"])


def wait_until_stopped(project: Project, timeout: float) -> str:
    """Wait until the run of a pipeline has ended; give the state that it ended in."""
    kept = current_replay(project)
    found = project if kept is None else beside(project, kept.name)
    deadline = time.monotonic() + timeout
    while True:
        told = read_progress(progress_folder(found)) or {}
        # Spark's process ends a moment before the run writes its last word; the run holds its lock until then.
        if told.get("state") != "running" and not is_running(found):
            return str(told.get("state", "gone"))
        if time.monotonic() > deadline:
            what = f"The pipeline {project.name} still runs after {timeout:g} s: the update in hand takes longer."
            raise DeadlineError(what, remedy="It ends by itself; `penstock pipeline status` tells.")
        time.sleep(_LOOK)
