"""How fast messages go into a stream and out of it, side by side in one run: our ways, and nats-py's own.

Run it as it stands, or with `--quick`. Rates depend on the machine; the ratios are what to compare. Results go to
`artifacts/jetstream.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import penstock
from penstock.connection import Connection, connect_nats_py
from penstock.jetstream import Deliveries, Outgoing, Publisher, assets
from penstock.model import Consumer, Stream

BODY = b"x" * 128
Side = Callable[[Connection, str, int], Awaitable[None]]


def sent(order: str) -> Side:
    async def run(nc: Connection, stream: str, count: int) -> None:
        async with Publisher(nc, stream, order=order) as publisher:
            for _ in range(count):
                await publisher.send(f"{stream}.x", BODY)

    return run


def batched(how: str) -> Side:
    async def run(nc: Connection, stream: str, count: int) -> None:
        async with Publisher(nc, stream) as publisher:
            for start in range(0, count, 1000):
                part = [Outgoing(f"{stream}.x", BODY) for _ in range(min(1000, count - start))]
                await publisher.publish_batch(part, how)

    return run


async def one_by_one(nc: Connection, stream: str, count: int) -> None:
    client = await connect_nats_py(nc.options)
    context = client.jetstream()
    for number in range(count):
        await context.publish(f"{stream}.x", BODY, headers={"Nats-Msg-Id": str(number)})
    await client.close()


async def gathered(nc: Connection, stream: str, count: int) -> None:
    client = await connect_nats_py(nc.options)
    context = client.jetstream()
    for start in range(0, count, 256):
        numbers = range(start, min(start + 256, count))
        await asyncio.gather(
            *(context.publish(f"{stream}.x", BODY, headers={"Nats-Msg-Id": str(number)}) for number in numbers)
        )
    await client.close()


async def deliveries(nc: Connection, stream: str, count: int) -> None:
    await assets.add_consumer(nc, stream, Consumer(durable="ours", max_ack_pending=5000))
    async with Deliveries(nc, stream, "ours", batch=500, limit=count) as found:
        async for delivery in found:
            await delivery.ack()


async def fetched(nc: Connection, stream: str, count: int) -> None:
    await assets.add_consumer(nc, stream, Consumer(durable="theirs", max_ack_pending=5000))
    client = await connect_nats_py(nc.options)
    subscription = await client.jetstream().pull_subscribe_bind("theirs", stream=stream)
    seen = 0
    while seen < count:
        for message in await subscription.fetch(500, timeout=10):
            await message.ack()
            seen += 1
    await subscription.unsubscribe()
    await client.close()


PUBLISH: dict[str, Side] = {
    "nats-py, one at a time": one_by_one,
    "nats-py, 256 gathered": gathered,
    "Publisher, strict order": sent("strict"),
    "Publisher, chained": sent("chained"),
    "Publisher, order as sent": sent("sent"),
    "atomic batches of 1,000": batched("atomic"),
    "fast ingest": batched("fast"),
}
CONSUME: dict[str, Side] = {"nats-py fetch and ack": fetched, "Deliveries and ack": deliveries}


async def measure(sync: str, count: int) -> dict[str, dict[str, float]]:
    rates: dict[str, dict[str, float]] = {"publish": {}, "consume": {}}
    with penstock.Server(sync=sync) as server:
        async with await penstock.connect(server.url) as nc:
            for number, (name, side) in enumerate(PUBLISH.items()):
                stream = f"P{number}"
                config = Stream(name=stream, subjects=[f"{stream}.>"], allow_atomic=True, allow_batched=True)
                await assets.add_stream(nc, config)
                began = time.perf_counter()
                await side(nc, stream, count)
                rates["publish"][name] = count / (time.perf_counter() - began)
                assert (await assets.stream_info(nc, stream)).messages == count, name
            for name, side in CONSUME.items():
                began = time.perf_counter()
                await side(nc, "P2", count)
                rates["consume"][name] = count / (time.perf_counter() - began)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    options = parser.parse_args()
    results = {}
    for sync, count in (("2m", 20_000), ("always", 3_000)):
        results[f"sync {sync}"] = rates = asyncio.run(measure(sync, count // 10 if options.quick else count))
        for kind, sides in rates.items():
            base = next(iter(sides.values()))
            print(f"\n{kind}, sync {sync}, 128 bytes a message")
            for name, rate in sides.items():
                print(f"  {name:<28} {rate:>9,.0f}/s  {rate / base:>5.1f} x")
    Path("artifacts").mkdir(exist_ok=True)
    Path("artifacts/jetstream.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
