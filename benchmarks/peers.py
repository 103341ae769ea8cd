"""Measures the bus and chunks beside their peers: Go's own programs, bare nats-py, and a loop that does nothing else.

    python benchmarks/peers.py [--quick]                 both
    python benchmarks/peers.py bus [--rounds 9]          single requests, 64 in flight, and elements one at a time
    python benchmarks/peers.py chunks [--rounds 9]       100 MB from and to either side, each time in new processes

All sides are processes of their own and take turns, in another order every round; rates and ratios are medians, those
of the bus with the least and the most, and CPU time is of both processes of a side.
The Go sides need `go` and a checkout of what they speak: PENSTOCK_PEER_BUS names one of airs-ibusnats,
PENSTOCK_PEER_CHUNKS one of natsChunked (branch v2-offset-protocol). Without them they are skipped, by name.
With PENSTOCK_UVLOOP=1 our sides and the bare loop run on uvloop. JSON to artifacts/peers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import penstock
from penstock.bus import Bus, Request, Response, Sender

sys.path.insert(0, str(Path(__file__).parent))
from _measure import rotated

HERE = Path(__file__).resolve()
ARTIFACTS = HERE.parents[1] / "artifacts"
PAYLOAD = 100_000_000
PAYLOADS = 5  # of one pair of processes; the first is counted by itself
ELEMENT = 1024
WINDOWS = {"single": 64, "elements": 0, "window": 64}
REQUESTS, ELEMENTS, TOGETHER = 6400, 2000, 64
JOIN = """package ibusnats

import ibus "github.com/untillpro/airs-ibus"

// Join sets what is injected elsewhere.
func Join() {
	ibus.SendRequest2, ibus.SendResponse = implSendRequest2, implSendResponse
	ibus.SendParallelResponse2 = implSendParallelResponse2
}
"""


def build(name: str, folder: Path) -> str | None:
    """Build a peer inside of a copy of the checkout; None, and a word why, if that cannot be."""
    checkout = os.environ.get(f"PENSTOCK_PEER_{name.upper()}")
    if checkout is None or shutil.which("go") is None:
        return None
    copy = folder / name
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git", "*_test.go"))
    program = copy / "peer"
    program.mkdir()
    shutil.copy(HERE.with_name("peers") / f"{name}.go", program / "main.go")
    if name == "bus":
        (copy / "joined.go").write_text(JOIN)
    subprocess.run(["go", "build", "-o", str(folder / f"{name}-peer"), "./peer"], cwd=copy, check=True)
    return str(folder / f"{name}-peer")


class Program:
    """A process that says when it is ready, and answers a line with a line."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended early")
        return line

    def ask(self, *words: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    @property
    def cpu(self) -> float:
        """Seconds that it has computed."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def own(*words: str) -> Program:
    return Program(sys.executable, str(HERE), *words)


# -- the processes of our own sides, of nats-py, and of the bare loop -----------------------------------------------


async def answer_lines(work: Callable[[str, int], Awaitable[int]]) -> None:
    """Do what each line says, and print how long it took and how much of it was done."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, count, *_ = line.split()
        began = time.perf_counter()
        got = await work(what, int(count))
        print(json.dumps({"seconds": time.perf_counter() - began, "got": got}), flush=True)


async def serve_bus(url: str) -> None:
    nc = await penstock.connect(url)

    async def handler(request: Request, sender: Sender) -> None:
        if request.resource == "single":
            await sender.respond(Response(data=b'{"a":1}'))
            return
        count, filler = int(request.query["count"][0]), bytes(int(request.query["size"][0]) - 8)
        async with sender.sections() as out:
            out.array("numbers")
            for number in range(count):
                await out.send(number.to_bytes(8, "big") + filler)

    async with Bus(nc, {"bench": 1}) as bus, bus.serve("bench", handler, concurrency=1024):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


async def ask_bus(url: str) -> None:
    nc = await penstock.connect(url)
    buses = {what: Bus(nc, {"bench": 1}, window=window) for what, window in WINDOWS.items()}

    async def work(what: str, count: int) -> int:
        bus = buses[what]
        if what == "single":

            async def one() -> bool:
                response = (await bus.request(Request("bench", resource="single"))).response
                return response is not None and response.status == 200

            return await together(one, count)
        reply = await bus.request(Request("bench", resource=what, query={"count": str(count), "size": str(ELEMENT)}))
        return sum([len(item.data) == ELEMENT async for part in reply.sections() async for item in part])

    await answer_lines(work)


async def serve_bare(url: str) -> None:
    import nats

    nc = await nats.connect(url)

    async def respond(message: Any) -> None:
        await message.respond(b'{"a":1}')

    await nc.subscribe("bare", cb=respond)
    await nc.flush()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def ask_bare(url: str) -> None:
    import nats

    nc = await nats.connect(url)

    async def one() -> bool:
        return bool((await nc.request("bare", b'{"Method":0}', timeout=10)).data)

    await answer_lines(lambda what, count: together(one, count))


async def together(one: Callable[[], Awaitable[bool]], count: int) -> int:
    """Ask so many times, `TOGETHER` at a time, and give how many were answered well."""

    async def some() -> int:
        return sum([await one() for _ in range(count // TOGETHER)])

    return sum(await asyncio.gather(*(some() for _ in range(TOGETHER))))


class Loop(asyncio.Protocol):
    """Sends a ready frame for each one that comes, and looks at nothing: what the event loop alone allows."""

    def __init__(self, url: str, mine: str, other: str, size: int) -> None:
        self._token = urlsplit(url).username or ""
        self._frame = f"PUB {other} {size}\r\n".encode() + bytes(size) + b"\r\n"
        self._mine, self._left, self._waiting = mine, -1, b""
        self.ready, self.done = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"INFO"):
            login = json.dumps({"verbose": False, "pedantic": False, "auth_token": self._token})
            self._transport.write(f"CONNECT {login}\r\nSUB {self._mine} 1\r\nPING\r\n".encode())
        elif data.startswith(b"PONG"):
            self.ready.set()
        elif data.startswith(b"PING"):
            self._transport.write(b"PONG\r\n")
        else:
            self._waiting += data
            line, _, rest = self._waiting.partition(b"\r\n")
            if len(rest) < int(line.rsplit(b" ", 1)[1]) + 2:
                return
            self._waiting = b""
            self._left -= 1
            if self._left == 0:
                self.done.set()
            else:
                self._transport.write(self._frame)

    async def play(self, count: int) -> int:
        self._left = count
        self.done.clear()
        self._transport.write(self._frame)
        await self.done.wait()
        return count


async def loop_side(url: str, mine: str, other: str, size: str) -> None:
    parts = urlsplit(url)
    _, loop = await asyncio.get_running_loop().create_connection(
        lambda: Loop(url, mine, other, int(size)), parts.hostname, parts.port
    )
    await loop.ready.wait()
    await answer_lines(lambda what, count: loop.play(count))


# -- what is measured -----------------------------------------------------------------------------------------------


def measure_bus(rounds: int, peer: str | None) -> dict[str, Any]:
    found: dict[str, dict[str, list[float]]] = {}
    with penstock.Server(sync="2m") as server, penstock.Server(sync="2m") as other:
        url = server.url
        pairs = {
            "ours": (own("--serve-bus", url), own("--ask-bus", url)),
            "nats-py, bare": (own("--serve-bare", url), own("--ask-bare", url)),
            "asyncio alone": (own("--loop", url, "a", "b", str(ELEMENT)), own("--loop", url, "b", "a", "1")),
        }
        if peer is not None:
            pairs["Go"] = (Program(peer, "--serve", other.url), Program(peer, "--request", other.url))
        works = [
            ("single", REQUESTS, TOGETHER, ("ours", "nats-py, bare", "Go")),
            ("elements", ELEMENTS, ELEMENT, ("ours", "asyncio alone", "Go")),
            ("window", ELEMENTS, ELEMENT, ("ours",)),
        ]
        for number in range(rounds + 1):
            for what, count, extra, sides in rotated(works, number):
                for side in rotated(sides, number):
                    if side not in pairs:
                        continue
                    serving, asking = pairs[side]
                    before = serving.cpu + asking.cpu
                    answer = asking.ask(what, count, extra)
                    if answer["got"] != count:
                        raise SystemExit(f"{side}: {answer['got']} of {count} {what} came")
                    if number:  # the first round warms everything up
                        row = found.setdefault(f"{what}: {side}", {"rate": [], "cpu": []})
                        row["rate"].append(count / answer["seconds"])
                        row["cpu"].append((serving.cpu + asking.cpu - before) / count * 1e6)
        for pair in pairs.values():
            for program in pair:
                program.end()
    rows = {
        name: {"rate": statistics.median(row["rate"]), "cpu": statistics.median(row["cpu"])}
        for name, row in found.items()
    }
    base = {"single": "single: nats-py, bare", "elements": "elements: Go", "window": "elements: ours"}
    for name, row in rows.items():
        against = base[name.split(":")[0]]
        row |= {"least rate": min(found[name]["rate"]), "most rate": max(found[name]["rate"])}
        if against in rows:
            shares = [mine / other for mine, other in zip(found[name]["rate"], found[against]["rate"], strict=True)]
            row |= {"ratio": statistics.median(shares), "least ratio": min(shares), "most ratio": max(shares)}
        spread = f" ({row['least ratio']:.2f} to {row['most ratio']:.2f})" if "ratio" in row else ""
        ratio = f"{row['ratio']:6.2f} of {against}{spread}" if "ratio" in row else ""
        print(f"{name:26} {row['rate']:9,.0f}/s  {row['cpu']:6.1f} us CPU  {ratio}")
    return rows


def measure_chunks(rounds: int, peer: str | None) -> dict[str, Any]:
    ours = [sys.executable, str(HERE.with_name("chunks.py"))]
    found: dict[str, dict[str, list[float]]] = {}
    with penstock.Server(sync="2m") as server:
        send = {"ours": [*ours, "--send", server.url, "chunks"]}
        receive = {"ours": [*ours, "--receive", server.url, "chunks", ""]}
        if peer is not None:
            send["Go"], receive["Go"] = [peer, "--send", server.url], [peer, "--receive", server.url]
        pairs = [(sender, receiver) for sender in send for receiver in receive]
        for turn in range(rounds):
            for sender, receiver in pairs[turn % len(pairs) :] + pairs[: turn % len(pairs)]:
                programs = Program(*receive[receiver]), Program(*send[sender])
                row = found.setdefault(f"{sender} to {receiver}", {"first": [], "later": [], "lost": []})
                for number in range(PAYLOADS):
                    answer = programs[1].ask(PAYLOAD)
                    if answer["size"] == PAYLOAD:
                        row["later" if number else "first"].append(PAYLOAD / answer["seconds"] / 1e6)
                    else:
                        row["lost"].append(1)
                for program in programs:
                    program.end()
    rows: dict[str, Any] = {
        name: {**{key: statistics.median(row[key]) for key in ("first", "later")}, "lost": len(row["lost"])}
        for name, row in found.items()
    }
    for name, row in rows.items():
        if base := rows.get("Go to Go"):
            row |= {"first_ratio": row["first"] / base["first"], "later_ratio": row["later"] / base["later"]}
        ratios = f"  {row['first_ratio']:.2f} and {row['later_ratio']:.2f} of Go to Go" if "first_ratio" in row else ""
        rates = f"first payload {row['first']:5.0f} MB/s, later {row['later']:5.0f} MB/s"
        print(f"{name:14} {rates}, {row['lost']} lost{ratios}")
    return rows


MEASURES = {"bus": measure_bus, "chunks": measure_chunks}
SIDES = {
    "--serve-bus": serve_bus,
    "--ask-bus": ask_bus,
    "--serve-bare": serve_bare,
    "--ask-bare": ask_bare,
    "--loop": loop_side,
}


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in SIDES:
        if os.environ.get("PENSTOCK_UVLOOP"):
            import uvloop

            uvloop.install()
        asyncio.run(SIDES[sys.argv[1]](*sys.argv[2:]))  # type: ignore[operator]
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=MEASURES, help="only this one")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    found: dict[str, Any] = {"skipped": {}}
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as folder:
        for what in [given.what] if given.what else MEASURES:
            if (peer := build(what, Path(folder))) is None:
                found["skipped"][f"the Go side of {what}"] = f"needs go, and a checkout in PENSTOCK_PEER_{what.upper()}"
            found[what] = MEASURES[what](1 if given.quick else given.rounds, peer)
    ARTIFACTS.mkdir(exist_ok=True)
    (ARTIFACTS / "peers.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
