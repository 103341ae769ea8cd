"""The query under audit, a process of its own: stream to shuffle to stream, in an order that is never the same.

Run by `tests.spark.audit` with its settings as JSON on the command line. Ends by itself with `once`, else by being
killed.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import functions as F

from penstock.spark.sessions import session


def unruly(seed: int, share: float) -> Any:
    """Give a step that hands rows on in a random order, and makes some first attempts at a task fail halfway."""

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np

        context = TaskContext.get()
        dice = random.Random(f"{seed} {context.getLocalProperty('streaming.sql.batchId')} {context.partitionId()}")
        fails = context.attemptNumber() == 0 and dice.random() < share
        for batch in batches:
            order = np.random.permutation(batch.num_rows)
            half = batch.num_rows // 2
            yield batch.take(order[:half])
            if fails and half:
                raise RuntimeError("this attempt fails on purpose")
            yield batch.take(order[half:])

    return step


def main() -> None:
    """Run the query until it is done or killed."""
    given = json.loads(sys.argv[1])
    spark = session(
        "audit",
        master="local[2,4]",
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__driver__host="127.0.0.1",
        spark__driver__memory="700m",
        spark__local__dir=given["folder"],
        spark__sql__warehouse__dir=given["folder"],
        # Small Arrow batches, so that a task passes many of them and can be hit between any two.
        spark__sql__execution__arrow__maxRecordsPerBatch="200",
    )
    spark.sparkContext.setLogLevel("OFF")
    if given["unfenced"]:
        from tests.spark.unfenced import UnfencedSource

        spark.dataSource.register(UnfencedSource)
    rows = (
        spark.readStream.format("nats")
        .option("url", given["url"])
        .option("stream", "IN")
        .option("maxMessagesPerTrigger", given["batch"])
        .load()
        .select(F.col("data").cast("string").cast("long").alias("id"))
        .repartition(given["partitions"], F.col("id") % 17)
        .mapInArrow(unruly(given["seed"], given["failures"]), "id long")
        .select(
            F.concat(F.lit("OUT."), (F.col("id") % 5).cast("string")).alias("subject"),
            F.col("id").cast("string").alias("data"),
        )
    )
    query = (
        rows.writeStream.format("unfenced" if given["unfenced"] else "nats")
        .option("url", given["url"])
        .option("stream", "OUT")
        .option("atomicRows", given["atomic_rows"])
        .option("inFlight", given["in_flight"])
        .option("retryTimeout", "45s")
        .option("requestTimeout", "2s")
        .option("checkpointLocation", given["checkpoint"])
        .trigger(**({"availableNow": True} if given["once"] else {"processingTime": "0 seconds"}))
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
