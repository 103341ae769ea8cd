"""A stream into a Delta table, each message once.

Delta's streaming sink keeps, in the table's own log, which batch of which query it has written (the query's id is in
the checkpoint). Penstock's source reads a batch that is repeated as the same messages. So a query that is killed at any
moment and started again with the same checkpoint adds each message once; a table that is read in the meantime shows
whole batches only. With a new checkpoint the query is another one, and writes everything again: keep the checkpoint as
long as the table. `foreachBatch` gives this up, unless it sets Delta's `txnAppId` and `txnVersion` itself.

Delta's packages come from Maven Central and fit one version of Spark: for 4.2 there is 4.4.0, for 4.3 none yet.

    pip install 'pyspark[connect,pipelines]==4.2.*'
    penstock server run                             # in a terminal of its own, or set NATS_URL to a server of yours
    python examples/delta_table.py [FOLDER]         # example-output/delta-table, if no folder is named
"""

import asyncio
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import penstock
from penstock.jetstream import Publisher
from penstock.spark import session

PACKAGES = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}  # by the version of Spark


async def send(count: int) -> None:
    async with await penstock.connect() as nc:  # the server that `penstock server run` runs, or NATS_URL
        await nc.jetstream().add_stream(name="EVENTS", subjects=["events.*"], allow_direct=True)
        async with Publisher(nc, "EVENTS") as publisher:
            for number in range(count):
                await publisher.send(f"events.{number % 3}", str(number).encode())


def delta_session() -> SparkSession:
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in PACKAGES:
        sys.exit(f"Delta has no package for Spark {version}. It has one for Spark {', '.join(PACKAGES)}: install that.")
    return session(
        "delta table",
        spark__jars__packages=PACKAGES[version],
        spark__sql__extensions="io.delta.sql.DeltaSparkSessionExtension",
        spark__sql__catalog__spark_catalog="org.apache.spark.sql.delta.catalog.DeltaCatalog",
        spark__sql__shuffle__partitions=2,
        spark__databricks__delta__snapshotPartitions=2,  # the table is small
    )


def write(spark: SparkSession, folder: Path) -> None:
    """Bring the table up to date, 25 messages a batch, so that there is more than one."""
    events = spark.readStream.format("nats").option("stream", "EVENTS").option("maxMessagesPerTrigger", 25).load()
    query = (
        events.selectExpr("sequence", "subject", "time", "cast(data as string) AS event")
        .writeStream.format("delta")
        .option("path", str(folder / "events"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def repeat_last_batch(folder: Path) -> None:
    """Take back the commit of the last batch in Spark's checkpoint, as a kill right before it would have left it."""
    last = max((folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


if __name__ == "__main__":
    where, running = Path(sys.argv[1] if sys.argv[1:] else "example-output/delta-table").absolute(), delta_session()
    for _ in range(2):
        asyncio.run(send(50))
        write(running, where)
        repeat_last_batch(where)
    write(running, where)
    rows = running.read.format("delta").load(str(where / "events"))
    stored, different = rows.count(), rows.select("sequence").distinct().count()
    assert stored == different, f"{stored} rows of {different} messages"
    print(f"{stored} rows of {different} messages: each once, although the last batch was written again twice.")
    running.stop()
