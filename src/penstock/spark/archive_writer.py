"""The sink of an archiver: tasks write Parquet files aside, and the driver puts them in their places, in order.

What is in its place is the truth, and not what Spark's checkpoint says: the driver looks how far the archive reaches,
and adds only what lies behind. So a micro-batch that is tried again adds nothing twice, however differently it is cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import DataLossError, FencedError
from penstock.json_text import load_json
from penstock.spark.archive_files import ArchivedFile, archived_files, name_of
from penstock.spark.archive_folder import (
    OWN,
    RUN,
    WRITING,
    ArchiveFolder,
    Progress,
    read_identity,
    read_progress,
    write_progress,
)
from penstock.spark.offsets import Mark, Offset
from penstock.wire.arrow import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "SMALL",
    "ArchiveSink",
    "ArchiveWriter",
    "NewFile",
    "Written",
    "by_day",
    "committing",
    "put_in_place",
    "write_aside",
]

DAY = 86_400_000_000  # microseconds
SMALL = 32 << 20  # bytes of a file that grows with what comes next
LARGE = 128 << 20  # bytes of a file that a task ends, and begins the next
GROUP_ROWS, GROUP_BYTES = 1 << 17, 32 << 20  # of rows that lie together in a file, and wait in memory


@dataclass(frozen=True)
class NewFile:
    """A file that is not part of the archive yet."""

    name: str
    day: date
    first: int
    last: int
    messages: int
    size: int


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task wrote."""

    files: tuple[NewFile, ...]


class _Writing:
    """A file under way: rows in order, all of one day."""

    def __init__(self, folder: ArchiveFolder, day: date) -> None:
        import pyarrow.parquet as pq

        self.folder, self.day = folder, day
        self.name = f"{WRITING}/{secrets.token_hex(8)}.parquet"
        self.first = self.last = self.messages = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._file = folder.create(self.name)
        # Each sequence occurs once and each payload is about as good as random: no dictionary of them.
        self._writer = pq.ParquetWriter(
            self._file, SCHEMA, compression="zstd", use_dictionary=["subject", "stream"], store_schema=False
        )

    @property
    def size(self) -> int:
        """How many bytes are written."""
        return int(self._file.tell())

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in."""
        if not batch.num_rows:
            return
        self.first = self.first or batch.column("sequence")[0].as_py()
        self.last = batch.column("sequence")[-1].as_py()
        self.messages += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, SCHEMA))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> NewFile:
        """End the file."""
        self._flush()
        self._writer.close()
        size = self.size
        self._file.close()
        return NewFile(self.name, self.day, self.first, self.last, self.messages, size)

    def drop(self) -> None:
        """Give up."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._file.close()
        self.folder.remove(self.name)


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    """Cut rows where the day changes, the order kept: clocks may step back over midnight."""
    days = pc.divide(batch.column("time").cast(pa.int64()), DAY)
    places = [0]
    if days[0] != days[-1] or pc.count_distinct(days).as_py() > 1:
        numbers = days.to_pylist()
        places += [place for place in range(1, len(numbers)) if numbers[place] != numbers[place - 1]]
    for start, end in zip(places, [*places[1:], batch.num_rows], strict=True):
        yield date.fromordinal(719163 + days[start].as_py()), batch.slice(start, end - start)  # 1970-01-01


def write_aside(folder: ArchiveFolder, batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
    """Write rows, which are in order, to files aside: one after the other, each of one day and not too large."""
    done: list[NewFile] = []
    writing: _Writing | None = None
    try:
        for batch in batches:
            columns = [batch.column(field.name).cast(field.type) for field in SCHEMA]
            for day, rows in by_day(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)) if batch.num_rows else ():
                if writing is not None and (writing.day != day or writing.size >= LARGE):
                    done.append(writing.close())
                    writing = None
                writing = writing or _Writing(folder, day)
                writing.add(rows)
        if writing is not None:
            done.append(writing.close())
            writing = None
    except BaseException:
        if writing is not None:
            writing.drop()
        for item in done:
            folder.remove(item.name)
        raise
    return done


class ArchiveSink(DataSource):
    """The sink of an archiver, which registers it for itself."""

    @classmethod
    def name(cls) -> str:
        return "penstock_archive"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArchiveWriter:
        return ArchiveWriter(self.options["folder"], self.options["run"], self.options["offsets"])


class ArchiveWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of an archiver."""

    def __init__(self, uri: str, run: str, offsets: str) -> None:
        self.uri = uri
        self.run = run
        self.offsets = offsets
        """The folder of the query's offsets, on the driver."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(tuple(write_aside(ArchiveFolder(self.uri), iterator)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        stream = read_identity(self.uri).stream
        text = (Path(self.offsets) / str(batchId)).read_text(encoding="utf-8").splitlines()[-1]
        mark = Offset.from_json(load_json(text)).marks[stream]
        new = [item for message in messages if isinstance(message, Written) for item in message.files]
        with committing(self.uri, self.run, batchId):
            put_in_place(self.uri, new, mark)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for message in messages:
            for item in message.files if isinstance(message, Written) else ():
                ArchiveFolder(self.uri).remove(item.name)


@contextlib.contextmanager
def committing(uri: str, run: str | None = None, batch: int = 0) -> Iterator[None]:
    """Let one process change an archive at a time; FencedError if another run has taken over.

    A run that was killed may have a commit under way for a moment. On this machine the next one waits for it; elsewhere
    there is no lock, and only the word who may write, which is looked at before a commit.
    """
    folder = ArchiveFolder(uri)
    with contextlib.ExitStack() as held:
        if folder.local is not None:
            handle = os.open(folder.local / OWN / "committing", os.O_RDWR | os.O_CREAT, 0o644)
            held.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        if run is not None and (folder.read_json(RUN) or {}).get("run") != run:
            raise FencedError(
                f"Another archiver has taken over the archive {uri}.",
                remedy="Let one archiver write to an archive.",
                stream=read_identity(uri).stream,
                query=run,
                batch=batch,
                partition=None,
            )
        yield


def put_in_place(uri: str, new: Sequence[NewFile], mark: Mark) -> None:
    """Add new files to an archive, in order, and note that it reaches up to a mark."""
    folder, identity = ArchiveFolder(uri), read_identity(uri)
    progress = read_progress(uri, identity.stream)
    files = archived_files(uri, progress)
    reached = max(progress.mark.next if progress else mark.begun, files[-1].last + 1 if files else 0)
    if mark.created != identity.created or mark.begun > reached:
        raise DataLossError(
            f"The archive {uri} reaches up to {reached}, and what is to be added begins at {mark.begun}.",
            remedy="Was it restored from an older copy while the archiver ran? Start the archiver again.",
            stream=identity.stream,
            start=reached,
            end=mark.begun,
        )
    covered = files[-1].last if files else 0
    left = sorted((item for item in new if item.last > covered), key=lambda item: item.first)
    for group in _groups(left):
        _place(folder, files, group)
    begun = progress.mark.begun if progress else mark.begun
    noted = tuple((item.first, item.last, item.messages) for item in files)
    kept = progress.lost if progress else ()
    at_least = max(mark.next, files[-1].last + 1 if files else 0)
    write_progress(uri, identity.stream, Progress(replace(mark, begun=begun, next=at_least, skipped=0), kept, noted))
    for name, _ in folder.listed(WRITING):
        folder.remove(name)


def _groups(new: Sequence[NewFile]) -> Iterator[list[NewFile]]:
    """Give the files that become one: of one day, and small together."""
    group: list[NewFile] = []
    for item in new:
        if group and (item.day != group[0].day or sum(each.size for each in group) >= SMALL):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _place(folder: ArchiveFolder, files: list[ArchivedFile], group: list[NewFile]) -> None:
    """Make one file of a group, or let the last one grow by it, and put it in its place."""
    last = files[-1] if files else None
    covered = 0 if last is None else last.last
    grows = last is not None and last.day == group[0].day and last.size < SMALL and group[0].size < LARGE
    if len(group) == 1 and not grows and group[0].first > covered:
        made = group[0]
    else:
        made = _merged(folder, last if grows else None, group, covered)
    target = name_of(made.day, made.first)
    folder.move(made.name, target)
    if grows:
        files.pop()
    files.append(ArchivedFile(folder.uri, target, made.day, made.size, made.first, made.last, made.messages))


def _merged(folder: ArchiveFolder, last: ArchivedFile | None, group: list[NewFile], covered: int) -> NewFile:
    """Write one file of several, without what the archive holds already."""
    writing = _Writing(folder, group[0].day)
    try:
        if last is not None:
            for batch in last.batches(""):
                writing.add(batch)
        for item in group:
            part = ArchivedFile(folder.uri, item.name, item.day, item.size, item.first, item.last, item.messages)
            for batch in part.batches("", covered + 1):
                writing.add(batch)
        return writing.close()
    except BaseException:
        writing.drop()
        raise
