"""Backups, as `penstock stream backup` and `nats stream backup` write them: `backup.json` and one compressed archive.

Servers before 2.15 send the files of their store as a tar archive (`stream.tar.s2`): it is read as a store is, block by
block. Newer ones send the messages themselves (`stream.arc.s2`, see `entries`). Which of them it is, the archive's
first bytes say, whatever the file is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.asset_names import checked
from penstock.errors import InputError, StoreDamagedError
from penstock.json_text import load_json
from penstock.store.entries import MAGIC, Entries
from penstock.store.files import Folder
from penstock.store.opening import open_file
from penstock.store.reading import Wanted, taken
from penstock.store.s2 import Broken
from penstock.store.unpacked import Unpacked
from penstock.wire.columns import BEYOND, FULL, NEED, OTHER

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ARCHIVES", "Contents", "Part", "PartReader", "archive_of", "damaged", "walk"]

META = "backup.json"
ARCHIVES = ("stream.arc.s2", "stream.tar.s2")
_PART = 8 << 20  # bytes of messages, unpacked, from one place where a read may begin to the next


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
        meta = load_json(folder.read(META) or b"")
        checked(meta["config"]["name"])
    except (ValueError, KeyError, TypeError, InputError) as error:
        raise damaged(folder, f"{META} is not the description of a stream") from error
    return folder.path(found[0]), dict(meta)


def damaged(folder: Folder, what: str) -> StoreDamagedError:
    """Say that a backup cannot be read."""
    return StoreDamagedError(
        f"The backup {folder.uri} is damaged: {what}.",
        remedy="Read another copy of it.",
        store=folder.uri,
        losses=(what,),
    )


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
    anchor: tuple[int, int] = (0, 0)
    """Where reading may begin: in the file, and in what it becomes."""

    def batches(self, stream: str, start: int = 0, end: int = 1 << 62, **options: Any) -> Iterator[pa.RecordBatch]:
        """Give its messages whose sequences are in [start, end)."""
        return self.reader(stream, Wanted(start, end, **options)).batches(self)

    def reader(self, stream: str, wanted: Wanted) -> PartReader:
        """Give who reads such parts."""
        return PartReader(stream, wanted)


@dataclass(frozen=True)
class Contents:
    """What an archive of messages holds, as it was found."""

    state: dict[str, Any]
    """The state of the stream as the server wrote it down when it began."""
    consumers: tuple[str, ...]
    messages: int
    size: int
    """Bytes that the messages take in a store."""
    last: int
    """The sequence of the last message; 0 if there is none."""
    parts: tuple[Part, ...]


def walk(path: str, progress: Callable[[int], None] | None = None) -> Contents:
    """Go through an archive of messages, making no rows: say what it holds, and where reads may begin.

    Broken if it is not whole: its end must be said. It may hold other messages than its state says: limits removed
    some while it was written, or somebody edited it.
    """
    with Unpacked(open_file(path)) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Broken("it does not begin as a backup does")
        return _Walk(path, file).run(progress)


class _Walk:
    def __init__(self, path: str, file: Unpacked) -> None:
        self.path, self.file = path, file
        self.entries = Entries(1, 1 << 62, max_rows=1, max_bytes=1)
        self.entries.counting = True
        self.state: dict[str, Any] | None = None
        self.consumers: list[str] = []
        self.parts: list[Part] = []
        self.begin = self.counted = 0
        self.first = 1

    def run(self, progress: Callable[[int], None] | None) -> Contents:
        is_over = False
        for waiting, offset in _portions(self.file, len(MAGIC), progress=progress):
            position, is_over = self._take(waiting, offset)
            del waiting[:position]
            at = offset + position
            if self.entries.counted > self.counted and (is_over or at - self.begin >= _PART):
                self._cut(at)
            if is_over:
                break
        if not is_over or self.state is None:
            raise Broken("it ends before its end is said")
        entries = self.entries
        return Contents(
            self.state, tuple(self.consumers), entries.counted, entries.stored, entries.last, tuple(self.parts)
        )

    def _take(self, waiting: bytearray, offset: int) -> tuple[int, bool]:
        """Take what is whole; give the position behind it, and whether the end was said."""
        entries = self.entries
        position = entries.take(waiting, 0, len(waiting)) if self.state is not None else 0
        while self.state is None or entries.stop == OTHER:
            found = entries.entry(waiting, position, len(waiting))
            if found is None:
                return position, False
            name, content, behind = found
            if (name == b"state.json") != (self.state is None) or (name and entries.counted):
                raise Broken(f"what stands at {offset + position} does not belong there")
            if not name:
                return position, True
            if self.state is None:
                self.state = _state(content)
            else:
                self.consumers.append(name.decode("utf-8", "replace").removeprefix("consumers/"))
            self.begin = offset + behind
            position = entries.take(waiting, behind, len(waiting))
        if entries.stop != NEED:
            raise Broken(f"what stands at {offset + position} is not a message that may follow")
        return position, False

    def _cut(self, at: int) -> None:
        entries = self.entries
        messages, anchor = entries.counted - self.counted, self.file.anchor(self.begin)
        self.parts.append(Part(self.path, self.begin, at - self.begin, self.first, entries.last, messages, anchor))
        self.begin, self.first, self.counted = at, entries.last + 1, entries.counted


def _state(content: bytes) -> dict[str, Any]:
    try:
        state = load_json(content)
        numbers = [state.get(name, 0) for name in ("first_seq", "last_seq", "messages", "bytes", "consumer_count")]
    except (ValueError, AttributeError):
        raise Broken("its state.json is not the state of a consumer") from None
    if not all(isinstance(number, int) and 0 <= number < 1 << 62 for number in numbers):
        raise Broken("its state.json holds numbers that are not possible")
    return dict(state)


class PartReader:
    """Reads parts of a backup, one after the other, in the same memory."""

    def __init__(self, stream: str, wanted: Wanted) -> None:
        self.stream, self.wanted = stream, wanted
        self.entries = Entries(wanted.start, wanted.end, **wanted.columns(stream))
        self.waiting = bytearray()

    def batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Give the messages of a part that are wanted; Broken if some cannot be read."""
        entries, stream = self.entries, self.stream
        entries.open(max(self.wanted.start, part.first))
        with Unpacked(open_file(part.path), part.anchor) as file:
            for waiting, offset in _portions(file, part.offset, part.offset + part.size, self.waiting):
                position = entries.take(waiting, 0, len(waiting))
                while entries.stop == FULL:
                    yield taken(entries, stream, self.wanted)
                    position = entries.take(waiting, position, len(waiting))
                if entries.stop == BEYOND:
                    break
                if entries.stop != NEED:
                    raise Broken(f"what stands at {offset + position} is not a message that may follow")
                del waiting[:position]
        if entries.rows:
            yield taken(entries, stream, self.wanted)


def _portions(
    file: Unpacked,
    offset: int,
    end: int = 1 << 62,
    waiting: bytearray | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[bytearray, int]]:
    """Give what is waiting, with one portion more each time, and its offset; who takes from it takes from its front."""
    waiting = bytearray() if waiting is None else waiting
    waiting.clear()
    file.seek(offset)
    while file.append_to(waiting, end):
        before = file.tell() - len(waiting)
        yield waiting, before
        if progress is not None:
            progress(file.tell() - offset)
            offset = file.tell()
    if waiting:
        raise Broken("it ends in the middle of a message")
