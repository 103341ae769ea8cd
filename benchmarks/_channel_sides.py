"""The sides of the benchmark of channels: the old server and gateways, each with its store, and one client for all."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.channels import Client
from penstock.errors import PenstockError

OLD, BENCH = "nats-streaming-server", "stan-bench"
START = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def find_program(name: str, given: str | None, variable: str) -> str | None:
    """Find a program: where a flag or the environment says, or on the path."""
    return shutil.which(given or os.environ.get(variable) or name)


def _processes(pid: int) -> list[int]:
    """Give a process and all below it."""
    found = [pid]
    for child in sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent in found:
            found.append(child)
    return found


def _cpu(pids: list[int]) -> float:
    """Give the seconds of processor time that processes took so far."""
    total = 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(words[11]) + int(words[12])
    return total / TICKS


class Side:
    """A server that runs, and what was measured of it, round by round."""

    def __init__(self, name: str, url: str, pid: int) -> None:
        self.name, self.url, self.pids = name, url, _processes(pid)
        self.rounds: list[dict[str, float]] = []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(name: str, command: list[str]) -> AsyncIterator[Side]:
    """Run one side on a store of its own until the end; `command` has {port} and {store} in it."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as store:
        port = _free_port()
        words = [word.format(port=port, store=store) for word in command]
        quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
        process = await asyncio.create_subprocess_exec(*words, **quiet)
        try:
            url = f"nats://127.0.0.1:{port}"
            await _ready(url, process)
            yield Side(name, url, process.pid)
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + START
    while True:
        try:
            async with Client(url, client_id="look", connect_timeout=1.0):
                return
        except PenstockError:
            if process.returncode is not None or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def commands(old: str | None) -> dict[str, list[str]]:
    """Give the sides and how each is started: all of them sync a message to disk before they acknowledge it."""
    gateway = [sys.executable, "-m", "penstock", "channels", "serve", "--no-auth", "--port", "{port}"]
    gateway += ["--store", "{store}", "--max-msgs", "0", "--max-bytes", "0", "--sync"]
    found = {"always": [*gateway, "always"], "acked": [*gateway, "acked"]}
    if old is not None:
        limits = ["-mm", "0", "-mb", "0"]
        found = {"old": [old, "-p", "{port}", "-store", "file", "-dir", "{store}", *limits], **found}
    return found


async def _bench(program: str, url: str, *words: str) -> float:
    """Let the Go client publish or receive, and give its messages a second."""
    process = await asyncio.create_subprocess_exec(
        *(program, "-s", url, *words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said = (await process.communicate())[0].decode()
    found = re.search(r"stats: ([\d,]+) msgs/sec", said)
    if process.returncode or found is None:
        raise RuntimeError(f"{program} failed: {said}")
    return float(found[1].replace(",", ""))


async def measure(side: Side, number: int, client: Any, count: int, in_flight: int, size: int) -> None:
    """Publish, receive, and publish one at a time: one round of one side.

    `client` is the path of the Go client, or two coroutine functions of ours that publish and receive.
    """
    channel = f"bench{number}"
    found: dict[str, float] = {}

    async def timed(what: str, work: Any) -> None:
        before = _cpu(side.pids)
        found[what] = await work
        found[f"{what}_cpu"] = _cpu(side.pids) - before

    if isinstance(client, str):
        common = ("-n", str(count), "-ms", str(size), "-id", f"bench{number}")
        sending = _bench(client, side.url, "-np", "1", "-ns", "0", "-mpa", str(in_flight), *common, channel)
        await timed("publish", sending)
        await timed("deliver", _bench(client, side.url, "-np", "0", "-ns", "1", *common, channel))
    else:
        publish, receive = client
        await timed("publish", publish(side.url, channel, count))
        await timed("deliver", receive(side.url, channel, count))
    waits = await _latencies(side.url, f"{channel}.one", max(count // 100, 100), size)
    found["p50_ms"], found["p99_ms"] = statistics.median(waits), statistics.quantiles(waits, n=100)[98]
    side.rounds.append(found)


async def _latencies(url: str, channel: str, count: int, size: int) -> list[float]:
    """Publish one at a time with our own client, and give the milliseconds that each took."""
    waits = []
    async with Client(url, client_id="one-by-one") as client:
        for _ in range(count):
            began = time.perf_counter()
            await client.publish(channel, b"x" * size)
            waits.append((time.perf_counter() - began) * 1000)
    return waits


def summary(sides: list[Side]) -> dict[str, Any]:
    """Give for each side the median and the spread of each figure, and the ratio to the old server, round by round."""
    found: dict[str, Any] = {}
    old = next((side for side in sides if side.name == "old"), None)
    for side in sides:
        figures = found[side.name] = {"rounds": side.rounds}
        for what in side.rounds[0]:
            values = [item[what] for item in side.rounds]
            figures[what] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
            if old is not None and side is not old:
                pairs = zip(side.rounds, old.rounds, strict=True)
                ratios = [one[what] / max(other[what], 1e-9) for one, other in pairs]
                figures[what]["of_old"] = statistics.median(ratios)
    return found
