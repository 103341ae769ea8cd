"""A Spark driver to be killed: reads a stream into Parquet files, until it is told to stop or dies.

python -m tests.spark.victim '{"url": ..., "stream": ..., "folder": ..., "master": "local[2,4]"}'
"""

from __future__ import annotations

import json
import sys

from penstock.spark.sessions import session


def main() -> None:
    """Run the query; `finish` ends it once everything is read."""
    given = json.loads(sys.argv[1])
    spark = session(
        "victim",
        master=given["master"],
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__driver__host="127.0.0.1",
        spark__driver__memory="700m",
        spark__local__dir=given["folder"] + "/local",
        spark__sql__warehouse__dir=given["folder"] + "/warehouse",
        **given.get("conf", {}),
    )
    spark.sparkContext.setLogLevel("OFF")
    reader = spark.readStream.format("nats").option("url", given["url"]).option("stream", given["stream"])
    for name, value in given.get("options", {}).items():
        reader = reader.option(name, value)
    folder = given["folder"]
    writer = reader.load().select("stream", "sequence").writeStream.format("parquet")
    writer = writer.option("path", f"{folder}/rows").option("checkpointLocation", f"{folder}/checkpoint")
    trigger = {"availableNow": True} if given.get("finish") else {"processingTime": "0 seconds"}
    query = writer.trigger(**trigger).start()
    print("running", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
