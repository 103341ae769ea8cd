"""How late a gateway's sign of life may be on a machine that has too much to do.

    python benchmarks/channels_lease.py [--quick] [--busy 16] [--seconds 30]   JSON to artifacts/channels_lease.json

Runs an embedded server, a gateway, two clients that publish and subscribe as fast as they can, and programs that
only burn time. Prints the load average, and the longest time from one sign of life until the next one was taken:
what the lease must exceed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.channels import Client, Gateway, Message
from penstock.errors import PenstockError
from penstock.server import Server

CLUSTER = "lease"
ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "channels_lease.json"
_TICK = 0.05


async def serve(url: str, seconds: float) -> None:
    """Serve for a time, and print how late the signs of life were."""
    late = [0.0]

    def watch() -> None:
        while True:
            began = time.monotonic()
            time.sleep(_TICK)
            late[0] = max(late[0], time.monotonic() - began - _TICK)

    async with Gateway(url, cluster_id=CLUSTER) as gateway:
        print("serving", flush=True)
        threading.Thread(target=watch, daemon=True).start()
        await asyncio.sleep(seconds)
        assert gateway._lease is not None
        print(json.dumps({"seconds between signs": gateway._lease.slowest, "idle thread late": late[0]}), flush=True)


async def load(url: str, number: str) -> None:
    """Publish and subscribe until killed."""
    client = Client(url, cluster_id=CLUSTER, client_id=f"load{number}", ping_interval=600, connect_timeout=60.0)
    await client.connect()

    async def take(message: Message) -> None:
        pass

    for place in range(3):
        await client.subscribe(f"load{number}", take, durable=f"d{place}")

    async def publish() -> None:
        while True:
            with contextlib.suppress(PenstockError):
                await client.publish(f"load{number}", b"x" * 512)

    await asyncio.gather(*(publish() for _ in range(256)))


@contextlib.contextmanager
def children() -> Iterator[list[subprocess.Popen[str]]]:
    """Give a list of programs that are killed at the end."""
    running: list[subprocess.Popen[str]] = []
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(busy: int, seconds: float) -> None:
    """Measure once."""
    with Server() as server, children() as running:
        gateway = subprocess.Popen(
            [sys.executable, __file__, "--serve", server.url, "--seconds", str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(gateway)
        assert gateway.stdout is not None
        gateway.stdout.readline()
        for number in range(2):
            running.append(subprocess.Popen([sys.executable, __file__, "--load", server.url, str(number)], text=True))
        for _ in range(busy):
            running.append(subprocess.Popen([sys.executable, "-c", "while True: pass"], text=True))
        found = json.loads(gateway.stdout.readline()) | {"busy programs": busy, "load": os.getloadavg()[0]}
    ARTIFACT.parent.mkdir(exist_ok=True)
    ARTIFACT.write_text(json.dumps(found, indent=2) + "\n")
    print(
        f"{busy} busy programs, load average {found['load']:.0f} on {os.cpu_count()} cores: "
        f"{found['seconds between signs']:.2f} s; a thread of it that does nothing else was "
        f"{found['idle thread late']:.2f} s late"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four busy programs, five seconds")
    parser.add_argument("--busy", type=int, default=16, help="programs that only burn time")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve, given.seconds))
    elif given.load:
        asyncio.run(load(*given.load))
    else:
        measure(4 if given.quick else given.busy, 5.0 if given.quick else given.seconds)


if __name__ == "__main__":
    main()
