"""Writing with Spark, measured against raw senders and nats-py: one run, one machine, ratios.

    python benchmarks/spark_write.py [--quick]
    python benchmarks/spark_write.py --profile      one task without Spark, beside raw senders, and its profile

A million rows of 128 bytes on `local[2]` into a file stream of the embedded server: exactly once and at least once,
beside raw atomic batches and raw fast ingest (frames made before the clock starts, one connection), and nats-py's
publish_async; under lazy sync and under `sync: always`. Each of Spark's figures is of one run, from the call to its
return, after a tenth of the rows to warm up; the others run before and after it, and the better figure counts. `empty`
is a Python sink that does nothing: Spark's own ceiling. `one task` is the exactly-once sink without Spark, in this
process. Raw atomic batches are sent by one connection and by several, which shows what bounds the server: all messages
of a stream pass through one goroutine of it. CPU time is that of a row, by kind of process. The result goes to
artifacts/spark_write.json, or where --output says.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import secrets
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

import penstock
from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.exactly_once import Task, commit
from penstock.spark.messages import Shape
from penstock.spark.prepare import prepare
from penstock.spark.query_markers import QueryMarkers
from penstock.spark.sessions import session
from penstock.spark.sink_options import SinkOptions
from penstock.wire import compiled
from penstock.wire.bulk import BulkConnection
from penstock.wire.patience import Deadline

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides
from _cpu import CpuTime
from _empty_sink import Empty

SIZE = 128
STREAM = "BENCH"
FOREVER = 600.0
# What writing is meant to reach, each a ratio of two sides.
GOALS = {
    "2m": {
        "one task / raw atomic": 0.9,
        "exactly-once / raw atomic": 0.6,
        "exactly-once / raw atomic, 2 connections": 0.9,
        "exactly-once / nats-py": 2.0,
        "at-least-once / raw fast ingest": 0.6,
        "at-least-once / raw fast ingest, 2 connections": 0.9,
    },
    "always": {"exactly-once / nats-py": 10.0},
}


def raw_atomic(url: str, count: int) -> float:
    """The limit: atomic batches of a thousand, frames made before the clock starts, four under way.

    Batches of large messages are smaller: the server drops what comes when 128 MB wait for a stream.
    """
    payload, most = b"x" * SIZE, max(1, min(1000, (16 << 20) // SIZE))
    with BulkConnection(url) as bulk:
        pieces = []
        for start in range(0, count, most):
            name, frames = secrets.token_hex(12).encode(), []
            for number in range(1, min(most, count - start) + 1):
                last = number == min(most, count - start)
                end = b"Nats-Batch-Commit: 1\r\n" if last else b""
                head = b"NATS/1.0\r\nNats-Batch-Id: %s\r\nNats-Batch-Sequence: %d\r\n%s\r\n" % (name, number, end)
                reply = b" drain.%d" % start if last else b""
                line = b"HPUB bench.a%s %d %d\r\n" % (reply, len(head), len(head) + SIZE)
                frames.append(line + head + payload + b"\r\n")
            pieces.append(b"".join(frames))
        wire, deadline = bulk.wire, Deadline(FOREVER)
        wire.send(b"SUB drain.* 99\r\n", deadline)
        waiting = deque(pieces)
        begun = time.perf_counter()
        under_way = 0
        while waiting or under_way:
            while waiting and under_way < 4:
                wire.send(waiting.popleft(), deadline)
                under_way += 1
            answer = json.loads(wire.next_event(deadline).payload)  # type: ignore[attr-defined]  # only messages come
            assert "error" not in answer, answer
            under_way -= 1
        return time.perf_counter() - begun


def raw_fast(url: str, count: int) -> float:
    """Fast ingest with frames that were made before."""
    return float(_wire_sides.raw_fast(url, count, SIZE))


def raw_by(what: str, url: str, count: int, connections: int) -> float:
    """Run a raw sender by several connections at once, each in a process of its own."""
    script = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r}); import spark_write as it; "
        f"input(); taken = it.{what}({url!r}, {count // connections}); end = time.time(); print(end - taken, end)"
    )
    pipe = subprocess.PIPE
    sides = [
        subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) for _ in range(connections)
    ]
    said = [side.communicate("\n")[0].split() for side in sides]
    return max(float(end) for _, end in said) - min(float(begun) for begun, _ in said)


def one_task(url: str, count: int) -> float:
    """The exactly-once sink without Spark: one task and its commit, and Arrow batches as Spark gives them."""
    size = 10_000
    batch = pa.record_batch({"subject": pa.array(["bench.a"] * size), "data": pa.array([b"x" * SIZE] * size)})
    bulk = TaskConnection(ConnectionOptions(url, request_timeout=60))
    try:
        options = SinkOptions(stream=STREAM, prepare=True)
        target = prepare(bulk, options)
        shape = Shape(options, target)
        markers = QueryMarkers(bulk, options, target, f"write-{secrets.token_hex(4)}", 0, "run", series=False)
        begun = time.perf_counter()
        rows = (shape.messages(batch)[0] for _ in range(count // size))
        commit(markers, [Task(markers, 0, 1).write(rows)])
        return time.perf_counter() - begun
    finally:
        bulk.close()


def side(name: str, url: str, count: int) -> float:
    """Run a side of the wire's benchmark in a process of its own, and give its rate."""
    script = Path(__file__).with_name("_wire_sides.py")
    done = subprocess.run(
        [sys.executable, str(script), name, url, str(count), str(SIZE)], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)["rate"])


def clear(url: str) -> None:
    """Begin with an empty stream each time."""
    bulk = TaskConnection(ConnectionOptions(url, request_timeout=60))
    bulk.api(f"STREAM.PURGE.{STREAM}")
    bulk.close()


def write(spark: Any, url: str, count: int, guarantee: str) -> float:
    """Write rows with Spark and give the rate; the rows are counted afterwards. `empty` writes them nowhere."""
    clear(url)
    data = F.lit("x" * SIZE).cast("binary")
    rows = spark.range(count, numPartitions=2).select(F.lit("bench.a").alias("subject"), data.alias("data"))
    begun = time.perf_counter()
    if guarantee == "empty":
        rows.write.format("empty").mode("append").save()
        return count / (time.perf_counter() - begun)
    (
        rows.write.format("nats")
        .option("url", url)
        .option("stream", STREAM)
        .option("guarantee", guarantee)
        .option("prepare", "true")
        .option("requestTimeout", "60s")
        .mode("append")
        .save()
    )
    taken = time.perf_counter() - begun
    bulk = TaskConnection(ConnectionOptions(url, request_timeout=60))
    state = bulk.api(f"STREAM.INFO.{STREAM}", {"subjects_filter": "bench.a"})["state"]
    bulk.close()
    assert state["subjects"]["bench.a"] == count, state
    return count / taken


def measure(spark: Any, sync: str, count: int) -> dict[str, Any]:
    """Measure all sides against one server."""
    raw_count = count // 4
    slow = count // 10 if sync == "2m" else count // 100
    rates: dict[str, float] = {}
    cpu: dict[str, dict[str, float]] = {}

    def run(name: str, rows: int, work: Any) -> None:
        watch = CpuTime()
        rates[name] = max(rates.get(name, 0.0), work())
        cpu[name] = {kind: round(1e6 * seconds / rows, 2) for kind, seconds in watch.taken().items()}

    with penstock.Server(sync=sync) as server:
        bulk = TaskConnection(ConnectionOptions(server.url))
        config = {"name": STREAM, "subjects": ["bench.>"], "allow_atomic": True, "allow_batched": True}
        bulk.api(f"STREAM.CREATE.{STREAM}", config)
        bulk.close()
        others = {
            "raw atomic": lambda: raw_count / raw_atomic(server.url, raw_count),
            "one task": lambda: raw_count / one_task(server.url, raw_count),
            "nats-py": lambda: side("nats_async", server.url, slow),
        }
        if sync == "2m":
            others["raw atomic, 2 connections"] = lambda: raw_count / raw_by("raw_atomic", server.url, raw_count, 2)
            others["raw atomic, 4 connections"] = lambda: raw_count / raw_by("raw_atomic", server.url, raw_count, 4)
            others["raw fast ingest"] = lambda: side("raw_fast", server.url, raw_count)
            others["raw fast ingest, 2 connections"] = lambda: raw_count / raw_by("raw_fast", server.url, raw_count, 2)
        guarantees = ("exactly-once", "at-least-once", "empty") if sync == "2m" else ("exactly-once",)
        # The others before and after Spark, and the better of both: on a shared machine no two moments are alike.
        for moment in ("before", "after"):
            for name, work in others.items():
                clear(server.url)
                run(name, slow if name == "nats-py" else raw_count, work)
            if moment == "before":
                for guarantee in guarantees:
                    write(spark, server.url, count // 10, guarantee)  # warms up
                    run(guarantee, count, lambda kind=guarantee: write(spark, server.url, count, kind))
    ratios = {}
    for name, goal in GOALS[sync].items():
        mine, _, other = name.partition(" / ")
        ratios[name] = {"ratio": rates[mine] / rates[other], "goal": goal}
    for name, rate in rates.items():
        print(f"  sync {sync:7} {name:30} {rate:10,.0f} rows/s   CPU us a row {cpu[name]}", flush=True)
    for name, found in ratios.items():
        print(f"  sync {sync:7} {name:46} {found['ratio']:6.2f}  (goal {found['goal']:g})", flush=True)
    return {"rates": rates, "ratios": ratios, "cpu us a row": cpu}


def profile(count: int) -> None:
    """Compare one task with raw senders, in turn, and print where its time goes."""
    with penstock.Server(sync="2m") as server:
        bulk = TaskConnection(ConnectionOptions(server.url))
        config = {"name": STREAM, "subjects": ["bench.>"], "allow_atomic": True, "allow_batched": True}
        bulk.api(f"STREAM.CREATE.{STREAM}", config)
        bulk.close()
        sides = {
            "raw atomic": lambda: raw_atomic(server.url, count),
            "one task": lambda: one_task(server.url, count),
            "raw atomic, 2 connections": lambda: raw_by("raw_atomic", server.url, count, 2),
            "raw atomic, 4 connections": lambda: raw_by("raw_atomic", server.url, count, 4),
        }
        for name, work in list(sides.items()) * 2:
            clear(server.url)
            watch = CpuTime()
            rate = count / work()
            used = {kind: round(1e6 * seconds / count, 2) for kind, seconds in watch.taken().items()}
            print(f"  {name:30} {rate:10,.0f} rows/s   CPU us a row {used}", flush=True)
        clear(server.url)
        profiler = cProfile.Profile()
        profiler.runcall(one_task, server.url, count)
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(15)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--output", type=Path, default=Path("artifacts/spark_write.json"))
    parser.add_argument("--profile", action="store_true", help="one task without Spark, and where its time goes")
    given = parser.parse_args()
    if given.profile:
        profile(100_000)
        return
    count = 100_000 if given.quick else 1_000_000
    result: dict[str, Any] = {"compiled": compiled, "cores": os.cpu_count(), "size": SIZE, "rows": count}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
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
            for sync in GOALS:
                result[sync] = measure(spark, sync, count)
        finally:
            spark.stop()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
