"""Writing with Spark, measured against raw senders and nats-py: one run, one machine, ratios.

    python benchmarks/spark_write.py [--quick]
    python benchmarks/spark_write.py --profile      one task without Spark, beside raw senders, and its profile

A million rows of 128 bytes on `local[2]` into a file stream of the embedded server: exactly once and at least once,
beside raw atomic batches and raw fast ingest (frames made before the clock starts) and nats-py's publish_async; under
lazy sync and under `sync: always`. All sides but nats-py's write the same rows, in turn, in another order every round;
a ratio is the median of the ratios of a round. The stream is empty at the beginning of each, and its rows are counted
at the end. Spark's time is from the call to its return, when its workers have just written a few rows.

What shows what bounds the sinks: raw senders on two connections, as two tasks have. `as the sink`, a raw sender of the
very messages that the exactly-once sink sends, journals and their conditions among them, which purges the journals at
its end as the sink does. `one task`, the exactly-once sink without Spark, in this process. `published`, what the
at-least-once sink calls, without Spark. And `empty`, a Python sink that does nothing, which is Spark's own ceiling. CPU
time is that of a row, by kind of process. The result goes to artifacts/spark_write.json, or where --output says.
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
from collections.abc import Callable, Mapping, Sequence
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
from _measure import medians, rotated, summary

SIZE = 128
STREAM = "BENCH"
JOURNALS = "bench.journals."
FOREVER = 600.0
# What writing is meant to reach, each a ratio of two sides.
GOALS = {
    "2m": {
        "one task / raw atomic": 0.9,
        "exactly-once / raw atomic": 0.9,
        "exactly-once / raw atomic, 2 connections": 0.9,
        "exactly-once / as the sink, 2 connections": 0.9,
        "as the sink, 2 connections / raw atomic": 0.0,
        "exactly-once, less an empty sink / raw atomic": 0.9,
        "exactly-once / nats-py": 2.0,
        "at-least-once / raw fast ingest": 0.9,
        "at-least-once / raw fast ingest, 2 connections": 0.9,
        "at-least-once, less an empty sink / raw fast ingest": 0.9,
        "at-least-once, less an empty sink / raw fast ingest, 2 connections": 0.9,
        "at-least-once / published, 2 connections": 0.9,
        "published, 2 connections / raw fast ingest": 0.0,
        "raw fast ingest, 2 connections / raw fast ingest": 0.0,
    },
    "always": {"exactly-once / nats-py": 10.0, "exactly-once / raw atomic": 0.0},
}


def raw_atomic(
    url: str, count: int, ready: Callable[[], object] = lambda: None, like_sink: bool = False, ids: bool = False
) -> float:
    """The limit: atomic batches of a thousand, frames made before the clock starts, four under way.

    Batches of large messages are smaller: the server drops what comes when 128 MB wait for a stream. `like_sink`: each
    batch has one row less, and a journal of 16 bytes a row in its place, which is stored only if one of four lanes is
    still ours. `ids`: each row has an id, as `publish` gives one. `ready` is called when only the clock is to start.
    """
    payload, most = b"x" * SIZE, max(1, min(1000, (16 << 20) // SIZE)) - like_sink
    own, opening = secrets.token_hex(4), 0
    named = secrets.token_hex(8).encode()
    if like_sink:
        task = TaskConnection(ConnectionOptions(url, request_timeout=60))
        opening = task.store(STREAM, [(f"bench.lanes.{own}.{lane}", {}, b"open") for lane in range(4)]) - 3
        task.close()
    with BulkConnection(url) as bulk:
        pieces = []
        for number, start in enumerate(range(0, count, most)):
            name, rows = secrets.token_hex(12).encode(), min(most, count - start)
            messages = [(b"bench.a", b"", payload)] * rows
            if ids:
                of_row = [b"Nats-Msg-Id: %s.%d\r\n" % (named, row) for row in range(start, start + rows)]
                messages = [(b"bench.a", header, payload) for header in of_row]
            if like_sink:
                expected = b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % (opening + number % 4)
                expected += f"Nats-Expected-Last-Subject-Sequence-Subject: bench.lanes.{own}.{number % 4}\r\n".encode()
                messages.append((JOURNALS.encode() + name, expected, secrets.token_bytes(16 * rows)))
            pieces.append(_frames(messages, name, f"drain.{own}.{start}".encode()))
        wire, deadline = bulk.wire, Deadline(FOREVER)
        wire.send(f"SUB drain.{own}.* 99\r\n".encode(), deadline)  # others have acks of their own
        waiting = deque(pieces)
        ready()
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


def _frames(messages: list[tuple[bytes, bytes, bytes]], name: bytes, reply: bytes) -> bytes:
    """Write messages, each with its subject and its own headers, as one atomic batch."""
    frames = []
    for number, (subject, own, payload) in enumerate(messages, start=1):
        last = number == len(messages)
        end = b"Nats-Batch-Commit: 1\r\n" if last else b""
        head = b"NATS/1.0\r\n%sNats-Batch-Id: %s\r\nNats-Batch-Sequence: %d\r\n%s\r\n" % (own, name, number, end)
        line = b"HPUB %s %s%d %d\r\n" % (subject, reply + b" " if last else b"", len(head), len(head) + len(payload))
        frames.append(line + head + payload + b"\r\n")
    return b"".join(frames)


def raw_like_sink(url: str, count: int, ready: Callable[[], object] = lambda: None) -> float:
    """Send the very messages that the sink sends, made before the clock starts."""
    return raw_atomic(url, count, ready, like_sink=True)


def raw_fast(url: str, count: int, ready: Callable[[], object] = lambda: None) -> float:
    """Fast ingest with frames that were made before."""
    return float(_wire_sides.raw_fast(url, count, SIZE, ready=ready))


def published(url: str, count: int, ready: Callable[[], object] = lambda: None) -> float:
    """Publish by fast ingest, in batches as Spark gives them."""
    rows = _wire_sides.batches(count, SIZE, 10_000)
    with BulkConnection(url) as bulk:
        ready()
        begun = time.perf_counter()
        assert bulk.publish(STREAM, rows, mode="fast", twice=True, timeout=FOREVER).rows == count
        return time.perf_counter() - begun


def raw_by(what: str, url: str, count: int, connections: int) -> float:
    """Run a sender by several connections at once, each in a process of its own; they begin together."""
    script = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r}); import spark_write as it\n"
        "def ready(): print('ready', flush=True); input()\n"
        f"taken = it.{what}({url!r}, {count // connections}, ready); end = time.time(); print(end - taken, end)"
    )
    pipe = subprocess.PIPE
    sides = [
        subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) for _ in range(connections)
    ]
    for side in sides:
        assert side.stdout is not None
        assert side.stdout.readline() == "ready\n", "a sender has failed"
    for side in sides:
        assert side.stdin is not None
        side.stdin.write("\n")
        side.stdin.flush()
    said = [side.communicate()[0].split() for side in sides]
    return max(float(end) for _, end in said) - min(float(begun) for begun, _ in said)


def as_the_sink(url: str, count: int, connections: int) -> float:
    """Send the messages of the sink, and purge the journals as its commit does."""
    taken = raw_by("raw_like_sink", url, count, connections)
    with BulkConnection(url) as bulk:
        begun = time.perf_counter()
        assert bulk.api(f"STREAM.PURGE.{STREAM}", {"filter": JOURNALS + ">"}, timeout=FOREVER)["purged"]
        return taken + time.perf_counter() - begun


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


def measure(spark: Any, sync: str, count: int, rounds: int) -> dict[str, Any]:
    """Measure all sides against one server, in turn."""
    slow = count // 10 if sync == "2m" else count // 100
    with penstock.Server(sync=sync) as server:
        bulk = TaskConnection(ConnectionOptions(server.url))
        config = {"name": STREAM, "subjects": ["bench.>"], "allow_atomic": True, "allow_batched": True}
        bulk.api(f"STREAM.CREATE.{STREAM}", config)
        bulk.close()
        url = server.url
        sides: dict[str, Callable[[], float]] = {
            "raw atomic": lambda: count / raw_by("raw_atomic", url, count, 1),
            "exactly-once": lambda: write(spark, url, count, "exactly-once"),
            "nats-py": lambda: side("nats_async", url, slow),
        }
        if sync == "2m":
            sides |= {
                "raw atomic, 2 connections": lambda: count / raw_by("raw_atomic", url, count, 2),
                "as the sink, 2 connections": lambda: count / as_the_sink(url, count, 2),
                "one task": lambda: count / one_task(url, count),
                "raw fast ingest": lambda: count / raw_by("raw_fast", url, count, 1),
                "at-least-once": lambda: write(spark, url, count, "at-least-once"),
                "raw fast ingest, 2 connections": lambda: count / raw_by("raw_fast", url, count, 2),
                "published, 2 connections": lambda: count / raw_by("published", url, count, 2),
                "empty": lambda: write(spark, url, count, "empty"),
            }
        guarantees = sorted({"exactly-once", "at-least-once", "empty"} & sides.keys())
        for guarantee in guarantees:
            write(spark, url, count // 10, guarantee)  # what the JVM compiles, it has compiled then
        rates: dict[str, list[float]] = {name: [] for name in sides}
        cpu: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for turn in range(rounds):
            for name in rotated(list(sides), turn):
                if name in guarantees:  # Spark ends Python workers that had nothing to do for a minute
                    write(spark, url, count // 50, name)
                clear(url)
                watch, rows = CpuTime(), slow if name == "nats-py" else count
                rates[name].append(sides[name]())
                cpu[name].append({kind: 1e6 * seconds / rows for kind, seconds in watch.taken().items()})
    middle, ratios = compare(sync, rates)
    used = {name: medians(found) for name, found in cpu.items()}
    for name, rate in middle.items():
        print(
            f"  sync {sync:7} {name:34} {rate['median']:10,.0f} rows/s   CPU us a row {used.get(name, '')}", flush=True
        )
    for name, found in ratios.items():
        wanted = f"  (goal {found['goal']:g})" if "goal" in found else ""
        print(f"  sync {sync:7} {name:66} {found['median']:6.2f} of {found['all']}{wanted}", flush=True)
    return {"rates": middle, "ratios": ratios, "cpu us a row": used}


def compare(sync: str, rates: Mapping[str, Sequence[float]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the median rate of each side, and the ratios of sides, round by round.

    `less an empty sink`: the time that a Python sink takes which does nothing is Spark's, and taken off.
    """
    sides = {name: list(found) for name, found in rates.items()}
    for name in ("exactly-once", "at-least-once"):
        if name in rates and "empty" in rates:
            both = zip(rates[name], rates["empty"], strict=True)
            sides[f"{name}, less an empty sink"] = [1 / (1 / mine - 1 / empty) for mine, empty in both]
    ratios: dict[str, Any] = {}
    for name, goal in GOALS[sync].items():
        mine, _, other = name.partition(" / ")
        found = summary([one / two for one, two in zip(sides[mine], sides[other], strict=True)])
        ratios[name] = {**found, "goal": goal} if goal else found
    return {name: summary(found) for name, found in sides.items()}, ratios


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
                result[sync] = measure(spark, sync, count, rounds=1 if given.quick else 5 if sync == "2m" else 3)
        finally:
            spark.stop()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
