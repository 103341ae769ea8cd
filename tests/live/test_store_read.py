"""Stores and backups that the real server wrote, read without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Server, connect, model
from penstock.connection import Connection
from penstock.store.history import History, open_store
from penstock.wire.bulk import BulkConnection

Rows = list[tuple[Any, ...]]
Work = Callable[[Connection], Awaitable[None]]


def rows(batches: Any) -> Rows:
    """Give rows as Python knows them."""
    names = ("subject", "data", "headers", "sequence", "time")
    return [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]


def held(history: History) -> Rows:
    """Read everything that a history holds, part by part."""
    return rows(batch for part in history.parts for batch in part.batches(history.name))


class World:
    """A server with a store of its own, what it holds as it says, and what its store holds as we read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def do(self, work: Work, *, kill: bool = False) -> Rows:
        """Run the server, do some work, and give what stream X holds then; end it in order, or kill it."""
        with Server(store=self.folder, on_loss="tell") as server:
            asyncio.run(self._work(server.url, work))
            with BulkConnection(server.url) as bulk:
                found = rows(bulk.read("X", on_loss=lambda _: None))
            if kill:
                for node in server.nodes:
                    node.kill()
        return found

    @staticmethod
    async def _work(url: str, work: Work) -> None:
        async with await connect(url) as nc:
            await work(nc)

    def read(self) -> History:
        """Open the store of the server that has ended."""
        return open_store(self.folder, "X")

    @property
    def blocks(self) -> list[Path]:
        """The files of the blocks, in order."""
        found = next(self.folder.rglob("streams/X/msgs")).glob("*.blk")
        return sorted(found, key=lambda path: int(path.stem))

    @property
    def index(self) -> Path:
        """The file of the index."""
        return next(self.folder.rglob("streams/X/msgs/index.db"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


async def ask(nc: Connection, what: str, **question: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await nc.request(f"$JS.API.{what}", json.dumps(question).encode())).data)
    return answer


async def fill(nc: Connection, count: int = 200, size: int = 0, **config: Any) -> None:
    """Make stream X and store messages in it, some with headers, on seven subjects."""
    fields = {"name": "X", "subjects": ["x.>"], "allow_direct": True, **config}
    await nc.jetstream().add_stream(model.Stream(**fields))
    for number in range(count):
        headers = {"A": str(number), "B": "b"} if number % 3 == 0 else None
        await nc.jetstream().publish(f"x.{number % 7}", b"%d" % number + bytes(size), headers=headers)


# -- what may become of messages ----------------------------------------------------------------------------------


async def nothing(nc: Connection) -> None:
    """Leave all as it is."""


async def deletes(nc: Connection) -> None:
    """Delete some, their bytes overwritten or not."""
    for sequence in (1, 2, 50, 51, 199, 200):
        await ask(nc, "STREAM.MSG.DELETE.X", seq=sequence, no_erase=sequence % 2 == 0)


async def purge(nc: Connection) -> None:
    """Remove all, and store two."""
    await ask(nc, "STREAM.PURGE.X")
    await nc.jetstream().publish("x.a", b"after")
    await nc.jetstream().publish("x.b", b"the purge")


async def purge_all(nc: Connection) -> None:
    """Remove all."""
    await ask(nc, "STREAM.PURGE.X")


async def purge_subject(nc: Connection) -> None:
    """Remove a subject."""
    await ask(nc, "STREAM.PURGE.X", filter="x.3")


async def purge_keep(nc: Connection) -> None:
    """Remove all but the last ones."""
    await ask(nc, "STREAM.PURGE.X", keep=20)


async def purge_to(nc: Connection) -> None:
    """Remove what is older than one."""
    await ask(nc, "STREAM.PURGE.X", seq=77)


async def rollup(nc: Connection) -> None:
    """Let a message replace those of its subject."""
    await nc.jetstream().publish("x.1", b"all of it", headers={"Nats-Rollup": "sub"})


async def expiry(nc: Connection) -> None:
    """Let messages expire that say when, and keep one that does not yet."""
    for text, ttl in (("short", "1s"), ("long", "1h"), ("never", "never")):
        await nc.jetstream().publish("x.ttl", text.encode(), headers={"Nats-TTL": ttl})
    while (await ask(nc, "STREAM.INFO.X"))["state"]["messages"] > 202:
        await asyncio.sleep(0.05)


async def atomic(nc: Connection) -> None:
    """Store a batch, all or none."""
    from penstock.jetstream import Outgoing, Publisher

    async with Publisher(nc, "X") as publisher:
        await publisher.publish_batch([Outgoing("x.batch", b"%d" % number) for number in range(5)])


@pytest.mark.parametrize("ended", ["in order", "killed"])
@pytest.mark.parametrize(
    ("change", "config"),
    [
        (nothing, {}),
        (deletes, {}),
        (purge, {}),
        (purge_all, {}),
        (purge_subject, {}),
        (purge_keep, {}),
        (purge_to, {}),
        (rollup, {"allow_rollup_hdrs": True}),
        (expiry, {"allow_msg_ttl": True}),
        (atomic, {"allow_atomic": True}),
        (nothing, {"max_msgs": 30}),
        (nothing, {"max_bytes": 4000}),
        (nothing, {"max_msgs_per_subject": 2}),
        (nothing, {"first_seq": 1000}),
        (deletes, {"compression": "s2"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else ",".join(value) or "plain",
)
def test_a_store_holds_what_its_server_said(world: World, change: Work, config: dict[str, Any], ended: str) -> None:
    """Whatever was removed in whatever way, the store of a server that ended, or died, has the rows that it gave."""

    async def work(nc: Connection) -> None:
        await fill(nc, **config)
        await change(nc)

    said = world.do(work, kill=ended == "killed")
    history = world.read()
    assert held(history) == said
    assert history.messages == len(said)
    assert (history.rebuilt is None) == (ended == "in order"), history.rebuilt
    if said:
        assert (history.first, history.last) == (said[0][3], max(said[-1][3], history.last))
