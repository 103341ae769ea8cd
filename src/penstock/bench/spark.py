"""Spark on this machine: rows into a stream with a guarantee, and the stream's rows through Spark."""

from __future__ import annotations

import tempfile
from typing import Any

from penstock.bench.client_job import ClientJob
from penstock.bench.results import Sample
from penstock.bench.worker import Gate
from penstock.errors import DataLossError
from penstock.options import ConnectionOptions

__all__ = ["read", "write"]


def _session(folder: str, tasks: int) -> Any:
    from penstock.spark.sessions import session

    spark = session(
        "penstock bench",
        master=f"local[{tasks}]",
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__local__dir=folder,
        spark__sql__warehouse__dir=f"{folder}/warehouse",
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _options(job: ClientJob, of: Any) -> Any:
    from penstock.spark.options import CONNECTION, SHOWN

    default = ConnectionOptions()
    for option in CONNECTION:
        value = getattr(job.options, option.field, None)
        if value is not None and value != getattr(default, option.field):
            text = str(value).lower() if isinstance(value, bool) else f"{value}s" if isinstance(value, float) else value
            of = of.option(SHOWN.get(option.field, option.name), text)
    return of.option("stream", job.name)


def write(job: ClientJob, gate: Gate) -> Sample:
    """Write rows with the sink, a tenth of them before the clock starts, to warm up."""
    from pyspark.sql import functions as F

    gate.has_others = True
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        spark = _session(folder, job.batch)
        try:

            def save(rows: int) -> None:
                data = F.lit(bytearray(job.payload))
                frame = spark.range(rows, numPartitions=job.batch).select(
                    F.lit(job.subjects.base).alias("subject"), data.alias("data")
                )
                out = _options(job, frame.write.format("nats")).option("guarantee", job.mode).option("prepare", "true")
                out.mode("append").save()

            save(max(1, job.messages // 10))
            gate.ready()
            save(job.messages)
            return gate.done(job)
        finally:
            spark.stop()


def read(job: ClientJob, gate: Gate) -> Sample:
    """Read the stream with the source, and count its rows; the first read warms up."""
    gate.has_others = True
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        spark = _session(folder, job.batch)
        try:

            def count() -> int:
                frame = _options(job, spark.read.format("nats")).option("minPartitions", str(job.batch)).load()
                return int(frame.selectExpr("sum(length(data)) as bytes", "count(*) as rows").first()["rows"])

            count()
            gate.ready()
            found = count()
            sample = gate.done(job)
            if found != job.messages:
                raise DataLossError(f"Spark read {found:,} of {job.messages:,} messages.", stream=job.name)
            return sample
        finally:
            spark.stop()
