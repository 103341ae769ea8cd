"""The shop's service on the bus: answers from the tables that the pipeline wrote, in sections, row by row."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

from penstock.bus import Bus, Request, Response, Sender
from penstock.pipelines.tables import KeptTable, Table

__all__ = ["QUEUE", "Shop", "ask"]

QUEUE = "shop"
log = logging.getLogger("penstock.examples")
REFRESH = 0.25  # seconds between two looks at the table that Spark rewrites


class Shop:
    """Answers `orders?customer=X` and `top-customers?limit=N` from a warehouse.

    The orders only grow, and their log says what counts. The top customers are computed anew in each update of the
    pipeline, and their folder is empty for most of it: answers come from the newest whole rows, kept in memory.
    """

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self._top = KeptTable(warehouse / "top_customers")

    async def follow(self) -> None:
        """Take in each new state of the top customers when it is whole, until cancelled."""
        told = ""
        while True:
            try:
                await asyncio.to_thread(self._top.refresh)
            except (OSError, ValueError) as error:  # a file that cannot be read; whoever asks is told, too
                if str(error) != told:
                    log.warning("The top customers cannot be read: %s", error)
                told = str(error)
            await asyncio.sleep(REFRESH)

    async def __call__(self, request: Request, sender: Sender) -> None:
        if request.resource == "orders" and request.query.get("customer"):
            rows = await asyncio.to_thread(self.orders_of, request.query["customer"][0])
            await _send(sender, "order", rows)
        elif request.resource == "top-customers":
            limit = (request.query.get("limit") or ["10"])[0]
            if not re.fullmatch("[0-9]{1,9}", limit):
                await sender.respond(Response(400, "text/plain", b"The limit is no number."))
                return
            await _send(sender, "customer", (await asyncio.to_thread(self.top_customers))[: int(limit)])
        else:
            await sender.respond(Response(404, "text/plain", b"Ask for orders?customer=X or top-customers?limit=N."))

    def orders_of(self, customer: str) -> list[dict[str, Any]]:
        """Give a customer's orders, in the order of their time."""
        columns = ["order_id", "customer", "cents", "ordered"]
        rows = [row for row in Table(self.warehouse / "orders").rows(columns) if row["customer"] == customer]
        return sorted(rows, key=lambda row: (row["ordered"], row["order_id"]))

    def top_customers(self) -> list[dict[str, Any]]:
        """Give the customers by what they spent, the most first."""
        return sorted(self._top.rows(), key=lambda row: (-row["cents"], row["customer"]))


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
