"""Object buckets as Spark reads them, without a JVM: rows of objects, their bytes whole or in chunks, all checked."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import types

import pytest

from penstock.buckets import ObjectStore
from penstock.errors import DataLossError, InputError
from tests.live.bucketing import Changes, bucket_reader, read_rows, rows_of


@pytest.fixture
def objects(buckets, unique):
    """An object bucket, and a way to do something with it."""
    name = unique("OBJ")
    buckets.call(lambda nc: ObjectStore.create_bucket(nc, name))
    buckets.made.insert(0, f"OBJ_{name}")

    def use(action):
        async def run(nc):
            return await action(await ObjectStore.open(nc, name))

        return buckets.call(run)

    return types.SimpleNamespace(name=name, use=use, put=lambda *given, **more: use(lambda s: s.put(*given, **more)))


def contents(rows):
    return {row["name"]: row["content"] for row in rows}


def test_objects_are_rows_with_their_bytes(server, objects):
    """Every object has a row; those that were deleted have one if asked for, and links say where they lead."""
    large = bytes(range(256)) * 2000
    first = objects.put("a/b c", large, description="a file", metadata={"kind": "x"}, headers={"H": ["1", "2"]})
    objects.put("empty", b"")
    objects.put("gone", b"old")
    objects.use(lambda store: store.delete("gone"))
    objects.use(lambda store: store.add_link("link", first))
    rows = {row["name"]: row for row in read_rows(server.url, objects=objects.name, minPartitions="3")}
    assert rows.keys() == {"a/b c", "empty", "link"}
    row = rows["a/b c"]
    assert (row["size"], row["content"], row["description"]) == (len(large), large, "a file")
    assert (row["metadata"], row["headers"]) == ([("kind", "x")], [("H", ["1", "2"])])
    assert row["digest"] == first.digest
    assert row["revision"] == first.sequence
    assert not row["deleted"]
    assert rows["empty"]["content"] == b""
    assert (rows["link"]["link"], rows["link"]["content"]) == (f"{objects.name}/a/b c", None)
    every = {row["name"]: row for row in read_rows(server.url, objects=objects.name, includeDeleted="true")}
    assert every["gone"]["deleted"]
    assert every["gone"]["content"] is None


def test_no_content_reads_no_chunks(server, objects):
    """Descriptions alone are one task for many objects."""
    for number in range(5):
        objects.put(f"o{number}", b"x" * 300_000)
    reader = bucket_reader(server.url, objects=objects.name, content="none")
    tasks = reader.partitions()
    assert len(tasks) == 1
    assert {row["name"]: row["size"] for row in rows_of(reader, tasks)} == {f"o{n}": 300_000 for n in range(5)}


def test_a_large_object_is_read_in_pieces(server, objects):
    """With `chunks` an object is cut among tasks, and its chunks say where they belong."""
    large = hashlib.sha256(b"x").digest() * 40_000  # 1.28 million bytes in ten chunks
    objects.put("large", large)
    objects.put("small", b"s")
    objects.put("empty", b"")
    reader = bucket_reader(server.url, objects=objects.name, content="chunks", maxBytesPerPartition="300k")
    tasks = reader.partitions()
    assert len(tasks) == 5
    rows = rows_of(reader, tasks)
    pieces = sorted((row["offset"], row["chunk"], row["content"]) for row in rows if row["name"] == "large")
    assert b"".join(content for _, _, content in pieces) == large
    assert [chunk for _, chunk, _ in pieces] == list(range(10))
    assert [row["content"] for row in rows if row["name"] != "large"] == [b"s", b""]


def test_an_object_that_is_too_large_for_a_row_is_told_before_any_is_read(server, objects):
    """The error says how large it is and what to do."""
    objects.put("big", b"x" * 5000)
    with pytest.raises(InputError, match=r"'big' has 5,000 bytes, and maxContentBytes is 1,024.*content to chunks"):
        read_rows(server.url, objects=objects.name, maxContentBytes="1k")


@pytest.mark.parametrize("content", ["binary", "chunks"])
def test_an_object_that_is_replaced_before_its_task_comes(server, objects, content):
    """Its old chunks are gone, and the row has what is there now; a deleted one is no row."""
    for name in ("a", "b", "c"):
        objects.put(name, name.encode() * 1000)
    reader = bucket_reader(server.url, objects=objects.name, content=content)
    tasks = reader.partitions()
    objects.put("a", b"new")
    objects.use(lambda store: store.delete("b"))
    assert contents(rows_of(reader, tasks)) == {"a": b"new", "c": b"c" * 1000}


def test_a_torn_object_is_told(server, objects, buckets):
    """Bytes that are missing, or other ones, are an error; or the object is left out and said so."""
    torn = objects.put("torn", b"t" * 300_000)
    objects.put("other", b"fine")
    buckets.api(f"STREAM.MSG.DELETE.OBJ_{objects.name}", {"seq": 2})
    with pytest.raises(DataLossError, match=r"'torn' of the bucket .* has 168,928 bytes in its chunks"):
        read_rows(server.url, objects=objects.name)
    with pytest.raises(DataLossError, match="'torn'"):
        read_rows(server.url, objects=objects.name, content="chunks")
    assert contents(read_rows(server.url, objects=objects.name, failOnDataLoss="false")) == {"other": b"fine"}
    assert torn.chunks == 3


def test_another_digest_is_told(server, objects, buckets):
    """Bytes of the right number that are not those of the description are an error in either form."""
    info = objects.put("forged", b"right")

    async def forge(nc):
        await nc.jetstream().publish(f"$O.{objects.name}.C.{info.nuid}", b"wrong")

    buckets.api(f"STREAM.PURGE.OBJ_{objects.name}", {"filter": f"$O.{objects.name}.C.>"})
    buckets.call(forge)

    async def describe(nc):
        message = await nc.jetstream().get_last_msg(f"OBJ_{objects.name}", f"$O.{objects.name}.M.>")
        await nc.jetstream().publish(message.subject, message.data, headers={"Nats-Rollup": "sub"})

    buckets.call(describe)
    for content in ("binary", "chunks"):
        with pytest.raises(DataLossError, match="has another digest"):
            read_rows(server.url, objects=objects.name, content=content)


def test_each_object_is_a_row_once_while_all_are_replaced(server, objects, buckets):
    """Objects that are there throughout are rows exactly once, whole."""
    names = [f"o{number}" for number in range(12)]
    for name in names:
        objects.put(name, b"0" * 200_000)
    stop, failed = threading.Event(), []

    def replace() -> None:
        async def run(store):
            number = 0
            while not stop.is_set():
                number += 1
                await asyncio.gather(*(store.put(name, b"%d" % (number % 10) * 200_000) for name in names[::2]))
                await asyncio.sleep(0.05)

        try:
            objects.use(run)
        except BaseException as error:
            failed.append(error)
            raise

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(4):
            rows = read_rows(server.url, objects=objects.name, minPartitions="3")
            assert sorted(row["name"] for row in rows) == sorted(names)
            assert {(len(row["content"]), len(set(row["content"]))) for row in rows} == {(200_000, 1)}
    finally:
        stop.set()
        writer.join()
    assert not failed


@pytest.mark.parametrize("content", ["binary", "chunks", "none"])
def test_a_stream_of_objects(server, objects, buckets, content):
    """Each object that is put or deleted is a row, with its bytes; one that was replaced meanwhile comes newer."""
    objects.put("a", b"1" * 200_000)
    objects.put("b", b"2")
    running = Changes(server.url, objects=objects.name, content=content, maxMessagesPerTrigger="5")

    def sizes(rows):
        found = dict.fromkeys((row["name"] for row in rows), 0)
        for row in rows:
            found[row["name"]] += row["size"] if content == "none" else len(row["content"] or b"")
        return found

    try:
        assert sizes(running.batch()) == {"a": 200_000, "b": 1}
        assert running.batch() is None
        objects.put("c", b"333")
        objects.use(lambda store: store.delete("b"))
        rows = running.batch()
        assert [(row["name"], row["deleted"]) for row in rows] == [("c", False), ("b", True)]
        assert sizes(rows) == {"c": 3, "b": 0}
        objects.put("a", b"4")
        objects.put("a", b"55")
        assert sizes(running.batch()) == {"a": 2}
        objects.put("a", b"666")
        assert running.again() == []  # the replayed micro-batch lacks what comes again, newer
        assert sizes(running.batch()) == {"a": 3}
        objects.put("d", b"7")
        buckets.api(f"STREAM.PURGE.OBJ_{objects.name}")
        with pytest.raises(DataLossError, match="is empty"):
            running.batch()
    finally:
        running.stop()


def test_a_mirror_has_the_objects_of_its_origin(server, objects, buckets, unique, eventually):
    """Descriptions and chunks of a mirror stand under the subjects of its origin."""
    objects.put("a", b"1" * 200_000)
    copy = unique("COPY")
    origin = f"OBJ_{objects.name}"
    buckets.api(f"STREAM.CREATE.OBJ_{copy}", {"name": f"OBJ_{copy}", "mirror": {"name": origin}, "allow_direct": True})
    buckets.made.insert(0, f"OBJ_{copy}")
    eventually(lambda: buckets.api(f"STREAM.INFO.OBJ_{copy}")["state"]["last_seq"] == 3)
    assert contents(read_rows(server.url, objects=copy)) == {"a": b"1" * 200_000}


def test_object_buckets_that_are_none(server, objects):
    """One that does not exist is told by name; an empty one has no rows."""
    assert read_rows(server.url, objects=objects.name) == []
    with pytest.raises(InputError, match="The object bucket nowhere does not exist") as told:
        read_rows(server.url, objects="nowhere")
    assert "There are " in str(told.value)  # the first few by name
