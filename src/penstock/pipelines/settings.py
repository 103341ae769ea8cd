"""What pipeline files ask about the run that they are in: where to start reading, and where results go.

In an ordinary run these are what the file says. `penstock pipeline replay` sets them for a run over history: it
starts at another place, and writes to other streams, while the file stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import InputError
from penstock.spark.pipeline_replay import PipelineReplay

__all__ = ["Target", "in_replay", "start_position", "start_was_asked", "target"]

_asked = False  # whether a file of this process asked where to start


@dataclass(frozen=True)
class Target:
    """A stream to write to, and the subjects that reach it."""

    stream: str
    prefix: str = ""

    @property
    def bucket(self) -> str:
        """The key-value bucket whose stream this is; InputError if it is that of none."""
        from penstock.buckets.key_stream import bucket_of  # loads more than most files of pipelines need

        found = bucket_of(self.stream)
        if found is None:
            what = f"{self.stream} is not the stream of a key-value bucket."
            raise InputError(what, remedy='Ask for the stream of the bucket: target("KV_PRICES").bucket.')
        return found

    def subject(self, subject: str) -> str:
        """Give the subject that lands in this stream instead of the one that the file names."""
        return f"{self.prefix}{subject}"


def in_replay(*, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether this run is a replay, or goes on where one ended: then it writes elsewhere than the files say."""
    return PipelineReplay.current(environ) is not None


def start_position(default: str = "all", *, environ: Mapping[str, str] = os.environ) -> str:
    """Give the `start` option for a source of this pipeline: `default`, or where the replay begins."""
    global _asked  # the files and whoever checks them share a process, and nothing else
    _asked = True
    replay = PipelineReplay.current(environ)
    return (replay and replay.start) or default


def start_was_asked() -> bool:
    """Tell whether any file asked `start_position` since the last time that this was asked."""
    global _asked
    asked, _asked = _asked, False
    return asked


def target(stream: str, *, environ: Mapping[str, str] = os.environ) -> Target:
    """Give where rows for `stream` go in this run: the stream itself, or the one that a replay fills beside it."""
    replay = PipelineReplay.current(environ)
    if replay is None:
        return Target(stream)
    other = replay.target(stream)
    return Target(other, f"{other}.")
