"""The Parquet files of an archive, read: with the face of any past of a stream. `archive_folder` says how they lie."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.errors import DataLossError, InputError, StoreDamagedError
from penstock.spark.archive_folder import ArchiveFolder, Progress, read_identity, read_progress

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArchivedFile", "StreamArchive", "archived_files", "name_of", "open_archive", "read_archived"]

_FILE = re.compile(r"day=([0-9]{4}-[0-9]{2}-[0-9]{2})/([0-9]{20})\.parquet")


@dataclass(frozen=True)
class ArchivedFile:
    """A file of an archive, with the face of a part of any past."""

    uri: str
    """The archive."""
    name: str
    day: date
    size: int
    first: int
    last: int
    messages: int

    def batches(self, stream: str, start: int = 0, end: int = 1 << 62, **options: Any) -> Iterator[pa.RecordBatch]:
        """Give its messages whose sequences are in [start, end)."""
        return read_archived(self, stream, start, end, **options)


def name_of(day: date, first: int) -> str:
    """Give the name of the file of a day that begins with a sequence."""
    return f"day={day.isoformat()}/{first:020}.parquet"


def read_archived(
    archived: ArchivedFile,
    stream: str,
    start: int = 0,
    end: int = 1 << 62,
    *,
    headers: bool = True,
    data: bool = True,
    escape: bool = False,
    max_rows: int = 1 << 16,
    max_bytes: int = 32 << 20,
) -> Iterator[pa.RecordBatch]:
    """Give messages of a file whose sequences are in [start, end); a column that is not wanted is not read, and empty.

    Text was checked when it was archived, and groups of rows are not large: `escape` and `max_bytes` ask for nothing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from penstock.wire.arrow import SCHEMA

    # It may have grown since it was listed: what came later belongs to others.
    low, high = max(start, archived.first), min(end, archived.last + 1)
    unwanted = {name for name, wanted in (("headers", headers), ("data", data)) if not wanted}
    columns = [name for name in SCHEMA.names if name not in unwanted]
    try:
        with ArchiveFolder(archived.uri).open(archived.name) as opened, pq.ParquetFile(opened) as file:
            groups = [number for number in range(file.num_row_groups) if _meets(file, number, low, high)]
            for batch in file.iter_batches(max_rows, row_groups=groups, columns=columns, use_threads=False):
                sequence = batch.column("sequence")
                if sequence[0].as_py() < low or sequence[-1].as_py() >= high:
                    batch = batch.filter(pc.and_(pc.greater_equal(sequence, low), pc.less(sequence, high)))
                if batch.num_rows:
                    filled = [
                        _empty(field, batch.num_rows) if field.name in unwanted else batch.column(field.name)
                        for field in SCHEMA
                    ]
                    cast = [each.cast(field.type) for each, field in zip(filled, SCHEMA, strict=True)]
                    yield pa.RecordBatch.from_arrays(cast, schema=SCHEMA)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataLossError(
            f"The file {archived.name} of the archive {archived.uri} cannot be read: {error}; messages {low} to "
            f"{high - 1} of the stream {stream} are in it.",
            remedy="Restore it from a copy of the archive, or set failOnDataLoss to false to go on without them.",
            stream=stream,
            start=low,
            end=high,
            first=archived.first,
            last=archived.last,
        ) from error


def _empty(field: Any, rows: int) -> Any:
    import pyarrow as pa

    return pa.array([[] if field.name == "headers" else b""] * rows, field.type)


def _meets(file: Any, number: int, low: int, high: int) -> bool:
    """Tell whether a group of rows can hold sequences of [low, high)."""
    least, most = _sequences(file, number)
    return least < high and most >= low


def _sequences(file: Any, number: int) -> tuple[int, int]:
    """Give the least and the highest sequence of a group of rows."""
    group = file.metadata.row_group(number)
    for column in range(group.num_columns):
        if group.column(column).path_in_schema == "sequence" and group.column(column).statistics is not None:
            statistics = group.column(column).statistics
            return int(statistics.min), int(statistics.max)
    found = file.read_row_group(number, columns=["sequence"]).column("sequence")
    return int(found[0].as_py()), int(found[-1].as_py())


def _measure(folder: ArchiveFolder, name: str) -> tuple[int, int]:
    """Give the last sequence in a file, and the number of its messages."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with folder.open(name) as opened, pq.ParquetFile(opened) as file:
            return _sequences(file, file.num_row_groups - 1)[1], int(file.metadata.num_rows)
    except (OSError, pa.ArrowException, IndexError) as error:
        raise StoreDamagedError(
            f"The file {name} of the archive {folder.uri} cannot be read: {error}.",
            remedy="Restore it from a copy; or remove it, if the stream still holds what it held.",
            store=folder.uri,
            losses=(name,),
        ) from error


def archived_files(uri: str, progress: Progress | None) -> list[ArchivedFile]:
    """List the files of an archive in the order of their sequences.

    InputError if there are others among them. Whole days may be missing at the beginning, if somebody removed what
    is old; any other file that is noted and missing is DataLossError.
    """
    folder = ArchiveFolder(uri)
    noted = {first: (last, count) for first, last, count in (progress.files if progress is not None else ())}
    final = max(noted, default=0)
    found: list[ArchivedFile] = []
    for name, size in folder.listed():
        if any(part.startswith((".", "_")) for part in name.split("/")):
            continue
        known = _FILE.fullmatch(name)
        if known is None:
            raise InputError(
                f"The archive {uri} holds {name}, which no archiver wrote.",
                remedy="Keep other files elsewhere: whoever reads the folder reads them, too.",
            )
        first = int(known[2])
        # The last one may have grown, and others may have come, by a run that was killed before it could note them.
        last, count = noted[first] if first in noted and first < final else _measure(folder, name)
        found.append(ArchivedFile(uri, name, date.fromisoformat(known[1]), size, first, last, count))
    found.sort(key=lambda item: item.first)
    _check_each_once(uri, found)
    there = {item.first for item in found}
    least = min(there, default=0)
    if missing := sorted(first for first in noted if first not in there and (first > least or not there)):
        raise DataLossError(
            f"The archive {uri} lacks {len(missing)} of its files, the first of them with messages {missing[0]} to "
            f"{noted[missing[0]][0]}.",
            remedy="Restore them from a copy of the archive. Only whole days at its beginning may be removed.",
            start=missing[0],
            end=noted[missing[0]][0] + 1,
        )
    return found


def _check_each_once(uri: str, files: Sequence[ArchivedFile]) -> None:
    for one, other in pairwise(files):
        if one.last >= other.first:
            raise InputError(
                f"The archive {uri} holds sequence {other.first} twice, in {one.name} and in {other.name}.",
                remedy="Somebody put files into it. Remove what was not there.",
            )


@dataclass(frozen=True)
class StreamArchive:
    """What an archive holds of a stream, with the face of any past."""

    name: str
    source: str
    config: dict[str, Any]
    first: int
    last: int
    parts: tuple[ArchivedFile, ...]
    lost: tuple[tuple[int, int], ...] = ()
    """Ranges of sequences that were gone before they were archived."""
    damage: Sequence[Any] = ()

    @property
    def next(self) -> int:
        """The sequence behind the last one."""
        return self.last + 1

    def at_time(self, time: datetime) -> int | None:
        """Give the first sequence stored at a time or later; None if there is none."""
        import pyarrow.compute as pc

        for part in self.parts:
            if part.day < time.astimezone(UTC).date():
                continue
            for batch in part.batches(self.name, headers=False, data=False):
                place = pc.index(pc.greater_equal(batch.column("time"), time), True).as_py()
                if place >= 0:
                    return int(batch.column("sequence")[place].as_py())
        return None

    def between(self, since: datetime | None, until: datetime | None) -> StreamArchive:
        """Leave out the files of days that are not wanted."""
        low = date.min if since is None else since.astimezone(UTC).date()
        high = date.max if until is None else until.astimezone(UTC).date()
        return replace(self, parts=tuple(part for part in self.parts if low <= part.day <= high))


def open_archive(uri: str, stream: str | None = None) -> StreamArchive:
    """Say what an archive holds."""
    identity = read_identity(uri)
    if stream not in (None, identity.stream):
        raise InputError(
            f"{uri} is an archive of {identity.stream} and not of {stream}.",
            remedy=f"Name {identity.stream}, or another archive.",
        )
    progress = read_progress(uri, identity.stream)
    files = archived_files(uri, progress)
    first, last = (files[0].first, files[-1].last) if files else (1, 0)
    if progress is not None:
        # If days were removed at the beginning, it begins with what is left.
        whole = not files or not progress.files or files[0].first <= progress.files[0][0]
        first, last = progress.mark.begun if whole else first, max(last, progress.mark.next - 1)
    config: dict[str, Any] = {"Created": identity.created}
    if identity.subjects is not None:
        config["archived"] = identity.subjects
    return StreamArchive(identity.stream, uri, config, first, last, tuple(files), progress.lost if progress else ())
