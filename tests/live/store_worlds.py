"""Servers with stores of their own: histories that happen to streams, what the server says of them, what is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Server, connect, model
from penstock.connection import Connection
from penstock.jetstream import Outgoing, Publisher, snapshot
from penstock.store.history import History
from penstock.wire.bulk import BulkConnection

Rows = list[tuple[Any, ...]]
Change = Callable[[Connection, str], Awaitable[None]]


def rows(batches: Any) -> Rows:
    """Give rows as Python knows them."""
    names = ("subject", "data", "headers", "sequence", "time")
    return [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]


def held(history: History) -> Rows:
    """Read everything that a history holds, part by part; threads that read ahead give the same."""
    found = rows(batch for part in history.parts for batch in part.batches(history.name))
    assert rows(history.batches(threads=3)) == found
    return found


def said(url: str, name: str) -> Rows:
    """Read a stream through its server."""
    with BulkConnection(url) as bulk:
        return rows(bulk.read(name, on_loss=lambda _: None))


async def ask(nc: Connection, what: str, **question: Any) -> dict[str, Any]:
    """Ask JetStream something and take its whole answer."""
    answer: dict[str, Any] = json.loads((await nc.request(f"$JS.API.{what}", json.dumps(question).encode())).data)
    assert "error" not in answer, answer
    return answer


async def make(nc: Connection, name: str, **config: Any) -> None:
    """Make a stream that takes everything below its name."""
    fields = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, **config}
    await nc.jetstream().add_stream(model.Stream(**fields))


async def fill(nc: Connection, name: str, count: int = 200, size: int = 0) -> None:
    """Store messages, some with headers, on seven subjects."""
    before = (await ask(nc, f"STREAM.INFO.{name}"))["state"]["last_seq"]
    for number in range(count):
        headers = {"A": str(number), "B": "b"} if number % 3 == 0 else None
        await nc.publish(f"{name}.{number % 7}", b"%d" % number + bytes(size), headers=headers)
    while (await ask(nc, f"STREAM.INFO.{name}"))["state"]["last_seq"] < before + count:
        await asyncio.sleep(0.005)


async def nothing(nc: Connection, name: str) -> None:
    """Leave all as it is."""


async def deletes(nc: Connection, name: str) -> None:
    """Delete some, their bytes overwritten or not, first and last ones too."""
    for sequence in (1, 2, 50, 51, 199, 200):
        await ask(nc, f"STREAM.MSG.DELETE.{name}", seq=sequence, no_erase=sequence % 2 == 0)


async def deletes_in_blocks(nc: Connection, name: str) -> None:
    """Delete most of some blocks, so that the server writes them anew without what is dead."""
    for sequence in filter(lambda each: each % 5, range(30, 170)):
        await ask(nc, f"STREAM.MSG.DELETE.{name}", seq=sequence, no_erase=True)
    await fill(nc, name, 10, 500)


async def purge(nc: Connection, name: str) -> None:
    """Remove all, and store two."""
    await ask(nc, f"STREAM.PURGE.{name}")
    await fill(nc, name, 2)


async def purge_all(nc: Connection, name: str) -> None:
    """Remove all."""
    await ask(nc, f"STREAM.PURGE.{name}")


async def purge_subject(nc: Connection, name: str) -> None:
    """Remove a subject."""
    await ask(nc, f"STREAM.PURGE.{name}", filter=f"{name}.3")


async def purge_keep(nc: Connection, name: str) -> None:
    """Remove all but the last ones."""
    await ask(nc, f"STREAM.PURGE.{name}", keep=20)


async def purge_to(nc: Connection, name: str) -> None:
    """Remove what is older than one."""
    await ask(nc, f"STREAM.PURGE.{name}", seq=77)


async def rollup(nc: Connection, name: str) -> None:
    """Let a message replace those of its subject."""
    await nc.jetstream().publish(f"{name}.1", b"all of it", headers={"Nats-Rollup": "sub"})


async def rollup_all(nc: Connection, name: str) -> None:
    """Let a message replace all others."""
    await nc.jetstream().publish(f"{name}.1", b"all of it", headers={"Nats-Rollup": "all"})


async def expiry(nc: Connection, name: str) -> None:
    """Let messages expire that say when, and keep two that do not."""
    for text, ttl in (("short", "1s"), ("long", "1h"), ("never", "never")):
        await nc.jetstream().publish(f"{name}.ttl", text.encode(), headers={"Nats-TTL": ttl})
    while (await ask(nc, f"STREAM.INFO.{name}"))["state"]["messages"] > 202:
        await asyncio.sleep(0.05)


async def atomic(nc: Connection, name: str) -> None:
    """Store a batch, all or none."""
    async with Publisher(nc, name) as publisher:
        await publisher.publish_batch([Outgoing(f"{name}.batch", b"%d" % number) for number in range(5)])


async def counter(nc: Connection, name: str) -> None:
    """Add to a counter."""
    for step in ("+1", "+5", "-2"):
        await nc.jetstream().publish(f"{name}.count", b"", headers={"Nats-Incr": step})


async def schedule(nc: Connection, name: str) -> None:
    """Schedule a message for later."""
    headers = {"Nats-Schedule": "@at 2099-01-01T00:00:00Z", "Nats-Schedule-Target": f"{name}.then"}
    await nc.jetstream().publish(f"{name}.schedule", b"later", headers=headers)


async def acks(nc: Connection, name: str) -> None:
    """Let a consumer take some, which a work queue then forgets."""
    config = {"durable_name": "C", "ack_policy": "explicit", "filter_subject": f"{name}.2"}
    await ask(nc, f"CONSUMER.CREATE.{name}.C.{name}.2", stream_name=name, config=config)
    inbox = nc.new_inbox()
    taken = await nc.subscribe(inbox)
    await nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.C", b'{"batch":10}', reply=inbox)
    for _ in range(10):
        await nc.publish((await taken.next_msg(5)).reply, b"+ACK")
    while (await ask(nc, f"STREAM.INFO.{name}"))["state"]["messages"] > 190:
        await asyncio.sleep(0.02)


CASES: dict[str, tuple[Change, dict[str, Any]]] = {
    "plain": (nothing, {}),
    "deletes": (deletes, {}),
    "purge": (purge, {}),
    "purge_all": (purge_all, {}),
    "purge_subject": (purge_subject, {}),
    "purge_keep": (purge_keep, {}),
    "purge_to": (purge_to, {}),
    "rollup": (rollup, {"allow_rollup_hdrs": True}),
    "rollup_all": (rollup_all, {"allow_rollup_hdrs": True}),
    "expiry": (expiry, {"allow_msg_ttl": True}),
    "atomic": (atomic, {"allow_atomic": True}),
    "schedule": (schedule, {"allow_msg_schedules": True, "allow_rollup_hdrs": True, "allow_msg_ttl": True}),
    "acks": (acks, {"retention": "workqueue"}),
    "most": (nothing, {"max_msgs": 30}),
    "most_bytes": (nothing, {"max_bytes": 4000}),
    "most_of_a_subject": (nothing, {"max_msgs_per_subject": 2}),
    "first": (nothing, {"first_seq": 1000}),
    "compressed": (deletes, {"compression": "s2"}),
    "blocks": (deletes_in_blocks, {"max_bytes": 120_000, "compression": "s2"}),
    "plain_blocks": (deletes_in_blocks, {"max_bytes": 120_000}),
}
BLOCKS = ("blocks", "plain_blocks")  # each message has five hundred bytes there, so that there are several blocks


@dataclass
class World:
    """A server that was, what it said of its streams at its end, and its store."""

    folder: Path
    said: dict[str, Rows] = field(default_factory=dict)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)

    def messages(self, name: str) -> Path:
        """Give the folder of a stream's blocks."""
        return next(self.folder.rglob(f"streams/{name}/msgs"))

    def backup(self, name: str) -> Path:
        """Give the folder of a stream's backup."""
        return self.folder.parent / f"backup-{name}"

    def blocks(self, name: str) -> list[Path]:
        """Give the files of a stream's blocks, in order."""
        return sorted(self.messages(name).glob("*.blk"), key=lambda path: int(path.stem))


def make_world(folder: Path, *, kill: bool) -> World:
    """Let every case happen on one server, keep what it says, and end it in order, or kill it."""
    world = World(folder)

    async def work(url: str) -> None:
        async with await connect(url) as nc:
            for name, (_, config) in CASES.items():
                await make(nc, name, **config)
                await fill(nc, name, size=500 if name in BLOCKS else 0)
            await make(nc, "counter", allow_msg_counter=True)
            await counter(nc, "counter")
            async with asyncio.timeout(60):
                await asyncio.gather(*(change(nc, name) for name, (change, _) in CASES.items()))
            for name in (*CASES, "counter"):
                world.state[name] = (await ask(nc, f"STREAM.INFO.{name}"))["state"]
                if not kill:
                    await snapshot.backup(nc, name, world.backup(name))

    with Server(store=folder, on_loss="tell", sync="2m") as server:
        asyncio.run(work(server.url))
        for name in (*CASES, "counter"):
            world.said[name] = said(server.url, name)
        if kill:
            for node in server.nodes:
                node.kill()
    return world
