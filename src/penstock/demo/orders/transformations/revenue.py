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
    minute = F.date_format("minute", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("minute")
    return spark.readStream.table("revenue_minutes").select(
        F.concat(F.lit(out.subject("revenue.")), "region").alias("subject"),
        F.to_json(F.struct(minute, "region", "cents", "orders")).cast("binary").alias("data"),
    )
