"""How fast Spark streams a stream into nothing, beside the connectors that others make.

    python benchmarks/connectors.py              300,000 messages of 128 bytes, five rounds
    python benchmarks/connectors.py --quick      100,000 messages, one round

Every side is a process with a Spark of its own on two cores, and reads all messages by a streaming query into the sink
`noop`, twice; the second time counts. `trigger` is what Spark says its micro-batches with rows took, `whole` is the
time from start() until the last row was there. The sides take turns, in another order every round. `ready` is a Python
source that has its rows ready: what Spark itself takes with any Python source. Ours reads the stream in one task, as it
does unless it is told otherwise, and in two; `ready` hands its rows over in two tasks, and in one. Of these sides the
parts of a trigger are kept, too, and the CPU time of a row by kind of process.

No package of ours brings other connectors. A variable names a command for each, which says its figures as the last
line that it prints, {"rows": …, "trigger_ms": …, "whole_ms": …}:

    BENCH_SCALA    COMMAND URL COUNT     reads the stream BENCH of the server at URL: nats-io/nats-spark-connector
    BENCH_KAFKA    COMMAND COUNT SIZE    fills and reads a topic of a broker of its own: Spark's connector for Kafka

The result goes to artifacts/connectors.json, or where --output says.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import penstock

sys.path.insert(0, str(Path(__file__).parent))
import _ready_source
import _wire_sides as sides
from _cpu import CpuTime
from _measure import cpu_of, medians, rotated, summary
from spark_read import SIZE, fill

FOREIGN = {"the Scala connector": "BENCH_SCALA", "Kafka's connector": "BENCH_KAFKA"}
OWN = {  # each with its source and its options
    "ours": ("nats", {}),
    "ours, 2 partitions": ("nats", {"minPartitions": "2"}),
    "ready": ("ready", {}),
    "ready, 1 partition": ("ready", {"partitions": "1"}),
}
FIGURES = ("trigger_ms", "whole_ms")
MORE = ("parts_ms", "cpu_us")  # of our own sides: of each trigger's parts, and of a row by kind of process
MOST = 600.0  # seconds that a side may take


def measured(side: str, url: str, count: int, server: int) -> dict[str, Any]:
    """Read by our source, or by one that has its rows ready, twice; give the figures of the second time."""
    from penstock.spark.sessions import session

    source, options = OWN[side]
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
            spark.dataSource.register(_ready_source.Ready)
            found: dict[str, Any] = {}
            for turn in range(2):
                reader = spark.readStream.format(source).options(**options)
                if source == "nats":
                    reader = reader.option("url", url).option("stream", sides.STREAM)
                else:
                    reader = reader.option("rows", str(count))
                watch, of_server = CpuTime(), cpu_of(server)
                begun, seen = time.perf_counter(), 0
                query = (
                    reader.load().writeStream.format("noop")
                    .option("checkpointLocation", f"{folder}/checkpoint-{turn}").start()
                )  # fmt: skip
                try:
                    while seen < count:  # as the others are watched: a query that does not end by itself
                        time.sleep(0.005)
                        seen = sum(item.numInputRows for item in query.recentProgress)
                        if error := query.exception():
                            raise error
                    whole = time.perf_counter() - begun
                    used = watch.taken() | {"server": cpu_of(server) - of_server}
                    parts = [item.durationMs for item in query.recentProgress if item.numInputRows]
                finally:
                    query.stop()
                found = {
                    "rows": seen,
                    "trigger_ms": sum(item["triggerExecution"] for item in parts),
                    "whole_ms": 1000 * whole,
                    "batches": len(parts),
                    "parts_ms": {name: sum(item.get(name, 0) for item in parts) for name in sorted(parts[0])},
                    "cpu_us": {kind: round(1e6 * seconds / seen, 2) for kind, seconds in used.items()},
                }
            return found
        finally:
            spark.stop()


def run_side(command: list[str], count: int) -> dict[str, Any]:
    """Run a side and give its figures; what it lacks or has not read is an error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST, check=False)
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["rows"] != count:
        raise RuntimeError(f"it read {found['rows']} of {count} rows")
    return {name: float(found[name]) for name in FIGURES} | {name: found[name] for name in MORE if name in found}


def commands(url: str, count: int, server: int = 0) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Give the command of each side that is here, and why others are not."""
    own = [sys.executable, __file__, "--url", url, "--server", str(server), "--messages", str(count), "--side"]
    found = {side: [*own, side] for side in OWN}
    skipped = {}
    for name, variable in FOREIGN.items():
        if given := os.environ.get(variable):
            more = [url, str(count)] if variable == "BENCH_SCALA" else [str(count), str(SIZE)]
            found[name] = [*shlex.split(given), *more]
        else:
            skipped[name] = f"not installed; {variable} may name a command that measures it"
    return found, skipped


def measure(url: str, count: int, rounds: int, server: int = 0) -> dict[str, Any]:
    """Let the sides take turns; one that fails is left out, with the reason."""
    here, skipped = commands(url, count, server)
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in here}
    for turn in range(rounds):
        for name in rotated(list(taken), turn):
            try:
                taken[name].append(run_side(here[name], count))
            except (OSError, subprocess.SubprocessError, RuntimeError, ValueError, LookupError) as error:
                if name == "ours":
                    raise
                skipped[name] = f"its command failed: {error}"
                del taken[name]
                continue
            print(f"  {name:20} {json.dumps(taken[name][-1])}", flush=True)
    return {
        "messages": count,
        "rounds": rounds,
        "sides": {
            name: {figure: summary([one[figure] for one in runs]) for figure in FIGURES}
            | {figure: medians([one[figure] for one in runs]) for figure in MORE if runs and figure in runs[0]}
            for name, runs in taken.items()
        },
        "times as fast": {
            name: {figure: _ratio(figure, runs, taken["ours"]) for figure in FIGURES}
            for name, runs in taken.items()
            if name != "ours"
        },
        "at the most": {
            name: {figure: _ratio(figure, runs, taken["ready"]) for figure in FIGURES}
            for name, runs in taken.items()
            if name not in OWN and "ready" in taken
        },
        "skipped": skipped,
    }


def _ratio(figure: str, runs: list[dict[str, Any]], to: list[dict[str, Any]]) -> dict[str, Any]:
    return summary([other[figure] / mine[figure] for other, mine in zip(runs, to, strict=True)])


def main() -> None:
    """Run everything, or one side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a third of the messages, once")
    parser.add_argument("--messages", type=int, help="how many messages there are")
    parser.add_argument("--rounds", type=int, help="how often each side takes its turn")
    parser.add_argument("--side", choices=OWN, help="measure only this side, and print its figures")
    parser.add_argument("--url", default="", help="the server of a side that is ours")
    parser.add_argument("--server", type=int, default=os.getpid(), help="its process")
    parser.add_argument("--output", type=Path, default=Path("artifacts/connectors.json"))
    given = parser.parse_args()
    count = given.messages or (100_000 if given.quick else 300_000)
    if given.side:
        print(json.dumps(measured(given.side, given.url, count, given.server)))
        return
    with penstock.Server(sync="2m") as server:
        fill(server.url, count)
        result = measure(server.url, count, given.rounds or (1 if given.quick else 5), server.nodes[0].pid)
    for name, ratio in result["times as fast"].items():
        trigger, whole = (ratio[figure]["median"] for figure in FIGURES)
        print(f"  {trigger:.2f} times as fast as {name} in its triggers, {whole:.2f} times from start to end")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
