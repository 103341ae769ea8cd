"""Channels through the gateway: beside the old NATS Streaming server, and beside plain JetStream through nats-py.

Peers: the same client publishes, asynchronously with 512 in flight, and receives, at the old server and at gateways,
all of which sync to disk before they acknowledge; then our client publishes one at a time. The sides run in turn. The
old server is nats-streaming-server, on the path or named by --old or STREAMING_SERVER; without it the gateways are
measured alone. The client is Go's stan-bench, on the path or named by --client or STAN_BENCH; without it, ours.

Plain: each side publishes the same messages, asynchronously with 256 in flight, and then receives them through a
subscription that acknowledges each one. The gateway is a process of its own; so is the server; clients run here. Then a
backlog is delivered while the gateway's memory is watched.

    python benchmarks/channels.py            100,000 messages of 128 bytes; a backlog of a million
    python benchmarks/channels.py --quick    a tenth of that
    python benchmarks/channels.py --part peers

Of peers there are medians with the least and the most, and ratios round by round. Rates of the plain part are the best
of five rounds, ratios the median of the rounds' own; the ratios are what to compare. JSON goes to
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
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from penstock import Server, __version__
from penstock.channels import Client
from penstock.connection.stock import connect_nats_py

sys.path.insert(0, str(Path(__file__).parent))
import _channel_sides as sides

SIZE = 128
IN_FLIGHT = 256
PEERS_IN_FLIGHT = 512  # as the Go client has it if nothing is said
ROUNDS = 5
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


async def publish(url: str, channel: str, count: int) -> float:
    """Publish with our client, and give the messages a second."""
    async with Client(url, client_id="bench", max_pub_acks_in_flight=PEERS_IN_FLIGHT) as client:
        began = time.perf_counter()
        await fill(client, channel, count)
        return count / (time.perf_counter() - began)


async def receive(url: str, channel: str, count: int) -> float:
    """Receive with our client, and give the messages a second."""
    async with Client(url, client_id="bench") as client:
        began = time.perf_counter()
        await drain(client, channel, count)
        return count / (time.perf_counter() - began)


async def compare_peers(old: str | None, client: str | None, count: int) -> dict[str, Any]:
    """Measure the old server, if there is one, and the gateways, in turn."""
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(sides.running(name, command))
            for name, command in sides.commands(old).items()
        ]
        for number in range(1, ROUNDS + 1):
            for side in found:
                say(f"round {number} of {ROUNDS}: {side.name}")
                how = client or (publish, receive)
                await sides.measure(side, number, how, count, PEERS_IN_FLIGHT, SIZE)
        return {"client": "stan-bench" if client else "penstock", **sides.summary(found)}


def show_peers(found: dict[str, Any]) -> None:
    names = [name for name in ("old", "always", "acked") if name in found]
    print(f"{'client: ' + found['client']:20}" + "".join(f"{name:>34}" for name in names))
    for what in ("publish", "deliver", "publish_cpu", "deliver_cpu", "p50_ms", "p99_ms"):
        line = f"{what:20}"
        for name in names:
            item = found[name][what]
            ratio = f" x{item['of_old']:.2f}" if "of_old" in item else ""
            form = ",.0f" if what in ("publish", "deliver") else ".2f"
            median, least, most = (format(item[figure], form) for figure in ("median", "least", "most"))
            line += f"{f'{median} ({least}-{most}){ratio}':>34}"
        print(line)


def show_plain(found: dict[str, Any]) -> None:
    print(f"{'':12}{'plain JetStream':>18}{'gateway':>12}{'ratio':>8}")
    for what in ("publish", "subscribe"):
        plainly, gateway = found["best"]["plain"][what], found["best"]["gateway"][what]
        print(f"{what:12}{plainly:>16,.0f}/s{gateway:>10,.0f}/s{found['ratio'][what]:>8.2f}")
    log = found["backlog"]
    print(
        f"backlog of {log['messages']:,}: {log['subscribe']:,.0f}/s; gateway {log['mib_after_a_tenth']:.0f} MiB "
        f"after a tenth, {log['mib_most']:.0f} MiB at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--part", choices=["peers", "plain"], help="only this part")
    parser.add_argument("--sync", default="2m", help="how the server of the plain part syncs: always, or a duration")
    parser.add_argument("--old", help="the nats-streaming-server to compare with")
    parser.add_argument("--client", help="the stan-bench to measure with")
    given = parser.parse_args()
    count, messages = (10_000, 100_000) if given.quick else (100_000, 1_000_000)
    result: dict[str, Any] = {"penstock": __version__, "messages": count, "size": SIZE}
    if given.part in (None, "peers"):
        old = sides.find_program(sides.OLD, given.old, "STREAMING_SERVER")
        client = sides.find_program(sides.BENCH, given.client, "STAN_BENCH")
        if old is None:
            say(f"skipped: {sides.OLD}, which is not installed")
        result["peers"] = asyncio.run(compare_peers(old, client, count))
        show_peers(result["peers"])
    if given.part in (None, "plain"):
        with Server(sync=given.sync) as server:
            about = {"server": server.version, "in_flight": IN_FLIGHT, "sync": given.sync}
            result["plain"] = {**about, **asyncio.run(run(server.url, count, ROUNDS, messages))}
        show_plain(result["plain"])
    folder = Path("artifacts")
    folder.mkdir(exist_ok=True)
    (folder / "channels.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
