"""The shop's traffic: what the ledger drew goes out through every kind of producer, awkward ones included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from penstock.channels import Client as ChannelClient
from penstock.channels import Gateway
from penstock.chunks import Publisher as ChunkPublisher
from penstock.connection import Connection, connect
from penstock.demo.ledger import Ledger, Order
from penstock.jetstream import Publisher
from penstock.wire.jetstream.names import MSG_ID

__all__ = ["CHANNEL", "CHANNEL_STREAM", "CLUSTER", "Traffic"]

CLUSTER = "shop"
CHANNEL = "legacy-orders"
CHANNEL_STREAM = f"{CLUSTER}:{CHANNEL}"
SLICE = 100  # orders that go out together, through all producers


@dataclass
class Traffic:
    """The producers, connected."""

    ledger: Ledger
    url: str
    client: Connection
    orders: Publisher
    legacy: ChannelClient
    position: int = 0
    """How many orders are out."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, ledger: Ledger) -> AsyncIterator[Traffic]:
        """Connect the producers, and close them in the end; on the way out of an error nobody waits for acks."""
        async with (
            await connect(url, name="shop") as client,
            Publisher(client, "ORDERS") as orders,
            Gateway(url, cluster_id=CLUSTER),
            ChannelClient(url, cluster_id=CLUSTER, client_id="till-1997") as legacy,
        ):
            yield cls(ledger, url, client, orders, legacy)

    async def send_customers(self) -> None:
        """Publish the table of customers."""
        async with Publisher(self.client, "CUSTOMERS") as publisher:
            for customer in self.ledger.customers:
                await publisher.publish(f"customers.{customer.customer}", customer.encode())

    async def send_documents(self) -> None:
        """Publish the documents, each in chunks."""
        publisher = ChunkPublisher.persistent(self.client, "DOCUMENTS", 512 * 1024)
        for document in self.ledger.documents:
            content = await asyncio.to_thread(document.content)
            await publisher.publish("documents.scan", content, message_id=document.name)
            self.ledger.note(document, content)

    async def send_orders(self, count: int, seconds: float = 0.0) -> None:
        """Send the next orders, spread over some time; returns when every one of them is acknowledged."""
        end = min(self.position + count, len(self.ledger.orders))
        begun, first, total = asyncio.get_running_loop().time(), self.position, max(end - self.position, 1)
        while self.position < end:
            batch = self.ledger.orders[self.position : min(self.position + SLICE, end)]
            await self.send(batch)
            self.position += len(batch)
            due = begun + seconds * (self.position - first) / total
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    async def send(self, batch: Sequence[Order]) -> None:
        """Send some orders, each in its own way; returns when every one of them is acknowledged."""
        await self._lose_acks([order for order in batch if order.way == "unacked"])
        acks = []
        for order in batch:
            times = {"legacy": 0, "twice": 2}.get(order.way, 1)
            acks += [await self.orders.send(_subject(order), order.encode(), id=order.order_id) for _ in range(times)]
        old = [order for order in batch if order.way == "legacy"]
        legacy = [await self.legacy.publish_async(CHANNEL, order.encode()) for order in old]
        await asyncio.gather(*acks, *legacy)

    async def _lose_acks(self, orders: Sequence[Order]) -> None:
        """Publish as a client that dies before its acks come; it cannot know, so all of these are sent again."""
        if not orders:
            return
        async with await connect(self.url, name="a client that dies") as dying:
            for order in orders:
                headers = {MSG_ID: order.order_id}
                await dying.publish(_subject(order), order.encode(), reply=dying.new_inbox(), headers=headers)
            await dying.flush()


def _subject(order: Order) -> str:
    return f"orders.{order.customer}"
