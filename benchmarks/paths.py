"""The main paths beside their limits and their peers: reading, fast ingest, an ack each, atomic batches.

    python benchmarks/paths.py              five sizes, five rounds
    python benchmarks/paths.py --quick      128 bytes and 16 KB, three rounds, fewer messages

A limit is a raw socket that sends frames made beforehand, or throws away what it receives. Peers are nats-py, natsrpy
(a client in Rust) and, if the `nats` command is installed, its benchmark (a client in Go). Every side runs in a process
of its own, all sides of a case in turn, in another order every round; the ratios are of neighbours in one round. CPU
time is of both ends, over the measured time only (of the `nats` command: of its whole process).
The result goes to artifacts/paths.json, or where --output says.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides
from _measure import about, cpu_of, ratios, rotated, summary
from wire import create

import penstock
from penstock.wire.bulk import BulkConnection

# The limit first; `go_` is the `nats` command.
CASES: dict[str, tuple[str, ...]] = {
    "read": ("raw_pull", "read", "natsrpy_pull", "nats_pull", "go_ordered"),
    "publish fast": ("raw_fast", "publish_fast", "go_fast"),
    "publish acks": ("raw_acks", "publish_acks", "nats_async", "go_async"),
    "publish atomic": ("raw_atomic", "raw_atomic_ids", "publish_atomic", "publish_atomic_bare", "go_atomic"),
}
# What is held against another limit than the first of its case: ids cost the server something.
LIMITS = {"publish_atomic": "raw_atomic_ids"}
# A share of the messages for sides that are much slower: a rate needs a second, not a minute.
SLOW = {"nats_pull": 0.05, "nats_async": 0.05}
GO = {
    "go_ordered": ["ordered"],
    "go_fast": ["pub", "fast", "bench.a", "--max-outstanding-acks", "4"],
    "go_async": ["pub", "async", "bench.a", "--batch", "4000", "--dedup"],
    "go_atomic": ["pub", "atomic", "bench.a", "--batch", "1000"],
}
MOST = 600.0


def go_side(program: str, name: str, url: str, count: int, size: int, server: int) -> dict[str, float]:
    """Run the `nats` command's benchmark."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        file = Path(folder, "out.csv")
        about_it = ["--stream", sides.STREAM, "--msgs", str(count), "--size", str(size), "--no-progress"]
        before = cpu_of(server)
        process = subprocess.Popen(
            [program, "bench", "js", *GO[name], *about_it, "--csv", str(file), "-s", url, "--no-context"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said = process.stderr.read().decode() if process.stderr else ""
        if process.returncode or not file.exists():
            raise RuntimeError(f"{name}: {said.strip()[-300:]}")
        row = next(csv.DictReader(file.read_text().splitlines()))
        seconds = float(row["DurationSecs"])
        return {
            "rate": count / seconds,
            "cpu": used.ru_utime + used.ru_stime,
            "server_cpu": cpu_of(server) - before,
            "mib": used.ru_maxrss / 1024,
        }


def run(name: str, url: str, count: int, size: int, server: int, program: str | None) -> dict[str, float]:
    """Run one side in a process of its own."""
    if program is not None and name.startswith("go_"):
        return go_side(program, name, url, count, size, server)
    words = [name, url, str(count), str(size), str(server)]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("_timed.py")), *words],
        capture_output=True,
        text=True,
        timeout=MOST,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip()[-600:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(
    server: Any, case: str, size: int, count: int, rounds: int, program: str | None, say: bool = True
) -> dict[str, Any]:
    """Run all sides of a case in turn, several times."""
    names = [name for name in CASES[case] if program is not None or not name.startswith("go_")]
    pid, url = server.nodes[0].pid, server.url
    if case == "read":
        create(url)
        with BulkConnection(url) as bulk:
            bulk.publish(sides.STREAM, sides.batches(count, size), "fast", timeout=300)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in rotated(names, turn):
            if case != "read":
                create(url)
            part = max(1, int(count * SLOW.get(name, 1.0)))
            found = run(name, url, part, size, pid, program)
            taken[name].append({**found, "count": part})
        if say:
            done = ", ".join(f"{name} {runs[-1]['rate']:,.0f}/s" for name, runs in taken.items())
            print(f"  {case}, {size:,} B, round {turn + 1} of {rounds}: {done}", flush=True)
    rates = {name: [one["rate"] for one in runs] for name, runs in taken.items()}
    shares = ratios({name: rate for name, rate in rates.items() if name not in LIMITS}, names[0])
    for name in LIMITS.keys() & rates.keys():
        shares |= ratios({name: rates[name], LIMITS[name]: rates[LIMITS[name]]}, LIMITS[name])
    report: dict[str, Any] = {"size": size, "messages": count, "sides": {}, "ratios": shares}
    for name, runs in taken.items():
        report["sides"][name] = {
            "rate": summary(rates[name]),
            "cpu_us": summary([one["cpu"] / one["count"] * 1e6 for one in runs]),
            "server_cpu_us": summary([one["server_cpu"] / one["count"] * 1e6 for one in runs]),
        }
    return report


def amount(size: int, quick: bool) -> int:
    """Give a number of messages that takes a second or so at this size."""
    count = min(400_000, max(2_000, 300 * 1024 * 1024 // max(size, 768)))
    return count // 4 if quick else count


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", choices=sorted(CASES), nargs="+", default=list(CASES))
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--messages", type=int)
    parser.add_argument("--output", type=Path, default=Path("artifacts/paths.json"))
    given = parser.parse_args()
    rounds = given.rounds or (3 if given.quick else 5)
    sizes = given.sizes or ([128, 16_384] if given.quick else [16, 128, 1024, 16_384, 65_536])
    program = shutil.which(os.environ.get("NATS_CLI", "nats"))
    report: dict[str, Any] = {**about(), "rounds": rounds, "cases": {}, "skipped": {}}
    if program is None:
        report["skipped"]["nats bench (Go)"] = "the `nats` command is not installed; NATS_CLI names it"
        print("  skipped: nats bench (Go), which is not installed", flush=True)
    with penstock.Server(sync="2m") as server:
        report["server"] = server.version
        for case in given.only:
            for size in sizes:
                count = given.messages or amount(size, given.quick)
                found = measure(server, case, size, count, rounds, program)
                report["cases"].setdefault(case, {})[str(size)] = found
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"  written to {given.output}")


if __name__ == "__main__":
    main()
