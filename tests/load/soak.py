"""A soak: traffic of every kind for a while, with looks at what is held. Connections come and go all the time."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.buckets import KeyValue, ObjectStore
from penstock.bus import Bus, Request
from penstock.channels import Client, Gateway
from penstock.chunks import Assembler
from penstock.chunks import Publisher as ChunksPublisher
from penstock.connection import Connection, connect
from penstock.jetstream import Deliveries, Publisher, assets
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.connections import borrow
from tests.load.samples import Sample, Sampler

Turn = Callable[[Connection], Awaitable[None]]
LARGE = 3 * 1024 * 1024
BOUND = 300.0  # seconds that one turn may take on a busy machine


async def _prepare(nc: Connection) -> None:
    await assets.add_stream(nc, Stream(name="SOAK", subjects=["soak.>"], max_msgs=10_000, allow_direct=True))
    await assets.add_consumer(nc, "SOAK", Consumer(durable="reader"))
    await KeyValue.create_bucket(nc, "soak", history=2)
    await ObjectStore.create_bucket(nc, "soakfiles")


async def _streams(nc: Connection) -> None:
    """Publish, and read the same number with a consumer."""
    async with Publisher(nc, "SOAK") as out:
        for number in range(200):
            await out.send("soak.x", b"%d" % number)
        await out.flush()
    async with Deliveries(nc, "SOAK", "reader", limit=200) as deliveries:
        async for delivery in deliveries:
            await delivery.ack()


async def _short_lived(nc: Connection) -> None:
    """Make a consumer and delete it; watch a bucket for a moment."""
    name = f"once{secrets.token_hex(4)}"
    await assets.add_consumer(nc, "SOAK", Consumer(durable=name))
    await assets.delete_consumer(nc, "SOAK", name)
    bucket = await KeyValue.open(nc, "soak")
    for number in range(20):
        await bucket.put(f"k{number}", b"v")
    async with bucket.watch(">") as watch:
        await anext(watch)
    assert len(await bucket.keys()) == 20


async def _chunks(nc: Connection) -> None:
    """Send a large payload to ourselves, and store an object in the place of the last one."""
    got = asyncio.get_running_loop().create_future()
    subject = f"large.{secrets.token_hex(4)}"
    async with Assembler(nc, handler=lambda message_id, data: got.set_result(len(data))) as receiver:
        await receiver.subscribe(subject)
        await ChunksPublisher(nc).publish(subject, bytes(LARGE))
        assert await got == LARGE
    files = await ObjectStore.open(nc, "soakfiles")
    await files.put("file", bytes(LARGE))
    assert len(await files.fetch("file")) == LARGE


async def _bus(nc: Connection) -> None:
    """Ask and answer."""
    queue = f"q{secrets.token_hex(4)}"

    async def answer(request: Request, sender: Any) -> None:
        async with sender.sections() as out:
            out.array("n")
            for number in range(50):
                await out.send(number)

    async with Bus(nc, {queue: 1}) as bus, bus.serve(queue, answer):
        reply = await bus.request(Request(queue, 0, resource="x"), timeout=BOUND)
        assert [len([element async for element in section]) async for section in reply.sections()] == [50]


async def _channels(nc: Connection) -> None:
    """Publish to a channel and read it, as a client that comes and goes."""
    options = {"cluster_id": "soak", "client_id": f"c{secrets.token_hex(4)}", "ack_timeout": BOUND}
    async with Client(nc.options, connect_timeout=BOUND, **options) as client:
        got: asyncio.Queue[Any] = asyncio.Queue()

        async def take(message: Any) -> None:
            got.put_nowait(message)

        subscription = await client.subscribe("news", take)
        for _ in range(20):
            await client.publish("news", b"x")
        for _ in range(20):
            await got.get()
        await subscription.unsubscribe()


async def _tasks(nc: Connection) -> None:
    """Read the stream as a task of Spark does."""

    def read() -> int:
        with borrow(nc.options) as bulk:
            state = bulk.stream_info("SOAK")["state"]
            first, end = max(1, state["first_seq"]), state["last_seq"] + 1
            return sum(len(batch) for batch in bulk.read("SOAK", max(first, end - 500), end)) if first < end else 0

    await asyncio.to_thread(read)


TURNS: dict[str, Turn] = {
    "streams": _streams,
    "short_lived": _short_lived,
    "chunks": _chunks,
    "bus": _bus,
    "channels": _channels,
    "tasks": _tasks,
}


async def soak(server: Server, seconds: float, looks: int = 60) -> tuple[list[Sample], Counter[str]]:
    """Let all turns go round beside each other for so long; give the looks, and how often each turn came round."""
    sampler, rounds = Sampler(server), Counter[str]()
    options = ConnectionOptions(server.url, request_timeout=BOUND)
    async with await connect(options) as nc:
        await _prepare(nc)
    over = time.monotonic() + seconds

    async def go_round(name: str, turn: Turn) -> None:
        for count in itertools.count():
            if time.monotonic() > over and count:
                return
            async with asyncio.timeout(BOUND), await connect(options) as nc:
                await turn(nc)
            rounds[name] += 1

    async with Gateway(server.url, cluster_id="soak", subject_prefix="soakch."), asyncio.TaskGroup() as group:
        working = [group.create_task(go_round(name, turn)) for name, turn in TURNS.items()]
        while not all(task.done() for task in working):
            await asyncio.to_thread(sampler.take)
            await asyncio.wait(working, timeout=seconds / looks, return_when=asyncio.ALL_COMPLETED)
    return sampler.samples, rounds
