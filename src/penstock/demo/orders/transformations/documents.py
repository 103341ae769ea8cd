"""Scanned documents of several megabytes, put together from their chunks and verified."""

from collections.abc import Callable
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock import ConnectionOptions, credentials
from penstock.contexts import load_options

spark = SparkSession.active()

# Types in words would ask Spark while the pipeline is being read, which it refuses.
DOCUMENT = (
    T.StructType()
    .add("document", T.StringType())
    .add("size", T.LongType())
    .add("chunks", T.LongType())
    .add("pages", T.LongType())
    .add("sha256", T.StringType())
    .add("verified", T.BooleanType())
)


def assembler(options: ConnectionOptions) -> Callable[[str, int, str, str], dict[str, Any]]:
    """Give the function that fetches the document whose last chunk was read; it runs where the tasks run."""

    def assemble(subject: str, sequence: int, total: str, digest: str) -> dict[str, Any]:
        import hashlib

        from penstock.wire.bulk import BulkConnection

        parts: dict[int, bytes] = {}
        with BulkConnection(options) as bulk:
            # The last chunk is stored last: all others are there, and a repeated one counts once. Older documents
            # may be gone from the stream; if it were this one, the digest would tell.
            for read in bulk.read("DOCUMENTS", 1, sequence + 1, subject, on_loss=lambda lost: None):
                for headers, data in zip(read["headers"].to_pylist(), read["data"].to_pylist(), strict=True):
                    parts.setdefault(int(dict(headers)["X-Offset"][0]), data)
        whole = b"".join(parts[offset] for offset in sorted(parts))
        found = hashlib.sha256(whole).hexdigest()
        return {
            "document": subject.rpartition(".")[2],
            "size": len(whole),
            "chunks": len(parts),
            "pages": whole.count(b"\x0c"),
            "sha256": found,
            "verified": found == digest and len(whole) == int(total),
        }

    return assemble


def header(name: str) -> Column:
    return F.element_at(F.col("headers")[name], 1)


@dp.table(comment="Documents, each whole and verified against its digest.")
def documents() -> DataFrame:
    rows = spark.readStream.format("nats").option("stream", "DOCUMENTS").option("maxBytesPerTrigger", "256m").load()
    last = rows.where(header("X-Flags").cast("int").bitwiseAND(1) == 1)
    # The connection is found here, on the driver; tasks get it with the function.
    assemble = F.udf(assembler(credentials.inline(load_options())), DOCUMENT)
    whole = assemble("subject", "sequence", header("X-Total-Size"), header("X-Digest"))
    return last.select(whole.alias("row")).select("row.*")
