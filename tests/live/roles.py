"""What each role of docs/reference/permissions.md does, whole: the test of its permissions runs it with exactly those.

A role gets `ConnectionOptions` with its own login and its own inbox. Whatever it needs of others, somebody who may do
everything does beside it.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from penstock.buckets import KeyValue, ObjectStore
from penstock.bus import Bus, Request, Response
from penstock.channels import Client, Gateway
from penstock.chunks import Archive, Assembler
from penstock.chunks import Publisher as ChunksPublisher
from penstock.connection import Connection, api_request, connect
from penstock.errors import DeniedError, NotFoundError
from penstock.jetstream import DeadLetters, Outgoing, Publisher, Reject, Topology, Worker, apply, assets, snapshot
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from tests.live.console_roles import console, console_write
from tests.live.stan import Got

CLUSTER = "test-cluster"
MB = 1024 * 1024
Role = Callable[[ConnectionOptions, ConnectionOptions], Awaitable[None]]


async def furnish(nc: Connection) -> None:
    """Make what the roles of the page work on."""
    fields = {"allow_direct": True, "allow_atomic": True, "allow_batched": True}
    await assets.add_stream(nc, Stream(name="ORDERS", subjects=["orders.>"], **fields))
    await assets.add_consumer(nc, "ORDERS", Consumer(durable="billing", max_deliver=5))
    results = ["results.>", "$PENSTOCK.RESULTS.>"]
    await assets.add_stream(nc, Stream(name="RESULTS", subjects=results, **fields))
    await DeadLetters(nc, "ORDERS", "DEAD").ensure()
    await Archive.create(nc, "FILES", "files")
    await KeyValue.create_bucket(nc, "prices", history=5)
    await ObjectStore.create_bucket(nc, "pictures")
    async with Publisher(nc, "ORDERS") as out:
        for _ in range(3):
            await out.publish_batch([Outgoing("orders.new", b"%d" % number) for number in range(200)], "atomic")
    # A hole, as every stream has some day: whoever reads over it asks the leader what is gone.
    await api_request(nc, "STREAM.MSG.DELETE.ORDERS", {"seq": 300})


# -- streams and Spark -----------------------------------------------------------------------------------------------


async def publisher(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Publish one by one, as an atomic batch and with fast ingest."""
    async with await connect(mine) as nc, Publisher(nc, "ORDERS") as out:
        await out.publish("orders.new", b"one", id=nc.new_inbox())
        for how in ("atomic", "fast"):
            await out.publish_batch([Outgoing("orders.new", b"two")] * 3, how)


async def worker(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Handle some messages of a consumer, and put one among the dead letters."""
    async with await connect(admin) as other:
        js = other.jetstream()
        await assets.reset_consumer(other, "ORDERS", "billing")
        last = await js.publish("orders.new", b"bad")
        seen: list[int] = []

        async def handle(delivery: Any) -> None:
            seen.append(delivery.sequence)
            if delivery.sequence == last.sequence:
                raise Reject("bad")
            await delivery.in_progress()

        async with await connect(mine) as nc:
            work = Worker(nc, "ORDERS", "billing", handle, dead_letters="DEAD", wait=0.2)
            counts = await work.run()
            assert counts.dead >= 1, counts
            assert seen


async def source(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Read a stream with Spark's readers, in batch and as a query."""
    from tests.live.querying import Query, read

    def work() -> None:
        assert len(read(mine, stream="ORDERS")) >= 599, "with a consumer"
        assert len(read(mine, stream="ORDERS", end="11")) == 10, "by direct get"
        query = Query(mine, stream="ORDERS", start="all")
        try:
            assert query.batch()
        finally:
            query.stop()

    await asyncio.to_thread(work)


async def sink(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Write two batches with Spark's sink, exactly once, and the first one again."""
    import pyarrow as pa

    from penstock.spark.connections import TaskConnection
    from penstock.spark.messages import Messages
    from penstock.spark.prepare import prepare
    from penstock.spark.sink_options import SinkOptions
    from tests.live.sinking import Writer, numbered

    class ToResults(Writer):
        def messages(self, rows: Sequence[Any], step: int) -> Iterator[Messages]:
            for part in super().messages(rows, step):
                yield Messages(pa.array(["results.rows"] * len(part)), part.data, part.headers)

    def work() -> None:
        with TaskConnection(mine) as bulk:
            prepare(bulk, SinkOptions(stream="RESULTS"))
        query = secrets.token_hex(4)
        writer = ToResults("nats://127.0.0.1", "RESULTS", query)
        writer.options = mine
        rows = numbered(12, query)
        writer.whole_batch([rows[:6], rows[6:]])
        assert writer.whole_batch([rows], run="again") == 0
        writer.whole_batch([numbered(4, f"{query}-next")], batch=1, run="next")

    await asyncio.to_thread(work)


async def pipeline(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Apply a topology, read one stream and write another: what the runner of a pipeline does on NATS."""
    table = {"subjects": ["scratch"], "storage": "memory"}
    topology = Topology.from_dict({"streams": {"SCRATCH": table}})
    changed = Topology.from_dict({"streams": {"SCRATCH": {**table, "description": "changed"}}})
    async with await connect(admin) as other:
        with suppress(NotFoundError):
            await assets.delete_stream(other, "SCRATCH")
    async with await connect(mine) as nc:
        await apply(nc, topology)
        await apply(nc, changed)
    await source(mine, admin)
    await sink(mine, admin)


async def backup(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Save a stream, and put it back under the name that it had, after it went."""
    async with await connect(admin) as other:
        await other.jetstream().add_stream(name="SAVED", subjects=["saved"])  # unless it is there
        for _ in range(3):
            await other.jetstream().publish("saved", secrets.token_bytes(100_000))
        with tempfile.TemporaryDirectory() as folder:
            async with await connect(mine) as nc:
                await snapshot.backup(nc, "SAVED", folder, chunk_size=10_000, window_size=20_000)
                await assets.delete_stream(other, "SAVED")
                await snapshot.restore(nc, folder)


# -- chunks and the bus ----------------------------------------------------------------------------------------------


async def chunks_send(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Send a payload to somebody who receives it, large enough to ask how far they are."""
    got = asyncio.get_running_loop().create_future()
    async with (
        await connect(mine) as nc,
        await connect(admin) as other,
        Assembler(other, handler=lambda message_id, data: got.set_result(len(data))) as receiver,
    ):
        await receiver.subscribe("large")
        await ChunksPublisher(nc).publish("large", bytes(20 * MB))
        assert await got == 20 * MB


async def chunks_receive(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Receive a payload that is large enough for its sender to ask how far we are."""
    got = asyncio.get_running_loop().create_future()
    denied: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def failed(error: Exception) -> None:
        if not denied.done() and isinstance(error, DeniedError):
            denied.set_exception(error)

    async with (
        await connect(mine, on_error=failed) as nc,
        await connect(admin) as other,
        Assembler(nc, handler=lambda message_id, data: got.set_result(len(data))) as receiver,
    ):
        await receiver.subscribe("large")
        await ChunksPublisher(other).publish("large", bytes(20 * MB))
        await asyncio.wait([got, denied], return_when=asyncio.FIRST_COMPLETED)
        if denied.done():
            raise denied.exception() or AssertionError
        assert await got == 20 * MB


async def chunks_store(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Store a payload in a stream."""
    async with await connect(mine) as nc:
        await ChunksPublisher.persistent(nc, "FILES").publish("files", bytes(2 * MB))


async def chunks_fetch(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """List what a stream stores, and fetch a payload."""
    async with await connect(admin) as other:
        made = await ChunksPublisher.persistent(other, "FILES").publish("files", bytes(2 * MB))
    async with await connect(mine) as nc:
        archive = Archive(nc, "FILES")
        assert made in [info.message_id async for info in archive.list()]
        assert len(await archive.fetch(made)) == 2 * MB


QUEUES = {"shop": 2}


async def _answer(request: Request, sender: Any) -> None:
    if request.resource == "one":
        await sender.respond(Response(data=b"1"))
        return
    async with sender.sections() as out:
        out.array("numbers")
        for number in range(200):
            await out.send(number)


async def _ask(bus: Bus) -> None:
    reply = await bus.request(Request("shop", 0, resource="one"), timeout=60.0)
    assert reply.response is not None
    reply = await bus.request(Request("shop", 1, resource="many"), timeout=60.0)
    assert [len([element async for element in section]) async for section in reply.sections()] == [200]


async def bus_ask(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Ask a queue, for one answer and for sections."""
    async with (
        await connect(mine) as nc,
        await connect(admin) as other,
        Bus(nc, QUEUES) as asking,
        Bus(other, QUEUES) as serving,
        serving.serve("shop", _answer) as service,
    ):
        try:
            await _ask(asking)
        finally:
            await service.stop(0.5)  # a handler whose requester failed waits for it


async def bus_serve(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Serve a queue."""
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer(request: Request, sender: Any) -> None:
        try:
            await _answer(request, sender)
        except DeniedError as error:
            if not failed.done():
                failed.set_exception(error)

    async with (
        await connect(mine) as nc,
        await connect(admin) as other,
        Bus(other, QUEUES) as asking,
        Bus(nc, QUEUES) as serving,
        serving.serve("shop", answer),
    ):
        work = asyncio.ensure_future(_ask(asking))
        await asyncio.wait([work, failed], return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            work.cancel()
            raise failed.exception() or AssertionError
        failed.cancel()
        await work


# -- channels ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _channels(gateway: ConnectionOptions, client: ConnectionOptions) -> AsyncIterator[Client]:
    async with (
        Gateway(gateway, cluster_id=CLUSTER, subject_prefix="channels.", timeout=60.0),
        Client(client, cluster_id=CLUSTER, client_id="me", connect_timeout=60.0, ack_timeout=60.0) as made,
    ):
        yield made


async def _use_channels(client: Client) -> None:
    channel = f"news.{secrets.token_hex(4)}"
    subscription = await client.subscribe(channel, got := Got(), durable="d", start="First")
    await client.publish(channel, b"x")
    await got.count(1)
    await subscription.close()
    subscription = await client.subscribe(channel, got, durable="d")
    await client.publish(channel, b"x")
    await got.count(2)
    await subscription.unsubscribe()


async def gateway(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Serve clients of NATS Streaming."""
    async with _channels(mine, admin) as client:
        await _use_channels(client)


async def channels_client(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Publish to a channel, and read it."""
    async with _channels(admin, mine) as client:
        await _use_channels(client)


# -- buckets -------------------------------------------------------------------------------------------


async def values_read(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Read values, those that are missing too, list keys, and watch."""
    async with await connect(admin) as other:
        await (await KeyValue.open(other, "prices")).put("eu.tea", b"1")
    async with await connect(mine) as nc:
        bucket = await KeyValue.open(nc, "prices")
        assert (await bucket.get("eu.tea")).value == b"1"
        assert (await bucket.get("eu.tea", current=True)).value == b"1"
        assert "eu.tea" in await bucket.keys()
        async with bucket.watch("eu.>") as watch:
            assert await anext(watch) is not None


async def values_write(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Put a value, change it only if nobody else did, and delete it."""
    async with await connect(mine) as nc:
        bucket = await KeyValue.open(nc, "prices")
        revision = await bucket.put("eu.coffee", b"1")
        await bucket.update("eu.coffee", b"2", revision)
        await bucket.delete("eu.coffee")


async def objects_read(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """List objects, and fetch one."""
    async with await connect(admin) as other:
        await (await ObjectStore.open(other, "pictures")).put("cat", b"c" * MB)
    async with await connect(mine) as nc:
        bucket = await ObjectStore.open(nc, "pictures")
        assert "cat" in [info.name for info in await bucket.list()]
        assert len(await bucket.fetch("cat")) == MB


async def objects_write(mine: ConnectionOptions, admin: ConnectionOptions) -> None:
    """Put an object in the place of an older one, and delete it."""
    async with await connect(mine) as nc:
        bucket = await ObjectStore.open(nc, "pictures")
        for content in (b"1" * MB, b"2" * MB):
            await bucket.put("dog", content)
        await bucket.delete("dog")


ROLES: dict[str, Role] = {
    "publisher": publisher,
    "worker": worker,
    "source": source,
    "sink": sink,
    "pipeline": pipeline,
    "backup": backup,
    "chunks-send": chunks_send,
    "chunks-receive": chunks_receive,
    "chunks-store": chunks_store,
    "chunks-fetch": chunks_fetch,
    "bus-ask": bus_ask,
    "bus-serve": bus_serve,
    "gateway": gateway,
    "channels-client": channels_client,
    "values-read": values_read,
    "values-write": values_write,
    "objects-read": objects_read,
    "objects-write": objects_write,
    "console": console,
    "console-write": console_write,
}
