"""An archiver: looks at archive and stream, and runs the query that adds what is new.

A run begins where the files of the archive end. Spark's own checkpoint lives as long as the run and decides nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import credentials
from penstock.contexts import to_context
from penstock.errors import DataLossError, InputError
from penstock.options import ConnectionOptions
from penstock.spark.archive_files import StreamArchive, open_archive
from penstock.spark.archive_folder import (
    IDENTITY,
    OWN,
    RUN,
    WRITING,
    ArchiveFolder,
    Identity,
    Progress,
    is_archive,
    read_identity,
    read_progress,
    write_identity,
    write_progress,
)
from penstock.spark.archive_writer import ArchiveSink, committing
from penstock.spark.connections import TaskConnection
from penstock.spark.offsets import Mark
from penstock.spark.past import check_same
from penstock.spark.source_options import SourceOptions
from penstock.spark.survey import Survey
from penstock.store.files import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ArchiveOrder", "Archiver", "archived_since", "begin"]

_RUNNING = "running-"
TRIGGER_BYTES = "1g"  # about what a micro-batch adds: so much is done again after a kill


@dataclass(frozen=True)
class ArchiveOrder:
    """What an archiver is asked to do."""

    stream: str
    folder: str
    """The folder of the archive, or its URI."""
    subjects: tuple[str, ...] = ()
    """The only subjects to archive; all if there is none."""
    start: str = "all"
    """Where a new archive begins, as the source's option `start` says it."""
    skip_lost: bool = False
    """Whether to go on if messages are gone before they were archived."""
    escape: bool = False
    """Whether bytes that are not UTF-8, in subjects and headers, are written as `\\xff`."""

    def source(self, start: str | None = None) -> dict[str, str]:
        """Give the options of the source; they are checked by whoever reads them."""
        given = {"stream": self.stream, "start": start or self.start, "maxBytesPerTrigger": TRIGGER_BYTES}
        if self.subjects:
            given["subjects"] = ",".join(self.subjects)
        return given | ({"invalidText": "escape"} if self.escape else {})

    def check(self) -> SourceOptions:
        """Refuse what cannot be, before anything is opened."""
        return SourceOptions.parse(self.source())


@dataclass(frozen=True)
class Archiver:
    """A run of an archiver that may begin: archive and stream fit together, and nobody else is at it."""

    order: ArchiveOrder
    connection: ConnectionOptions
    run: str
    start: int
    """The first sequence that is to be archived."""
    waiting: int
    """How many messages wait to be archived, or a few more."""
    scratch: Path
    """A folder on this machine for as long as the run lasts."""

    @property
    def log(self) -> Path:
        """Where to write what Spark says: beside a local archive's notes, where it outlives the run."""
        return (self.scratch.parent if self.scratch.parent.name == OWN else self.scratch) / "spark.log"

    def query(self, spark: SparkSession, every: float | None = None) -> StreamingQuery:
        """Start the query: over all that is there, or on and on, a micro-batch each `every` seconds."""
        spark.dataSource.register(ArchiveSink)
        context = self.scratch / "nats.json"
        _write_private(context, json.dumps(to_context(credentials.inline(self.connection))))
        reader = spark.readStream.format("nats").options(context=str(context), **self.order.source(str(self.start)))
        checkpoint = self.scratch / "checkpoint"
        writer = reader.load().writeStream.format(ArchiveSink.name()).queryName(f"archive of {self.order.stream}")
        writer = writer.options(folder=self.order.folder, run=self.run, offsets=str(checkpoint / "offsets"))
        writer = writer.option("checkpointLocation", checkpoint.as_uri())
        if every is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every:g} seconds").start()


@contextlib.contextmanager
def begin(order: ArchiveOrder, connection: ConnectionOptions) -> Iterator[Archiver]:
    """Take an archive for a run; InputError if it is another stream's or in use, DataLossError if messages are gone."""
    options = order.check()
    with contextlib.ExitStack() as held:
        _check_folder(order.folder)
        bulk = held.enter_context(TaskConnection(connection, options.patience))
        known = _read(order)
        mark = known[1].mark if known is not None and known[1] is not None else None
        stream = Survey(bulk, order.stream, options.subjects, mark)
        _refuse_acked(stream)
        if known is not None:
            _check_identity(order, known[0], stream, options)
        held.enter_context(_locked(order.folder))
        run = secrets.token_hex(8)
        with committing(order.folder):
            ArchiveFolder(order.folder).write_json(RUN, {"run": run, "pid": os.getpid()})
            for name, _ in ArchiveFolder(order.folder).listed(WRITING):
                ArchiveFolder(order.folder).remove(name)
            if known is None:
                identity = Identity(order.stream, stream.created, options.subjects, connection.domain)
                write_identity(order.folder, identity)
            start = _start(order, options, stream)
        yield Archiver(
            order, connection, run, start, max(0, stream.next - start), held.enter_context(_scratch(order.folder))
        )


@contextlib.contextmanager
def _scratch(uri: str) -> Iterator[Path]:
    """Give a folder on this machine that goes with the run; in a local archive, what a killed run left goes, too."""
    local = ArchiveFolder(uri).local
    for left in () if local is None else (local / OWN).glob(f"{_RUNNING}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=_RUNNING, dir=None if local is None else local / OWN))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)  # Java may be writing to it as it ends


def _check_folder(uri: str) -> None:
    """Refuse a folder that holds something else."""
    names = Folder(uri.removeprefix("file://")).names()
    if names and not is_archive(names):
        raise InputError(
            f"{uri} holds files that no archiver wrote, such as {sorted(names)[0]}.",
            remedy="Name a folder that is empty or not there yet, or an archive.",
        )


def _read(order: ArchiveOrder) -> tuple[Identity, Progress | None] | None:
    """Give what the archive says of itself; None for a new one."""
    if ArchiveFolder(order.folder).read_json(IDENTITY) is None:
        return None
    identity = read_identity(order.folder)
    if identity.stream != order.stream:
        raise InputError(
            f"{order.folder} is an archive of {identity.stream} and not of {order.stream}.",
            remedy="Name another folder: an archive holds one stream.",
        )
    return identity, read_progress(order.folder, identity.stream)


def _check_identity(order: ArchiveOrder, identity: Identity, stream: Survey, options: SourceOptions) -> None:
    if identity.created != stream.created:
        raise InputError(
            f"The archive {order.folder} is of a stream {order.stream} made at {identity.created}, and this one was "
            f"made at {stream.created}.",
            remedy="The stream was made anew, or this is another server. Name another folder.",
        )
    if set(identity.subjects or ()) != set(options.subjects or ()):
        told = ", ".join(identity.subjects) if identity.subjects else "all subjects"
        raise InputError(
            f"The archive {order.folder} holds {told}.",
            remedy="Say the same subjects as when it was begun, or name another folder.",
        )


def _refuse_acked(stream: Survey) -> None:
    if stream.retention != "limits":
        raise InputError(
            f"The stream {stream.name} has {stream.retention} retention: it removes what is acknowledged, whether or "
            "not it is archived.",
            remedy="Archive a mirror of it.",
        )


@contextlib.contextmanager
def _locked(uri: str) -> Iterator[None]:
    """Keep a second archiver of this machine away."""
    local = ArchiveFolder(uri).local
    if local is None:
        yield
        return
    try:
        (local / OWN).mkdir(parents=True, exist_ok=True)
        handle = os.open(local / OWN / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"{uri} cannot be used: {error.strerror}.", remedy="Name another folder.") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"Another archiver is at work on {uri}.", remedy="Wait for it, stop it, or name another folder."
            ) from None
        yield
    finally:
        os.close(handle)


def _start(order: ArchiveOrder, options: SourceOptions, stream: Survey) -> int:
    """Say where the run begins, once nobody else changes the archive; what is gone meanwhile is told, or noted."""
    archive = open_archive(order.folder, order.stream)
    progress = read_progress(order.folder, order.stream)
    if progress is None and not archive.parts:
        place = stream.start_place(options, datetime.now(UTC))
        progress = Progress(Mark(stream.created, place, place))
        write_progress(order.folder, order.stream, progress)
        return place
    if progress is None:  # the note is lost, and the files say it
        progress = Progress(Mark(stream.created, archive.first, archive.next))
    _check_there(archive, progress, stream)
    start = archive.next
    if stream.lacks(start):
        if not order.skip_lost:
            raise _gone(order, start, stream)
        lost, start = (start, stream.first), stream.first
        progress = replace(progress, mark=progress.mark.moved(start), lost=(*progress.lost, lost))
        write_progress(order.folder, order.stream, progress)
    return start


def _gone(order: ArchiveOrder, start: int, stream: Survey) -> DataLossError:
    return DataLossError(
        f"The messages [{start}, {stream.first}) of the stream {stream.name} are gone before they were archived in "
        f"{order.folder}; the stream holds [{stream.first}, {stream.next}).",
        remedy="Archive more often, or let the stream keep more. To go on without them, give --skip-lost: the archive "
        "notes that they are missing.",
        stream=stream.name,
        start=start,
        end=stream.first,
        first=stream.first,
        last=stream.last,
    )


def _check_there(archive: StreamArchive, progress: Progress, stream: Survey) -> None:
    """Refuse a stream that was set back: what it gets now has sequences that the archive holds."""
    if (place := stream.set_back(progress.mark)) is not None:
        raise stream.lost_after(progress.mark, place)
    check_same(archive, stream)


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def archived_since(order: ArchiveOrder, start: int) -> dict[str, Any]:
    """Say what a run has added from a sequence on: for people, and for JSON."""
    archive = open_archive(order.folder, order.stream)
    added = sum(part.messages for part in archive.parts if part.first >= start)
    for part in archive.parts:
        if part.first < start <= part.last:  # the file that grew
            added += sum(batch.num_rows for batch in part.batches(order.stream, start, headers=False, data=False))
    return {
        "stream": order.stream,
        "folder": order.folder,
        "archived": added,
        "messages": sum(part.messages for part in archive.parts),
        "first": archive.first,
        "last": archive.last,
        "files": len(archive.parts),
        "days": len({part.day for part in archive.parts}),
        "bytes": sum(part.size for part in archive.parts),
        "lost": [list(item) for item in archive.lost],
    }
