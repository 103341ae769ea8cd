"""What pipeline files ask about the run that they are in: where to start reading, and where results go.

In an ordinary run these are what the file says. `penstock pipeline replay` sets them for a run over history: it
starts at another place, and writes to other streams, while the file stays as it is. The settings travel in the
environment of the process that reads the pipeline files, `PENSTOCK_REPLAY`, as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import InputError

__all__ = ["VARIABLE", "Target", "encode", "start_position", "target"]

VARIABLE = "PENSTOCK_REPLAY"


@dataclass(frozen=True)
class Target:
    """A stream to write to, and the subjects that reach it."""

    stream: str
    prefix: str = ""

    def subject(self, subject: str) -> str:
        """Give the subject that lands in this stream instead of the one that the file names."""
        return f"{self.prefix}{subject}"


def encode(start: str | None, into: Mapping[str, str]) -> str:
    """Write the settings of a replay; a stream that takes the place of another has its own name before each subject."""
    return json.dumps({"start": start, "into": dict(into)}, sort_keys=True)


def _settings(environ: Mapping[str, str]) -> dict[str, Any]:
    text = environ.get(VARIABLE)
    if not text:
        return {"start": None, "into": {}}
    try:
        content = json.loads(text)
        return {"start": content["start"], "into": dict(content["into"])}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{VARIABLE} holds {text!r}, which no replay wrote.", remedy="Unset it.") from None


def start_position(default: str = "all", *, environ: Mapping[str, str] = os.environ) -> str:
    """Give the `start` option for a source of this pipeline: `default`, or where the replay begins."""
    return str(_settings(environ)["start"] or default)


def target(stream: str, *, environ: Mapping[str, str] = os.environ) -> Target:
    """Give where rows for `stream` go in this run: the stream itself, or the one that a replay fills beside it."""
    if not environ.get(VARIABLE):
        return Target(stream)
    other = _settings(environ)["into"].get(stream)
    if other is None:
        what = f"This replay would write to {stream} a second time."
        raise InputError(what, remedy=f"Name another stream: --into {stream}=NEW.")
    return Target(other, f"{other}.")
