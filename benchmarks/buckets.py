"""How fast values go into a key-value bucket and out of it, in one run: ours, nats-py's, and the bare wire.

The bare side sends the same requests and reads nothing of the answers but that they came: what a bucket costs on top.
Run it as it stands, or with `--quick`. Rates depend on the machine; the ratios are what to compare. Each figure is the
best of three. Results go to `artifacts/buckets.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import penstock
from penstock.buckets import KeyValue
from penstock.connection import Connection, connect_nats_py

VALUE = b"x" * 128
AT_ONCE = 256
Side = Callable[["Sides", int], Awaitable[None]]


class Sides:
    """One bucket, as ours and as nats-py's, on a connection each."""

    def __init__(self, nc: Connection, ours: KeyValue, theirs: Any) -> None:
        self.nc, self.ours, self.theirs = nc, ours, theirs
        self.subject, self.stream = f"$KV.{ours.bucket}", f"KV_{ours.bucket}"


async def gathered(count: int, call: Callable[[int], Awaitable[Any]]) -> None:
    """Do something for each number, so many at a time."""
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*(call(number) for number in range(start, min(start + AT_ONCE, count))))


async def put_ours(sides: Sides, count: int) -> None:
    for number in range(count):
        await sides.ours.put(f"k{number}", VALUE)


async def put_theirs(sides: Sides, count: int) -> None:
    for number in range(count):
        await sides.theirs.put(f"k{number}", VALUE)


async def put_bare(sides: Sides, count: int) -> None:
    for number in range(count):
        await sides.nc.ask(f"{sides.subject}.k{number}", VALUE)


async def put_all_ours(sides: Sides, count: int) -> None:
    async for _ in sides.ours.put_all((f"k{number}", VALUE) for number in range(count)):
        pass


async def put_all_theirs(sides: Sides, count: int) -> None:
    await gathered(count, lambda number: sides.theirs.put(f"k{number}", VALUE))


async def put_all_bare(sides: Sides, count: int) -> None:
    await gathered(count, lambda number: sides.nc.ask(f"{sides.subject}.k{number}", VALUE))


async def get_ours(sides: Sides, count: int) -> None:
    for number in range(count):
        await sides.ours.get(f"k{number}")


async def get_theirs(sides: Sides, count: int) -> None:
    for number in range(count):
        await sides.theirs.get(f"k{number}")


async def get_bare(sides: Sides, count: int) -> None:
    for number in range(count):
        await sides.nc.ask(f"$JS.API.DIRECT.GET.{sides.stream}.{sides.subject}.k{number}")


async def get_many_ours(sides: Sides, count: int) -> None:
    await gathered(count, lambda number: sides.ours.get(f"k{number}"))


async def get_many_theirs(sides: Sides, count: int) -> None:
    await gathered(count, lambda number: sides.theirs.get(f"k{number}"))


async def get_many_bare(sides: Sides, count: int) -> None:
    asked = f"$JS.API.DIRECT.GET.{sides.stream}.{sides.subject}"
    await gathered(count, lambda number: sides.nc.ask(f"{asked}.k{number}"))


async def watch_ours(sides: Sides, count: int) -> None:
    async with sides.ours.watch() as watch:
        seen = 0
        async for _ in watch.current():
            seen += 1
    assert seen == count


async def watch_theirs(sides: Sides, count: int) -> None:
    watcher = await sides.theirs.watchall()
    seen = 0
    while seen < count:  # not up to its None, which says that all have come: now and then that comes first
        seen += await watcher.updates() is not None
    await watcher.stop()


async def watch_bare(sides: Sides, count: int) -> None:
    inbox, seen = sides.nc.new_inbox(), 0
    done = asyncio.get_running_loop().create_future()

    def heard(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        nonlocal seen
        if not reply.startswith(b"$JS.ACK."):
            if reply:
                sides.nc.send(reply.decode())
            return
        seen += 1
        if seen == count:
            done.set_result(None)

    subscription = await sides.nc.tap(inbox, heard)
    await sides.nc.jetstream().add_consumer(
        sides.stream,
        name="bare",
        deliver_subject=inbox,
        deliver_policy="last_per_subject",
        filter_subject=f"{sides.subject}.>",
        ack_policy="none",
        flow_control=True,
        idle_heartbeat=5.0,
        mem_storage=True,
    )
    await done
    await subscription.unsubscribe()
    await sides.nc.jetstream().delete_consumer(sides.stream, "bare")


CASES: dict[str, tuple[int, dict[str, Side]]] = {
    "put, one at a time": (5_000, {"nats-py": put_theirs, "ours": put_ours, "bare": put_bare}),
    f"put, {AT_ONCE} at a time": (20_000, {"nats-py": put_all_theirs, "ours": put_all_ours, "bare": put_all_bare}),
    "get, one at a time": (5_000, {"nats-py": get_theirs, "ours": get_ours, "bare": get_bare}),
    f"get, {AT_ONCE} at a time": (20_000, {"nats-py": get_many_theirs, "ours": get_many_ours, "bare": get_many_bare}),
    "watch": (20_000, {"nats-py": watch_theirs, "ours": watch_ours, "bare": watch_bare}),
}


async def measure(share: float, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Give the best rate of each side in each case, and the least CPU time of a value in microseconds.

    Rounds take turns, so that a busy moment meets all sides. The CPU time, of this process, hardly knows of it.
    """
    found: dict[str, dict[str, dict[str, float]]] = {name: {"rates": {}, "cpu": {}} for name in CASES}
    with penstock.Server(sync="2m") as server:
        async with await penstock.connect(server.url) as nc:
            client = await connect_nats_py(nc.options)
            ours = await KeyValue.create_bucket(nc, "bench")
            sides = Sides(nc, ours, await client.jetstream().key_value("bench"))
            most = max(whole for whole, _ in CASES.values())
            await put_all_ours(sides, round(most * share))
            for name, (whole, cases) in CASES.items():
                count = round(whole * share)
                for _ in range(rounds):
                    for side, run in cases.items():
                        began, used = time.perf_counter(), time.process_time()
                        await run(sides, count)
                        rate = count / (time.perf_counter() - began)
                        cpu = (time.process_time() - used) / count * 1e6
                        rates, cpus = found[name]["rates"], found[name]["cpu"]
                        rates[side] = max(rate, rates.get(side, 0.0))
                        cpus[side] = min(cpu, cpus.get(side, cpu))
            await client.close()
    return found


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the values, one round")
    parser.add_argument("--share", type=float, help="such a part of the values, one round")
    parser.add_argument("--output", type=Path, default=Path("artifacts/buckets.json"))
    options = parser.parse_args()
    share = options.share or (0.1 if options.quick else None)
    found = asyncio.run(measure(1.0, 3) if share is None else measure(share, 1))
    for name, case in found.items():
        print(f"\n{name}, {len(VALUE)} bytes a value")
        for side, rate in case["rates"].items():
            against = rate / case["rates"]["nats-py"]
            print(f"  {side:<10} {rate:>9,.0f}/s  {against:>5.1f} x  {case['cpu'][side]:>6.1f} us CPU")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
