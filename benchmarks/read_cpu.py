"""Shows what bounds a read: the rate beside a raw drain, and the CPU time of both ends for a message.

    python benchmarks/read_cpu.py [--quick] [--sizes 128 1024 16384 65536] [--rounds 5]  JSON to artifacts/read_cpu.json

The sides of benchmarks/wire.py take turns in processes of their own. Where both ends together keep all cores busy, the
rate is that of their CPU time: what a reader does with a message, beyond receiving it, is taken from the server.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import penstock

sys.path.insert(0, str(Path(__file__).parent))
import wire
from growth import cpu

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "read_cpu.json"
SIDES = ("raw_pull", "read", "natsrpy_pull")


def children() -> float:
    """Seconds that the processes computed which have ended, the start of Python included."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the messages")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024, 16_384, 65_536])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    results = []
    with penstock.Server(sync="2m") as server:
        (pid,) = (node.pid for node in server.nodes)
        assert pid is not None
        for size in given.sizes:
            count = wire.amount(size, given.quick)
            wire.create(server.url)
            wire.run("publish_fast", server.url, count, size)
            rows: dict[str, list[tuple[float, float, float]]] = {side: [] for side in SIDES}
            for _ in range(1 if given.quick else given.rounds):
                for side in SIDES:
                    before, own = cpu(pid), children()
                    rate = wire.run(side, server.url, count, size)
                    rows[side].append((rate, (cpu(pid) - before) / count * 1e6, (children() - own) / count * 1e6))
            for side in SIDES:
                rate, at_server, at_client = (statistics.median(values) for values in zip(*rows[side], strict=True))
                ratio = statistics.median(
                    mine[0] / raw[0] for mine, raw in zip(rows[side], rows[SIDES[0]], strict=True)
                )
                results.append({"size": size, "side": side, "rate": rate, "ratio": ratio})
                results[-1] |= {"server_us": at_server, "client_us": at_client}
                print(
                    f"{size:6} B  {side:14} {rate:10,.0f}/s  {ratio:5.2f} of {SIDES[0]}   server {at_server:6.2f} us, "
                    f"client {at_client:6.2f} us a message",
                    flush=True,
                )
    ARTIFACT.parent.mkdir(exist_ok=True)
    ARTIFACT.write_text(json.dumps({"cpus": os.cpu_count(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
