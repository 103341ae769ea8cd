"""Tables that a pipeline wrote, read without Spark: whole ones alone, also while Spark writes them.

A streaming table keeps a log of its files in `_spark_metadata`: a file of a batch that was killed lies in the folder
and is not in the log. A plain reader of the folder would count such rows twice; this one does not.

A materialized view has no log. Each update takes its files away first and writes new ones at its end, and for most of
the update the folder is empty. What can be seen meanwhile, and what it means:

    in the folder                                  it is
    ---------------------------------------------  ------------------------------------------------
    nothing, or `_temporary`                       being computed, or its run was cut off
    changed later than the newest file in it       losing its files, or getting `_SUCCESS` next
    files, the newest as young as the folder       whole

The third line is the one that matters: the mark `_SUCCESS` alone does not tell, because the files go one by one and the
mark is not always the first. A folder that was copied can look as the second line says, too; it counts as whole when
nothing has changed in it for ten seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import InputError, PipelineError
from penstock.json_text import load_json
from penstock.sizes import format_size

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeptTable", "Table"]

PATIENCE = 20.0
MOST_KEPT = 64 * 2**20
_STILL = 10.0  # seconds without a change after which nobody is at work on a folder
_GRACE = 0.5  # seconds that a folder may be away: Spark removes it for an instant and makes it anew
_BATCH = re.compile(r"[0-9]{1,19}(\.compact)?")
_AGAIN = 0.05  # seconds between two looks
log = logging.getLogger("penstock.pipelines")


@dataclass(frozen=True)
class _Look:
    """What a folder holds at a moment at which it is whole."""

    files: list[Path]
    stamp: tuple[int, int]
    """Which state of the folder it is: another one has another stamp."""


@dataclass(frozen=True)
class Table:
    """A table of Parquet files in a folder of the warehouse.

    A table that is being rewritten is waited for, up to `patience` seconds: an update of a pipeline empties its
    materialized views and fills them at its end. PipelineError if it is not whole by then. A service that must
    answer meanwhile reads a `KeptTable`.
    """

    folder: Path
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # notebooks give texts

    @property
    def exists(self) -> bool:
        """Whether anything was written yet."""
        return bool(self.files())

    def files(self) -> list[Path]:
        """Give the files that count at this moment; none while the table is being rewritten."""
        look = _look(self.folder)
        return [] if look is None else look.files

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the table, or some columns of it."""

        def take() -> pa.Table | None:
            look = _look(self.folder)
            with contextlib.suppress(FileNotFoundError):  # its files go at this moment: look again
                return None if look is None else _read(self.folder, look.files, columns)
            return None

        return _wait_for(take, self.folder, self.patience)

    def rows(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Read the table as one dict a row."""
        found: list[dict[str, Any]] = self.read(columns).to_pylist()
        return found


class KeptTable:
    """The newest whole state of a table, kept in memory: a service answers from it while Spark rewrites the folder.

    Rows are read again only when the table has changed. An answer is as old as the last `refresh` that found a whole
    table, so call it now and then if questions are rare. A table of more than `most` bytes is not kept: reading it
    waits, as `Table` does. For threads.
    """

    def __init__(self, folder: str | Path, *, patience: float = PATIENCE, most: int = MOST_KEPT) -> None:
        self.folder = Path(folder)
        self._patience, self._most = patience, most
        self._lock = threading.Lock()
        self._kept: pa.Table | None = None
        self._stamp: tuple[int, int] | None = None
        self._told = False

    def refresh(self) -> bool:
        """Take in the table if it is whole and has changed; tell whether rows are kept."""
        self._take()
        return self._kept is not None

    def read(self) -> pa.Table:
        """Give the newest rows that were whole; waits only if none are kept."""
        return _wait_for(self._take, self.folder, self._patience)

    def rows(self) -> list[dict[str, Any]]:
        """Give them as one dict a row."""
        found: list[dict[str, Any]] = self.read().to_pylist()
        return found

    def _take(self) -> pa.Table | None:
        """Read what is new, keep it if it is small enough, and give the newest rows that are known."""
        with self._lock:
            look = _look(self.folder)
            if look is None or (self._kept is not None and look.stamp == self._stamp):
                return self._kept
            try:
                found = _read(self.folder, look.files, None)
            except FileNotFoundError:
                return self._kept  # its files go at this moment
            if found.nbytes <= self._most:
                self._kept, self._stamp = found, look.stamp
                return found
            if not self._told:
                self._told = True
                size, most = format_size(found.nbytes), format_size(self._most)
                log.warning("%s has %s, and %s are kept: readers wait while it is rewritten.", self.folder, size, most)
            self._kept = self._stamp = None
            return found


# -- looking at a folder -----------------------------------------------------------------------------------------------


def _wait_for(take: Callable[[], pa.Table | None], folder: Path, patience: float) -> pa.Table:
    """Try until there is a table or the time is over; InputError if no folder is there at all."""
    deadline = time.monotonic() + patience
    away: float | None = None
    while (found := take()) is None:
        now = time.monotonic()
        away = None if folder.is_dir() else away or now
        if away is not None and (now - away > _GRACE or now >= deadline):
            raise InputError(f"There is no table in {folder}.", remedy="Run the pipeline first.")
        if now >= deadline:
            raise PipelineError(
                f"There is no whole table in {folder}, also after {patience:g} s: an update is computing it, or its "
                "run was cut off.",
                remedy="Wait for the update, or run the pipeline.",
            )
        time.sleep(_AGAIN)
    return found


def _look(folder: Path) -> _Look | None:
    """See which files count; None if they are not all there."""
    try:
        batches = folder / "_spark_metadata"
        if not batches.is_dir():
            return _look_plain(folder)
        status = batches.stat()  # before the log is read: whatever comes later has another one
        return _Look(sorted(_logged(batches, folder)), (status.st_ino, status.st_mtime_ns))
    except FileNotFoundError:
        return None  # something goes away while we look


def _look_plain(folder: Path) -> _Look | None:
    files, newest, busy, folders = list[Path](), 0, False, list[os.stat_result]()
    for place, inner, names in os.walk(folder, onerror=_raise):
        busy = busy or "_temporary" in inner
        for path in (Path(place, name) for name in names):
            newest = max(newest, path.stat().st_mtime_ns)
            if path.suffix == ".parquet" and not path.name.startswith(("_", ".")):
                files.append(path)
        # After its list was read: a file that goes now makes the folder younger than what is left in it.
        folders.append(os.stat(place))
    changed = max(status.st_mtime_ns for status in folders)
    settled = changed <= newest or time.time() - changed / 1e9 > _STILL
    return _Look(sorted(files), (folders[0].st_ino, changed)) if files and settled and not busy else None


def _raise(error: OSError) -> None:
    raise error


def _read(folder: Path, files: Sequence[Path], columns: Sequence[str] | None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not files:
        remedy = "Wait for the first one, or run the pipeline."
        raise InputError(f"No batch has written a row to {folder} yet.", remedy=remedy)
    wanted = list(columns) if columns is not None else None
    tables = [pq.read_table(path, columns=wanted, partitioning=None) for path in files]
    return pa.concat_tables(tables, promote_options="permissive")


def _logged(batches: Path, folder: Path) -> set[Path]:
    """Add up the log: the newest compact file holds everything before it."""
    names = [path.name for path in batches.iterdir() if _BATCH.fullmatch(path.name)]
    # In the order of their numbers, a compact file behind the plain one of the same number.
    names.sort(key=lambda name: (int(name.removesuffix(".compact")), name.endswith(".compact")))
    compact = max((place for place, name in enumerate(names) if name.endswith(".compact")), default=0)
    files: set[Path] = set()
    for name in names[compact:]:
        first, *lines = (batches / name).read_bytes().split(b"\n")
        if first.rstrip(b"\r") != b"v1":
            what = f"{batches / name} is of a version that is not known."
            raise InputError(what, remedy="Read the table with Spark.")
        for line in filter(None, map(bytes.strip, lines)):
            try:
                action, inside = _read_entry(line, folder.name)
            except (ValueError, KeyError, TypeError, AttributeError):
                what = f"{batches / name} is damaged: it has a line that names no file, {line[:80]!r}."
                raise PipelineError(what, remedy="Restore the folder, or let a full refresh write it anew.") from None
            if action == "add":
                files.add(folder / inside)
            elif action == "delete":
                files.discard(folder / inside)
    return files


def _read_entry(line: bytes, folder: str) -> tuple[str, str]:
    """Read a line of the log: what became of a file, and its name inside the folder; ValueError if it has none."""
    entry = load_json(line)
    # The folder may have been moved since: only the name inside it counts.
    path = unquote(urlsplit(entry["path"]).path)
    _, found, inside = path.rpartition(f"/{folder}/")
    name = inside if found else Path(path).name
    if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError("no file of this folder")
    name.encode()  # half a character is in no name
    return str(entry["action"]), name
