"""Chunks that no object has: found and removed, and nothing that anybody still needs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.buckets import ObjectStore, object_orphans
from penstock.buckets.object_wire import description_subject
from penstock.connection import Connection
from penstock.errors import InputError, JetStreamError, RemoteProtocolError
from penstock.jetstream import assets
from penstock.server import Server

CHUNK = 1000
DATA = os.urandom(10 * CHUNK)
KILLED = """
import asyncio, sys
import penstock
from penstock.buckets import ObjectStore

async def endless():
    while True:
        yield bytes(1000)

async def main():
    nc = await penstock.connect(sys.argv[1])
    await (await ObjectStore.open(nc, sys.argv[2])).put("x", endless(), chunk_size=1000)

asyncio.run(main())
"""


@pytest.fixture
async def store(nc: Connection, unique: Callable[..., str]) -> ObjectStore:
    """A bucket of its own, with an object."""
    made = await ObjectStore.create_bucket(nc, unique("B"), storage="memory")
    await made.put("x", DATA, chunk_size=CHUNK)
    return made


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chunks of any age be orphans: nobody waits a minute here."""
    monkeypatch.setattr(object_orphans, "YOUNGEST", 0.0)


async def held(store: ObjectStore, nc: Connection) -> dict[str, int]:
    found = await assets.stream_subjects_held(nc, store.stream, f"$O.{store.bucket}.C.>")
    return {subject.rpartition(".")[2]: count for subject, count in found.items()}


@pytest.mark.usefixtures("at_once")
async def test_what_a_killed_program_left(server: Server, store: ObjectStore, nc: Connection) -> None:
    """A put that was killed leaves chunks: they are found, counted and removed, and the object stays as it was."""
    before = await held(store, nc)
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, server.url, store.bucket)
    try:
        async with asyncio.timeout(60):
            while sum((await held(store, nc)).values()) < 500:
                await asyncio.sleep(0.05)
    finally:
        writer.send_signal(signal.SIGKILL)
        await writer.wait()
    while (left := await held(store, nc)) != await held(store, nc):
        await asyncio.sleep(0.1)  # what it had sent is still being stored
    found = await store.orphans(0.0)
    assert {orphan.nuid: orphan.chunks for orphan in found} == {k: v for k, v in left.items() if k not in before}
    assert found[0].size == 1000 * found[0].chunks
    assert not await store.orphans(3600.0)  # they are younger than that
    assert await store.purge_orphans(0.0) == found
    assert await held(store, nc) == before
    assert await store.fetch("x") == DATA


@pytest.mark.usefixtures("at_once")
async def test_what_a_delete_and_a_replacement_left(store: ObjectStore, nc: Connection) -> None:
    """Whoever was killed behind a description, and before the purge, left chunks as well."""
    info = await store.info("x")
    subject = description_subject(store.bucket, "x")
    await nc.jetstream().publish(subject, info.changed(deleted=True).encode(), headers={"Nats-Rollup": "sub"})
    assert [orphan.nuid for orphan in await store.purge_orphans(0.0)] == [info.nuid]
    assert await held(store, nc) == {}


@pytest.mark.usefixtures("at_once")
async def test_a_put_that_goes_on_fails_and_tears_nothing(store: ObjectStore, nc: Connection) -> None:
    """A put that looked given up, and whose chunks are gone, is an error; the object that was there is whole."""
    gone = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(2 * 1024 * 1024)
        async with asyncio.timeout(30):
            while not await store.purge_orphans(0.0):  # what is still being stored is too young
                await asyncio.sleep(0.02)
        gone.set()
        yield bytes(1000)

    with pytest.raises(JetStreamError, match="a limit or a purge took some"):
        await store.put("x", slow(), chunk_size=CHUNK)
    assert gone.is_set()
    assert await store.fetch("x") == DATA
    assert len(await held(store, nc)) == 1


@pytest.mark.usefixtures("at_once")
async def test_an_object_that_is_renamed_all_the_time_is_no_orphan(store: ObjectStore) -> None:
    """Its chunks are described under one name or the other, also for somebody who looks at a bad moment."""
    over = asyncio.Event()

    async def rename() -> int:
        times = 0
        while not over.is_set():
            await store.rename("x", "y")
            await store.rename("y", "x")
            times += 1
        return times

    renaming = asyncio.ensure_future(rename())
    try:
        for _ in range(20):
            assert not await store.purge_orphans(0.0)
    finally:
        over.set()
        times = await renaming
    assert times
    assert await store.fetch("x") == DATA


@pytest.mark.usefixtures("at_once")
async def test_a_description_that_cannot_be_read_stops_it(store: ObjectStore, nc: Connection) -> None:
    """Nobody knows which chunks it has: none are removed."""
    await nc.jetstream().publish(description_subject(store.bucket, "x"), b"{", headers={"Nats-Rollup": "sub"})
    with pytest.raises(RemoteProtocolError):
        await store.purge_orphans(0.0)
    assert list((await held(store, nc)).values()) == [10]


async def test_an_age_that_is_too_young_is_refused(store: ObjectStore) -> None:
    """A put that is under way has chunks of no object, too."""
    with pytest.raises(InputError, match="under way"):
        await store.purge_orphans("5s")
