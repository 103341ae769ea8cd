"""Three gateways over three servers, under load: whoever dies or is replaced, nothing is lost, repeats are marked."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from penstock.channels import Message
from penstock.server import Server
from tests.live.stan import Got, Stan, cluster_of, until
from tests.live.test_channels_faults import Child, gateways, publish_surely
from tests.live.test_channels_kills import check_marks

FLAGS = ("--standby", "--lease", "2s", "--replicas", "3")
KINDS = {
    "plain": {},
    "durable": {"durable": "d"},
    "queue": {"queue": "q"},
    "durable queue": {"queue": "q", "durable": "d"},
}


class Fleet:
    """Gateways of one cluster, of which one leads; each reads along what it says."""

    def __init__(self, start) -> None:
        self._start = start
        self.children: list[Child] = []
        self.leader: Child | None = None
        self._readers: set[asyncio.Task] = set()

    async def add(self) -> Child:
        child = await self._start(*FLAGS, ready="Standing by")
        self.children.append(child)
        self._readers.add(asyncio.ensure_future(self._read(child)))
        return child

    async def _read(self, child: Child) -> None:
        while line := await child.process.stderr.readline():
            if b"it is our turn" in line:
                self.leader = child
            elif b"not our turn any more" in line and self.leader is child:
                self.leader = None

    async def remove(self, child: Child, number: int) -> None:
        """End a gateway by a signal; if it led, wait until another one does."""
        self.children.remove(child)
        led = self.leader is child
        if led:
            self.leader = None
        child.process.send_signal(number)
        await asyncio.wait_for(child.process.wait(), 60)
        if led and self.children:
            await until(lambda: self.leader is not None, timeout=120)

    async def leading(self) -> Child:
        """Give the one that leads, when one does."""
        await until(lambda: self.leader in self.children, timeout=120)
        return self.leader

    async def end(self) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)


async def subscribe_all(stan: Stan) -> tuple[dict[str, list[Got]], list]:
    """Subscribe in every way, with clients of their own."""
    clients, kinds = [], {}
    for name, options in KINDS.items():
        kinds[name] = []
        for number in range(3 if "queue" in name else 1):
            client = await stan.client(
                f"{name.replace(' ', '-')}-{number}", ping_interval=600, connect_timeout=60.0, ack_timeout=5.0
            )
            clients.append(client)
            kinds[name].append(got := Got(Message.ack))
            await client.subscribe("foo", got, manual_acks=True, ack_wait=2, max_in_flight=100, **options)
    return kinds, clients


@pytest.mark.heavy
async def test_a_cluster_that_is_killed_and_rolled(unique, tmp_path):
    """Leaders and nodes are killed, gateways and nodes are replaced one by one; every acknowledged message arrives."""
    chance = random.Random(8)
    with Server(nodes=3, store=tmp_path / "store", sync="2m") as servers:
        async with cluster_of(servers.url, unique("c")) as stan, gateways(stan, tmp_path) as start:
            fleet = Fleet(start)
            for _ in range(3):
                await fleet.add()
            await until(lambda: fleet.leader is not None, timeout=60)
            kinds, _ = await subscribe_all(stan)
            publisher = await stan.client("publisher", ack_timeout=5.0, ping_interval=600, connect_timeout=60.0)
            stop, acknowledged = asyncio.Event(), []

            async def publish() -> None:
                while not stop.is_set():
                    first = len(acknowledged)
                    await publish_surely(publisher, "foo", range(first, first + 200), window=64)
                    acknowledged.extend(range(first, first + 200))

            traffic = asyncio.ensure_future(publish())

            async def go_on() -> None:
                goal = len(acknowledged) + chance.randrange(400, 1000)
                await until(lambda: len(acknowledged) >= goal or traffic.done(), timeout=240)

            for _ in range(5):  # the leader is killed, and comes back as a standby
                await go_on()
                await fleet.remove(await fleet.leading(), signal.SIGKILL)
                await fleet.add()
            for _ in range(2):  # a rolling upgrade
                for child in list(fleet.children):
                    await go_on()
                    await fleet.remove(child, signal.SIGTERM)
                    await fleet.add()
            for node in servers.nodes:  # and of the servers
                await go_on()
                await asyncio.to_thread(node.stop)
                await asyncio.to_thread(node.start)
            for node in chance.sample(servers.nodes, 2):  # one dies together with the leader
                await go_on()
                leader = await fleet.leading()
                await asyncio.to_thread(node.kill)
                await fleet.remove(leader, signal.SIGKILL)
                await asyncio.to_thread(node.start)
                await fleet.add()
            await go_on()
            stop.set()
            await traffic
            wanted = {b"%d" % number for number in acknowledged}
            for members in kinds.values():
                await until(
                    lambda members=members: wanted <= {item for got in members for item in got.data}, timeout=240
                )
                check_marks(members)
            await fleet.end()
