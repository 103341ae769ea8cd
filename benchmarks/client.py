"""How fast our asyncio client is, beside nats-py, natsrpy (a client in Rust) and a bare asyncio socket.

    python benchmarks/client.py              seven rounds, some minutes
    python benchmarks/client.py --quick      one short round, to see that all of it runs

Messages of 128 bytes, one server on this machine. Each side of a case runs in a process of its own, all sides in turn,
in another order every round, so that load from elsewhere hits neighbours alike; what counts is the median of the
rounds' own ratios. `ours_uvloop` is there where uvloop is installed; _client_sides.py says what `raw` and `bytes` are.
The result goes to artifacts/client.json, or where --output says.

    subscribe        a subscription with an async callback
    publish          `publish` one after the other, and a flush
    request          64 requests in flight, answered by one process that echoes
    consume          a stream of messages to a handler, by pull requests, without acks
    consume_acking   the same, every message acknowledged
    acked            publishing to a stream, 256 acks outstanding: `jetstream.Publisher`, nats-py's `publish_async`
    acked_each       the same, every message a call of `jetstream().publish` that waits for its ack
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock.wire import compiled
from penstock.wire.bulk import BulkConnection

sys.path.insert(0, str(Path(__file__).parent))
import _client_sides as sides

SCRIPT = str(Path(__file__).with_name("_client_sides.py"))
# Messages of one run, and what is to be reached against each other side.
CASES: dict[str, tuple[int, dict[str, float]]] = {
    "subscribe": (200_000, {"nats_py": 2.5, "natsrpy": 1.0, "raw": 0.6}),
    "publish": (200_000, {"nats_py": 3.0, "natsrpy": 1.0, "raw": 0.6}),
    "request": (51_200, {"nats_py": 1.7, "natsrpy": 1.0, "raw": 0.6}),
    "consume": (100_000, {"nats_py": 6.0, "natsrpy": 1.0, "raw": 0.6}),
    "consume_acking": (50_000, {"nats_py": 6.0, "natsrpy": 1.0}),
    "acked": (51_200, {"nats_py": 3.0, "natsrpy": 1.0, "raw": 0.6}),
    "acked_each": (51_200, {"nats_py": 3.0, "natsrpy": 1.0, "raw": 0.6}),
}
# A share of the messages for sides that are much slower: a rate needs a second, not a minute. natsrpy drops what it
# cannot hand to a callback in time, once 65,536 messages wait.
SHARES = {("subscribe", "natsrpy"): 0.2, ("publish", "natsrpy"): 0.1, ("consume", "nats_py"): 0.3}
UVLOOP = {("request", "nats_py"): 2.0}  # what is to be reached with uvloop, where that is more


def run(case: str, side: str, url: str, count: int) -> float:
    """Run one side of a case in a process of its own, and give its rate."""
    command = [sys.executable, SCRIPT, case, side, url, str(count)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{case}, {side} failed:\n{done.stderr}")
    return float(json.loads(done.stdout)["rate"])


def fresh_stream(url: str, fill: int = 0) -> None:
    """Make the stream anew, with so many messages in it."""
    with BulkConnection(url) as bulk:
        if sides.STREAM in (bulk.api("STREAM.NAMES").get("streams") or []):
            bulk.api(f"STREAM.DELETE.{sides.STREAM}", timeout=60)
        config = {"name": sides.STREAM, "subjects": ["bench.>"], "storage": "memory", "allow_batched": True}
        bulk.api(f"STREAM.CREATE.{sides.STREAM}", config)
        if fill:
            import pyarrow as pa

            columns = {"subject": [sides.SUBJECT] * fill, "data": [sides.PAYLOAD] * fill}
            bulk.publish(sides.STREAM, pa.record_batch(columns), "fast", timeout=120)


@contextmanager
def echoing(url: str) -> Iterator[None]:
    """Run the process that answers requests."""
    command = [sys.executable, SCRIPT, "echo", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit("the process that echoes did not start")
        try:
            yield
        finally:
            process.stdin.close()


def measure(case: str, url: str, rounds: int, count: int, with_uvloop: bool) -> dict[str, Any]:
    """Run all sides of a case in turn, several times."""
    names = [*sides.SIDES[case], *(["ours_uvloop"] if with_uvloop else [])]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        if case.startswith("consume"):
            fresh_stream(url, count)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if case.startswith("acked"):
                fresh_stream(url)
            elif case in ("subscribe", "publish"):
                forget_stream(url)
            share = SHARES.get((case, name), 1.0)
            rates[name].append(run(case, name, url, max(sides.BATCH, int(count * share))))
    found: dict[str, Any] = {
        "messages": count,
        "rates": {name: round(statistics.median(rates[name])) for name in names},
    }
    found["ratios"] = [
        compare(case, ours, other, wanted, rates)
        for ours in ("ours", "ours_uvloop")
        if ours in rates
        for other, wanted in CASES[case][1].items()
        if (ours, other) != ("ours_uvloop", "raw")  # which runs on asyncio's own loop
    ]
    return found


def forget_stream(url: str) -> None:
    """See that no stream stores what is only passed on."""
    with BulkConnection(url) as bulk:
        if sides.STREAM in (bulk.api("STREAM.NAMES").get("streams") or []):
            bulk.api(f"STREAM.DELETE.{sides.STREAM}", timeout=60)


def compare(case: str, ours: str, other: str, wanted: float, rates: dict[str, list[float]]) -> dict[str, Any]:
    """Give the median of the rounds' ratios, beside what is wanted."""
    if ours == "ours_uvloop":
        wanted = UVLOOP.get((case, other), wanted)
    ratios = sorted(mine / theirs for mine, theirs in zip(rates[ours], rates[other], strict=True))
    median = statistics.median(ratios)
    return {
        "side": ours,
        "against": other,
        "median": round(median, 2),
        "wanted": wanted,
        "reached": median >= wanted,
        "ratios": [round(ratio, 2) for ratio in ratios],
    }


def show(case: str, found: dict[str, Any]) -> None:
    """Print the table of one case."""
    print(f"\n{case}, {found['messages']:,} messages of {sides.SIZE} bytes")
    for name, rate in found["rates"].items():
        print(f"  {name:<14} {rate:>12,}/s")
    for line in found["ratios"]:
        word = "reached" if line["reached"] else "MISSED"
        ratio = f"{line['side']} / {line['against']}"
        print(
            f"  {ratio:<22} {line['median']:>6.2f}   wanted {line['wanted']:g}: {word}   {line['ratios']}", flush=True
        )


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, a fiftieth of the messages")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--output", type=Path, default=Path("artifacts/client.json"))
    given = parser.parse_args()
    if not compiled:
        raise SystemExit("The wire modules are not compiled: run `make setup` where a C compiler is found.")
    with_uvloop = importlib.util.find_spec("uvloop") is not None
    report: dict[str, Any] = {
        "penstock": penstock.__version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "uvloop": with_uvloop,
        "command": " ".join(["python", "benchmarks/client.py", *sys.argv[1:]]),
        "cases": {},
    }
    with penstock.Server(sync="2m") as server, echoing(server.url):
        report["server"] = server.version
        for case in given.only:
            count = CASES[case][0] // 50 // sides.ACKS * sides.ACKS if given.quick else CASES[case][0]
            rounds = 1 if given.quick else given.rounds
            report["cases"][case] = measure(case, server.url, rounds, max(count, sides.BATCH), with_uvloop)
            show(case, report["cases"][case])
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n  written to {given.output}")


if __name__ == "__main__":
    main()
