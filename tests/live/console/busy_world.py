"""A server with one of everything that the console shows, and an order every few milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from penstock.buckets import KeyValue, ObjectStore
from penstock.connection import Connection, connect
from penstock.jetstream import assets
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.deadletter import DeadLetters
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.pipelines.new_project import write_project
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.progress import ProgressFile
from penstock.pipelines.project import Project
from penstock.server import Server
from tests.live.chromium import Desk, going, sitting
from tests.support import eventually

SENSORS = 12
READERS = 24
NAMES = {
    **{"stream": "ORDERS", "consumer": "reader_00", "sequence": "1"},
    **{"bucket": "settings", "cluster": "shop"},
}
ASKED = {"entry": "key=rate", "object_entry": "name=plan.pdf", "pipeline": "name=sensors"}
"""What pages want to know beside the names in their paths."""


@asynccontextmanager
async def busy_world(folder: Path) -> AsyncIterator[Desk]:
    """Make all of it, and a console with a browser before it."""
    with Server(sync="2m") as server:
        project = Project.load(write_project(folder, "sensors"))
        assert project.local_storage is not None
        project.local_storage.mkdir(parents=True)
        file = ProgressFile.of(project, ConnectionOptions(server.url), os.getpid(), continuous=True)
        nats = await connect(server.url)
        try:
            await _streams(nats)
            await _dead_letters(nats)
            for kind in (KeyValue, ObjectStore):
                await kind.create_bucket(nats, "settings")
            await (await KeyValue.open(nats, "settings")).put("rate", b'{"eur": 1.1}')
            await (await ObjectStore.open(nats, "settings")).put("plan.pdf", b"%PDF" * 100)
            await assets.add_stream(
                nats, Stream(name="shop=state", subjects=["_PENSTOCK.channels.shop.>"], allow_direct=True)
            )
            file.write(_running(), over=False)
            numbers = itertools.count(1)

            async def order() -> None:
                number = next(numbers)
                body = json.dumps({"order": number, "amount": number % 97, "currency": "EUR"}).encode()
                region = ("eu", "us", "asia")[number % 3]
                await nats.publish(f"orders.{region}", body, headers={"Shop": str(number % 7)})
                await asyncio.sleep(0.02)

            nowhere = "http://127.0.0.1:1"  # nobody listens there: pages say so, and show the hour from memory
            options = {"pipelines": [project], "write": True, "audit": folder / "acts.log", "prometheus": nowhere}
            async with sitting(server.url, **options) as desk, going(order):
                survey = desk.console._survey
                await eventually(lambda: survey.snapshot.covered.whole, "a round of the survey", timeout=60)
                yield replace(desk, run=file)
        finally:
            await nats.close()


async def _streams(nats: Connection) -> None:
    about = "Every order of the shop, as it was placed"
    await assets.add_stream(nats, Stream(name="ORDERS", subjects=["orders.>"], description=about))
    for number in range(SENSORS):
        await assets.add_stream(nats, Stream(name=f"SENSOR_{number:02}", subjects=[f"sensor.{number:02}.>"]))
    for number in range(READERS):
        reader = Consumer(durable=f"reader_{number:02}", ack_policy="explicit")
        await assets.add_consumer(nats, "ORDERS", reader)


async def _dead_letters(nats: Connection) -> None:
    await assets.add_stream(nats, Stream(name="JOBS", subjects=["jobs.>"]))
    await assets.add_consumer(nats, "JOBS", Consumer(durable="worker"))
    await nats.jetstream().publish("jobs.print", b"print this")
    dead = DeadLetters(nats, "JOBS")
    await dead.ensure()
    async with Deliveries(nats, "JOBS", "worker", limit=1) as deliveries:
        async for delivery in deliveries:
            await dead.put(delivery, "there is no paper")
            await delivery.ack()


def _running() -> Outcome:
    outcome = Outcome(counted=False)
    outcome.hear({"kind": "listening"})
    for flow in ("readings", "totals"):
        outcome.hear({"kind": "event", "message": f"Flow {flow} is RUNNING."})
    return outcome


def fail_a_flow(file: ProgressFile) -> None:
    """Let the run of the pipeline tell that one of its flows failed."""
    outcome = _running()
    outcome.hear({"kind": "event", "message": "Flow totals has FAILED."})
    file.write(outcome, over=False)


async def pull(nats: Connection, consumer: str, count: int) -> None:
    """Take orders for a consumer as any client does, for half a second or until there are so many, and ack them."""
    inbox = await nats.subscribe(nats.new_inbox())
    ask = json.dumps({"batch": count, "expires": 500_000_000}).encode()
    await nats.publish(f"$JS.API.CONSUMER.MSG.NEXT.ORDERS.{consumer}", ask, reply=inbox.subject)
    try:
        for _ in range(count):
            got = await inbox.next_msg(30)
            if not got.reply:
                break  # the server says that this was all
            await nats.publish(got.reply, b"+ACK")
    finally:
        await inbox.unsubscribe()
