"""From NATS into tables: every order, whole or broken, and the customers that they are joined with."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.pipelines import start_position

spark = SparkSession.active()

ORDER = "order_id string, customer string, cents bigint, ordered timestamp"
CUSTOMER = "customer string, name string, region string"


@dp.materialized_view(comment="The customers, from a stream that keeps the newest message of each.")
def customers() -> DataFrame:
    rows = spark.read.format("nats").option("stream", "CUSTOMERS").load()
    return rows.select(F.from_json(F.col("data").cast("string"), CUSTOMER).alias("row")).select("row.*")


@dp.table(comment="Every message that should be an order, with what is wrong with it.")
def incoming() -> DataFrame:
    rows = (
        spark.readStream.format("nats")
        # Orders of today's clients, and those that old clients send through a NATS Streaming channel.
        .option("streams", "ORDERS,shop:legacy-orders")
        .option("start", start_position())
        .option("maxMessagesPerTrigger", "1000")
        .load()
    )
    text = F.col("data").cast("string")
    parsed = rows.select(
        "stream", "sequence", "time", F.from_json(text, ORDER).alias("parsed"), text.alias("text")
    ).select("stream", "sequence", "time", "parsed.*", "text")
    # Selects alone: Spark reads a definition before the tables that it names are there.
    known = spark.read.table("customers").select(F.col("customer").alias("known"), "name", "region")
    fault = (
        F.when(F.col("order_id").isNull(), "not an order")
        .when(F.col("cents").isNull() | (F.col("cents") < 0), "no amount")
        .when(F.col("ordered").isNull(), "no time")
        .when(F.col("known").isNull(), "unknown customer")
    )
    columns = ("stream", "sequence", "time", "order_id", "customer", "cents", "ordered", "name", "region", "text")
    return parsed.join(known, F.col("customer") == F.col("known"), "left").select(*columns, fault.alias("fault"))
