"""Old clients of NATS Streaming on JetStream: they stay as they are, and Spark reads what they publish.

NATS Streaming ended in 2023. The gateway speaks its protocol and keeps every channel in a stream of JetStream, so an
old client connects with no change, and new programs read the same messages with JetStream, or with Spark. The client
here is ours; it speaks what stan.go and stan.py speak, and works against a real NATS Streaming server, too.

    penstock server run                             # in a terminal of its own, or set NATS_URL to a server of yours
    python examples/old_clients.py

In earnest the gateway runs by itself: `penstock channels serve --cluster-id plant`.
"""

import asyncio

from pyspark.sql import functions as F

import penstock
from penstock.channels import Client, Gateway
from penstock.spark import session

CLUSTER, CHANNEL = "plant", "temperatures"


async def old_world(readings: int = 30) -> None:
    """What has run for years: a publisher, and a durable subscriber that goes on where it was."""
    async with Gateway(cluster_id=CLUSTER), Client(cluster_id=CLUSTER, client_id="furnace") as client:
        for number in range(readings):
            await client.publish(CHANNEL, f"{800 + number}".encode())  # returns when it is stored
        subscription = await client.subscribe(CHANNEL, start="First", durable="logbook")
        seen = []
        async for message in subscription:  # asking for the next acknowledges this one
            seen.append(message.data.decode())
            if len(seen) == 3:
                break
        print(f"An old subscriber reads {seen} ...")


async def new_world() -> int:
    """Any client of JetStream reads the stream of the channel; its name is the cluster id and the channel."""
    async with await penstock.connect() as nc:
        state = await nc.jetstream().stream_info(f"{CLUSTER}:{CHANNEL}")
        print(f"... JetStream has {state.messages} messages in the stream {CLUSTER}:{CHANNEL} ...")
        return state.messages


def spark_reads(stored: int) -> None:
    """The source takes the channel by its name; `.option("stream", "plant:temperatures")` is the same."""
    spark = session("old clients")
    rows = spark.read.format("nats").options(channel=CHANNEL, clusterId=CLUSTER).load()
    degrees = F.col("data").cast("string").cast("int")
    row = rows.agg(F.count("*").alias("messages"), F.min(degrees).alias("low"), F.max(degrees).alias("high")).first()
    print(f"... and Spark counts {row.messages}, from {row.low} to {row.high} degrees.")
    assert row.messages == stored


if __name__ == "__main__":
    asyncio.run(old_world())
    spark_reads(asyncio.run(new_world()))
