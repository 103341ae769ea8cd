"""A gateway that syncs what it stores itself: once before each answer, and only what is really there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from penstock import Server, connect
from penstock.channels import Client, Gateway
from penstock.channels.disk import Disk
from penstock.connection import api_request
from penstock.errors import ChannelError, InputError, OptionError
from tests.live.stan import Got, until


@pytest.fixture
def lazy(tmp_path):
    """A server that syncs now and then, and its store."""
    with Server(store=tmp_path, sync="2m") as server:
        yield server, tmp_path


@pytest.fixture
def synced(monkeypatch):
    """Count the syncs of each file by its name."""
    found: Counter[str] = Counter()

    def counting(real):
        def sync(opened: int) -> None:
            found[os.readlink(f"/proc/self/fd/{opened}")] += 1
            real(opened)

        return sync

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"penstock.channels.disk.os.{name}", counting(getattr(os, name)))
    return found


async def test_what_is_acknowledged_was_synced(lazy, synced):
    """Before a publisher has its ack the block that holds its message is synced, once for all that came together."""
    server, store = lazy
    folder = store / "jetstream" / "$G" / "streams"
    async with Gateway(server.url, synced_store=str(store)), Client(server.url, client_id="me") as client:
        assert synced[str(folder / "test-cluster=state" / "msgs" / "1.blk")], "the client is known by now"
        await client.publish("foo", b"one")
        block = str(folder / "test-cluster:foo" / "msgs" / "1.blk")
        assert synced[block] == 1
        for name in ("meta.inf", "meta.sum", "msgs", ""):
            assert synced[str(folder / "test-cluster:foo" / name).rstrip("/")] == 1, (
                "a new channel is synced as a whole"
            )
        await client.publish("foo", b"two")
        assert synced[block] == 2
        many = [await client.publish_async("foo", b"%d" % number) for number in range(1000)]
        for stored in many:
            await stored
        assert 2 < synced[block] < 500
        subscription = await client.subscribe("foo", start="First")
        assert [(await subscription.next(10)).data for _ in range(3)] == [b"one", b"two", b"0"]


async def test_blocks_that_came_and_went(lazy, synced):
    """All blocks that got something are synced, also if several were filled, purged, or the stream made again."""
    server, store = lazy
    disk = Disk(store)
    async with await connect(server.url) as nc:
        config = {"name": "S", "subjects": ["s"], "storage": "file"}
        await api_request(nc, "STREAM.CREATE.S", config)
        msgs = store / "jetstream" / "$G" / "streams" / "S" / "msgs"
        for _ in range(20):
            await nc.request("s", b"x" * 900_000)
        await disk.sync("S")
        blocks = {path.name for path in msgs.glob("*.blk")}
        assert len(blocks) > 1
        assert {Path(name).name for name in synced if name.endswith(".blk")} >= blocks
        await nc.request("s", b"more")
        await disk.sync("S")
        await api_request(nc, "STREAM.PURGE.S")
        await nc.request("s", b"after")
        synced.clear()
        await disk.sync("S")
        newest = max(msgs.glob("*.blk"), key=lambda path: int(path.stem))
        assert synced[str(newest)]
        await disk.sync("S", grown=False)
        with pytest.raises(InputError, match="has not grown"):
            await disk.sync("S")
    disk.close()
    assert open_blocks(msgs) == []


def open_blocks(folder):
    """Give the blocks in a folder that this process has open, those that are gone included."""
    names = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            names.append(os.readlink(f"/proc/self/fd/{entry}"))
    return [name for name in names if name.startswith(f"{folder}/")]


async def test_a_block_that_was_replaced_is_synced_itself(tmp_path, synced, monkeypatch):
    """A block is kept open between syncs; if another file has taken its place, that one is synced, and not the old."""
    folder = tmp_path / "jetstream" / "$G" / "streams" / "S"
    msgs = folder / "msgs"
    msgs.mkdir(parents=True)
    for path in (folder / "meta.inf", folder / "meta.sum", msgs / "1.blk"):
        path.write_bytes(b"one")
    monkeypatch.setattr("penstock.channels.disk._BRIEF", 60.0)  # however slow this disk is
    disk = Disk(tmp_path)
    await disk.sync("S")
    for size in (4, 5):
        (msgs / "1.blk").write_bytes(b"x" * size)
        await disk.sync("S")
    assert open_blocks(msgs) == [str(msgs / "1.blk")], "it is kept open"
    (msgs / "new").write_bytes(b"x" * 6)
    os.replace(msgs / "new", msgs / "1.blk")
    synced.clear()
    await disk.sync("S")
    assert synced == {str(msgs / "1.blk"): 1}
    assert open_blocks(msgs) == [str(msgs / "1.blk")], "and the other was let go"
    disk.forget("S")
    assert open_blocks(msgs) == []
    disk.close()


async def test_another_folder_is_told(lazy, tmp_path_factory):
    """If the folder is not the server's store, nothing is acknowledged: the publisher hears why."""
    server, _ = lazy
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with pytest.raises(InputError, match="is not there"):
        await Disk(elsewhere).sync("S")
    with pytest.raises(InputError, match="is not there"):
        await Gateway(server.url, synced_store=str(elsewhere)).start()
    async with Gateway(server.url) as gateway, Client(server.url, client_id="me") as client:
        assert gateway.service is not None
        gateway.service.store._disk = Disk(elsewhere)
        with pytest.raises(ChannelError, match="cannot be synced to disk"):
            await client.publish("foo", b"one")


async def test_what_may_have_been_sent_is_synced_before_it_is(lazy, synced, monkeypatch):
    """No message goes out before the state that says so is on disk; one sync allows for many of them."""
    server, store = lazy
    state = "test-cluster=state"
    async with (
        Gateway(server.url, synced_store=str(store)) as gateway,
        Client(server.url, client_id="me", ack_timeout=60) as client,
    ):
        service = gateway.service
        assert service is not None
        assert service.disk is not None
        await client.subscribe("foo", got := Got(), durable="d", max_in_flight=50)
        real, go = service.disk.sync, asyncio.Event()

        async def sync(stream: str, *, grown: bool = True) -> None:
            if stream == state:
                await go.wait()
            await real(stream, grown=grown)

        monkeypatch.setattr(service.disk, "sync", sync)
        for stored in [await client.publish_async("foo", b"%d" % number) for number in range(1000)]:
            await stored
        [group] = service.channels["foo"].subscribers.groups
        await until(lambda: group.waits)
        await got.stays(group.reserved, 0.2)
        assert 0 < group.last == group.reserved < 1000
        synced.clear()
        go.set()
        await got.count(1000)
        assert got.sequences == list(range(1, 1001))
        assert not got.redelivered
        assert 0 < synced[str(store / "jetstream" / "$G" / "streams" / state / "msgs" / "1.blk")] < 20


def test_replicas_cannot_be_synced_from_outside():
    """With more than one replica a message is not in its file when it is acknowledged: the two exclude each other."""
    with pytest.raises(OptionError, match="synced_store"):
        Gateway("nats://127.0.0.1:4222", replicas=3, synced_store="/tmp")


async def test_a_disk_that_fails_acknowledges_nothing(lazy, monkeypatch):
    """If a sync fails, the publisher hears why, and not that its message is stored."""
    server, store = lazy
    async with Gateway(server.url, synced_store=str(store)), Client(server.url, client_id="me") as client:
        await client.publish("foo", b"one")

        def fail(opened: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(f"penstock.channels.disk.os.{name}", fail)
        with pytest.raises(ChannelError, match=r"cannot be synced to disk: Input/output error"):
            await client.publish("foo", b"two")
        monkeypatch.undo()
        await client.publish("foo", b"three")


async def test_a_slow_disk_gets_the_last_of_the_state(lazy, synced, caplog):
    """A gateway whose syncs take long syncs on threads, and stops as any other: what it stored last is synced, too."""
    server, store = lazy
    gateway = Gateway(server.url, synced_store=str(store))
    async with gateway, Client(server.url, client_id="me") as client:
        assert gateway.service is not None
        assert gateway.service.disk is not None
        gateway.service.disk._took = 10.0
        await client.publish("foo", b"one")
        await client.subscribe("foo", durable="d")
        synced.clear()
        caplog.clear()
    assert synced[str(store / "jetstream" / "$G" / "streams" / "test-cluster=state" / "msgs" / "1.blk")]
    assert not caplog.records
