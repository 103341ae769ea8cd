"""Files of stores and backups: whoever can write a disk or make a backup chooses these bytes.

A checksum would end nearly every mutation at once. So it is made right here before the bytes are read: whoever changes
a file on purpose does the same.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.server.records import acknowledged, index_head, stored_streams
from penstock.server.recovery import Held
from penstock.store.backup_report import report_backup
from penstock.store.checksums import Highway
from penstock.store.history import open_backup, open_store
from penstock.store.index import Damaged, read_block_index, read_index
from penstock.store.key_file import read_key_file, reveal
from penstock.store.records import key_of
from penstock.store.s2 import Broken
from tests.fuzz.target import PLAIN, agree, target
from tests.store_sets import piece
from tests.wire_outcomes import rows

STREAM = "S"


@target("records")
def records(content: bytes) -> None:
    """A block of a store, with its checksums as they are, made right, and not looked at."""
    for given, verify in ((content, True), (_with_checksums(content), True), (content, False)):
        agree(lambda form, given=given, verify=verify: _take_records(form, given, verify))
        agree(lambda form, given=given, verify=verify: _survey(form, given, verify))


def _open_records(form: Any, verify: bool) -> Any:
    made = form.records.Records(1, 1 << 62, max_rows=100, max_bytes=1 << 20, verify=verify, sized=True)
    graves = (2048).to_bytes(8, "little") + b"\x55" * 256
    made.open(key_of(STREAM, 1), bytes(8) + b"\x02" + bytes(255) + graves)
    return made


def _take_records(form: Any, content: bytes, verify: bool) -> Any:
    made = _open_records(form, verify)
    place = made.take(bytearray(content), 0, len(content))
    ended = place, made.stop, made.last, made.next, made.rows
    sizes = made.stored_sizes()
    return rows(made), sizes, ended


def _survey(form: Any, content: bytes, verify: bool) -> Any:
    return _open_records(form, verify).survey(bytearray(content), 0, len(content))


def _with_checksums(content: bytes) -> bytes:
    """Make the checksum of each record right, as far as the bytes are records."""
    made, place, key = bytearray(content), 0, Highway(key_of(STREAM, 1))
    while len(made) - place >= 30:
        size = int.from_bytes(made[place : place + 4], "little")
        headed, size = size >> 31, size & 0x7FFFFFFF
        subject = place + 22 + int.from_bytes(made[place + 20 : place + 22], "little")
        body, stop = subject + 4 * headed, place + size - 8
        if size < 30 or place + size > len(made) or body > stop:
            break
        told = key.of(bytes(made[place + 4 : place + 20] + made[place + 22 : subject] + made[body:stop]))
        made[stop : place + size] = told.to_bytes(8, "little")
        place += size
    return bytes(made)


@target("entries")
def entries(content: bytes) -> None:
    """What a backup becomes once it is unpacked."""

    def read(form: Any) -> Any:
        made = form.entries.Entries(1, 1 << 62, max_rows=100, max_bytes=1 << 20)
        place, found = 0, []
        while place < len(content):
            place = made.take(bytearray(content), place, len(content))
            other = made.entry(bytearray(content), place, len(content)) if made.stop == form.columns.OTHER else None
            if other is None or other[2] <= place:
                break
            found.append(other)
            place = other[2]
        ended = place, made.stop, made.last, made.rows
        return found, rows(made), ended

    def count(form: Any) -> Any:
        made = form.entries.Entries(1, 1 << 62, max_rows=1, max_bytes=1)
        made.counting = True
        return made.take(bytearray(content), 0, len(content)), made.stop, made.counted, made.stored

    agree(read)
    agree(count)


@target("s2", Broken)
def s2(content: bytes) -> None:
    """A compressed stream."""
    agree(lambda form: bytes(form.s2.decompress(bytearray(content), limit=1 << 20)), "Broken")


@target("s2-block", Broken)
def s2_block(content: bytes) -> None:
    """A compressed block, whose CRC is right for whatever it becomes."""
    made = b""
    with suppress(Exception):  # what is broken has no CRC
        size, begin = PLAIN.s2.block_size(bytearray(content), 0, len(content))
        if size <= 1 << 20:
            target_of = bytearray(size)
            if PLAIN.s2.steps(bytearray(content), begin, len(content), target_of, size) == size:
                made = bytes(target_of)
    stream = bytearray(b"\xff\x06\x00\x00S2sTwO" + piece(made, 0, content))
    agree(lambda form: bytes(form.s2.decompress(stream, limit=1 << 20)), "Broken")


@target("checksums")
def checksums(content: bytes) -> None:
    """Checksums of any bytes."""
    agree(lambda form: (form.checksums.crc32c(content), form.checksums.Highway(bytes(range(32))).of(content)))


@target("index", Damaged)
def index(content: bytes) -> None:
    """The index of a stream, with its checksum as it is and made right."""
    with suppress(Damaged):
        read_index(content, STREAM)
    body = content[:-8]
    told = Highway(hashlib.sha256(STREAM.encode()).digest()).of(body).to_bytes(8, "little")
    found = read_index(body + told, STREAM)
    assert all(block.messages >= 0 for block in found.blocks)


@target("block-index", Damaged)
def block_index(content: bytes) -> None:
    """The index of one block, as old servers wrote it; it has no checksum."""
    assert len(read_block_index(content).dead) <= max(16, 64 * len(content))


@target("key-file")
def key_file(content: bytes) -> None:
    """The key file beside an obfuscated backup."""
    reveal("a.b", read_key_file(content, "keys.json"))


@target("server-records", ValueError, LookupError)
def server_records(content: bytes) -> None:
    """What a server wrote down of streams and consumers, read before it is started again; a loss is told elsewhere."""
    with suppress(ValueError, LookupError):
        acknowledged(content)
    with suppress(ValueError, LookupError):
        index_head(content)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        (Path(folder) / "record.json").write_bytes(content)
        Held.by(Path(folder), Path(folder) / "record.json")
        stream = Path(folder) / "jetstream" / "$G" / "streams" / STREAM
        for name in ("meta.inf", "msgs/index.db", "obs/c/meta.inf", "obs/c/o.dat"):
            (stream / name).parent.mkdir(parents=True, exist_ok=True)
            (stream / name).write_bytes(content)
        stored_streams(folder)


# -- whole folders -----------------------------------------------------------------------------------------------------


@target("backup", Broken)
def backup(content: bytes) -> None:
    """A whole backup: its description, an empty line, and its archive."""
    _backup(content)


def _backup(content: bytes, name: str = "stream.arc.s2") -> None:
    description, _, archive = content.partition(b"\n\n")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        (Path(folder) / "backup.json").write_bytes(description)
        (Path(folder) / name).write_bytes(archive)
        _read_all(lambda: open_backup(folder))
        report_backup(folder)


@target("backup-tar", Broken)
def backup_tar(content: bytes) -> None:
    """A whole backup of an older server, which is a store in a tar archive."""
    _backup(content, "stream.tar.s2")


@target("store", Broken)
def store(content: bytes) -> None:
    """A whole store: the description of a stream, its index and its blocks, each behind its length."""
    parts = []
    while content:
        size = int.from_bytes(content[:4], "little")
        parts.append(content[4 : 4 + size])
        content = content[4 + size :]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        messages = Path(folder) / "jetstream" / "$G" / "streams" / STREAM / "msgs"
        messages.mkdir(parents=True)
        description = (parts or [b""])[0]
        (messages.parent / "meta.inf").write_bytes(description)
        name = STREAM
        with suppress(Exception):
            name = str(json.loads(description)["name"])
        told = Highway(hashlib.sha256(name.encode()).digest()).of(description)
        (messages.parent / "meta.sum").write_bytes(told.to_bytes(8, "little").hex().encode())
        for number, part in enumerate(parts[1:5]):
            (messages / ("index.db" if number == 0 else f"{number}.blk")).write_bytes(part)
        _read_all(lambda: open_store(folder))


def _read_all(opened: Any) -> None:
    """Read all that there is; a row is never made of what is broken, an error is."""
    history = opened()
    sequences: list[int] = []
    with suppress(PenstockError, Broken):
        for batch in history.batches(escape=True, threads=1):
            batch.validate(full=True)
            sequences += batch.column("sequence").to_pylist()
    assert sequences == sorted(set(sequences))
