"""The page of what runs found: each command has one row, and each row a commit that is there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tools.reliability_page import PAGE, commit, with_run

ROOT = Path(__file__).resolve().parents[2]
REWRITTEN = {"de612c0b"}  # measured at a commit that was written anew before it was merged; goes with its row


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Ask git about the repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_a_run_writes_its_row_into_the_page():
    """A command has one row, that of its last run."""
    page = "## What the runs found\n\n| command |\n|---|\n\nMore.\n\n## Faults by kind\n\nnone\n\n"
    run = {
        "command": "make faults SEED=1",
        "commit": "1234abcd+",
        "rounds": 2,
        "faults": {"kill": 3},
        "operations": {"ok": 1000},
    }
    run |= {"told": {}, "findings": [], "skipped": {"clock jump": "no"}}
    text = with_run(with_run(page, run), {**run, "rounds": 3})
    assert text.count("`make faults SEED=1`") == 2
    assert "| `make faults SEED=1` | 1234abcd+ | 3 | 3 | 1,000, 0, 0 | none | 0 |" in text


def test_a_run_names_the_commit_it_ran_at(tmp_path: Path):
    """It is the short name of it; a + says that something was changed or added since; outside it is not known."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def git(*words: str) -> str:
        who = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert commit(tmp_path) == "–"
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    page = tmp_path / PAGE
    page.parent.mkdir(parents=True)
    page.touch()  # a run before this one wrote its row
    assert commit(tmp_path) == git("rev-parse", "--short", "HEAD")
    (tmp_path / "new").touch()
    assert commit(tmp_path) == git("rev-parse", "--short", "HEAD") + "+"


def test_each_commit_of_the_page_is_one() -> None:
    """A row can be checked: its commit is in the history, unless only a part of that is here, or it is a copy."""
    page = (ROOT / PAGE).read_text()
    named = re.findall(r"^\| `make faults[^`]*` \| (\S+) \|", page, re.MULTILINE)
    assert named
    assert all(re.fullmatch(r"[0-9a-f]{7,40}\+?", one) for one in named), named
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == "false":
        wanted = {one.rstrip("+") for one in named} - REWRITTEN
        assert not [one for one in wanted if git("cat-file", "-e", f"{one}^{{commit}}").returncode]
