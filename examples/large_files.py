"""Large files through NATS into Parquet: chunks in, Spark puts them together, one row a file out.

NATS carries messages of up to 1 MB. A file is sent as chunks into a stream, each acknowledged, under the name of the
file. Spark reads the chunks as they come, gives each file once it is whole and its digest is right, and writes Parquet.

    penstock server run                             # in a terminal of its own, or set NATS_URL to a server of yours
    python examples/large_files.py [FOLDER]         # example-output/large-files, if no folder is named

Run it again: the files are found in the stream and not sent again, and Spark, which remembers in its checkpoint how far
it was, adds no row. `penstock chunks ls FILES` lists what the stream holds.
"""

import asyncio
import hashlib
import random
import sys
from pathlib import Path

from pyspark.sql import functions as F

import penstock
from penstock.chunks import Archive, Publisher
from penstock.spark import assemble, session


def samples(count: int = 4, size: int = 3_000_000) -> dict[str, bytes]:
    """Give some files; those of your own are `Path("scan.pdf")`, which `publish` takes as well."""
    return {f"scan-{number}": random.Random(number).randbytes(size + number) for number in range(1, count + 1)}


async def send(files: dict[str, bytes]) -> None:
    async with await penstock.connect() as nc:  # the server that `penstock server run` runs, or NATS_URL
        await Archive.create(nc, "FILES", "files.scans", max_age="7d")
        publisher = Publisher.persistent(nc, "FILES", chunk_size=512 * 1024, digest=True)
        for name, content in files.items():
            # The name is the id of the payload: after a crash in the middle, only what is missing is sent again.
            sent = await publisher.publish("files.scans", content, message_id=name)
            print(f"{name}: {len(content):,} bytes {sent.outcome}")


def write_parquet(folder: Path) -> None:
    spark = session("large files", spark__sql__shuffle__partitions=2)
    chunks = spark.readStream.format("nats").option("stream", "FILES").load()
    files = assemble(chunks, timeout="1m").select(  # `error` is null if the file is whole and its digest is right
        F.col("message_id").alias("file"),
        "chunks",
        "error",
        F.length("data").alias("bytes"),
        F.sha2("data", 256).alias("sha256"),
    )
    query = (
        files.writeStream.format("parquet")
        .option("path", str(folder / "files"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)  # all that is there, and end; leave it out to go on for ever
        .start()
    )
    query.awaitTermination()


def check(folder: Path, files: dict[str, bytes]) -> None:
    found = session().read.parquet(str(folder / "files")).orderBy("file").collect()
    for row in found:
        print(
            f"{row.file}: {row.bytes:,} bytes in {row.chunks} chunks, SHA-256 {row.sha256[:16]}..., error: {row.error}"
        )
    sent = [(name, hashlib.sha256(content).hexdigest()) for name, content in files.items()]
    assert [(row.file, row.sha256) for row in found] == sorted(sent)
    print(f"{len(found)} files, each once, each with the digest of what was sent.")


if __name__ == "__main__":
    where, scans = Path(sys.argv[1] if sys.argv[1:] else "example-output/large-files").absolute(), samples()
    asyncio.run(send(scans))
    write_parquet(where)
    check(where, scans)
