"""A stream in a store that no server uses: its configuration, its blocks, and which of their messages are alive.

The index tells all of that if the server ended in order: then it names the last checksum of the last block. If it does
not, or is missing, every block is looked through, as the server does at its next start: tombstones are collected, a
record that is not whole ends the last block, and the limits of the stream are applied again, as of the time of the last
message, because nothing else says what they had removed. What an older index says to be dead, stays dead.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.asset_names import checked
from penstock.errors import InputError, StoreDamagedError
from penstock.json_text import load_json
from penstock.store.checksums import Highway
from penstock.store.files import Files, Folder
from penstock.store.graves import Graves, members
from penstock.store.index import Damaged, Index, read_block_index, read_index
from penstock.store.limits import beyond_limits
from penstock.store.places import BlockPlace
from penstock.store.reading import BlockReader, Wanted
from penstock.store.records import Records, key_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Damage", "Segment", "StoredStream", "open_stream", "stream_folders"]

_BLOCK = re.compile(r"([0-9]{1,10})\.blk")
_META_LIMIT = 1 << 20


@dataclass(frozen=True)
class Segment:
    """A block of a stream, and what of it is alive."""

    number: int
    place: BlockPlace
    size: int
    """Bytes of the block, as it is kept."""
    first: int
    last: int
    messages: int
    graves: bytes = field(default=b"", repr=False)
    """Those of its sequences that are dead, as `graves` packs them."""

    def batches(self, stream: str, start: int = 0, end: int = 1 << 62, **options: Any) -> Iterator[pa.RecordBatch]:
        """Give its messages whose sequences are in [start, end)."""
        return self.reader(stream, Wanted(start, end, **options)).batches(self)

    def reader(self, stream: str, wanted: Wanted) -> BlockReader:
        """Give who reads such blocks."""
        return BlockReader(stream, wanted)


@dataclass(frozen=True)
class Damage:
    """What of a block cannot be read."""

    block: str
    at: int
    what: str
    torn: bool = False
    """Whether only the end of the last record is missing: the server drops such a one, too."""


@dataclass(frozen=True)
class StoredStream:
    """A stream in a store."""

    name: str
    config: dict[str, Any]
    first: int
    """The first sequence; one more than the last if the stream is empty."""
    last: int
    messages: int
    segments: tuple[Segment, ...]
    rebuilt: str | None = None
    """Why the index was not believed; None if it was."""
    damage: tuple[Damage, ...] = ()


def stream_folders(
    folder: Folder, stream: str | None = None, *, lenient: bool = False
) -> Iterator[tuple[str, str, Folder]]:
    """Find streams in a store: account, name and folder of each.

    The folder may be the one that the server was given, its folder `jetstream`, an account's, or a stream's own.
    `lenient` takes the name of the folder for that of a stream that cannot be read.
    """
    names = folder.names()
    if "meta.inf" in names:
        name = folder.uri.rstrip("/").rpartition("/")[2] if lenient else _meta(folder)["name"]
        if stream in (None, name):
            yield "", name, folder
    elif "streams" in names:
        account = folder.uri.rstrip("/").rpartition("/")[2]
        for name in sorted(name for name, size in folder.inside("streams").names().items() if size is None):
            if stream in (None, name) and "meta.inf" in folder.inside("streams", name).names():
                yield account, name, folder.inside("streams", name)
    elif "jetstream" in names:
        yield from stream_folders(folder.inside("jetstream"), stream, lenient=lenient)
    else:
        for account in sorted(name for name, size in names.items() if size is None):
            if "streams" in folder.inside(account).names():
                yield from stream_folders(folder.inside(account), stream, lenient=lenient)


def is_encrypted(folder: Files) -> bool:
    """Tell whether a stream is encrypted, by the keys that stand beside its files."""
    return "meta.key" in folder.names() or any(name.endswith(".key") for name in _messages_folder(folder).names())


def block_files(folder: Files) -> dict[int, tuple[str, int]]:
    """Give path and size of each block file of a stream, by its number."""
    messages = _messages_folder(folder)
    return {number: (messages.path(f"{number}.blk"), size) for number, size in _blocks(messages.names())}


def _blocks(listed: dict[str, int | None]) -> list[tuple[int, int]]:
    """Give number and size of the blocks among some files, in order."""
    sizes = ((found, size) for name, size in listed.items() if (found := _BLOCK.fullmatch(name)) and size is not None)
    return sorted((int(found[1]), size) for found, size in sizes)


def _meta(folder: Files) -> dict[str, Any]:
    content = folder.read("meta.inf") or b""
    if is_encrypted(folder):
        raise InputError(
            f"{folder.uri} is encrypted.",
            remedy="Let a server that has the key make a backup of the stream: backups are not encrypted.",
        )
    try:
        meta = load_json(content[:_META_LIMIT])
        name = checked(meta["name"])
    except (ValueError, KeyError, TypeError, InputError) as error:
        raise StoreDamagedError(
            f"{folder.path('meta.inf')} is not the description of a stream.",
            remedy="Read another copy of the store.",
            store=folder.uri,
            losses=("meta.inf",),
        ) from error
    told = (folder.read("meta.sum") or b"").decode("ascii", "replace")
    found = Highway(hashlib.sha256(name.encode()).digest()).of(content).to_bytes(8, "little").hex()
    if told and told != found:
        raise StoreDamagedError(
            f"{folder.path('meta.inf')} is not what its checksum says.",
            remedy="Read another copy of the store.",
            store=folder.uri,
            losses=("meta.inf",),
        )
    return dict(meta)


def open_stream(folder: Files, *, progress: Callable[[int], None] | None = None) -> StoredStream:
    """Say what a stream's folder holds; `progress` gets the bytes of each block that had to be looked through."""
    meta = _meta(folder)
    name = meta["name"]
    messages = _messages_folder(folder)
    blocks = _blocks(messages.names())
    content = messages.read("index.db")
    index = None
    if content is None:
        why = "there is no index"
    else:
        try:
            index = read_index(content, name)
            return _by_index(name, meta, messages, dict(blocks), index)
        except Damaged as error:
            why = f"the index cannot be believed: {error}"
    return _rebuild(name, meta, messages, blocks, why, index, progress)


def _messages_folder(folder: Files) -> Files:
    """Give the folder of the blocks; a purge that was broken off has left the one that holds in another place."""
    fresh = folder.inside("__new_msgs__")
    return fresh if any(_BLOCK.fullmatch(name) for name in fresh.names()) else folder.inside("msgs")


def _by_index(name: str, meta: dict[str, Any], folder: Files, sizes: dict[int, int], index: Index) -> StoredStream:
    last = folder.read(f"{index.last_block}.blk") if index.last_block in sizes else None
    if last is None or last[-8:] != index.last_checksum:
        raise Damaged("messages came after it was written")
    if max(sizes, default=0) > index.last_block:
        raise Damaged("blocks came after it was written")
    missing = [block.number for block in index.blocks if block.messages and block.number not in sizes]
    damage = tuple(Damage(folder.place(f"{number}.blk").shown, 0, "the file is missing") for number in missing)
    segments = tuple(
        Segment(
            block.number,
            folder.place(f"{block.number}.blk"),
            sizes.get(block.number, 0),
            block.first,
            block.last,
            block.messages,
            block.graves,
        )
        for block in index.blocks
        if block.messages
    )
    return StoredStream(name, meta, index.first, index.last, index.messages, segments, None, damage)


# -- without an index -------------------------------------------------------------------------------------------------


def _rebuild(
    name: str,
    meta: dict[str, Any],
    folder: Files,
    blocks: list[tuple[int, int]],
    why: str,
    index: Index | None,
    progress: Callable[[int], None] | None,
) -> StoredStream:
    segments: list[Segment] = []
    present: list[bytes] = []
    damage: list[Damage] = []
    dead = Graves()
    last = newest = 0
    for number, size in blocks:
        place = folder.place(f"{number}.blk")
        try:
            content = place.load()
        except (ValueError, OSError) as error:
            damage.append(Damage(place.shown, 0, str(error)))
            continue
        records = Records(0, 1 << 62, max_rows=1, max_bytes=1)
        records.open(key_of(name, number))
        told = records.survey(content, 0, len(content))
        if told["end"] < len(content):
            damage.append(_broken(place, content, told["end"], number == blocks[-1][0]))
        dead.add(told["tombstones"])
        if (older := folder.read(f"{number}.idx")) is not None:
            dead.add(_known_to(older, told["present"]))
        last = max(last, told["last"], *told["tombstones"], 0)
        newest = max(newest, told["last_time"])
        if told["messages"]:
            segments.append(Segment(number, place, size, told["first"], told["last_message"], told["messages"]))
            present.append(told["present"])
        if progress is not None:
            progress(size)
    if index is not None and index.last > last:  # a server writes an index down after the messages that it knows of
        what = f"the index knows messages up to {index.last}, the blocks only up to {last}"
        damage.append(Damage(folder.path("index.db"), 0, what))
        last = index.last
    if index is not None:
        for segment, sequences in zip(segments, present, strict=True):
            dead.add(_dead_before(index, segment.number, sequences))
    dead.add(beyond_limits(name, meta, segments, dead, newest))
    alive = []
    for segment, sequences in zip(segments, present, strict=True):
        graves, messages, lowest, highest = dead.among(sequences)
        if messages:
            alive.append(replace(segment, first=lowest, last=highest, messages=messages, graves=graves))
    first = max(alive[0].first if alive else last + 1, meta.get("first_seq") or 0)
    total = sum(segment.messages for segment in alive)
    return StoredStream(name, meta, first, last, total, tuple(alive), why, tuple(damage))


def _dead_before(index: Index, number: int, present: bytes) -> Iterator[int]:
    """Give those messages of a block that were dead when a stale index was written.

    They are dead for good: before a server ever uses a sequence again, it removes the index. It forgets them itself,
    and after a crash has messages again that were purged.
    """
    block = next((each for each in index.blocks if each.number == number), None)
    graves = Graves(block.graves if block else b"")
    for sequence in members(present, index.last + 1):
        if block is None or not block.first <= sequence <= block.last or sequence in graves:
            yield sequence


def _known_to(older: bytes, present: bytes) -> Iterator[int]:
    """Give what the index of a block, which servers before 2.10 wrote, knows to be dead; that holds if it is stale."""
    try:
        index = read_block_index(older)
    except Damaged:
        return
    yield from index.dead
    yield from members(present, index.first)


def _broken(place: BlockPlace, content: bytearray, at: int, is_last: bool) -> Damage:
    left = len(content) - at
    size = int.from_bytes(content[at : at + 4], "little") & 0x7FFFFFFF
    torn = is_last and (left < 22 or left < size <= 32 << 20)
    what = "the last record is not whole" if torn else "a record is not what its checksum says"
    return Damage(place.shown, at, what, torn)
