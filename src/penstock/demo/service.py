"""The shop's service on the bus: answers from what the pipeline wrote, a table and a bucket, row by row."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from penstock.buckets import KeyValue
from penstock.bus import Bus, Request, Response, Sender
from penstock.connection import Connection
from penstock.errors import InputError, NotFoundError
from penstock.pipelines.tables import Table

__all__ = ["BUCKET", "QUEUE", "Shop", "ask"]

QUEUE = "shop"
BUCKET = "SUMS"
KNOWN = b"Ask for orders?customer=X, sums?customer=X or top-customers?limit=N."


class Shop:
    """Answers `orders?customer=X` from a table of the warehouse, `sums?customer=X` and `top-customers?limit=N` from a
    bucket, in which each customer's sums are a moment after the order.
    """

    def __init__(self, client: Connection, warehouse: Path) -> None:
        self._client = client
        self.warehouse = warehouse

    async def __call__(self, request: Request, sender: Sender) -> None:
        customer = (request.query.get("customer") or [""])[0]
        if request.resource == "orders" and customer:
            await _send(sender, "order", await asyncio.to_thread(self.orders_of, customer))
        elif request.resource == "sums" and customer:
            found = await self.sums_of(customer)
            unknown = Response(404, "text/plain", b"That customer has ordered nothing.")
            await sender.respond(unknown if found is None else Response(200, "application/json", found))
        elif request.resource == "top-customers":
            limit = (request.query.get("limit") or ["10"])[0]
            if not re.fullmatch("[0-9]{1,9}", limit):
                await sender.respond(Response(400, "text/plain", b"The limit is not a number."))
                return
            await _send(sender, "customer", (await self.top_customers())[: int(limit)])
        else:
            await sender.respond(Response(404, "text/plain", KNOWN))

    async def sums_of(self, customer: str) -> bytes | None:
        """Give what a customer has ordered so far, as JSON; None if there is no such customer."""
        try:
            return (await (await KeyValue.open(self._client, BUCKET)).get(customer)).value
        except (InputError, NotFoundError):  # a name that cannot be a key is nobody's
            return None

    async def top_customers(self) -> list[dict[str, Any]]:
        """Give the customers by what they spent, the most first."""
        bucket = await KeyValue.open(self._client, BUCKET)
        rows = [json.loads(entry.value) async for entry in bucket.entries()]
        return sorted(rows, key=lambda row: (-row["cents"], row["customer"]))

    def orders_of(self, customer: str) -> list[dict[str, Any]]:
        """Give a customer's orders, in the order of their time."""
        columns = ["order_id", "customer", "cents", "ordered"]
        rows = [row for row in Table(self.warehouse / "orders").rows(columns) if row["customer"] == customer]
        return sorted(rows, key=lambda row: (row["ordered"], row["order_id"]))


async def _send(sender: Sender, kind: str, rows: list[dict[str, Any]]) -> None:
    async with sender.sections() as out:
        out.array(kind)
        for row in rows:
            await out.send(json.dumps(row, default=str).encode())


async def ask(bus: Bus, resource: str, **query: str) -> list[dict[str, Any]]:
    """Ask the service, and give the rows of its reply."""
    request = Request(QUEUE, resource=resource, query={name: [value] for name, value in query.items()})
    async with await bus.request(request, timeout=60.0) as reply:
        return [element.json() async for section in reply.sections() async for element in section]
