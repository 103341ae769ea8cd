"""Damaged files: what a real server makes of them, and what Penstock tells.

What Jepsen reported of nats-server 2.12.1 is tried here: single bits and truncations in the blocks of a minority, and
in the snapshots of the cluster's own state, with every write synced.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats

import penstock
from penstock.errors import PenstockError
from penstock.jetstream import Publisher
from penstock.jetstream import assets as streams
from penstock.model import Stream
from penstock.store import open_store
from penstock.wire.bulk import BulkConnection
from tests.durability.power import STREAM, read_all

__all__ = ["KINDS", "Damaged", "blocks", "damage_cluster", "damage_one", "fill", "flip"]

MOST_BYTES = 2_000_000  # of the stream, of which a block has a quarter: a few thousand messages have several
Files = list[Path]


def flip(files: Files, chance: random.Random) -> None:
    """Change one bit in the middle of each file but the last."""
    for path in files[:-1] or files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2 + chance.randrange(50)] ^= 1 << chance.randrange(8)
        path.write_bytes(content)


def flip_one(files: Files, chance: random.Random) -> None:
    """Change one bit of one file in the middle."""
    flip([files[len(files) // 2]], chance)


def cut(files: Files, chance: random.Random) -> None:
    """Cut one file in the middle to half of its size."""
    path = files[len(files) // 2]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_last(files: Files, chance: random.Random) -> None:
    """Cut the last file to half of its size."""
    path = files[-1]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(files: Files, chance: random.Random) -> None:
    """Remove one file in the middle."""
    files[len(files) // 2].unlink()


def zero(files: Files, chance: random.Random) -> None:
    """Fill one file in the middle with zeros."""
    path = files[len(files) // 2]
    path.write_bytes(bytes(path.stat().st_size))


KINDS: dict[str, Callable[[Files, random.Random], None]] = {
    "one bit in one block": flip_one,
    "one bit in each block": flip,
    "a block cut in half": cut,
    "the last block cut in half": cut_last,
    "a block removed": remove,
    "a block of zeros": zero,
}


@dataclass(frozen=True)
class Damaged:
    """What became of messages when files were damaged."""

    kind: str
    acked: int
    held: int
    """How many messages the server holds afterwards, as a client that is not ours reads them."""
    wrong: int
    """Messages that came with other bytes."""
    start: str
    """What Penstock's server said when it was started: refused, told, or nothing."""
    store: str
    """What reading the files said, before the start."""
    read: str
    """What reading through the server said afterwards: the error, or the number of rows."""

    @property
    def lost(self) -> int:
        """Messages that were acknowledged and are gone."""
        return self.acked - self.held


def blocks(store: Path) -> Files:
    """Give the blocks of the stream, in order."""
    return sorted(store.glob(f"jetstream/*/streams/{STREAM}/msgs/*.blk"), key=lambda path: int(path.stem))


def damage_one(kind: str, *, running: bool = False, index: bool = True, count: int = 3000, seed: int = 1) -> Damaged:
    """Damage the store of a server alone: while it is stopped, or while it runs and reads on.

    `index` False removes the index, as after a kill: the server looks through all blocks then.
    """
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="damage-", ignore_cleanup_errors=True) as name:
        store = Path(name) / "store"
        with penstock.Server(store=store) as server:
            acked = asyncio.run(fill(server.url, 1, count))
            if running:
                KINDS[kind](blocks(store), chance)
                held = asyncio.run(read_all(server.url))
                return _counted(kind, acked, held, "it runs", "", _bulk(server.url))
        KINDS[kind](blocks(store), chance)
        if not index:
            for path in store.glob(f"jetstream/*/streams/{STREAM}/msgs/index.db"):
                path.unlink()
        told = _read_store(store)
        start = "nothing"
        try:
            penstock.Server(store=store).start().stop()
        except PenstockError as error:
            start = f"refused: {error.what}"
        with penstock.Server(store=store, on_loss="tell") as server:
            if start == "nothing" and server.losses:
                start = f"told: {server.losses[0].text}"
            held = asyncio.run(read_all(server.url))
            return _counted(kind, acked, held, start, told, _bulk(server.url))


def damage_cluster(kind: str, *, snapshots: bool = False, count: int = 3000, seed: int = 1) -> Damaged:
    """Damage the files of one node of three, let it lead, and read."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="damage-", ignore_cleanup_errors=True) as name:
        store = Path(name) / "store"
        with penstock.Server(nodes=3, store=store, on_loss="tell") as server:
            acked = asyncio.run(fill(server.url, 3, count))
            victim = server.nodes[0]
            victim.stop()
            files = blocks(victim.store)
            if snapshots:
                files = sorted(victim.store.glob("jetstream/$SYS/_js_/*/snapshots/*"))
            if not files:
                return Damaged(kind, len(acked), -1, 0, "there are no such files", "", "")
            KINDS[kind](files, chance)
            told = _read_store(victim.store)
            try:
                victim.start()
            except PenstockError as error:
                held = asyncio.run(read_all(",".join(node.url for node in server.nodes[1:])))
                return _counted(kind, acked, held, f"it does not start: {error.what[:160]}", told, "")
            start = next((loss.text for loss in server.losses), "nothing")
            asyncio.run(_let_lead(server.url, victim.name))
            held = asyncio.run(read_all(server.url))
            return _counted(kind, acked, held, start, told, _bulk(server.url))


def _counted(kind: str, acked: dict[int, bytes], held: dict[int, bytes], start: str, store: str, read: str) -> Damaged:
    right = sum(held.get(sequence) == body for sequence, body in acked.items())
    wrong = sum(sequence in held and held[sequence] != body for sequence, body in acked.items())
    return Damaged(kind, len(acked), right, wrong, start, store, read)


def _read_store(store: Path) -> str:
    """Read the files without a server: the rows, or the error."""
    rows = 0
    try:
        for batch in open_store(store, STREAM).batches():
            rows += batch.num_rows
    except PenstockError as error:
        return f"{type(error).__name__} after {rows} rows"
    return f"{rows} rows"


def _bulk(url: str) -> str:
    """Read through the server with our own reader: the rows, or the error."""
    rows = 0
    bulk = BulkConnection(penstock.ConnectionOptions(url))
    try:
        for batch in bulk.read(STREAM, timeout=10.0):
            rows += batch.num_rows
    except PenstockError as error:
        return f"{type(error).__name__} after {rows} rows"
    finally:
        bulk.close()
    return f"{rows} rows"


async def fill(url: str, replicas: int, count: int) -> dict[int, bytes]:
    nc = await penstock.connect(url)
    wished = Stream(name=STREAM, subjects=["orders.>"], num_replicas=replicas, max_bytes=MOST_BYTES)
    await streams.add_stream(nc, wished)
    found: dict[int, bytes] = {}
    semaphore = asyncio.Semaphore(200)

    async def one(number: int) -> None:
        async with semaphore:
            body = (b"%d " % number).ljust(400, b"y")
            found[(await publisher.publish(f"orders.{number % 10}", body)).sequence] = body

    async with Publisher(nc, STREAM) as publisher:
        await asyncio.gather(*(one(number) for number in range(count)))
    await nc.close()
    return found


async def _let_lead(url: str, name: str) -> None:
    """Make a node the leader of the stream, as far as the cluster lets it."""
    client = await nats.connect(url.split(","))
    js: Any = client.jetstream()
    deadline = time.monotonic() + 30
    body = json.dumps({"placement": {"preferred": name}}).encode()
    try:
        while time.monotonic() < deadline:
            with suppress(nats.errors.Error, TimeoutError):
                info = await js.stream_info(STREAM)
                if info.cluster is not None and info.cluster.leader == name:
                    return
                await client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}", body, timeout=2)
            await asyncio.sleep(0.5)
    finally:
        await client.close()
