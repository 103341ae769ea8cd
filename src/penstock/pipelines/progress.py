"""What a run leaves in the pipeline's storage about itself, while it goes on and afterwards: `progress.json`.

Whoever looks from outside, such as the console, reads it there. It is replaced as a whole, at most once a second, so
that a reader never sees half of it. A run that was killed leaves its last word; whether its process still lives is told
by the process id and the moment at which that process began. If the storage is on other machines, the file is in the
state folder of this user.

A run that begins puts what is left of the one before it to the others in `runs.json`: when each began and ended, how,
and how many rows it read. So a run that was killed is known, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from penstock.errors import InputError
from penstock.json_text import load_json
from penstock.local_server import state_home
from penstock.options import ConnectionOptions
from penstock.pipelines.files import write_whole
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.project import Project

__all__ = [
    "NAME",
    "RUNS",
    "STOP",
    "ProgressFile",
    "process_facts",
    "progress_folder",
    "read_progress",
    "read_runs",
    "was_asked",
]

NAME = "progress.json"
RUNS = "runs.json"
STOP = "stop.json"
"""The file that asks a run to stop; `stopping` writes it."""
VERSION = 1
_EVERY = 1.0
_BATCHES = 100  # of the newest ones
_RUNS = 50  # that are remembered
_FAILURE = 2000  # letters of a failure that are remembered
_MOST = 4 * 2**20  # bytes of a file that is read back

log = logging.getLogger("penstock.pipelines")


class ProgressFile:
    """Writes the progress of one run."""

    def __init__(self, folder: Path, options: ConnectionOptions, pid: int, *, continuous: bool) -> None:
        self._path: Path | None = folder / NAME
        self._options = options
        self._about = {"pid": pid, "since": _since(pid), "begun": time.time(), "continuous": continuous}
        self._last = 0.0
        self._said = ""
        _remember(folder)

    @classmethod
    def of(cls, project: Project, options: ConnectionOptions, pid: int, *, continuous: bool) -> Self:
        """Make the one of a run of a project."""
        folder = progress_folder(project)
        if project.local_storage is None:
            with contextlib.suppress(OSError):  # the first write says what is wrong
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(folder, options, pid, continuous=continuous)

    def write(self, outcome: Outcome, *, over: bool = False) -> None:
        """Write how far the run is: when something changed in kind, at its end, or when a second has passed."""
        now = time.monotonic()
        if self._path is None or (not over and outcome.phase == self._said and now - self._last < _EVERY):
            return
        self._last, self._said = now, outcome.phase
        content = {
            "v": VERSION,
            **self._about,
            "time": time.time(),
            "state": _state(outcome, over),
            "phase": outcome.doing,
            "failure": self._options.scrub(outcome.failure) if outcome.failure else None,
            "spark": outcome.spark,
            "ui": outcome.ui,
            "rows": outcome.rows_in if outcome.counted else None,
            "updates": outcome.updates,
            "flows": [flow.plain(outcome.counted) for flow in outcome.flows.values()],
            "batches": [asdict(batch) for batch in list(outcome.history)[-_BATCHES:]],
        }
        beside = self._path.with_name(f"{NAME}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(content))
            beside.replace(self._path)
        except OSError as error:
            # The pipeline goes on: whoever looks from outside sees the moment at which it was written last.
            log.warning("The progress cannot be written to %s: %s.", self._path, error.strerror)
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            self._path = None


def _state(outcome: Outcome, over: bool) -> str:
    """Give the state of a run as its file tells it; whoever reads that adds "cut off"."""
    if not over:
        return "running"
    return "failed" if outcome.failure else "done" if outcome.ended else "stopped"


def progress_folder(project: Project) -> Path:
    """Give the folder in which runs from this machine leave their progress."""
    if project.local_storage is not None:
        return project.local_storage
    # The name of a storage is a URI, which is not a name of a folder.
    key = hashlib.sha256(project.storage.rstrip("/").encode()).hexdigest()[:16]
    home = state_home()
    if home is None:  # a user without a home
        return project.folder / ".penstock" / key
    return home / "penstock" / "pipelines" / key


def read_progress(folder: Path) -> dict[str, Any] | None:
    """Read what the newest run left; None if there is nothing to read. `state` says whether it still runs."""
    try:
        with (folder / NAME).open("rb") as file:
            content = load_json(file.read(_MOST))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("v") != VERSION:
        return None
    since = content.get("since")
    if content.get("state") == "running" and (since is None or _since(content.get("pid")) != since):
        content["state"] = "cut off"
    return content


def was_asked(folder: Path) -> bool:
    """Tell whether the run whose progress is in this folder was asked to stop; the request is taken away."""
    path = folder / STOP
    try:
        asked = load_json(path.read_bytes()[:4096])
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        asked = None
    with contextlib.suppress(OSError):
        path.unlink()
    told = read_progress(folder) or {}
    return isinstance(asked, dict) and (asked.get("pid"), asked.get("since")) == (told.get("pid"), told.get("since"))


def _remember(folder: Path) -> None:
    """Put the run that is over to those before it; what cannot be kept is left out, as the run itself matters more."""
    before = read_progress(folder)
    if before is None or not isinstance(before.get("begun"), int | float):
        return
    facts = ("begun", "time", "state", "spark", "updates", "continuous", "rows")
    over = {name: before.get(name) for name in facts} | {"failure": (before.get("failure") or "")[:_FAILURE] or None}
    runs = [item for item in read_runs(folder) if item.get("begun") != over["begun"]]
    with contextlib.suppress(InputError):
        write_whole(folder / RUNS, {"v": VERSION, "runs": [*runs, over][-_RUNS:]})


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Read what is remembered of the runs before the newest one, the oldest first."""
    try:
        with (folder / RUNS).open("rb") as file:
            content = load_json(file.read(_MOST))
        runs = content["runs"] if content["v"] == VERSION else []
        return [item for item in runs if isinstance(item, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def process_facts(pid: object) -> list[str]:
    """Give what the kernel tells of a process that lives, from its state on; nothing of one that is gone or dead."""
    try:
        # The name of a program may hold spaces: what counts stands behind its bracket.
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if facts[0] in "ZX" else facts


def _since(pid: object) -> str | None:
    """Give the moment at which a process began, as the kernel counts it; a number of its own is used again one day."""
    facts = process_facts(pid)
    return facts[19] if facts else None
