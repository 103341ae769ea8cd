"""How fast Spark reads a stream, against one raw connection, and what small batches cost.

    python benchmarks/spark_read.py              five and ten million messages of 128 bytes
    python benchmarks/spark_read.py --quick      a tenth of that

All sides run in one go against one embedded server and one `local[2]` Spark on this machine, in turn, in another order
every round. Rates, CPU time and ratios are medians of the same rounds; a ratio is of neighbours in one round. `ready`
is a Python source that has the same rows ready and only hands them to Spark: Spark's own ceiling, in rows and, for a
streaming query, in the time before the first batch. `drained` does the same while it receives the messages of its
ranges and drops them: what a Python source gets that does nothing with them, beside a server. CPU time is that of a
row, by kind of process. The result goes to artifacts/spark_read.json, or where --output says.
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
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock.spark.sessions import session
from penstock.wire import compiled
from penstock.wire.bulk import BulkConnection

sys.path.insert(0, str(Path(__file__).parent))
import _ready_source
import _wire_sides as sides
from _cpu import CpuTime
from _measure import medians, rotated, summary

SIZE = 128
PIECE = 100_000
TRICKLE = 100  # messages a second


def fill(url: str, upto: int) -> None:
    """Store messages until there are so many."""
    with BulkConnection(url) as bulk:
        names = bulk.api("STREAM.NAMES").get("streams") or []
        if sides.STREAM not in names:
            config = {"name": sides.STREAM, "subjects": ["bench.>"], "allow_direct": True, "allow_batched": True}
            bulk.api(f"STREAM.CREATE.{sides.STREAM}", config)
        there = bulk.api(f"STREAM.INFO.{sides.STREAM}")["state"]["messages"]
        rows, begun = sides.batches(PIECE, SIZE), time.perf_counter()
        for done in range(there, upto, PIECE):
            bulk.publish(sides.STREAM, rows, "fast", timeout=120)
            if done % 1_000_000 == 0:
                print(f"  stored {done:,} of {upto:,}", flush=True)
        print(f"  stored {upto:,} in {time.perf_counter() - begun:.0f} s", flush=True)


def load(spark: Any, url: str, count: int, **options: str) -> Any:
    """Give a frame of the first messages."""
    reader = spark.read.format("nats").option("url", url).option("stream", sides.STREAM).option("end", str(count + 1))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def drain(frame: Any) -> float:
    """Read a frame into nothing, and give the seconds."""
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


class Memory(threading.Thread):
    """Watches the memory of Spark's Python workers: the largest of them, twenty times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.marks: list[int] = []
        self.over = threading.Event()

    def run(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self.over.wait(0.05):
            sizes = [0]
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                        sizes.append(int((folder / "statm").read_text().split()[1]) * page)
                except (OSError, IndexError):
                    continue  # it has just ended
            self.marks.append(max(sizes))


def throughput(spark: Any, url: str, count: int, repeats: int) -> dict[str, Any]:
    """Compare Spark into the noop sink with the raw drain of one connection, and with sources that do nothing."""

    def ready(**options: str) -> Any:
        return spark.read.format("ready").options(rows=str(count), **options).load()

    runs = {
        "raw pull": lambda: sides.raw_pull(url, count, SIZE),
        "spark noop": lambda: drain(load(spark, url, count)),
        "ready, into noop": lambda: drain(ready()),
        "drained, into noop": lambda: drain(ready(url=url)),
        "spark noop, no headers": lambda: drain(load(spark, url, count, includeHeaders="false")),
        "wire read, one connection": lambda: sides.read(url, count, SIZE),
    }
    rates: dict[str, list[float]] = {side: [] for side in runs}
    cpu: dict[str, list[dict[str, float]]] = {side: [] for side in runs}
    for turn in range(repeats):
        for side in rotated(list(runs), turn):
            watch = CpuTime()
            rates[side].append(count / runs[side]())
            cpu[side].append({kind: 1e6 * seconds / count for kind, seconds in watch.taken().items()})
    used = {side: medians(found) for side, found in cpu.items()}
    found = {side: summary(values) for side, values in rates.items()}
    for side, rate in found.items():
        print(f"  {side:28} {rate['median']:12,.0f}/s   CPU us a row {used[side]}", flush=True)

    def share(side: str, of: str) -> dict[str, Any]:
        return summary([mine / other for mine, other in zip(rates[side], rates[of], strict=True)])

    ratios = {side: share("spark noop", side) for side in runs if side != "spark noop"}
    for side, ratio in ratios.items():
        print(f"  Spark into noop is {ratio['median']:.2f} of {side} ({ratio['min']:.2f} to {ratio['max']:.2f})")
    return {
        "messages": count,
        "rates": {side: rate["median"] for side, rate in found.items()},
        "spread": {side: {"min": rate["min"], "max": rate["max"]} for side, rate in found.items()},
        "ratios": ratios["raw pull"]["all"],
        "ratio": ratios["raw pull"]["median"],
        "of Spark's ceiling": ratios["ready, into noop"]["median"],
        "of a source that drops what it receives": ratios["drained, into noop"]["median"],
        "such a source, of the raw pull": share("drained, into noop", "raw pull")["median"],
        "cpu us a row": used,
    }


def first_batch(spark: Any, url: str, folder: Path, count: int) -> dict[str, Any]:
    """Say where the time of a streaming read of all messages goes, beside a source that has the rows ready."""
    found: dict[str, Any] = {}
    for name in ("ready", "nats", "ready", "nats"):  # the first time of each warms up
        reader = spark.readStream.format(name)
        if name == "nats":
            reader = reader.option("url", url).option("stream", sides.STREAM)
        else:
            reader = reader.option("rows", str(count))
        begun = time.perf_counter()
        query = (
            reader.load().writeStream.format("noop").trigger(availableNow=True)
            .option("checkpointLocation", tempfile.mkdtemp(dir=folder)).start()
        )  # fmt: skip
        query.awaitTermination()
        whole = time.perf_counter() - begun
        parts = [item.durationMs for item in query.recentProgress if item.numInputRows]
        triggers = sum(item["triggerExecution"] for item in parts)
        rows = sum(item.numInputRows for item in query.recentProgress)
        found[name] = {
            "rows": rows,
            "whole ms": round(1000 * whole),
            "triggers ms": triggers,
            "before and between ms": round(1000 * whole) - triggers,
            "parts ms": {part: sum(item.get(part, 0) for item in parts) for part in parts[0]} if parts else {},
        }
        print(f"  {name:6} {json.dumps(found[name])}", flush=True)
    return found


def growth(spark: Any, url: str, counts: list[int]) -> dict[str, Any]:
    """See how the time grows with the messages, and that the memory of the workers does not."""
    times = {}
    for count in counts:
        if count == counts[-1]:
            watch = Memory()
            watch.start()
        times[count] = min(drain(load(spark, url, count)) for _ in range(2 if count < counts[-1] else 1))
        print(f"  {count:>12,} messages  {times[count]:8.2f} s  {count / times[count]:12,.0f}/s", flush=True)
    watch.over.set()
    watch.join()
    marks = [mark for mark in watch.marks if mark]
    third = len(marks) // 3
    early, late = max(marks[third // 2 : third]), max(marks[-third:])
    print(f"  largest Python worker: {early / 2**20:.0f} MiB in the first third, {late / 2**20:.0f} MiB in the last")
    first, last = counts[0], counts[-1]
    factor = (times[last] / times[first]) / (last / first)
    print(f"  time a message at {last:,} is {factor:.2f} of that at {first:,}")
    return {
        "seconds": {str(count): round(seconds, 2) for count, seconds in times.items()},
        "time a message, last against first": round(factor, 2),
        "worker MiB": {"first third": round(early / 2**20), "last third": round(late / 2**20)},
    }


def requests(server: penstock.Server) -> int:
    """Tell how many JetStream API requests the server has had."""
    with urllib.request.urlopen(f"{server.monitor_urls[0]}/jsz", timeout=10) as answer:
        return int(json.loads(answer.read())["api"]["total"])


def idle(spark: Any, server: penstock.Server, folder: Path, seconds: float) -> dict[str, Any]:
    """Count what a trigger costs where nothing comes."""
    reader = spark.readStream.format("nats").option("url", server.url).option("stream", "QUIET").load()
    query = (
        reader.writeStream.format("noop").trigger(processingTime="100 milliseconds")
        .option("checkpointLocation", str(folder / "idle")).start()
    )  # fmt: skip
    try:
        query.processAllAvailable()
        time.sleep(1.0)
        before, begun = requests(server), time.perf_counter()
        time.sleep(seconds)
        asked, passed = requests(server) - before, time.perf_counter() - begun
    finally:
        query.stop()
    triggers = passed / 0.1
    print(f"  {asked} API requests in {passed:.1f} s of idle triggers every 100 ms: {asked / triggers:.2f} a trigger")
    return {"requests a trigger": round(asked / triggers, 2)}


def trickle(spark: Any, server: penstock.Server, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure how long a batch takes at a hundred messages a second, beside a Python source that does nothing."""
    spark.dataSource.register(Clock)
    found = {}
    for name in ("floor", "nats", "floor", "nats"):  # the first time of each warms up
        over = threading.Event()
        if name == "nats":
            reader = spark.readStream.format("nats").option("url", server.url).option("stream", "QUIET")
            thread = threading.Thread(target=publish, args=(server.url, over), daemon=True)
        else:
            reader = spark.readStream.format("clock")
            thread = threading.Thread(target=over.wait, daemon=True)
        delays: list[float] = []
        query = (
            reader.load().select("time").writeStream.foreachBatch(taking(delays))
            .option("checkpointLocation", tempfile.mkdtemp(dir=folder)).start()
        )  # fmt: skip
        thread.start()
        try:
            while not delays:
                time.sleep(0.1)
            delays.clear()
            time.sleep(seconds)
            batches = [item.durationMs["triggerExecution"] for item in query.recentProgress if item.numInputRows]
        finally:
            over.set()
            query.stop()
            thread.join()
        half = batches[len(batches) // 4 :]
        found[name] = {
            "median batch ms": round(statistics.median(half)),
            "median delay ms": round(1000 * statistics.median(delays)),
        }
        print(f"  {name:6} a batch takes {found[name]['median batch ms']} ms, a message waits "
              f"{found[name]['median delay ms']} ms until it is there", flush=True)  # fmt: skip
    ratio = found["nats"]["median delay ms"] / found["floor"]["median delay ms"]
    print(f"  delay against the floor of a Python source: {ratio:.2f}")
    return {**found, "delay ratio": round(ratio, 2)}


def taking(delays: list[float]) -> Any:
    """Give a function that notes how old the messages of a batch are when it has them."""

    def take(frame: Any, _: int) -> None:
        rows = frame.collect()
        now = time.time()
        delays.extend(now - row.time.timestamp() for row in rows)

    return take


def publish(url: str, over: threading.Event) -> None:
    """Publish a hundred messages a second."""
    with BulkConnection(url) as bulk:
        rows = sides.batches(TRICKLE // 20, SIZE)[0].drop_columns(["subject"])
        while not over.wait(0.05):
            bulk.publish("QUIET", rows, subject="quiet.a")


def clock_source() -> type:
    """Make a Python source that makes rows out of the clock: what any Python source costs at the least."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": int(time.time() * TRICKLE)}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
            return {"at": int(time.time() * TRICKLE)}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition((start["at"], end["at"]))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            times = [int(place * 1_000_000 / TRICKLE) for place in range(*partition.value)]
            kind = pa.timestamp("us", tz="UTC")
            yield pa.record_batch([pa.array(times, kind)], schema=pa.schema([("time", kind)]))

    class Clock(DataSource):
        @classmethod
        def name(cls) -> str:
            return "clock"

        def schema(self) -> str:
            return "time timestamp"

        def streamReader(self, schema: Any) -> Any:
            return Reader()

    return Clock


Clock = clock_source()


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--output", type=Path, default=Path("artifacts/spark_read.json"))
    given = parser.parse_args()
    scale = 10 if given.quick else 1
    result: dict[str, Any] = {"compiled": compiled, "cores": os.cpu_count(), "size": SIZE}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, penstock.Server(sync="2m") as server:
        spark = session(
            "bench",
            master="local[2]",
            spark__ui__enabled="false",
            # A query that is stopped inside foreachBatch makes Spark search a long text with a deep recursion.
            spark__driver__extraJavaOptions="-Xss8m",
            spark__ui__showConsoleProgress="false",
            spark__sql__shuffle__partitions="2",
            spark__local__dir=folder,
            spark__sql__warehouse__dir=f"{folder}/warehouse",
        )
        try:
            spark.sparkContext.setLogLevel("OFF")
            spark.dataSource.register(_ready_source.Ready)
            with BulkConnection(server.url) as bulk:
                bulk.api("STREAM.CREATE.QUIET", {"name": "QUIET", "subjects": ["quiet.>"], "allow_direct": True})
            fill(server.url, 5_000_000 // scale)
            print("warming up", flush=True)
            for _ in range(2):
                drain(load(spark, server.url, 1_000_000 // scale))
            print("throughput")
            result["throughput"] = throughput(spark, server.url, 5_000_000 // scale, 5)
            print("first batch")
            result["first batch"] = first_batch(spark, server.url, Path(folder), 5_000_000 // scale)
            print("growth")
            fill(server.url, 10_000_000 // scale)
            counts = [count // scale for count in (1_000_000, 2_000_000, 5_000_000, 10_000_000)]
            result["growth"] = growth(spark, server.url, counts)
            print("small batches")
            result["idle"] = idle(spark, server, Path(folder), 5.0)
            result["trickle"] = trickle(spark, server, Path(folder), 6.0 if given.quick else 15.0)
        finally:
            spark.stop()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
