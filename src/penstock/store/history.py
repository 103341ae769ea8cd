"""What is kept of a stream where no server is: in a store or in a backup, with one face for both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError, StoreInUseError
from penstock.server.neighbours import server_using
from penstock.store import backups
from penstock.store.ahead import read_ahead
from penstock.store.backups import Contents, Part
from penstock.store.entries import MAGIC
from penstock.store.files import Folder, open_folder
from penstock.store.opening import open_file
from penstock.store.reading import Wanted
from penstock.store.stored import Damage, Segment, StoredStream, open_stream, stream_folders
from penstock.store.tar_files import Tar
from penstock.store.unpacked import Unpacked

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["History", "open_backup", "open_store"]

Progress = Callable[[int], None]


@dataclass(frozen=True)
class History:
    """The messages of a stream, in parts that can be read one beside the other."""

    name: str
    source: str
    """The folder or the file that holds it, for people."""
    config: dict[str, Any]
    first: int
    last: int
    messages: int
    parts: tuple[Segment | Part, ...]
    rebuilt: str | None = None
    """Why the index of a store was not believed; None if it was, or there is none."""
    damage: tuple[Damage, ...] = ()

    @property
    def next(self) -> int:
        """The sequence behind the last one."""
        return self.last + 1

    def batches(
        self, start: int = 0, end: int = 1 << 62, *, threads: int | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Give the messages whose sequences are in [start, end), in order; `options` are those of a part's `batches`.

        So many threads read ahead; one a core, eight at most, if nothing is said.
        """
        wanted = Wanted(start, end, **options)
        parts: list[Any] = [part for part in self.parts if part.last >= start and part.first < end]
        threads = min(os.cpu_count() or 1, 8) if threads is None else threads
        for _, found in read_ahead(parts, lambda: parts[0].reader(self.name, wanted).batches, threads):
            yield from found

    def at_time(self, time: datetime) -> int | None:
        """Give the first sequence stored at a time or later; None if there is none."""
        low, high = 0, len(self.parts)
        while low < high:  # the first part whose last message is young enough
            middle = (low + high) // 2
            if self._last_time(self.parts[middle]) < time:
                low = middle + 1
            else:
                high = middle
        for part in self.parts[low:]:
            for batch in part.batches(self.name, headers=False):
                for sequence, stored in zip(batch.column("sequence"), batch.column("time"), strict=True):
                    if stored.as_py() >= time:
                        return int(sequence.as_py())
        return None

    def _last_time(self, part: Segment | Part) -> datetime:
        latest: datetime | None = None
        for batch in part.batches(self.name, headers=False):
            latest = batch.column("time")[batch.num_rows - 1].as_py()
        if latest is None:
            raise InputError(f"{self.source} lacks messages that it says it holds.", remedy="Read another copy of it.")
        return latest


def open_store(uri: str | os.PathLike[str], stream: str | None = None, progress: Progress | None = None) -> History:
    """Open a stream in the store of a server that does not run, or in a copy of one."""
    folder = open_folder(uri)
    refuse_running(folder)
    found = list(stream_folders(folder, stream))
    if len(found) != 1:
        known = sorted({name for _, name, _ in stream_folders(folder)})
        if not known:
            raise InputError(
                f"{uri} holds no stream.", remedy="Name the folder that nats-server was given as its store."
            )
        if found and stream is not None:
            accounts = ", ".join(account for account, _, _ in found)
            what, remedy = f"Several accounts in {uri} have a stream {stream}: {accounts}.", "Name an account's folder."
        else:
            what = f"{uri} holds no stream {stream}." if stream else f"{uri} holds several streams."
            remedy = f"There are {', '.join(known[:10])}{' …' if len(known) > 10 else ''}: name one."
        raise InputError(what, remedy=remedy)
    return _history(open_stream(found[0][2], progress=progress), os.fspath(uri))


def refuse_running(folder: Folder) -> None:
    """Refuse a store that a server of this machine uses, as far as that can be seen: it would change under us."""
    if not folder.is_local:
        return
    path = Path(folder.uri).resolve()
    roots = [path, *(above for above in path.parents if (path / "x").relative_to(above).parts[0] == "jetstream")]
    for root in roots:
        if (root / "jetstream").is_dir() and (process := server_using(root)) is not None:
            raise StoreInUseError(
                f"A nats-server, process {process}, is using {folder.uri}.",
                remedy="Read its streams through it, stop it, or read a copy of the folder or a backup.",
                store=folder.uri,
                pid=process,
            )


def open_backup(uri: str | os.PathLike[str], stream: str | None = None, progress: Progress | None = None) -> History:
    """Open a backup of a stream, whichever server wrote it."""
    folder = open_folder(uri)
    path, meta = backups.archive_of(folder)
    name = meta["config"]["name"]
    if stream not in (None, name):
        raise InputError(f"{uri} is a backup of {name} and not of {stream}.", remedy=f"Name {name}, or another backup.")
    return open_archive(folder, path, meta, progress)[0]


def open_archive(
    folder: Folder, path: str, meta: dict[str, Any], progress: Progress | None = None
) -> tuple[History, Contents | Tar]:
    """Open the archive of a backup; give its history, and what it is: messages, or the files of a store."""
    try:
        with Unpacked(open_file(path)) as file:
            has_messages = file.read(len(MAGIC)) == MAGIC
        if not has_messages:
            files = Tar.open(path)
            return _history(open_stream(files, progress=progress), folder.uri), files
        found = backups.walk(path, progress)
    except ValueError as error:
        raise backups.damaged(folder, str(error)) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.", remedy="May this user?") from None
    first, last = found.state.get("first_seq", 0), max(found.state.get("last_seq", 0), found.last)
    name = meta["config"]["name"]
    return History(name, folder.uri, meta["config"], first, last, found.messages, found.parts), found


def _history(stored: StoredStream, source: str) -> History:
    return History(
        stored.name,
        source,
        stored.config,
        stored.first,
        stored.last,
        stored.messages,
        stored.segments,
        stored.rebuilt,
        stored.damage,
    )
