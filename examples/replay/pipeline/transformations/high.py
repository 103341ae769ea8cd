"""Readings above the limit, from one stream into another, exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.pipelines import start_position, target

LIMIT = 90

spark = SparkSession.active()
out = target("HIGH")  # the stream itself, or the one that a replay fills beside it
dp.create_sink("high", "nats", {"stream": out.stream})


@dp.append_flow(target="high", name="high")
def high() -> DataFrame:
    rows = spark.readStream.format("nats").option("stream", "METERS").option("start", start_position()).load()
    reading = F.from_json(F.col("data").cast("string"), "meter string, value bigint")
    return (
        rows.select(reading.alias("reading"))
        .where(F.col("reading.value") > LIMIT)
        .select(
            F.concat(F.lit(out.subject("high.")), F.col("reading.meter")).alias("subject"),
            F.to_json("reading").cast("binary").alias("data"),
        )
    )
