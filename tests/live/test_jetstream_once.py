"""Exactly once, over repeats, lost acks, handlers that crash, killed clients, and a cluster without its leader."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import Connection, connect
from penstock.connection.asking import patiently
from penstock.errors import PenstockError
from penstock.jetstream import Deliveries, Publisher, assets
from penstock.model import Consumer, Stream
from penstock.server import Server
from tests.live.test_jetstream_publish import LossyClient

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """A consumer that runs as a program, and is killed and started again."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self.log, self.starts = url, log, 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.starts += 1
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.once_worker", self.url, str(self.starts)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.log.read_text()

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@contextmanager
def program(url: str, log: Path) -> Iterator[Program]:
    made = Program(url, log)
    try:
        yield made
    finally:
        made.kill()


async def add_stream(nc: Connection, stream: Stream) -> None:
    await patiently(lambda: assets.add_stream(nc, stream), 60)


async def add_consumer(nc: Connection, stream: str, consumer: Consumer) -> None:
    await patiently(lambda: assets.add_consumer(nc, stream, consumer), 60)


async def leader_of(nc: Connection, stream: str) -> str:
    """Give the server that leads a stream, once there is one."""
    async with asyncio.timeout(60):
        while True:
            try:
                leader = (await assets.stream_info(nc, stream)).placed.leader
            except PenstockError:
                leader = None
            if leader:
                return leader
            await asyncio.sleep(0.1)


async def ids(nc: Connection, stream: str, least: int) -> Counter[str]:
    """Count the ids of everything that a stream holds, once it is so much: a leader that is new names less at first."""
    async with asyncio.timeout(60):
        while (info := await assets.stream_info(nc, stream, patience=60)).messages < least:
            await asyncio.sleep(0.1)
    found: Counter[str] = Counter()
    await add_consumer(nc, stream, Consumer(durable="reader", ack_policy="none"))
    async with Deliveries(nc, stream, "reader", batch=500, limit=info.messages or 1, wait=10) as deliveries:
        async for delivery in deliveries:
            found[str(delivery.id)] += 1
    return found


async def once(server: Server, log: Path, count: int, kills: int, deaths: int) -> dict[str, Any]:
    """Publish so many orders while leaders and clients die; give what ends up where."""
    chance = random.Random(7)
    async with await connect(server.url, reconnect_wait=0.1, request_timeout=5.0) as nc:
        for name, subject in (("IN", "in.>"), ("OUT", "out.>")):
            await add_stream(nc, Stream(name=name, subjects=[subject], num_replicas=3))
        await add_consumer(nc, "IN", Consumer(durable="c", ack_wait=2.0, backoff=[2.0]))
        with program(server.url, log) as consumer:
            await asyncio.to_thread(consumer.start)

            async def publish() -> None:
                lossy = LossyClient(nc, lose_ack=lambda _: chance.random() < 0.03)
                async with Publisher(lossy, "IN", order="sent", ack_timeout=0.7, in_flight=64) as publisher:
                    for number in range(count):
                        for _ in range(1 + (number % 10 == 0)):  # every tenth twice
                            await publisher.send("in.order", b"%d" % number, id=f"order-{number}")
                assert lossy.lost

            async def trouble() -> None:
                for _ in range(kills):
                    await asyncio.sleep(0.5 + chance.random())
                    leader = await leader_of(nc, "IN")
                    node = next(item for item in server.nodes if item.name == leader)
                    await asyncio.to_thread(node.kill)
                    await asyncio.sleep(1.0)
                    await asyncio.to_thread(node.start)

            async def death() -> None:
                for _ in range(deaths):
                    await asyncio.sleep(0.5 + chance.random())
                    await asyncio.to_thread(consumer.kill)
                    await asyncio.to_thread(consumer.start)

            await asyncio.gather(publish(), trouble(), death())
            deadline = time.monotonic() + 120
            while True:
                try:
                    info = await assets.consumer_info(nc, "IN", "c")
                    if info.pending == 0 and info.ack_pending == 0:
                        break
                except PenstockError:
                    pass  # no leader in this moment; it is asked again until the deadline
                assert time.monotonic() < deadline, "the consumer does not come to an end"
                await asyncio.sleep(0.2)
        return {"in": await ids(nc, "IN", count), "out": await ids(nc, "OUT", count), "starts": consumer.starts}


def check(found: dict[str, Any], count: int, starts: int) -> None:
    wanted = Counter({f"order-{number}": 1 for number in range(count)})
    assert found["in"] == wanted
    assert found["out"] == wanted
    assert found["starts"] == starts


@pytest.mark.timeout(240)
async def test_every_order_is_processed_once(tmp_path: Path):
    """Over lost acks, repeats, crashes, a killed client and a killed leader, each id is stored and processed once."""
    with Server(nodes=3, sync="2m") as server:
        check(await once(server, tmp_path / "worker.log", count=500, kills=1, deaths=2), 500, 3)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
async def test_every_order_is_processed_once_at_length(tmp_path: Path):
    """The same for longer: many leaders and many clients die."""
    with Server(nodes=3) as server:
        check(await once(server, tmp_path / "worker.log", count=10_000, kills=6, deaths=12), 10_000, 13)


@pytest.mark.timeout(240)
async def test_order_is_kept_over_a_lost_leader():
    """Into a replicated stream, a sole writer's messages stay in order over lost acks and a killed leader."""
    with Server(nodes=3, sync="2m") as server:
        async with await connect(server.url, reconnect_wait=0.1, request_timeout=5.0) as nc:
            await add_stream(nc, Stream(name="S", subjects=["s.>"], num_replicas=3))

            async def publish() -> None:
                async with Publisher(nc, "S", order="chained", sole_writer=True, ack_timeout=1.0) as publisher:
                    for number in range(2000):
                        await publisher.send("s.x", b"%d" % number, id=str(number))
                        if number == 700:
                            kill.set()

            kill = asyncio.Event()

            async def trouble() -> None:
                await kill.wait()
                leader = await leader_of(nc, "S")
                node = next(item for item in server.nodes if item.name == leader)
                await asyncio.to_thread(node.kill)

            await asyncio.gather(publish(), trouble())
            async with Publisher(nc, "S") as publisher:  # without the promise: one by one
                for number in range(2000, 2050):
                    await publisher.send("s.x", b"%d" % number)
            await add_consumer(nc, "S", Consumer(durable="reader", ack_policy="none"))
            async with Deliveries(nc, "S", "reader", limit=2050, batch=500, wait=10) as deliveries:
                bodies = [int(delivery.data) async for delivery in deliveries]
    assert bodies == list(range(2050))
