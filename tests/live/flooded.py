"""A program that receives payloads of `flood`, and says how many came, what went wrong and what memory it took.

    python -m tests.live.flooded URL SUBJECT PAYLOADS MEMORY [FOLDER [SECONDS]]

Its handler takes so many seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import penstock
from penstock.chunks import Assembler
from tests.live.flood import pattern


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


async def main(url: str, subject: str, payloads: int, most: int, folder: str | None = None, pause: str = "0") -> None:
    nc = await penstock.connect(url)
    got = 0

    async def handle(message_id: str, data: bytes) -> None:
        nonlocal got
        assert data == pattern(int(message_id), len(data))
        got += 1
        await asyncio.sleep(float(pause))

    async with Assembler(nc, 5.0, handle, max_total_bytes=most, spool_dir=folder) as assembler:
        await assembler.subscribe(subject)
        base = memory("VmRSS")
        print("ready", flush=True)
        counts = assembler.counts
        while got + sum(counts.failures.values()) < payloads:  # it counts, and calls nobody
            await asyncio.sleep(0.05)
        said = {"got": got, "failures": counts.failures, "disconnects": counts.disconnects}
        print(json.dumps({**said, "base": base, "peak": memory("VmHWM")}), flush=True)
    await nc.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(given[0], given[1], int(given[2]), int(given[3]), *given[4:]))
