"""The parts of a load run: each does much of one thing, sees that all of it is right, and gives figures."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.bus import Bus, Request
from penstock.channels import Client, Gateway
from penstock.connection import api_request, connect
from penstock.jetstream import Deliveries, assets
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import marker_filter
from penstock.wire.bulk import BulkConnection

Figures = dict[str, float]
LONG = 600.0  # seconds that a machine with other work may take for a step


def _rows(count: int, subject: str | None, step: int = 50_000) -> Iterator[pa.RecordBatch]:
    """Give messages whose payload is their number; each has its own subject unless one is given for all."""
    for start in range(0, count, step):
        numbers = range(start, min(count, start + step))
        columns = {"data": pa.array([b"%d" % number for number in numbers], pa.binary())}
        if subject is None:
            columns["subject"] = pa.array([f"many.{number % 1000}.{number}" for number in numbers])
        yield pa.RecordBatch.from_pydict(columns)


def messages(spark: Any, server: Server, folder: Path, count: int) -> Figures:
    """Publish, read with a streaming query of Spark, write into another stream exactly once, and compare all of it."""
    began = time.monotonic()
    with BulkConnection(ConnectionOptions(server.url)) as bulk:
        bulk.api("STREAM.CREATE.LOADIN", {"name": "LOADIN", "subjects": ["loadin"], "allow_batched": True})
        subjects = ["loadout", marker_filter("LOADOUT")]
        bulk.api(
            "STREAM.CREATE.LOADOUT",
            {"name": "LOADOUT", "subjects": subjects, "allow_atomic": True, "allow_direct": True},
        )
        bulk.publish("LOADIN", _rows(count, "loadin"), mode="fast", subject="loadin", timeout=LONG)
        published = time.monotonic() - began
        frame = (
            spark.readStream.format("nats")
            .options(url=server.url, stream="LOADIN", maxMessagesPerTrigger=str(max(1000, min(count // 5, 1_000_000))))
            .load()
            .selectExpr("'loadout' AS subject", "data")
        )
        query = (
            frame.writeStream.format("nats")
            .options(url=server.url, stream="LOADOUT", prepare="true")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        carried = time.monotonic() - began - published
        seen, total = 0, 0
        for batch in bulk.read("LOADOUT", bulk.api("STREAM.INFO.LOADOUT")["state"]["first_seq"]):
            data = batch.filter(pa.compute.equal(batch["subject"], "loadout"))["data"]
            seen += len(data)
            total += pa.compute.sum(data.cast(pa.string()).cast(pa.int64())).as_py() or 0
        assert (seen, total) == (count, count * (count - 1) // 2), f"{seen} of {count} rows"
        for name in ("LOADIN", "LOADOUT"):
            bulk.api(f"STREAM.DELETE.{name}")
    return {"messages": count, "published_seconds": published, "carried_seconds": carried}


async def requests(server: Server, count: int) -> Figures:
    """Ask so many questions of the bus at once; each has an answer of several elements, and the right one."""

    async def answer(request: Request, sender: Any) -> None:
        async with sender.sections() as out:
            out.array("numbers")
            for number in range(3):
                await out.send([request.resource, number])

    async def ask(bus: Bus, number: int) -> None:
        reply = await bus.request(Request("load", number % 4, resource=str(number)), timeout=LONG)
        found = [[element.json() async for element in section] async for section in reply.sections()]
        assert found == [[[str(number), place] for place in range(3)]]

    queues = {"load": 4}
    began = time.monotonic()
    async with (
        await connect(server.url) as one,
        await connect(server.url) as other,
        Bus(one, queues) as asking,
        Bus(other, queues) as serving,
        serving.serve("load", answer, concurrency=count),
    ):
        await asyncio.gather(*(ask(asking, number) for number in range(count)))
    return {"requests": count, "seconds": time.monotonic() - began}


async def clients(server: Server, count: int, each: int = 4) -> Figures:
    """Let so many clients of NATS Streaming connect and read one channel: each gets every message, in order."""
    began = time.monotonic()
    got: dict[int, list[int]] = {number: [] for number in range(count)}
    wanted = min(count, 20) * each
    done = asyncio.Event()

    async with Gateway(server.url, cluster_id="load", subject_prefix="loadch."), AsyncExitStack() as stack:
        made: list[Client] = []
        for number in range(count):
            client = Client(
                server.url, cluster_id="load", client_id=f"c{number}", connect_timeout=LONG, ack_timeout=LONG
            )
            made.append(await stack.enter_async_context(client))
        connected = time.monotonic() - began

        async def take(number: int, message: Any) -> None:
            got[number].append(message.sequence)
            if all(len(seen) >= wanted for seen in got.values()):
                done.set()

        for number, client in enumerate(made):
            await client.subscribe("news", lambda message, number=number: take(number, message))
        await asyncio.gather(*(client.publish("news", b"x") for client in made[:20] for _ in range(each)))
        async with asyncio.timeout(LONG):
            await done.wait()
    assert all(seen == list(range(1, wanted + 1)) for seen in got.values())
    return {"clients": count, "connected_seconds": connected, "seconds": time.monotonic() - began}


async def consumers(server: Server, count: int, at_once: int = 100) -> Figures:
    """Make so many durable consumers of one stream, list them, read with some, and delete them."""
    began = time.monotonic()
    async with await connect(server.url, request_timeout=LONG) as nc:
        await assets.add_stream(nc, Stream(name="LOADCON", subjects=["loadcon.>"], max_consumers=count))
        await nc.jetstream().publish("loadcon.1", b"x")
        turn = asyncio.Semaphore(at_once)

        async def each(work: Any) -> None:
            async with turn:
                await work

        names = [f"c{number}" for number in range(count)]
        await asyncio.gather(
            *(
                each(assets.add_consumer(nc, "LOADCON", Consumer(durable=name, filter_subject="loadcon.>")))
                for name in names
            )
        )
        made = time.monotonic() - began
        listed = await assets.consumers(nc, "LOADCON")
        assert {item.name for item in listed} == set(names)
        for name in names[:: max(1, count // 20)]:
            async with Deliveries(nc, "LOADCON", name, limit=1) as deliveries:
                async for delivery in deliveries:
                    await delivery.ack()
        await assets.delete_stream(nc, "LOADCON")
        left = await api_request(nc, "INFO")
    return {"consumers": count, "made_seconds": made, "seconds": time.monotonic() - began, "left": left["consumers"]}


def subjects(server: Server, count: int) -> Figures:
    """Store a message on each of so many subjects, list them all, and read some by their subject."""
    began = time.monotonic()
    with TaskConnection(ConnectionOptions(server.url, request_timeout=LONG)) as bulk:
        config = {"name": "LOADSUB", "subjects": ["many.>"], "allow_batched": True, "allow_direct": True}
        bulk.api("STREAM.CREATE.LOADSUB", config)
        bulk.publish("LOADSUB", _rows(count, None), mode="fast", timeout=LONG)
        stored = time.monotonic() - began
        found = bulk.totals("LOADSUB", ">")
        listed = time.monotonic() - began - stored
        assert len(found) == count
        assert set(found.values()) == {1}
        for number in itertools.islice(range(0, count, max(1, count // 50)), 50):
            message = bulk.last("LOADSUB", f"many.{number % 1000}.{number}")
            assert message is not None
            assert message.payload == b"%d" % number
        bulk.api("STREAM.DELETE.LOADSUB")
    return {"subjects": count, "stored_seconds": stored, "listed_seconds": listed}
