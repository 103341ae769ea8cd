"""Takes messages from one stream and publishes a result for each into another, under the id of the message.

`plant`: "twice" publishes some results a second time without their id.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from penstock.connection import connect
from penstock.errors import DataLossError
from penstock.jetstream import Delivery, Publisher, Worker
from tests.faults.history import Ledger


async def run(given: dict[str, Any], ledger: Ledger, over: asyncio.Event) -> None:
    """Work until it is over."""
    chance = random.Random(given["seed"] * 1000 + given["life"])
    async with (
        await connect(given["url"], reconnect_wait=0.1, request_timeout=5.0, name=given["client"]) as nc,
        Publisher(nc, given["into"], order="sent", ack_timeout=2.0) as results,
    ):

        async def handle(delivery: Delivery) -> None:
            if chance.random() < 0.02:
                raise RuntimeError("fails before the work, on purpose")
            op = str(delivery.id)
            ledger.note("invoke", f"{op}@{delivery.sequence}")
            try:
                ack = await results.publish(f"{given['into']}.done", delivery.data, id=op)
            except (
                DataLossError
            ) as error:  # the results were set back: who keeps them is told, and this one comes again
                ledger.note("told", error=type(error).__name__, text=str(error))
                raise
            if given.get("plant") == "twice" and chance.random() < 0.05:
                await nc.jetstream().publish(f"{given['into']}.done", delivery.data)
            ledger.note("ok", f"{op}@{delivery.sequence}", seq=ack.sequence)
            if chance.random() < 0.02:
                raise RuntimeError("fails after the work, on purpose")

        worker = Worker(nc, given["stream"], given["consumer"], handle, workers=8, heartbeat=1.0, expires=5.0)
        running = asyncio.ensure_future(worker.run())
        stopping = asyncio.ensure_future(over.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        worker.stop()
        stopping.cancel()
        await running
