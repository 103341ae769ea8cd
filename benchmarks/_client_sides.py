"""The sides of the client benchmark. Each runs one case alone in a process of its own and prints its rate as JSON.

What feeds or answers a side is the same for all of them: prepared bytes from a thread that only writes to a socket, and
one process that echoes. `raw` is a bare asyncio socket that knows beforehand what comes and does for each message what
any client must: one write, one future, one handler awaited. `bytes` is below that: prepared bytes written in large
pieces, and what arrives counted without a look at each message.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

SIZE = 128
PAYLOAD = b"x" * SIZE
REQUESTS = 64  # in flight
ACKS = 256  # in flight
BATCH = 1000  # messages of a pull request
STREAM = "BENCH"
SUBJECT = "bench.a"
ECHO = "echo.a"
PATIENCE = 120.0
PING = b"PING\r\n"  # the server wants to know once in a while; a bare socket need not answer so soon
Result = Awaitable[float]


def _address(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 4222, unquote(parts.username or "")


def _hello(token: str) -> bytes:
    fields = {"verbose": False, "pedantic": False, "auth_token": token, "headers": True, "no_responders": True}
    return b"CONNECT " + json.dumps({**fields, "lang": "raw", "version": "0"}).encode() + b"\r\nPING\r\n"


def feed(url: str, content: bytes) -> threading.Thread:
    """Send prepared bytes from a thread that does nothing else."""
    host, port, token = _address(url)

    def run() -> None:
        with socket.create_connection((host, port)) as sock:
            sock.sendall(_hello(token))
            _await(sock, b"PONG\r\n")
            sock.sendall(content + b"PING\r\n")
            _await(sock, b"PONG\r\n")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _await(sock: socket.socket, end: bytes) -> None:
    heard = b""
    while not heard.endswith(end):
        found = sock.recv(65536)
        if not found:
            raise SystemExit(f"the server hung up: {heard[-200:]!r}")
        heard = (heard + found)[-1000:]


def frames(count: int, subject: str = SUBJECT, reply: str = "") -> bytes:
    """Prepare frames to publish."""
    return f"PUB {subject} {reply + ' ' if reply else ''}{SIZE}\r\n".encode().__add__(PAYLOAD + b"\r\n") * count


class Count:
    """Counts messages, and knows the time between the first and the last."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.begun = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def one(self, many: int = 1) -> None:
        """Count messages."""
        if not self.begun:
            self.begun = time.perf_counter()
        self.left -= many
        if self.left <= 0 and not self.ended.done():
            self.ended.set_result(time.perf_counter() - self.begun)

    async def taken(self) -> float:
        """Wait for the last one, and give the seconds."""
        async with asyncio.timeout(PATIENCE):
            return float(await self.ended)


# -- raw -------------------------------------------------------------------------------------------------------------


class Raw(asyncio.Protocol):
    """A bare asyncio socket: hands what arrives to `take`, and waits while the socket is full."""

    def __init__(self) -> None:
        self.take: Callable[[bytes], None] = self._open
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ponged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.room = asyncio.Event()
        self.room.set()
        self.transport: Any = None

        self._waiting: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def write_soon(self, frame: bytes) -> None:
        """Write what is given in one turn of the loop in one piece."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting.append(frame)

    def _write(self) -> None:
        self.transport.write(b"".join(self._waiting))
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        self.take(data)

    def pause_writing(self) -> None:
        self.room.clear()

    def resume_writing(self) -> None:
        self.room.set()

    def _open(self, data: bytes) -> None:
        if data.endswith(b"PONG\r\n"):
            self.take = self._pong
            self.opened.set_result(None)

    def _pong(self, data: bytes) -> None:
        if data.endswith(b"PONG\r\n") and not self.ponged.done():
            self.ponged.set_result(None)


async def raw_open(url: str) -> Raw:
    host, port, token = _address(url)
    _, raw = await asyncio.get_running_loop().create_connection(Raw, host, port)
    raw.transport.write(_hello(token))
    await raw.opened
    return raw


def framed(size: int, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Cut what arrives into frames of one size, and hand over the payload of each."""
    rest = b""

    def cut(data: bytes) -> None:
        nonlocal rest
        data = rest + data if rest else data
        place, end = 0, len(data) - size
        while place <= end:
            if data.startswith(PING, place):
                place += len(PING)
                continue
            take(data[place + size - SIZE - 2 : place + size - 2])
            place += size
        rest = data[place:].removeprefix(PING)

    return cut


class Caller:
    """Awaits a callback for each message, in a task of its own, as every client with async callbacks does."""

    def __init__(self, callback: Callable[[bytes], Awaitable[None]]) -> None:
        self._callback = callback
        self._queue: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    def take(self, payload: bytes) -> None:
        """Take a message."""
        self._queue.append(payload)
        self._filled.set()

    async def _run(self) -> None:
        while True:
            while self._queue:
                await self._callback(self._queue.popleft())
            self._filled.clear()
            await self._filled.wait()


async def raw_subscribe(url: str, count: int) -> float:
    raw = await raw_open(url)
    counted = Count(count)

    async def handle(payload: bytes) -> None:
        assert len(payload) == SIZE
        counted.one()

    raw.take = framed(len(f"MSG {SUBJECT} 1 {SIZE}\r\n") + SIZE + 2, Caller(handle).take)
    raw.transport.write(f"SUB {SUBJECT} 1\r\n".encode())
    await asyncio.sleep(0.1)
    feeding = feed(url, frames(count))
    taken = await counted.taken()
    feeding.join()
    return taken


async def bytes_subscribe(url: str, count: int) -> float:
    raw = await raw_open(url)
    counted = Count(count * (len(f"MSG {SUBJECT} 1 {SIZE}\r\n") + SIZE + 2))
    raw.take = lambda data: counted.one(len(data))
    raw.transport.write(f"SUB {SUBJECT} 1\r\n".encode())
    await asyncio.sleep(0.1)
    feeding = feed(url, frames(count))
    taken = await counted.taken()
    feeding.join()
    return taken


def raw_publish(piece: int) -> Callable[[str, int], Result]:
    """Write prepared frames, so many at a time."""

    async def run(url: str, count: int) -> float:
        raw = await raw_open(url)
        content = frames(piece)
        begun = time.perf_counter()
        for _ in range(count // piece):
            raw.transport.write(content)
            if not raw.room.is_set():
                await raw.room.wait()
        raw.transport.write(b"PING\r\n")
        await raw.ponged
        return time.perf_counter() - begun

    return run


async def raw_request(url: str, count: int) -> float:
    """Every answer is handed to whoever asked, as a future, and a new request is written for it."""
    raw = await raw_open(url)
    replies = [f"_INBOX.raw.{number:02}" for number in range(REQUESTS)]
    waiting: dict[bytes, asyncio.Future[bytes]] = {}
    size = len(f"MSG {replies[0]} 1 {SIZE}\r\n") + SIZE + 2
    rest = b""

    def take(data: bytes) -> None:
        nonlocal rest
        data = rest + data
        place = 0
        while place + size <= len(data):
            if data.startswith(PING, place):
                place += len(PING)
                continue
            key = data[place + 4 : place + 4 + len(replies[0])]
            waiting[key].set_result(data[place + size - SIZE - 2 : place + size - 2])
            place += size
        rest = data[place:].removeprefix(PING)

    async def worker(reply: str) -> None:
        content, key = frames(1, ECHO, reply), reply.encode()
        for _ in range(count // REQUESTS):
            waiting[key] = future = asyncio.get_running_loop().create_future()
            raw.write_soon(content)
            assert len(await future) == SIZE

    raw.take = take
    raw.transport.write(b"SUB _INBOX.raw.* 1\r\n")
    begun = time.perf_counter()
    await asyncio.gather(*(worker(reply) for reply in replies))
    return time.perf_counter() - begun


def counting(mark: bytes, counted: Callable[[int], None]) -> Callable[[bytes], None]:
    """Count a mark in what arrives, also where it is cut in two."""
    rest = b""

    def take(data: bytes) -> None:
        nonlocal rest
        data = rest + data
        found = data.count(mark)
        rest = data[-len(mark) + 1 :]
        if found:
            counted(found)

    return take


def parted(take: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Cut what arrives into messages, each with a line of its own length, and hand over the payload of each."""
    rest = b""

    def cut(data: bytes) -> None:
        nonlocal rest
        data = rest + data if rest else data
        place = 0
        while (line := data.find(b"\r\n", place)) >= 0 and (end := line + 4 + SIZE) <= len(data):
            if data.startswith(PING, place):
                place += len(PING)
                continue
            take(data[line + 2 : end - 2])
            place = end
        rest = data[place:].removeprefix(PING)

    return cut


async def _raw_consumer(url: str) -> tuple[Raw, bytes]:
    """Make a consumer without acks, and give the beginning of a request to it."""
    raw = await raw_open(url)
    created = asyncio.get_running_loop().create_future()
    raw.take = counting(b'"stream_name"', lambda _: None if created.done() else created.set_result(None))
    name = f"raw_{os.getpid()}"
    config = {"name": name, "ack_policy": "none", "mem_storage": True}
    body = json.dumps({"stream_name": STREAM, "config": config}).encode()
    ask = f"SUB r.* 1\r\nPUB $JS.API.CONSUMER.CREATE.{STREAM}.{name} r.a {len(body)}\r\n".encode()
    raw.transport.write(ask + body + b"\r\n")
    await created
    return raw, f"PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name} r.b ".encode()


def raw_consume(each: bool) -> Callable[[str, int], Result]:
    """Consume with one pull request for everything, awaiting a handler for each message, or only counting."""

    async def run(url: str, count: int) -> float:
        raw, asking = await _raw_consumer(url)
        counted = Count(count)

        async def handle(payload: bytes) -> None:
            assert len(payload) == SIZE
            counted.one()

        raw.take = parted(Caller(handle).take) if each else counting(b" $JS.ACK.", counted.one)
        pull = json.dumps({"batch": count, "expires": 60_000_000_000}).encode()
        begun = time.perf_counter()
        raw.transport.write(asking + b"%d\r\n%b\r\n" % (len(pull), pull))
        await counted.taken()
        return time.perf_counter() - begun

    return run


def raw_acked(ids: bool) -> Callable[[str, int], Result]:
    """Whoever published waits for a future, which the ack on its own subject serves, and then publishes again.

    With `ids` every message has the headers that `jetstream.Publisher` gives it: an id, and the id before it.
    """

    async def run(url: str, count: int) -> float:
        raw = await raw_open(url)
        replies = [f"r.{number:03}" for number in range(ACKS)]
        waiting: dict[bytes, asyncio.Future[bytes]] = {}
        number = 0
        rest = b""

        def take(data: bytes) -> None:
            nonlocal rest
            data = rest + data if rest else data
            place = 0
            while (line := data.find(b"\r\n", place)) >= 0:
                if data.startswith(PING, place):
                    place += len(PING)
                    continue
                end = line + 2 + int(data[data.rfind(b" ", place, line) + 1 : line])
                if end + 2 > len(data):
                    break
                key = data[place + 4 : place + 9]  # MSG r.000 1 ...
                waiting[key].set_result(data[line + 2 : end])
                place = end + 2
            rest = data[place:]

        def headed(reply: bytes) -> bytes:
            nonlocal number
            number += 1
            block = b"NATS/1.0\r\nNats-Msg-Id: raw.%d\r\nNats-Expected-Last-Msg-Id: raw.%d\r\n\r\n" % (
                number,
                number - 1,
            )
            head, total = len(block), len(block) + SIZE
            return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (SUBJECT.encode(), reply, head, total, block, PAYLOAD)

        async def worker(reply: str) -> None:
            content, key = frames(1, reply=reply), reply.encode()
            for _ in range(count // ACKS):
                waiting[key] = future = asyncio.get_running_loop().create_future()
                raw.write_soon(headed(key) if ids else content)
                assert b'"seq"' in await future

        raw.take = take
        raw.transport.write(b"SUB r.* 1\r\n")
        if ids:  # what the first of them expects before it
            future = waiting[b"r.000"] = asyncio.get_running_loop().create_future()
            block = b"NATS/1.0\r\nNats-Msg-Id: raw.0\r\n\r\n"
            raw.transport.write(b"HPUB %b r.000 %d %d\r\n%b\r\n" % (SUBJECT.encode(), len(block), len(block), block))
            await future
        begun = time.perf_counter()
        await asyncio.gather(*(worker(reply) for reply in replies))
        return time.perf_counter() - begun

    return run


async def bytes_acked(url: str, count: int) -> float:
    raw = await raw_open(url)
    frame = frames(1, reply="r.a")
    counted = Count(count)
    sent = min(ACKS, count)

    def acked(found: int) -> None:
        nonlocal sent
        more = min(found, count - sent)
        sent += more
        raw.transport.write(frame * more)
        counted.one(found)

    raw.take = counting(b'"seq"', acked)
    begun = time.perf_counter()
    raw.transport.write(b"SUB r.* 1\r\n" + frame * sent)
    await counted.taken()
    return time.perf_counter() - begun


# -- ours, and nats-py: the same names ---------------------------------------------------------------------------------


async def _ours(url: str) -> Any:
    import penstock

    return await penstock.connect(url)


async def _nats_py(url: str) -> Any:
    import nats

    return await nats.connect(url)


def both(
    case: Callable[[Any, str, int], Result], connect: Callable[[str], Awaitable[Any]]
) -> Callable[[str, int], Result]:
    """Run a case with a client that has nats-py's names."""

    async def run(url: str, count: int) -> float:
        nc = await connect(url)
        try:
            return await case(nc, url, count)
        finally:
            await nc.close()

    return run


async def subscribe(nc: Any, url: str, count: int) -> float:
    counted = Count(count)

    async def handle(message: Any) -> None:
        assert len(message.data) == SIZE
        counted.one()

    await nc.subscribe(SUBJECT, cb=handle)
    await nc.flush()
    feeding = feed(url, frames(count))
    taken = await counted.taken()
    feeding.join()
    return taken


async def publish(nc: Any, url: str, count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        await nc.publish(SUBJECT, PAYLOAD)
    await nc.flush(PATIENCE)
    return time.perf_counter() - begun


async def in_flight(work: Callable[[], Awaitable[Any]], count: int, most: int) -> float:
    """Do something `count` times, so many of them at a time."""

    async def worker() -> None:
        for _ in range(count // most):
            await work()

    begun = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(most)))
    return time.perf_counter() - begun


async def request(nc: Any, url: str, count: int) -> float:
    async def ask() -> None:
        assert len((await nc.request(ECHO, PAYLOAD, timeout=PATIENCE)).data) == SIZE

    return await in_flight(ask, count, REQUESTS)


async def acked_each(nc: Any, url: str, count: int) -> float:
    """Each message is a call of `publish` of its own, many of them in flight."""
    jetstream = nc.jetstream()
    return await in_flight(lambda: jetstream.publish(SUBJECT, PAYLOAD), count, ACKS)


# -- ours ------------------------------------------------------------------------------------------------------------


def ours_consume(ack: str) -> Callable[[Any, str, int], Result]:
    """Consume with `Deliveries`, without acks or with one for each message."""

    async def run(nc: Any, url: str, count: int) -> float:
        from penstock.jetstream import Deliveries, assets
        from penstock.model import Consumer

        name = f"ours_{os.getpid()}"
        config = Consumer(durable=name, ack_policy=ack, max_ack_pending=10 * BATCH, mem_storage=True)
        await assets.add_consumer(nc, STREAM, config)

        async def handle(delivery: Any) -> None:
            assert len(delivery.data) == SIZE
            if ack == "explicit":
                await delivery.ack()

        begun = time.perf_counter()
        async with Deliveries(nc, STREAM, name, batch=2 * BATCH, limit=count) as deliveries:
            await deliveries.consume(handle)
        return time.perf_counter() - begun

    return run


async def ours_acked(nc: Any, url: str, count: int) -> float:
    from penstock.jetstream import Publisher

    begun = time.perf_counter()
    async with Publisher(nc, STREAM, order="chained", in_flight=ACKS) as publisher:
        for _ in range(count):
            await publisher.send(SUBJECT, PAYLOAD)
    return time.perf_counter() - begun


# -- nats-py ---------------------------------------------------------------------------------------------------------


def nats_py_consume(ack: str) -> Callable[[Any, str, int], Result]:
    """Consume with `fetch`, without acks or with one for each message."""

    async def run(nc: Any, url: str, count: int) -> float:
        from nats.js.api import AckPolicy, ConsumerConfig

        policy = AckPolicy.NONE if ack == "none" else AckPolicy.EXPLICIT
        config = ConsumerConfig(ack_policy=policy, max_ack_pending=10 * BATCH, mem_storage=True)
        durable = f"nats_py_{os.getpid()}"
        subscription = await nc.jetstream().pull_subscribe("", durable=durable, stream=STREAM, config=config)

        async def handle(message: Any) -> None:
            assert len(message.data) == SIZE
            if ack == "explicit":
                await message.ack()

        begun = time.perf_counter()
        got = 0
        while got < count:
            for message in await subscription.fetch(min(BATCH, count - got), timeout=10):
                await handle(message)
                got += 1
        return time.perf_counter() - begun

    return run


async def nats_py_acked(nc: Any, url: str, count: int) -> float:
    jetstream = nc.jetstream(publish_async_max_pending=ACKS)
    begun = time.perf_counter()
    for _ in range(count):
        await jetstream.publish_async(SUBJECT, PAYLOAD, wait_stall=PATIENCE)
    await jetstream.publish_async_completed()
    return time.perf_counter() - begun


# -- natsrpy ---------------------------------------------------------------------------------------------------------


async def _natsrpy(url: str) -> Any:
    import natsrpy

    host, port, token = _address(url)
    client = natsrpy.Nats([f"{host}:{port}"], token=token or None)
    await client.startup()
    return client


async def natsrpy_subscribe(url: str, count: int) -> float:
    client = await _natsrpy(url)
    counted = Count(count)

    async def handle(message: Any) -> None:
        assert len(message.payload) == SIZE
        counted.one()

    subscription = await client.subscribe(SUBJECT, callback=handle).detatch()
    await client.flush()
    await asyncio.sleep(0.1)
    feeding = feed(url, frames(count))
    taken = await counted.taken()
    feeding.join()
    await subscription.unsubscribe()
    await client.shutdown()
    return taken


async def natsrpy_publish(url: str, count: int) -> float:
    client = await _natsrpy(url)
    begun = time.perf_counter()
    for _ in range(count):
        await client.publish(SUBJECT, PAYLOAD)
    await client.flush()
    taken = time.perf_counter() - begun
    await client.shutdown()
    return taken


async def natsrpy_request(url: str, count: int) -> float:
    client = await _natsrpy(url)

    async def ask() -> None:
        assert len((await client.request(ECHO, PAYLOAD)).payload) == SIZE

    taken = await in_flight(ask, count, REQUESTS)
    await client.shutdown()
    return taken


def natsrpy_consume(ack: str) -> Callable[[str, int], Result]:
    """Consume with `fetch`, without acks or with one for each message."""

    async def run(url: str, count: int) -> float:
        from natsrpy.js import AckPolicy, PullConsumerConfig

        client = await _natsrpy(url)
        stream = await (await client.jetstream()).streams.get(STREAM)
        policy = AckPolicy.NONE if ack == "none" else AckPolicy.EXPLICIT
        config = PullConsumerConfig(ack_policy=policy, memory_storage=True, max_ack_pending=10 * BATCH)
        consumer = await stream.consumers.create(config)

        async def handle(message: Any) -> None:
            assert len(message.payload) == SIZE
            if ack == "explicit":
                await message.ack()

        begun = time.perf_counter()
        got = 0
        while got < count:
            for message in await consumer.fetch(min(BATCH, count - got), timeout=timedelta(seconds=10)):
                await handle(message)
                got += 1
        taken = time.perf_counter() - begun
        await client.shutdown()
        return taken

    return run


async def natsrpy_acked(url: str, count: int) -> float:
    client = await _natsrpy(url)
    jetstream = await client.jetstream(max_ack_inflight=2 * ACKS)
    taken = await in_flight(lambda: jetstream.publish(SUBJECT, PAYLOAD, wait=True), count, ACKS)
    await client.shutdown()
    return taken


# -- the echo --------------------------------------------------------------------------------------------------------


async def echo(url: str) -> None:
    """Answer every request with its payload, as fast as a Python process can, until the input ends."""
    nc = await _ours(url)
    frames_out: deque[bytes] = deque()

    def write() -> None:
        nc.post(b"".join(frames_out))
        frames_out.clear()

    def answer(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        if not frames_out:
            asyncio.get_running_loop().call_soon(write)
        frames_out.append(b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload))

    await nc.tap(ECHO, answer)
    await nc.flush()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await nc.close()


SIDES: dict[str, dict[str, Callable[[str, int], Result]]] = {
    "subscribe": {
        "ours": both(subscribe, _ours),
        "nats_py": both(subscribe, _nats_py),
        "natsrpy": natsrpy_subscribe,
        "raw": raw_subscribe,
        "bytes": bytes_subscribe,
    },
    "publish": {
        "ours": both(publish, _ours),
        "nats_py": both(publish, _nats_py),
        "natsrpy": natsrpy_publish,
        "raw": raw_publish(1),
        "bytes": raw_publish(500),
    },
    "request": {
        "ours": both(request, _ours),
        "nats_py": both(request, _nats_py),
        "natsrpy": natsrpy_request,
        "raw": raw_request,
    },
    "consume": {
        "ours": both(ours_consume("none"), _ours),
        "nats_py": both(nats_py_consume("none"), _nats_py),
        "natsrpy": natsrpy_consume("none"),
        "raw": raw_consume(each=True),
        "bytes": raw_consume(each=False),
    },
    "consume_acking": {
        "ours": both(ours_consume("explicit"), _ours),
        "nats_py": both(nats_py_consume("explicit"), _nats_py),
        "natsrpy": natsrpy_consume("explicit"),
    },
    "acked": {
        "ours": both(ours_acked, _ours),
        "nats_py": both(nats_py_acked, _nats_py),
        "natsrpy": natsrpy_acked,
        "raw": raw_acked(ids=True),
        "bytes": bytes_acked,
    },
    "acked_each": {
        "ours": both(acked_each, _ours),
        "nats_py": both(acked_each, _nats_py),
        "natsrpy": natsrpy_acked,
        "raw": raw_acked(ids=False),
    },
}


def main() -> None:
    """Run one side: case, side, address, messages; or the echo: its name and the address."""
    if sys.argv[1] == "echo":
        asyncio.run(echo(sys.argv[2]))
        return
    case, side, url, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    work = SIDES[case][side.removesuffix("_uvloop")](url, count)
    if side.endswith("_uvloop"):
        import uvloop

        taken = uvloop.run(work)
    else:
        taken = asyncio.run(work)  # type: ignore[arg-type]  # every side is a coroutine
    print(json.dumps({"seconds": taken, "rate": count / taken}), flush=True)
    os._exit(0)  # a client's own threads may stumble over an interpreter that is being taken down


if __name__ == "__main__":
    main()
