"""The context of a trace, as OpenTelemetry writes it into headers, from a publisher through Spark to the sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from penstock.spark.functions import trace_context

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=a,other=b"}


@pytest.mark.parametrize("derived", [False, True])
def test_a_message_stays_in_its_trace(spark, server, streams, read, unique, tmp_path: Path, derived: bool):
    """A row keeps the context that its sender set, as it is; one made of another row keeps that, and nothing else."""
    source, sink = streams.make(unique("IN")), streams.make(unique("OUT"))
    own = {**TRACE, "Nats-Msg-Id": "1", "customer": "7"}
    streams.fill(source, [("x", b"traced", own), ("x", b"plain"), ("x", b"canonical", {"Traceparent": "00-a-b-01"})])
    rows = spark.readStream.format("nats").option("url", server.url).option("stream", source).load()
    headers = trace_context() if derived else F.col("headers")
    data = F.upper(F.col("data").cast("string")).alias("data")
    made = rows.select(F.lit(f"{sink}.x").alias("subject"), data, headers.alias("headers"))
    writer = made.writeStream.format("nats").option("url", server.url).option("stream", sink).option("prepare", True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()

    def kept(row: Any) -> dict[str, list[str]]:
        return {name: values for name, values in (row.headers or {}).items() if not name.startswith("Nats-")}

    found = {bytes(row.data): kept(row) for row in read(sink).collect()}
    trace = {name: [value] for name, value in TRACE.items()}
    assert found == {
        b"TRACED": trace if derived else {**trace, "customer": ["7"]},
        b"PLAIN": {},
        b"CANONICAL": {"Traceparent": ["00-a-b-01"]},
    }
