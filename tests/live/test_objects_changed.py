"""Objects in a world that changes: chunks that are gone, changed or foreign, broken links, full and denied buckets."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable

import pytest

import penstock
from penstock.buckets import ObjectInfo, ObjectStore
from penstock.buckets.object_wire import chunk_subject, description_subject
from penstock.chunks import Reason
from penstock.connection import Connection, connect
from penstock.errors import (
    AssemblyError,
    DeniedError,
    DisconnectedError,
    InputError,
    JetStreamError,
    NoRespondersError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.jetstream import assets
from penstock.model import StreamSource, SubjectTransform
from penstock.server import Server
from tests.live.cable import relay

CHUNK = 1000
DATA = os.urandom(10 * CHUNK)
LARGE = os.urandom(12 * 1024 * 1024)


@pytest.fixture
async def store(nc: Connection, unique: Callable[..., str]) -> ObjectStore:
    """A bucket of its own, with an object."""
    made = await ObjectStore.create_bucket(nc, unique("B"), storage="memory")
    await made.put("x", DATA, chunk_size=CHUNK)
    return made


async def chunks(store: ObjectStore, nc: Connection) -> dict[str, int]:
    """Give how many chunks the bucket has of each write."""
    return await assets.stream_subjects_held(nc, store.stream, f"$O.{store.bucket}.C.>")


async def broken(store: ObjectStore, reason: Reason, match: str) -> None:
    """See to it that an object cannot be read, whole or in pieces, and why."""
    with pytest.raises(AssemblyError, match=match) as caught:
        await store.fetch("x")
    assert caught.value.reason == reason


async def test_a_chunk_that_is_gone(store: ObjectStore, nc: Connection) -> None:
    """A chunk that was deleted, at the end or in the middle, ends the reading with an error."""
    info = await store.info("x")
    await nc.jetstream().delete_msg(store.stream, 10)
    await broken(store, Reason.MISSING, "9 of its 10 chunks")
    await nc.jetstream().purge_stream(store.stream, subject=chunk_subject(store.bucket, info.nuid))
    await broken(store, Reason.MISSING, "0 of its 10 chunks")
    await store.put("x", b"again")
    assert await store.fetch("x") == b"again"


async def test_a_chunk_that_was_changed(store: ObjectStore, nc: Connection) -> None:
    """The same number of bytes, and other ones, do not have the digest."""
    info = await store.info("x")
    await nc.jetstream().delete_msg(store.stream, 10)
    await nc.jetstream().publish(chunk_subject(store.bucket, info.nuid), os.urandom(CHUNK))
    await broken(store, Reason.DIGEST, "another digest")
    async with store.get("x", verify=False) as stored:
        assert len(await stored.read()) == len(DATA)


@pytest.mark.parametrize("foreign", [b"", b"foreign"])
async def test_a_foreign_chunk(store: ObjectStore, nc: Connection, foreign: bytes) -> None:
    """A chunk behind the last one is nobody's, also an empty one."""
    await nc.jetstream().publish(chunk_subject(store.bucket, (await store.info("x")).nuid), foreign)
    await broken(store, Reason.CONFLICT, "more in its chunks")


async def test_a_description_that_does_not_fit(store: ObjectStore, nc: Connection) -> None:
    """Sizes, counts and digests that somebody wrote wrongly are told, never believed."""
    info = await store.info("x")
    subject, js = description_subject(store.bucket, "x"), nc.jetstream()
    for fields, reason in (
        ({"size": 9_999}, Reason.CONFLICT),
        ({"size": 10_001}, Reason.INCONSISTENT),
        ({"chunks": 9}, Reason.CONFLICT),
        ({"chunks": 11}, Reason.MISSING),
        ({"chunks": 0}, Reason.CONFLICT),
        ({"size": 2**63, "chunks": 2**31}, Reason.MISSING),
        ({"digest": None}, Reason.DIGEST),
        ({"digest": "MD5=abcd"}, Reason.DIGEST),
    ):
        await js.publish(subject, info.changed(**fields).encode(), headers={"Nats-Rollup": "sub"})
        await broken(store, reason, "Object 'x'")
    for wrong, match in ((b"{", "cannot be read"), (b"[]", "cannot be read"), (b'{"name":"y","bucket":"b"}', "'y'")):
        await js.publish(subject, wrong, headers={"Nats-Rollup": "sub"})
        for reading in (store.info("x"), store.fetch("x"), store.list()):
            with pytest.raises(RemoteProtocolError, match=match):
                await reading
    await js.publish(subject, info.changed(nuid="a.>").encode(), headers={"Nats-Rollup": "sub"})
    with pytest.raises(RemoteProtocolError, match="where its bytes are"):
        await store.fetch("x")
    await js.publish(subject, b"{", headers={"Nats-Rollup": "sub"})
    await store.delete("x")  # also what nobody can read
    assert await store.list() == []
    await js.publish(f"$O.{store.bucket}.M.!", info.encode())
    with pytest.raises(RemoteProtocolError, match="subject of any object"):
        await store.list()


async def test_an_object_that_is_replaced_while_it_is_read(store: ObjectStore) -> None:
    """A reader in pieces is told; one that wants all of it gets one version or the other."""
    await store.put("x", LARGE)
    async with store.get("x") as stored:
        await stored.read(1)
        await store.put("x", DATA)
        with pytest.raises(AssemblyError, match="replaced or deleted while") as caught:
            await stored.read()
        assert caught.value.reason == Reason.MISSING

    versions = [os.urandom(300_000) for _ in range(4)]
    await store.put("x", versions[0])

    async def write() -> None:
        for version in versions * 3:
            await store.put("x", version, chunk_size=CHUNK * 10)

    writing = asyncio.ensure_future(write())
    read = 0
    while not writing.done():
        assert await store.fetch("x") in versions
        read += 1
    await writing
    assert read > 3


async def test_a_put_that_is_cancelled_leaves_nothing(store: ObjectStore, nc: Connection) -> None:
    """The object that was there stays, and the chunks of the other one are gone."""
    before = await chunks(store, nc)
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield LARGE[:100_000]
            begun.set()
            await asyncio.sleep(0)

    putting = asyncio.ensure_future(store.put("x", endless()))
    await begun.wait()
    while await chunks(store, nc) == before:
        await asyncio.sleep(0.01)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await chunks(store, nc) == before
    assert await store.fetch("x") == DATA


async def test_a_source_that_fails_leaves_nothing(store: ObjectStore, nc: Connection) -> None:
    """What a source raises ends the put, and nothing of it is stored."""
    before = await chunks(store, nc)

    def failing() -> AsyncIterator[bytes]:
        yield LARGE[: 3 * 1024 * 1024]
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        await store.put("x", failing())
    with pytest.raises(InputError, match="instead of bytes"):
        await store.put("x", [LARGE, "text"])
    assert await chunks(store, nc) == before
    assert await store.fetch("x") == DATA


async def test_a_bucket_that_is_full(nc: Connection, unique: Callable[..., str]) -> None:
    """What does not fit is refused by the server, told, and taken back."""
    store = await ObjectStore.create_bucket(nc, unique("B"), storage="memory", max_bytes=2_000_000)
    await store.put("x", LARGE[:1_000_000])
    with pytest.raises(JetStreamError, match="maximum bytes"):
        await store.put("x", LARGE[:1_500_000])
    with pytest.raises(JetStreamError, match="maximum bytes"):
        await store.put("y", LARGE)
    assert sum((await chunks(store, nc)).values()) == 8
    assert await store.fetch("x") == LARGE[:1_000_000]


async def test_a_connection_that_breaks_while_an_object_is_put(
    server: Server, store: ObjectStore, nc: Connection
) -> None:
    """From what can be read again it is put anew; from what cannot it is an error, and nothing is left."""
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.02) as far:
        there = ObjectStore(far, store.bucket)
        wire.cut_up_at = wire.up + 5_000_000
        await there.put("y", LARGE)
        assert wire.cuts == 1
        assert await store.fetch("y") == LARGE
        wire.cut_up_at = wire.up + 5_000_000
        with pytest.raises(DisconnectedError):
            await there.put("y", iter([LARGE]))
        assert wire.cuts == 2
        assert await store.fetch("y") == LARGE
        assert len(await chunks(store, nc)) == 2


async def test_a_connection_that_breaks_while_an_object_is_read(server: Server, store: ObjectStore) -> None:
    """Reading goes on behind the last chunk that came."""
    await store.put("y", LARGE)
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.02) as far:
        wire.cut_down_at = wire.down + 5_000_000
        assert await ObjectStore(far, store.bucket).fetch("y") == LARGE
        assert wire.cuts == 1


async def test_a_description_whose_ack_is_lost(server: Server, store: ObjectStore, nc: Connection) -> None:
    """It is stored once, and known to be ours: the put succeeds, and the chunks that it replaced are gone."""
    described = await nc.subscribe(f"$O.{store.bucket}.M.>")
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.02) as far:
        wire.delay = 0.1
        putting = asyncio.ensure_future(ObjectStore(far, store.bucket).put("x", b"other"))
        await described.next_msg(timeout=30)
        wire.cut()  # the ack is on its way
        wire.delay = 0.0
        put = await putting
        assert wire.cuts == 1
    assert described.pending_msgs == 1  # it was tried again, and refused
    assert put.sequence == (await store.info("x")).sequence
    assert await store.fetch("x") == b"other"
    assert list(await chunks(store, nc)) == [chunk_subject(store.bucket, put.nuid)]


async def test_a_watch_goes_on_over_a_lost_connection(server: Server, store: ObjectStore) -> None:
    """What was put while the connection was away comes when it is back; a bucket that is made anew is told."""
    async with relay(server) as wire, await connect(wire.url, reconnect_wait=0.02) as far:
        there = ObjectStore(far, store.bucket)
        async with there.watch() as watch:
            assert (await anext(watch)).name == "x"
            wire.refuse = True
            wire.cut()
            await store.put("y", b"1")
            await store.delete("x")
            wire.refuse = False
            assert [((await anext(watch)).name) for _ in range(2)] == ["y", "x"]
            await ObjectStore.delete_bucket(store._nc, store.bucket)
            await ObjectStore.create_bucket(store._nc, store.bucket, storage="memory")
            with pytest.raises(NotFoundError):
                await asyncio.wait_for(anext(watch), 20)


async def test_a_bucket_without_direct_get(store: ObjectStore, nc: Connection) -> None:
    """Old buckets, and those of other tools, are read from their leader."""
    config = (await assets.stream_info(nc, store.stream)).config
    await assets.edit_stream(nc, config.changed(allow_direct=False))
    assert await store.fetch("x") == DATA
    assert [info.name for info in await store.list()] == ["x"]
    await nc.jetstream().publish(chunk_subject(store.bucket, (await store.info("x")).nuid), b"")
    await broken(store, Reason.CONFLICT, "more in its chunks")


async def test_a_mirror_of_a_bucket(store: ObjectStore, nc: Connection, unique: Callable[..., str]) -> None:
    """It is read under its own name, and takes nothing; what it lacks is not missed in the bucket itself."""
    name = unique("B")
    await nc.jetstream().add_stream(
        penstock.Stream(name=f"OBJ_{name}", mirror=StreamSource(name=store.stream), storage="memory")
    )
    mirror = await ObjectStore.open(nc, name)
    while (await mirror.status()).stream.messages < 11:
        await asyncio.sleep(0.01)
    assert await mirror.fetch("x") == DATA
    assert [info.bucket for info in await mirror.list()] == [name]
    with pytest.raises(InputError, match=f"mirrors {store.bucket}"):
        await mirror.put("y", b"")
    # It answers direct gets for the bucket that it copies.
    await nc.jetstream().purge_stream(mirror.stream, subject=f"$O.{store.bucket}.C.>")
    for _ in range(20):
        assert await store.fetch("x") == DATA


async def test_a_stream_that_takes_chunks_elsewhere(nc: Connection, unique: Callable[..., str]) -> None:
    """A bucket whose chunks another stream takes is told at the first ack."""
    name = unique("B")
    await nc.jetstream().add_stream(
        penstock.Stream(name=f"OBJ_{name}", subjects=[f"$O.{name}.M.>"], allow_rollup_hdrs=True, storage="memory")
    )
    await nc.jetstream().add_stream(penstock.Stream(name=f"{name}_2", subjects=[f"$O.{name}.C.>"], storage="memory"))
    with pytest.raises(JetStreamError, match=f"Stream {name}_2 stored the message"):
        await ObjectStore(nc, name).put("x", b"1")
    assert await ObjectStore(nc, name).list() == []


async def test_a_bucket_that_is_replaced_while_an_object_is_put(store: ObjectStore, nc: Connection) -> None:
    """Another bucket of the name takes no half of an object: the put is told, and nothing is described there."""
    replaced = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield LARGE
        await ObjectStore.delete_bucket(nc, store.bucket)
        await ObjectStore.create_bucket(nc, store.bucket, storage="memory")
        replaced.set()
        yield LARGE

    with pytest.raises(PenstockError):
        await store.put("y", pieces())
    assert replaced.is_set()
    assert await store.list(deleted=True) == []
    assert await chunks(store, nc) == {}


async def test_a_writer_that_is_killed_leaves_whole_objects(server: Server, store: ObjectStore) -> None:
    """Whenever it is killed, what is there is one of the objects that it put, whole."""
    program = (
        "import asyncio, sys, penstock\n"
        "from penstock.buckets import ObjectStore\n"
        "async def main():\n"
        "    async with await penstock.connect(sys.argv[1]) as nc:\n"
        "        store = await ObjectStore.open(nc, sys.argv[2])\n"
        "        while True:\n"
        "            for letter in b'abc':\n"
        "                await store.put('x', bytes([letter]) * 3_000_000)\n"
        "asyncio.run(main())\n"
    )
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", program, server.url, store.bucket)
    contents = [letter * 3_000_000 for letter in (b"a", b"b", b"c")]
    async with store.watch(updates_only=True) as watch:
        for _ in range(5):
            assert (await asyncio.wait_for(anext(watch), 30)).size == 3_000_000
        await asyncio.sleep(random.random() / 50)
        writer.kill()
        await writer.wait()
    assert await store.fetch("x") in contents
    await store.put("x", b"after")
    assert await store.fetch("x") == b"after"


USERS = """
accounts {
    A { jetstream: enabled, users: [
        { user: all, password: pw }
        { user: chunks, password: pw, permissions: { publish: { deny: ["$O.*.C.>"] } } }
        { user: describe, password: pw, permissions: { publish: { deny: ["$O.*.M.>"] } } }
        { user: looks, password: pw, permissions: { publish: { deny: ["$JS.API.STREAM.MSG.GET.>"] } } }
        { user: blind, password: pw, permissions: {
            publish: { deny: ["$JS.API.STREAM.MSG.GET.>", "$JS.API.DIRECT.GET.>"] } } }
        { user: reads, password: pw, permissions: { publish: { deny: ["$JS.API.DIRECT.GET.>"] } } }
    ] }
    WITHOUT { users: [{ user: without, password: pw }] }
}
"""


async def test_what_a_user_may_not_do_is_told_at_once() -> None:
    """Each step that is denied names its subject, nothing waits for a deadline, and no chunk is left."""
    with Server(config=USERS, auth=False, sync="2m") as server:

        async def by(user: str) -> Connection:
            return await penstock.connect(server.url, user=user, password="pw", request_timeout=60.0)

        async with await by("all") as nc:
            store = await ObjectStore.create_bucket(nc, "DOCS", storage="memory")
            await store.put("x", DATA)
            before = await chunks(store, nc)
            for user, match in (("chunks", r"\$O\.DOCS\.C\."), ("describe", r"\$O\.DOCS\.M\."), ("blind", "GET")):
                async with await by(user) as other, asyncio.timeout(15):
                    with pytest.raises(DeniedError, match=match):
                        await ObjectStore(other, "DOCS").put("x", LARGE)
                assert await chunks(store, nc) == before
            async with await by("looks") as other, asyncio.timeout(15):
                # Permissions that were made for other clients, which ask any replica, will do.
                there = ObjectStore(other, "DOCS")
                assert await there.fetch("x") == DATA
                await there.put("y", DATA)
                await there.delete("y")
                with pytest.raises(NotFoundError):
                    await there.info("z")
            async with await by("reads") as other, asyncio.timeout(15):
                with pytest.raises(DeniedError, match=r"DIRECT\.GET"):
                    await ObjectStore(other, "DOCS").fetch("x")
            assert await store.fetch("x") == DATA
        async with await by("without") as other, asyncio.timeout(15):
            for asking in (ObjectStore.open(other, "DOCS"), ObjectStore(other, "DOCS").put("x", b"")):
                with pytest.raises((NoRespondersError, JetStreamError)):
                    await asking


async def test_a_write_over_a_description_that_is_written_all_the_time(store: ObjectStore) -> None:
    """Writers of one name, of which each sees what the other wrote, all end; deletes among them, too."""

    async def write(number: int) -> None:
        for _ in range(5):
            await store.put("x", bytes([number]) * 100)

    async def delete() -> None:
        for _ in range(5):
            try:
                await store.delete("x")
            except NotFoundError:
                await asyncio.sleep(0.001)

    await asyncio.gather(*(write(number) for number in range(4)), delete())
    try:
        found = await store.fetch("x")
        assert found in [bytes([number]) * 100 for number in range(4)]
    except NotFoundError:
        pass
    assert isinstance(await store.info("x", deleted=True), ObjectInfo)
    assert sum((await chunks(store, store._nc)).values()) <= 1


async def test_a_bucket_that_stores_elsewhere_than_it_says(nc: Connection, unique: Callable[..., str]) -> None:
    """A stream that renames chunks or descriptions, or keeps fewer, acknowledged them all: that is not enough."""
    name = unique("B")
    for part, fields in (
        ("C", {"subject_transform": SubjectTransform(src=f"$O.{name}.C.*", dest=f"$O.{name}.C.x.{{{{wildcard(1)}}}}")}),
        ("M", {"subject_transform": SubjectTransform(src=f"$O.{name}.M.*", dest=f"$O.{name}.M.x.{{{{wildcard(1)}}}}")}),
        ("C", {"max_msgs_per_subject": 3}),
    ):
        store = await ObjectStore.create_bucket(nc, name, storage="memory")
        config = (await store.status()).stream.config
        await assets.edit_stream(nc, config.changed(discard="old", **fields))
        with pytest.raises(JetStreamError, match=rf"acknowledged .*\$O\.{name}\.{part}\."):
            await store.put("x", DATA, chunk_size=CHUNK)
        await ObjectStore.delete_bucket(nc, name)


async def test_a_stream_that_only_has_the_name_of_a_bucket(nc: Connection, unique: Callable[..., str]) -> None:
    """It is not taken for an empty one."""
    name = unique("B")
    await nc.jetstream().add_stream(penstock.Stream(name=f"OBJ_{name}", subjects=[name], storage="memory"))
    with pytest.raises(InputError, match="is not an object bucket"):
        await ObjectStore.open(nc, name)


async def test_many_small_chunks(store: ObjectStore) -> None:
    """A chunk for each byte is slow, and right."""
    await store.put("y", DATA[:3000], chunk_size=1)
    assert (await store.info("y")).chunks == 3000
    assert await store.fetch("y") == DATA[:3000]
