"""Scanned documents of several megabytes, put together from their chunks and verified."""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import ConnectionOptions, credentials
from penstock.contexts import load_options

spark = SparkSession.active()

DOCUMENT = "document string, size bigint, chunks bigint, pages bigint, sha256 string, verified boolean"


def assembled(options: ConnectionOptions) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Give the function that turns rows of last chunks into documents; it runs where the tasks run."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import hashlib

        import pyarrow as pa

        from penstock.wire.bulk import BulkConnection

        with BulkConnection(options) as bulk:
            for batch in batches:
                found = []
                for row in batch.to_pylist():
                    parts = {}
                    # The last chunk is stored last: all others are there, a repeated one counts once.
                    for read in bulk.read("DOCUMENTS", 1, row["sequence"] + 1, row["subject"]):
                        for headers, data in zip(read["headers"].to_pylist(), read["data"].to_pylist(), strict=True):
                            parts.setdefault(int(dict(headers)["X-Offset"][0]), data)
                    whole = b"".join(parts[offset] for offset in sorted(parts))
                    digest = hashlib.sha256(whole).hexdigest()
                    found.append(
                        {
                            "document": row["document"],
                            "size": len(whole),
                            "chunks": len(parts),
                            "pages": whole.count(b"\x0c"),
                            "sha256": digest,
                            "verified": digest == row["digest"] and len(whole) == int(row["total"]),
                        }
                    )
                if found:
                    yield pa.RecordBatch.from_pylist(found)

    return work


@dp.table(comment="Documents, each whole and verified against its digest.")
def documents() -> DataFrame:
    rows = (
        spark.readStream.format("nats").option("stream", "DOCUMENTS").option("maxBytesPerTrigger", "256m").load()
    )
    last = rows.where(F.element_at(F.col("headers")["X-Flags"], 1).cast("int").bitwiseAND(1) == 1).select(
        "subject",
        "sequence",
        F.element_at(F.col("headers")["X-Msg-Id"], 1).alias("document"),
        F.element_at(F.col("headers")["X-Total-Size"], 1).alias("total"),
        F.element_at(F.col("headers")["X-Digest"], 1).alias("digest"),
    )
    # The connection is found here, on the driver; tasks get it with the function.
    return last.mapInArrow(assembled(credentials.inline(load_options())), DOCUMENT)
