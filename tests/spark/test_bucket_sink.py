"""Writing DataFrames into key-value buckets, on a real Spark: columns, refusals, sums that change, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from penstock.options import ConnectionOptions
from penstock.spark import into_bucket
from penstock.spark.connections import TaskConnection
from tests.live.keying import current, history, make_bucket, put
from tests.live.objecting import make_objects, objects


@pytest.fixture
def bulk(server):
    with TaskConnection(ConnectionOptions(server.url)) as made:
        yield made


@pytest.fixture
def bucket(bulk, unique):
    name = unique("TOTALS")
    make_bucket(bulk, name)
    yield name
    bulk.api(f"STREAM.DELETE.KV_{name}")


@pytest.fixture
def save(server, bucket) -> Callable[..., None]:
    """Write a DataFrame with some options."""

    def write(frame: Any, mode: str = "append", **options: Any) -> None:
        frame.write.format("nats").options(url=server.url, bucket=bucket, **options).mode(mode).save()

    return write


def pairs(spark: Any, count: int, value: str = "v") -> Any:
    key = F.concat(F.lit("k."), F.col("id").cast("string")).alias("key")
    return spark.range(count, numPartitions=2).select(key, F.lit(value).alias("value"))


def test_a_frame_is_put_and_nats_py_reads_it(spark, server, save, bulk, bucket):
    """Each row is a value of its key; another client sees the keys and their values, and nothing of the sink's own."""
    save(pairs(spark, 1200))
    save(pairs(spark, 1200, "w"), writeId="again")
    put(bulk, bucket, "k.7", b"service")
    save(pairs(spark, 1200, "w"), writeId="again")  # adds nothing
    columns = "key string, value string, operation string"
    save(spark.createDataFrame([("k.0", None, "DEL"), ("k.1", None, "PURGE")], columns))

    async def look() -> tuple[Any, ...]:
        import nats

        client = await nats.connect(server.url)
        try:
            store = await client.jetstream().key_value(bucket)
            watcher, seen = await store.watchall(), set()
            while len(seen) < 1200:
                if (entry := await watcher.updates(timeout=5)) is not None:
                    seen.add(entry.key)
            await watcher.stop()
            entry = await store.get("k.7")
            past = [item.value for item in await store.history("k.2")]
            return seen, set(await store.keys()), entry.value, past
        finally:
            await client.close()

    seen, keys, value, past = asyncio.run(look())
    everything = {f"k.{number}" for number in range(1200)}
    assert seen == everything
    assert keys == everything - {"k.0", "k.1"}
    assert (value, past) == (b"service", [b"v", b"w"])
    found = spark.read.format("nats").options(url=server.url, bucket=bucket).load()
    assert {row.key for row in found.select("key").collect()} == keys


def test_what_cannot_be_written_is_refused(spark, save):
    """A column, a mode or a row that makes no sense is refused in a sentence; the pure tests have all of them."""
    frame = pairs(spark, 3)
    for wrong, mode, what in (
        (frame.withColumn("more", F.lit(1)), "append", "Nothing of column more would be written"),
        (frame, "overwrite", "keys that are not among the rows would stay"),
        (frame.withColumn("key", F.lit("no key")), "append", "cannot be a key"),
        (frame.withColumn("key", F.lit("same")), "append", "has rows of one key in more than one partition"),
    ):
        with pytest.raises(Exception, match=what):
            save(wrong, mode)


def test_rows_whose_revision_does_not_match_go_to_the_dead_letters(spark, streams, save, bulk, bucket, unique):
    """Compare and set by a column: the row that matches is stored, the other is a dead letter with the reason."""
    letters = streams.make(unique("DEAD"))
    put(bulk, bucket, "a", b"service")
    rows = spark.createDataFrame([("a", "mine", 0), ("b", "mine", 0)], "key string, value string, revision bigint")
    with pytest.raises(Exception, match="expects revision 0 of a"):
        save(rows.where("key = 'a'"), revisionColumn="revision", writeId="w1")
    for _ in range(2):
        save(rows, revisionColumn="revision", writeId="w2", deadLetterSubject=f"{letters}.rows")
    assert current(bulk, bucket) == {"a": b"service", "b": b"mine"}
    (letter,) = [row for batch in bulk.read(letters, 1) for row in batch.to_pylist()]
    assert letter["data"] == b"mine"
    assert "expects revision 0 of a, which has" in dict(letter["headers"])["Penstock-Error"][0]


def test_sums_in_update_mode_survive_restarts(spark, server, streams, bulk, bucket, unique, tmp_path):
    """Sums that change are put in update mode; a batch that comes again changes nothing, nor what a service wrote."""
    name = streams.make(unique("SALES"))

    def run() -> None:
        sales = spark.readStream.format("nats").options(url=server.url, stream=name, maxMessagesPerTrigger=100).load()
        key = F.substring_index("subject", ".", -1).alias("key")
        totals = sales.groupBy(key).agg(F.sum(F.col("data").cast("string").cast("long")).cast("string").alias("value"))
        writer = totals.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.foreachBatch(into_bucket(bucket, "totals", url=server.url)).trigger(availableNow=True).start()
        assert query.awaitTermination(90)

    streams.fill(name, [(f"c{number % 5}", b"1") for number in range(100)])
    run()
    assert current(bulk, bucket) == {f"c{number}": b"20" for number in range(5)}
    put(bulk, bucket, "c4", b"service")
    before = history(bulk, bucket)
    last = max(int(file.name) for file in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for file in (f"{last}", f".{last}.crc"):
        (tmp_path / "checkpoint" / "commits" / file).unlink(missing_ok=True)
    run()
    assert history(bulk, bucket) == before
    streams.fill(name, [("c1", b"5")])
    run()
    assert current(bulk, bucket) == {"c0": b"20", "c1": b"25", "c2": b"20", "c3": b"20", "c4": b"service"}


def test_a_stream_is_kept_as_its_newest_values(spark, server, streams, bulk, bucket, unique, tmp_path):
    """Rows of a stream in one partition, in their order: of each subject the bucket has the last. Spark itself refuses
    the mode update here, and the sink complete, each with a sentence.
    """
    name = streams.make(unique("TICKS"))
    streams.fill(name, [(f"s{number % 7}", b"%d" % number) for number in range(100)])
    ticks = spark.readStream.format("nats").options(url=server.url, stream=name, maxMessagesPerTrigger=60).load()
    rows = ticks.select(F.substring_index("subject", ".", -1).alias("key"), F.col("data").alias("value")).coalesce(1)

    def start(frame: Any, mode: str) -> Any:
        writer = frame.writeStream.format("nats").options(url=server.url, bucket=bucket).outputMode(mode)
        return writer.option("checkpointLocation", str(tmp_path / mode)).trigger(availableNow=True).start()

    assert start(rows, "append").awaitTermination(90)
    assert current(bulk, bucket) == {f"s{number % 7}": b"%d" % number for number in range(93, 100)}
    sums = rows.groupBy("key").agg(F.count("*").cast("string").alias("value"))
    with pytest.raises(Exception, match="does not support Update mode"):
        start(sums, "update").awaitTermination(90)
    with pytest.raises(Exception, match="leave keys in the bucket that are not in the result"):
        start(sums, "complete").awaitTermination(90)


def test_objects_are_written_once(spark, server, bulk, unique):
    """Rows with a name and a content are objects; what is there as it should be is not written again."""
    name = unique("DOCS")
    make_objects(bulk, name)

    def save(frame: Any, **options: Any) -> None:
        frame.write.format("nats").options(url=server.url, objects=name, **options).mode("append").save()

    rows = [("a b", b"x" * 300_000, "first", {"k": "v"}), ("empty", b"", None, None)]
    columns = "name string, content binary, description string, metadata map<string,string>"
    frame = spark.createDataFrame(rows, columns)
    save(frame, writeId="docs")
    before = objects(server.url, name)
    save(frame, writeId="docs")
    save(frame)
    assert objects(server.url, name) == before
    assert {key: content for key, (content, _) in before.items()} == {row[0]: row[1] for row in rows}
    assert (before["a b"][1].description, before["a b"][1].metadata) == ("first", {"k": "v"})
    bulk.api(f"STREAM.DELETE.OBJ_{name}")
