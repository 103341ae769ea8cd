"""From NATS into tables: every order, whole or broken, with its customer; and the sums of customers into a bucket."""

import json
from collections.abc import Iterator
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.pipelines import start_position, target

spark = SparkSession.active()

ORDER = "order_id string, customer string, cents bigint, ordered timestamp"
CUSTOMER = "customer string, name string, region string"


def read_customers() -> DataFrame:
    """Read the stream that keeps the newest message of each customer."""
    rows = spark.read.format("nats").option("stream", "CUSTOMERS").load()
    return rows.select(F.from_json(F.col("data").cast("string"), CUSTOMER).alias("row")).select("row.*")


def judge_orders(customers: DataFrame) -> DataFrame:
    """Read every message that should be an order, and say what is wrong with it."""
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
    known = customers.select(F.col("customer").alias("known"), "name", "region")
    fault = (
        F.when(F.col("order_id").isNull(), "not an order")
        .when(F.col("cents").isNull() | (F.col("cents") < 0), "no amount")
        .when(F.col("ordered").isNull(), "no time")
        .when(F.col("known").isNull(), "unknown customer")
    )
    columns = ("stream", "sequence", "time", "order_id", "customer", "cents", "ordered", "name", "region", "text")
    return parsed.join(known, F.col("customer") == F.col("known"), "left").select(*columns, fault.alias("fault"))


@dp.materialized_view(comment="The customers, from a stream that keeps the newest message of each.")
def customers() -> DataFrame:
    return read_customers()


@dp.table(comment="Every message that should be an order, with what is wrong with it.")
def incoming() -> DataFrame:
    # Selects alone: Spark reads a definition before the tables that it names are there.
    return judge_orders(spark.read.table("customers"))


# -- what each customer has ordered so far ----------------------------------------------------------------------------

dp.create_sink("customer_sums", "nats", {"bucket": target("KV_SUMS").bucket})

COUNTED = (
    T.StructType()
    .add("customer", T.StringType())
    .add("name", T.StringType())
    .add("region", T.StringType())
    .add("cents", T.LongType())
)
SUMS = T.StructType().add("cents", T.LongType()).add("orders", T.LongType())
ENTRY = T.StructType().add("key", T.StringType()).add("value", T.StringType())


class Sums(StatefulProcessor):
    """Adds the orders of each batch to what a customer had before; the checkpoint keeps that."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sums = handle.getValueState("sums", SUMS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        cents, orders = self._sums.get() or (0, 0)
        for row in rows:
            cents, orders, known = cents + row.cents, orders + 1, row
        self._sums.update((cents, orders))
        said = {"customer": key[0], "name": known.name, "region": known.region, "orders": orders, "cents": cents}
        yield Row(key=key[0], value=json.dumps(said))

    def close(self) -> None:
        """Nothing is held."""


@dp.append_flow(target="customer_sums", name="customer_sums")
def customer_sums_flow() -> DataFrame:
    # Such state cannot be kept of a table that is not there yet, so the messages are read here once more. With its
    # columns given, Spark need not ask for them, which it refuses while the pipeline is being read.
    whole = judge_orders(read_customers()).where("fault IS NULL").to(COUNTED)
    return whole.groupBy("customer").transformWithState(Sums(), ENTRY, "Append", "None")
