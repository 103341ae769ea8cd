"""What is in a store, looked through block by block: every checksum, every hole, and what is damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PenstockError
from penstock.store.files import Folder, open_folder
from penstock.store.graves import Graves, alive_runs
from penstock.store.history import refuse_running
from penstock.store.places import InFile
from penstock.store.records import Records, key_of
from penstock.store.stored import Segment, StoredStream, block_files, is_encrypted, open_stream, stream_folders

__all__ = ["BlockFound", "StreamFound", "inspect_store"]

_HOLES = 1000  # that are listed; all are counted


@dataclass(frozen=True)
class BlockFound:
    """A block file."""

    number: int
    file: str
    size: int
    messages: int = 0
    first: int = 0
    last: int = 0
    removed: int = 0
    """Messages that are still in the file and not in the stream."""
    compressed: bool = False
    damage: str | None = None


@dataclass(frozen=True)
class StreamFound:
    """A stream of a store; `holes` are sequences from the first to the last that are not there, ends included."""

    account: str
    name: str
    folder: str
    size: int = 0
    encrypted: bool = False
    messages: int = 0
    first: int = 0
    last: int = 0
    compression: str = "none"
    index: str = ""
    """Why the index was not believed; nothing if it was."""
    blocks: tuple[BlockFound, ...] = ()
    missing: int = 0
    holes: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    damage: tuple[str, ...] = ()
    torn: bool = False
    """Whether the last record is not whole, which a crash leaves behind, and a server drops."""


def inspect_store(
    uri: str | os.PathLike[str], stream: str | None = None, progress: Callable[[int], None] | None = None
) -> Iterator[StreamFound]:
    """Look through the streams of a store; InputError if there is no store, StoreInUseError if a server runs on it."""
    folder = open_folder(uri)
    refuse_running(folder)
    for account, name, place in stream_folders(folder, stream, lenient=True):
        yield _look(account, name, place, progress)


def _look(account: str, name: str, folder: Folder, progress: Callable[[int], None] | None) -> StreamFound:
    files = block_files(folder)
    size = sum(each for _, each in files.values())
    if is_encrypted(folder):
        return StreamFound(account, name, folder.uri, size, encrypted=True)
    try:
        stored = open_stream(folder)
    except PenstockError as error:
        return StreamFound(account, name, folder.uri, size, damage=(str(error),))
    alive = {segment.number: segment for segment in stored.segments}
    blocks, bits = [], []
    for number, (path, kept) in sorted(files.items()):
        block, present = _look_at_block(stored, number, path, kept, alive.get(number))
        blocks.append(block)
        bits.append(present)
        if progress is not None:
            progress(kept)
    holes = list(_holes(stored, bits))
    damage = [f"{each.block}: {each.what}" for each in stored.damage if not each.torn]
    damage += [f"{each.file}: {each.damage}" for each in blocks if each.damage and each.file not in " ".join(damage)]
    return StreamFound(
        account,
        stored.name,
        folder.uri,
        size,
        messages=stored.messages,
        first=stored.first,
        last=stored.last,
        compression=str(stored.config.get("compression") or "none"),
        index=stored.rebuilt or "",
        blocks=tuple(blocks),
        missing=sum(last - first + 1 for first, last in holes),
        holes=tuple(holes[:_HOLES]),
        damage=tuple(damage),
        torn=any(each.torn for each in stored.damage),
    )


def _look_at_block(
    stored: StoredStream, number: int, path: str, size: int, segment: Segment | None
) -> tuple[BlockFound, list[tuple[int, int]]]:
    """Verify a block; give what is in it, and which of its sequences are there and alive."""
    facts: dict[str, Any] = {"first": segment.first, "last": segment.last} if segment else {}
    wanted = segment.messages if segment else 0
    place = InFile(path)
    try:
        compressed = place.head(3) == b"cmp"
        content = place.load()
    except (ValueError, OSError) as error:
        return BlockFound(number, path, size, wanted, damage=str(error), **facts), []
    records = Records(0, 1 << 62, max_rows=1, max_bytes=1)
    records.open(key_of(stored.name, number))
    told = records.survey(content, 0, len(content))
    dead = Graves(segment.graves if segment else b"")
    found = alive_runs(told["present"], dead, facts.get("first", 1), facts.get("last", 0))
    count = sum(last - first + 1 for first, last in found)
    damage = None
    is_torn = any(each.torn and each.block == path for each in stored.damage)
    if told["end"] < len(content) and not is_torn:
        damage = f"a record is not whole, or not what its checksum says, at {told['end']}"
    elif count != wanted:
        damage = f"it holds {count} messages and not {wanted}"
    removed = told["messages"] - count
    return BlockFound(number, path, size, count, **facts, removed=removed, compressed=compressed, damage=damage), found


def _holes(stored: StoredStream, runs: list[list[tuple[int, int]]]) -> Iterator[tuple[int, int]]:
    upcoming = stored.first
    for first, last in sorted(run for block in runs for run in block):
        if first > upcoming:
            yield upcoming, first - 1
        upcoming = max(upcoming, last + 1)
    if upcoming <= stored.last:
        yield upcoming, stored.last
