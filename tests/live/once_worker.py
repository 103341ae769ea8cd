"""A consumer as a program of its own, which the exactly-once test kills and starts again.

It takes orders from IN, fails at some of them, and publishes each result into OUT under the order's id, so that a
result that is made twice is stored once.
"""

from __future__ import annotations

import asyncio
import random
import sys

from penstock.connection import connect
from penstock.jetstream import Delivery, Publisher, Worker


async def main(url: str, seed: int) -> None:
    chance = random.Random(seed)
    async with (
        await connect(url, reconnect_wait=0.1) as nc,
        Publisher(nc, "OUT", order="sent", ack_timeout=2.0) as results,
    ):

        async def handle(delivery: Delivery) -> None:
            if chance.random() < 0.1:
                raise RuntimeError("crashed before the work")
            assert delivery.id is not None
            await results.publish("out.done", b"done " + delivery.data, id=delivery.id)
            if chance.random() < 0.1:
                raise RuntimeError("crashed after the work")

        print("ready", flush=True)
        await Worker(nc, "IN", "c", handle, workers=8, heartbeat=1.0, expires=5.0).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
