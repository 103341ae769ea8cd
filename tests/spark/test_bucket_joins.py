"""Joins of a stream with a bucket in a real Spark: they see what is written meanwhile."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

import penstock
from penstock.spark.functions import lookup
from tests.live.bucketing import buckets  # noqa: F401  # a fixture


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
