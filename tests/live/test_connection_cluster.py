"""A connection to a cluster: it learns the nodes, moves when one goes, and notices one that hangs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.errors import UnreachableError
from penstock.server.binary import find_binary
from tests.live.connecting import free_port, works
from tests.support import eventually

Unique = Callable[..., str]


class Node:
    """One process of nats-server, as an operator would run it: it tells its clients of the others."""

    def __init__(self, name: str, folder: Path, port: int, route: int, routes: list[int]) -> None:
        self.name, self.url = name, f"nats://127.0.0.1:{port}"
        self._config = folder / f"{name}.conf"
        others = ", ".join(f'"nats://127.0.0.1:{other}"' for other in routes if other != route)
        self._config.write_text(
            f'server_name: {name}\nlisten: "127.0.0.1:{port}"\n'
            'lame_duck_duration: "30s"\nlame_duck_grace_period: "100ms"\n'
            f'cluster {{ name: test, listen: "127.0.0.1:{route}", pool_size: -1, routes: [{others}] }}\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is None or self._process.poll() is not None:
            command = [str(find_binary().path), "-c", str(self._config), "-l", str(self._config.with_suffix(".log"))]
            self._process = subprocess.Popen(command)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        assert self._process is not None
        self._process.wait(30)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Three nodes that advertise each other, and close their clients soon after they said goodbye."""
    folder = tmp_path_factory.mktemp("cluster")
    routes = [free_port() for _ in range(3)]
    nodes = [Node(f"n{number}", folder, free_port(), route, routes) for number, route in enumerate(routes, 1)]
    for node in nodes:
        node.start()
    try:
        yield nodes
    finally:
        for node in nodes:
            node.kill()


@pytest.fixture(autouse=True)
def healed(cluster: list[Node]) -> Iterator[None]:
    """Bring back every node that a test left down or paused."""
    yield
    for node in cluster:
        node.signal(signal.SIGCONT)
        node.start()


class Told:
    """Counts what a connection tells."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, name: str) -> Callable[..., Any]:
        async def callback(*_: Any) -> None:
            self.events.append(name)

        return callback


@asynccontextmanager
async def connected(url: str, told: Told, **options: Any) -> AsyncIterator[Connection]:
    """Connect to one node only, and wait until the others are known."""

    async def attempt() -> Connection | None:
        try:
            return await connect(url, **options)
        except UnreachableError:
            return None  # it is starting

    options |= {
        "reconnect_wait": 0.1,
        "discovered_server_cb": told("discovered"),
        "lame_duck_mode_cb": told("lame duck"),
        "disconnected_cb": told("disconnected"),
        "reconnected_cb": told("reconnected"),
    }
    nc = await eventually(attempt, "the node being there")
    try:
        await eventually(lambda: len(nc.servers) == 3, "all nodes being known")
        yield nc
    finally:
        await nc.close()


def node_of(cluster: list[Node], nc: Connection) -> Node | None:
    """Give the node that a connection stands to."""
    return next((node for node in cluster if nc.server_info.get("server_name") == node.name), None)


async def test_a_connection_learns_the_cluster_and_moves(cluster: list[Node], unique: Unique):
    """Who knows one node learns the others, goes to one of them when it is gone, with all subscriptions."""
    told, first = Told(), cluster[0]
    async with connected(first.url, told) as nc, connected(cluster[1].url, Told()) as other:
        assert set(nc.servers) == {node.url for node in cluster}
        assert node_of(cluster, nc) is first
        subject = unique("moves")
        subscription = await nc.subscribe(subject)
        await nc.flush()
        first.kill()
        await eventually(lambda: nc.is_connected and nc.stretch == 2, "the move")
        await nc.flush(20)
        assert node_of(cluster, nc) is not first
        assert nc.connected_url in (cluster[1].url, cluster[2].url)
        moved = told.events[told.events.index("disconnected") :]
        assert moved[:2] == ["disconnected", "reconnected"]

        async def arrives() -> bool:
            await other.publish(subject, b"x")  # nodes learn of each other's subscriptions in a moment
            await nc.flush()
            return subscription.pending_msgs > 0

        await eventually(arrives, "a message by another node")


async def test_a_node_that_comes_and_goes_is_told(cluster: list[Node]):
    """A node that joins is an address that was not known; one that leaves is forgotten unless it was given."""
    told = Told()
    given, _, gone = cluster
    async with connected(given.url, told) as nc:
        gone.kill()
        await eventually(lambda: set(nc.servers) == {cluster[0].url, cluster[1].url}, "the node being forgotten")
        before = told.events.count("discovered")
        gone.start()
        await eventually(lambda: len(nc.servers) == 3, "the node being known again")
        await eventually(lambda: told.events.count("discovered") == before + 1, "being told")
        assert nc.stretch == 1


async def test_lame_duck_mode(cluster: list[Node], unique: Unique):
    """A node that will go says so; the connection moves when it closes, and goes on at another one."""
    told, leaving = Told(), cluster[2]
    async with connected(leaving.url, told) as nc:
        subscription = await nc.subscribe(unique("duck"))
        await nc.flush()
        leaving.signal(signal.SIGUSR2)
        await eventually(lambda: "lame duck" in told.events, "the goodbye")
        await eventually(lambda: nc.stretch == 2 and nc.is_connected, "the move")
        assert node_of(cluster, nc) is not leaving
        await eventually(lambda: "reconnected" in told.events, "being told")
        assert told.events.count("lame duck") == 1
        assert told.events.index("lame duck") < told.events.index("disconnected") < told.events.index("reconnected")
        await nc.publish(subscription.subject, b"here")
        assert (await subscription.next_msg(timeout=10)).data == b"here"
    await asyncio.to_thread(leaving.wait)


async def test_a_node_that_hangs_is_noticed(cluster: list[Node]):
    """A node that is there and says nothing is left after two pings without an answer."""
    told, frozen = Told(), cluster[1]
    async with connected(frozen.url, told, ping_interval=0.2) as nc:
        assert node_of(cluster, nc) is frozen
        await eventually(lambda: len(nc.servers) > 1, "knowing another one")
        broken = nc.broken
        frozen.signal(signal.SIGSTOP)
        await eventually(lambda: nc.stretch == 2 and nc.is_connected, "the move")
        assert "left 2 pings unanswered" in str(broken.result())  # `last_error` may be of an attempt at the frozen node
        assert node_of(cluster, nc) is not frozen
        assert await works(nc)
        frozen.signal(signal.SIGCONT)


async def test_the_given_order_is_kept(cluster: list[Node]):
    """With keep_order the first address that answers is taken, as often as one connects; without it any is."""
    for node in cluster:
        async with connected(node.url, Told()):
            pass  # all of them are there
    url = ",".join(node.url for node in reversed(cluster))
    names = set()
    for _ in range(5):
        async with await connect(url, keep_order=True) as nc:
            names.add(nc.server_info["server_name"])
    assert names == {cluster[-1].name}
    for _ in range(60):
        async with await connect(url) as nc:
            names.add(nc.server_info["server_name"])
        if len(names) == 3:
            break
    assert names == {node.name for node in cluster}
