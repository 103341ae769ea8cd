"""A real server with something of everything that the console shows, and acts on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import penstock
from penstock.buckets import KeyValue, ObjectStore
from penstock.chunks import Archive, Publisher
from penstock.connection import Connection
from penstock.jetstream import assets
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.deadletter import DeadLetters
from penstock.model import Consumer, Stream

__all__ = ["SECRET", "fill", "served"]

SECRET = "the-secret-of-the-server"


@contextmanager
def served() -> Iterator[str]:
    """Start a server and fill it; give its URL, which holds its secret."""
    with penstock.Server(token=SECRET, sync="2m") as server:
        yield server.url


async def fill(client: Connection) -> None:
    """Put everything there as it was at first, whatever acts have made of it."""
    for there in await assets.streams(client):
        await assets.delete_stream(client, there.name)
    await assets.add_stream(client, Stream(name="ORDERS", subjects=["orders.>"], allow_direct=True))
    for number in range(6):
        headers = {"Shop": str(number), "Content-Type": "application/json"}
        await client.jetstream().publish(f"orders.{number % 2}", b'{"order":%d}' % number, headers=headers)
    await client.jetstream().publish("orders.raw", bytes(range(256)))
    for name in ("reader", "worker"):
        await assets.add_consumer(client, "ORDERS", Consumer(durable=name))
    dead = DeadLetters(client, "ORDERS")
    await dead.ensure()
    async with Deliveries(client, "ORDERS", "worker", limit=1) as deliveries:
        async for delivery in deliveries:
            await dead.put(delivery, "there is no paper")
            await delivery.ack()
    keys = await KeyValue.create_bucket(client, "settings")
    await keys.put("rate", b'{"eur": 1.1}')
    await keys.put("rate", b'{"eur": 1.2}')
    objects = await ObjectStore.create_bucket(client, "settings")
    await objects.put("plan.pdf", b"%PDF" * 100)
    await Archive.create(client, "CHUNKS", "chunks.stored")
    await Publisher.persistent(client, "CHUNKS", 400).publish("chunks.stored", b"d" * 1000)
