"""How fast history is read from a store and from a backup, against reading it through the server.

    python benchmarks/backfill.py                ten million messages of 128 bytes
    python benchmarks/backfill.py --quick        a tenth of that, and fewer rounds
    python benchmarks/backfill.py --no-spark     without Spark

All sides run in one go on this machine, in turn, against one stream: through the embedded server, from a copy of its
store, and from a backup of it; each of them without Spark, in one process, and with a `local[2]` Spark into its noop
sink. The ratio that counts is the median of those of neighbouring rounds. On a busy machine the CPU time of a message
says more: that of this process and of all that it started, the server included. The most memory of the process that
reads, or of the largest Python worker of Spark, is said for a tenth of the messages, read once before the rounds, and
for all of them. The result goes to artifacts/backfill.json, or where --output says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock.jetstream import snapshot
from penstock.store.history import History, open_backup, open_store
from penstock.wire import compiled
from penstock.wire.bulk import BulkConnection

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides

SIZE = 128
PIECE = 100_000
WANTED = 3.0
THROUGH = "through the server"

Work = Callable[[int], int]  # reads the first so many messages, and says how many it got


def fill(url: str, upto: int) -> None:
    """Store messages."""
    with BulkConnection(url) as bulk:
        config = {"name": sides.STREAM, "subjects": ["bench.>"], "allow_direct": True, "allow_batched": True}
        bulk.api(f"STREAM.CREATE.{sides.STREAM}", config)
        rows, begun = sides.batches(PIECE, SIZE), time.perf_counter()
        for _ in range(0, upto, PIECE):
            bulk.publish(sides.STREAM, rows, "fast", timeout=120)
        print(f"  stored {upto:,} in {time.perf_counter() - begun:.0f} s", flush=True)


async def back_up(url: str, folder: Path) -> None:
    """Make a backup."""
    async with await penstock.connect(url) as client:
        await snapshot.backup(client, sides.STREAM, folder)


class Memory(threading.Thread):
    """Watches the resident memory of this process, or of the largest of those that `command` names."""

    def __init__(self, command: bytes | None = None) -> None:
        super().__init__(daemon=True)
        self.command, self.marks, self.over = command, list[int](), threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self._look()

    def _look(self) -> None:
        self.marks.append(max(self._sizes(), default=0))

    def _sizes(self) -> Iterator[int]:
        page = os.sysconf("SC_PAGE_SIZE")
        for folder in [Path("/proc/self")] if self.command is None else Path("/proc").glob("[0-9]*"):
            try:
                if self.command is None or self.command in (folder / "cmdline").read_bytes():
                    yield int((folder / "statm").read_text().split()[1]) * page
            except (OSError, IndexError):
                continue  # it has just ended

    def end(self) -> int:
        """Give the most that there was, in MiB."""
        self.over.set()
        self.join()
        self._look()  # what took no time at all was not seen before
        return max(self.marks) >> 20


def cpu() -> float:
    """Give the CPU seconds of this process and of all processes below it that live: the server, and Spark."""
    below: dict[int, list[tuple[int, float]]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        below.setdefault(int(fields[1]), []).append((int(folder.name), ticks))
    total, waiting = time.process_time(), [os.getpid()]
    while waiting:
        for process, ticks in below.get(waiting.pop(), ()):
            total += ticks
            waiting.append(process)
    return total


def seconds(work: Work, count: int) -> float:
    """Do some work that must give so many rows."""
    begun = time.perf_counter()
    rows = work(count)
    assert rows == count, (rows, count)
    return time.perf_counter() - begun


def through(url: str, count: int) -> int:
    """Read with one connection."""
    with BulkConnection(url) as bulk:
        return sum(batch.num_rows for batch in bulk.read(sides.STREAM, 1, count + 1, timeout=sides.FOREVER))


def stored(open_it: Callable[[], History], count: int) -> int:
    """Read what a store or a backup holds, its opening included."""
    return sum(batch.num_rows for batch in open_it().batches(1, count + 1))


def drain(spark: Any, count: int, **options: str) -> int:
    """Read a frame into nothing."""
    # Two cores have something to do on every side.
    reader = spark.read.format("nats").option("minPartitions", "4").option("end", count + 1)
    for name, value in options.items():
        reader = reader.option(name, value)
    reader.load().write.format("noop").mode("overwrite").save()
    return count


def compare(runs: dict[str, Work], count: int, rounds: int, worker: bytes | None) -> dict[str, Any]:
    """Let the sides run in turn; give rates, ratios and memory."""
    best: dict[str, float] = {}
    ratios: dict[str, list[float]] = {side: [] for side in runs if side != THROUGH}
    memory: dict[str, dict[str, int]] = {side: {} for side in runs}
    for side, work in runs.items():  # a tenth first: of a process it is known what it had at most
        watch = Memory(worker)
        watch.start()
        seconds(work, count // 10)
        memory[side][f"{count // 10:,}"] = watch.end()
    used: dict[str, list[float]] = {side: [] for side in runs}
    for _ in range(rounds):
        rates = {}
        for side, work in runs.items():
            watch = Memory(worker)
            watch.start()
            before = cpu()
            rates[side] = count / seconds(work, count)
            used[side].append(1e6 * (cpu() - before) / count)
            memory[side][f"{count:,}"] = max(memory[side].get(f"{count:,}", 0), watch.end())
        for side in ratios:
            ratios[side].append(rates[side] / rates[THROUGH])
        best = {side: max(rate, best.get(side, 0.0)) for side, rate in rates.items()}
    found: dict[str, Any] = {
        "rates": {side: round(rate) for side, rate in best.items()},
        "ratios": {},
        "most MiB": memory,
    }
    found["CPU us a message"] = {side: round(statistics.median(each), 2) for side, each in used.items()}
    for side, rate in best.items():
        told = ""
        if side in ratios:
            ratio, spread = statistics.median(ratios[side]), [round(each, 2) for each in sorted(ratios[side])]
            found["ratios"][side] = {"median": round(ratio, 2), "all": spread, "wanted": WANTED}
            told = f"{ratio:6.2f} times the server (median of {spread}); wanted {WANTED:g}"
        grown = " then ".join(map(str, memory[side].values())) + " MiB"
        spent = f"{found['CPU us a message'][side]:5.2f} us CPU"
        print(f"  {side:20} {rate:12,.0f}/s  {spent}  {grown:20} {told}", flush=True)
    return found


def with_spark(url: str, store: Path, backup: Path, count: int, rounds: int, folder: str) -> dict[str, Any]:
    """Compare the sides in Spark."""
    from penstock.spark.sessions import session

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
        runs = {
            THROUGH: lambda rows: drain(spark, rows, url=url, stream=sides.STREAM),
            "store": lambda rows: drain(spark, rows, store=str(store), stream=sides.STREAM),
            "backup": lambda rows: drain(spark, rows, backup=str(backup)),
        }
        return compare(runs, count, rounds, b"pyspark.daemon")
    finally:
        spark.stop()


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--messages", type=int, help="another number of messages")
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    parser.add_argument("--no-spark", action="store_true", help="only without Spark")
    parser.add_argument("--output", type=Path, default=Path("artifacts/backfill.json"))
    given = parser.parse_args()
    count = given.messages or (1_000_000 if given.quick else 10_000_000)
    rounds = given.rounds or (2 if given.quick else 3)
    begun = time.perf_counter()
    result: dict[str, Any] = {"compiled": compiled, "cores": os.cpu_count(), "size": SIZE, "messages": count}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        held, store, backup = Path(folder, "held"), Path(folder, "store"), Path(folder, "backup")
        with penstock.Server(store=held, sync="2m") as server:
            fill(server.url, count)
            asyncio.run(back_up(server.url, backup))
        shutil.copytree(held, store, copy_function=os.link)  # the server only reads from now on
        with penstock.Server(store=held, sync="2m") as server:
            url = server.url
            runs: dict[str, Work] = {
                THROUGH: lambda rows: through(url, rows),
                "store": lambda rows: stored(lambda: open_store(store, sides.STREAM), rows),
                "backup": lambda rows: stored(lambda: open_backup(backup), rows),
            }
            print(f"{count:,} messages, one process")
            result["one process"] = compare(runs, count, rounds, None)
            if not given.no_spark:
                print(f"{count:,} messages, Spark")
                result["spark"] = with_spark(url, store, backup, count, rounds, folder)
    result["seconds"] = round(time.perf_counter() - begun)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
