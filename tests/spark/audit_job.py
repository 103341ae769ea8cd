"""The query under audit, a process of its own: stream to shuffle to stream, in an order that is never the same.

Run by `tests.spark.audit_driver` with the folder of Spark's files on the command line. It starts Spark, says that it is
ready and waits for a line of JSON with the settings of the query: so the next driver can stand by while this one runs.
Later lines say which running task to kill. It ends with its input, by itself with `once`, or by being killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import functions as F

from penstock.spark import into_bucket
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


def running_tasks(spark: Any) -> list[int]:
    """Ask Spark which task attempts are running just now."""
    store = spark.sparkContext._jsc.sc().statusStore()
    found = []
    stages = store.activeStages()
    for place in range(stages.size()):
        stage = stages.apply(place)
        tasks = store.taskList(stage.stageId(), stage.attemptId(), 1000)
        found += [tasks.apply(one).taskId() for one in range(tasks.size()) if tasks.apply(one).status() == "RUNNING"]
    return found


def kill_a_task(spark: Any, seed: int) -> None:
    """Kill one of the tasks that run; wait for one where there is none just now."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if tasks := running_tasks(spark):
            spark.sparkContext._jsc.sc().killTaskAttempt(tasks[seed % len(tasks)], True, "the audit wants it dead")
            print(f"killed a task: {seed}", flush=True)
            return
        time.sleep(0.01)
    print(f"found no task: {seed}", flush=True)


def obey(spark: Any, query: Any) -> None:
    """Do what the lines of the input say; end with it, so that nothing is left when the audit dies."""
    for line in sys.stdin:
        order = json.loads(line)
        if "task" in order:
            kill_a_task(spark, order["task"])
        else:
            try:
                query.processAllAvailable()
                query.stop()
            except Exception as error:  # whatever it is: the main thread meets it, too, and ends with it
                print(f"could not finish: {error}", flush=True)
            return
    os._exit(3)


def warm_up(spark: Any) -> None:
    """Load what the first batch of the query would have to wait for."""

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        import penstock.spark.writers  # noqa: F401  # the workers of the query are forked from the same daemon

        yield from batches

    spark.range(4).repartition(2).mapInArrow(step, "id long").write.format("noop").mode("append").save()


def start(spark: Any, given: dict[str, Any]) -> Any:
    """Start the query."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", given["arrow_rows"])
    if given["unfenced"]:
        from tests.spark.unfenced import UnfencedSource

        spark.dataSource.register(UnfencedSource)
    numbers = (
        spark.readStream.format("nats")
        .option("url", given["url"])
        .option("stream", given.get("source", "IN"))
        .option("maxMessagesPerTrigger", given["batch"])
        .load()
        .select(F.col("data").cast("string").cast("long").alias("id"))
    )
    if given.get("bucket"):
        return start_sums(numbers, given)
    if given.get("objects"):
        return start_objects(numbers, given)
    rows = (
        numbers.repartition(given["partitions"], F.col("id") % 17)
        .mapInArrow(unruly(given["seed"], given["failures"]), "id long")
        .select(
            F.concat(F.lit(f"{given.get('target', 'OUT')}."), (F.col("id") % 5).cast("string")).alias("subject"),
            F.col("id").cast("string").alias("data"),
        )
    )
    return (
        rows.writeStream.format("unfenced" if given["unfenced"] else "nats")
        .option("url", given["url"])
        .option("stream", given.get("target", "OUT"))
        .option("atomicRows", given["atomic_rows"])
        .option("inFlight", given["in_flight"])
        # A broken sink notices by itself that rows are there which nobody claims: then the audit must count them.
        .option("onChangedRows", "keep" if given["unfenced"] else "fail")
        .option("patience", "45s")
        .option("requestTimeout", "2s")
        .option("checkpointLocation", given["checkpoint"])
        .trigger(**({"availableNow": True} if given["once"] else {"processingTime": "0 seconds"}))
        .start()
    )


def start_sums(numbers: Any, given: dict[str, Any]) -> Any:
    """Start the query that counts the numbers of each key into a bucket, in update mode."""
    sums = numbers.groupBy((F.col("id") % given["keys"]).alias("key")).agg(F.count("*").alias("value"))
    sums = sums.select(F.col("key").cast("string"), F.col("value").cast("string"))
    options = {"atomicRows": given["atomic_rows"], "inFlight": given["in_flight"], "patience": "45s"}
    put = into_bucket(given["bucket"], "sums", url=given["url"], requestTimeout="2s", **options)

    def write(frame: Any, batch: int) -> None:
        spread = frame.repartition(given["partitions"], F.hash("key", F.lit(given["seed"])))
        put(spread.mapInArrow(unruly(given["seed"], given["failures"]), "key string, value string"), batch)

    return (
        sums.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", given["checkpoint"])
        .trigger(**({"availableNow": True} if given["once"] else {"processingTime": "0 seconds"}))
        .start()
    )


def content_of(number: int) -> bytes:
    """Give the bytes of the object that a number becomes: nothing, a little, or several batches full."""
    dice = random.Random(number)
    return dice.randbytes(dice.choice([0, 10, 3_000, 50_000, 400_000]))


def start_objects(numbers: Any, given: dict[str, Any]) -> Any:
    """Start the query that stores an object for each number; those of a batch have names of their own."""

    def with_content(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            contents = [content_of(number) for number in batch.column("id").to_pylist()]
            yield batch.append_column("content", pa.array(contents, pa.binary()))

    rows = (
        numbers.repartition(given["partitions"], F.hash("id", F.lit(given["seed"])))
        .mapInArrow(unruly(given["seed"], given["failures"]), "id long")
        .mapInArrow(with_content, "id long, content binary")
        .select(
            (F.col("id") % given["keys"]).cast("string").alias("name"),
            F.col("id").cast("string").alias("description"),
            "content",
        )
    )
    return (
        rows.writeStream.format("nats")
        .option("url", given["url"])
        .option("objects", given["objects"])
        .option("atomicRows", given["atomic_rows"])
        .option("atomicBytes", given["atomic_bytes"])
        .option("inFlight", given["in_flight"])
        .option("patience", "45s")
        .option("requestTimeout", "2s")
        .option("checkpointLocation", given["checkpoint"])
        .trigger(**({"availableNow": True} if given["once"] else {"processingTime": "0 seconds"}))
        .start()
    )


def open_session(name: str, folder: str, master: str = "local[2,4]") -> Any:
    """Start a Spark that is quickly there, with everything of it below a folder."""
    spark = session(
        name,
        master=master,
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        # What runs is asked for to kill it: it must not be old news.
        spark__ui__liveUpdate__period="0ms",
        spark__driver__host="127.0.0.1",
        spark__driver__memory="700m",
        spark__executor__memory="700m",
        spark__local__dir=folder,
        spark__sql__warehouse__dir=folder,
        spark__sql__shuffle__partitions="2",
        # Compiling the plans would cost a JVM of some seconds more than it brings.
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    """Stand by, then run the query until it is done or killed."""
    spark = open_session("audit", sys.argv[1])
    warm_up(spark)
    print("ready", flush=True)
    line = sys.stdin.readline()
    if not line:
        spark.stop()
        return
    query = start(spark, json.loads(line))
    print("started", flush=True)
    threading.Thread(target=obey, args=(spark, query), daemon=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
