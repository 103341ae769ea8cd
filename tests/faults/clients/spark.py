"""A Spark driver: a query from one stream through a shuffle into another, and writes with names beside it.

Every life has another number of partitions and other sizes of batches, so that a replay meets other ones than the batch
was begun with. `plant`: "unfenced" takes the fence out of the sink.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock import errors
from tests.faults.history import Ledger, Told
from tests.spark.audit_job import open_session, start
from tests.spark.java import set_up_java

# What Spark itself says, where nothing of ours is among its reasons.
SPARKS_OWN = {
    "ConcurrentUpdate": r"[Cc]oncurrent update|CONCURRENT|[Mm]ultiple streaming (queries|jobs)|already exists",
    # "Writing job failed" hides the reason: a worker died that was to clean up behind another one. Neither does Spark
    # find any data source if the worker that looks for them dies; it does at the next start.
    "WorkerDied": r"exited unexpectedly|connect back|crashed|on purpose|Connection reset|EOFException|Broken pipe|"
    r"Writing job failed|DATA_SOURCE_NOT_FOUND",
}


def reason(text: str) -> Told:
    """Find in what Spark says which error of ours it carries, or which of its own."""
    for name, what in re.findall(r"\b(\w+Error): ([^\n]+)", text):
        if hasattr(errors, name):
            return Told(name, what)
    for name, pattern in SPARKS_OWN.items():
        if found := re.search(pattern, text):
            return Told(name, text[max(0, found.start() - 200) : found.end() + 200])
    return Told("SparkError", text[:2000])


def rows_of(number: int, kind: str = "write") -> list[str]:
    """Give the rows of a write with a name."""
    return [f"{kind}-{number}-{row}" for row in range(Random(number).choice([2, 60, 400]))]


class Writes:
    """Writes with names, each done once whoever asks for it how often; a name is never used for other rows."""

    def __init__(self, spark: Any, given: dict[str, Any], ledger: Ledger, chance: Random) -> None:
        self._spark, self._given, self._ledger, self._chance = spark, given, ledger, chance
        self._folder = Path(given["writes"])

    def _save(self, number: int, rows: list[str]) -> None:
        frame = self._spark.createDataFrame([("SBATCH.x", row) for row in rows], "subject string, data string")
        writer = frame.repartition(self._chance.randint(1, 3)).write.format("nats").option("url", self._given["url"])
        writer.option("stream", "SBATCH").option("writeId", f"write-{number}").option("patience", "45s").mode(
            "append"
        ).save()

    def one(self) -> None:
        """Do the next write, one that was done before, or one that must be refused."""
        done = [int(file.name) for file in self._folder.iterdir()]
        number, kind = max(done, default=-1) + 1, "write"
        if done and self._chance.random() < 0.3:
            number, kind = self._chance.choice(done), self._chance.choice(["write", "other"])
        op = f"{kind}-{number}@{self._given['life']}-{time.monotonic():.3f}"
        self._ledger.note("invoke", op, number=number, kind=kind)
        try:
            self._save(number, rows_of(number, kind))
        except Exception as error:  # whatever Spark wraps it in
            told = reason(str(error))
            refused = kind == "other" and told.name == "MarkerError"
            self._ledger.note("fail" if refused else "unknown", op, why=f"{told.name}: {told.text}"[:500])
            return
        self._ledger.note("ok", op)
        if kind == "write":
            (self._folder / str(number)).touch()


def home_of_its_own(folder: Path) -> str:
    """Make a home of Spark out of links: executors keep their files below it, and must leave none with the package."""
    home = folder / "home"
    home.mkdir(parents=True)
    for inside in Path(pyspark.__file__).parent.iterdir():
        (home / inside.name).symlink_to(inside)
    return str(home)


def run(given: dict[str, Any], ledger: Ledger, over: threading.Event) -> None:
    """Run the query until it is over, or fails."""
    set_up_java()
    chance = Random(given["seed"] * 1000 + given["life"])
    folder = f"{given['scratch']}-{given['life']}"
    if given.get("executors"):
        os.environ["SPARK_HOME"] = home_of_its_own(Path(folder))
        spark = open_session("faults", folder, f"local-cluster[{given['executors']},1,700]")
    else:
        spark = open_session("faults", folder)
    try:
        settings = {
            "url": given["url"],
            "source": "SIN",
            "target": "SOUT",
            "checkpoint": given["checkpoint"],
            "seed": chance.randrange(10**6),
            "failures": 0.05,
            "partitions": chance.randint(1, 5),
            "batch": chance.choice([100, 500, 2000]),
            "atomic_rows": chance.choice([5, 50, 400]),
            "arrow_rows": chance.choice([50, 2000]),
            "in_flight": chance.choice([2, 4]),
            "once": False,
            "unfenced": given.get("plant") == "unfenced",
        }
        try:
            query = start(spark, settings)
        except (PySparkException, Py4JError) as error:
            raise reason(str(error)) from error
        writes, due, last = Writes(spark, given, ledger, chance), 0.0, -1
        while not over.wait(0.3):
            progress = query.lastProgress
            if progress is not None and progress["batchId"] > last:
                last = progress["batchId"]
                ledger.note("invoke", f"batch-{last}@{given['life']}")
                ledger.note("ok", f"batch-{last}@{given['life']}")
            if not query.isActive:
                raise reason(str(query.exception()))
            if time.monotonic() > due:
                writes.one()
                due = time.monotonic() + 3.0
        query.stop()
    finally:
        spark.stop()
