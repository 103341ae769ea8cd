"""Measures the bus: stop-and-wait against bare request–reply, a window against stop-and-wait, and a long pause.

All sides take turns on the same two connections to one server, in many short rounds, so that a busy machine slows
all of them alike; the ratios are of the medians. Every element is numbered and checked.

    python benchmarks/bus.py [--quick]        JSON to artifacts/bus.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import penstock
from penstock.bus import Bus, Request, Sender

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "bus.json"
SIZE = 1024
PAGE = os.sysconf("SC_PAGE_SIZE")
produced = 0


def memory() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def handler(request: Request, sender: Sender) -> None:
    """Sends `count` numbered elements of `size` bytes."""
    global produced
    count, size = int(request.query["count"][0]), int(request.query["size"][0])
    filler = bytes(size - 8)
    produced = 0
    async with sender.sections() as out:
        out.array("numbers")
        for number in range(count):
            produced = number + 1
            await out.send(number.to_bytes(8, "big") + filler)


async def read(
    bus: Bus, count: int, size: int, *, pause: float = 0.0, watch: list[dict[str, Any]] | None = None
) -> tuple[float, int]:
    """Reads all elements, checks their numbers, and gives the seconds, the pause not counted, and how many came."""
    began = time.perf_counter()
    reply = await bus.request(Request("bench", query={"count": str(count), "size": str(size)}))
    expected = 0
    async for section in reply.sections():
        async for element in section:
            if len(element.data) != size or int.from_bytes(element.data[:8], "big") != expected:
                sys.exit(f"element {expected} came as {element.data[:8]!r}, {len(element.data)} bytes")
            expected += 1
            if pause and expected == count // 2:
                began += await paused(pause, watch if watch is not None else [])
    if expected != count:
        sys.exit(f"{expected} elements came of {count}")
    return time.perf_counter() - began, expected


async def paused(seconds: float, watch: list[dict[str, Any]]) -> float:
    """Reads nothing for a while and notes how far the handler is and how much memory is used."""
    began = time.perf_counter()
    while (gone := time.perf_counter() - began) < seconds:
        watch.append({"second": round(gone, 1), "produced": produced, "memory": memory()})
        await asyncio.sleep(min(1.0, seconds / 10))
    return time.perf_counter() - began


async def bare(client: penstock.connection.Connection, count: int) -> float:
    """One request after the other; each reply is as large as an element."""
    began = time.perf_counter()
    for _ in range(count):
        message = await client.request("bare", b"\x00", timeout=10)
        if len(message.data) != SIZE:
            sys.exit("a bare reply has the wrong size")
    return time.perf_counter() - began


async def measure(quick: bool) -> dict[str, Any]:
    rounds, few, many, pause = (15, 300, 3000, 5.0) if quick else (60, 300, 5000, 60.0)
    rates: dict[str, list[float]] = {"bare request-reply": [], "stop-and-wait": [], "window of 64": []}
    with penstock.Server(sync="2m") as server:
        one, other = await penstock.connect(server.url), await penstock.connect(server.url)
        payload = bytes(SIZE)

        async def answer(message: Any) -> None:
            await other.publish(message.reply, payload)

        await other.subscribe("bare", cb=answer)
        await other.flush()
        patient = {"grace": 2 * pause + 60}
        queues = {"bench": 1}
        async with (
            Bus(other, queues, **patient) as serving,
            Bus(one, queues, window=0, **patient) as plain,
            Bus(one, queues, window=64, **patient) as windowed,
            serving.serve("bench", handler),
        ):
            await bare(one, 200)  # warm
            await read(plain, 200, SIZE)
            await read(windowed, 2000, SIZE)
            for number in range(rounds):
                rates["bare request-reply"].append(few / await bare(one, few))
                rates["stop-and-wait"].append(few / (await read(plain, few, SIZE))[0])
                rates["window of 64"].append(many / (await read(windowed, many, SIZE))[0])
                if number % 5 == 4:
                    shown = ", ".join(f"{name} {statistics.median(values):,.0f}/s" for name, values in rates.items())
                    print(f"round {number + 1} of {rounds}, medians so far: {shown}", flush=True)
            large = 16 * 1024 * 1024
            seconds, _ = await read(windowed, 4, large)
            print(f"elements of 16 MiB, in pieces: {4 * large / seconds / 1e6:,.0f} MB/s", flush=True)
            print(f"a reader pauses for {pause:g} s ...", flush=True)
            watch: list[dict[str, Any]] = []
            _, arrived = await read(windowed, 20_000, SIZE, pause=pause, watch=watch)
        await one.close()
        await other.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    # The first sample is taken before the handler has filled the window.
    still = watch[1:]
    return {
        "element bytes": SIZE,
        "rates": {name: round(value) for name, value in medians.items()},
        "rounds": {name: [round(value) for value in values] for name, values in rates.items()},
        "stop-and-wait / bare": round(medians["stop-and-wait"] / medians["bare request-reply"], 2),
        "window / stop-and-wait": round(medians["window of 64"] / medians["stop-and-wait"], 1),
        "large elements, MB/s": round(4 * large / seconds / 1e6),
        "pause": {
            "seconds": pause,
            "memory grew by bytes": max(item["memory"] for item in still) - still[0]["memory"],
            "elements made during it": still[-1]["produced"] - still[0]["produced"],
            "ahead of the reader": still[-1]["produced"] - 10_000,
            "elements read of 20000": arrived,  # read() ends the program where one is doubled or out of order
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and a short pause")
    result = asyncio.run(measure(parser.parse_args().quick))
    ARTIFACT.parent.mkdir(exist_ok=True)
    ARTIFACT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "rounds"}, indent=2))
    goals = {
        "stop-and-wait is at least 0.8 of bare request-reply": result["stop-and-wait / bare"] >= 0.8,
        "a window of 64 is at least 8 times stop-and-wait": result["window / stop-and-wait"] >= 8,
        "memory is flat while the reader pauses": result["pause"]["memory grew by bytes"] < 4 * 1024 * 1024,
        "the handler waits while the reader pauses": result["pause"]["elements made during it"] == 0,
    }
    for goal, reached in goals.items():
        print(f"{'reached' if reached else 'MISSED '}  {goal}")


if __name__ == "__main__":
    main()
