"""How fast the wire is, against the server's own speed and against other clients.

    python benchmarks/wire.py              everything: four sizes, lazy sync and `sync: always`
    python benchmarks/wire.py --quick      128 bytes, fewer messages
    python benchmarks/wire.py --targets    only what must be reached, each pair of sides in turn
    python benchmarks/wire.py --memory     the memory of `read` over five million messages, nothing else

All sides run in one go against one embedded server on this machine, each in a process of its own, one after the other,
and each more than once. Tables show the best run of each side, and say little where the machine has other work. What
must be reached is judged by the median of ratios of neighbouring runs.
The result goes to artifacts/wire.json, or where --output says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import penstock
from penstock.errors import JetStreamError
from penstock.wire import compiled
from penstock.wire.bulk import BulkConnection, reading

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides

NO_STORE = 10049
READ = (
    "raw_pull",
    "read",
    "read_plain",
    "raw_push",
    "raw_push_flow",
    "raw_direct",
    "natsrpy_pull",
    "nats_pull",
    "nats_ordered",
)
PUBLISH = ("raw_fast", "publish_fast", "publish_fast_plain", "raw_acks", "publish_acks", "publish_atomic", "nats_async")
# A share of the messages for sides that are much slower: a rate needs seconds, not minutes.
SLOW = {"nats_pull": 0.1, "nats_ordered": 0.1, "nats_async": 0.1, "read_plain": 0.5}
TARGETS = (
    # at 128 bytes: side, at least so many times, the other side, sync
    ("read", 0.8, "raw_pull", "lazy"),
    ("read", 15.0, "nats_pull", "lazy"),
    ("read_plain", 5.0, "nats_pull", "lazy"),
    ("publish_fast", 0.8, "raw_fast", "lazy"),
    ("publish_fast", 5.0, "nats_async", "lazy"),
    ("publish_atomic", 10.0, "publish_acks", "always"),
)


def run(side: str, url: str, count: int, size: int) -> float:
    """Run one side in a process of its own and give its rate."""
    name = side.removesuffix("_plain")
    environment = {**os.environ, "PENSTOCK_PURE": "1" if side.endswith("_plain") else "0"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("_wire_sides.py")), name, url, str(count), str(size)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr}")
    return float(json.loads(done.stdout)["rate"])


def create(url: str, storage: str = "file", **more: Any) -> None:
    """Make the stream anew; more is what else its configuration says."""
    with BulkConnection(url) as bulk:
        if sides.STREAM in (bulk.api("STREAM.NAMES").get("streams") or []):
            bulk.api(f"STREAM.DELETE.{sides.STREAM}", timeout=60)
        config: dict[str, Any] = {
            "name": sides.STREAM,
            "subjects": ["bench.>"],
            "storage": storage,
            "allow_direct": True,
        }
        config |= {"allow_atomic": True, "allow_batched": True, **more}
        for last in (*[False] * 99, True):
            try:
                bulk.api(f"STREAM.CREATE.{sides.STREAM}", config)
                return
            except JetStreamError as error:
                if error.err_code != NO_STORE or last:
                    raise
                time.sleep(0.1)  # the files of the last one are still going


def measure(
    url: str, names: tuple[str, ...], size: int, count: int, repeats: int, results: list[Any], sync: str
) -> None:
    """Run sides in turn, several times, and keep the best of each."""
    best: dict[str, float] = {}
    for _ in range(repeats):
        for side in names:
            if side in PUBLISH:
                create(url)
            rate = run(side, url, max(1, int(count * SLOW.get(side, 1.0))), size)
            best[side] = max(rate, best.get(side, 0.0))
    base = best[names[0]]
    for side in names:
        results.append({"side": side, "size": size, "sync": sync, "rate": round(best[side])})
        if not best[side]:
            print(f"  {sync:6} {size:6} B  {side:20} cut off by the server as a slow consumer", flush=True)
            continue
        print(
            f"  {sync:6} {size:6} B  {side:20} {best[side]:12,.0f}/s   {best[side] / base:6.3f} of {names[0]}",
            flush=True,
        )


def amount(size: int, quick: bool) -> int:
    """Give a number of messages that takes a second or so at this size."""
    count = min(400_000, max(4_000, 400 * 1024 * 1024 // max(size, 1024)))
    return count // 4 if quick else count


def compare(url: str, sync: str, rounds: int, count: int) -> list[dict[str, Any]]:
    """Hold the targets: the two sides of each run in turn, and the median of the ratios of neighbours counts.

    Load from elsewhere changes from second to second and hits neighbours alike. A best run each would compare the
    luckiest moment of one side with the luckiest of the other.
    """
    found = []
    for side, wanted, other, where in TARGETS:
        if where != sync:
            continue
        ratios = []
        for turn in range(rounds):
            rates = {}
            for name in (side, other) if turn % 2 == 0 else (other, side):
                if name in PUBLISH:
                    create(url)
                rates[name] = run(name, url, max(1, int(count * SLOW.get(name, 1.0))), 128)
            ratios.append(rates[side] / rates[other])
        ratio = statistics.median(ratios)
        spread = [round(item, 2) for item in sorted(ratios)]
        found.append({"side": side, "against": other, "sync": sync, "wanted": wanted, "median": round(ratio, 2)})
        found[-1]["ratios"] = spread
        word = "reached" if ratio >= wanted else "MISSED"
        print(f"  {side} / {other} ({sync}): median {ratio:.2f} of {spread}; wanted {wanted:g}: {word}", flush=True)
    return found


def targets(rounds: int, count: int) -> list[dict[str, Any]]:
    """Hold all targets, at 128 bytes, on a server with lazy sync and on one with `sync: always`."""
    with penstock.Server(sync="2m") as server:
        create(server.url)
        with BulkConnection(server.url) as bulk:
            bulk.publish(sides.STREAM, sides.batches(count, 128), "fast", timeout=300)
        found = compare(server.url, "lazy", rounds, count)
    with penstock.Server(sync="always") as server:
        return found + compare(server.url, "always", min(rounds, 3), 5_000)


def short_ranges(url: str, repeats: int) -> list[dict[str, Any]]:
    """Time short reads by both ways, median of several, in milliseconds."""
    found = []
    with BulkConnection(url) as bulk:
        for rows in (1, 10, 100, 500, 1000, 2000, 5000):
            line: dict[str, Any] = {"rows": rows}
            for way, most in (("direct", 1_000_000), ("consumer", 0)):
                before, reading.DIRECT_ROWS = reading.DIRECT_ROWS, most
                taken = []
                for turn in range(repeats):
                    begun = time.perf_counter()
                    start = 1 + turn * rows % 1000
                    assert sum(batch.num_rows for batch in bulk.read(sides.STREAM, start, start + rows)) == rows
                    taken.append(time.perf_counter() - begun)
                reading.DIRECT_ROWS = before
                line[way] = round(statistics.median(taken) * 1000, 2)
            found.append(line)
            print(
                f"  {rows:6} messages: direct get {line['direct']:7.2f} ms, consumer {line['consumer']:7.2f} ms",
                flush=True,
            )
    return found


def memory(count: int) -> dict[str, Any]:
    """Read `count` messages and watch the process's memory."""
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    with penstock.Server(sync="2m") as server, BulkConnection(server.url) as bulk:
        create(server.url)
        one = sides.batches(100_000, 16)
        begun = time.perf_counter()
        for done in range(0, count, 100_000):
            bulk.publish(sides.STREAM, one, "fast", timeout=120)
            if done % 1_000_000 == 0:
                print(f"  stored {done:,} of {count:,}", flush=True)
        print(f"  stored {count:,} in {time.perf_counter() - begun:.0f} s")
        marks, rows = [], 0
        for batch in bulk.read(sides.STREAM, timeout=120):
            rows += batch.num_rows
            marks.append((rows, resident()))
        tenth = marks[len(marks) // 10][1]
        end = max(size for _, size in marks[len(marks) // 10 :])
        print(f"  after a tenth {tenth / 2**20:.0f} MiB, at most {end / 2**20:.0f} MiB afterwards")
        return {"messages": rows, "after_a_tenth": tenth, "most_afterwards": end}


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--targets", action="store_true")
    parser.add_argument("--rounds", type=int, default=7, help="for --targets")
    parser.add_argument("--sizes", type=int, nargs="+", help="payload bytes; 16, 128, 1024 and 65536 unless told")
    parser.add_argument("--only", choices=("read", "publish"))
    parser.add_argument("--messages", type=int, default=5_000_000, help="for --memory")
    parser.add_argument("--output", type=Path, default=Path("artifacts/wire.json"))
    given = parser.parse_args()
    if not compiled:
        raise SystemExit("The wire modules are not compiled: run `make setup` where a C compiler is found.")
    report: dict[str, Any] = {
        "penstock": penstock.__version__,
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    report["command"] = " ".join(["python", "benchmarks/wire.py", *sys.argv[1:]])
    if given.memory:
        report["memory"] = memory(given.messages)
    elif given.targets:
        report["targets"] = targets(given.rounds, 100_000)
    else:
        report["results"] = results = []
        sizes = given.sizes or ((128,) if given.quick else (16, 128, 1024, 65_536))
        repeats = 2 if given.quick else 3
        with penstock.Server(sync="2m") as server:
            report["server"] = server.version
            for size in sizes:
                count = amount(size, given.quick)
                if given.only != "publish":
                    create(server.url)
                    with BulkConnection(server.url) as bulk:
                        bulk.publish(sides.STREAM, sides.batches(count, size), "fast", timeout=300)
                    measure(server.url, READ, size, count, repeats, results, "lazy")
                    if size == 128:
                        report["short_ranges"] = short_ranges(server.url, 5 if given.quick else 21)
                if given.only != "read":
                    measure(server.url, PUBLISH, size, count, repeats, results, "lazy")
        if given.only != "read":
            with penstock.Server(sync="always") as server:
                names = ("publish_atomic", "publish_acks", "publish_fast", "nats_async")
                for size in given.sizes or ((128,) if given.quick else (128, 1024)):
                    measure(server.url, names, size, 5_000 if given.quick else 10_000, 1, results, "always")
        if given.only is None:
            report["targets"] = targets(3 if given.quick else 7, 50_000 if given.quick else 100_000)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"  written to {given.output}")


if __name__ == "__main__":
    main()
