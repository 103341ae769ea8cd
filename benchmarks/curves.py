"""How time and memory grow: messages, payloads, subjects, partitions of Spark, streams and consumers.

    python benchmarks/curves.py              up to 10 million messages, 1 million subjects, 10,000 consumers
    python benchmarks/curves.py --quick      a tenth of the largest, and no Spark
    python benchmarks/curves.py --only subjects streams

Every point is measured on an empty stream; memory is what a process holds at the end of the point, ours and the
server's. The result goes to artifacts/curves.json, or where --output says.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides
from _measure import about, cpu_of, memory_of
from wire import create

import penstock
from penstock.wire.bulk import BulkConnection

FOREVER = 600.0
PART = 100_000  # rows that are made at a time


class Point:
    """Times one point of a curve, with CPU time of both sides and memory."""

    def __init__(self, server: Any, x: int) -> None:
        self._pid, self.found = server.nodes[0].pid, {"x": x}

    def measure(self, name: str, count: int, work: Callable[[], object]) -> None:
        """Run the work, and note its rate, in things a second, and what it cost."""
        before, cpu, server_cpu = time.perf_counter(), time.process_time(), cpu_of(self._pid)
        work()
        seconds = time.perf_counter() - before
        self.found[name] = {
            "seconds": round(seconds, 4),
            "rate": round(count / seconds, 1),
            "cpu_us": round((time.process_time() - cpu) / count * 1e6, 3),
            "server_cpu_us": round((cpu_of(self._pid) - server_cpu) / count * 1e6, 3),
            "mib": round(memory_of(), 1),
            "server_mib": round(memory_of(self._pid), 1),
        }


def _read_all(bulk: BulkConnection, count: int) -> None:
    rows = sum(batch.num_rows for batch in bulk.read(sides.STREAM, timeout=FOREVER))
    assert rows == count, rows


def messages(server: Any, quick: bool) -> Iterator[dict[str, Any]]:
    """More and more messages of 128 bytes in one stream, written by fast ingest and read back."""
    for count in (100_000, 300_000, 1_000_000, *(() if quick else (3_000_000, 10_000_000))):
        create(server.url)
        with BulkConnection(server.url) as bulk:
            point, one = Point(server, count), sides.batches(PART, 128)[0:]

            def rows(total: int = count, part: Any = one) -> Iterator[Any]:
                for _ in range(total // PART):
                    yield from part

            point.measure("write", count, lambda bulk=bulk, rows=rows: bulk.publish(sides.STREAM, rows(), "fast"))
            point.measure("read", count, lambda bulk=bulk, count=count: _read_all(bulk, count))
        yield point.found


def payloads(server: Any, quick: bool) -> Iterator[dict[str, Any]]:
    """Larger and larger payloads; as many of them as make a hundred megabytes, or a hundred thousand."""
    for size in (16, 128, 1024, 16_384, 131_072, 1_000_000):
        count = max(64, min(100_000, (20 if quick else 100) * 2**20 // size))
        create(server.url)
        with BulkConnection(server.url) as bulk:
            point, rows = Point(server, size), sides.batches(count, size)
            point.measure("write", count, lambda bulk=bulk, rows=rows: bulk.publish(sides.STREAM, rows, "fast"))
            point.measure("read", count, lambda bulk=bulk, count=count: _read_all(bulk, count))
        yield point.found


def subjects(server: Any, quick: bool) -> Iterator[dict[str, Any]]:
    """The same number of messages on more and more subjects; a raw sender shows what that costs the server."""
    counts = (1, 100, 10_000, 100_000) if quick else (1, 100, 10_000, 100_000, 1_000_000)
    total = counts[-1]
    for distinct in counts:
        create(server.url)

        def rows(distinct: int = distinct) -> Iterator[Any]:
            for start in range(0, total, PART):
                named = [f"bench.{number % distinct:07}" for number in range(start, min(total, start + PART))]
                data = pa.repeat(pa.scalar(b"x" * 128, pa.binary()), len(named))
                yield pa.record_batch({"subject": pa.array(named, pa.string()), "data": data})

        made = list(rows())
        with BulkConnection(server.url) as bulk:
            point = Point(server, distinct)
            point.measure("write", total, lambda bulk=bulk, made=made: bulk.publish(sides.STREAM, made, "fast"))
            point.measure("read", total, lambda bulk=bulk: _read_all(bulk, total))
        create(server.url)
        seconds = sides.raw_fast(server.url, total, 128, distinct)
        point.found["raw"] = {"seconds": round(seconds, 4), "rate": round(total / seconds, 1)}
        yield point.found


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
                point = Point(server, parts)
                point.measure("write", rows, lambda parts=parts: write(rows, parts))
                point.measure("read", rows, lambda parts=parts: read(parts))
                yield point.found
        finally:
            spark.stop()


def streams(server: Any, quick: bool) -> Iterator[dict[str, Any]]:
    """More and more streams: to make them, to list them, and to read a message of each; then they are deleted."""
    for count in (1, 10, 100) if quick else (1, 10, 100, 1000):
        with BulkConnection(server.url) as bulk:
            names, point = [f"G{number}" for number in range(count)], Point(server, count)

            def make(bulk: BulkConnection = bulk, names: list[str] = names) -> None:
                for name in names:
                    bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"g.{name}"], "allow_direct": True})

            def read(bulk: BulkConnection = bulk, names: list[str] = names) -> None:
                for name in names:
                    assert sum(batch.num_rows for batch in bulk.read(name)) == 1

            point.measure("make", count, make)
            for name in names:
                bulk.request(f"g.{name}", b"x")
            point.measure("list", count, lambda bulk=bulk, count=count: _pages(bulk, "STREAM.LIST", "streams", count))
            point.measure("read", count, read)
            for name in names:
                bulk.api(f"STREAM.DELETE.{name}", timeout=60)
        yield point.found


def _pages(bulk: BulkConnection, method: str, field: str, count: int) -> None:
    got = 0
    while got < count:
        answer = bulk.api(method, {"offset": got}, timeout=60)
        got += len(answer[field])


def consumers(server: Any, quick: bool) -> Iterator[dict[str, Any]]:
    """More and more consumers on one stream: to make them, to list them, and to publish while they are there."""
    for count in (1, 100, 1000) if quick else (1, 100, 1000, 10_000):
        create(server.url, max_consumers=count)  # unsaid, the server allows a thousand
        with BulkConnection(server.url) as bulk:
            point, rows = Point(server, count), sides.batches(10_000, 128)

            def make(bulk: BulkConnection = bulk, count: int = count) -> None:
                for number in range(count):
                    config = {"durable_name": f"c{number}", "ack_policy": "explicit", "mem_storage": True}
                    body = {"stream_name": sides.STREAM, "config": config}
                    bulk.api(f"CONSUMER.DURABLE.CREATE.{sides.STREAM}.c{number}", body, timeout=60)

            point.measure("make", count, make)
            listed = f"CONSUMER.LIST.{sides.STREAM}", "consumers", count
            point.measure("list", count, lambda bulk=bulk, listed=listed: _pages(bulk, *listed))
            point.measure("write", 10_000, lambda bulk=bulk, rows=rows: bulk.publish(sides.STREAM, rows, "fast"))
        yield point.found


CURVES = {
    "messages": messages,
    "payloads": payloads,
    "subjects": subjects,
    "partitions": partitions,
    "streams": streams,
    "consumers": consumers,
}


def main() -> None:
    """Run the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=sorted(CURVES), nargs="+", default=list(CURVES))
    parser.add_argument("--output", type=Path, default=Path("artifacts/curves.json"))
    given = parser.parse_args()
    report: dict[str, Any] = {**about(), "points": {}, "skipped": {}}
    for name in given.only:
        # A server for each curve: what one leaves in its memory is none of the next one's.
        with penstock.Server(sync="2m") as server:
            report["server"] = server.version
            report["points"][name] = points = []
            for point in CURVES[name](server, given.quick):
                points.append(point)
                rates = ", ".join(f"{key} {found['rate']:,.0f}/s" for key, found in point.items() if key != "x")
                print(f"  {name} {point['x']:,}: {rates}", flush=True)
        if not points:
            report["skipped"][f"growth of {name}"] = "left out of quick runs"
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"  written to {given.output}")


if __name__ == "__main__":
    main()
