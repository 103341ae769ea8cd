"""The sentence that a person needs, found in what Spark and Python say when something fails. Pure: text in, text out.

Spark wraps an error again and again, and its first line is often the head of a Python traceback. What counts, in this
order: a sentence of ours; the last line of a traceback, which says what was raised; the first line, without what Spark
puts before and behind it.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from penstock.errors import PenstockError

__all__ = ["cause", "not_started", "reason"]

_OURS = "penstock.errors."
_TRACEBACK = "Traceback (most recent call last):"
_WRAPPED = re.compile(r"^(?:\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: )+")
_BEHIND = re.compile(r"\s*SQLSTATE: \w+[;.]?\s*$")
_MOST = 2_000  # characters of a sentence; Spark quotes whole plans
# What Spark says before it gives up to start, and a Java that does not come up.
_START = re.compile(r'^(?:Exception in thread "main" [\w.$]+: |Error: |Error occurred during |Unrecognized )(.*)', re.M)


def cause(text: str) -> str:
    """Find the sentence in what Spark says of a failure; empty if it says nothing."""
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith(_OURS)]
    found = next(iter(ours), None) or _raised(lines) or next(iter(lines), "")
    return _BEHIND.sub("", _WRAPPED.sub("", found.strip())).strip()[:_MOST]


def _raised(lines: list[str]) -> str | None:
    """Give the line that ends the last traceback: what was raised, with its type."""
    raised, inside = None, False
    for line in lines:
        if line.rstrip().endswith(_TRACEBACK):
            inside = True
        elif inside and not line[0].isspace():
            raised, inside = line, False
    return raised


def reason(error: BaseException, folder: Path | None = None) -> str:
    """Find the sentence in an error; one that a file of the pipeline raised is told with its type, file and line."""
    if isinstance(error, PenstockError):
        return str(error)
    frames = [] if folder is None else traceback.extract_tb(error.__traceback__)
    if place := next((frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(folder or "/")), None):
        said = f"{type(error).__name__}: {cause(str(error))}".removesuffix(": ").rstrip(".")
        return f"{said} ({Path(place.filename).relative_to(folder or '/')}, line {place.lineno})"
    return cause(str(error)) or type(error).__name__


def not_started(log: str) -> str | None:
    """Find in Spark's log why it did not start; None if it does not say."""
    found = [line.strip() for line in _START.findall(log) if line.strip()]
    return found[-1].rstrip(".")[:_MOST] if found else None
