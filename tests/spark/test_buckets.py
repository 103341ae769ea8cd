"""Buckets in a real Spark: keys, changes, objects, and joins that see what is written meanwhile."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

import penstock
from penstock.buckets import ObjectStore
from penstock.spark.functions import lookup
from tests.live.bucketing import buckets  # noqa: F401  # a fixture


def test_keys_changes_and_objects_are_frames(spark, server, read, buckets, unique, tmp_path):  # noqa: F811
    """A bucket is a frame of its keys in batch and of its changes in a stream; objects are one, too."""
    name, docs = buckets.make(unique("PRICES")), unique("DOCS")
    buckets.put(name, a=b"1", b__x=b"2", c=b"3")
    buckets.delete(name, "c")
    frame = read(bucket=name)
    assert frame.schema.simpleString() == (
        "struct<key:string,value:binary,revision:bigint,time:timestamp,operation:string>"
    )
    assert [(row.key, bytes(row.value)) for row in frame.orderBy("key").collect()] == [("a", b"1"), ("b.x", b"2")]
    few = spark.read.format("nats").schema("key string").option("url", server.url).option("bucket", name).load()
    assert sorted(row.key for row in few.where("key != 'a'").collect()) == ["b.x"]

    def run() -> list[tuple[int, str, str]]:
        stream = spark.readStream.format("nats").option("url", server.url).option("bucket", name).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.option("path", str(tmp_path / "rows")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        rows = spark.read.parquet(str(tmp_path / "rows")).collect()
        return sorted((row.revision, row.key, row.operation) for row in rows)

    assert run() == [(1, "a", "PUT"), (2, "b.x", "PUT"), (4, "c", "DEL")]
    buckets.put(name, c=b"5", a=b"6")
    assert run()[3:] == [(5, "c", "PUT"), (6, "a", "PUT")]

    async def put(nc):
        store = await ObjectStore.create_bucket(nc, docs)
        await store.put("one", b"x" * 300_000, metadata={"kind": "text"})

    buckets.call(put)
    buckets.made.append(f"OBJ_{docs}")
    row = read(objects=docs).collect()[0]
    assert (row.name, row.size, bytes(row.content), row.metadata) == ("one", 300_000, b"x" * 300_000, {"kind": "text"})
    chunks = read(objects=docs, content="chunks").groupBy("name").agg(F.sum(F.length("content")).alias("size"))
    assert chunks.collect()[0].size == 300_000
    with pytest.raises(AnalysisException, match="keys"):
        read(objects=docs, keys="a")


def test_a_join_with_a_bucket_sees_changes(spark, server, streams, buckets, unique, tmp_path):  # noqa: F811
    """Rows of the next micro-batch get the values that were stored before it, by lookup and by a frame loaded anew."""
    name, orders = buckets.make(unique("RATES")), streams.make(unique("orders"))
    buckets.put(name, eur=b"1.1", usd=b"1.0")
    seen: dict[str, list[tuple[str, str | None]]] = {"lookup": [], "loaded": []}

    def text(column):
        return column.cast("string")

    def take(frame, number):
        rates = spark.read.format("nats").option("url", server.url).option("bucket", name).load()
        rates = rates.select("key", text(F.col("value")).alias("loaded"))
        joined = frame.join(F.broadcast(rates), text(F.col("data")) == F.col("key"), "left")
        for row in joined.orderBy("sequence").collect():
            seen["lookup"].append((bytes(row.data).decode(), row.looked_up))
            seen["loaded"].append((bytes(row.data).decode(), row.loaded))

    source = spark.readStream.format("nats").option("url", server.url).option("stream", orders).load()
    rate = lookup(text(F.col("data")), name, url=server.url)
    frame = source.withColumn("rate", rate).withColumn("looked_up", text(F.col("rate.value")))
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    try:
        streams.fill(orders, [("x", b"eur"), ("x", b"chf"), ("x", b"no key"), ("x", b"usd")])
        query.processAllAvailable()
        buckets.put(name, eur=b"1.2", chf=b"0.9")
        buckets.delete(name, "usd")
        streams.fill(orders, [("x", b"eur"), ("x", b"chf"), ("x", b"usd")])
        query.processAllAvailable()
    finally:
        query.stop()
    before = [("eur", "1.1"), ("chf", None), ("no key", None), ("usd", "1.0")]
    after = [("eur", "1.2"), ("chf", "0.9"), ("usd", None)]
    assert seen == {"lookup": before + after, "loaded": before + after}


def test_a_lookup_in_a_bucket_that_is_none_fails(spark, server):
    """A query does not go on with nulls where there is no bucket; options are checked when the column is made."""
    frame = spark.createDataFrame([("a",)], "key string")
    with pytest.raises(Exception, match="stream not found"):
        frame.select(lookup("key", "nowhere", url=server.url)).collect()
    with pytest.raises(penstock.errors.InputError, match="name of a bucket"):
        lookup("key", "no.where", url=server.url)
    with pytest.raises(penstock.errors.InputError, match="There is no option 'stream'"):
        lookup("key", "somewhere", url=server.url, stream="x")
