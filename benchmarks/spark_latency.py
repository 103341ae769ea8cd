"""What small micro-batches cost: from a message in one stream to its row in another, and a few rows in many partitions.

    python benchmarks/spark_latency.py                 thirty seconds of a hundred messages a second, for each sink
    python benchmarks/spark_latency.py --quick         ten

The sinks are Spark's own noop (the floor of the JVM and of our source), a Python sink that does nothing (the floor of
any Python sink), and ours at least once and exactly once; all read the same stream. A delay is how long a message waits
from its ack to the end of its batch, for ours also until its row is stored. A batch's parts are Spark's own, out of the
progress of the query. The result goes to artifacts/spark_latency.json, or where --output says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import penstock
from penstock.spark.sessions import session
from penstock.wire import compiled
from penstock.wire.bulk import BulkConnection

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides
from _cpu import CpuTime
from _empty_sink import Empty

RATE = 100  # messages a second
SIZE = 128
SINKS = ("noop", "empty", "at-least-once", "exactly-once")


def publish(url: str, over: threading.Event) -> None:
    """Publish a hundred messages a second."""
    with BulkConnection(url) as bulk:
        rows = sides.batches(RATE // 20, SIZE)[0].drop_columns(["subject"])
        begun, done = time.monotonic(), 0
        while not over.wait(max(0.0, begun + done / 20 - time.monotonic())):
            bulk.publish("IN", rows, subject="in.a")
            done += 1


def writing(frame: Any, url: str, sink: str) -> Any:
    """Give a stream writer into a sink."""
    if sink in ("noop", "empty"):
        return frame.writeStream.format(sink)
    out = {"url": url, "stream": "OUT", "subject": "out.a", "guarantee": sink, "prepare": "true"}
    return frame.select("data", "headers").writeStream.format("nats").options(**out)


def latency(spark: Any, url: str, sink: str, folder: str, seconds: float) -> dict[str, Any]:
    """Run a query for a while and say how long messages waited, and what its batches were made of."""
    frame = spark.readStream.format("nats").option("url", url).option("stream", "IN").option("start", "new").load()
    if sink.endswith("once"):  # the time at which a message was stored travels with it
        when = F.unix_micros("time").cast("string")
        frame = frame.withColumn("headers", F.create_map(F.lit("At"), F.array(when)))
    over = threading.Event()
    thread = threading.Thread(target=publish, args=(url, over), daemon=True)
    with BulkConnection(url) as bulk:
        first = bulk.api("STREAM.INFO.OUT")["state"]["last_seq"] + 1
    begun = time.perf_counter()
    query = writing(frame, url, sink).option("checkpointLocation", tempfile.mkdtemp(dir=folder)).start()
    try:
        while not query.recentProgress:
            time.sleep(0.02)
        started = time.perf_counter() - begun
        thread.start()
        time.sleep(seconds / 4)
        cpu, before = CpuTime(), query.lastProgress.batchId
        time.sleep(seconds * 3 / 4)
        used = cpu.taken()
        done = query.lastProgress.batchId - before
    finally:
        over.set()
        thread.join()
        progress = [item for item in query.recentProgress if item.numInputRows]
        query.stop()
    progress = progress[len(progress) // 4 :]
    batches = [item.durationMs["triggerExecution"] for item in progress]
    ends = [datetime.fromisoformat(item.timestamp).timestamp() + item.durationMs["triggerExecution"] / 1000
            for item in progress]  # fmt: skip
    # A message came while the batch before was under way: from a whole batch to nothing before its own began.
    waits = [1000 * (end - before) + ours / 2 for before, end, ours in zip(ends, ends[1:], batches, strict=False)]
    parts = {
        name: round(statistics.median(item.durationMs.get(name, 0) for item in progress))
        for name in sorted({name for item in progress for name in item.durationMs})
    }
    found: dict[str, Any] = {
        "batches": len(batches),
        "batch ms": round(statistics.median(batches)),
        "delay to the end of the batch ms": round(statistics.median(waits)),
        "start to first progress ms": round(1000 * started),
        "parts ms": parts,
        "cpu ms a batch": {kind: round(1000 * seconds / max(1, done)) for kind, seconds in used.items()},
    }
    if sink.endswith("once"):
        found |= stored(url, first, len(progress))
    print(f"  {sink:14} {json.dumps(found)}", flush=True)
    return found


def stored(url: str, first: int, batches: int) -> dict[str, Any]:
    """Compare when rows were stored with when their messages were."""
    delays, rows = [], 0
    with BulkConnection(url) as bulk:
        last = bulk.api("STREAM.INFO.OUT")["state"]["last_seq"]
        for batch in bulk.read("OUT", first, last + 1, subjects=["out.a"]):
            rows += batch.num_rows
            for when, headers in zip(batch["time"].to_pylist(), batch["headers"].to_pylist(), strict=True):
                at = int(dict(headers)["At"][0])
                delays.append(when.timestamp() * 1000 - at / 1000)
    delays = sorted(delays[len(delays) // 4 :])
    return {
        "delay until stored ms": {"p50": round(delays[len(delays) // 2]), "p95": round(delays[len(delays) * 19 // 20])},
        "sequences a row": round((last + 1 - first) / max(1, rows), 2),
    }


def partitions(spark: Any, url: str, count: int, rows: int) -> dict[str, Any]:
    """Write a few rows in many partitions, with each sink, and count the sequences that are used up."""
    frame = spark.range(count * rows, numPartitions=count).select(F.col("id").cast("string").alias("data"))
    found: dict[str, Any] = {}
    for sink in SINKS * 6:  # the first time of each warms up
        with BulkConnection(url) as bulk:
            before = bulk.api("STREAM.INFO.OUT")["state"]
            cpu, begun = CpuTime(), time.perf_counter()
            if sink in ("noop", "empty"):
                frame.write.format(sink).mode("overwrite" if sink == "noop" else "append").save()
            else:
                out = {"url": url, "stream": "OUT", "subject": "out.b", "guarantee": sink, "prepare": "true"}
                frame.write.format("nats").options(**out).mode("append").save()
            taken, used_cpu = time.perf_counter() - begun, cpu.taken()
            after = bulk.api("STREAM.INFO.OUT")["state"]
        used = after["last_seq"] - before["last_seq"]
        times = [*found.get(sink, {}).get("seconds", []), round(taken, 3)]
        cpus = [*found.get(sink, {}).get("cpu", []), used_cpu]
        found[sink] = {
            "seconds": times,
            "cpu": cpus,
            "sequences": used,
            "deleted": used - (after["messages"] - before["messages"]),
        }
    for sink, one in found.items():
        kinds = ("java", "python", "server")
        one["cpu"] = {kind: statistics.median(item.get(kind, 0.0) for item in one["cpu"][2:]) for kind in kinds}
        print(f"  {count} partitions of {rows} rows into {sink:14} {json.dumps(one)}", flush=True)
    return found


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a third of the time")
    parser.add_argument("--sinks", default=",".join(SINKS), help="some of the sinks, with commas")
    parser.add_argument("--output", type=Path, default=Path("artifacts/spark_latency.json"))
    given = parser.parse_args()
    result: dict[str, Any] = {"compiled": compiled, "cores": os.cpu_count(), "size": SIZE, "rate": RATE}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, penstock.Server(sync="2m") as server:
        spark = session(
            "bench",
            master="local[2]",
            spark__ui__enabled="false",
            spark__ui__showConsoleProgress="false",
            spark__local__dir=folder,
            spark__sql__warehouse__dir=f"{folder}/warehouse",
        )
        try:
            spark.sparkContext.setLogLevel("OFF")
            spark.dataSource.register(Empty)
            with BulkConnection(server.url) as bulk:
                for name in ("IN", "OUT"):
                    config = {"name": name, "subjects": [f"{name.lower()}.>"], "allow_direct": True}
                    bulk.api(f"STREAM.CREATE.{name}", {**config, "allow_batched": True})
            print("partitions", flush=True)
            result["partitions"] = partitions(spark, server.url, 20, 10)
            sinks = given.sinks.split(",")
            for turn in ("cold", "warm"):  # the first time of each loads classes
                print(turn, flush=True)
                seconds = 30.0 if not given.quick else 10.0
                result[turn] = {sink: latency(spark, server.url, sink, folder, seconds) for sink in sinks}
        finally:
            spark.stop()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
