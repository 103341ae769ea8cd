"""Writes what runs of `make fuzz` and `make asan` found into docs/why/hostile-input.md, a row for each command."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "add_run", "commit", "with_run"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "why" / "hostile-input.md"
HEAD = ("| command | commit | targets | tries | lines reached | findings |", "|---|---|---|---|---|---|")
_TABLE = re.compile(r"(?<=## What the runs found\n\n)\|.*?(?=\n\n|\n\Z)", re.DOTALL)


def row(run: dict[str, Any]) -> str:
    """Give the row of one run."""
    figures = " | ".join(f"{run[name]:,}" for name in ("targets", "tries", "lines", "findings"))
    return f"| `{run['command']}` | {run['commit']} | {figures} |"


def with_run(text: str, run: dict[str, Any]) -> str:
    """Give the page with a run in it, in the place of an earlier one of the same command."""
    found = _TABLE.search(text)
    if found is None:
        raise ValueError("the page has no table below `What the runs found`")
    lines = [line for line in found[0].splitlines()[2:] if not line.startswith(f"| `{run['command']}` |")]
    return _TABLE.sub(lambda _: "\n".join([*HEAD, *sorted([*lines, row(run)])]), text)


def commit() -> str:
    """Name the commit that runs, with a plus if something was changed since."""
    asked = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=10"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() or "unknown"


def add_run(run: dict[str, Any]) -> None:
    """Write a run into the page."""
    PAGE.write_text(with_run(PAGE.read_text(), run))
