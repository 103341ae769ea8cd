"""A run is asked to stop by a file that names it, and by no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.errors import DeadlineError, InputError
from penstock.options import ConnectionOptions
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.progress import STOP, ProgressFile, was_asked
from penstock.pipelines.project import Project
from penstock.pipelines.stopping import ask_to_stop, running_project, wait_until_stopped


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "storage").mkdir()
    return Project(tmp_path / "spark-pipeline.yaml", "sensors", f"file://{tmp_path}/storage")


def test_a_run_that_is_asked_learns_it_once(project: Project, tmp_path: Path):
    """The request names the run of now; it is read once, and the state tells when the run has ended."""
    storage = tmp_path / "storage"
    told = ProgressFile(storage, ConnectionOptions(), os.getpid(), continuous=True)
    told.write(Outcome())
    assert not was_asked(storage)
    assert running_project(project) == project
    assert ask_to_stop(project) == os.getpid()
    with pytest.raises(DeadlineError, match="still runs"):
        wait_until_stopped(project, 0.0)
    assert was_asked(storage)
    assert not was_asked(storage)
    told.write(Outcome(), over=True)
    assert wait_until_stopped(project, 5.0) == "stopped"


def test_nothing_that_runs_is_told(project: Project, tmp_path: Path):
    """No run, a run that is over, and one that was killed cannot be asked; nothing is left behind."""
    storage = tmp_path / "storage"
    with pytest.raises(InputError, match="does not run"):
        ask_to_stop(project)
    told = ProgressFile(storage, ConnectionOptions(), os.getpid(), continuous=True)
    told.write(Outcome(), over=True)
    with pytest.raises(InputError, match="does not run"):
        ask_to_stop(project)
    dead = ProgressFile(storage, ConnectionOptions(), 2**22 + 1, continuous=True)
    dead.write(Outcome(), over=False)
    with pytest.raises(InputError, match="does not run"):
        ask_to_stop(project)
    assert not (storage / STOP).exists()


def test_a_request_for_another_run_is_removed_and_not_obeyed(tmp_path: Path):
    """What is left of an earlier run, or is nonsense, stops nobody."""
    told = ProgressFile(tmp_path, ConnectionOptions(), os.getpid(), continuous=True)
    told.write(Outcome())
    for content in (json.dumps({"pid": os.getpid(), "since": "1"}), json.dumps({"pid": 1}), "[]", "{", "\xff"):
        (tmp_path / STOP).write_text(content)
        assert not was_asked(tmp_path)
        assert not (tmp_path / STOP).exists()
