"""How fast objects go into a bucket and come out of it, beside nats-py and, where it is installed, the `nats` command.

    python benchmarks/objects.py              five rounds of 100 MB, some minutes
    python benchmarks/objects.py --quick      one round of 8 MB, without the far cases, to see that it runs

One server on this machine, with its files on this disk. Each side of a case runs in a process of its own, which takes
the time of the transfer alone, all sides in turn, in another order every round; what counts is the median of the
rounds' own ratios. The `nats` command is timed as a whole, start included. The far cases go through a wire that holds
everything up for a millisecond each way, as a network does: there it counts how much is under way at a time.
The result goes to artifacts/objects.json, or where --output says.

    put, put_far     a file into a bucket; beside it `publish`: the same bytes, in memory, published and no more
    get, get_far     an object into a file
    fetch            an object into memory; nats-py takes half a minute over it, so it is done once
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import penstock
from penstock.buckets.object_wire import CHUNK_SIZE, chunk_subject, new_nuid
from penstock.wire import compiled

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "objects.json"
MB = 1_000_000
BUCKET = "BENCH"
DELAY = 0.001
# What is to be reached against nats-py. A put to a server beside us is as fast as the server writes; both wait for it.
CASES = {"put": 1.5, "get": 5.0, "put_far": 8.0, "get_far": 5.0, "fetch": 8.0}


# -- the sides ---------------------------------------------------------------------------------------------------------


def clocks() -> tuple[float, float]:
    """Give the time on the wall, and that of the processor that this process used."""
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    wall, processor = clocks()
    return wall - began[0], processor - began[1]


async def ours(case: str, url: str, name: str, file: Path) -> tuple[float, float]:
    from penstock.buckets import ObjectStore

    async with await penstock.connect(url) as nc:
        store = await ObjectStore.open(nc, BUCKET)
        began = clocks()
        if case == "put":
            await store.put(name, file)
        elif case == "get":
            await store.save(name, file, overwrite=True)
        else:
            check(await store.fetch(name), file)
        return since(began)


async def nats_py(case: str, url: str, name: str, file: Path) -> tuple[float, float]:
    import nats

    client = await nats.connect(url)
    store = await client.jetstream().object_store(BUCKET)
    began = clocks()
    if case == "put":
        with file.open("rb") as source:
            await store.put(name, source)
    elif case == "get":
        with file.open("wb") as target:
            await store.get(name, writeinto=target)
    else:
        check((await store.get(name)).data or b"", file)
    taken = since(began)
    await client.close()
    return taken


async def publish(case: str, url: str, name: str, file: Path) -> tuple[float, float]:
    """Publish the same chunks, which are in memory, with an ack each, and nothing else: the least that a put can be."""
    import pyarrow as pa

    from penstock.wire.bulk import BulkConnection

    content = file.read_bytes()
    chunks = [content[start : start + CHUNK_SIZE] for start in range(0, len(content), CHUNK_SIZE)]
    batch = pa.record_batch({"data": pa.array(chunks, pa.binary())})
    bulk = BulkConnection(penstock.ConnectionOptions(url))
    try:
        began = clocks()
        bulk.publish(f"OBJ_{BUCKET}", batch, mode="acks", subject=chunk_subject(BUCKET, f"{name}{new_nuid()}"))
        return since(began)
    finally:
        bulk.close()


def nats_command(case: str, url: str, name: str, file: Path) -> float:
    given = ["put", BUCKET, str(file), "--name", name] if case == "put" else ["get", BUCKET, name, "-O", str(file)]
    began = time.perf_counter()
    subprocess.run(["nats", "-s", url, "object", *given, "--no-progress", "--force"], check=True, capture_output=True)
    return time.perf_counter() - began


SIDES = {"ours": ours, "nats_py": nats_py, "publish": publish}


def check(content: bytes, file: Path) -> None:
    if len(content) != file.stat().st_size:
        raise SystemExit(f"{len(content)} bytes came")


# -- a wire that takes its time ----------------------------------------------------------------------------------------


class FarWire:
    """Carries bytes to a server and back, each held up for a moment, and as many at a time as come."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 4222)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"nats://{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._address)
            for source, target in ((near, far), (far, near)):
                held: queue.Queue[tuple[float, bytes]] = queue.Queue(512)
                threading.Thread(target=self._read, args=(source, held), daemon=True).start()
                threading.Thread(target=self._write, args=(held, target), daemon=True).start()

    def _read(self, source: socket.socket, held: queue.Queue[tuple[float, bytes]]) -> None:
        piece = b"-"
        while piece:
            try:
                piece = source.recv(256 * 1024)
            except OSError:
                piece = b""
            held.put((time.monotonic() + DELAY, piece))

    def _write(self, held: queue.Queue[tuple[float, bytes]], target: socket.socket) -> None:
        while True:
            due, piece = held.get()
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
            if not piece:
                target.close()
                return
            try:
                target.sendall(piece)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


# -- the whole ---------------------------------------------------------------------------------------------------------


def run(side: str, case: str, url: str, name: str, file: Path, *, apart: bool) -> tuple[float, float]:
    """Run one side, in a process of its own, and give the seconds that it took, and those of its processor."""
    if side == "nats":
        return nats_command(case, url, name, file), 0.0
    if not apart:
        return asyncio.run(SIDES[side](case, url, name, file))
    command = [sys.executable, __file__, "--side", side, case, url, name, str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{case}, {side} failed:\n{done.stderr}")
    seconds, processor = map(float, done.stdout.split())
    return seconds, processor


def measure(rounds: int, size: int, only: str | None = None) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Give the seconds of each side in each case, and those of its processor, round by round."""
    from penstock.buckets import ObjectStore

    everybody = ["ours", "nats_py", "publish", *(["nats"] if shutil.which("nats") else [])]
    cases = [case for case in CASES if only in (None, case) and (rounds > 1 or not case.endswith("_far"))]
    found: dict[str, dict[str, list[tuple[float, float]]]] = {case: {} for case in cases}
    with penstock.Server(sync="2m") as server, tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        source.write_bytes(os.urandom(size))

        async def prepare() -> None:
            async with await penstock.connect(server.url) as nc:
                await ObjectStore.create_bucket(nc, BUCKET)

        asyncio.run(prepare())
        far = FarWire(server.url)
        for number in range(rounds):
            for case in cases:
                if case == "fetch" and number:
                    continue
                verb, _, distance = case.partition("_")
                sides = [side for side in everybody if side != "publish" or verb == "put"]
                turn = sides[number % len(sides) :] + sides[: number % len(sides)]
                url = far.url if distance else server.url
                for side in turn:
                    if case == "fetch" and side == "nats":
                        continue
                    file = target if verb == "get" else source
                    taken = run(side, verb, url, side if verb == "put" else "ours", file, apart=rounds > 1)
                    found[case].setdefault(side, []).append(taken)
                    if verb == "get" and target.stat().st_size != size:
                        raise SystemExit(f"{case}, {side}: {target.stat().st_size} bytes came")
        far.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ARTIFACT)
    parser.add_argument("--case", choices=CASES, help="only this one")
    parser.add_argument("--side", nargs=5)
    arguments = parser.parse_args()
    if arguments.side:
        side, case, url, name, file = arguments.side
        print(*asyncio.run(SIDES[side](case, url, name, Path(file))))
        return
    size, rounds = (8 * MB, 1) if arguments.quick else (100 * MB, arguments.rounds)
    cases = {}
    for case, sides in measure(rounds, size, arguments.case).items():
        seconds = {side: [wall for wall, _ in taken] for side, taken in sides.items()}
        ratios = {
            side: round(statistics.median(a / b for a, b in zip(taken, seconds["ours"], strict=True)), 2)
            for side, taken in seconds.items()
            if side != "ours"
        }
        rates = {side: round(size / statistics.median(taken) / MB) for side, taken in seconds.items()}
        processor = {
            side: round(statistics.median(used for _, used in taken), 3)
            for side, taken in sides.items()
            if side != "nats"
        }
        cases[case] = {"seconds": seconds, "mb_per_second": rates, "ratios": ratios, "wanted": CASES[case]}
        cases[case]["processor_seconds"] = processor
        against = f"ours against: {ratios}, wanted {CASES[case]} against nats_py"
        print(f"{case:8} {rates} MB/s, {processor} s of the processor; {against}", flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"bytes": size, "rounds": rounds, "compiled": compiled, "cases": cases}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
