"""Tables that a pipeline wrote, read without Spark: exactly the files of committed batches.

A streaming table keeps a log of its files in `_spark_metadata`: a file of a batch that was killed lies in the folder
and is not in the log. A plain reader of the folder would count such rows twice; this one does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """A table of Parquet files in a folder of the warehouse."""

    folder: Path

    @property
    def exists(self) -> bool:
        """Whether anything was written yet."""
        return bool(self.files())

    def files(self) -> list[Path]:
        """Give the files that count."""
        log = self.folder / "_spark_metadata"
        if log.is_dir():
            return sorted(_logged(log, self.folder))
        return sorted(path for path in self.folder.glob("**/*.parquet") if not path.name.startswith(("_", ".")))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the table, or some columns of it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = self.files()
        if not files:
            raise InputError(f"There is no table in {self.folder}.", remedy="Run the pipeline first.")
        wanted = list(columns) if columns is not None else None
        return pa.concat_tables(
            [pq.read_table(path, columns=wanted, partitioning=None) for path in files], promote_options="permissive"
        )

    def rows(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Read the table as one dict a row."""
        found: list[dict[str, Any]] = self.read(columns).to_pylist()
        return found


def _logged(log: Path, folder: Path) -> set[Path]:
    """Add up the log: the newest compact file holds everything before it."""
    numbers = {path.name: int(path.name.removesuffix(".compact")) for path in log.iterdir() if _is_batch(path.name)}
    compact = max((number for name, number in numbers.items() if name.endswith(".compact")), default=-1)
    files: set[Path] = set()
    for name, number in sorted(numbers.items(), key=lambda item: item[1]):
        if number < compact or (number == compact and not name.endswith(".compact")):
            continue
        lines = (log / name).read_text(encoding="utf-8").splitlines()
        if not lines or lines[0] != "v1":
            raise InputError(f"{log / name} is of a version that is not known.", remedy="Read the table with Spark.")
        for line in lines[1:]:
            entry = json.loads(line)
            # The folder may have been moved since: only the name inside it counts.
            path = Path(unquote(urlsplit(entry["path"]).path))
            inside = folder / _inside(path, folder)
            if entry["action"] == "add":
                files.add(inside)
            elif entry["action"] == "delete":
                files.discard(inside)
    return files


def _is_batch(name: str) -> bool:
    return name.removesuffix(".compact").isdigit()


def _inside(path: Path, folder: Path) -> Path:
    parts = path.parts
    if folder.name in parts:
        last = len(parts) - 1 - parts[::-1].index(folder.name)
        return Path(*parts[last + 1 :])
    return Path(path.name)
