"""`index.db`, what a server writes down of a stream when it ends in order, and in the minutes between.

All numbers but the first two bytes are of variable length, those marked ± with the sign in the lowest bit::

    magic (1 byte, 11)  version (1 byte, 1 to 4)
    messages  bytes  first  first time ±  last  last time ±
    subjects, and for each: size, subject, messages, first block, last block (up to version 3 only if messages > 1)
    blocks, and for each: number, bytes, first, first time ±, last, last time ±, deleted, [TTLs from version 2],
        [schedules from version 3], and if some are deleted, the set of them
    number of the last block, its last checksum (8 bytes)
    HighwayHash-64 of all that (8 bytes); its key is the SHA-256 of the stream's name

Times of blocks are counted from the stream's first. A set is 22, version (2), nodes (4), members (4), and for each node
its first sequence (8), 32 words of bits (8 each) and a height (2), little-endian; version 1 has 64 words.

Servers before 2.10 wrote an index for each block instead, `<number>.idx`, and no tombstones::

    magic (1 byte, 22)  version (1 byte, 1 or 2)
    messages  bytes  first  first time ±  last  last time ±  deleted  last checksum of the block (8 bytes)
    version 2: the set of those that are deleted; version 1: each of them, counted from the first
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from penstock.store.checksums import Highway
from penstock.store.graves import SPAN, members

__all__ = ["Block", "BlockIndex", "Damaged", "Index", "read_block_index", "read_index"]

MAGIC, VERSIONS = 11, range(1, 5)
_SET_MAGIC, _WORDS = 22, {1: 64, 2: 32}
_CHECKSUM = 8


class Damaged(ValueError):
    """Bytes that are not an index, or not what their checksum says."""


@dataclass(frozen=True)
class Block:
    """A block as the index describes it."""

    number: int
    size: int
    """Bytes of the messages that are alive."""
    first: int
    last: int
    deleted: int
    graves: bytes
    """Those of its sequences that are dead, as `graves` packs them."""

    @property
    def messages(self) -> int:
        """How many messages it holds that are alive."""
        return max(self.last - self.first + 1 - self.deleted, 0)


@dataclass(frozen=True)
class Index:
    """What an index says."""

    messages: int
    size: int
    """Bytes of all messages."""
    first: int
    last: int
    first_time: int
    last_time: int
    subjects: int
    blocks: tuple[Block, ...]
    last_block: int
    last_checksum: bytes


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def take(self, size: int) -> bytes:
        taken = self.content[self.place : self.place + size]
        if size < 0 or len(taken) != size:
            raise Damaged("it ends too early")
        self.place += size
        return taken

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                if value >> 64:
                    raise Damaged("a number has more than 64 bits")
                return value
            if shift > 63:
                raise Damaged("a number has no end")

    def signed(self) -> int:
        value = self.number()
        return value >> 1 ^ -(value & 1)


def read_index(content: bytes, stream: str) -> Index:
    """Read an index; Damaged if it is something else, or not this stream's."""
    body, told = content[:-_CHECKSUM], content[-_CHECKSUM:]
    if len(content) < 32 or body[0] != MAGIC or body[1] not in VERSIONS:
        raise Damaged("it does not begin as an index does")
    if Highway(hashlib.sha256(stream.encode()).digest()).of(body) != int.from_bytes(told, "little"):
        raise Damaged("it is not what its checksum says")
    reader, version = _Reader(body), body[1]
    reader.place = 2
    messages, size, first, first_time = reader.number(), reader.number(), reader.number(), reader.signed()
    last, last_time = reader.number(), reader.signed()
    subjects = reader.number()
    for _ in range(subjects):
        name = reader.number()
        if name:
            reader.take(name)
            total, _block = reader.number(), reader.number()
            if total > 1 or version >= 4:
                reader.number()
    blocks = tuple(_read_block(reader, version) for _ in range(reader.number()))
    if sum(block.messages for block in blocks) != messages:
        raise Damaged("it does not agree with itself")
    return Index(
        messages, size, first, last, first_time, last_time, subjects, blocks, reader.number(), reader.take(_CHECKSUM)
    )


def _read_block(reader: _Reader, version: int) -> Block:
    number, size, first, _, last, _, deleted = (
        reader.number(),
        reader.number(),
        reader.number(),
        reader.signed(),
        reader.number(),
        reader.signed(),
        reader.number(),
    )
    for _later in range(min(version, 3) - 1):
        reader.number()
    return Block(number, size, first, last, deleted, _read_set(reader) if deleted else b"")


def _read_set(reader: _Reader) -> bytes:
    magic, version = reader.take(2)
    if magic != _SET_MAGIC or version not in _WORDS:
        raise Damaged("a set of sequences does not begin as it must")
    words = _WORDS[version]
    nodes = int.from_bytes(reader.take(4), "little")
    reader.take(4)
    found: dict[int, bytes] = {}
    for _ in range(nodes):
        base = int.from_bytes(reader.take(8), "little")
        bits = reader.take(8 * words)
        reader.take(2)
        if base % SPAN or base >> 62:
            raise Damaged("a set of sequences has a piece that begins in the wrong place")
        for at in range(0, len(bits), SPAN // 8):
            found[base + 8 * at] = bits[at : at + SPAN // 8]
    return b"".join(base.to_bytes(8, "little") + found[base] for base in sorted(found))


@dataclass(frozen=True)
class BlockIndex:
    """What the index of one block says."""

    first: int
    """Messages before this one are dead."""
    dead: tuple[int, ...]


def read_block_index(content: bytes) -> BlockIndex:
    """Read the index of a block, as servers before 2.10 wrote it; Damaged if it is something else."""
    if len(content) < 2 or content[0] != _SET_MAGIC or content[1] not in (1, 2):
        raise Damaged("it does not begin as the index of a block does")
    reader = _Reader(content)
    reader.place = 2
    messages, _, first, _, last, _, deleted = (
        reader.number(),
        reader.number(),
        reader.number(),
        reader.signed(),
        reader.number(),
        reader.signed(),
        reader.number(),
    )
    if messages != last - first + 1 - deleted:
        raise Damaged("it does not agree with itself")
    reader.take(_CHECKSUM)
    if not deleted:
        dead: tuple[int, ...] = ()
    elif content[1] == 1:
        dead = tuple(first + reader.number() for _ in range(min(deleted, len(content))))
    else:
        dead = tuple(members(_read_set(reader)))
    return BlockIndex(first, dead)
