"""How time and memory grow: messages, payloads, subjects, partitions of Spark, streams and consumers.

    python benchmarks/curves.py              up to 10 million messages, 1 million subjects, 10,000 consumers
    python benchmarks/curves.py --quick      a tenth of the largest, and no Spark
    python benchmarks/curves.py --only subjects streams

Every point is measured on an empty stream, by a process of its own, except those of Spark, which share one Spark.
Memory is what a process holds at the end of the point, ours and the server's. Points that a bar rests on are measured
three times, in turn, and are medians. The CPU time and memory of Spark's points are those of the driver, the JVM and
the Python workers together. The result goes to artifacts/curves.json, or where --output says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides
from _cpu import CpuTime, memory
from _measure import about, cpu_of, memory_of
from wire import create

import penstock
from penstock.wire.bulk import BulkConnection

FOREVER = 600.0
MOST = 1800.0  # seconds that a point may take
ROUNDS = 3  # of a point that a bar rests on
PART = 100_000  # rows that are made at a time


class Point:
    """Times one point of a curve, with CPU time of both sides and memory; `whole`: of all our processes."""

    def __init__(self, server: int, x: int, *, whole: bool = False) -> None:
        self.server, self._whole = server, whole
        self.found: dict[str, Any] = {"x": x}

    def measure(self, name: str, count: int, work: Callable[[], object]) -> None:
        """Run the work, and note its rate, in things a second, and what it cost."""
        watch = CpuTime() if self._whole else None
        before, cpu, server_cpu = time.perf_counter(), time.process_time(), cpu_of(self.server)
        work()
        seconds, cpu = time.perf_counter() - before, time.process_time() - cpu
        if watch is not None:
            cpu = sum(taken for kind, taken in watch.taken().items() if kind != "server")
        self.found[name] = {
            "seconds": round(seconds, 4),
            "rate": round(count / seconds, 1),
            "cpu_us": round(cpu / count * 1e6, 3),
            "server_cpu_us": round((cpu_of(self.server) - server_cpu) / count * 1e6, 3),
            "mib": round(memory() if self._whole else memory_of(), 1),
            "server_mib": round(memory_of(self.server), 1),
        }


def _read_all(bulk: BulkConnection, count: int) -> None:
    rows = sum(batch.num_rows for batch in bulk.read(sides.STREAM, timeout=FOREVER))
    assert rows == count, rows


def messages(url: str, point: Point, count: int, quick: bool) -> None:
    """More and more messages of 128 bytes in one stream, written by fast ingest and read back."""
    create(url)
    one = sides.batches(PART, 128)

    def rows() -> Iterator[Any]:
        for _ in range(count // PART):
            yield from one

    with BulkConnection(url) as bulk:
        point.measure("write", count, lambda: bulk.publish(sides.STREAM, rows(), "fast"))
        point.measure("read", count, lambda: _read_all(bulk, count))


def payloads(url: str, point: Point, size: int, quick: bool) -> None:
    """Larger and larger payloads; as many of them as make a hundred megabytes, or a hundred thousand."""
    count = max(64, min(100_000, (20 if quick else 100) * 2**20 // size))
    create(url)
    rows = sides.batches(count, size)
    with BulkConnection(url) as bulk:
        point.measure("write", count, lambda: bulk.publish(sides.STREAM, rows, "fast"))
        point.measure("read", count, lambda: _read_all(bulk, count))


def subjects(url: str, point: Point, distinct: int, quick: bool) -> None:
    """The same number of messages on more and more subjects; a raw sender shows what that costs the server."""
    total = 100_000 if quick else 1_000_000
    create(url)
    made = []
    for start in range(0, total, PART):
        named = [f"bench.{number % distinct:07}" for number in range(start, min(total, start + PART))]
        data = pa.repeat(pa.scalar(b"x" * 128, pa.binary()), len(named))
        made.append(pa.record_batch({"subject": pa.array(named, pa.string()), "data": data}))
    with BulkConnection(url) as bulk:
        point.measure("write", total, lambda: bulk.publish(sides.STREAM, made, "fast"))
        point.measure("read", total, lambda: _read_all(bulk, total))
    create(url)
    before: list[float] = []

    def ready() -> None:  # what it costs to make the frames does not count
        before.extend((time.process_time(), cpu_of(point.server)))

    seconds = sides.raw_fast(url, total, 128, distinct, ready)
    point.found["raw"] = {
        "seconds": round(seconds, 4),
        "rate": round(total / seconds, 1),
        "cpu_us": round((time.process_time() - before[0]) / total * 1e6, 3),
        "server_cpu_us": round((cpu_of(point.server) - before[1]) / total * 1e6, 3),
    }


def partitions(server: Any, quick: bool) -> Iterator[dict[str, Any]]:
    """Spark reads and writes the same rows in more and more partitions, on all cores of this machine."""
    if quick:
        return
    from pyspark.sql import functions as F

    from penstock.spark.sessions import session

    rows = 200_000
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        spark = session(
            "growth",
            spark__ui__enabled="false",
            spark__ui__showConsoleProgress="false",
            spark__local__dir=folder,
            spark__sql__warehouse__dir=f"{folder}/warehouse",
        )
        spark.sparkContext.setLogLevel("OFF")
        try:

            def write(count: int, parts: int) -> None:
                data = F.lit("x" * 128).cast("binary").alias("data")
                frame = spark.range(count, numPartitions=parts).select(F.lit("bench.a").alias("subject"), data)
                out = frame.write.format("nats").option("url", server.url).option("stream", sides.STREAM)
                out.option("prepare", "true").mode("append").save()

            def read(parts: int) -> None:
                frame = spark.read.format("nats").option("url", server.url).option("stream", sides.STREAM)
                frame.option("minPartitions", str(parts)).load().write.format("noop").mode("overwrite").save()

            create(server.url)
            write(1000, 2)
            read(2)
            for parts in (1, 2, 4, 8, 16, 32):
                create(server.url)
                point = Point(server.nodes[0].pid, parts, whole=True)
                point.found["whole"] = True
                point.measure("write", rows, lambda parts=parts: write(rows, parts))
                point.measure("read", rows, lambda parts=parts: read(parts))
                yield point.found
        finally:
            spark.stop()


def streams(url: str, point: Point, count: int, quick: bool) -> None:
    """More and more streams: to make them, to list them, and to read a message of each; then they are deleted."""
    names = [f"G{number}" for number in range(count)]
    with BulkConnection(url) as bulk:

        def make() -> None:
            for name in names:
                bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"g.{name}"], "allow_direct": True})

        def read() -> None:
            for name in names:
                assert sum(batch.num_rows for batch in bulk.read(name)) == 1

        point.measure("make", count, make)
        for name in names:
            bulk.request(f"g.{name}", b"x")
        point.measure("list", count, lambda: _pages(bulk, "STREAM.LIST", "streams", count))
        point.measure("read", count, read)
        for name in names:
            bulk.api(f"STREAM.DELETE.{name}", timeout=60)


def _pages(bulk: BulkConnection, method: str, field: str, count: int) -> None:
    got = 0
    while got < count:
        answer = bulk.api(method, {"offset": got}, timeout=60)
        got += len(answer[field])


def consumers(url: str, point: Point, count: int, quick: bool) -> None:
    """More and more consumers on one stream: to make them, to list them, and to publish while they are there."""
    create(url, max_consumers=count)  # unsaid, the server allows a thousand
    rows = sides.batches(10_000, 128)
    with BulkConnection(url) as bulk:

        def make() -> None:
            for number in range(count):
                config = {"durable_name": f"c{number}", "ack_policy": "explicit", "mem_storage": True}
                body = {"stream_name": sides.STREAM, "config": config}
                bulk.api(f"CONSUMER.DURABLE.CREATE.{sides.STREAM}.c{number}", body, timeout=60)

        point.measure("make", count, make)
        point.measure("list", count, lambda: _pages(bulk, f"CONSUMER.LIST.{sides.STREAM}", "consumers", count))
        point.measure("write", 10_000, lambda: bulk.publish(sides.STREAM, rows, "fast"))


Curve = Callable[[str, Point, int, bool], None]
# Each curve with its points; a quick run leaves the last ones out.
CURVES: dict[str, tuple[Curve, tuple[int, ...], tuple[int, ...]]] = {
    "messages": (messages, (100_000, 300_000, 1_000_000), (3_000_000, 10_000_000)),
    "payloads": (payloads, (16, 128, 1024, 16_384, 131_072, 1_000_000), ()),
    "subjects": (subjects, (1, 100, 10_000, 100_000), (1_000_000,)),
    "streams": (streams, (1, 10, 100), (1000,)),
    "consumers": (consumers, (1, 100, 1000), (10_000,)),
}
NAMES = ("messages", "payloads", "subjects", "partitions", "streams", "consumers")
OF_BARS = ("messages", "subjects")  # whose first and last points bars rest on


def run_point(server: Any, curve: str, x: int, quick: bool) -> dict[str, Any]:
    """Measure a point in a process of its own."""
    words = ["--point", curve, str(x), "--url", server.url, "--server", str(server.nodes[0].pid)]
    command = [sys.executable, __file__, *words, *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST, check=False)
    if done.returncode:
        raise RuntimeError(f"{curve} {x}: {done.stderr.strip()[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_curve(server: Any, curve: str, quick: bool) -> Iterator[dict[str, Any]]:
    """Give the points of a curve; those that a bar rests on once more, in turn with each other."""
    if curve == "partitions":
        yield from partitions(server, quick)
        return
    _, few, more = CURVES[curve]
    places = few if quick else (*few, *more)
    runs = {x: [run_point(server, curve, x, quick)] for x in places}
    if curve in OF_BARS and not quick:
        for turn in range(1, ROUNDS):
            for x in (places[-1], places[0])[:: 1 if turn % 2 else -1]:
                runs[x].append(run_point(server, curve, x, quick))
    yield from (merged(found) for found in runs.values())


def merged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the medians of a point that was measured several times, and all its rates."""
    point: dict[str, Any] = {"x": found[0]["x"]}
    for name, figures in found[0].items():
        if name != "x":
            point[name] = {key: statistics.median(one[name][key] for one in found) for key in figures}
            if len(found) > 1:
                point[name]["rates"] = [one[name]["rate"] for one in found]
    return point


def main() -> None:
    """Run the curves, or one point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=sorted(NAMES), nargs="+", default=list(NAMES))
    parser.add_argument("--output", type=Path, default=Path("artifacts/curves.json"))
    parser.add_argument("--point", nargs=2, metavar=("CURVE", "X"), help="measure only this point, and print it")
    parser.add_argument("--url", help="the server of a point")
    parser.add_argument("--server", type=int, help="its process")
    given = parser.parse_args()
    if given.point:
        curve, x = given.point
        point = Point(given.server, int(x))
        CURVES[curve][0](given.url, point, int(x), given.quick)
        print(json.dumps(point.found))
        return
    report: dict[str, Any] = {**about(), "points": {}, "skipped": {}}
    for name in given.only:
        # A server for each curve: what one leaves in its memory is none of the next one's.
        with penstock.Server(sync="2m") as server:
            report["server"] = server.version
            report["points"][name] = points = []
            for point in run_curve(server, name, given.quick):
                points.append(point)
                shown = {key: found["rate"] for key, found in point.items() if isinstance(found, dict)}
                print(
                    f"  {name} {point['x']:,}: {', '.join(f'{key} {rate:,.0f}/s' for key, rate in shown.items())}",
                    flush=True,
                )
        if not points:
            report["skipped"][f"growth of {name}"] = "left out of quick runs"
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"  written to {given.output}")


if __name__ == "__main__":
    main()
