"""The sink of objects while its server is killed, without Spark: what it leaves, and what the server brings back."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

import penstock
from penstock.buckets import ObjectStore, object_orphans
from penstock.errors import PenstockError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.connections import TaskConnection
from tests.live.objecting import ObjectWriter, chunk_counts, make_objects, objects

NAMES = 60


class Killer(threading.Thread):
    """Kills a server again and again, and notes chunks that it has again although they were purged before."""

    def __init__(self, server: Server, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.server, self.dice, self.over = server, dice, threading.Event()
        self.kills, self.revived = 0, set[str]()

    def run(self) -> None:
        node = self.server.nodes[0]
        while not self.over.wait(self.dice.uniform(0.5, 3.0)):
            last, before = self._state()
            node.kill()
            node.start()
            self.kills += 1
            again = self._state()[1] - before
            with connection(self.server.url) as bulk:
                for nuid in again:
                    found = bulk.last("OBJ_D", f"$O.D.C.{nuid}")
                    if found is not None and found.sequence <= last:
                        self.revived.add(nuid)

    def _state(self) -> tuple[int, set[str]]:
        with connection(self.server.url) as bulk:
            return bulk.api("STREAM.INFO.OBJ_D")["state"]["last_seq"], set(chunk_counts(bulk, "D"))


def connection(url: str) -> TaskConnection:
    return TaskConnection(ConnectionOptions(url, connect_timeout=60, request_timeout=30))


async def sweep(url: str) -> None:
    nc = await penstock.connect(url)
    try:
        await ObjectStore(nc, "D").purge_orphans(0.0)
    finally:
        await nc.close()


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every object is whole and new; what chunks there are beside are those that the server brought back, and go."""
    monkeypatch.setattr(object_orphans, "YOUNGEST", 0.0)
    dice = random.Random(1)
    with Server(sync="2m", start_timeout=300) as server:
        with connection(server.url) as bulk:
            make_objects(bulk, "D")
        killer = Killer(server, dice)
        killer.start()
        docs = ObjectWriter(server.url, "D", atomic_bytes=64 * 1024, patience=60.0)
        wanted: dict[str, bytes] = {}
        began, batch = time.monotonic(), 0
        try:
            while time.monotonic() - began < 120:
                sizes = (0, 10, 3_000, 50_000, 400_000)
                numbers = range(40 * batch, 40 * batch + 40)
                rows = [(str(number % NAMES), dice.randbytes(dice.choice(sizes))) for number in numbers]
                wanted |= dict(rows)
                run = 0
                while True:
                    try:
                        docs.whole_batch([rows[:15], rows[15:]], batch=batch, run=f"{batch}-{run}")
                        break
                    except PenstockError:
                        run += 1  # as a query that is started again
                batch += 1
        finally:
            killer.over.set()
            killer.join(60)
        assert killer.kills
        found = objects(server.url, "D")
        assert {name: content for name, (content, _) in found.items()} == wanted
        described = {info.nuid: info.chunks for _, info in found.values() if info.chunks}
        with connection(server.url) as bulk:
            there = chunk_counts(bulk, "D")
            assert {nuid: count for nuid, count in there.items() if nuid not in killer.revived} == described
            asyncio.run(sweep(server.url))
            assert chunk_counts(bulk, "D") == described
    print(f"{killer.kills} kills, {batch} batches, {len(killer.revived)} purges lost by the server")
