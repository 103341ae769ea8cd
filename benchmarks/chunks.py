"""Measures chunks against direct publishing: round trips, memory of the receiver, digests, and one very large file.

Both sides send the same bytes with the same client, in turns: chunks through a server that takes messages of 1 MB,
direct messages through one whose max_payload was raised. Sender and receiver are processes of their own on both sides;
a round trip ends when the sender hears that the receiver has the whole payload in its handler. The ratios are of the
medians.

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
from pathlib import Path
from typing import Any

import penstock
from penstock.chunks import Archive, Assembler, Publisher

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "chunks.json"
MB = 1_000_000
ROUNDS = {1 * MB: 120, 4 * MB: 60, 8 * MB: 40, 64 * MB: 7}
REFERENCE = {1 * MB: 0.8, 4 * MB: 0.8, 8 * MB: 0.8}
MAX_PAYLOAD = 64 * 1024 * 1024


# -- the two programs of a side -----------------------------------------------------------------------


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


async def receive(url: str, side: str, folder: str) -> None:
    """Receives until its input ends, and says of each payload how large it was and what memory it took."""
    nc = await penstock.connect(url)
    base = 0

    async def handler(message_id: str, data: bytes) -> None:
        await answer(len(data))

    async def answer(size: int) -> None:
        found = {"size": size, "base": base, "peak": memory("VmHWM")}
        await nc.publish("back", json.dumps(found).encode())

    async def direct(message: Any) -> None:
        await handler("", message.data)

    async def told(message: Any) -> None:
        nonlocal base
        Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is counted anew
        base = memory("VmRSS")
        await message.respond(b"")

    await nc.subscribe("begin", cb=told)
    assembler = None
    if side == "direct":
        await nc.subscribe("payload", cb=direct, pending_bytes_limit=0)
    else:
        assembler = Assembler(nc, handler=handler)
        if side == "chunks":
            await assembler.subscribe("payload")
        else:
            large = asyncio.ensure_future(receive_large(nc, assembler, Path(folder)))
    await nc.flush()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    if side == "large":
        large.cancel()
    if assembler is not None:
        await assembler.close()
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


async def send(url: str, side: str) -> None:
    """Sends a payload of the size that each line of its input says, and prints the seconds of the round trip."""
    nc = await penstock.connect(url)
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def heard(message: Any) -> None:
        answers.put_nowait(json.loads(message.data))

    await nc.subscribe("back", cb=heard)
    await nc.flush()
    publisher = None if side == "direct" else Publisher(nc)
    data = b""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        size = int(line)
        if size != len(data):
            data = os.urandom(size)
        began = time.perf_counter()
        if publisher is not None:
            await publisher.publish("payload", data)
        else:
            await nc.publish("payload", data)
            await nc.flush(60)
        answer = await asyncio.wait_for(answers.get(), 60)
        print(json.dumps({"seconds": time.perf_counter() - began, **answer}), flush=True)
    await nc.close()


class Program:
    """A process of this file, seen from outside."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark ended early")
        return line

    def ask(self, size: int) -> dict[str, Any]:
        """Let it send a payload, and give what it says of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{size}\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._read())
        if found["size"] != size:
            raise SystemExit(f"{found['size']} bytes came of {size}")
        return found

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *about: object) -> None:
        self._process.communicate(timeout=30) if about[0] is None else self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


# -- what is measured -------------------------------------------------------------------------------


def round_trips(small: str, big: str, quick: bool) -> list[dict[str, Any]]:
    """Sends the same payloads in turns, in chunks and directly."""
    found = []
    with (
        Program("--receive", small, "chunks", ""),
        Program("--receive", big, "direct", ""),
        Program("--send", small, "chunks") as chunks,
        Program("--send", big, "direct") as direct,
    ):
        for size, rounds in ROUNDS.items():
            seconds: dict[str, list[float]] = {"chunks": [], "direct": []}
            for number in range(2 + (max(3, rounds // 6) if quick else rounds)):
                for side, program in (("chunks", chunks), ("direct", direct)):
                    took = program.ask(size)["seconds"]
                    if number >= 2:  # the first rounds warm both sides up
                        seconds[side].append(took)
            rate = {side: size / statistics.median(times) / MB for side, times in seconds.items()}
            found.append({"bytes": size, **rate, "ratio": rate["chunks"] / rate["direct"]})
            print(
                f"round trip {size / MB:3.0f} MB   chunks {rate['chunks']:5.0f} MB/s   "
                f"direct {rate['direct']:5.0f} MB/s   ratio {found[-1]['ratio']:.2f}"
                f"   (reference {REFERENCE.get(size, '-')})"
            )
    return found


async def memories(small: str, big: str) -> list[dict[str, Any]]:
    """Receives in a process that is otherwise at rest, and compares its peak with the payload: first one, then four."""
    found = []
    for size in (8 * MB, 64 * MB):
        row: dict[str, Any] = {"bytes": size}
        for side, url in (("chunks", small), ("direct", big)):
            with Program("--receive", url, side, ""), Program("--send", url, side) as sender:
                await asyncio.to_thread(sender.ask, 1)
                nc = await penstock.connect(url)
                await nc.request("begin", b"", timeout=10)
                await nc.close()
                answers = [await asyncio.to_thread(sender.ask, size) for _ in range(4)]
                row[side] = (answers[0]["peak"] - answers[0]["base"]) / size
                row[f"{side}_in_a_row"] = (answers[-1]["peak"] - answers[-1]["base"]) / size
        found.append(row)
        print(
            f"peak memory {size / MB:2.0f} MB   chunks {row['chunks']:.2f} × payload, {row['chunks_in_a_row']:.2f} × "
            f"after four   direct {row['direct']:.2f} ×, {row['direct_in_a_row']:.2f} ×   (reference 3 ×)"
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
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def heard(message: Any) -> None:
        answers.put_nowait(json.loads(message.data))

    shown = 0.0

    def progress(sent: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.perf_counter() - shown > 1:
            shown = time.perf_counter()
            print(f"\r  {sent / 1e9:.1f} of {size / 1e9:.1f} GB", end="\r", file=sys.stderr, flush=True)

    with Program("--receive", small, "large", str(folder)):
        nc = await penstock.connect(small)
        await nc.subscribe("back", cb=heard)
        Path("/proc/self/clear_refs").write_text("5")
        began = time.perf_counter()
        await Publisher(nc, digest=True).publish("payload", path, progress=progress)
        answer = await asyncio.wait_for(answers.get(), 600)
        seconds = time.perf_counter() - began
        await nc.close()
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
            "round_trips": await asyncio.to_thread(round_trips, small.url, big.url, quick),
            "memory": await memories(small.url, big.url),
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
    if sys.argv[1:2] == ["--send"]:
        asyncio.run(send(*sys.argv[2:4]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and a smaller large file")
    parser.add_argument("--large", type=int, help="bytes of the large file (4 GB; 256 MB with --quick)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and files go, too
    asyncio.run(run(given.quick, given.large or (256 * MB if given.quick else 4000 * MB)))


if __name__ == "__main__":
    main()
