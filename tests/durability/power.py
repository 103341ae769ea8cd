"""A power failure: a real server is written to, its disk is set back to a moment, and it is started again."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats

import penstock
from penstock.jetstream import Publisher
from penstock.jetstream import assets as streams
from penstock.model import Stream
from tests.durability import acts
from tests.durability.acts import Act
from tests.durability.disk import Disk, Names
from tests.durability.trace import Tracer

__all__ = ["STREAM", "Failure", "Traced", "read_all", "traced"]

STREAM = "ORDERS"


@dataclass(frozen=True)
class Failure:
    """What became of acknowledged messages after one power failure."""

    acked: int
    """Messages that were acknowledged before it."""
    lost: int
    """Those of them that are gone, or are another message."""
    seconds: float
    """How long before it the oldest of the lost was acknowledged."""
    told: tuple[str, ...]
    """What Penstock's server says is missing."""
    undone: dict[str, float] = field(default_factory=dict)
    """What else was confirmed and is not so any more, by kind: how long before it the oldest was. See `acts`."""


@dataclass
class Traced:
    """What was written, and the disks of all nodes."""

    nodes: int
    sync: str
    folder: Path
    store: Path
    begun: float
    ended: float
    acks: list[tuple[float, int, bytes]]
    """When, at which sequence, and what."""
    disks: list[Disk]
    roots: list[Path]
    acts: list[Act] = field(default_factory=list)
    """What else was confirmed."""

    @property
    def syncs(self) -> int:
        """How many syncs there were."""
        return sum(disk.syncs for disk in self.disks)

    def fail(self, moment: float, names: Names = "kept", torn: random.Random | None = None) -> Failure:
        """Let the power of all nodes fail at a moment; start again, and count."""
        target = Path(tempfile.mkdtemp(prefix="power-", dir=self.folder))
        try:
            for disk, root in zip(self.disks, self.roots, strict=True):
                disk.write(disk.at(moment, names, torn), target / root.relative_to(self.store))
            acked = [(at, sequence, body) for at, sequence, body in self.acks if at <= moment]
            with penstock.Server(nodes=self.nodes, store=target, sync=self.sync, on_loss="tell") as server:
                found = asyncio.run(read_all(server.url))
                done = [item for item in self.acts if item.at <= moment]
                wrong = asyncio.run(acts.undone(server.url, done)) if done else []
                undone = {item.kind: moment - item.at for item in sorted(wrong, key=lambda item: -item.at)}
                told = tuple(loss.text for loss in server.losses)
            lost = [at for at, sequence, body in acked if found.get(sequence) != body]
            return Failure(len(acked), len(lost), moment - min(lost) if lost else 0.0, told, undone)
        finally:
            shutil.rmtree(target, ignore_errors=True)


@contextmanager
def traced(
    *,
    nodes: int = 1,
    sync: str = "always",
    seconds: float = 5.0,
    replicas: int | None = None,
    size: int = 200,
    acting: bool = False,
) -> Iterator[Traced]:
    """Write to a server for some seconds under a trace; give what was acknowledged, and the disks.

    With `acting`, all that a server confirms is tried beside plain publishes.
    """
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="durability-", ignore_cleanup_errors=True))
        )
        store = folder / "store"
        server = stack.enter_context(penstock.Server(nodes=nodes, store=store, sync=sync))
        roots = [node.store for node in server.nodes]
        asyncio.run(_make(server.url, replicas or nodes))
        if acting:
            asyncio.run(acts.prepare(server.url, replicas or nodes))
        tracing, bases = ExitStack(), []
        with tracing:
            for node in server.nodes:
                assert node.pid is not None
                tracing.enter_context(Tracer(node.pid, folder / f"{node.name}.trace"))
                bases.append(Disk.look(node.store / "jetstream"))
            begun = time.time()
            acks, acted = asyncio.run(_write_and_act(server.url, seconds, size, acting))
            ended = time.time()
        server.stop()
        disks = [
            Disk(root, base, folder / f"{node.name}.trace")
            for root, base, node in zip(roots, bases, server.nodes, strict=True)
        ]
        yield Traced(nodes, sync, folder, store, begun, ended, acks, disks, roots, acted)


async def _make(url: str, replicas: int) -> None:
    nc = await penstock.connect(url)
    await streams.add_stream(nc, Stream(name=STREAM, subjects=["orders.>"], num_replicas=replicas))
    async with Publisher(nc, STREAM) as publisher:
        await publisher.publish("orders.first", b"first")
    await nc.close()


async def _write_and_act(
    url: str, seconds: float, size: int, acting: bool
) -> tuple[list[tuple[float, int, bytes]], list[Act]]:
    if not acting:
        return await _write(url, seconds, size), []
    written, acted = await asyncio.gather(_write(url, seconds, size), acts.act(url, time.time() + seconds))
    return written, acted


async def _write(url: str, seconds: float, size: int) -> list[tuple[float, int, bytes]]:
    """Publish with some messages on their way at any time; note each ack as it comes."""
    nc = await penstock.connect(url)
    acks: list[tuple[float, int, bytes]] = []
    end = time.time() + seconds

    async def one(worker: int) -> None:
        number = 0
        while time.time() < end:
            body = (b"%d:%d " % (worker, number)).ljust(size, b"x")
            ack = await publisher.publish(f"orders.{worker}", body)
            assert not ack.duplicate
            acks.append((time.time(), ack.sequence, body))
            number += 1

    async with Publisher(nc, STREAM) as publisher:
        await asyncio.gather(*(one(worker) for worker in range(8)))
    await nc.close()
    return acks


async def read_all(url: str) -> dict[int, bytes]:
    """Read what there is, with a client that shares nothing with ours."""
    client = await nats.connect(url.split(","))
    found: dict[int, bytes] = {}
    try:
        js: Any = client.jetstream()
        state = await _state(js)
        if state is None or not state.messages:
            return {}
        silent = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE, mem_storage=True, num_replicas=1)
        reader = await js.pull_subscribe("orders.>", stream=STREAM, config=silent)
        deadline = time.monotonic() + 30
        while len(found) < state.messages:
            try:
                for message in await reader.fetch(500, timeout=5):
                    found[message.metadata.sequence.stream] = message.data
            except TimeoutError:
                break  # it says that it holds more than it gives
            except nats.js.errors.ServiceUnavailableError:  # nobody leads the consumer yet
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
        return found
    finally:
        await client.close()


async def _state(js: Any) -> Any:
    """Ask for the state of the stream, for some time: a cluster elects a leader first. None if there is no stream."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return (await js.stream_info(STREAM)).state
        except nats.js.errors.NotFoundError:
            if time.monotonic() > deadline:
                return None
        except (nats.errors.Error, TimeoutError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)
