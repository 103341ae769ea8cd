"""Durables of an old server, brought over: each goes on at the right message, and nothing is overwritten in silence."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import sqlite3
import urllib.request
from contextlib import asynccontextmanager

import pytest

from penstock.channels import Client
from penstock.channels.migrate import copy_channel
from penstock.channels.old_durables import OldDurable, from_monitor, from_store
from penstock.channels.old_store import OldStore
from penstock.channels.positions import Fate, plan_positions, set_positions
from penstock.channels.store import Store
from penstock.connection import api_request
from penstock.errors import DataLossError, InputError, ServerError
from tests.live.inprocess import invoke
from tests.live.stan import Got, cluster_of
from tests.old_store import GOLDEN, StoreWriter, sent, subscription

OLD = shutil.which("nats-streaming-server")
foreign = pytest.mark.skipif(OLD is None, reason="nats-streaming-server is not installed")


@pytest.fixture
async def target(server, unique):
    async with cluster_of(server.url, unique("t")) as made:
        yield made


@pytest.fixture
async def migrate(target, server):
    """Give `penstock channels migrate` for the target, as a function; its answer as JSON, or what it said."""

    async def run(*arguments: str, status: int = 0):
        given = ("--cluster-id", target.cluster, "--subject-prefix", f"{target.cluster}.", "--json")
        done = await asyncio.to_thread(invoke, server.url, "channels", "migrate", *arguments, *given)
        assert done.status == status, done.stderr
        return json.loads(done.stdout) if status == 0 else done.stderr

    return run


def nothing(_message) -> None:
    """Acknowledge nothing."""


async def test_durables_go_on_where_they_were(target, migrate):
    """What the real server had not got acknowledged comes again, marked; then what is new, unmarked, and no more."""
    moved = await migrate("--from-store", str(GOLDEN))
    assert [row["copied"] for row in moved["channels"]] == [10, 1, 0]
    assert {row["fate"] for row in moved["durables"]} == {Fate.BROUGHT}
    assert moved["notes"] == ["2 subscriptions that are not durable end with the old server"]
    await target.serve()
    publisher = await target.client("pub")
    billing = await target.client("billing")
    got = Got(nothing)
    await billing.subscribe("orders", got, durable="d1", start="First", manual_acks=True, max_in_flight=20)
    await got.count(6)
    await publisher.publish("orders", b"order 11")
    await got.count(7)
    assert (got.sequences, got.redelivered) == ([3, 5, 7, 8, 9, 10, 11], [3, 5, 7, 8, 9, 10])
    audit = await target.client("audit")
    all_acked = Got()
    await audit.subscribe("orders", all_acked, durable="d2", start="First")
    assert [item.sequence for item in await all_acked.count(1)] == [11]
    workers = Got(nothing)
    other = await target.client("other")
    await other.subscribe("orders", workers, queue="workers", durable="q", manual_acks=True, max_in_flight=20)
    await workers.count(9)
    assert (workers.sequences, workers.redelivered) == ([*range(3, 12)], [*range(3, 8)])
    group = Got()
    await other.subscribe("orders.eu", group, queue="g", durable="dq")
    assert [(item.sequence, item.redelivered) for item in await group.count(1)] == [(1, True)]
    quiet = Got()
    owner = await target.client("w1")
    await owner.subscribe("quiet", quiet, durable="e")
    await publisher.publish("quiet", b"first")
    assert [(item.sequence, item.data) for item in await quiet.count(1)] == [(1, b"first")]
    for seen, number in ((got, 7), (all_acked, 1), (workers, 9), (group, 1), (quiet, 1)):
        await seen.stays(number, 0.1)


async def test_durables_of_a_database(target, migrate, tmp_path):
    """A SQL store gives the same durables as a file store, through whatever module opens it."""
    path = tmp_path / "nss.db"
    with sqlite3.connect(path) as database:
        database.executescript(GOLDEN.with_suffix(".sql").read_text())
    database.close()
    moved = await migrate("--from-sql", f"sqlite3:database={path}")
    assert [row["copied"] for row in moved["channels"]] == [9, 1, 0]
    assert [(row["fate"], row["last"]) for row in moved["durables"]] == [
        (Fate.BROUGHT, last) for last in (7, 10, 10, 1, 0)
    ]
    again = await migrate("--from-sql", f"sqlite3:database={path}", "--dry-run")
    assert {row["fate"] for row in again["durables"]} == {Fate.SAME}


async def test_a_dry_run_changes_nothing(target, migrate):
    """A dry run lists channels and durables, and leaves no stream behind; after the move it is the check."""
    planned = await migrate("--from-store", str(GOLDEN), "--dry-run")
    assert [row["to_copy"] for row in planned["channels"]] == [10, 1, 0]
    assert [row["fate"] for row in planned["durables"]] == [Fate.BRING] * 5
    store = Store(await target.connection(), target.cluster)
    assert await store.streams() == {}
    await migrate("--from-store", str(GOLDEN))
    planned = await migrate("--from-store", str(GOLDEN), "--dry-run")
    assert [row["to_copy"] for row in planned["channels"]] == [0, 0, 0]
    assert [row["fate"] for row in planned["durables"]] == [Fate.SAME] * 5


async def test_a_rehearsal_may_be_repeated(target, migrate, tmp_path):
    """A position that nobody has used since is moved on by the next run; one that a client has used is refused."""
    writer = StoreWriter(tmp_path / "store")
    writer.messages("foo", range(1, 6))
    place = ("--from-store", str(writer.folder))
    writer.subscriptions("foo", (1, subscription(1, "c", durable="d", last=2)))
    await migrate(*place)
    writer.subscriptions("foo", (1, subscription(1, "c", durable="d", last=2)), *sent(1, 3, 4))
    assert [row["fate"] for row in (await migrate(*place))["durables"]] == [Fate.BROUGHT]
    gateway = await target.serve()
    client = await target.client("c")
    got = Got()
    subscription_ = await client.subscribe("foo", got, durable="d")
    await got.count(3)
    assert (got.sequences, got.redelivered) == ([3, 4, 5], [3, 4])
    await subscription_.close()
    assert "being served" in await migrate(*place, "--replace-positions", "--no-verify", status=1)
    await client.close()
    await gateway.stop()
    assert "the gateway has served it already, up to 5" in await migrate(*place, status=2)
    await migrate(*place, "--replace-positions")
    await target.serve()
    client = await target.client("c")
    again = Got()
    await client.subscribe("foo", again, durable="d")
    await again.count(3)
    assert again.redelivered == [3, 4]


async def test_a_channel_whose_messages_are_all_gone(target, migrate, tmp_path):
    """Sequences go on behind the positions, so the next message is new to a durable that had seen all."""
    writer = StoreWriter(tmp_path / "store")
    writer.subscriptions("foo", (1, subscription(1, "c", durable="d", last=41)))
    await migrate("--from-store", str(writer.folder))
    await target.serve()
    client = await target.client("c")
    got = Got()
    await client.subscribe("foo", got, durable="d", start="First")
    await client.publish("foo", b"next")
    await got.count(1)
    assert got.sequences == [42]


async def test_files_hold_more_than_the_server_did(target, migrate):
    """What the limits of the old server had dropped before the first copy is not missed when its files are read."""
    store = Store(await target.connection(), target.cluster, prefix=f"{target.cluster}.")
    await copy_channel(OldStore(GOLDEN), store, "orders", (2, 8), lambda step: None)  # as it was told while it ran
    moved = await migrate("orders", "--from-store", str(GOLDEN))
    [row] = moved["channels"]
    assert (row["first"], row["end"], row["copied"], row["verified"]) == (2, 11, 2, 9)
    await api_request(store.connection, f"STREAM.PURGE.{target.stream('orders')}", {"seq": 4})
    assert "Message 2 of orders is missing" in await migrate("orders", "--from-store", str(GOLDEN), status=1)


async def test_positions_need_their_messages(target, unique):
    """A position is not set where the messages were not copied up to the end of the source, or end before it."""
    store = Store(await target.connection(), target.cluster, prefix=f"{target.cluster}.")
    durable = OldDurable("foo", "c", "d", "", 1, 1, 5, ())
    planned = await plan_positions(store, [durable], {"foo": (1, 9)})
    with pytest.raises(DataLossError, match="copied up to 0, and its source goes up to 9"):
        await set_positions(store, planned, {"foo": (1, 9)})
    beyond = await plan_positions(store, [durable], {"foo": (1, 3)})
    assert beyond[0].why == "it was sent 5, and the channel ends at 3"
    with pytest.raises(InputError, match="durable d of client c on foo cannot be brought: it was sent 5"):
        await set_positions(store, beyond, {"foo": (1, 3)})
    assert await store.streams() == {}


async def test_positions_from_the_pages(stan, target, migrate, server):
    """The pages of a server that runs are enough for durables that acknowledged all; others are refused by name."""
    gateway = await stan.serve(monitor="127.0.0.1:0")
    client = await stan.client("me")
    for number in range(1, 4):
        await client.publish("foo", b"%d" % number)
    done, behind = Got(), Got(nothing)
    await client.subscribe("foo", done, durable="done", start="First")
    await done.count(3)
    sub = await client.subscribe("foo", behind, durable="behind", start="First", manual_acks=True)
    await behind.count(3)
    page = gateway.monitor_url.removesuffix("/streaming")

    async def pending() -> list[int]:
        return [item.unknown for item in (await from_monitor(page, ["foo"])).durables]

    async with asyncio.timeout(20):
        while await pending() != [3, 0]:
            await asyncio.sleep(0.01)
    place = ("--from", server.url, "--from-cluster", stan.cluster, "--from-monitor", page)
    said = await migrate(*place, "--positions", status=2)
    assert "durable behind of client me on foo cannot be brought: 3 messages are not acknowledged" in said
    for message in behind.messages:
        message.ack()
    async with asyncio.timeout(20):
        while await pending() != [0, 0]:
            await asyncio.sleep(0.01)
    await sub.close()
    moved = await migrate(*place, "--positions")
    assert [(row["durable"], row["last"]) for row in moved["durables"]] == [("behind", 3), ("done", 3)]


async def test_somebody_who_takes_over_is_told(target, monkeypatch):
    """When a gateway takes the lead while positions are written, the run fails and says so."""
    from penstock.channels.state import State

    store = Store(await target.connection(), target.cluster, prefix=f"{target.cluster}.")
    durable = OldDurable("foo", "c", "d", "", 1, 1, 5, (4,))
    load = State.load

    async def overtaken(self):
        found = await load(self)
        rival = State(self.connection, self.cluster)
        await rival.create()
        assert await rival.lead(self.epoch)
        return found

    monkeypatch.setattr(State, "load", overtaken)
    planned = await plan_positions(store, [durable], {})
    with pytest.raises(ServerError, match="took the cluster"):
        await set_positions(store, planned, {})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--from-store", "/nowhere"), "no server.dat"),
        (("--from-store", str(GOLDEN), "--from", "nats://127.0.0.1:1"), "another source"),
        (("foo", "--from", "nats://127.0.0.1:1", "--positions"), "needs to know the durables"),
        (("nope", "--from-store", str(GOLDEN)), "no channel nope. It has orders, orders.eu, quiet"),
        (("--from-store", str(GOLDEN), "--crc-poly", "0"), "--crc-poly"),
    ],
)
async def test_wrong_sources(migrate, flags, words):
    """What cannot be a source is said in a sentence."""
    assert words in await migrate(*flags, status=2)


# -- the real server, where it is installed ----------------------------------------------------------------------------


@asynccontextmanager
async def old_server(folder, *flags: str):
    """Run the real server on a store, and give its addresses for clients and for its pages."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    client, monitor = ports
    process = await asyncio.create_subprocess_exec(
        *(OLD, "-a", "127.0.0.1", "-p", str(client), "-m", str(monitor), "-cid", "old"),
        *("-store", "FILE", "-dir", str(folder), *flags),
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{monitor}"

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/streaming/serverz", timeout=5) as page:
                return json.load(page)["state"] == "STANDALONE"
        except (OSError, ValueError):
            return False

    try:
        async with asyncio.timeout(30):
            while not await asyncio.to_thread(answers):
                await asyncio.sleep(0.05)
        yield f"nats://127.0.0.1:{client}", url, process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@foreign
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_from_the_real_server_and_back_to_it(target, migrate, tmp_path, how):
    """The store of the real server is brought over; it is not changed, so the way back is open.

    A server that was killed had not written all that it knew: then more comes again, and nothing is missing.
    """
    folder = tmp_path / "store"
    async with old_server(folder) as (url, page, process):
        client = await Client(url, cluster_id="old", client_id="me").connect()
        try:
            for number in range(1, 101):
                await client.publish("foo", b"%d" % number)
            sub = await client.subscribe("foo", durable="d", start="First", manual_acks=True, max_in_flight=50)
            for _ in range(40):
                message = await sub.next(10)
                if message.sequence % 10:
                    message.ack()
            async with asyncio.timeout(20):
                while (await from_monitor(page, ["foo"])).durables[0].last < 86:  # 36 acknowledged, as many sent
                    await asyncio.sleep(0.01)
            assert "in use by process" in await migrate("--from-store", str(folder), status=1)
            process.send_signal(how)
            await process.wait()
        finally:
            await client._release()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    moved = await migrate("--from-store", str(folder))
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    [row] = moved["durables"]
    held = [10, 20, 30, 40, *range(41, 87)]
    if how == signal.SIGTERM:
        assert (row["last"], row["pending"]) == (86, held)
    coming = [*row["pending"], *range(row["last"] + 1, 101)]
    assert set(held) <= set(coming)
    await target.serve()
    client = await target.client("me")
    got = Got()
    await client.subscribe("foo", got, durable="d")
    await got.count(len(coming))
    assert (got.sequences, got.redelivered) == (coming, row["pending"])
    async with old_server(folder) as (_, page, _):
        [shown] = (await from_monitor(page, ["foo"])).durables
        # Its client is registered still, so it sends on as far as the client's limit goes.
        assert shown.last - shown.unknown == row["last"] - len(row["pending"])


@foreign
async def test_an_encrypted_store_of_the_real_server(migrate, tmp_path):
    """Messages that the real server encrypted are refused from the store, and come from the server itself."""
    folder = tmp_path / "store"
    async with old_server(folder, "-encrypt", "-encryption_key", "secret") as (url, page, _):
        async with Client(url, cluster_id="old", client_id="me") as client:
            await client.publish("foo", b"hidden")
            sub = await client.subscribe("foo", durable="d", start="First", manual_acks=True)
            await sub.next(10)
        assert "encrypted" in await migrate("--from-store", str(shutil.copytree(folder, tmp_path / "c")), status=2)
        await migrate("--from", url, "--from-cluster", "old", "--from-monitor", page)
    moved = await migrate("--from-store", str(folder), "--no-verify")
    assert [(row["last"], row["pending"]) for row in moved["durables"]] == [(1, [1])]
    assert from_store(OldStore(folder), ["foo"]).durables[0].pending == (1,)
