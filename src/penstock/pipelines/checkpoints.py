"""Reading what a pipeline's checkpoints say: how far each flow is, with no Spark running.

Spark keeps them under the storage of the pipeline, one folder for each flow and version of it::

    _checkpoints/<catalog>/<database>/<table>/<flow>/<version>/{offsets,commits,state}
    _checkpoints/<sink>/<flow>/<version>/{offsets,commits,state}

A file of `offsets` is a batch that was planned, one of `commits` a batch that is done. An offset file has a line with
the version, one with metadata, and one for each source.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import InputError
from penstock.json_text import load_json
from penstock.spark.offsets import Offset

__all__ = ["FlowState", "read_flows"]


@dataclass(frozen=True)
class FlowState:
    """How far one flow is, as its checkpoint says."""

    target: str | None
    """The table or sink that it writes to; None if no checkpoint says it."""
    flow: str
    """The name of the flow."""
    planned: int | None
    """The number of the newest batch that was planned; None before the first."""
    done: int | None
    """The number of the newest batch that is done; None before the first."""
    streams: dict[str, int]
    """For each NATS stream that it reads, the next sequence after the newest batch that is done."""
    state_bytes: int
    """How large its state is on disk."""
    created: dict[str, str] = field(default_factory=dict)
    """For each of these streams, when it was made: another one of that name is another stream."""
    query: str | None = None
    """The id of its streaming query: markers that it keeps in a stream name it."""

    @property
    def complete(self) -> bool:
        """Whether no batch was left in the middle."""
        return self.planned == self.done


def read_flows(storage: Path) -> list[FlowState]:
    """Read every flow's newest checkpoint."""
    root = storage / "_checkpoints"
    places = (Path(place) for place, folders, _ in os.walk(root) if "offsets" in folders)
    versions = sorted((place for place in places if place.name.isdigit()), key=lambda place: int(place.name))
    newest = {version.parent: version for version in versions}
    ordered = sorted(newest.items(), key=lambda item: (item[0].parent.name, item[0].name))
    return [_read(flow.parent.name, flow.name, version) for flow, version in ordered]


def _read(target: str, flow: str, version: Path) -> FlowState:
    planned = max(_numbers(version / "offsets"), default=None)
    done = max(_numbers(version / "commits"), default=None)
    streams, created = dict[str, int](), dict[str, str]()
    if done is not None:
        for offset in _nats_offsets(version / "offsets" / str(done)):
            streams |= {name: mark.next for name, mark in offset.marks.items()}
            created |= {name: mark.created for name, mark in offset.marks.items()}
    size = sum(_sizes(version / "state"))
    return FlowState(target, flow, planned, done, streams, size, created, _query(version / "metadata"))


def _query(path: Path) -> str | None:
    try:
        found = load_json(path.read_text(encoding="utf-8")).get("id")
    except (OSError, ValueError, AttributeError):
        return None  # not written yet
    return found if isinstance(found, str) else None


def _sizes(folder: Path) -> Iterator[int]:
    for place, _, names in os.walk(folder):  # which passes over what Spark tidies away meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.stat(os.path.join(place, name)).st_size


def _numbers(folder: Path) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        yield from (int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _nats_offsets(path: Path) -> Iterator[Offset]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return  # Spark has tidied it away
    for line in lines[2:]:
        try:
            yield Offset.from_json(load_json(line))
        except (ValueError, InputError):
            continue  # a source of another format
