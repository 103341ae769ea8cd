"""Three real nodes as one JetStream cluster, and what it survives."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

import penstock
from penstock.connection import Connection
from penstock.console import Console
from penstock.errors import PenstockError, StoreDamagedError
from penstock.info import StreamInfo
from penstock.server import Node, Server
from tests.live.browser import Browser
from tests.live.inprocess import Done, invoke

Eventually = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    """One cluster for the tests of this file; each leaves all three nodes running."""
    with Server(nodes=3, sync="2m") as running:
        yield running


@pytest.fixture(autouse=True)
def healed(cluster: Server) -> Iterator[None]:
    """Bring back every node that a test left down or paused."""
    yield
    for node in cluster.nodes:
        if node.paused:
            node.resume()
        node.start()


async def connect(urls: str) -> Connection:
    return await penstock.connect(urls, reconnect_wait=0.05)


async def persistently(request: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Repeat a request while the cluster elects a new leader."""
    async with asyncio.timeout(timeout):
        while True:
            try:
                return await request()
            except (PenstockError, OSError):
                await asyncio.sleep(0.05)


async def leader_of(client: Connection, cluster: Server, stream: str) -> Node:
    """Wait until the stream has a leader, and give its node."""
    async with asyncio.timeout(60):
        while True:
            info = await persistently(lambda: client.jetstream().stream_info(stream))
            if info.placed.leader:
                return next(node for node in cluster.nodes if node.name == info.placed.leader)
            await asyncio.sleep(0.05)


async def count(client: Connection, stream: str, least: int) -> int:
    """Count the messages of a stream, once there are so many: a leader that is new names fewer for a moment."""
    async with asyncio.timeout(60):
        while True:
            info = await persistently(lambda: client.jetstream().stream_info(stream))
            if info.messages >= least:
                return int(info.messages)
            await asyncio.sleep(0.05)


def replicas(info: StreamInfo) -> list[Any]:
    return [peer for peer in info.raw["cluster"].get("replicas") or [] if peer["current"] and not peer.get("offline")]


async def test_three_nodes_three_addresses(cluster: Server) -> None:
    """A cluster has three processes and three addresses, separated by commas in its URL; all log in the same way."""
    assert [node.name for node in cluster.nodes] == ["n1", "n2", "n3"]
    assert len({node.pid for node in cluster.nodes}) == 3
    assert cluster.url.split(",") == list(cluster.urls)
    assert len(set(cluster.urls)) == len(set(cluster.monitor_urls)) == 3
    for url in cluster.urls:
        client = await nats.connect(url)
        await client.flush()
        await client.close()
    assert cluster.token not in repr(cluster) + repr(cluster.nodes)


async def test_a_client_moves_to_another_node(cluster: Server, unique: Callable[..., str]) -> None:
    """A plain nats-py client with our URL goes on at another node when the one it uses is killed."""
    moved = asyncio.Event()

    async def quiet(error: Exception) -> None:
        """The lost connection is what this test is about."""

    async def back() -> None:
        moved.set()

    client = await nats.connect(cluster.url.split(","), reconnect_time_wait=0.05, error_cb=quiet, reconnected_cb=back)
    try:
        left = client.connected_url.port
        next(node for node in cluster.nodes if node.url.endswith(f":{left}")).kill()
        async with asyncio.timeout(30):
            await moved.wait()
        assert client.connected_url.port != left
        await client.flush()
    finally:
        await client.close()


async def test_a_stream_survives_the_kill_of_its_leader(cluster: Server, unique: Callable[..., str]) -> None:
    """After `kill -9` of the leader of a three-replica stream every acknowledged message is still there."""
    name = unique()
    client = await connect(cluster.url)
    try:
        jetstream = client.jetstream(timeout=2)
        await persistently(lambda: jetstream.add_stream(name=name, subjects=[name], num_replicas=3))
        leader = await leader_of(client, cluster, name)
        acknowledged = []
        killed: asyncio.Future[None] | None = None
        for number in range(300):
            body = f"message {number}".encode()
            headers = {"Nats-Msg-Id": str(number)}
            if number == 100:
                killed = asyncio.get_running_loop().run_in_executor(None, leader.kill)
            ack = await persistently(lambda b=body, h=headers: jetstream.publish(name, b, headers=h))
            acknowledged.append((ack.sequence, body))
        assert killed is not None
        await killed
        assert not leader.alive
        assert (await leader_of(client, cluster, name)).name != leader.name
        for sequence, body in acknowledged:
            stored = await persistently(lambda s=sequence: jetstream.get_msg(name, s))
            assert stored.data == body
        assert await count(client, name, 300) == 300

        leader.start()
        async with asyncio.timeout(60):
            while len(replicas(await persistently(lambda: jetstream.stream_info(name)))) < 2:
                await asyncio.sleep(0.05)
    finally:
        await client.close()


async def test_a_node_that_rejoins_catches_up(cluster: Server, unique: Callable[..., str]) -> None:
    """A node that was down gets what it missed: it alone can then lead the stream with all messages."""
    name = unique()
    client = await connect(cluster.url)
    try:
        jetstream = client.jetstream(timeout=2)
        await persistently(lambda: jetstream.add_stream(name=name, subjects=[name], num_replicas=3))
        leader = await leader_of(client, cluster, name)
        late = next(node for node in cluster.nodes if node is not leader)
        late.stop()
        assert not late.alive
        for number in range(20):
            await persistently(lambda n=number: jetstream.publish(name, b"%d" % n, headers={"Nats-Msg-Id": str(n)}))
        late.start()
        async with asyncio.timeout(60):
            while len(replicas(await persistently(lambda: jetstream.stream_info(name)))) < 2:
                await asyncio.sleep(0.05)
    finally:
        await client.close()


async def test_a_paused_leader_is_replaced(cluster: Server, unique: Callable[..., str]) -> None:
    """A cluster goes on without a frozen leader, which follows again once it is resumed."""
    name = unique()
    client = await connect(cluster.url)
    try:
        jetstream = client.jetstream(timeout=2)
        await persistently(lambda: jetstream.add_stream(name=name, subjects=[name], num_replicas=3))
        frozen = await leader_of(client, cluster, name)
    finally:
        await client.close()
    frozen.pause()
    client = await connect(",".join(node.url for node in cluster.nodes if node is not frozen))
    try:
        jetstream = client.jetstream(timeout=2)
        await persistently(lambda: jetstream.publish(name, b"one", headers={"Nats-Msg-Id": "1"}))
        assert (await leader_of(client, cluster, name)).name != frozen.name
        frozen.resume()
        async with asyncio.timeout(60):
            while len(replicas(await persistently(lambda: jetstream.stream_info(name)))) < 2:
                await asyncio.sleep(0.05)
        assert await count(client, name, 1) == 1
    finally:
        await client.close()


def test_another_server_leads_a_consumer(cluster: Server, unique: Callable[..., str]) -> None:
    """`consumer cluster step-down` waits until another server leads, the one that is wished for if one is."""
    name = unique("CC")

    def run(*words: str, status: int = 0) -> Done:
        done = invoke(cluster.url, *words)
        assert done.status == status, done.stderr
        return done

    run("stream", "add", name, "--subjects", f"{name}.>", "--replicas", "3", "--defaults")
    run("consumer", "add", name, "c", "--defaults")
    run("consumer", "add", name, "lone", "--replicas", "1", "--defaults")
    old = json.loads(run("consumer", "info", name, "c", "--json").stdout)["cluster"]["leader"]
    now = json.loads(run("consumer", "cluster", "step-down", name, "c", "--json", "--timeout", "20s").stdout)["cluster"]
    assert now["leader"] not in ("", old)
    wished = next(peer["name"] for peer in now["replicas"])
    shown = run("con", "c", "elect", name, "c", "--preferred", wished, "--timeout", "20s").stdout
    assert f"Leader: {wished}" in shown
    assert "kept by one server alone" in run("con", "c", "down", name, "lone", status=2).stderr
    assert "does not carry" in run("con", "c", "d", name, "c", "--preferred", "nobody", status=2).stderr
    led = run("consumer", "report", name, "--leaders").stdout
    assert re.search(rf"│ {wished} +│ +[12] │", led)
    assert run("con", "c", "balance", name, "--pull").stdout.endswith("Balanced 0 of 2 consumers.\n")
    here = json.loads(run("consumer", "info", name, "lone", "--json").stdout)["cluster"]["leader"]
    assert "Really move" in run("con", "c", "evacuate", name, "lone", here, status=2).stderr
    moved = run("con", "c", "evacuate", name, "lone", here, "-f").stdout
    assert moved.startswith(f"Consumer {name} > lone is on ")
    assert here not in moved


def test_all_nodes_down_and_up(cluster: Server) -> None:
    """All three nodes can be killed and started one after the other, the first of them alone."""
    for node in cluster.nodes:
        node.kill()
    assert not cluster.running
    for node in cluster.nodes:
        node.start()
    assert all(node.alive for node in cluster.nodes)


async def test_a_cluster_store_survives(tmp_path: Path) -> None:
    """Each node of a cluster keeps a folder of its own in the store, and finds its streams there again."""
    for attempt in range(2):
        with Server(nodes=3, store=tmp_path, sync="2m") as server:
            client = await connect(server.url)
            jetstream = client.jetstream(timeout=2)
            if attempt == 0:
                await persistently(lambda js=jetstream: js.add_stream(name="KEPT", subjects=["k"], num_replicas=3))
                await persistently(lambda js=jetstream: js.publish("k", b"for ever"))
            message = await persistently(lambda js=jetstream: js.get_msg("KEPT", 1))
            await client.close()
            assert message.data == b"for ever"
            assert [node.store for node in server.nodes] == [tmp_path / name for name in ("n1", "n2", "n3")]
            assert server.losses == ()
    assert {"n1.log", "n2.log", "n3.log"} <= set(os.listdir(tmp_path))


async def test_the_console_names_the_node_that_is_missing(cluster: Server, unique: Callable[..., str]) -> None:
    """The console outlives a node: it goes on at another one, and says which node a stream misses."""
    name = unique("seen")
    client = await connect(cluster.url)
    try:
        jetstream = client.jetstream(timeout=2)
        await persistently(lambda: jetstream.add_stream(name=name, subjects=[name], num_replicas=3))
        async with Console(penstock.ConnectionOptions(cluster.url)) as console:
            browser = Browser(console.url)

            async def shown(path: str) -> Any:
                answer = await asyncio.to_thread(browser.get, path)
                return answer.json() if answer.status == 200 else {}

            async def missing() -> list[str]:
                notes = (await shown("/overview.json")).get("attention", [])
                return [note["what"] for note in notes if note["about"] == name]

            async with asyncio.timeout(60):
                gone = await leader_of(client, cluster, name)
                while (await shown(f"/streams/{name}.json")).get("placed", {}).get("leader") != gone.name:
                    gone = await leader_of(client, cluster, name)
            gone.kill()
            async with asyncio.timeout(60):
                while not any(what.startswith(gone.name) for what in await missing()):
                    await asyncio.sleep(0.1)
    finally:
        await client.close()


def test_fixed_ports_follow_each_other(free_run: int) -> None:
    """With `port=N` three nodes listen on N, N+1 and N+2."""
    with Server(nodes=3, port=free_run, sync="2m") as server:
        assert [int(url.rpartition(":")[2]) for url in server.urls] == [free_run, free_run + 1, free_run + 2]


@pytest.fixture
def free_run() -> int:
    """Find three free ports in a row."""
    import socket

    while True:
        probes = [socket.socket() for _ in range(3)]
        try:
            probes[0].bind(("127.0.0.1", 0))
            first: int = probes[0].getsockname()[1]
            for offset in (1, 2):
                probes[offset].bind(("127.0.0.1", first + offset))
            return first
        except (OSError, OverflowError):
            continue
        finally:
            for probe in probes:
                probe.close()


@pytest.mark.heavy
async def test_what_a_node_lost_is_told_and_comes_back_from_its_replicas(tmp_path: Path) -> None:
    """A damaged block of a replicated stream is told and healed; one of a stream without replicas is refused."""

    async def started() -> Server:
        return await asyncio.to_thread(Server(nodes=3, store=tmp_path, sync="2m").start)

    server = await started()
    client = await connect(server.url)
    jetstream = client.jetstream(timeout=2)
    for name, replicas in (("THREE", 3), ("ONE", 1)):
        await persistently(lambda name=name, count=replicas: jetstream.add_stream(name=name, num_replicas=count))
        for _ in range(20):
            await persistently(lambda name=name: jetstream.publish(name, b"x" * 50))
    await client.close()
    await asyncio.to_thread(server.stop)
    [block] = tmp_path.glob("n2/jetstream/$G/streams/THREE/msgs/*.blk")
    block.write_bytes(block.read_bytes()[: block.stat().st_size // 2])
    server = await started()
    assert [(loss.node, loss.stream, loss.certain) for loss in server.losses] == [("n2", "THREE", False)]

    def messages() -> int:
        [account] = server.nodes[1]._monitor("/jsz?accounts=true&streams=true")[1]["account_details"]
        return next(each["state"]["messages"] for each in account["stream_detail"] if each["name"] == "THREE")

    async with asyncio.timeout(60):
        while await asyncio.to_thread(messages) < 20:
            await asyncio.sleep(0.05)
    await asyncio.to_thread(server.stop)
    [block] = tmp_path.glob("n*/jetstream/$G/streams/ONE/msgs/*.blk")
    block.write_bytes(block.read_bytes()[: block.stat().st_size // 2])
    with pytest.raises(StoreDamagedError, match="stream ONE had 20 messages, and the server restored 10"):
        await started()
