"""The exactly-once sink of objects against a real server: none is torn, none written twice, no chunk left behind."""

from __future__ import annotations

import asyncio
import random

import pytest

import penstock
from penstock.buckets.object_store import ObjectStore
from penstock.errors import FencedError, InputError, JetStreamError, MarkerError
from penstock.spark.prepare import prepare
from penstock.spark.sink_options import SinkOptions
from tests.live.objecting import ObjectWriter, chunk_counts, make_objects, objects
from tests.live.sinking import Crash

LARGE = 700 * 1024  # in batches of 256 kB it takes several


@pytest.fixture
def bucket(bulk, unique):
    name = unique("DOCS")
    make_objects(bulk, name)
    return name


@pytest.fixture
def docs(server, bucket):
    return ObjectWriter(server.url, bucket, atomic_bytes=256 * 1024)


def content(seed, size):
    return random.Random(seed).randbytes(size)


def whole(server, bulk, bucket):
    """Read everything; what chunks there are belong to the objects that are there."""
    found = objects(server.url, bucket)
    assert chunk_counts(bulk, bucket) == {info.nuid: info.chunks for _, info in found.values() if info.chunks}
    return {name: data for name, (data, _) in found.items()}


ROWS = [("empty", b""), ("small", b"x"), ("a/b ü", content(1, 200_000)), ("large", content(2, LARGE)), ("last", b"y")]


def test_objects_of_any_size_are_written_once(server, docs, bulk, bucket):
    """Small ones go together and large ones in parts; a replay writes nothing, and nothing is left but the objects."""
    rows = [*ROWS, ("told", b"z", "about it", {"k": "v"}, {"H": ["1", "2"]})]
    assert docs.whole_batch([rows[:3], rows[3:]]) == 6
    before = objects(server.url, bucket)
    assert whole(server, bulk, bucket) == {row[0]: row[1] for row in rows}
    info = before["told"][1]
    assert (info.description, info.metadata, info.headers) == ("about it", {"k": "v"}, {"H": ["1", "2"]})
    assert docs.whole_batch([rows], run="r2") == 0
    assert objects(server.url, bucket) == before


def test_nats_py_reads_what_was_written(server, docs, bucket):
    """Another client gets the same bytes, and the same description."""
    docs.whole_batch([ROWS])

    async def look():
        import nats

        client = await nats.connect(server.url)
        try:
            store = await client.jetstream().object_store(bucket)
            return {name: (await store.get(name)).data for name, _ in ROWS}, {item.name for item in await store.list()}
        finally:
            await client.close()

    assert asyncio.run(look()) == (dict(ROWS), {name for name, _ in ROWS})


def test_an_object_that_is_as_it_should_be_is_not_written_again(server, docs, bulk, bucket):
    """The next batch has the same objects and another one: only that is written, and its old chunks are removed."""
    docs.whole_batch([ROWS])
    before = objects(server.url, bucket)
    rows = [(name, data if name != "large" else data[::-1]) for name, data in ROWS]
    docs.whole_batch([rows], batch=1, run="r2")
    after = objects(server.url, bucket)
    assert {name for name in before if before[name] != after[name]} == {"large"}
    assert whole(server, bulk, bucket) == dict(rows)
    docs.whole_batch([[("large", rows[3][1], "now described")]], batch=2, run="r3")
    assert objects(server.url, bucket)["large"][1].description == "now described"


@pytest.mark.parametrize("seed", range(3))
def test_any_history_ends_with_whole_objects(server, bulk, unique, seed):
    """Crashes, lost connections, runs and partitions at random: every object is whole, and no chunk is left over."""
    bucket = unique("DOCS")
    make_objects(bulk, bucket)
    dice = random.Random(seed)
    docs = ObjectWriter(server.url, bucket, atomic_bytes=256 * 1024)
    wanted = {}
    for batch in range(2):
        sizes = (0, 10, 200_000, LARGE)
        rows = [(f"o{number}", content((seed, batch, number).__hash__(), dice.choice(sizes))) for number in range(6)]
        wanted |= dict(rows)

        def shaky(task):
            dispatch = task.dispatch

            def later(*given):
                if dice.random() < 0.15:
                    raise Crash
                if dice.random() < 0.15:
                    task.bulk.wire.close()
                return dispatch(*given)

            task.dispatch = later

        for run in range(dice.randrange(1, 4)):
            middle = dice.randrange(7)
            for number, part in enumerate((rows[:middle], rows[middle:])):
                for task in range(dice.randrange(3)):
                    try:
                        docs.attempt(part, batch=batch, run=f"{batch}-{run}", partition=number, task=task, around=shaky)
                    except Crash:
                        continue
        middle = dice.randrange(7)
        docs.whole_batch([rows[:middle], rows[middle:]], batch=batch, run=f"{batch}-last")
        assert whole(server, bulk, bucket) == wanted


def test_another_writer_of_the_name_is_not_torn(server, docs, bulk, bucket):
    """Somebody puts an object of the same name while the task writes it: one of them is there, whole, and alone."""
    docs.whole_batch([ROWS])
    meddled = []

    async def put():
        nc = await penstock.connect(server.url)
        try:
            await (await ObjectStore.open(nc, bucket)).put("large", b"theirs" * 50_000)
        finally:
            await nc.close()

    def around(task):
        look = task._look

        def later(subject):
            seen = look(subject)
            if not meddled:
                meddled.append(subject)
                asyncio.run(put())
            return seen

        task._look = later

    docs.whole_batch([[("large", b"ours" * 100_000)]], batch=1, run="r2", around=around)
    assert whole(server, bulk, bucket)["large"] == b"ours" * 100_000
    asyncio.run(put())
    assert docs.whole_batch([[("large", b"ours" * 100_000)]], batch=1, run="r3") == 0
    assert whole(server, bulk, bucket)["large"] == b"theirs" * 50_000  # a replay does not bring ours back


def test_a_zombie_leaves_no_chunk(server, docs, bulk, bucket):
    """A task that wakes up in the middle of a large object stores nothing more, not a chunk."""
    rows = [("large", content(3, LARGE))]
    sent = []

    def around(task):
        dispatch = task.dispatch

        def later(*given):
            sent.append(given)
            if len(sent) == 2:
                docs.whole_batch([rows], run="r2")
                docs.whole_batch([[("large", b"newer")]], batch=1, run="r3")
            return dispatch(*given)

        task.dispatch = later

    with pytest.raises(FencedError):
        docs.attempt(rows, around=around)
    assert whole(server, bulk, bucket) == {"large": b"newer"}


def test_a_name_in_two_partitions_is_refused(docs):
    """Which of two partitions stores last nobody knows; in one, the last row counts."""
    with pytest.raises(MarkerError, match="more than one partition"):
        docs.whole_batch([[("same", b"1")], [("same", b"2")]])


def test_the_last_row_of_a_name_counts(server, docs, bulk, bucket):
    """Rows of a name in one partition are written in their order."""
    docs.whole_batch([[("same", b"%d" % number) for number in range(5)]])
    assert whole(server, bulk, bucket) == {"same": b"4"}


def test_a_full_bucket_keeps_no_part_of_an_object(server, bulk, unique):
    """A bucket that takes no more is named with its limit; what did not fit is not there, and no chunk of it stays."""
    name = unique("FULL")
    make_objects(bulk, name, max_bytes=500_000)
    docs = ObjectWriter(server.url, name, atomic_bytes=256 * 1024)
    docs.whole_batch([[("there", b"before")]])
    rows = [("small", b"x" * 1000), ("large", content(4, LARGE))]
    with pytest.raises(JetStreamError, match=rf"OBJ_{name} could not be stored.*maximum bytes") as full:
        docs.whole_batch([rows], batch=1, run="r2")
    assert "max_bytes" in str(full.value)
    assert objects(server.url, name).keys() <= {"there", "small"}
    config = bulk.api(f"STREAM.INFO.OBJ_{name}")["config"]
    bulk.api(f"STREAM.UPDATE.OBJ_{name}", {**config, "max_bytes": 5_000_000})
    docs.whole_batch([rows], batch=1, run="r3")
    assert whole(server, bulk, name) == {"there": b"before", **dict(rows)}


def test_a_bucket_that_was_made_anew_does_not_know_the_query(docs, bulk, bucket):
    """Another bucket of the same name has no markers of the query, which stops before it stores anything."""
    docs.whole_batch([ROWS])
    bulk.api(f"STREAM.DELETE.OBJ_{bucket}")
    make_objects(bulk, bucket)
    with pytest.raises(MarkerError, match="knows nothing of this query"):
        docs.whole_batch([[("new", b"x")]], batch=1, run="r2")
    assert chunk_counts(bulk, bucket) == {}


def test_what_is_no_object_bucket_is_told(bulk, unique):
    """A bucket that is not there is named with what makes it."""
    name = unique("NONE")
    with pytest.raises(InputError, match=f"no object bucket {name}.*penstock object add {name}"):
        prepare(bulk, SinkOptions(objects=name))
