"""The shop's traffic: what the ledger drew goes out through every kind of producer, awkward ones included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from penstock.channels import Client as ChannelClient
from penstock.channels import Gateway
from penstock.chunks import Publisher as ChunkPublisher
from penstock.connection import Connection, connect
from penstock.examples.orders.ledger import Ledger, Order
from penstock.jetstream import Publisher
from penstock.wire.jetstream.names import MSG_ID

__all__ = ["CHANNEL", "CHANNEL_STREAM", "CLUSTER", "Traffic"]

CLUSTER = "shop"
CHANNEL = "legacy-orders"
CHANNEL_STREAM = f"{CLUSTER}:{CHANNEL}"
SLICE = 100  # orders that go out together, through all producers


class Traffic:
    """The producers, connected; `async with` opens and closes them."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        self.ledger = ledger
        self.position = 0
        """How many orders are out."""
        self._url = url
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            self._client: Connection = await connect(self._url, name="shop")
            self._stack.push_async_callback(self._client.close)
            self._orders = await self._stack.enter_async_context(Publisher(self._client, "ORDERS"))
            await self._stack.enter_async_context(Gateway(self._url, cluster_id=CLUSTER))
            self._legacy = await self._stack.enter_async_context(
                ChannelClient(self._url, cluster_id=CLUSTER, client_id="till-1997")
            )
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With the error, so that nobody waits for acks on the way out of one.
        await self._stack.__aexit__(kind, error, trace)

    @property
    def duplicates(self) -> int:
        """How many repeats the server recognised."""
        return self._orders.duplicates

    # -- what goes out -------------------------------------------------------------------------------------------------

    async def send_customers(self) -> None:
        """Publish the table of customers."""
        async with Publisher(self._client, "CUSTOMERS") as publisher:
            for customer in self.ledger.customers:
                await publisher.publish(f"customers.{customer.customer}", customer.encode())

    async def send_documents(self, advance: Callable[[int], None] = lambda size: None) -> None:
        """Publish the documents, each in chunks."""
        publisher = ChunkPublisher.persistent(self._client, "DOCUMENTS", 512 * 1024)
        for document in self.ledger.documents:
            content = await asyncio.to_thread(document.content)
            await publisher.publish("documents.scan", content, message_id=document.name)
            self.ledger.note(document, content)
            advance(len(content))

    async def send_orders(
        self, count: int, seconds: float = 0.0, advance: Callable[[int], None] = lambda size: None
    ) -> None:
        """Send the next orders, spread over some time; returns when every one of them is acknowledged."""
        end = min(self.position + count, len(self.ledger.orders))
        begun, first, total = asyncio.get_running_loop().time(), self.position, max(end - self.position, 1)
        while self.position < end:
            batch = self.ledger.orders[self.position : min(self.position + SLICE, end)]
            await self.send(batch)
            self.position += len(batch)
            advance(len(batch))
            due = begun + seconds * (self.position - first) / total
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    async def send(self, batch: Sequence[Order]) -> None:
        """Send some orders, each in its own way; returns when every one of them is acknowledged."""
        ways: dict[str, list[Order]] = {way: [] for way in ("once", "twice", "unacked", "legacy")}
        for order in batch:
            ways[order.way].append(order)
            self.ledger.sent[order.way] += 1 if order.way in ("once", "legacy") else 2
        await self._lose_acks(ways["unacked"])
        acks = []
        for order in batch:
            times = {"legacy": 0, "twice": 2}.get(order.way, 1)
            acks += [await self._orders.send(_subject(order), order.encode(), id=order.order_id) for _ in range(times)]
        legacy = [await self._legacy.publish_async(CHANNEL, order.encode()) for order in ways["legacy"]]
        await asyncio.gather(*acks, *legacy)

    async def _lose_acks(self, orders: Sequence[Order]) -> None:
        """Publish as a client that dies before its acks come; it cannot know, so all of these are sent again."""
        if not orders:
            return
        dying = await connect(self._url, name="a client that dies")
        try:
            for order in orders:
                headers = {MSG_ID: order.order_id}
                await dying.publish(_subject(order), order.encode(), reply=dying.new_inbox(), headers=headers)
            await dying.flush()
        finally:
            await dying.close()


def _subject(order: Order) -> str:
    return f"orders.{order.customer}"
