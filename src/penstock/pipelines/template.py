"""What `penstock pipeline new` writes: a pipeline small enough to read in a minute, and whole enough to run."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import InputError

__all__ = ["write_project"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

_SPEC = """\
name: {name}
# Where checkpoints, tables and the catalog live, from this file. Write a URI for another place: s3a://bucket/{name}
storage: storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.session.timeZone: UTC
"""

_TOPOLOGY = """\
# Streams that the pipeline needs; `penstock pipeline run` makes them first.

[streams.READINGS]
description = "What the sensors say."
subjects = ["readings.*"]
allow_direct = true

[streams.ALERTS]
description = "Readings that are too high, written by the pipeline exactly once."
# The second subject is where the sink keeps how far it is.
subjects = ["alerts.*", "$PENSTOCK.ALERTS.>"]
allow_atomic = true
allow_direct = true
"""

_READINGS = '''\
"""From NATS into a table."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.pipelines import start_position

spark = SparkSession.active()


@dp.table(comment="Every reading.")
def readings() -> DataFrame:
    rows = spark.readStream.format("nats").option("stream", "READINGS").option("start", start_position()).load()
    reading = F.from_json(F.col("data").cast("string"), "sensor string, value double")
    return rows.select("sequence", "time", reading.alias("reading")).select("sequence", "time", "reading.*")
'''

_ALERTS = '''\
"""From a table into NATS, exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.pipelines import target

spark = SparkSession.active()

out = target("ALERTS")
dp.create_sink("alerts", "nats", {"stream": out.stream})


@dp.append_flow(target="alerts", name="alerts")
def alerts_flow() -> DataFrame:
    return (
        spark.readStream.table("readings")
        .where("value > 90")
        .select(
            F.concat(F.lit(out.subject("alerts.")), "sensor").alias("subject"),
            F.to_json(F.struct("sensor", "value", "sequence")).cast("binary").alias("data"),
        )
    )
'''

_TOTALS = """\
CREATE MATERIALIZED VIEW totals
COMMENT 'What each sensor has said so far.'
AS SELECT sensor, COUNT(*) AS readings, AVG(value) AS average, MAX(value) AS highest
FROM readings
GROUP BY sensor;
"""

_TRAFFIC = '''\
"""Publishes sample readings: python traffic.py [URL]"""

import asyncio
import json
import random
import sys
from pathlib import Path

import penstock
from penstock.jetstream import Publisher, Topology, apply

HERE = Path(__file__).parent


def sample(count: int = 1000, seed: int = 1) -> list[dict[str, object]]:
    dice = random.Random(seed)
    return [{"sensor": f"s{dice.randrange(8)}", "value": round(dice.uniform(0, 100), 2)} for _ in range(count)]


async def publish(url: str | None = None, count: int = 1000) -> None:
    client = await penstock.connect(url)
    try:
        await apply(client, Topology.load(HERE / "topology.toml"))
        async with Publisher(client, "READINGS") as publisher:
            for number, reading in enumerate(sample(count)):
                await publisher.send(f"readings.{reading['sensor']}", json.dumps(reading).encode(), id=f"r-{number}")
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(publish(*sys.argv[1:2]))
'''

_TEST = '''\
"""The pipeline on a real server: every reading counts once, and each that is too high becomes one alert."""

import asyncio
from pathlib import Path

import penstock
from penstock.pipelines import Table, run
from penstock.wire.bulk import BulkConnection

from traffic import publish, sample

HERE = Path(__file__).parent


def alerts(url: str) -> int:
    with BulkConnection(penstock.ConnectionOptions(url)) as bulk:
        return sum(batch.num_rows for batch in bulk.read("ALERTS", subjects="alerts.*", on_loss=print))


def test_alerts(tmp_path):
    high = sum(reading["value"] > 90 for reading in sample())
    with penstock.Server() as server:
        asyncio.run(publish(server.url))
        run(HERE, url=server.url, storage=tmp_path)
        assert alerts(server.url) == high
    assert sum(row["readings"] for row in Table(tmp_path / "warehouse" / "totals").rows()) == len(sample())
'''

_README = """\
# {name}

`topology.toml` declares the streams, `spark-pipeline.yaml` the pipeline, `transformations/` its tables and sinks.

    penstock server run &
    python traffic.py
    penstock pipeline run .
    penstock pipeline status .
    pytest
"""


def write_project(where: Path, name: str) -> Path:
    """Write a new project into a folder of its name, and give the folder."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of a pipeline.", remedy="Begin with a letter; use letters, digits, - and _."
        )
    folder = where / name
    if folder.exists():
        raise InputError(f"{folder} is there already.", remedy="Choose another name.")
    files = {
        "spark-pipeline.yaml": _SPEC.format(name=name),
        "topology.toml": _TOPOLOGY,
        "transformations/readings.py": _READINGS,
        "transformations/alerts.py": _ALERTS,
        "transformations/totals.sql": _TOTALS,
        "traffic.py": _TRAFFIC,
        "test_pipeline.py": _TEST,
        "README.md": _README.format(name=name),
        ".gitignore": "storage/\n",
    }
    try:
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.", remedy="Choose another place.") from None
    return folder
