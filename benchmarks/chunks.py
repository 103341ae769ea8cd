"""Measures chunks against direct publishing: round trips, memory of the receiver, digests, and one very large file.

Both sides send the same bytes with the same client, in turns: chunks through a server that takes messages of 1 MB,
direct messages through one whose max_payload was raised. The receiver is a process of its own on both sides; a round
trip ends when it has the whole payload in its handler and has said so. The ratios are of the medians.

    python benchmarks/chunks.py [--quick] [--large BYTES]        JSON to artifacts/chunks.json
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock.chunks import Archive, Assembler, Publisher

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "chunks.json"
MB = 1_000_000
ROUNDS = {1 * MB: 120, 4 * MB: 60, 8 * MB: 40, 64 * MB: 7}
REFERENCE = {1 * MB: 0.8, 4 * MB: 0.8, 8 * MB: 0.8}
MAX_PAYLOAD = 64 * 1024 * 1024


# -- the receiving process --------------------------------------------------------------------------


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


async def receive(url: str, side: str, folder: str) -> None:
    """Receives until it is told to stop, and says of each payload how large it was and what memory it took."""
    nc = await penstock.connect(url)
    base = 0

    async def say(data: Any) -> None:
        answer = {"size": len(data), "base": base, "peak": memory("VmHWM")}
        await nc.publish("back", json.dumps(answer).encode())

    async def handler(message_id: str, data: bytes) -> None:
        await say(data)

    async def direct(message: Any) -> None:
        await say(message.data)

    stop = asyncio.Event()

    async def told(message: Any) -> None:
        nonlocal base
        if message.data == b"stop":
            stop.set()
        # From here on the peak is counted anew.
        Path("/proc/self/clear_refs").write_text("5")
        base = memory("VmRSS")
        await message.respond(b"")

    await nc.subscribe("tell", cb=told)
    async with Assembler(nc, handler=handler) as assembler:
        if side == "chunks":
            await assembler.subscribe("payload")
        elif side == "direct":
            await nc.subscribe("payload", cb=direct, pending_bytes_limit=0)
        else:
            large = asyncio.ensure_future(receive_large(nc, assembler, Path(folder)))
        await nc.flush()
        print("ready", flush=True)
        await stop.wait()
        if side == "large":
            large.cancel()
    await nc.close()


async def receive_large(nc: Any, assembler: Assembler, folder: Path) -> None:
    """Writes messages to a file while they arrive."""
    async with assembler.open("payload") as inbox:
        async for message in inbox:
            digest = hashlib.sha256()
            with tempfile.TemporaryFile(dir=folder) as file:
                async for piece in message:
                    file.write(piece)
                    digest.update(piece)
                answer = {"size": file.tell(), "digest": digest.hexdigest(), "peak": memory("VmHWM")}
            await nc.publish("back", json.dumps(answer).encode())


class Receiver:
    """The receiving process, seen from here."""

    def __init__(self, nc: Any) -> None:
        self.nc = nc
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def heard(self, message: Any) -> None:
        self.answers.put_nowait(json.loads(message.data))

    async def answer(self, timeout: float = 60.0) -> dict[str, Any]:
        return await asyncio.wait_for(self.answers.get(), timeout)


@asynccontextmanager
async def receiver(url: str, side: str, folder: Path) -> AsyncIterator[Receiver]:
    """Starts a receiving process, and ends it."""
    command = [sys.executable, __file__, "--receive", url, side, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    nc = await penstock.connect(url)
    try:
        if (await asyncio.to_thread(process.stdout.readline)).strip() != "ready":
            raise SystemExit("the receiving process did not start")
        found = Receiver(nc)
        await nc.subscribe("back", cb=found.heard)
        await nc.flush()
        yield found
        await nc.request("tell", b"stop", timeout=30)
        await asyncio.to_thread(process.wait, 30)
    finally:
        await nc.close()
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


# -- what is measured -------------------------------------------------------------------------------


async def round_trips(small: str, big: str, folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Sends the same payloads in turns, in chunks and directly."""
    found = []
    async with receiver(small, "chunks", folder) as chunks, receiver(big, "direct", folder) as direct:
        publisher = Publisher(chunks.nc)
        for size, rounds in ROUNDS.items():
            data = os.urandom(size)
            seconds: dict[str, list[float]] = {"chunks": [], "direct": []}
            for number in range(2 + (max(3, rounds // 6) if quick else rounds)):
                for side, other in (("chunks", chunks), ("direct", direct)):
                    began = time.perf_counter()
                    if side == "chunks":
                        await publisher.publish("payload", data)
                    else:
                        await other.nc.publish("payload", data)
                        await other.nc.flush(60)
                    answer = await other.answer()
                    if number >= 2:  # the first rounds warm both sides up
                        seconds[side].append(time.perf_counter() - began)
                    if answer["size"] != size:
                        raise SystemExit(f"{answer['size']} bytes came of {size}")
            rate = {side: size / statistics.median(times) / MB for side, times in seconds.items()}
            found.append({"bytes": size, **rate, "ratio": rate["chunks"] / rate["direct"]})
            print(
                f"round trip {size / MB:3.0f} MB   chunks {rate['chunks']:5.0f} MB/s   "
                f"direct {rate['direct']:5.0f} MB/s   ratio {found[-1]['ratio']:.2f}"
                f"   (reference {REFERENCE.get(size, '-')})"
            )
    return found


async def memories(small: str, big: str, folder: Path) -> list[dict[str, Any]]:
    """Receives one payload in a process that is otherwise at rest, and compares its peak with the payload."""
    found = []
    for size in (8 * MB, 64 * MB):
        row: dict[str, Any] = {"bytes": size}
        for side, url in (("chunks", small), ("direct", big)):
            async with receiver(url, side, folder) as other:
                data = os.urandom(size)
                await other.nc.publish("payload", b"x") if side == "direct" else await Publisher(other.nc).publish(
                    "payload", b"x"
                )
                await other.answer()
                await other.nc.request("tell", b"begin", timeout=10)
                if side == "direct":
                    await other.nc.publish("payload", data)
                else:
                    await Publisher(other.nc).publish("payload", data)
                answer = await other.answer()
                row[side] = (answer["peak"] - answer["base"]) / size
        found.append(row)
        print(
            f"peak memory {size / MB:4.0f} MB   chunks {row['chunks']:.2f} × payload   direct {row['direct']:.2f} ×"
            "   (reference 3 ×)"
        )
    return found


async def digests(small: str, quick: bool) -> dict[str, float]:
    """Publishes with and without digest, in turns, with nobody listening."""
    nc = await penstock.connect(small)
    data = os.urandom(16 * MB)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    try:
        for _ in range(8 if quick else 24):
            for digest in (False, True):
                began = time.perf_counter()
                await Publisher(nc, digest=digest).publish("nobody", data)
                seconds[digest].append(time.perf_counter() - began)
    finally:
        await nc.close()
    plain, checked = (len(data) / statistics.median(seconds[digest]) / MB for digest in (False, True))
    print(f"publish only        plain  {plain:5.0f} MB/s   digest {checked:5.0f} MB/s   ratio {checked / plain:.2f}")
    return {"plain": plain, "digest": checked, "ratio": checked / plain}


async def stored(small: str, quick: bool) -> dict[str, float]:
    """Stores a payload in a stream and fetches it, with digest."""
    nc = await penstock.connect(small)
    data = os.urandom((16 if quick else 64) * MB)
    try:
        archive = await Archive.create(nc, "BENCH", "bench.stored")
        began = time.perf_counter()
        message_id = await Publisher.persistent(nc, "BENCH").publish("bench.stored", data)
        middle = time.perf_counter()
        if await archive.fetch(message_id) != data:
            raise SystemExit("what was fetched is not what was stored")
        end = time.perf_counter()
    finally:
        await nc.close()
    rate = {"store": len(data) / (middle - began) / MB, "fetch": len(data) / (end - middle) / MB}
    print(f"in a stream         store {rate['store']:5.0f} MB/s   fetch  {rate['fetch']:5.0f} MB/s   (digest, on disk)")
    return rate


async def large_file(small: str, folder: Path, size: int) -> dict[str, Any]:
    """Sends a file from disk to disk and watches the memory of both processes."""
    if shutil.disk_usage(folder).free < 3 * size:
        raise SystemExit(f"{folder} has not the room for a file of {size} bytes and its copy; give --large BYTES")
    path, digest = folder / "large", hashlib.sha256()
    block = os.urandom(4 * 1024 * 1024)
    with path.open("wb") as file:
        left = size
        while left:
            piece = left.to_bytes(8, "big") + block[8 : min(left, len(block))] if left > 8 else block[:left]
            file.write(piece)
            digest.update(piece)
            left -= len(piece)
    async with receiver(small, "large", folder) as other:
        began, shown = time.perf_counter(), 0.0

        def progress(sent: int) -> None:
            nonlocal shown
            if sys.stderr.isatty() and time.perf_counter() - shown > 1:
                shown = time.perf_counter()
                print(f"\r  {sent / 1e9:.1f} of {size / 1e9:.1f} GB", end="", file=sys.stderr, flush=True)

        Path("/proc/self/clear_refs").write_text("5")
        await Publisher(other.nc, digest=True).publish("payload", path, progress=progress)
        answer = await other.answer(600)
        seconds = time.perf_counter() - began
    if (answer["size"], answer["digest"]) != (size, digest.hexdigest()):
        raise SystemExit("the large file did not arrive as it was sent")
    found = {
        "bytes": size,
        "rate": size / seconds / MB,
        "seconds": seconds,
        "sender_peak": memory("VmHWM"),
        "receiver_peak": answer["peak"],
    }
    print(
        f"file of {size / 1e9:.1f} GB        {found['rate']:6.0f} MB/s with digest, disk to disk   peak memory: sender "
        f"{found['sender_peak'] / MB:.0f} MB, receiver {found['receiver_peak'] / MB:.0f} MB"
    )
    return found


async def run(quick: bool, large: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        penstock.Server(sync="2m") as small,
        penstock.Server(sync="2m", max_payload=MAX_PAYLOAD) as big,
    ):
        folder = Path(name)
        # The large file comes first: the memory of this process is then still its own.
        results = {
            "large_file": await large_file(small.url, folder, large),
            "round_trips": await round_trips(small.url, big.url, folder, quick),
            "memory": await memories(small.url, big.url, folder),
            "digest": await digests(small.url, quick),
            "stored": await stored(small.url, quick),
            "cpus": os.cpu_count(),
            "python": sys.version.split()[0],
            "quick": quick,
        }
    ARTIFACT.parent.mkdir(exist_ok=True)
    ARTIFACT.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {ARTIFACT.relative_to(Path.cwd()) if ARTIFACT.is_relative_to(Path.cwd()) else ARTIFACT}")


def main() -> None:
    if sys.argv[1:2] == ["--receive"]:
        asyncio.run(receive(*sys.argv[2:5]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and a smaller large file")
    parser.add_argument("--large", type=int, help="bytes of the large file (4 GB; 256 MB with --quick)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and files go, too
    asyncio.run(run(given.quick, given.large or (256 * MB if given.quick else 4000 * MB)))


if __name__ == "__main__":
    main()
