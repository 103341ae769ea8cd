"""A service over the bus that answers from a key-value bucket, which Spark keeps up to date.

Sales go into a stream. Spark adds them up for each shop and keeps the sums in the bucket SHOP_SUMS, each sale counted
once. A service answers questions from the bucket, in replies that come element by element, at the reader's pace.

    penstock server run                             # in a terminal of its own, or set NATS_URL to a server of yours
    python examples/bus_service.py [FOLDER]         # example-output/bus-service, if no folder is named

With `--stay` it goes on serving until Ctrl-C. Then ask from another terminal, or look into the bucket:

    penstock bus call shops sums
    penstock bus call shops sum --query shop=bern
    penstock kv get SHOP_SUMS bern
"""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

from pyspark.sql import functions as F

import penstock
from penstock.buckets import KeyValue
from penstock.bus import Bus, Request, Response, Sender
from penstock.connection import Connection
from penstock.errors import InputError, NotFoundError
from penstock.jetstream import Publisher
from penstock.spark import into_bucket, session

SALES = [(f"sale-{number}", ["bern", "basel", "chur"][number % 3], 5 * number) for number in range(1, 301)]


async def send(nc: Connection) -> None:
    await nc.jetstream().add_stream(name="SALES", subjects=["sales.*"], allow_direct=True)
    if not (await nc.jetstream().stream_info("SALES")).messages:
        async with Publisher(nc, "SALES") as publisher:
            for name, shop, cents in SALES:
                await publisher.send(f"sales.{shop}", json.dumps({"shop": shop, "cents": cents}).encode(), id=name)
    try:
        await KeyValue.open(nc, "SHOP_SUMS")  # once it is there it is opened: the sink has added to its settings
    except NotFoundError:
        await KeyValue.create_bucket(nc, "SHOP_SUMS")


def add_up(folder: Path) -> None:
    """Bring the bucket up to date; in earnest, without `availableNow`, this runs in a program of its own for ever."""
    spark = session("bus service", spark__sql__shuffle__partitions=2)
    sale = F.from_json(F.col("data").cast("string"), "shop string, cents bigint").alias("sale")
    sums = (
        spark.readStream.format("nats")
        .option("stream", "SALES")
        .load()
        .select(sale)
        .groupBy(F.col("sale.shop").alias("key"))
        .agg(F.sum("sale.cents").cast("string").alias("value"))
    )
    query = (
        sums.writeStream.outputMode("update")
        .foreachBatch(into_bucket("SHOP_SUMS", "shop-sums", prepare=True))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


class Shops:
    """Answers `sum?shop=X` with one response, and `sums` with an array, element by element."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def __call__(self, request: Request, sender: Sender) -> None:
        if request.resource == "sums":
            async with sender.sections() as out:
                out.array("sums")
                async for entry in self._bucket.entries():
                    await out.send({"shop": entry.key, "cents": int(entry.value)})
            return
        try:
            found = (await self._bucket.get((request.query.get("shop") or [""])[0])).value
            await sender.respond(Response(200, "application/json", found))
        except (InputError, NotFoundError):  # a name that cannot be a key is nobody's shop, either
            await sender.respond(Response(404, "text/plain", b"Ask for sums, or for sum?shop=X with a shop that sold."))


async def main(folder: Path, stay: bool) -> None:
    async with await penstock.connect() as nc:  # the server that `penstock server run` runs, or NATS_URL
        await send(nc)
        await asyncio.to_thread(add_up, folder)
        bucket = await KeyValue.open(nc, "SHOP_SUMS")
        async with Bus(nc, queues={"shops": 1}) as bus, bus.serve("shops", Shops(bucket)):
            reply = await bus.request(Request("shops", resource="sums"), timeout=10.0)
            found = {e.json()["shop"]: e.json()["cents"] async for section in reply.sections() async for e in section}
            expected: Counter[str] = Counter()
            for _, shop, cents in SALES:
                expected[shop] += cents
            assert found == expected, f"{found} is not {expected}"
            print(f"The service says: {found}. Each of the {len(SALES)} sales is counted once.")
            nobody = await bus.request(Request("shops", resource="sum", query={"shop": ["rome"]}), timeout=10.0)
            print(f"And of a shop that is not there: {nobody.response.status}, {nobody.response.data.decode()}")
            if stay:
                await asyncio.Event().wait()


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--stay"]
    asyncio.run(main(Path(words[0] if words else "example-output/bus-service").absolute(), "--stay" in sys.argv))
