"""Objects among clients: nats-py, receivers of chunks and the `nats` command read what ours wrote, and ours theirs."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import api
from nats.js.errors import NotFoundError as TheirNotFoundError

import penstock
from penstock.buckets import ObjectStore
from penstock.chunks import Archive
from penstock.connection import Connection, api_request
from penstock.errors import NotFoundError
from penstock.server import Server
from tests.live.chunks import receiving
from tests.live.test_chunks_large import MB, make, memory

CHUNK = 128 * 1024
DATA = os.urandom(5 * CHUNK + 7)
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, len(DATA)]
NATS = shutil.which("nats")


@pytest.fixture
async def theirs(server: Server) -> AsyncIterator[Any]:
    """JetStream of nats-py."""
    client = await nats.connect(server.url)
    yield client.jetstream()
    await client.close()


@pytest.mark.parametrize("maker", ["ours", "nats-py"])
async def test_nats_py_and_ours_read_each_other(
    nc: Connection, theirs: Any, unique: Callable[..., str], maker: str
) -> None:
    """Objects of any size, with all that is said of them, in a bucket of either."""
    name = unique("B")
    if maker == "ours":
        await ObjectStore.create_bucket(nc, name, storage="memory", description="d")
        other = await theirs.object_store(name)
    else:
        config = api.ObjectStoreConfig(description="d", storage=api.StorageType.MEMORY)
        other = await theirs.create_object_store(name, config=config)
    store = await ObjectStore.open(nc, name)
    assert (await store.status()).description == "d"
    for size in SIZES:
        content = DATA[:size]
        put = await store.put(f"ours {size}", content, description="words", headers={"A": ["1", "2"]})
        got = await other.get(f"ours {size}")
        assert got.data == content
        assert (got.info.size, got.info.chunks, got.info.digest) == (size, put.chunks, put.digest)
        assert (got.info.description, got.info.headers) == ("words", {"A": ["1", "2"]})
        meta = api.ObjectMeta(description="others", headers={"B": ["3"]})
        await other.put(f"theirs {size}", content, meta)
        found = await store.info(f"theirs {size}")
        assert (found.size, found.description, found.headers) == (size, "others", {"B": ["3"]})
        assert await store.fetch(f"theirs {size}") == content
    assert [info.name for info in await store.list()] == sorted(info.name for info in await other.list())
    assert (await other.status()).size == (await store.status()).bytes


async def test_nats_py_sees_what_ours_replaced_deleted_linked_and_renamed(
    nc: Connection, theirs: Any, unique: Callable[..., str]
) -> None:
    """Whatever either does to an object, the other sees it so; what was said and is not known to nats-py stays."""
    store = await ObjectStore.create_bucket(nc, unique("B"), storage="memory")
    other = await theirs.object_store(store.bucket)
    await other.put("x", DATA)
    await store.put("x", b"ours", metadata={"k": "v"})
    assert (await other.get("x")).data == b"ours"
    await other.put("x", b"theirs")
    assert await store.fetch("x") == b"theirs"
    await store.add_link("link", "x")
    assert (await other.get("link")).data == b"theirs"
    await store.rename("x", "y")
    assert (await other.get("y")).data == b"theirs"
    for name in ("x", "none"):
        with pytest.raises(TheirNotFoundError):
            await other.get(name)
    await store.delete("y")
    with pytest.raises(TheirNotFoundError):
        await other.get("y")
    await other.put("z", b"z")
    await other.delete("z")
    with pytest.raises(NotFoundError):
        await store.fetch("z")
    assert {info.name for info in await store.list(deleted=True)} == {"x", "y", "z", "link"}
    await store.seal()
    assert (await other.status()).sealed


async def test_watches_see_what_the_other_does(nc: Connection, theirs: Any, unique: Callable[..., str]) -> None:
    """Each watch has what the other client writes."""
    store = await ObjectStore.create_bucket(nc, unique("B"), storage="memory")
    other = await theirs.object_store(store.bucket)
    await store.put("a", b"1")
    watching = await other.watch()
    async with store.watch() as watch:
        assert (await anext(watch)).name == "a"
        assert (await watching.updates(timeout=5)).name == "a"
        assert await watching.updates(timeout=5) is None
        await other.put("b", DATA)
        found = await anext(watch)
        assert (found.name, found.size, found.chunks) == ("b", len(DATA), 6)
        assert (await watching.updates(timeout=5)).name == "b"
        await store.delete("b")
        assert (await anext(watch)).deleted
        gone = await watching.updates(timeout=5)
        assert (gone.name, gone.deleted) == ("b", True)
    await watching.stop()


@pytest.mark.parametrize("size", [0, 1, CHUNK, len(DATA)])
async def test_receivers_of_chunks_read_an_object(
    server: Server, nc: Connection, theirs: Any, unique: Callable[..., str], size: int
) -> None:
    """With chunk headers an object is a stored message, too: for an assembler that listens, an archive, and nats-py."""
    store = await ObjectStore.create_bucket(nc, unique("B"), storage="memory")
    async with receiving(server, f"$O.{store.bucket}.C.*") as receiver:
        put = await store.put("x", DATA[:size], chunk_headers=True)
        [(message_id, data, subject)] = await receiver.wait()
        assert (message_id, data, subject) == (put.nuid, DATA[:size], f"$O.{store.bucket}.C.{put.nuid}")
        assert receiver.errors == []
    archive = Archive(nc, store.stream, f"$O.{store.bucket}.C")
    assert await archive.fetch(put.nuid) == DATA[:size]
    assert await store.fetch("x") == DATA[:size]
    assert (await (await theirs.object_store(store.bucket)).get("x")).data == DATA[:size]
    await store.put("x", b"other")
    with pytest.raises(NotFoundError):
        await archive.fetch(put.nuid)


@pytest.mark.skipif(NATS is None, reason="the nats command is not installed")
async def test_the_nats_command_and_ours_read_each_other(
    server: Server, nc: Connection, unique: Callable[..., str], tmp_path: Path
) -> None:
    """A file that `nats` put is read here, and the other way round."""
    store = await ObjectStore.create_bucket(nc, unique("B"), storage="memory")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(DATA)

    def run(*arguments: str) -> str:
        command = [str(NATS), "-s", server.url, "object", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    await asyncio.to_thread(run, "put", store.bucket, str(source), "--name", "theirs", "--no-progress")
    assert await store.fetch("theirs") == DATA
    await store.put("ours", DATA, description="words")
    await asyncio.to_thread(run, "get", store.bucket, "ours", "-O", str(target), "--no-progress")
    assert target.read_bytes() == DATA
    assert hashlib.sha256(DATA).hexdigest() in await asyncio.to_thread(run, "info", store.bucket, "ours")


@pytest.mark.parametrize(
    "size", [pytest.param(96 * MB, id="small"), pytest.param(1024 * MB, id="1GB", marks=pytest.mark.heavy)]
)
async def test_a_large_object_passes_with_flat_memory(
    server: Server, unique: Callable[..., str], tmp_path: Path, size: int
) -> None:
    """Put from a file and saved into another one, the memory that an object takes does not depend on its size."""
    expected = await asyncio.to_thread(make, tmp_path / "sent", size)
    async with await penstock.connect(server.url) as nc:
        store = await ObjectStore.create_bucket(nc, unique("B"))
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        put = await store.put("x", tmp_path / "sent")
        info = await store.save("x", tmp_path / "received")
        assert memory("VmHWM") - before < 60 * MB
        assert put.sha256 is not None
        assert (put.sha256.hex(), info.size) == (expected, size)
        theirs = await nats.connect(server.url)
        other = await theirs.jetstream().object_store(store.bucket)
        digest = hashlib.sha256()

        class Hashing(io.BytesIO):
            def write(self, piece: Any) -> int:
                digest.update(piece)
                return len(piece)

        if size <= 200 * MB:
            await other.get("x", writeinto=Hashing())
            assert digest.hexdigest() == expected
        await theirs.close()
        await api_request(nc, f"STREAM.DELETE.{store.stream}")
