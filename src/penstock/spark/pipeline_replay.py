"""What source and sink must know of the replay of a pipeline that they are in: what it may write, and not release.

A replay runs the files of a live pipeline over history. Whatever those files say, it must not write to the streams of
the live pipeline, nor release messages that the live pipeline has not read. `penstock.pipelines` says so in the
environment of the Spark that it starts, `PENSTOCK_REPLAY`, and, for a Spark that is elsewhere, in a setting of the
session, which Spark tells to each task: `spark.penstock.replay`. Both hold the same JSON::

    {"start": "101",                  where its sources begin; null for where the files say
     "into": {"ALERTS": "ALERTS_V2"}, for each stream of the files, the one that is written to instead
     "backfill": {"ORDERS": "/backups/orders"},   for each stream, the backup that its source begins in; may be missing
     "switched": false}               whether the pipeline was switched to it: then it is the live one, and may release
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError
from penstock.json_text import load_json

if TYPE_CHECKING:
    from penstock.spark.source_options import SourceOptions

__all__ = ["SETTING", "VARIABLE", "PipelineReplay"]

VARIABLE = "PENSTOCK_REPLAY"
SETTING = "spark.penstock.replay"


@dataclass(frozen=True)
class PipelineReplay:
    """What a run of a pipeline over history was asked for."""

    start: str | None = None
    """Where its sources begin; None if the files say it."""
    into: Mapping[str, str] = field(default_factory=dict)
    """For each stream that the files name, the one that is written to instead."""
    switched: bool = False
    """Whether the pipeline was switched to it, and it is the live one now."""
    backfill: Mapping[str, str] = field(default_factory=dict)
    """For each stream whose source begins in a backup or an archive, where that is."""

    def to_json(self) -> str:
        """Write it as it travels."""
        content: dict[str, Any] = {"start": self.start, "into": dict(self.into), "switched": self.switched}
        if self.backfill:
            content["backfill"] = dict(self.backfill)
        return json.dumps(content, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> PipelineReplay:
        """Read what `to_json` wrote; InputError if it is anything else."""
        try:
            content = load_json(text)
            start, into = content["start"], dict(content["into"])
            return cls(start, into, bool(content.get("switched", False)), dict(content.get("backfill", {})))
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{VARIABLE} holds {text[:200]!r}, which no replay wrote.", remedy="Unset it.") from None

    @classmethod
    def current(cls, environ: Mapping[str, str] = os.environ) -> PipelineReplay | None:
        """Give the replay that this process, or this task of Spark, is part of; None in any other run."""
        text = environ.get(VARIABLE) or _of_task()
        return cls.from_json(text) if text else None

    def target(self, stream: str) -> str:
        """Give the stream that takes the place of one that the files name; InputError if none does."""
        if stream in self.into:
            return self.into[stream]
        what = f"This replay would write to {stream} a second time."
        raise InputError(what, remedy=f"Name another stream: --into {stream}=NEW.")

    def check_write(self, stream: str | None) -> None:
        """Refuse to write to a stream that the replay has not to itself."""
        if stream is None or stream in self.into.values():
            return
        what = f"This replay would write to {stream}, which is not one of its own streams"
        if stream.startswith("KV_"):
            asks = f'target("{stream}").bucket from penstock.pipelines'
            raise InputError(
                f"{what}.", remedy=f"Name another bucket by its stream, --into {stream}=KV_NEW, and write to {asks}."
            )
        if stream in self.into:
            raise InputError(
                f"{what}: the pipeline's files do not ask for the place of the stream.",
                remedy=f'Write there: out = target("{stream}"), with out.stream as the stream and out.subject(...) for '
                "each subject, from penstock.pipelines.",
            )
        raise InputError(
            f"{what}.",
            remedy=f"Name another one, --into {stream}=NEW, and let the pipeline's files ask for it: "
            f'target("{stream}") from penstock.pipelines.',
        )

    def backfilled(self, source: SourceOptions) -> SourceOptions:
        """Let a source begin in the backup of its stream, if this replay was given one."""
        place = self.backfill.get(source.stream or "")
        if place is None or source.past == place:
            return source
        if source.past is not None:
            what = f"This replay would read {source.stream} from {place}, and the pipeline's files from {source.past}."
            raise InputError(what, remedy="Leave --backup out, or the option out of the files.")
        return dataclasses.replace(source, backfill=place)

    def check_release(self, ack: str) -> None:
        """Refuse a source that releases messages, until the pipeline is switched to this replay."""
        if ack == "commit" and not self.switched:
            raise InputError(
                "This replay would release messages that the pipeline itself may not have read: its source has "
                "ack=commit.",
                remedy="Read another stream in a replay, such as a mirror: see in_replay() of penstock.pipelines.",
            )


def _of_task() -> str | None:
    """Give what Spark tells this task, if this is one."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return None
    context: Any = TaskContext.get()
    return None if context is None else context.getLocalProperty(SETTING)
