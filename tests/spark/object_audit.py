"""The audit of the sink of objects: objects that are replaced all the time, by a query that is killed all the time.

    python -m tests.spark.object_audit --kills 30 --seed 7

Each number becomes an object; its bytes follow from the number, and many numbers share a name, so that the object of a
later batch replaces that of an earlier one. A reader reads them all the time. Lost is a name that does not hold its
last number in the end, and an object that was torn, for the reader or in the end: other bytes than its description
says. Repeated is a number that came back after a newer one of its name was seen, and what is in the bucket twice:
chunks that no object has. A server that is killed may have chunks again which were purged; those are told and swept,
and only what is left after that counts.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest import mock

import penstock
from penstock.buckets import ObjectStore, object_orphans
from penstock.buckets.object_status import object_stream
from penstock.buckets.object_wire import chunk_subject, chunk_subjects
from penstock.errors import NotFoundError, PenstockError
from penstock.spark.connections import TaskConnection
from penstock.spark.sink_options import SinkOptions
from tests.spark.audit import KINDS, Audit, Result, audit_in_rounds
from tests.spark.audit_job import content_of
from tests.spark.java import set_up_java

NAMES = 150
ROWS = 300  # objects that wait to be stored; a batch has no more than there are names


@dataclass
class Found:
    """What somebody who read objects has seen."""

    newest: dict[str, int] = field(default_factory=dict)
    read: int = 0
    torn: int = 0
    old: int = 0

    def note(self, name: str, number: int, content: bytes | None) -> None:
        """Take down an object: the number that its description says, and its bytes; None for torn ones."""
        self.read += 1
        if content != content_of(number) or number % NAMES != int(name):
            self.torn += 1
        if number < self.newest.get(name, -1):
            self.old += 1
        self.newest[name] = max(number, self.newest.get(name, -1))

    def lost(self, sent: int) -> int:
        """Count names that do not hold the last number of theirs."""
        last = {str(number % NAMES): number for number in range(sent)}
        return sum(1 for name, number in last.items() if self.newest.get(name) != number)


def left_over(described: dict[str, int], chunks: dict[str, int]) -> int:
    """Count chunks, by their ids, that are not those of the objects: more, or fewer, or of none."""
    ids = described.keys() | chunks.keys()
    return sum(abs(described.get(nuid, 0) - chunks.get(nuid, 0)) for nuid in ids)


class Reader(threading.Thread):
    """Reads objects all the time, as somebody who does not know the query."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.over, self.found = url, threading.Event(), Found()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                asyncio.run(self._read())
            except PenstockError:
                self.over.wait(0.1)  # the node is down: that is the test

    async def _read(self) -> None:
        nc = await penstock.connect(self.url)
        try:
            store = ObjectStore(nc, "OUT")
            while not self.over.is_set():
                await asyncio.sleep(0.01)
                name = str(random.randrange(NAMES))
                try:
                    async with store.get(name) as stored:
                        number, content = int(stored.info.description), await stored.read()
                except NotFoundError:
                    continue  # not yet
                except penstock.AssemblyError as error:
                    if (now := await store.info(name)).nuid != error.message_id:
                        continue  # it was replaced, and that was told
                    number, content = int(now.description), None
                self.found.note(name, number, content)
        finally:
            await nc.close()

    def stop(self) -> None:
        self.over.set()
        self.join(60)


class ObjectAudit(Audit):
    """One audited run of objects into a bucket."""

    out = "OBJ_OUT"
    config: ClassVar[dict[str, Any]] = {**object_stream("OUT").to_json(), "duplicate_window": 10**9}
    sink = SinkOptions(objects="OUT", prepare=True)

    def __init__(self, **given: Any) -> None:
        dice = random.Random(given.get("seed", 1))
        own = {
            "objects": "OUT",
            "keys": NAMES,
            "batch": dice.choice([20, 60, NAMES]),
            "atomic_bytes": dice.choice(["64k", "256k", "8m"]),
        }
        settings = {**own, **(given.pop("settings", None) or {})}
        super().__init__(settings=settings, **{"rows": ROWS, **given})
        self.config = {**self.config, "num_replicas": self.nodes}
        self.reads = Found()
        self.revived: set[str] = set()

    def _kill_nats(self) -> bool:
        """Kill a node, and note which chunks the server has again that were purged before."""
        last, before = self._last_sequence(), self._chunks()
        hit = super()._kill_nats()
        for nuid in self._chunks().keys() - before.keys():
            if self._last_chunk(nuid) <= last:
                self.revived.add(nuid)
                self.say(f"the server has chunks of {nuid} again, which were purged")
        return hit

    def _chunks(self) -> dict[str, int]:
        asked = {"subjects_filter": chunk_subjects("OUT")}
        found = self._api(f"STREAM.INFO.{self.out}", asked)["state"].get("subjects") or {}
        return {subject.rpartition(".")[2]: count for subject, count in found.items()}

    def _last_chunk(self, nuid: str) -> int:
        with self._connect() as bulk:
            found = bulk.last(self.out, chunk_subject("OUT", nuid))
        return sys.maxsize if found is None else found.sequence  # it may be gone again

    def _audit(self) -> None:
        reader = Reader(self.server.url)
        reader.start()
        try:
            super()._audit()
        finally:
            reader.stop()
            self.reads = reader.found
            self.say(f"{self.reads.read} reads beside, {self.reads.torn} torn, {self.reads.old} old")

    def _count(self, bulk: TaskConnection) -> tuple[int, int]:
        found, described = asyncio.run(self._everything())
        chunks = self._chunks()
        for nuid in chunks.keys() - described.keys():
            self.say(f"{chunks[nuid]} chunks of {nuid}, which no object has, up to {self._last_chunk(nuid)}")
        # What the server lost of a purge when it was killed is not the query's doing, and can be swept.
        extra = left_over(described, {nuid: count for nuid, count in chunks.items() if nuid not in self.revived})
        asyncio.run(self._sweep())
        extra += left_over(described, self._chunks())
        return found.lost(self.sent) + found.torn + self.reads.torn, self.reads.old + extra

    async def _sweep(self) -> None:
        nc = await penstock.connect(self.server.url)
        try:
            with mock.patch.object(object_orphans, "YOUNGEST", 0.0):
                await ObjectStore(nc, "OUT").purge_orphans(0.0)
        finally:
            await nc.close()

    async def _everything(self) -> tuple[Found, dict[str, int]]:
        """Read all objects, and give how many chunks each should have, by their ids."""
        found, described = Found(), dict[str, int]()
        nc = await penstock.connect(self.server.url)
        try:
            store = await ObjectStore.open(nc, "OUT")
            for info in await store.list():
                described[info.nuid] = info.chunks
                try:
                    content = await store.fetch(info.name)
                except penstock.AssemblyError:
                    content = None
                found.note(info.name, int(info.description), content)
        finally:
            await nc.close()
        return found, described

    def _stored(self) -> int:
        """Give about how many numbers are stored: the newest one, and those before it."""
        while True:
            try:
                found = asyncio.run(self._described())
                return max(found, default=-1) + 1
            except PenstockError:
                continue  # a node was killed while it was read

    async def _described(self) -> list[int]:
        nc = await penstock.connect(self.server.url)
        try:
            return [int(info.description) for info in await ObjectStore(nc, "OUT").list()]
        finally:
            await nc.close()


def main() -> None:
    """Run an audit from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--round", type=int, default=15, help="how many kills before the objects are looked at")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next one has the next number")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kills, separated by commas")
    given = parser.parse_args()
    set_up_java()
    result: Result = audit_in_rounds(
        given.kills,
        given.round,
        given.seed,
        kind=ObjectAudit,
        nodes=given.nodes,
        kinds=tuple(given.kinds.split(",")),
        say=lambda text: print(text, flush=True),
    )
    print(result)
    sys.exit(0 if result.clean else 1)


if __name__ == "__main__":
    main()
