"""`penstock store inspect` and `penstock backup info|validate|lookup`, on what servers of several versions wrote."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.store.key_file import hide
from tests.live.inprocess import Done, runner
from tests.store_sets import unpack_golden

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    unpack_golden("2.14.6", folder)
    return folder


@pytest.fixture
def run() -> Callable[..., Done]:
    """Run the command; there is no server where it would look for one."""
    return runner("nats://127.0.0.1:1")


def test_a_store_is_shown(run: Callable[..., Done], golden: Path) -> None:
    """Every stream with its counts; one of them block by block, with holes; and all of it for programs."""
    listed = run("store", "inspect", str(golden / "store")).stdout
    assert "ORDERS" in listed
    assert "whole" in listed
    shown = run("store", "inspect", str(golden / "store"), "--stream", "PACKED").stdout
    assert "Holes: 3 to 4, 8 to 9, 13, 18" in shown
    found = json.loads(run("store", "inspect", str(golden / "store"), "--json").stdout)
    packed = next(each for each in found if each["name"] == "PACKED")
    assert (packed["messages"], packed["first"], packed["last"], packed["missing"]) == (71, 1, 91, 20)
    assert [(each["messages"], each["removed"], each["compressed"]) for each in packed["blocks"]] == [
        (51, 15, True),
        (20, 5, False),
    ]
    assert (packed["account"], packed["damage"], packed["encrypted"], packed["index"]) == ("$G", [], False, "")


def test_damage_is_shown_and_is_a_failure(run: Callable[..., Done], golden: Path, tmp_path: Path) -> None:
    """A block that is not what its checksums say is named, though the index is whole; the others are counted."""
    shutil.copytree(golden / "store", tmp_path / "store")
    block = next((tmp_path / "store").rglob("streams/PACKED/msgs")) / "2.blk"
    content = bytearray(block.read_bytes())
    content[700] ^= 1
    block.write_bytes(content)
    done = run("store", "inspect", str(tmp_path / "store"), "--json", status=1)
    assert "Of 2 streams" in done.stderr
    packed = json.loads(done.stdout)[1]
    assert str(block) in packed["damage"][0]
    assert packed["blocks"][0]["damage"] is None
    assert "2.blk" in run("store", "inspect", str(tmp_path / "store"), "--stream", "PACKED", status=1).stdout
    block.unlink()
    assert "up to 91" in run("store", "inspect", str(tmp_path / "store"), "--stream", "PACKED", status=1).stdout
    (block.parent.parent / "meta.inf").write_text("{}")
    assert "not the description" in run("store", "inspect", str(tmp_path / "store"), status=1).stderr


def test_what_is_no_store_is_bad_input(run: Callable[..., Done], golden: Path, tmp_path: Path) -> None:
    """Folders that are not there, or hold no stream, and streams that are not there, are told in a sentence."""
    assert "not there" in run("store", "inspect", str(tmp_path / "none"), status=2).stderr
    assert "holds no stream" in run("store", "inspect", str(golden), status=2).stderr
    assert "no stream OTHER" in run("store", "inspect", str(golden / "store"), "--stream", "OTHER", status=2).stderr
    assert "stream" in run("store", "inspect", str(golden / "store"), "--stream", "a b", status=2).stderr


@pytest.mark.parametrize("folder", ["server_2_10", "server_2_15"])
def test_a_backup_is_shown(run: Callable[..., Done], folder: str) -> None:
    """Both forms of backups, as the nats command wrote them, say what they hold, and are whole."""
    path = str(GOLDEN / "backups" / folder)
    found = json.loads(run("backup", "info", path, "--json", "--subjects").stdout)
    assert (found["messages"], found["first_seq"], found["last_seq"], found["consumers"]) == (3, 1, 3, ["c"])
    assert sum(found["subjects"].values()) == 3
    shown = run("backup", "info", path, "--subjects").stdout
    assert f"Information for backup of Stream {found['config']['name']} in {path}" in shown
    assert "3 messages" in run("backup", "validate", path).stdout


def test_a_backup_that_is_not_whole_is_told(run: Callable[..., Done], tmp_path: Path) -> None:
    """A backup that is cut off, changed or no backup is a failure that says what is wrong with it."""
    shutil.copytree(GOLDEN / "backups" / "server_2_15", tmp_path / "b")
    archive = tmp_path / "b" / "stream.arc.s2"
    content = archive.read_bytes()
    archive.write_bytes(content[:-30])
    assert "damaged" in run("backup", "validate", str(tmp_path / "b"), status=1).stderr
    changed = bytearray(content)
    changed[len(content) // 2] ^= 8
    archive.write_bytes(changed)
    assert "damaged" in run("backup", "validate", str(tmp_path / "b"), status=1).stderr
    archive.unlink()
    assert "not a whole backup" in run("backup", "info", str(tmp_path / "b"), status=2).stderr
    assert "not there" in run("backup", "info", str(tmp_path / "none"), status=2).stderr


def test_obfuscated_names_are_looked_up(run: Callable[..., Done], tmp_path: Path) -> None:
    """Subjects are revealed token by token, buckets behind their prefix; a file that was changed is refused."""
    secret, names = bytes(range(32)), ("orders", "a-very-long-name-of-a-subject-that-takes-more-than-one-block-of-hash")
    words = {hide(name, secret): name for name in names}
    file = tmp_path / "keys.json"
    told = {"version": 1, "secret": base64.b64encode(secret).decode(), "map": words}
    file.write_text(json.dumps(told))
    hidden = [hide(name, secret) for name in names]
    assert [len(each) for each in hidden] == [16, len(names[1])]
    done = run("backup", "lookup", str(file), f"{hidden[0]}.new.{hidden[1]}", f"KV_{hidden[0]}", "other")
    assert done.stdout == f"orders.new.{names[1]}\nKV_orders\nother\n"
    file.write_text(json.dumps({**told, "map": {hidden[0]: "others"}}))
    assert "was changed" in run("backup", "lookup", str(file), "x", status=2).stderr
    file.write_text("[]")
    assert "not a key file" in run("backup", "lookup", str(file), "x", status=2).stderr
    assert "cannot be read" in run("backup", "lookup", str(tmp_path / "none"), "x", status=2).stderr
