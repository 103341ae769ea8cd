"""Stores and backups that servers of other versions wrote, read without them; and what damage does to them."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataLossError, InputError, JetStreamError, MessageError, StoreDamagedError
from penstock.jetstream.snapshot import _check_tar
from penstock.store.history import History, open_backup, open_store
from penstock.store.s2 import Broken
from tests.store_sets import BEGIN, GOLDEN, piece, unpack_golden

VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    for version in VERSIONS:
        unpack_golden(version, folder / version)
    return folder


def rows(history: History) -> Iterator[Row]:
    """Give rows as the golden files have them."""
    for part in history.parts:
        for batch in part.batches(history.name):
            for row in batch.to_pylist():
                digest = hashlib.sha256(row["data"]).hexdigest()[:16]
                yield row["subject"], digest, dict(row["headers"]), row["sequence"], row["time"].isoformat()


def told(folder: Path, version: str, name: str) -> list[Row]:
    """Give the rows that the server gave."""
    return [tuple(row) for row in json.loads((folder / version / "rows.json").read_text())[name]]


@pytest.mark.parametrize("name", ["ORDERS", "PACKED"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_an_older_server_wrote_is_read(golden: Path, version: str, name: str) -> None:
    """Stores and backups of 2.9 (an index a block, no tombstones) up to 2.14 hold what their servers said."""
    for history in (
        open_store(golden / version / "store", name),
        open_backup(golden / version / f"backup-{name}"),
    ):
        assert list(rows(history)) == told(golden, version, name)
        assert history.messages == len(told(golden, version, name))
        assert not history.damage


# -- damage -----------------------------------------------------------------------------------------------------------


def outcome(open_it: Callable[[], History]) -> tuple[list[Row], bool]:
    """Read what can be read as failOnDataLoss=false does it, and tell whether any damage was told."""
    found: list[Row] = []
    try:
        history = open_it()
    except (InputError, StoreDamagedError):
        return found, True
    is_told = bool(history.damage)
    for part in history.parts:
        try:
            found += rows(History(history.name, "", {}, 0, 0, 0, (part,)))
        except (DataLossError, Broken, MessageError):
            is_told = True
    return found, is_told


def is_moved(row: Row, others: dict[int, Row]) -> bool:
    """Tell whether a row is one whose subject ends elsewhere: the one thing that no checksum of the server covers."""
    other = others.get(row[3])
    return other is not None and row[4] == other[4] and row[0] != other[0] and row[2] == other[2] == {}


def check(found: list[Row], is_told: bool, whole: list[Row], what: object, known: bool = True) -> None:
    """No row is wrong, and none is missing unless that is told.

    Where nothing but tombstones knew what is dead, and they are damaged, the dead are there again; that is told.
    """
    others = {row[3]: row for row in whole}
    if not known and is_told:
        found = [row for row in found if row[3] in others]
    wrong = [row for row in found if row != others.get(row[3]) and not is_moved(row, others)]
    assert not wrong, what
    assert is_told or len(found) == len(whole), what


def places(size: int, most: int) -> list[int]:
    """Give every place of a small file, and some of a larger one, always the same."""
    return list(range(size)) if size <= most else sorted(random.Random(size).sample(range(size), most))


@pytest.mark.parametrize("most", [40, pytest.param(3000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(("version", "name"), [("2.14.6", "ORDERS"), ("2.14.6", "PACKED"), ("2.9.25", "ORDERS")])
@pytest.mark.parametrize("kept", ["with its index", "without"])
def test_a_changed_byte_of_a_store_is_never_a_wrong_row(
    golden: Path, tmp_path: Path, version: str, name: str, kept: str, most: int
) -> None:
    """Whichever byte of whichever file is changed: the rows are right, or less and something is said.

    The index of a block, as 2.9 wrote it, has no checksum: what it says of the dead is all that anybody knows.
    """
    copy = tmp_path / name
    shutil.copytree(next((golden / version / "store").rglob(f"streams/{name}")), copy)
    if kept == "without":
        (copy / "msgs" / "index.db").unlink(missing_ok=True)
    whole = list(rows(open_store(copy)))
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for place in places(len(content), most):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            found, is_told = outcome(lambda: open_store(copy))
            if path.suffix != ".idx":
                check(found, is_told, whole, (path.name, place), kept != "without")
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["ORDERS", "PACKED"])
def test_a_block_that_is_cut_or_missing_is_told(golden: Path, tmp_path: Path, name: str) -> None:
    """A block that ends too early, or is not there, is named; the others are read."""
    copy = tmp_path / name
    shutil.copytree(next((golden / "2.14.6" / "store").rglob(f"streams/{name}")), copy)
    whole = list(rows(open_store(copy)))
    block = copy / "msgs" / "1.blk"
    content = block.read_bytes()
    for size in places(len(content), 100):
        block.write_bytes(content[:size])
        found, is_told = outcome(lambda: open_store(copy))
        check(found, is_told, whole, size)
        assert is_told, size
    block.unlink()
    found, is_told = outcome(lambda: open_store(copy))
    assert is_told
    assert "1.blk" in " ".join(damage.block for damage in open_store(copy).damage) or name == "ORDERS"


@pytest.mark.parametrize("name", ["ORDERS", "PACKED"])
def test_a_changed_byte_of_a_backup_is_never_a_wrong_row(golden: Path, tmp_path: Path, name: str) -> None:
    """Whichever byte of a backup is changed, or wherever it is cut off: right rows, or less and something is said."""
    copy = tmp_path / name
    shutil.copytree(golden / "2.14.6" / f"backup-{name}", copy)
    whole = list(rows(open_backup(copy)))
    for path in sorted(copy.iterdir()):
        content = path.read_bytes()
        for place in places(len(content), 60):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            for written in (changed, content[:place]):
                path.write_bytes(written)
                found, is_told = outcome(lambda: open_backup(copy))
                check(found, is_told, whole, (path.name, place, len(written)))
        path.write_bytes(content)


def test_a_backup_that_the_server_broke_off_is_told(tmp_path: Path) -> None:
    """An older server writes what went wrong into a file of the archive, and says nothing else: 2.10.25 did so."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, said in (("meta.inf", b"{}"), ("errors.txt", b"Could not decompress message block [1]")):
            member = tarfile.TarInfo(name)
            member.size = len(said)
            archive.addfile(member, io.BytesIO(said))
    (tmp_path / "backup.json").write_text('{"config": {"name": "X"}, "state": {}}')
    (tmp_path / "stream.tar.s2").write_bytes(BEGIN + piece(content.getvalue()))
    with pytest.raises(StoreDamagedError, match=r"broke it off and wrote errors\.txt"):
        open_backup(tmp_path)
    with pytest.raises(JetStreamError, match=r"backup of X is not whole"):
        _check_tar(tmp_path / "stream.tar.s2", "X")
