"""Makes what Sparks of the tests start from, a home and an archive of Java classes: `python -m tests.spark.classes`.

Spark loads thousands of classes before its first row, and the suite starts dozens of JVMs. From an archive each of them
is there with two thirds of the work. It is made once for a `.venv`, by a session that does a little of everything; a
Java, or a Spark, that does not fit the archive goes without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.spark.java import ARCHIVE, QUICK_JVM, lay_out_home, set_up_java


def make(file: Path, folder: str) -> None:
    """Run a session that notes the classes it loads, and wait until its JVM has written them."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import pandas_udf

    partial = file.with_name(f"{file.name}.{os.getpid()}")
    places = f"-Djava.io.tmpdir={folder} -Dderby.stream.error.file={folder}/derby.log"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={partial} {places}"
    os.environ["SPARK_TESTING"] = "1"  # by which Connect takes a free port
    spark = (
        SparkSession.builder.remote("local[2]")  # through Connect: classic sessions and pipelines find theirs in it
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.sql.catalogImplementation", "hive")  # as pipelines have it: half of their start is its classes
        .config("spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:;databaseName={folder}/catalog;create=true")
        .getOrCreate()
    )
    try:
        increase = pandas_udf("long")(lambda numbers: numbers + 1)
        rows = spark.range(1000, numPartitions=2).select((increase("id") % 7).alias("k"))
        rows.groupBy("k").count().orderBy("k").write.parquet(f"{folder}/table")
        spark.read.parquet(f"{folder}/table").createOrReplaceTempView("counted")
        assert len(spark.sql("SELECT k, to_json(struct(count)) AS j FROM counted WHERE k > 2").collect()) == 4
        spark.sql("CREATE TABLE kept USING parquet AS SELECT k FROM counted")
        seconds = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
        query = (
            seconds.groupBy("timestamp")
            .count()
            .writeStream.format("noop")
            .outputMode("append")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    finally:
        java = SparkContext._gateway.proc
        spark.stop()
        java.stdin.close()  # at which it ends
        java.wait(300)
    if partial.exists():  # not every Java writes one
        os.replace(partial, file)


def main() -> None:
    lay_out_home()
    if ARCHIVE.exists():
        return
    set_up_java()
    failure = "this Java writes none"
    with tempfile.TemporaryDirectory(prefix="penstock-classes-") as folder:
        try:
            make(ARCHIVE, folder)
        except Exception as error:  # it saves time, and nothing else: what is wrong with Spark the tests will tell
            failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    for partial in ARCHIVE.parent.glob(f"{ARCHIVE.name}.*"):
        partial.unlink()
    if ARCHIVE.exists():
        told = f"{ARCHIVE.name}: {ARCHIVE.stat().st_size // 2**20} MB of classes for the JVMs of the tests"
    else:
        told = f"The JVMs of the tests start without an archive of classes: {failure}."
    sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    main()
