"""Uses secrets in Spark as somebody might, and gathers all that Spark shows of it.

As a program it does so in a plain session of its own, with the UI and an event log: `python secret_job.py CASES.json
FOLDER`. Whatever it found is in FOLDER afterwards.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

MODES = ("simple", "extended", "codegen", "cost", "formatted")
PAGES = ("jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery")
STREAM, OUT = "GUARDED", "GUARDED_OUT"  # no word that Spark hides


def use(spark: Any, options: dict[str, str], folder: Path, *, brief: bool = False) -> str:
    """Read, write, stream, make views and fail with these options; give what Spark says on the way.

    What is brief does each in one way only: a view that is cached, the batch sink and the failures are left out.
    """
    said: list[str] = []

    def look(frame: Any) -> None:
        said.append(frame._jdf.queryExecution().toString())
        for mode in ("extended",) if brief else MODES:
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()) as shown:
                frame.explain(mode=mode)
            said.append(shown.getvalue())

    frame = spark.read.format("nats").options(stream=STREAM, **options).load()
    look(frame)
    assert frame.count() > 0
    frame.createOrReplaceTempView("secret_view")
    look(spark.sql("SELECT subject, count(*) FROM secret_view GROUP BY subject"))
    spark.sql("SELECT count(*) FROM secret_view").collect()
    if not brief:
        spark.sql("CACHE TABLE cached_view AS SELECT * FROM secret_view")
        said.append(str(spark.sql("EXPLAIN EXTENDED SELECT * FROM cached_view").collect()))
        said.append(str(spark.sql("DESCRIBE EXTENDED secret_view").collect()))
        spark.sql("UNCACHE TABLE cached_view")
        spark.sql("DROP VIEW cached_view")
    given = ", ".join(f"{name} '{value}'" for name, value in {"stream": STREAM, **options}.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW secret_made USING nats OPTIONS ({given})")
    look(spark.sql("SELECT * FROM secret_made"))
    assert spark.sql("SELECT count(*) FROM secret_made").collect()[0][0] > 0
    if not brief:
        rows = frame.selectExpr(f"'{OUT}.x' AS subject", "data")
        rows.write.format("nats").options(stream=OUT, guarantee="at-least-once", **options).mode("append").save()
    stream = spark.readStream.format("nats").options(stream=STREAM, **options).load()
    look(stream)
    stream.createOrReplaceTempView("secret_stream")
    writer = (
        spark.table("secret_stream")
        .selectExpr(f"'{OUT}.y' AS subject", "data")
        .writeStream.format("nats")
        .options(stream=OUT, guarantee="at-least-once", **options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    for attempt in range(5):
        query = writer.start()
        try:
            query.awaitTermination()
            break
        except Exception as error:  # Spark gives its Python ten seconds, which a starved machine does not
            said.append(str(error))
            if "connect back" not in str(error) or attempt == 4:
                raise
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        query.explain(extended=True)
    said += [shown.getvalue(), str(query.recentProgress), str(query.status)]
    faults = ({"stream": "missing"}, {"stream": STREAM, "steam": "x"}, {"stream": STREAM, "start": "never"})
    for wrong in () if brief else faults:
        try:
            spark.read.format("nats").options(**{**options, **wrong}).load().count()
        except Exception as error:
            said.append(f"{error} {error.__cause__}")
    return "\n".join(said)


def pages(address: str) -> str:
    """Give what the UI and the REST pages show."""

    def get(path: str) -> str:
        with urllib.request.urlopen(f"{address}{path}", timeout=30) as answer:
            return answer.read().decode(errors="replace")

    found = [get(f"/{page}/") for page in PAGES]
    [application] = json.loads(get("/api/v1/applications"))
    base = f"/api/v1/applications/{application['id']}"
    for page in ("sql?details=true&planDescription=true&length=1000", "jobs", "stages?details=true", "environment"):
        found.append(get(f"{base}/{page}"))
    executions = json.loads(found[len(PAGES)])
    found += [get(f"/SQL/execution/?id={item['id']}") for item in executions]
    assert len(executions) > 5, "nothing was looked at"
    return "\n".join(found)


def main() -> None:
    """Run every case in a session that nobody prepared."""
    from pyspark.sql import SparkSession

    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    (folder / "events").mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.port", "0")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", (folder / "events").as_uri())
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("DEBUG" if "--debug" in sys.argv else "INFO")
    for number, options in enumerate(cases):
        place = folder / f"case{number}"
        place.mkdir()
        (place / "said.txt").write_text(use(spark, options, place))
    (folder / "pages.txt").write_text(pages(str(spark.sparkContext.uiWebUrl)))
    spark.stop()


if __name__ == "__main__":
    main()
