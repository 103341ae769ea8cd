"""Whole orders to one table, broken ones to another: nothing is dropped, nothing is in both."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Orders that can be counted, with their customers.")
def orders() -> DataFrame:
    whole = spark.readStream.table("incoming").where("fault IS NULL")
    return whole.select("order_id", "customer", "name", "region", "cents", "ordered", "stream", "sequence")


@dp.table(comment="Messages that are not orders, and why.")
def quarantine() -> DataFrame:
    return spark.readStream.table("incoming").where("fault IS NOT NULL").select("stream", "sequence", "fault", "text")
