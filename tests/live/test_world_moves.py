"""A leader that changes, another domain, a server that is away for a moment or of a later version: what then holds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.connection import connect
from penstock.errors import JetStreamError, PenstockError
from penstock.jetstream import Topology, apply, assets, peers, plan, snapshot
from penstock.model import Stream
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.connecting import free_port
from tests.store_sets import GOLDEN, unpack_golden
from tests.support import eventually

STREAMS = {f"PART-{number}": {"subjects": [f"part.{number}"]} for number in range(60)}
VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    with Server(nodes=3, sync="2m") as running:
        yield running


@pytest.fixture(scope="module")
def domains() -> Iterator[tuple[Server, Server]]:
    """Two servers with a JetStream domain each, one a leaf of the other."""
    port = free_port()
    listen = f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{port}" }}'
    remote = f'jetstream {{ domain: leaf }}\nleafnodes {{ remotes: [ {{ url: "nats-leaf://127.0.0.1:{port}" }} ] }}'
    with Server(sync="2m", auth=False, config=listen) as hub, Server(sync="2m", auth=False, config=remote) as leaf:
        yield hub, leaf


@pytest.mark.parametrize("way", ["it steps down", "it is killed"])
async def test_a_leader_that_changes_during_a_backup(
    cluster: Server, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
):
    """The backup is whole, or there is none and an error says so; with the new leader it is made."""
    monkeypatch.setattr(snapshot, "_SILENCE", 5.0)
    name = f"MOVED-{way.split()[-1]}"
    async with await connect(cluster.url, request_timeout=30.0) as nc:
        await assets.add_stream(nc, Stream(name=name, subjects=[name], num_replicas=3))
        for _ in range(40):
            await nc.jetstream().publish(name, os.urandom(200_000))
        first = asyncio.Event()
        leader = (await assets.stream_info(nc, name)).placed.leader
        node = next(node for node in cluster.nodes if node.name == leader)
        going = asyncio.create_task(
            snapshot.backup(nc, name, tmp_path / "b", window_size=1 << 20, progress=lambda size: first.set())
        )
        await first.wait()
        if way == "it is killed":
            node.kill()
        else:
            await peers.step_down(nc, name)
        await asyncio.wait([going], timeout=60)
        if (error := going.exception()) is None:
            assert (await _restored(tmp_path / "b", name)) == 40
        else:
            assert isinstance(error, PenstockError)
            assert list(tmp_path.iterdir()) == [], "no part of it stays"
        if way == "it is killed":
            node.start()

        async def led() -> bool:
            try:
                return (await assets.stream_info(nc, name)).placed.leader is not None
            except PenstockError:
                return False

        await eventually(led, "a leader", timeout=30)
        await snapshot.backup(nc, name, tmp_path / "c")
        assert (await _restored(tmp_path / "c", name)) == 40


async def _restored(folder: Path, name: str) -> int:
    """Bring a backup back into a server of its own; give how many messages it has."""
    with Server(sync="2m") as alone:
        async with await connect(alone.url) as nc:
            config = Stream.from_json(json.loads((folder / "backup.json").read_text())["config"])
            return (await snapshot.restore(nc, folder, config=config, replicas=1)).messages


async def test_a_topology_for_another_domain(domains: tuple[Server, Server]):
    """Each domain has streams of its own: a plan for another one has them all to make, and the first keeps its own."""
    hub, leaf = domains
    topology = Topology.from_dict({"streams": STREAMS})
    async with await connect(leaf.url, domain="hub") as far, await connect(leaf.url) as near:

        async def reached() -> bool:
            try:
                return await assets.streams(far) == []
            except PenstockError:
                return False

        await eventually(reached, "the link between the servers")
        await apply(far, topology)
        assert (await plan(far, topology)).empty
        assert [step.action for step in (await plan(near, topology)).steps] == ["create"] * len(STREAMS)
        assert await assets.streams(near) == []
        async with await connect(hub.url) as there:
            assert {item.name for item in await assets.streams(there)} == STREAMS.keys()


async def test_a_topology_that_meets_a_silent_server():
    """A server that does not answer in the middle is told with what is done; applied again, the rest is done once."""
    with Server(sync="2m") as server:
        topology = Topology.from_dict({"streams": STREAMS})
        async with await connect(server.url, request_timeout=0.5) as nc, await connect(server.url) as other:
            made = await other.subscribe("$JS.EVENT.ADVISORY.STREAM.CREATED.>")
            await other.flush()
            task = asyncio.create_task(apply(nc, topology))
            message = await made.next_msg(10)
            os.kill(server.nodes[0].pid or 0, signal.SIGSTOP)
            try:
                with pytest.raises(JetStreamError, match=r"(create|Nothing was changed|Done before it)"):
                    await task
            finally:
                os.kill(server.nodes[0].pid or 0, signal.SIGCONT)
            await eventually(lambda: nc.is_connected, "the connection")
            before = {item.name: item.created for item in await assets.streams(nc)}
            assert json.loads(message.data)["stream"] in before
            done = await apply(nc, topology)
            assert {step.action for step in done.steps if step.title.split()[-1] in before} <= {"none"}
            after = {item.name: item.created for item in await assets.streams(nc)}
            assert after.keys() == STREAMS.keys()
            assert before.items() <= after.items(), "nothing is made twice"


@pytest.mark.parametrize("name", ["ORDERS", "PACKED"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_an_older_server_is_served(tmp_path: Path, version: str, name: str):
    """What servers from 2.9 on kept is there when this one starts on their store: each message, as it was."""
    unpack_golden(version, tmp_path / version)
    told = json.loads((tmp_path / version / "rows.json").read_text())[name]
    with Server(store=tmp_path / version / "store", sync="2m") as server, BulkConnection(server.url) as bulk:
        rows = [row for batch in bulk.read(name) for row in batch.to_pylist()]
    assert [(row["subject"], row["sequence"], row["time"].isoformat()) for row in rows] == [
        (subject, sequence, time) for subject, _, _, sequence, time in told
    ]
