"""Watches of a bucket: first what is there, then every change, in order, whatever happens in between."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.buckets import Entry, KeyValue, Watch
from penstock.buckets import watch as watch_module
from penstock.connection import Connection, api_request, connect
from penstock.errors import DataLossError, DeniedError, DisconnectedError, InputError, NotFoundError
from penstock.jetstream import assets, ordered
from penstock.jetstream.ordered import OrderedRead
from penstock.model import Stream
from penstock.server import Server
from tests.live.cable import Relay, relay
from tests.support import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have silence noticed sooner than in earnest."""
    monkeypatch.setattr(ordered, "HEARTBEAT", 0.3)


@pytest.fixture
async def kv(nc: Connection, unique: Callable[..., str]) -> KeyValue:
    """A bucket with some history: a has two values, b was deleted, c has one."""
    made = await KeyValue.create_bucket(nc, unique("b"), history=10)
    for key in ("a", "b", "a", "c"):
        await made.put(key, key.encode())
    await made.delete("b")
    return made


def told(entries: list[Entry]) -> list[tuple[str, str, int]]:
    return [(entry.operation, entry.key, entry.revision) for entry in entries]


async def took(watch: Watch, count: int, within: float = 20) -> list[Entry]:
    async with asyncio.timeout(within):
        return [await anext(watch) for _ in range(count)]


async def test_a_watch_gives_what_is_there_and_then_what_changes(kv: KeyValue):
    """The last entry of each key in the order of writing; `is_current` turns true with the last of them."""
    async with kv.watch() as watch:
        assert not watch.is_current
        assert told([entry async for entry in watch.current()]) == [("PUT", "a", 3), ("PUT", "c", 4), ("DEL", "b", 5)]
        assert watch.is_current
        assert [entry async for entry in watch.current()] == []
        await kv.put("c", b"new")
        await kv.purge("a")
        assert told(await took(watch, 2)) == [("PUT", "c", 6), ("PURGE", "a", 7)]
        assert watch.revision == 7


@pytest.mark.parametrize(
    ("filters", "how", "first"),
    [
        ([], {"history": True}, [("PUT", "a", 1), ("PUT", "b", 2), ("PUT", "a", 3), ("PUT", "c", 4), ("DEL", "b", 5)]),
        ([], {"ignore_deletes": True}, [("PUT", "a", 3), ("PUT", "c", 4)]),
        ([], {"updates_only": True}, []),
        ([], {"resume_from": 4}, [("PUT", "c", 4), ("DEL", "b", 5)]),
        ([], {"resume_from": 6}, []),
        (["a", "b"], {}, [("PUT", "a", 3), ("DEL", "b", 5)]),
        (["x.>"], {}, []),
    ],
)
async def test_what_is_watched(kv: KeyValue, filters: list[str], how: Any, first: list[tuple[str, str, int]]):
    """Filters and the ways to begin; what was there ends, also if that is nothing, and changes follow."""
    async with asyncio.timeout(10), kv.watch(*filters, **how) as watch:
        assert told([entry async for entry in watch.current()]) == first
        assert watch.is_current
        await kv.put("a", b"6")
        await kv.put("x.y", b"7")
        expected = [("PUT", "a", 6), ("PUT", "x.y", 7)]
        if filters:
            expected = [expected[0]] if "a" in filters else [expected[1]]
        assert told(await took(watch, len(expected))) == expected


async def test_keys_without_values(kv: KeyValue):
    """A watch for keys alone is sent no values."""
    async with kv.watch(meta_only=True) as watch:
        assert {entry.value async for entry in watch.current()} == {b""}


async def test_a_watch_leaves_nothing_behind(kv: KeyValue, nc: Connection):
    """The consumer is deleted when the watch ends, and who still waits is told."""
    async with kv.watch():
        assert (await kv.status()).stream.consumers == 1
    await kv.keys()
    await kv.history("a")
    assert (await kv.status()).stream.consumers == 0
    watch = kv.watch()
    await watch.open()
    waiting = asyncio.ensure_future(took(watch, 4))
    await eventually(lambda: watch.is_current, "the current state")
    with pytest.raises(InputError, match="Somebody else waits"):
        await anext(watch)
    await watch.close()
    with pytest.raises(DisconnectedError):
        await waiting


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def wired(server: Server) -> AsyncIterator[tuple[Relay, Connection]]:
    """A connection whose wire can be cut."""
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.05) as client:
        yield wire, client


async def test_a_lost_connection_loses_nothing(kv: KeyValue, wired: tuple[Relay, Connection]):
    """What is written while the connection is away comes afterwards, in order, each once."""
    wire, client = wired
    async with (await KeyValue.open(client, kv.bucket)).watch(updates_only=True) as watch:
        seen: list[int] = []
        for number in range(3):
            wire.refuse = True
            wire.cut()
            for _ in range(5):
                await kv.put(f"k{number}", b"x")
            wire.refuse = False
            seen += [entry.revision for entry in await took(watch, 5)]
    assert seen == list(range(6, 21))


async def test_the_first_value_of_all_is_not_missed(
    nc: Connection, wired: tuple[Relay, Connection], unique: Callable[..., str]
):
    """A bucket that was empty when the watch began, and that gets a value while the connection is away."""
    wire, client = wired
    kv = await KeyValue.create_bucket(nc, unique("b"))
    for how in ({"updates_only": True}, {}, {"resume_from": 2}):
        async with (await KeyValue.open(client, kv.bucket)).watch(**how) as watch:
            wire.refuse = True
            wire.cut()
            await kv.put("a", b"1")
            wire.refuse = False
            assert (await took(watch, 1))[0].value == b"1"


async def test_a_wire_that_breaks_again_and_again_while_much_is_read(kv: KeyValue, wired: tuple[Relay, Connection]):
    """Whatever was on its way when the wire broke is read again, from where it was lost."""
    wire, client = wired
    pairs = [(f"k{number}", b"x" * 200) for number in range(3000)]
    revisions = [revision async for _, revision in kv.put_all(pairs)]
    seen: list[int] = []
    wire.cut_down_at = wire.down + 100_000
    async with asyncio.timeout(30), (await KeyValue.open(client, kv.bucket)).watch("*", history=True) as watch:
        async for entry in watch.current():
            seen.append(entry.revision)
            if wire.cuts < 5 and wire.cut_down_at is None:
                wire.cut_down_at = wire.down + 50_000
    assert wire.cuts >= 3
    assert seen == [1, 2, 3, 4, 5, *revisions]


async def test_a_consumer_that_is_gone_is_made_again(kv: KeyValue, nc: Connection):
    """Somebody deletes it, or its server dies: the watch goes on behind what it has seen."""
    stream = f"KV_{kv.bucket}"
    async with kv.watch(updates_only=True) as watch:
        for number in range(2):
            consumer = (await assets.consumers(nc, stream))[0]
            await assets.delete_consumer(nc, stream, consumer.name)
            await kv.put("k", b"%d" % number)
            assert told(await took(watch, 1)) == [("PUT", "k", 6 + number)]


async def test_messages_that_go_before_they_are_read_end_the_current_state(kv: KeyValue, nc: Connection):
    """The server counted more than it can send: the watch says all the same that it is current."""
    stream = f"KV_{kv.bucket}"
    read = OrderedRead(nc, stream, filters=[f"$KV.{kv.bucket}.>"], heartbeat=0.2)
    await read.open()
    await eventually(lambda: len(read._queue) >= 6, "the five values and the mark behind them")
    read._initial, read._marked, read.is_current = 99, False, False
    read._queue.clear()
    async with asyncio.timeout(5):
        assert [message async for message in read.current()] == []
    await read.close()


async def test_a_slow_reader_holds_the_server_back(kv: KeyValue, nc: Connection):
    """What waits here is bounded by the server's window, and everything comes in the end."""
    revisions = [revision async for _, revision in kv.put_all((f"k{n}", b"x" * 100_000) for n in range(300))]
    async with kv.watch("*", resume_from=6) as watch:
        queue = watch._read._queue
        await eventually(lambda: any(isinstance(item, bytes) and type(item) is bytes for item in queue), "the question")
        await nc.flush()
        assert sum(len(item.data) for item in queue if hasattr(item, "data")) < 8 * 1024 * 1024
        assert [entry.revision async for entry in watch.current()] == revisions


# -- another bucket --------------------------------------------------------------------------------------------------


async def test_a_bucket_that_is_deleted_ends_its_watches(kv: KeyValue, nc: Connection):
    """Who waits is told; so is who begins to watch."""
    async with kv.watch(updates_only=True) as watch:
        await KeyValue.delete_bucket(nc, kv.bucket)
        with pytest.raises(NotFoundError, match=f"no bucket {kv.bucket}"):
            await took(watch, 1)
    with pytest.raises(NotFoundError, match=f"no bucket {kv.bucket}"):
        await kv.watch().open()


async def test_a_bucket_that_is_replaced_ends_its_watches(kv: KeyValue, nc: Connection):
    """Another bucket of the same name is not watched on as if it were the old one."""
    async with kv.watch(updates_only=True) as watch:
        await KeyValue.delete_bucket(nc, kv.bucket)
        await KeyValue.create_bucket(nc, kv.bucket, history=10)
        await kv.put("a", b"1")
        with pytest.raises(NotFoundError, match=f"Bucket {kv.bucket} was deleted, and another one"):
            await took(watch, 1)


async def test_a_bucket_that_is_purged_is_told(kv: KeyValue, nc: Connection, monkeypatch: pytest.MonkeyPatch):
    """The server says nothing to watchers; a watch finds out, also if values came since."""
    monkeypatch.setattr(watch_module, "_LOOK", 0.05)
    async with kv.watch() as watch:
        assert len(await took(watch, 3)) == 3
        await kv.put("a", b"x")
        await kv.put("b", b"y")
        await kv.put("a", b"z")
        await took(watch, 3)
        await asyncio.sleep(0.3)  # nothing is wrong, and nothing is said
        await api_request(nc, f"STREAM.PURGE.KV_{kv.bucket}")
        with pytest.raises(DataLossError, match="was purged: the values up to 8 are gone"):
            await took(watch, 1)


async def test_a_purge_is_told_although_a_value_follows_at_once(
    kv: KeyValue, nc: Connection, monkeypatch: pytest.MonkeyPatch
):
    """What was purged stays gone: a value that comes before anybody has looked does not hide it."""
    monkeypatch.setattr(watch_module, "_LOOK", 0.05)
    async with kv.watch() as watch:
        held = len(await took(watch, 3))
        await api_request(nc, f"STREAM.PURGE.KV_{kv.bucket}")
        await kv.put("another", b"y")
        with pytest.raises(DataLossError, match="was purged"):
            await took(watch, held + 2)


async def test_a_key_that_ends_is_no_purge(nc: Connection, unique: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    """Values that age out of a bucket are no loss."""
    monkeypatch.setattr(watch_module, "_LOOK", 0.05)
    kv = await KeyValue.create_bucket(nc, unique("b"), ttl=0.5)
    await kv.put("a", b"1")
    async with kv.watch() as watch:
        await took(watch, 1)
        await eventually(lambda: _empty(kv), "the end of the value")
        await asyncio.sleep(0.3)
        await kv.put("b", b"2")
        assert told(await took(watch, 1)) == [("PUT", "b", 2)]


async def _empty(kv: KeyValue) -> bool:
    return (await kv.status()).values == 0


async def test_a_revision_that_the_bucket_never_reached_is_told(kv: KeyValue):
    """Who resumes in a bucket that is another one, or older, does not wait for ever."""
    with pytest.raises(DataLossError, match="ends with 5, and was to be read from 100 on"):
        await kv.watch(resume_from=100).open()


async def test_a_bucket_put_back_to_an_older_state_is_told(tmp_path: Path):
    """The store of a server is put back under a watch: revisions that were given are not given again in silence."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    with Server(store=store, sync="always", auth=False, on_loss="tell") as server:
        port = server.nodes[0].address.rpartition(":")[2]
        async with await connect(server.url) as nc:
            kv = await KeyValue.create_bucket(nc, "b")
            await kv.put("a", b"1")
    shutil.copytree(store, copy)
    server = Server(store=store, sync="always", auth=False, port=int(port), on_loss="tell").start()
    async with await connect(server.url, reconnect_wait=0.05) as nc:
        kv = await KeyValue.open(nc, "b")
        async with kv.watch() as watch:
            assert [entry.revision for entry in await took(watch, 1)] == [1]  # which the next one overwrites
            await kv.put("a", b"2")
            assert [entry.revision for entry in await took(watch, 1)] == [2]
            await asyncio.to_thread(server.stop)
            shutil.rmtree(store)
            shutil.copytree(copy, store)
            older = Server(store=store, sync="always", auth=False, port=int(port), on_loss="tell")
            with older, pytest.raises(DataLossError, match="ends with 1, and was to be read from 3 on"):
                await took(watch, 1)


async def test_a_watch_that_is_not_permitted_is_told_at_once(tmp_path: Path):
    """A consumer, an inbox, or the answers to flow control that are denied are errors, never a wait."""
    config = """authorization { users: [
        { user: all, password: p }
        { user: none, password: p, permissions: { publish: { deny: ["$JS.API.CONSUMER.CREATE.>"] } } }
        { user: stuck, password: p, permissions: { publish: { deny: ["$JS.FC.>"] } } }
    ] }"""
    with Server(config=config, auth=False, sync="2m") as server:
        where = server.nodes[0].address
        async with await connect(f"nats://all:p@{where}") as nc:
            kv = await KeyValue.create_bucket(nc, "b")
            async for _ in kv.put_all((f"k{n}", b"x" * 100_000) for n in range(200)):
                pass
        async with asyncio.timeout(10):
            async with await connect(f"nats://none:p@{where}") as nc:
                with pytest.raises(DeniedError, match=r"CONSUMER\.CREATE"):
                    await (await KeyValue.open(nc, "b")).keys()
            async with await connect(f"nats://stuck:p@{where}") as nc:
                entries = (await KeyValue.open(nc, "b")).entries()
                with pytest.raises(DeniedError, match="FC"):
                    [entry async for entry in entries]


@pytest.mark.heavy
async def test_a_watch_survives_the_death_of_nodes(monkeypatch: pytest.MonkeyPatch):
    """Three nodes; each dies once while values are put and watched: every value comes, in order, each once."""
    monkeypatch.setattr(ordered, "HEARTBEAT", 2.0)
    with Server(nodes=3, sync="2m") as server:
        async with await connect(server.url, reconnect_wait=0.05) as nc:
            kv = await KeyValue.create_bucket(nc, "b", replicas=3, history=64)
            async with kv.watch(updates_only=True) as watch:
                sent: list[int] = []
                seen: list[int] = []
                for node in server.nodes:
                    node.kill()
                    sent += [item async for _, item in kv.put_all((f"k{n}", b"x") for n in range(200))]
                    seen += [entry.revision for entry in await took(watch, 200, 60)]
                    await asyncio.to_thread(node.start)
                    await eventually(lambda: _whole(nc), "the node coming back", timeout=60)
                assert seen == sent


async def _whole(nc: Connection) -> bool:
    info = await assets.stream_info(nc, "KV_b", patience=30)
    return len(info.placed.replicas) == 2 and all(current for _, current in info.placed.replicas)


async def test_an_ordered_read_of_a_stream(nc: Connection, unique: Callable[..., str]):
    """What buckets are read with reads any stream."""
    name = unique("S")
    await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"]))
    for number in range(3):
        await nc.jetstream().publish(f"{name}.{number}", b"%d" % number)
    async with OrderedRead(nc, name) as read:
        assert [(message.sequence, message.data) async for message in read.current()] == [
            (1, b"0"),
            (2, b"1"),
            (3, b"2"),
        ]
