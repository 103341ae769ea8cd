"""Shows how fast one stream takes messages as it grows, and what the server spends on each of them.

    python benchmarks/growth.py [--quick] [--messages 4000000] [--step 250000] [SIDE ...]  JSON to artifacts/growth.json

Every side writes a stream of its own, on a server of its own, one step after the other. `raw` sides send frames that
were made before the clock starts through a bare socket: no code of our publishing takes part. Of each step we note the
rate, the CPU time of the server and of the client for a message, and the memory of the server. CPU time says more than
the rate where the machine has other work. Sides differ in one thing from `raw_ids`, which is what
`publish(mode="acks")` sends: messages with an id, an ack each, 4,000 under way, into a file store.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock.wire.bulk import BulkConnection
from penstock.wire.patience import Deadline

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "growth.json"
FOREVER = 600.0
SECOND = 1_000_000_000
SIZE = 128

# What the stream is, and whether messages have an id and whether each has its own subject.
RAW: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "raw_ids": ({}, True, False),
    "raw_ids_100ms": ({"duplicate_window": SECOND // 10}, True, False),
    "raw_no_ids": ({}, False, False),
    "raw_memory": ({"storage": "memory"}, True, False),
    "raw_memory_no_ids": ({"storage": "memory"}, False, False),
    "raw_subjects": ({}, False, True),
}
SIDES = (*RAW, "raw_fast", "publish_acks", "publish_fast")


def frames(first: int, count: int, ids: bool, subjects: bool) -> list[bytes]:
    """Make frames with an ack each, several in a piece."""
    name, payload, step = secrets.token_hex(8).encode(), b"x" * SIZE, 500
    pieces = []
    for start in range(first, first + count, step):
        piece = []
        for number in range(start, min(first + count, start + step)):
            subject = b"bench.%d" % number if subjects else b"bench.a"
            if ids:
                head = b"NATS/1.0\r\nNats-Msg-Id: %s.%d\r\n\r\n" % (name, number)
                line = b"HPUB %s drain.%d %d %d\r\n" % (subject, number, len(head), len(head) + SIZE)
                piece.append(line + head + payload + b"\r\n")
            else:
                piece.append(b"PUB %s drain.%d %d\r\n%s\r\n" % (subject, number, SIZE, payload))
        pieces.append(b"".join(piece))
    return pieces


def send_raw(bulk: BulkConnection, pieces: list[bytes], count: int) -> float:
    """Send frames with an ack each, 4,000 under way, and give the seconds until the last ack."""
    wire, deadline = bulk.wire, Deadline(FOREVER)
    parser = wire.parser
    begun = time.perf_counter()
    sent = acked = 0
    for piece in pieces:
        while sent - acked >= 4000:
            acked += _acks(wire, parser, deadline)
        wire.send(piece, deadline)
        sent += min(500, count - sent)
    while acked < count:
        acked += _acks(wire, parser, deadline)
    return time.perf_counter() - begun


def _acks(wire: Any, parser: Any, deadline: Deadline) -> int:
    wire.receive(deadline)
    end = parser.buffer.rfind(b"}\r\n", parser.start, parser.end)  # a frame that is cut waits for its rest
    if end < 0:
        return 0
    found = int(parser.buffer.count(b'"seq":', parser.start, end))
    if parser.buffer.find(b'"error"', parser.start, end) >= 0:
        raise SystemExit(f"refused: {bytes(parser.buffer[parser.start : end])[:300]!r}")
    parser.take(end + 3)
    return found


def writer(side: str, url: str, step: int) -> Iterator[Callable[[], float]]:
    """Give for each step, prepared, what writes it and gives its seconds."""
    with BulkConnection(url) as bulk:
        config = {"name": sides.STREAM, "subjects": ["bench.>"], "storage": "file", "allow_batched": True}
        bulk.api(f"STREAM.CREATE.{sides.STREAM}", {**config, **(RAW[side][0] if side in RAW else {})})
        if side in RAW:
            bulk.wire.send(b"SUB drain.* 99\r\n", Deadline(FOREVER))
        first = 1
        while True:
            if side in RAW:
                pieces = frames(first, step, *RAW[side][1:])
                yield lambda pieces=pieces: send_raw(bulk, pieces, step)  # type: ignore[misc]
            elif side == "raw_fast":
                yield lambda: sides.raw_fast(url, step, SIZE)
            else:
                yield lambda: sides.publish(side.removeprefix("publish_"), url, step, SIZE)
            first += step


def cpu(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grow(side: str, messages: int, step: int) -> list[dict[str, float]]:
    """Write a stream step by step, and note what each step took."""
    curve = []
    with penstock.Server(sync="2m") as server:
        (pid,) = (node.pid for node in server.nodes)
        for number, write in enumerate(writer(side, server.url, step), 1):
            before, own = cpu(pid), time.process_time()
            seconds = write()
            curve.append(
                {
                    "messages": number * step,
                    "rate": round(step / seconds),
                    "server_us": round((cpu(pid) - before) / step * 1e6, 2),
                    "client_us": round((time.process_time() - own) / step * 1e6, 2),
                    "server_mb": memory(pid) // 1_000_000,
                }
            )
            last = curve[-1]
            print(
                f"{side:18} {last['messages']:>9,}  {last['rate']:>8,}/s   server {last['server_us']:5.2f} us, client "
                f"{last['client_us']:5.2f} us a message, server {last['server_mb']:,} MB",
                flush=True,
            )
            if number * step >= messages:
                return curve
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="half a million messages")
    parser.add_argument("--messages", type=int)
    parser.add_argument("--step", type=int, default=250_000)
    parser.add_argument("sides", nargs="*", metavar="SIDE", help=f"of {', '.join(SIDES)}; all if none is given")
    given = parser.parse_args()
    if unknown := set(given.sides) - set(SIDES):
        parser.error(f"no such side: {', '.join(sorted(unknown))}")
    messages = given.messages or (500_000 if given.quick else 4_000_000)
    found = {side: grow(side, messages, given.step) for side in given.sides or SIDES}
    ARTIFACT.parent.mkdir(exist_ok=True)
    ARTIFACT.write_text(json.dumps({"bytes": SIZE, "curves": found, "cpus": os.cpu_count()}, indent=2) + "\n")
    for side, curve in found.items():
        quarter = max(1, len(curve) // 4)
        early = sum(item["server_us"] for item in curve[:quarter]) / quarter
        late = sum(item["server_us"] for item in curve[-quarter:]) / quarter
        print(f"{side:18} server {early:.2f} us a message at first (a quarter), {late:.2f} at last: {late / early:.2f}")


if __name__ == "__main__":
    main()
