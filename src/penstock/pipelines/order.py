"""What a run is asked to do, and what its child is given for that.

`RunOrder` is what the caller asks. `Assignment` is the order with everything else that the child needs to know; it
travels as JSON in a file of the run's own folder. Whatever the classes have travels: their fields make the JSON. A
reader refuses a field that is missing, unknown or of another kind, because then another Penstock wrote it.

The connection is not part of it. Spark's own workers need it, too, and know nothing but the environment: so it travels
as a context, which `penstock.contexts` writes and reads, named by `NATS_CONTEXT`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from penstock import credentials
from penstock.contexts import to_context
from penstock.errors import OptionError, PipelineError
from penstock.options import ConnectionOptions

__all__ = ["Assignment", "RunOrder"]

_EXACT = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class RunOrder:
    """What a run is asked to do."""

    continuous: bool = False
    """Run one update after the other until stopped, instead of one."""
    pause: float = 1.0
    """Seconds between two updates of a continuous run."""
    master: str = "local[*]"
    """Where Spark runs its tasks."""
    remote: str | None = None
    """A Spark Connect server to run on, instead of a Spark of our own."""
    full_refresh: tuple[str, ...] = ()
    """Tables to compute anew from the start."""
    full_refresh_all: bool = False
    """Compute everything anew."""
    dry: bool = False
    """Check the definitions and the graph; move no row."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings over those of the spec."""
    replay: str | None = None
    """The settings of a replay, as `penstock.spark.pipeline_replay` writes them."""
    database: str | None = None
    """The database for its tables, made if it is missing, instead of the one of the spec."""

    __pydantic_config__: ClassVar[Any] = _EXACT

    def __post_init__(self) -> None:
        pause: Any = self.pause
        if isinstance(pause, bool) or not isinstance(pause, int | float) or not 0 <= pause <= threading.TIMEOUT_MAX:
            raise OptionError(f"pause is {pause!r}.", remedy="Give a number of seconds.", option="pause", value=pause)


@dataclass(frozen=True)
class Assignment:
    """What the child is given: the order, and where everything is."""

    folder: Path
    """The run's own folder, which goes with the run; the child removes it if its parent is gone."""
    spec: Path
    """The spec of the pipeline."""
    storage: str
    """Where Spark keeps the checkpoints, as a URI."""
    streams: tuple[str, ...]
    """The streams of the topology, which a Connect server must see, too."""
    spark: Mapping[str, str]
    """All settings that a Spark of our own is started with."""
    order: RunOrder

    __pydantic_config__: ClassVar[Any] = _EXACT

    def to_json(self) -> str:
        """Write it, with every field."""
        return _ADAPTER.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Assignment:
        """Read what `to_json` wrote; PipelineError if it is anything else."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            # The values stay out: settings of Spark may hold keys.
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            what = f"The child of a pipeline cannot read its order: {f'{place}: ' if place else ''}{first['msg']}."
            raise PipelineError(what, remedy="Install one version of Penstock where pipelines run.") from None

    def hand_over(self, connection: ConnectionOptions) -> tuple[Path, Path]:
        """Write the order and the connection for the child, for this user's eyes; give the paths of both files."""
        order, context = self.folder / "order.json", self.folder / "nats.json"
        # Files that credentials name are read here: the child may run for weeks, and a cluster lacks them.
        written = json.dumps(to_context(credentials.inline(connection)))
        _write_private(order, self.to_json())
        _write_private(context, written)
        return order, context


_ADAPTER = TypeAdapter(Assignment)


def _write_private(path: Path, text: str) -> None:
    """Write a new file that nobody but this user may read at any moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
