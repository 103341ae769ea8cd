"""The folder of an archive: its files, and the notes that say which stream it is of and how far it reaches::

    DIR/day=2026-01-31/00000000000000000001.parquet    messages in order; the name is the first one's sequence, and the
                                                       day the UTC date of all of them
    DIR/_penstock/archive.json                         which stream it is of
    DIR/_penstock/progress.json                        how far it reaches, as an offset of the source; its files; what
                                                       was lost
    DIR/_penstock/run.json                             who may write
    DIR/_penstock/writing/                             files that are not part of it yet

All readers of Parquet leave out what begins with `_`. A file holds the sequences from its name on up to the next name.
Files come to their places whole and in the order of their sequences, so whoever reads sees each message once, up to
some sequence, at any moment, whatever was killed. The last file of all may grow: it is replaced by a longer one.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import InputError, StoreDamagedError
from penstock.json_text import load_json
from penstock.part_file import move_whole, sync_folder
from penstock.spark.offsets import Mark, Offset
from penstock.store.opening import arrow_path

__all__ = [
    "ArchiveFolder",
    "Identity",
    "Progress",
    "is_archive",
    "read_identity",
    "read_progress",
    "write_identity",
    "write_progress",
]

OWN = "_penstock"
IDENTITY, PROGRESS, RUN = f"{OWN}/archive.json", f"{OWN}/progress.json", f"{OWN}/run.json"
WRITING = f"{OWN}/writing"
VERSION = 1


@dataclass(frozen=True)
class ArchiveFolder:
    """The folder of an archive, on this machine or wherever Arrow reaches."""

    uri: str

    @property
    def local(self) -> Path | None:
        """The folder on this machine; None if it is elsewhere."""
        path = self.uri.removeprefix("file://")
        return None if "://" in path else Path(path).absolute()

    @property
    def _opened(self) -> tuple[Any, str]:
        return _open(self.uri if self.local is None else str(self.local))

    def path(self, name: str) -> str:
        """Say where a file is, as Arrow knows it."""
        return f"{self._opened[1].rstrip('/')}/{name}"

    def open(self, name: str) -> BinaryIO:
        """Open a file to read any part of it."""
        opened: BinaryIO = self._opened[0].open_input_file(self.path(name))
        return opened

    def create(self, name: str) -> BinaryIO:
        """Make a file; on an object store it is there when it is closed, and whole."""
        with self._told("written to"):
            self._folder_of(name)
            opened: BinaryIO = self._opened[0].open_output_stream(self.path(name))
        return opened

    def move(self, name: str, to: str) -> None:
        """Put a file in its place, whole, instead of the one that is there."""
        with self._told("written to"):
            self._folder_of(to)
            if self.local is None:
                self._opened[0].move(self.path(name), self.path(to))
                return
            move_whole(self.local / name, self.local / to)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._opened[0].delete_file(self.path(name))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a note; None if it is not there."""
        try:
            with self._told("read"), self.open(name) as file:
                content = load_json(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise _broken(self.uri, name)
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a note, whole or not at all."""
        part = f"{WRITING}/{name.rpartition('/')[2]}.part"
        with self.create(part) as file:
            file.write(json.dumps({"version": VERSION, **content}, sort_keys=True).encode() + b"\n")
        self.move(part, name)

    def listed(self, name: str = "") -> list[tuple[str, int]]:
        """List the files below a folder with their sizes, by their names from this folder on, sorted."""
        from pyarrow import fs

        system, root = self._opened
        selector = fs.FileSelector(self.path(name).rstrip("/"), recursive=True, allow_not_found=True)
        start = len(root.rstrip("/")) + 1
        with self._told("read"):
            found = system.get_file_info(selector)
        return sorted((item.path[start:], item.size) for item in found if item.type == fs.FileType.File)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Say in a sentence what a file system says."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            remedy = "Check that there is room, and that this user may do it."
            raise InputError(f"{self.uri} cannot be {what}: {error.strerror or error}.", remedy=remedy) from None

    def _folder_of(self, name: str) -> None:
        system, _ = self._opened
        folder = self.path(name).rpartition("/")[0]
        if self.local is not None and not Path(folder).exists():
            system.create_dir(folder, recursive=True)
            sync_folder(Path(folder).parent)


@functools.lru_cache(maxsize=16)
def _open(uri: str) -> tuple[Any, str]:
    if "://" in uri:
        return arrow_path(uri)
    from pyarrow import fs

    return fs.LocalFileSystem(), uri


def _broken(uri: str, name: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{name} of the archive {uri} is not what an archiver of this Penstock writes.",
        remedy="Use the Penstock that wrote it, or a newer one; or restore the file from a copy.",
        store=uri,
        losses=(name,),
    )


# -- what is noted -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """Which stream an archive is of, and what of it."""

    stream: str
    created: str
    """When the stream was made, as the server writes it."""
    subjects: tuple[str, ...] | None = None
    """The only subjects that are archived; None for all."""
    domain: str | None = None
    """The JetStream domain that it was first read from, for people."""


@dataclass(frozen=True)
class Progress:
    """How far an archive reaches."""

    mark: Mark
    """Where the next message comes from, and what the stream was seen to hold."""
    lost: tuple[tuple[int, int], ...] = ()
    """Ranges of sequences that were gone before they were archived."""
    files: tuple[tuple[int, int, int], ...] = ()
    """First sequence, last sequence and number of messages of each file; the last one may have grown since."""


def is_archive(names: Iterable[str]) -> bool:
    """Tell by the names in a folder whether it is an archive."""
    return OWN in names


def read_identity(uri: str) -> Identity:
    """Say which stream an archive is of; InputError if it is not an archive."""
    content = ArchiveFolder(uri).read_json(IDENTITY)
    if content is None:
        raise InputError(
            f"{uri} is not an archive: it has no {IDENTITY}.",
            remedy="Name a folder that `penstock stream archive` writes.",
        )
    stream, created, subjects = (content.get(name) for name in ("stream", "created", "subjects"))
    if not (isinstance(stream, str) and isinstance(created, str) and isinstance(subjects, list | None)):
        raise _broken(uri, IDENTITY)
    only = None if subjects is None else tuple(str(item) for item in subjects)
    return Identity(stream, created, only, content.get("domain"))


def write_identity(uri: str, identity: Identity) -> None:
    """Note which stream an archive is of."""
    content = {
        "stream": identity.stream,
        "created": identity.created,
        "subjects": None if identity.subjects is None else list(identity.subjects),
        "domain": identity.domain,
    }
    ArchiveFolder(uri).write_json(IDENTITY, content)


def read_progress(uri: str, stream: str) -> Progress | None:
    """Say how far an archive was noted to reach; None if nothing was."""
    content = ArchiveFolder(uri).read_json(PROGRESS)
    if content is None:
        return None
    try:
        mark = Offset.from_json(content["offset"]).marks[stream]
        lost = tuple((int(start), int(end)) for start, end in content["lost"])
        files = tuple((int(first), int(last), int(count)) for first, last, count in content["files"])
    except (InputError, KeyError, TypeError, ValueError):
        raise _broken(uri, PROGRESS) from None
    return Progress(mark, lost, files)


def write_progress(uri: str, stream: str, progress: Progress) -> None:
    """Note how far an archive reaches."""
    offset = Offset({stream: progress.mark}).to_json()
    content = {"offset": offset, "lost": list(progress.lost), "files": list(progress.files)}
    ArchiveFolder(uri).write_json(PROGRESS, content)
