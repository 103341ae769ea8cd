"""Channels through the gateway beside plain JetStream through nats-py, in one run, on one server.

Each side publishes the same messages, asynchronously with 256 in flight, and then receives them through a subscription
that acknowledges each one. The gateway is a process of its own; so is the server; clients run here. Then a backlog is
delivered while the gateway's memory is watched.

    python benchmarks/channels.py            100,000 messages of 128 bytes; a backlog of a million
    python benchmarks/channels.py --quick    a tenth of that

Rates are the best of five rounds, ratios the median of the rounds' own; the ratios are what to compare. JSON goes to
artifacts/channels.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from penstock import Server, __version__
from penstock.channels import Client
from penstock.connection.stock import connect_nats_py

SIZE = 128
IN_FLIGHT = 256
PAYLOAD = b"x" * SIZE
PATIENCE = 900.0  # seconds for one part; a machine that needs longer is not worth measuring


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def plain(url: str, count: int) -> dict[str, float]:
    """Publish and receive through nats-py's JetStream."""
    client = await connect_nats_py(url)
    jetstream = client.jetstream(publish_async_max_pending=IN_FLIGHT)
    await jetstream.add_stream(name="bench", subjects=["bench"])
    began = time.perf_counter()
    for _ in range(count):
        await jetstream.publish_async("bench", PAYLOAD, wait_stall=60)
    await jetstream.publish_async_completed()
    published = time.perf_counter() - began
    done = asyncio.Event()
    got = 0

    async def handle(message: object) -> None:
        nonlocal got
        got += 1
        if got == count:
            done.set()

    began = time.perf_counter()
    await jetstream.subscribe("bench", cb=handle)
    await asyncio.wait_for(done.wait(), PATIENCE)
    received = time.perf_counter() - began
    await jetstream.delete_stream("bench")
    await client.close()
    return {"publish": count / published, "subscribe": count / received}


async def through_gateway(url: str, channel: str, count: int) -> dict[str, float]:
    """Publish and receive through the gateway."""
    async with Client(url, client_id="bench", max_pub_acks_in_flight=IN_FLIGHT) as client:
        began = time.perf_counter()
        await fill(client, channel, count)
        published = time.perf_counter() - began
        began = time.perf_counter()
        await drain(client, channel, count)
        received = time.perf_counter() - began
    return {"publish": count / published, "subscribe": count / received}


async def fill(client: Client, channel: str, count: int) -> None:
    waiting: deque[asyncio.Future[None]] = deque()
    for _ in range(count):
        waiting.append(await client.publish_async(channel, PAYLOAD))
        if len(waiting) > IN_FLIGHT:
            await waiting.popleft()
    await asyncio.gather(*waiting)


async def drain(client: Client, channel: str, count: int, watch: Callable[[int], None] = lambda got: None) -> None:
    done = asyncio.Event()
    got = 0

    async def handle(message: object) -> None:
        nonlocal got
        got += 1
        if got % 10_000 == 0:
            watch(got)
        if got == count:
            done.set()

    subscription = await client.subscribe(channel, handle, start="First")
    await asyncio.wait_for(done.wait(), PATIENCE)
    await subscription.unsubscribe()


def resident(pid: int) -> int:
    """Give the resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


async def backlog(url: str, pid: int, count: int) -> dict[str, float]:
    """Deliver a backlog, and watch the gateway's memory."""
    samples: list[int] = []
    async with Client(url, client_id="bench", max_pub_acks_in_flight=IN_FLIGHT) as client:
        began = time.perf_counter()
        for part in range(1, 11):
            await fill(client, "backlog", count // 10)
            say(f"  filled {part * 10}%, {part * count / 10 / (time.perf_counter() - began):,.0f}/s")
        before = resident(pid)
        began = time.perf_counter()

        def watch(got: int) -> None:
            samples.append(resident(pid))
            if got % (count // 10) == 0:
                say(f"  delivered {got * 100 // count}%, {samples[-1] / 2**20:.0f} MiB")

        await drain(client, "backlog", count, watch)
        seconds = time.perf_counter() - began
    early = max(samples[: max(1, len(samples) // 10)])
    return {
        "messages": count,
        "subscribe": count / seconds,
        "mib_before": before / 2**20,
        "mib_after_a_tenth": early / 2**20,
        "mib_most": max(samples) / 2**20,
        "growth": max(samples) / early,
    }


async def start_gateway(url: str) -> asyncio.subprocess.Process:
    flags = ("--max-msgs", "0", "--max-bytes", "0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock", "channels", "serve", "-s", url, *flags),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(60):
        while b"Serving" not in (line := await process.stderr.readline()):
            if not line:
                raise RuntimeError("the gateway did not start")
    return process


async def pass_on(process: asyncio.subprocess.Process) -> None:
    """Show what the gateway says, so that it never waits for a reader."""
    while line := await process.stderr.readline():
        say(f"  gateway: {line.decode().rstrip()}")


async def run(url: str, count: int, rounds: int, messages: int) -> dict[str, object]:
    gateway = await start_gateway(url)
    said = asyncio.ensure_future(pass_on(gateway))
    try:
        sides: dict[str, list[dict[str, float]]] = {"plain": [], "gateway": []}
        for number in range(1, rounds + 1):  # in turn, so that a noisy machine is noisy for both
            say(f"round {number} of {rounds}: plain JetStream")
            sides["plain"].append(await plain(url, count))
            say(f"round {number} of {rounds}: gateway")
            sides["gateway"].append(await through_gateway(url, f"bench{number}", count))
        best = {
            side: {what: max(item[what] for item in results) for what in ("publish", "subscribe")}
            for side, results in sides.items()
        }
        say(f"a backlog of {messages:,}")
        return {
            "rounds": sides,
            "best": best,
            "ratio": {
                what: statistics.median(
                    one[what] / other[what] for one, other in zip(sides["gateway"], sides["plain"], strict=True)
                )
                for what in ("publish", "subscribe")
            },
            "backlog": await backlog(url, gateway.pid, messages),
        }
    finally:
        gateway.terminate()
        await gateway.wait()
        await said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--sync", default="2m", help="how the server syncs: always, or a duration")
    given = parser.parse_args()
    count, messages = (10_000, 100_000) if given.quick else (100_000, 1_000_000)
    with Server(sync=given.sync) as server:
        found = asyncio.run(run(server.url, count, 5, messages))
        about = {"penstock": __version__, "server": server.version, "messages": count, "size": SIZE}
        found = {**about, "in_flight": IN_FLIGHT, "sync": given.sync, **found}
    folder = Path("artifacts")
    folder.mkdir(exist_ok=True)
    (folder / "channels.json").write_text(json.dumps(found, indent=2) + "\n")
    print(f"{'':12}{'plain JetStream':>18}{'gateway':>12}{'ratio':>8}")
    for what in ("publish", "subscribe"):
        plainly, gateway = found["best"]["plain"][what], found["best"]["gateway"][what]
        print(f"{what:12}{plainly:>16,.0f}/s{gateway:>10,.0f}/s{found['ratio'][what]:>8.2f}")
    log = found["backlog"]
    print(
        f"backlog of {log['messages']:,}: {log['subscribe']:,.0f}/s; gateway {log['mib_after_a_tenth']:.0f} MiB "
        f"after a tenth, {log['mib_most']:.0f} MiB at most"
    )


if __name__ == "__main__":
    main()
