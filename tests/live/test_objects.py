"""Objects of a bucket: put and read whole, described, linked, renamed, deleted, watched."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.buckets import ObjectInfo, ObjectLink, ObjectStore
from penstock.connection import Connection
from penstock.errors import ConditionError, InputError, JetStreamError, NotFoundError, OptionError
from penstock.jetstream import assets

CHUNK = 1000
DATA = os.urandom(10 * CHUNK + 11)


@pytest.fixture
async def store(nc: Connection, unique: Callable[..., str]) -> ObjectStore:
    """A bucket of its own."""
    return await ObjectStore.create_bucket(nc, unique("B"), storage="memory")


async def held(store: ObjectStore, nc: Connection) -> dict[str, int]:
    """Give how many messages the bucket has of each subject: a description each, and chunks."""
    return await assets.stream_subjects_held(nc, store.stream)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, len(DATA)])
async def test_an_object_is_read_as_it_was_put(store: ObjectStore, size: int) -> None:
    """Whatever its size, all of it comes back, and its description says size, chunks and digest."""
    seen: list[int] = []
    put = await store.put("a/b c", DATA[:size], chunk_size=CHUNK, progress=seen.append)
    assert await store.fetch("a/b c") == DATA[:size]
    found = await store.info("a/b c")
    assert (found.size, found.chunks, found.sequence) == (size, -(-size // CHUNK), put.sequence)
    assert found.sha256 == hashlib.sha256(DATA[:size]).digest()
    assert found.changed(time=put.time) == put
    assert seen == ([] if not size else [*range(CHUNK, size, CHUNK), size])


async def test_every_kind_of_source(store: ObjectStore, tmp_path: Path) -> None:
    """Bytes, buffers, files, paths and iterables of both colours are the same object."""
    path = tmp_path / "source"
    path.write_bytes(DATA)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(DATA), 777):
            yield DATA[start : start + 777]

    buffers = (DATA, bytearray(DATA), memoryview(DATA), io.BytesIO(DATA))
    with path.open("rb") as file:
        for source in (*buffers, path, [DATA[:5], DATA[5:]], file, pieces()):
            await store.put("x", source, chunk_size=CHUNK)
            assert await store.fetch("x") == DATA


async def test_what_is_said_of_an_object(store: ObjectStore) -> None:
    """Description, headers, metadata and chunk size are kept, and can be changed without the bytes."""
    about = {"description": "words", "headers": {"A": ["1", "2"], "B": "3"}, "metadata": {"k": "v"}}
    put = await store.put("x", DATA, chunk_size=CHUNK, **about)
    assert (put.description, put.headers, put.metadata, put.chunk_size) == (
        *("words", {"A": ["1", "2"], "B": ["3"]}, {"k": "v"}, CHUNK),
    )
    changed = await store.update("x", description="others", metadata={})
    found = await store.info("x")
    assert (found.description, found.headers, found.metadata, found.nuid) == ("others", put.headers, {}, put.nuid)
    assert changed.sequence == found.sequence != put.sequence
    assert await store.fetch("x") == DATA


async def test_reading_in_pieces(store: ObjectStore) -> None:
    """A reader takes as much as it wants, may leave half way, and learns of the end only when all was right."""
    await store.put("x", DATA, chunk_size=CHUNK)
    async with store.get("x") as stored:
        assert stored.size == stored.info.size == len(DATA)
        assert await stored.read(5) + await stored.read(7) == DATA[:12]
    async with store.get("x") as stored:
        assert b"".join([piece async for piece in stored]) == DATA
        assert await stored.read() == b""


async def test_saving_to_a_file(store: ObjectStore, tmp_path: Path) -> None:
    """A file appears when it is whole; one that is there stays unless it may be overwritten."""
    await store.put("../x", DATA)
    target = tmp_path / "target"
    info = await store.save("../x", target)
    assert (target.read_bytes(), info.size) == (DATA, len(DATA))
    await store.put("../x", b"other")
    with pytest.raises(InputError, match="already"):
        await store.save("../x", target)
    assert target.read_bytes() == DATA
    await store.save("../x", target, overwrite=True)
    assert target.read_bytes() == b"other"
    file = io.BytesIO()
    await store.save("../x", file)
    assert file.getvalue() == b"other"
    with pytest.raises(InputError, match=r"is a folder\. Name a file in it"):
        await store.save("../x", tmp_path, overwrite=True)
    with pytest.raises(InputError, match="no folder"):
        await store.save("../x", tmp_path / "none" / "x")
    with pytest.raises(NotFoundError):
        await store.save("none", tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


async def test_replacing_removes_what_was_there(store: ObjectStore, nc: Connection) -> None:
    """The bucket holds the chunks of the object that is there, and of no other."""
    await store.put("x", DATA, chunk_size=CHUNK)
    second = await store.put("x", DATA[:1500], chunk_size=CHUNK)
    assert sorted((await held(store, nc)).values()) == [1, 2]
    assert f"$O.{store.bucket}.C.{second.nuid}" in await held(store, nc)


async def test_deleting(store: ObjectStore, nc: Connection) -> None:
    """Of a deleted object only the word is left that it was deleted; it may be put again."""
    await store.put("x", DATA, chunk_size=CHUNK)
    await store.delete("x")
    assert list((await held(store, nc)).values()) == [1]
    for reading in (store.info("x"), store.fetch("x"), store.delete("x"), store.update("x", description="y")):
        with pytest.raises(NotFoundError, match="no object 'x'"):
            await reading
    gone = await store.info("x", deleted=True)
    assert (gone.deleted, gone.size, gone.chunks, gone.digest) == (True, 0, 0, None)
    assert await store.list() == []
    assert [info.name for info in await store.list(deleted=True)] == ["x"]
    await store.put("x", b"again")
    assert await store.fetch("x") == b"again"


async def test_renaming(store: ObjectStore, nc: Connection) -> None:
    """An object keeps its bytes under another name; the old one is gone, and a name that is taken stays."""
    put = await store.put("x", DATA, chunk_size=CHUNK, description="d")
    made = await store.rename("x", "y")
    assert (made.name, made.nuid, made.description) == ("y", put.nuid, "d")
    assert await store.fetch("y") == DATA
    with pytest.raises(NotFoundError):
        await store.info("x")
    await store.put("x", b"other")
    with pytest.raises(InputError, match="already"):
        await store.rename("x", "y")
    await store.delete("x")
    assert await store.fetch("y") == DATA
    assert len(await held(store, nc)) == 3
    await store.rename("y", "x")
    assert await store.fetch("x") == DATA


async def test_links(store: ObjectStore, nc: Connection, unique: Callable[..., str]) -> None:
    """A link leads to an object of any bucket, a bucket link nowhere in particular; deleting one leaves its target."""
    other = await ObjectStore.create_bucket(nc, unique("B"), storage="memory")
    target = await other.put("x", DATA)
    made = await store.add_link("link", target)
    assert made.link == ObjectLink(other.bucket, "x")
    assert await store.fetch("link") == DATA
    await store.put("own", b"own")
    await store.add_link("link", "own")  # a link may be replaced
    assert await store.fetch("link") == b"own"
    await store.add_bucket_link("all", other.bucket)
    with pytest.raises(InputError, match=f"whole bucket {other.bucket}"):
        await store.fetch("all")
    with pytest.raises(InputError, match="is a link itself"):
        await store.add_link("more", "link")
    with pytest.raises(InputError, match="already"):
        await store.add_link("own", target)
    with pytest.raises(InputError, match="itself"):
        await store.add_link("own", "own")
    with pytest.raises(NotFoundError):
        await store.add_bucket_link("gone", "nowhere")
    await store.delete("link")
    assert await store.fetch("own") == b"own"


async def test_links_that_lead_nowhere_or_in_a_circle(store: ObjectStore) -> None:
    """A target that is gone, or became a link that leads back, is told."""
    await store.put("a", b"a")
    await store.put("b", b"b")
    await store.add_link("to-a", "a")
    await store.delete("a")
    with pytest.raises(NotFoundError, match="link to 'a'"):
        await store.fetch("to-a")
    await store.add_link("a", "b")
    assert await store.fetch("to-a") == b"b"
    await store.delete("b")
    await store.put("b", b"b")
    link = ObjectInfo(name="b", bucket=store.bucket, nuid="n", link=ObjectLink(store.bucket, "a"))
    await store._nc.jetstream().publish(f"$O.{store.bucket}.M.Yg==", link.encode(), headers={"Nats-Rollup": "sub"})
    with pytest.raises(InputError, match="circle"):
        await store.fetch("to-a")


async def test_a_put_on_a_condition(store: ObjectStore, nc: Connection) -> None:
    """With `expected` an object replaces the one that was seen, and no other; nothing of a refused one is left."""
    first = await store.put("x", b"1", expected=0)
    with pytest.raises(ConditionError, match="none was expected"):
        await store.put("x", b"2", expected=0)
    second = await store.put("x", b"2", expected=first.sequence)
    with pytest.raises(ConditionError) as caught:
        await store.put("x", b"3", expected=first.sequence)
    assert (caught.value.expected, caught.value.actual) == (first.sequence, second.sequence)
    assert await store.fetch("x") == b"2"
    assert len(await held(store, nc)) == 2


async def test_two_that_put_one_name_at_once(store: ObjectStore, nc: Connection) -> None:
    """One after the other: what is there is whole, and only its chunks are left."""
    contents = [os.urandom(20_000) for _ in range(6)]
    await asyncio.gather(*(store.put("x", content, chunk_size=CHUNK) for content in contents))
    assert await store.fetch("x") in contents
    counts = await held(store, nc)
    assert sorted(counts.values()) == [1, 20]
    done = await asyncio.gather(
        *(store.put("y", content, chunk_size=CHUNK, expected=0) for content in contents), return_exceptions=True
    )
    assert sum(isinstance(found, ObjectInfo) for found in done) == 1
    assert sum(isinstance(found, ConditionError) for found in done) == 5
    assert len(await held(store, nc)) == 4


async def test_a_watch_gives_what_is_there_and_every_change(store: ObjectStore) -> None:
    """First all objects, then puts, deletes and renames in order; `current` ends with what was there."""
    await store.put("a", b"1")
    await store.put("b", b"2")
    await store.delete("b")
    async with store.watch() as watch, store.watch(updates_only=True) as updates:
        assert [info.name async for info in watch.current()] == ["a", "b"]
        assert (watch.is_current, updates.is_current) == (True, True)
        put = await store.put("c", b"3")
        await store.rename("c", "d")
        for source in (watch, updates):
            found = [await anext(source) for _ in range(3)]
            assert [(info.name, info.deleted) for info in found] == [("c", False), ("d", False), ("c", True)]
            assert (found[0].sequence, found[0].size) == (put.sequence, 1)
            assert found[0].time is not None
        after = watch.sequence + 1
    await store.put("e", b"5")
    async with store.watch(resume_from=after, ignore_deletes=True) as watch:
        assert [info.name async for info in watch.current()] == ["e"]


async def test_buckets(nc: Connection, unique: Callable[..., str]) -> None:
    """A bucket is made, opened, changed, listed, sealed and deleted."""
    name = unique("B")
    store = await ObjectStore.create_bucket(nc, name, description="d", ttl="1h", max_bytes=10_000, metadata={"k": "v"})
    await ObjectStore.create_bucket(nc, name, description="d", ttl="1h", max_bytes=10_000, metadata={"k": "v"})
    with pytest.raises(JetStreamError, match="in another way"):
        await ObjectStore.create_bucket(nc, name, description="other")
    status = await store.status()
    assert (status.bucket, status.description, status.ttl, status.max_bytes) == (name, "d", 3600.0, 10_000)
    assert (status.metadata, status.replicas, status.storage, status.is_sealed) == ({"k": "v"}, 1, "file", False)
    assert (status.is_compressed, status.mirror) == (False, None)
    await ObjectStore.edit_bucket(nc, name, description="e", metadata={"l": "w"}, compression=True, max_bytes=0, ttl=0)
    status = await (await ObjectStore.open(nc, name)).status()
    assert (status.description, status.metadata, status.is_compressed) == ("e", {"l": "w"}, True)
    assert (status.ttl, status.max_bytes) == (0.0, -1)
    assert name in [found.bucket for found in await ObjectStore.buckets(nc)]
    await store.put("x", DATA)
    assert (await store.status()).bytes > len(DATA)
    assert (await store.seal()).is_sealed
    with pytest.raises(JetStreamError, match="sealed"):
        await store.put("y", b"")
    with pytest.raises(JetStreamError, match="sealed"):
        await store.delete("x")
    assert await store.fetch("x") == DATA
    await ObjectStore.delete_bucket(nc, name)
    for asking in (ObjectStore.open(nc, name), ObjectStore.delete_bucket(nc, name), store.list(), store.info("x")):
        with pytest.raises(NotFoundError, match=f"no object bucket {name}"):
            await asking


async def test_what_cannot_be_put_is_refused_before_anything_is_asked(nc: Connection) -> None:
    """Bad names, sources, headers and sizes are one error each, also of a bucket that is not there."""
    store = ObjectStore(nc, "NOWHERE")
    for bad in ("a.b", "", "a b", "a>", "a/b"):
        with pytest.raises(InputError, match="bucket"):
            ObjectStore(nc, bad)
    for name, source, about in (
        ("", b"", {}),
        ("x", "text", {}),
        ("x", 7, {}),
        ("x", Path("/nowhere/at/all"), {}),
        ("x", b"", {"headers": {"a b": "c"}}),
        ("x", b"", {"metadata": {"a": 1}}),
        ("x", b"", {"chunk_size": 0}),
        ("x", b"", {"chunk_size": 2**31}),
        ("x", b"", {"chunk_size": True}),
    ):
        with pytest.raises(InputError):
            await store.put(name, source, **about)
    with pytest.raises(OptionError, match="chunk_size"):
        await store.put("x", b"", chunk_size=nc.max_payload + 1)
    with pytest.raises(NotFoundError, match="no object bucket NOWHERE"):
        await store.put("x", b"")
