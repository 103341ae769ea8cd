"""Backups, as `penstock stream backup` and `nats stream backup` write them: `backup.json` and one compressed archive.

Servers before 2.15 send the files of their store as a tar archive (`stream.tar.s2`): it is read as a store is, block by
block. Newer ones send the messages themselves (`stream.arc.s2`, see `entries`). Which of them it is, the archive's
first bytes say, whatever the file is called.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError, StoreDamagedError
from penstock.store.entries import MAGIC, Entries
from penstock.store.files import Folder
from penstock.store.opening import open_file
from penstock.store.places import InBackup, Place
from penstock.store.reading import BATCH_BYTES, BATCH_ROWS
from penstock.store.s2 import Broken
from penstock.store.unpacked import Unpacked
from penstock.wire.arrow import to_batch
from penstock.wire.columns import BEYOND, FULL, NEED, OTHER

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ARCHIVES", "Part", "Tar", "archive_of", "read_part", "walk"]

META = "backup.json"
ARCHIVES = ("stream.arc.s2", "stream.tar.s2")
_CHUNK = 1 << 20
_PART = 32 << 20  # bytes of messages, unpacked, from one place where a read may begin to the next


def archive_of(folder: Folder) -> tuple[str, dict[str, Any]]:
    """Give the archive of a backup, and what `backup.json` says."""
    names = folder.names()
    found = [name for name in ARCHIVES if name in names]
    if META not in names or len(found) != 1:
        archives = f"has {' and '.join(found) or 'no archive'}"
        what = archives if META in names else "has no backup.json, which is written last"
        raise InputError(
            f"{folder.uri} is not a whole backup: it {what}.",
            remedy="Name a folder that `penstock stream backup` or `nats stream backup` has written to its end.",
        )
    try:
        meta = json.loads(folder.read(META) or b"")
        name = meta["config"]["name"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder, f"{META} is not the description of a stream") from error
    meta["config"]["name"] = str(name)
    return folder.path(found[0]), dict(meta)


def damaged(folder: Folder, what: str) -> StoreDamagedError:
    """Say that a backup cannot be read."""
    return StoreDamagedError(
        f"The backup {folder.uri} is damaged: {what}.",
        remedy="Read another copy of it.",
        store=folder.uri,
        losses=(what,),
    )


# -- a tar archive, as if it were a store ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tar:
    """A folder inside of a tar archive, with the face of `Folder`."""

    uri: str
    members: dict[str, tuple[int, int]] = field(repr=False)
    """Offset and size of each file."""
    inner: str = ""

    @classmethod
    def open(cls, path: str) -> Tar:
        """Find the files in an archive; Broken if it is none."""
        with Unpacked(open_file(path)) as file:
            try:
                with tarfile.open(fileobj=file, mode="r:") as tar:
                    members = {item.name: (item.offset_data, item.size) for item in tar if item.isfile()}
            except tarfile.TarError as error:
                raise Broken(f"it is no tar archive: {error}") from None
        return cls(path, members)

    def inside(self, *names: str) -> Tar:
        """Give a folder below this one."""
        return Tar(self.uri, self.members, f"{self.inner}{'/'.join(names)}/")

    def names(self) -> dict[str, int | None]:
        """List the files in it."""
        here = ((name, size) for name, (_, size) in self.members.items() if name.startswith(self.inner))
        within = {name.removeprefix(self.inner): size for name, size in here}
        return {name: size for name, size in within.items() if "/" not in name}

    def path(self, name: str) -> str:
        """Say where a file in it is."""
        return f"{self.uri}:{self.inner}{name}"

    def place(self, name: str) -> Place:
        """Give where a block in it is."""
        offset, size = self.members.get(self.inner + name, (0, 0))
        return InBackup(self.uri, self.inner + name, offset, size)

    def read(self, name: str) -> bytes | None:
        """Read a file; None if it is not there."""
        if self.inner + name not in self.members:
            return None
        offset, size = self.members[self.inner + name]
        with Unpacked(open_file(self.uri)) as file:
            file.seek(offset)
            return b"".join(iter(lambda: file.read(offset + size - file.tell()), b""))


# -- an archive of messages -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Some of the messages of a backup, one behind the other."""

    path: str
    offset: int
    size: int
    """Bytes, unpacked."""
    first: int
    last: int
    messages: int

    def batches(self, stream: str, start: int = 0, end: int = 1 << 62, **options: Any) -> Iterator[pa.RecordBatch]:
        """Give its messages whose sequences are in [start, end)."""
        return read_part(stream, self, start, end, **options)


def walk(path: str, progress: Callable[[int], None] | None = None) -> tuple[dict[str, Any], tuple[Part, ...]]:
    """Go through an archive of messages, making no rows: give the state that it names, and where reads may begin.

    Broken if it is not whole: its end must be said, and as many messages be there as its state says.
    """
    entries = Entries(1, 1 << 62, max_rows=1, max_bytes=1)
    entries.counting = True
    state: dict[str, Any] = {}
    parts: list[Part] = []
    begin = begun = counted = 0
    for waiting, offset in _portions(path, len(MAGIC), None, progress):
        position, is_over = entries.take(waiting, 0, len(waiting)), False
        while entries.stop == OTHER and (found := entries.entry(waiting, position, len(waiting))) is not None:
            name, content, behind = found
            is_over = not name
            if is_over:
                break
            if name == b"state.json":
                state = dict(json.loads(content))
            position = behind
            begin = offset + position
            position = entries.take(waiting, position, len(waiting))
        if entries.stop not in (NEED, OTHER):
            raise Broken(f"what stands at {offset + position} is no message that may follow")
        del waiting[:position]
        at = offset + position
        if entries.counted > counted and (is_over or at - begin >= _PART):
            parts.append(Part(path, begin, at - begin, begun + 1, entries.last, entries.counted - counted))
            begin, begun, counted = at, entries.last, entries.counted
        if is_over:
            break
    else:
        raise Broken("it ends before its end is said")
    if entries.counted != state.get("messages", 0):
        raise Broken(f"it says that it has {state.get('messages', 0)} messages, and has {entries.counted}")
    return state, tuple(parts)


def read_part(
    stream: str,
    part: Part,
    start: int = 0,
    end: int = 1 << 62,
    *,
    headers: bool = True,
    escape: bool = False,
    max_rows: int = BATCH_ROWS,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Give the messages of a part whose sequences are in [start, end); Broken if some cannot be read."""
    entries = Entries(max(start, part.first), end, max_rows=max_rows, max_bytes=max_bytes, headers=headers)
    for waiting, offset in _portions(part.path, part.offset, part.offset + part.size):
        position = entries.take(waiting, 0, len(waiting))
        while entries.stop == FULL:
            yield to_batch(entries.close(), stream, escape=escape)
            entries.restart()
            position = entries.take(waiting, position, len(waiting))
        if entries.stop == BEYOND:
            break
        if entries.stop != NEED:
            raise Broken(f"what stands at {offset + position} is no message that may follow")
        del waiting[:position]
    if entries.rows:
        yield to_batch(entries.close(), stream, escape=escape)


def _portions(
    path: str, offset: int, end: int | None, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[bytearray, int]]:
    """Give what is waiting, with one portion more each time, and its offset; who takes from it takes from its front."""
    waiting = bytearray()
    with Unpacked(open_file(path)) as file:
        file.seek(offset)
        end = file.size if end is None else end
        while file.tell() < end and (portion := file.read(min(_CHUNK, end - file.tell()))):
            waiting += portion
            yield waiting, file.tell() - len(waiting)
            if progress is not None:
                progress(len(portion))
    if waiting:
        raise Broken("it ends in the middle of a message")
