"""Stores that a real server wrote hold what the server said of them, whatever had happened, and however it ended."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock import Server, connect
from penstock.errors import InputError, StoreInUseError
from penstock.jetstream import snapshot
from penstock.store.backup_report import report_backup
from penstock.store.history import open_backup, open_store
from tests.live.inprocess import runner
from tests.live.store_worlds import CASES, World, fill, held, make, make_world, rows, said

ALL = [*CASES, "counter"]
NATS = shutil.which("nats")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("ended") / "store", kill=False)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("killed") / "store", kill=True)


def check(world: World, name: str, folder: Path | None = None) -> str | None:
    """Compare a stream of a store with what its server said; give why its index was not believed."""
    history = open_store(folder or world.folder, name)
    assert held(history) == world.said[name]
    state = world.state[name]
    assert (history.messages, history.first, history.last) == (state["messages"], state["first_seq"], state["last_seq"])
    assert not history.damage
    return history.rebuilt


@pytest.mark.parametrize("name", ALL)
def test_a_store_holds_what_its_server_said(ended: World, name: str) -> None:
    """Whatever was removed in whatever way, the store of a server that ended has its rows, by its index."""
    assert check(ended, name) is None


@pytest.mark.parametrize("name", ALL)
def test_a_backup_holds_what_its_server_said(ended: World, name: str) -> None:
    """A backup has the rows of the stream, and knows how far the stream had come; every message is counted."""
    history, state = open_backup(ended.backup(name)), ended.state[name]
    assert held(history) == ended.said[name]
    assert (history.messages, history.last) == (state["messages"], state["last_seq"])
    report = report_backup(ended.backup(name))
    assert (report.messages, report.size, len(report.subjects)) == (
        state["messages"],
        state["bytes"],
        state.get("num_subjects", 0),
    )


@pytest.mark.skipif(NATS is None, reason="the nats command is compared with where it is installed")
@pytest.mark.parametrize("name", ["acks", "purge_all", "blocks"])
def test_the_nats_command_says_the_same_of_a_backup(ended: World, name: str) -> None:
    """`backup info` and `backup validate` agree with those of the nats command."""
    run, folder = runner("nats://127.0.0.1:1"), str(ended.backup(name))
    theirs = json.loads(subprocess.check_output([str(NATS), "backup", "info", folder, "--json", "--subjects"]))
    ours = json.loads(run("backup", "info", folder, "--json", "--subjects").stdout)
    fields = ("messages", "num_subjects", "bytes", "first_seq", "last_seq", "consumers", "declared_counts_advisory")
    assert [ours[field] or None for field in fields] == [theirs[field] or None for field in fields]
    assert ours.get("subjects", {}) == theirs.get("subjects", {})
    validated = subprocess.check_output([str(NATS), "backup", "validate", folder, "--no-progress"], text=True)
    assert run("backup", "validate", folder).stdout.split() == validated.split()


@pytest.mark.parametrize("name", ALL)
def test_the_store_of_a_killed_server_holds_what_it_said(killed: World, name: str) -> None:
    """What a server had said is what is found where it could write no index: every block is looked through."""
    check(killed, name)


@pytest.mark.parametrize("name", [name for name in ALL if name != "expiry"])
@pytest.mark.parametrize("index", ["missing", "damaged", "another's"])
def test_a_store_without_an_index_holds_the_same(ended: World, tmp_path: Path, name: str, index: str) -> None:
    """An index that is missing, damaged or of another stream is found out, and what blocks and limits say is right.

    Of a message that expired after the newest one was stored only the index knows it.
    """
    shutil.copytree(ended.messages(name).parent, tmp_path / name)
    path = tmp_path / name / "msgs" / "index.db"
    if index == "missing":
        path.unlink()
    elif index == "damaged":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    else:
        shutil.copy(ended.messages("plain" if name != "plain" else "deletes") / "index.db", path)
    assert check(ended, name, tmp_path / name) is not None


def test_there_are_several_blocks_and_some_are_compressed(ended: World) -> None:
    """The cases are what they are meant to be: the server cut blocks, compressed them, and wrote some anew."""
    assert all(len(ended.blocks(name)) > 2 for name in ("blocks", "plain_blocks"))
    assert ended.blocks("blocks")[0].read_bytes()[:3] == b"cmp"
    assert ended.blocks("plain_blocks")[0].read_bytes()[:3] != b"cmp"


def test_a_range_is_the_same_range(ended: World) -> None:
    """Ranges of sequences are what the server has there, whatever block they begin and end in."""
    history, whole = open_store(ended.folder, "blocks"), ended.said["blocks"]
    for start, end in ((1, 1 << 62), (25, 175), (30, 31), (169, 171), (205, 206), (500, 600)):
        found = rows(batch for part in history.parts for batch in part.batches("blocks", start, end, max_rows=7))
        assert found == [row for row in whole if start <= row[3] < end]


def test_a_time_is_found(ended: World) -> None:
    """The first message that was stored at a time, or later, is found by going from block to block."""
    history, whole = open_store(ended.folder, "plain_blocks"), ended.said["plain_blocks"]
    for row in (whole[0], whole[40], whole[-1]):
        assert history.at_time(row[4]) == next(other[3] for other in whole if other[4] >= row[4])


def test_every_way_to_name_a_store(ended: World) -> None:
    """A server's folder, its folder jetstream, an account's and a stream's own are all the store; others are told."""
    own = ended.messages("plain").parent
    for folder in (ended.folder, own.parents[2], own.parents[1], own):
        assert open_store(folder, "plain").messages == 200
    assert open_store(f"file://{own}").name == "plain"
    with pytest.raises(InputError, match="holds several streams"):
        open_store(ended.folder)
    with pytest.raises(InputError, match="holds no stream other"):
        open_store(ended.folder, "other")
    with pytest.raises(InputError, match="is not there"):
        open_store(ended.folder / "nowhere")
    with pytest.raises(InputError, match="holds no stream"):
        open_store(own / "msgs")


def test_a_record_torn_at_any_byte_is_dropped(killed: World, tmp_path: Path) -> None:
    """A last record that a crash cut off anywhere is left out, as by the server; all before it is there."""
    whole = killed.said["plain"]
    shutil.copytree(killed.messages("plain").parent, tmp_path / "plain")
    (tmp_path / "plain" / "msgs" / "index.db").unlink(missing_ok=True)
    block = tmp_path / "plain" / "msgs" / "1.blk"
    content = block.read_bytes()
    size = 22 + len(whole[-1][0]) + len(whole[-1][1]) + 8
    for cut in range(1, size + 1):
        block.write_bytes(content[:-cut])
        history = open_store(tmp_path / "plain")
        assert held(history) == whole[:-1], cut
        assert [damage.torn for damage in history.damage] == ([True] if cut < size else []), cut


def test_the_server_drops_a_torn_record_as_we_do(killed: World, tmp_path: Path) -> None:
    """A server that starts on a torn store has the rows that we read from it."""
    store = tmp_path / "store"
    shutil.copytree(killed.folder, store)
    block = next(store.rglob("streams/plain/msgs")) / "1.blk"
    block.write_bytes(block.read_bytes()[:-5])
    ours = held(open_store(store, "plain"))
    with Server(store=store, on_loss="tell") as server:
        assert said(server.url, "plain") == ours == killed.said["plain"][:-1]


def test_what_the_index_knows_and_no_block_has_is_told(ended: World, tmp_path: Path) -> None:
    """Messages that were there when the server ended, and are gone, are a damage that is named."""
    shutil.copytree(ended.messages("plain").parent, tmp_path / "plain")
    block = tmp_path / "plain" / "msgs" / "1.blk"
    block.write_bytes(block.read_bytes()[:-400])
    history = open_store(tmp_path / "plain")
    assert held(history) == ended.said["plain"][: history.messages]
    assert history.last == 200
    assert "knows messages up to 200" in history.damage[-1].what


def test_a_copy_of_a_running_store_holds_a_beginning(tmp_path: Path) -> None:
    """A store that is copied while messages come holds those that were there when the copy began, and no wrong one."""

    async def work(url: str) -> int:
        async with await connect(url) as nc:
            await make(nc, "X", max_bytes=4_000_000)
            await fill(nc, "X", 500, 1000)
            copying = asyncio.create_task(asyncio.to_thread(shutil.copytree, tmp_path / "store", tmp_path / "copy"))
            count = 500
            while not copying.done():
                await fill(nc, "X", 50, 1000)
                count += 50
            await copying
            return count

    with Server(store=tmp_path / "store", sync="2m") as server:
        asyncio.run(work(server.url))
        whole = said(server.url, "X")
        with pytest.raises(StoreInUseError, match="is using"):
            open_store(tmp_path / "store", "X")
        with pytest.raises(StoreInUseError, match="is using"):
            open_store(next((tmp_path / "store").rglob("streams/X")))
        found = held(open_store(tmp_path / "copy", "X"))
    assert len(found) >= 500
    assert found == whole[: len(found)]


@pytest.mark.parametrize("cipher", ["chacha", "aes"])
def test_an_encrypted_store_is_refused(tmp_path: Path, cipher: str) -> None:
    """An encrypted stream is named as such, with the way that reads it: a backup of one is plain."""
    config = f'jetstream {{ key: "a secret of this test", cipher: {cipher} }}'

    async def work(url: str) -> None:
        async with await connect(url) as nc:
            await make(nc, "X")
            await fill(nc, "X", 20)
            await snapshot.backup(nc, "X", tmp_path / "backup")

    with Server(store=tmp_path / "store", config=config) as server:
        asyncio.run(work(server.url))
        whole = said(server.url, "X")
    with pytest.raises(InputError, match=r"is encrypted\. .*backup") as told:
        open_store(tmp_path / "store", "X")
    assert "a secret" not in str(told.value)
    assert held(open_backup(tmp_path / "backup")) == whole
