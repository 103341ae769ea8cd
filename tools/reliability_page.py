"""Writes what runs of `make faults` found into the table of docs/why/reliability.md, a row for each command."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

HEAD = (
    "| command | commit | rounds | faults | operations: acknowledged, refused, in doubt | errors told | findings |",
    "|---|---|---|---|---|---|---|",
)
PAGE = "docs/why/reliability.md"
UNKNOWN = "–"
"""The commit of a run of which nobody knows where it ran."""
_TABLE = re.compile(r"(?<=## What the runs found\n\n).*?(?=\n\n)", re.DOTALL)
_KINDS = re.compile(r"(?<=## Faults by kind\n\n).*?(?=\n\n|\n\Z)", re.DOTALL)


def row(run: dict[str, Any]) -> str:
    """Give the row of one run."""
    done = run["operations"]
    operations = ", ".join(f"{done.get(name, 0):,}" for name in ("ok", "fail", "unknown"))
    told = ", ".join(f"{count} {name}" for name, count in run["told"].items()) or "none"
    findings = str(len(run["findings"]))
    faults = f"{sum(run['faults'].values()):,}"
    return f"| `{run['command']}` | {run['commit']} | {run['rounds']} | {faults} | {operations} | {told} | {findings} |"


def kinds(run: dict[str, Any]) -> str:
    """Give the line that says how often each kind of fault was done in a run."""
    each = ", ".join(f"{kind} {count}" for kind, count in sorted(run["faults"].items()))
    left = "; ".join(f"{kind}: {why}" for kind, why in sorted(run["skipped"].items()))
    return f"- `{run['command']}`: {each}.{f' Not done: {left}.' if left else ''}"


def commit(folder: Path) -> str:
    """Give the commit that a folder is at, with a + if what is there is another; what runs write is not looked at."""

    def ask(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    try:
        return ask("rev-parse", "--short", "HEAD") + (
            "+" if ask("status", "--porcelain", "--", ".", f":!{PAGE}") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN  # a copy without its repository


def with_run(text: str, run: dict[str, Any]) -> str:
    """Give the page with a run in it, in the place of an earlier one of the same command."""
    command = f"`{run['command']}`"
    lines = [line for line in _match(_TABLE, text).splitlines() if line.startswith("| `") and command not in line]
    text = _TABLE.sub(lambda _: "\n".join([*HEAD, *sorted([*lines, row(run)])]), text)
    lines = [line for line in _match(_KINDS, text).splitlines() if line.startswith("- `") and command not in line]
    return _KINDS.sub(lambda _: "\n".join(sorted([*lines, kinds(run)])), text)


def _match(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    if found is None:
        raise ValueError(f"the page has no place for {pattern.pattern[:40]}")
    return found.group()


def add_run(path: Path, run: dict[str, Any]) -> None:
    """Write a run into the page."""
    path.write_text(with_run(path.read_text(), run))
