"""Whether what a storage holds belongs together: checkpoints, tables, and the flows that the files define.

Spark trusts each of them alone. A table of files keeps a log of batches, and a batch whose number is in it is skipped.
A flow that reads such a table keeps the names of the files that it has read. So rows are lost or repeated without a
word when one of them is restored, deleted, copied or begun anew, and the others are not::

    what is seen                                          what Spark would do
    ----------------------------------------------------  --------------------------------------------------
    the table has batches that the checkpoint lacks       skip the flow's next batches: their rows are lost
    the checkpoint has batches that the table lacks       go on: the table lacks their rows
    a flow has read files of a table that are gone,       read the whole table again, or all of another one: rows
      or of a table that is not defined any more            are repeated
    a sink's flow without a checkpoint, and a checkpoint  begin anew: rows are repeated
      of a sink's flow that is not defined any more
    files of a table are in another folder                read and write there: the storage is a copy

All of it is checked before an update begins, if the storage is on this machine. What a full refresh covers is in
order afterwards, and is not looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import InputError, PipelineError
from penstock.json_text import load_json
from penstock.pipelines.files import write_whole
from penstock.pipelines.registry import Definitions

__all__ = ["HOME", "Refresh", "Storage", "check_home"]

HOME = "home.json"
_MOVED = "Put it back where it was, or begin anew: penstock pipeline reset, or an empty storage with --storage."


def check_home(folder: Path, spark: str) -> str | None:
    """Note where a storage is, and which Spark has its tables; give a note if that is another one than before.

    A storage that was moved or copied since is refused: Spark's catalog has whole paths.
    """
    here = {"storage": str(folder), "spark": spark}
    try:
        found = load_json((folder / HOME).read_text(encoding="utf-8"))
        home, before = found["storage"], found.get("spark", spark)
    except FileNotFoundError:
        home, before = str(folder), None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        what = f"{folder / HOME} cannot be read."
        raise InputError(what, remedy="Delete it, if the storage was not moved.") from None
    if home != str(folder):
        raise InputError(
            f"The storage {folder} was moved or copied from {home}, and Spark would read and write tables there.",
            remedy=_MOVED,
        )
    if before == spark:
        return None
    write_whole(folder / HOME, here)
    if before is None:
        return None
    return (
        f"This pipeline ran on {before} before, and runs on {spark} now: what was read goes on, and tables that are "
        "kept there are not here."
    )


@dataclass(frozen=True)
class Refresh:
    """What a run computes anew from the start."""

    tables: Collection[str] = ()
    everything: bool = False

    def covers(self, table: str) -> bool:
        """Whether a table is computed anew."""
        return self.everything or _last(table) in {_last(name) for name in self.tables}


@dataclass(frozen=True)
class _Checkpoint:
    """The newest checkpoint of one flow."""

    target: str
    """The sink, or the table with its database."""
    flow: str
    is_sink: bool
    place: Path

    @property
    def planned(self) -> int | None:
        return max(_numbers(self.place / "offsets"), default=None)

    @property
    def done(self) -> int | None:
        return max(_numbers(self.place / "commits"), default=None)

    def files_read(self) -> Iterator[Path]:
        """Give a file of each table that the flow has read, of the newest that it has."""
        for source in sorted((self.place / "sources").glob("*")):
            if (file := _newest_file(source)) is not None:
                yield file


@dataclass(frozen=True)
class Storage:
    """The storage of a pipeline on this machine."""

    folder: Path
    warehouse: Path
    database: str = "default"
    sure: bool = True
    """Whether tables are here if they are anywhere; not if the catalog is another's."""

    def check(self, found: Definitions, refresh: Refresh, default_format: str = "parquet") -> None:
        """Refuse to run if rows would be lost or repeated; PipelineError says what does not fit, and what to do."""
        kept = {(item.target, item.flow): item for item in self._checkpoints()}
        tables = {self._table(name) for name in found.streaming}
        for flow, target in found.flows:
            checkpoint = kept.get((self._key(found, target), _last(flow)))
            if found.is_of_files(target, default_format) and not refresh.covers(target):
                self._check_table(self._table(target), flow, checkpoint)
            if checkpoint is not None and checkpoint.planned is not None:
                self._check_read(checkpoint, refresh, tables)
        self._check_sinks(found, kept, refresh)

    def beginning(self, found: Definitions) -> dict[str, str]:
        """Give the NATS stream of each sink's flow that has no checkpoint yet: it begins with the first message."""
        kept = {(item.target, item.flow) for item in self._checkpoints() if item.planned is not None}
        streams = {flow: found.sinks[target] for flow, target in found.flows if target in found.sinks}
        known = {flow for flow, target in found.flows if (_last(target), _last(flow)) in kept}
        return {flow: stream for flow, stream in streams.items() if stream is not None and flow not in known}

    def _check_table(self, folder: Path, flow: str, checkpoint: _Checkpoint | None) -> None:
        log = folder / "_spark_metadata"
        stored = max(_numbers(log), default=None)
        planned = None if checkpoint is None else checkpoint.planned
        done = None if checkpoint is None else checkpoint.done
        table = folder.name
        if (file := _newest_file(log)) is not None and not file.is_relative_to(folder):
            raise PipelineError(
                f"The table {table} in {folder} has its files in {file.parent}: this storage was "
                "moved or copied, and Spark would read and write there.",
                remedy=_MOVED,
            )
        if stored is not None and (planned is None or stored > planned):
            raise PipelineError(
                f"The table {table} has batches up to {stored}, and the checkpoint of its flow {flow} "
                + ("is not there" if planned is None else f"ends at {planned}")
                + ": Spark would skip as many batches of new rows. The checkpoint is older than the table or was "
                "deleted, or the flow has another name than before.",
                remedy=f"Give the flow its old name or restore its checkpoint, or compute the table anew: "
                f"--full-refresh {table}.",
            )
        if done is not None and (stored < done if stored is not None else self.sure):
            raise PipelineError(
                f"The checkpoint of the flow {flow} has batches up to {done}, and its table {table} "
                + ("is not there" if stored is None else f"ends at {stored}")
                + ": rows are missing in it. The table is older than the checkpoint, or was deleted.",
                remedy=f"Restore the table, or compute it anew: --full-refresh {table}.",
            )

    def _check_read(self, item: _Checkpoint, refresh: Refresh, defined: Collection[Path]) -> None:
        """Refuse a flow that goes on while a table that it reads begins anew: it would read all of it again."""
        if not item.is_sink and refresh.covers(item.target):
            return
        for file in item.files_read():
            if (folder := self._table_of(file)) is None:
                continue
            table, known = folder.name, folder in defined
            anew = refresh.covers(table) and known
            if not anew and file.exists() and (known or not self.sure):
                continue
            what = "sink" if item.is_sink else "table"
            gone = "whose files are not those that it has read any more"
            if not known:
                gone = "which the pipeline does not define any more; if it reads another one now"
            remedy = (
                "Replay the pipeline into a new stream instead, or reset it and purge the stream."
                if item.is_sink
                else f"Compute both anew: --full-refresh {table} --full-refresh {_last(item.target)}."
            )
            raise PipelineError(
                f"The flow {item.flow} has read the table {table}, "
                + ("which is to be computed anew" if anew else gone)
                + ": it would read all of it again, and write each row "
                f"to the {what} {_last(item.target)} a second time.",
                remedy=remedy,
            )

    def _check_sinks(self, found: Definitions, kept: dict[tuple[str, str], _Checkpoint], refresh: Refresh) -> None:
        defined = {(_last(target), _last(flow)) for flow, target in found.flows if target in found.sinks}
        begun = {key: item for key, item in kept.items() if item.is_sink and item.planned is not None}
        if refresh.everything and (again := sorted(defined & begun.keys())):
            raise PipelineError(
                f"A refresh of everything would write each row to the sink {again[0][0]} a second time.",
                remedy="Name tables with --full-refresh, or replay the pipeline into a new stream.",
            )
        lost, new = sorted(begun.keys() - defined), sorted(defined - kept.keys())
        if lost and new:
            (target, flow), (sink, name) = lost[0], new[0]
            raise PipelineError(
                f"The flow {name} of the sink {sink} is new and would begin with the first message, and the flow "
                f"{flow} of the sink {target} is not defined any more. If it is the same flow with another name, each "
                "row would be written a second time.",
                remedy=f"Give it its old name; or rename {begun[lost[0]].place.parent.relative_to(self.folder)} in the "
                f"storage to _checkpoints/{sink}/{name}, to go on there; or delete that folder, if it is another flow.",
            )

    def _key(self, found: Definitions, target: str) -> str:
        """Give the target of a flow as its checkpoint has it: a sink by its name, a table with its database."""
        return _last(target) if target in found.sinks else f"{self._database(target)}.{_last(target)}"

    def _database(self, table: str) -> str:
        *before, _ = table.split(".")
        return (before[-1] if before else self.database).lower()

    def _table(self, named: str) -> Path:
        database, table = self._database(named), _last(named)
        place = self.warehouse if database == "default" else self.warehouse / f"{database}.db"
        return place / table

    def _table_of(self, file: Path) -> Path | None:
        """Give the folder of the table that a file belongs to; None for a file that is elsewhere."""
        if not file.is_relative_to(self.warehouse):
            return None
        parts = file.relative_to(self.warehouse).parts
        return self.warehouse.joinpath(*parts[: 2 if parts[0].endswith(".db") and len(parts) > 2 else 1])

    def _checkpoints(self) -> Iterator[_Checkpoint]:
        """Find the newest checkpoint of each flow: `<sink>/<flow>/<version>`, or a table's, with its catalog before."""
        root = self.folder / "_checkpoints"
        for pattern, is_sink in (("*/*", True), ("*/*/*/*", False)):
            for flow in root.glob(pattern):
                versions = [path for path in flow.glob("*") if path.name.isdigit() and (path / "metadata").is_file()]
                if versions:
                    newest = max(versions, key=lambda path: int(path.name))
                    target = _last(flow.parent.name)
                    if not is_sink:
                        target = f"{_last(flow.parent.parent.name)}.{target}"
                    yield _Checkpoint(target, _last(flow.name), is_sink, newest)


def _last(name: str) -> str:
    """Give the name of a table or flow without its catalog and database, as Spark compares it."""
    return name.replace("`", "").rpartition(".")[2].lower()


def _numbers(folder: Path) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        names = (name.removesuffix(".compact") for name in os.listdir(folder))
        yield from (int(name) for name in names if name.isascii() and name.isdigit())


def _newest_file(folder: Path) -> Path | None:
    """Give the last file that a log of Spark's names; None if there is none that can be read."""
    for number in sorted(_numbers(folder), reverse=True):
        for name in (f"{number}.compact", str(number)):
            with contextlib.suppress(OSError, ValueError):
                lines = (folder / name).read_text(encoding="utf-8").splitlines()
                entries = [load_json(line) for line in lines[1:] if line.strip()]
                if entries and isinstance(entries[-1], dict) and isinstance(path := entries[-1].get("path"), str):
                    found = _local(path)
                    if b"\0" not in str(found).encode():  # half a character fails, as it is in no name
                        return found
    return None


def _local(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))
