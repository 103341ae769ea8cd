"""A store that somebody else uses, that is damaged, restored or of another shape: prevented, or told."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import pytest

from penstock.errors import OptionError, StartError, StoreDamagedError, StoreInUseError
from penstock.server import Server, find_binary
from penstock.server.records import index_head, stored_streams
from penstock.server.recovery import Held, losses
from tests.live.command import Command

Eventually = Callable[..., Any]
MESSAGES = 40


def lazy(store: Path, **options: Any) -> Server:
    return Server(**{"sync": "2m", "store": store, **options})


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[Any]:
    client = await nats.connect(url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def fill(url: str, name: str = "S", **config: Any) -> None:
    """Make a stream of some messages."""
    async with jetstream(url) as stream:
        await stream.add_stream(name=name, subjects=[name], **config)
        for _ in range(MESSAGES):
            await stream.publish(name, b"x" * 100)


def kept(store: Path, work: Callable[[str], Awaitable[Any]] = fill) -> Path:
    """Make a store with a stream, and stop its server in order."""
    with lazy(store) as server:
        asyncio.run(_awaited(work(server.url)))
    return store


async def _awaited(work: Awaitable[Any]) -> None:
    await work


def block_of(store: Path, stream: str = "S") -> Path:
    return next(store.glob(f"jetstream/*/streams/{stream}/msgs/*.blk"))


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


# -- somebody else uses it ---------------------------------------------------------------------------------------------


@pytest.fixture
def by_hand(eventually: Eventually) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a nats-server as somebody does in a terminal, and give it when it listens."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        argv = [str(find_binary().path), "-a", "127.0.0.1", "-p", str(port), *arguments]
        process = subprocess.Popen(argv, cwd=cwd, stderr=subprocess.DEVNULL)
        started.append(process)

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", ["flag", "relative", "config", "monitoring"])
def test_a_store_of_a_server_that_was_started_by_hand_is_refused(tmp_path: Path, by_hand: Any, how: str):
    """nats-server locks nothing: one that uses the folder is found by its flags, configuration or monitoring port."""
    store = tmp_path / "store"
    (store / "jetstream").mkdir(parents=True)
    inner = tmp_path / "inner.conf"
    inner.write_text(f'jetstream {{ store_dir: "{store}" }}\n')
    outer = tmp_path / "outer.conf"
    outer.write_text("include ./inner.conf\nhttp: '127.0.0.1:-1'\n")
    arguments = {
        "flag": ["-js", "-sd", str(store)],
        "relative": ["-js", "--store_dir=store"],
        "config": ["-c", str(inner)],
        "monitoring": ["-c", str(outer)],
    }[how]
    process = by_hand(*arguments, cwd=tmp_path)
    link = tmp_path / "link"
    link.symlink_to(store)
    for path in (store, link):
        with pytest.raises(StoreInUseError, match=f"not started here, process {process.pid}") as caught:
            lazy(path).start()
        assert caught.value.pid == process.pid


async def test_a_server_by_hand_is_found_by_the_files_that_it_holds_open(tmp_path: Path, by_hand: Any):
    """Whatever its configuration was, a server that writes a stream of the folder is seen."""
    config = tmp_path / "x.conf"
    config.write_text(f'jetstream {{ store_dir: "{tmp_path}" }}\n')
    process = by_hand("-c", str(config))
    await fill(f"nats://127.0.0.1:{process.args[4]}")
    config.unlink()
    with pytest.raises(StoreInUseError, match=f"process {process.pid}"):
        await asyncio.to_thread(lazy(tmp_path).start)


async def test_what_a_server_by_hand_removed_is_no_loss(whole: Path, tmp_path: Path, by_hand: Any):
    """Another server that used the store since, and ended in order, may have removed messages by right."""
    store = shutil.copytree(whole, tmp_path / "store")
    process = by_hand("-js", "-sd", str(store))
    async with jetstream(f"nats://127.0.0.1:{process.args[4]}") as stream:
        await stream.purge_stream("S", keep=5)
    process.terminate()
    process.wait()
    server = await asyncio.to_thread(lazy(store).start)
    assert server.losses == ()
    await asyncio.to_thread(server.stop)


def test_a_server_by_hand_on_a_store_in_use_is_told(tmp_path: Path, by_hand: Any, eventually: Eventually, caplog: Any):
    """Nothing keeps nats-server from a store that ours is using; it is told once, where one looks and in the log."""
    with lazy(tmp_path) as server:
        process = by_hand("-js", "-sd", str(tmp_path))
        server.nodes[0]._keep_record()
        eventually(lambda: server.losses)
        [loss] = server.losses
        assert f"process {process.pid}" in loss.text
        assert server.nodes[0].alive
        process.kill()
        process.wait()
    assert caplog.text.count("uses the store at the same time") == 1


def test_a_server_of_another_folder_is_no_neighbour(tmp_path: Path, by_hand: Any):
    """A nats-server that stores elsewhere on this machine does not matter."""
    by_hand("-js", "-sd", str(tmp_path / "other"))
    with lazy(tmp_path / "ours") as server:
        assert server.losses == ()


def test_a_store_whose_lock_was_deleted_is_still_refused(tmp_path: Path):
    """Without its lock a server of ours is found like any other, among the processes of this machine."""
    with lazy(tmp_path) as server:
        (tmp_path / "penstock.lock").unlink()
        with pytest.raises(StoreInUseError, match="process") as caught:
            lazy(tmp_path).start()
        assert caught.value.pid == server.nodes[0].pid


def test_a_lock_of_an_older_version_is_one_of_this_machine(tmp_path: Path):
    """A lock that names no machine is read as ours, and its owner found at once."""
    with lazy(tmp_path):
        lock = tmp_path / "penstock.lock"
        lock.write_text(" ".join(lock.read_text().split()[:2]) + "\n")
        with pytest.raises(StoreInUseError, match="a server of this process"):
            lazy(tmp_path).start()


def test_a_lock_of_another_machine_names_it(tmp_path: Path):
    """A process number of another machine or container means nothing here: the owner is named with its machine."""
    with lazy(tmp_path):
        lock = tmp_path / "penstock.lock"
        pid, guard, place = lock.read_text().split()
        assert pid == str(os.getpid())
        assert place.startswith(f"{socket.gethostname()}/")
        lock.write_text(f"1 {guard} elsewhere/pid:[1]\n")
        from penstock.server import guard as module

        with pytest.MonkeyPatch.context() as patch:
            script = tmp_path / "guard.py"
            script.write_text(Path(module.__file__).read_text().replace("_DYING_WAIT = 15.0", "_DYING_WAIT = 0.1"))
            patch.setattr(module, "__file__", str(script))
            with pytest.raises(StoreInUseError, match="a server of process 1 on elsewhere") as caught:
                lazy(tmp_path).start()
        assert caught.value.pid == 1


# -- less than it held -------------------------------------------------------------------------------------------------


def whole_blocks(store: Path) -> None:
    """Cut a block between two messages, so that nothing in it looks damaged."""
    block = block_of(store)
    data = block.read_bytes()
    block.write_bytes(data[: len(data) // MESSAGES * (MESSAGES // 2)])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda store: cut(block_of(store)),
    "cut between two messages": whole_blocks,
    "a flipped byte": lambda store: flip(block_of(store)),
    "no block": lambda store: block_of(store).unlink(),
    "no index": lambda store: (whole_blocks(store), (block_of(store).parent / "index.db").unlink()),
    "no stream": lambda store: shutil.rmtree(block_of(store).parent.parent),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was closed in order, to copy."""
    return kept(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a consumer, to copy."""
    return kept(tmp_path_factory.mktemp("worked"), work_off)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_store_that_came_up_with_less_is_refused(whole: Path, tmp_path: Path, damage: str):
    """Damage that nats-server passes over is found by the record of the last end."""
    store = shutil.copytree(whole, tmp_path / "store")
    DAMAGES[damage](store)
    with pytest.raises(StoreDamagedError, match=rf"stream S had {MESSAGES} messages|stream S ended at") as caught:
        lazy(store).start()
    assert caught.value.losses
    assert caught.value.store == str(store)


def test_a_store_with_less_is_refused_until_it_is_accepted(whole: Path, tmp_path: Path):
    """nats-server repairs what it finds, so that a second start looks whole; it is refused as well."""
    store = shutil.copytree(whole, tmp_path / "store")
    cut(block_of(store))
    for _ in range(2):
        with pytest.raises(StoreDamagedError) as caught:
            lazy(store).start()
        assert 'on_loss="tell"' in caught.value.remedy
    with lazy(store, on_loss="tell") as server:
        assert [loss.stream for loss in server.losses if loss.certain] == ["S"]
    with lazy(store) as server:
        assert server.losses == (), "what was accepted once is not told again"


def test_a_damaged_tail_after_a_crash_is_told(tmp_path: Path, eventually: Eventually, caplog: Any):
    """After a crash the record is what the server said last: a stream that ends before that is refused."""
    record = tmp_path / "n1.streams.json"
    with lazy(tmp_path) as server:
        asyncio.run(fill(server.url))
        server.nodes[0]._keep_record()
        eventually(lambda: record.exists() and f'"last_seq": {MESSAGES}' in record.read_text())
        server.nodes[0].kill()
    assert json.loads(record.read_text())["closed"] is False
    flip(block_of(tmp_path))
    with pytest.raises(StoreDamagedError, match=f"stream S ended at sequence {MESSAGES}, and now ends at"):
        lazy(tmp_path).start()
    assert "cut from the end of 1.blk" in caplog.text


def test_a_store_without_a_record_tells_what_can_be_seen(whole: Path, tmp_path: Path, caplog: Any):
    """Where nothing is known of a store, blocks that the server cuts and its own complaints are still told."""
    store = shutil.copytree(whole, tmp_path / "store")
    flip(block_of(store))
    (store / "n1.streams.json").unlink()
    with caplog.at_level(logging.WARNING, "penstock.server"), lazy(store) as server:
        assert server.losses
        assert not any(loss.certain for loss in server.losses)
        assert any("cut from the end of 1.blk" in loss.text for loss in server.losses)
    assert "stream S: " in caplog.text


def test_a_stream_put_back_from_an_older_copy_is_told(whole: Path, tmp_path: Path):
    """A stream whose folder is older than the rest of the store ends before the sequence that it had."""
    store = shutil.copytree(whole, tmp_path / "store")
    folder, copy = block_of(store).parent.parent, block_of(whole).parent.parent
    with lazy(store) as server:
        asyncio.run(publish(server.url, 5))
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    with pytest.raises(StoreDamagedError, match=f"ended at sequence {MESSAGES + 5}, and now ends at {MESSAGES}"):
        lazy(store).start()


def test_a_stream_of_another_store_in_its_place_is_told(whole: Path, tmp_path: Path):
    """A stream of the same name that was made at another time is another stream."""
    store, other = shutil.copytree(whole, tmp_path / "store"), kept(tmp_path / "other")
    shutil.rmtree(block_of(store).parent.parent)
    shutil.copytree(block_of(other).parent.parent, store / "jetstream/$G/streams/S")
    with pytest.raises(StoreDamagedError, match="is another one now"):
        lazy(store).start()


async def work_off(url: str) -> None:
    """Make a stream, and a durable consumer that has acknowledged some of it."""
    await fill(url)
    async with jetstream(url) as stream:
        worker = await stream.pull_subscribe("S", "worker")
        for message in await worker.fetch(7):
            await message.ack_sync()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "o.dat").unlink(), "now has up to 0"),
        (lambda folder: cut(folder / "o.dat"), "did not bring it up"),
        (lambda folder: (folder / "meta.inf").unlink(), "did not bring it up"),
        (shutil.rmtree, "did not bring it up"),
    ],
    ids=["no state", "half a state", "no configuration", "nothing"],
)
def test_a_consumer_that_is_gone_or_forgot_is_told(worked: Path, tmp_path: Path, damage: Any, words: str):
    """A durable consumer whose position is lost would give messages again, or be made anew and miss some."""
    store = shutil.copytree(worked, tmp_path / "store")
    damage(store / "jetstream/$G/streams/S/obs/worker")
    had = "consumer worker of stream S had acknowledged all up to sequence 7"
    with pytest.raises(StoreDamagedError, match=f"{had}, and .*{words}"):
        lazy(store).start()


async def publish(url: str, count: int, **more: Any) -> None:
    async with jetstream(url) as stream:
        for _ in range(count):
            await stream.publish("S", b"more", **more)


def test_an_account_that_the_configuration_forgot_is_told(tmp_path: Path):
    """Streams of an account that is not in the configuration any more are there, and nobody could read them."""
    accounts = "accounts { A { jetstream: enabled, users: [{user: a, password: b}] } }"
    with lazy(tmp_path, auth=False, config=accounts) as server:
        asyncio.run(fill(server.url.replace("//", "//a:b@")))
    with pytest.raises(StartError, match="JetStream account 'A' could not be resolved") as caught:
        lazy(tmp_path, start_timeout=3.0).start()
    assert "Healthcheck failed" not in caught.value.log


async def leave_less(url: str) -> None:
    """Make streams that lose messages by right: deleted, purged, worked off, limited, and one that is removed."""
    async with jetstream(url) as stream:
        for name, config in (
            ("DELETED", {}),
            ("PURGED", {}),
            ("WORKED", {"retention": "workqueue"}),
            ("LIMITED", {"max_msgs": 7}),
            ("AGED", {"max_age": 0.3, "duplicate_window": 0.3}),
            ("REMOVED", {}),
            ("MEMORY", {"storage": "memory"}),
        ):
            await stream.add_stream(name=name, subjects=[name], **config)
            for _ in range(MESSAGES):
                await stream.publish(name, b"x")
        await stream.delete_msg("DELETED", 3)
        await stream.delete_msg("DELETED", MESSAGES)
        await stream.purge_stream("PURGED")
        worker = await stream.pull_subscribe("WORKED", "worker")
        for message in await worker.fetch(9):
            await message.ack_sync()
        await stream.delete_stream("REMOVED")


def test_what_went_by_right_is_no_loss(tmp_path: Path):
    """Messages that were deleted, purged, worked off, limited or aged, and removed streams, are not missed."""
    kept(tmp_path, leave_less)
    asyncio.run(asyncio.sleep(0.3))  # the age of messages goes on while nobody runs
    with lazy(tmp_path) as server:
        assert server.losses == ()
        server.nodes[0].kill()
        server.nodes[0].start()
        assert server.losses == ()
    with lazy(tmp_path) as server:
        assert server.losses == ()


def test_the_record_agrees_with_the_server(tmp_path: Path):
    """What is read from the files of a store is what the server said before it ended."""
    with lazy(tmp_path) as server:
        asyncio.run(leave_less(server.url))
        found = server.nodes[0]._monitor("/jsz?accounts=true&streams=true")[1]["account_details"][0]["stream_detail"]
        said = {
            each["name"]: (each["created"], each["state"]["last_seq"]) for each in found if each["name"] != "MEMORY"
        }
    stored = stored_streams(str(tmp_path))["$G"]
    assert {name: (facts["created"], facts["last_seq"]) for name, facts in stored.items()} == said
    assert stored["DELETED"]["messages"] == MESSAGES - 2
    assert stored["PURGED"]["messages"] == 0
    assert json.loads((tmp_path / "n1.streams.json").read_text()) == {"closed": True, "streams": {"$G": stored}}


@pytest.mark.parametrize("data", [b"", b"\x0b\x04" + b"\xff" * 62, b"\x0b\x09" + b"\x01" * 62, b"\x00" * 64])
def test_what_is_no_index_is_not_read_as_one(data: bytes):
    """A damaged or encrypted index gives no numbers, instead of wrong ones."""
    with pytest.raises((ValueError, IndexError)):
        index_head(data)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"streams": 3}', '{"closed": true, "streams": {"$G": {"S": {"messages": "x"}, "T": 1}}}']
)
def test_a_record_that_is_none_is_no_record(tmp_path: Path, content: str):
    """Whatever stands in the file, it is read as what can be understood of it, and nothing else."""
    (tmp_path / "n1.streams.json").write_text(content)
    held = Held.by(tmp_path, tmp_path / "n1.streams.json")
    assert held.record in ({}, {("$G", "S"): {"consumers": {}}})


def test_the_command_tells_and_refuses(whole: Path, tmp_path: Path):
    """`server run` ends with the reason; with `--on-loss tell` it runs, and says what is missing."""
    store = shutil.copytree(whole, tmp_path / "store")
    cut(block_of(store))
    penstock = Command(tmp_path)
    refused = penstock("server", "run", "--store", str(store), "--sync", "2m")
    assert refused.returncode == 1
    assert f"stream S had {MESSAGES} messages, and the server restored {MESSAGES // 2}" in refused.stderr
    with penstock.running("server", "run", "--store", str(store), "--on-loss", "tell", "--sync", "2m") as running:
        running.wait_for(f"stream S had {MESSAGES} messages")
        running.wait_for("is running")
        assert running.interrupt() == 0


# -- another shape -----------------------------------------------------------------------------------------------------


def test_a_store_of_one_node_is_not_given_to_a_cluster(whole: Path, tmp_path: Path):
    """A cluster deletes streams that it does not know: a store of one node that lies in its place is refused."""
    shutil.copytree(whole, tmp_path / "three" / "n1")
    with pytest.raises(OptionError, match="a cluster would delete its streams"):
        lazy(tmp_path / "three", nodes=3)


def test_one_node_of_a_cluster_is_not_opened_alone(tmp_path: Path):
    """The folder of one node of a cluster cannot be brought up without the others."""
    (tmp_path / "jetstream" / "$SYS" / "_js_" / "_meta_").mkdir(parents=True)
    with pytest.raises(OptionError, match="one node of a cluster"):
        lazy(tmp_path)


def test_an_included_file_cannot_move_the_store(tmp_path: Path):
    """What an included file says is checked and joined as if it stood in the configuration itself."""
    one, two = tmp_path / "one.conf", tmp_path / "two.conf"
    one.write_text("include ./two.conf\nmax_connections: 77\n")
    two.write_text("jetstream { domain: hub }\n")
    with lazy(tmp_path / "store", config=f"include {one}\n") as server:
        facts = server.nodes[0]._monitor("/varz")[1]
        assert (facts["max_connections"], facts["jetstream"]["config"]["domain"]) == (77, "hub")
        assert Path(facts["jetstream"]["config"]["store_dir"]).parent == tmp_path / "store"
    for inside in (f"jetstream {{ store_dir: {tmp_path}/elsewhere }}", "port: 4222", "include ./one.conf"):
        two.write_text(inside)
        with pytest.raises(OptionError, match=r"which Penstock sets|without end"):
            lazy(tmp_path / "store", config=f'include "{one}"')
    for config in (f"jetstream {{ include {two} }}", "include ./one.conf", f"include {tmp_path}/none.conf"):
        two.write_text("store_dir: x")
        with pytest.raises(OptionError, match=r"jetstream.store_dir|in which folder|cannot be read"):
            lazy(tmp_path / "store", config=config)


async def test_a_full_store_refuses_messages_and_keeps_what_it_took(tmp_path: Path):
    """A store at its limit answers with an error; what it acknowledged is there after the next start."""
    full = {"config": "jetstream { max_file_store: 1MB }"}
    server = await asyncio.to_thread(lazy(tmp_path, **full).start)
    taken, refused = 0, False
    try:
        async with jetstream(server.url) as stream:
            await stream.add_stream(name="S", subjects=["s"])
            while not refused:
                try:
                    await stream.publish("s", b"x" * 200_000)
                    taken += 1
                except nats.js.errors.ServiceUnavailableError:
                    refused = True
    finally:
        await asyncio.to_thread(server.stop)
    assert taken in (5, 6), "the one that passes the limit is still taken"
    with lazy(tmp_path, **full) as again:
        assert again.losses == ()
        assert again.nodes[0]._monitor("/jsz")[1]["messages"] == taken


async def test_a_server_has_room_for_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store that is larger than what its disk has left takes messages after the next start, too."""
    place = "penstock.server.room.shutil.disk_usage"
    for free in (8_000_000, 4_000_000):
        monkeypatch.setattr(place, lambda folder, free=free: SimpleNamespace(free=free))
        server = await asyncio.to_thread(lazy(tmp_path).start)
        try:
            async with jetstream(server.url) as stream:
                await stream.add_stream(name="S", subjects=["s"])
                for _ in range(5 if free == 8_000_000 else 2):
                    await stream.publish("s", b"x" * 1_000_000)
        finally:
            await asyncio.to_thread(server.stop)
    with lazy(tmp_path, config="jetstream { max_file: 9MB }") as given:
        assert given.nodes[0]._monitor("/jsz")[1]["config"]["max_storage"] == 9 * 1024 * 1024


def test_what_a_newer_server_made_is_told():
    """A stream that this server is too old for is not brought up, and that is not passed over."""
    log = "[1] 2026/11/16 05:58:00 [WRN]   Detected unsupported stream '$G > C': required API level: 9\n"
    [loss] = losses("n1", Path("/nowhere"), Held(), log, {})
    assert loss.certain
    assert "unsupported stream '$G > C'" in loss.text
    assert losses("n1", Path("/nowhere"), Held(), "[WRN] Filestore [A] Stream state outdated, will rebuild", {}) == []


def test_a_synced_store_in_memory_is_told(caplog: Any):
    """Syncing to memory keeps nothing: a store that was named there is told to whoever wants it synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        with Server(store=folder):
            assert "is in memory (tmpfs)" in caplog.text
        caplog.clear()
        with Server(store=folder, sync="2m"):
            assert "in memory" not in caplog.text
