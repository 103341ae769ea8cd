"""Revenue of each region and minute, back into a NATS stream, exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.pipelines import target

spark = SparkSession.active()

out = target("REVENUE")
dp.create_sink("revenue", "nats", {"stream": out.stream})


@dp.append_flow(target="revenue", name="revenue")
def revenue_flow() -> DataFrame:
    minutes = (
        spark.readStream.table("orders")
        # An order may be ten minutes late; then its minute is closed and sent.
        .withWatermark("ordered", "10 minutes")
        .groupBy(F.window("ordered", "1 minute").alias("minute"), "region")
        .agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))
    )
    return minutes.select(
        F.concat(F.lit(out.subject("revenue.")), "region").alias("subject"),
        F.to_json(
            F.struct(
                F.date_format("minute.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("minute"), "region", "cents", "orders"
            )
        )
        .cast("binary")
        .alias("data"),
    )
