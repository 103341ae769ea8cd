"""Streams and checkpoints that are restored: together, apart, and by the API; as docs/operate/backup.md says."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import penstock
from penstock.connection import Connection
from penstock.jetstream import snapshot
from penstock.server import Server
from tests.spark.java import ROOT

PAGE = ROOT / "docs" / "operate" / "backup.md"
EACH_ONCE = list(range(30))


class World:
    """A server with a store of its own, the streams IN and OUT, and a query from the one into the other."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.store, self.checkpoint = folder / "store", folder / "checkpoint"
        self.server = Server(store=self.store, sync="2m").start()
        self.published = 0
        self.call(self._make)

    def call(self, work: Callable[[Connection], Any]) -> Any:
        """Do something with a connection."""

        async def go() -> Any:
            async with await penstock.connect(self.server.url) as nc:
                return await work(nc)

        return asyncio.run(go())

    async def _make(self, nc: Connection) -> None:
        js = nc.jetstream()
        await js.add_stream(name="IN", subjects=["in.>"])
        await js.add_stream(name="OUT", subjects=["out.>"])

    def publish(self, count: int) -> None:
        """Publish the next numbers."""

        async def work(nc: Connection) -> None:
            for number in range(self.published, self.published + count):
                await nc.jetstream().publish("in.x", b"%d" % number)

        self.call(work)
        self.published += count

    def run(self, checkpoint: Path | None = None, **options: str) -> None:
        """Write what there is from IN into OUT, exactly once."""
        source = self.spark.readStream.format("nats").option("url", self.server.url).option("stream", "IN")
        rows = source.options(**options).load().selectExpr("'out.x' AS subject", "data")
        sink = rows.writeStream.format("nats").option("url", self.server.url).option("stream", "OUT")
        sink = sink.option("prepare", "true").option("checkpointLocation", str(checkpoint or self.checkpoint))
        query = sink.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()

    def written(self) -> list[int]:
        """Give the numbers in OUT, sorted."""
        rows = self.spark.read.format("nats").option("url", self.server.url).option("stream", "OUT").load()
        return sorted(int(bytes(row.data)) for row in rows.collect())

    def copy(self, name: str) -> None:
        """Stop everything, and copy the store and the checkpoint, as the page says."""
        self.server.stop()
        shutil.copytree(self.store, self.folder / name / "store")
        shutil.copytree(self.checkpoint, self.folder / name / "checkpoint")
        self.server = Server(store=self.store, sync="2m").start()

    def put_back(self, store: str = "", checkpoint: str = "") -> None:
        """Put copies in the places of what is there."""
        self.server.stop()
        for name, place in ((store, self.store), (checkpoint, self.checkpoint)):
            if name:
                shutil.rmtree(place)
                shutil.copytree(self.folder / name / place.name, place)
        self.server = Server(store=self.store, sync="2m").start()


@pytest.fixture
def world(spark: Any, tmp_path: Path) -> Iterator[World]:
    """A server whose query has written twenty numbers."""
    world = World(spark, tmp_path)
    world.publish(20)
    world.run()
    yield world
    world.server.stop()


@pytest.mark.heavy
def test_copies_of_one_moment_go_on(world: World):
    """Store and checkpoint of one moment go on as if nothing had been; each row is there once."""
    world.copy("monday")
    world.publish(10)
    world.run()
    world.put_back("monday", "monday")
    world.run()
    assert world.written() == EACH_ONCE[:20]
    world.published = 20
    world.publish(10)
    world.run()
    assert world.written() == EACH_ONCE


@pytest.mark.heavy
def test_copies_of_two_moments_are_told(world: World):
    """An older store under a newer checkpoint, and the other way round: an error, and nothing is written."""
    world.copy("monday")
    for _ in range(2):
        world.publish(5)
        world.run()
    world.copy("tuesday")
    world.put_back(store="monday")
    with pytest.raises(StreamingQueryException, match="ends with 20, before 31, where this query is"):
        world.run()
    assert world.written() == EACH_ONCE[:20]
    world.put_back("tuesday", "monday")
    with pytest.raises(StreamingQueryException, match=r"MarkerError.*batch 2.*batch 1"):
        world.run()
    assert world.written() == EACH_ONCE


def test_the_page_on_streams_restored_by_the_api(world: World):
    """A stream that the API restored is another one to its query; a new checkpoint at the old place goes on."""

    async def back_up(nc: Connection) -> None:
        for name in ("IN", "OUT"):
            await snapshot.backup(nc, name, world.folder / name)

    async def restore(nc: Connection) -> None:
        for name in ("IN", "OUT"):
            await nc.jetstream().delete_stream(name)
            await snapshot.restore(nc, world.folder / name)

    world.call(back_up)
    world.call(restore)
    world.publish(10)
    with pytest.raises(StreamingQueryException, match="IN was deleted and made again at"):
        world.run()
    assert world.written() == EACH_ONCE[:20]
    names = {"spark": world.spark, "url": world.server.url, "folder": str(world.folder)}
    programs = re.findall(r"```python spark\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 2
    for number, program in enumerate(programs, 1):
        exec(compile(program, f"{PAGE.name}:{number}", "exec"), names)
    assert world.written() == EACH_ONCE
    world.call(restore)
    world.run(failOnDataLoss="false")
    assert world.written() == sorted(EACH_ONCE[:20] * 2), "the other way on reads everything once more"
