"""Results that change, such as sums, into a bucket: what `foreachBatch` is given, because Spark has no other way.

Spark lets a data source that is written in Python have the output modes append and complete, and refuses update. What
`foreachBatch` runs may have any; its writes are exactly once if each says which batch it is of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["into_bucket"]


def into_bucket(bucket: str, write_id: str, **options: Any) -> Callable[[DataFrame, int], None]:
    """Give a function for `foreachBatch` that puts the rows of every micro-batch into a bucket, exactly once::

        totals = orders.groupBy(col("customer").alias("key")).agg(sum("amount").cast("string").alias("value"))
        totals.writeStream.outputMode("update").foreachBatch(into_bucket("TOTALS", "totals", url=url)).start()

    `write_id` is a name that the query keeps over its starts, and no other query has in this bucket. `options` are
    those of the sink, such as `url`, `prepare` or `onNullValue`. They are checked at once, before anything runs.
    """
    given = {name: _text(value) for name, value in {**options, "bucket": bucket, "writeId": write_id}.items()}
    SinkOptions.parse(given)

    def write(frame: DataFrame, batch: int) -> None:
        frame.write.format("nats").options(**given).option("batchId", str(batch)).mode("append").save()

    return write


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
