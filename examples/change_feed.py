"""A feed of changes into counts by the minute, exactly once into another stream.

The stream CHANGES holds what a database reports: which row changed, how, and when. Changes come late and out of order.
Spark counts them by the minute in which they happened (event time), waits 30 seconds for late ones (the watermark), and
writes each count once, when it is final, into the stream CHANGE_COUNTS.

    penstock server run                             # in a terminal of its own, or set NATS_URL to a server of yours
    python examples/change_feed.py [FOLDER]         # example-output/change-feed, if no folder is named

Kill it at any moment and run it again: the checkpoint and the sink's own marks in CHANGE_COUNTS belong together, and no
minute is counted twice. Run it once more, and there is nothing to do.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import functions as F

import penstock
from penstock.jetstream import Publisher
from penstock.spark import session

FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTES = 5


def changes(count: int = 600) -> list[dict[str, object]]:
    """Give changes of some minutes, each up to 20 seconds late; the last one is far later, and closes all minutes."""
    dice = random.Random(1)
    made = []
    for number in range(count):
        happened = FIRST + timedelta(seconds=60 * MINUTES * number / count - dice.uniform(0, 20))
        happened = max(happened, FIRST)
        operation, table = dice.choice(["insert", "update", "update", "delete"]), dice.choice(["orders", "customers"])
        made.append({"id": number, "table": table, "operation": operation, "at": happened.isoformat()})
    closing = FIRST + timedelta(minutes=MINUTES + 10)
    return [*made, {"id": count, "table": "orders", "operation": "insert", "at": closing.isoformat()}]


async def send(feed: list[dict[str, object]]) -> None:
    async with await penstock.connect() as nc:  # the server that `penstock server run` runs, or NATS_URL
        js = nc.jetstream()
        await js.add_stream(name="CHANGES", subjects=["changes.*"], allow_direct=True)
        if not (await js.stream_info("CHANGES")).messages:
            async with Publisher(nc, "CHANGES") as publisher:  # a change that is sent again has the same id
                for change in feed:
                    data = json.dumps(change).encode()
                    await publisher.send(f"changes.{change['table']}", data, id=f"change-{change['id']}")
        counts = ["counts.*", "$PENSTOCK.CHANGE_COUNTS.>"]  # the second is where the sink keeps how far it is
        await js.add_stream(name="CHANGE_COUNTS", subjects=counts, allow_atomic=True, allow_direct=True)


def count_minutes(folder: Path) -> None:
    spark = session("change feed", spark__sql__shuffle__partitions=2)
    rows = spark.readStream.format("nats").option("stream", "CHANGES").load()
    change = F.from_json(F.col("data").cast("string"), "id bigint, table string, operation string, at timestamp")
    counts = (
        rows.select(change.alias("change"))
        .select("change.*")
        .withWatermark("at", "30 seconds")
        .groupBy(F.window("at", "1 minute"), "table", "operation")
        .count()
        .select(
            F.concat(F.lit("counts."), "table").alias("subject"),
            F.to_json(F.struct(F.col("window.start").alias("minute"), "table", "operation", "count")).alias("data"),
        )
    )
    query = (
        counts.writeStream.format("nats")
        .option("stream", "CHANGE_COUNTS")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def check(feed: list[dict[str, object]]) -> None:
    counts = session().read.format("nats").options(stream="CHANGE_COUNTS", subjects="counts.*").load()
    rows = [json.loads(row.data) for row in counts.orderBy("sequence").collect()]
    for minute, row in sorted(
        (row["minute"], f"{row['table']:9} {row['operation']:6} {row['count']:3}") for row in rows
    ):
        print(minute, row)
    found: Counter[tuple[object, object]] = Counter()
    for row in rows:
        found[row["table"], row["operation"]] += row["count"]
    expected = Counter((change["table"], change["operation"]) for change in feed[:-1])
    assert found == expected, "every change is in one count, but the last one, whose minute is still open"
    print(f"{sum(found.values())} changes, each in one count; {len(rows)} counts in CHANGE_COUNTS.")


if __name__ == "__main__":
    fed = changes()
    asyncio.run(send(fed))
    count_minutes(Path(sys.argv[1] if sys.argv[1:] else "example-output/change-feed").absolute())
    check(fed)
