"""The sides of the wire benchmark. Each runs alone in a process of its own and prints its rate as JSON."""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from penstock.errors import DisconnectedError
from penstock.wire.bulk import BulkConnection
from penstock.wire.patience import Deadline

FOREVER = 600.0
STREAM = "BENCH"


def batches(count: int, size: int, rows: int = 65_536) -> list[pa.RecordBatch]:
    """Make rows to publish, in batches, before the clock starts."""
    rows = max(1, min(rows, 64 * 1024 * 1024 // size, count))
    one = pa.record_batch(
        {
            "subject": pa.repeat(pa.scalar("bench.a", pa.string()), rows),
            "data": pa.repeat(pa.scalar(b"x" * size, pa.binary()), rows),
        }
    )
    full, rest = divmod(count, rows)
    return [one] * full + ([one.slice(0, rest)] if rest else [])


# -- reading -------------------------------------------------------------------------------------------------


def read(url: str, count: int, size: int) -> float:
    """`BulkConnection.read`, compiled or plain as the environment says."""
    with BulkConnection(url) as bulk:
        begun = time.perf_counter()
        rows = sum(batch.num_rows for batch in bulk.read(STREAM, 1, count + 1, timeout=FOREVER))
        assert rows == count, rows
        return time.perf_counter() - begun


def raw_pull(url: str, count: int, size: int) -> float:
    """The limit: the same consumer and the same requests, the bytes only received and thrown away."""
    with BulkConnection(url) as bulk:
        begun = time.perf_counter()
        config = {"ack_policy": "none", "mem_storage": True, "num_replicas": 1}
        name = bulk.api(f"CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config})["name"]
        body = json.dumps({"batch": 1_000_000, "max_bytes": 16 * 1024 * 1024, "no_wait": True}).encode()
        request = f"PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name} drain.a {len(body)}\r\n".encode() + body + b"\r\n"
        return _drain(bulk, begun, b"SUB drain.* 99\r\n" + request, count, size, rb"NATS/1\.0 409", request, False)


def raw_push(url: str, count: int, size: int) -> float:
    """A push consumer without flow control, the bytes thrown away: a server that never waits for us."""
    with BulkConnection(url) as bulk:
        begun = time.perf_counter()
        config = {"ack_policy": "none", "mem_storage": True, "num_replicas": 1, "deliver_subject": "drain.b"}
        body = json.dumps({"stream_name": STREAM, "config": config}).encode()
        create = f"PUB $JS.API.CONSUMER.CREATE.{STREAM} drain.c {len(body)}\r\n".encode() + body + b"\r\n"
        return _drain(bulk, begun, b"SUB drain.b 99\r\n" + create, count, size, rb"(?!)", b"", False)


def raw_push_flow(url: str, count: int, size: int) -> float:
    """A push consumer with flow control, answered, the bytes thrown away."""
    with BulkConnection(url) as bulk:
        begun = time.perf_counter()
        config = {"ack_policy": "none", "mem_storage": True, "num_replicas": 1, "deliver_subject": "drain.b"}
        config |= {"flow_control": True, "idle_heartbeat": 5_000_000_000}
        body = json.dumps({"stream_name": STREAM, "config": config}).encode()
        create = f"PUB $JS.API.CONSUMER.CREATE.{STREAM} drain.c {len(body)}\r\n".encode() + body + b"\r\n"
        return _drain(
            bulk, begun, b"SUB drain.b 99\r\n" + create, count, size, rb"(\$JS\.FC\.[^ ]+) ", b"PUB %s 0\r\n\r\n", True
        )


def raw_direct(url: str, count: int, size: int) -> float:
    """Batched direct get, 10,000 messages a request, the bytes thrown away."""
    with BulkConnection(url) as bulk:
        wire, deadline = bulk.wire, Deadline(FOREVER)
        begun = time.perf_counter()
        wire.send(b"SUB drain.* 99\r\n", deadline)
        for start in range(1, count + 1, 10_000):
            body = json.dumps({"seq": start, "batch": 10_000, "max_bytes": 1 << 30}).encode()
            wire.send(f"PUB $JS.API.DIRECT.GET.{STREAM} drain.a {len(body)}\r\n".encode() + body + b"\r\n", deadline)
            tail = b""
            while b"204 EOB" not in tail:
                wire.receive(deadline)
                tail = (tail + bytes(wire.parser.buffer[wire.parser.start : wire.parser.end]))[-400:]
                wire.parser.take(wire.parser.end)
        return time.perf_counter() - begun


_LAST = re.compile(rb"\$JS\.ACK\.[^ ]+\.0 (?:[0-9]+ )?([0-9]+)\r\n|NATS/1\.0 404")
_STATUS = 400  # bytes that the line of a delivery, or a status, has at the most


def _drain(
    bulk: BulkConnection, begun: float, start: bytes, count: int, size: int, ask: bytes, answer: bytes, all_of_it: bool
) -> float:
    """Receive until the last message is there whole, answering what must be answered.

    A drain must not cost more than a reader. What is asked stands at the end of what came, so only as much of it is
    looked at; the end of the last message is not looked for before the payloads of all the others can be there.
    `all_of_it`: what is asked may stand anywhere.
    """
    wire, deadline, asked = bulk.wire, Deadline(FOREVER), re.compile(ask)
    wire.send(start, deadline)
    tail, rest, received = _STATUS, b"", 0
    while True:
        wire.receive(deadline)
        parser = wire.parser
        received += parser.end - parser.start
        if received >= (count - 1) * size:
            tail = size + _STATUS
        begin = parser.start if all_of_it else max(parser.start, parser.end - tail)
        window = rest + bytes(memoryview(parser.buffer)[begin : parser.end])
        parser.take(parser.end)
        for found in asked.finditer(window):
            if found.end() > len(rest):
                wire.send(answer % found.group(1) if found.groups() else answer, deadline)
        last = _LAST.search(window, max(0, len(window) - 2 * tail)) if received >= (count - 1) * size else None
        if last and (last.group(1) is None or len(window) >= last.end() + int(last.group(1)) + 2):
            return time.perf_counter() - begun
        rest = window[-tail:]


FETCH_BYTES = 32 * 1024 * 1024  # half of what the server lets pile up before it cuts a client off


async def nats_pull(url: str, count: int, size: int) -> float:
    """nats-py, pull consumer without acks, `fetch` of 1,000 or of 32 MiB."""
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    nc = await nats.connect(url)
    begun = time.perf_counter()
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
    subscription = await nc.jetstream().pull_subscribe("", stream=STREAM, config=config)
    got = 0
    while got < count:
        got += len(await subscription.fetch(min(1000, FETCH_BYTES // size, count - got), timeout=10))
    taken = time.perf_counter() - begun
    await nc.close()
    return taken


async def nats_ordered(url: str, count: int, size: int) -> float:
    """nats-py, ordered push consumer."""
    import nats

    nc = await nats.connect(url)
    begun = time.perf_counter()
    subscription = await nc.jetstream().subscribe("bench.>", stream=STREAM, ordered_consumer=True)
    for _ in range(count):
        await subscription.next_msg(timeout=10)
    taken = time.perf_counter() - begun
    await nc.close()
    return taken


async def natsrpy_pull(url: str, count: int, size: int) -> float:
    """natsrpy (a client in Rust), pull consumer, `fetch` of 5,000 or of 32 MiB."""
    import natsrpy
    from natsrpy.js import AckPolicy, PullConsumerConfig

    parts = urlsplit(url)
    nats = natsrpy.Nats([f"{parts.hostname}:{parts.port}"], token=unquote(parts.username or "") or None)
    await nats.startup()
    jetstream = await nats.jetstream()
    stream = await jetstream.streams.get(STREAM)
    begun = time.perf_counter()
    consumer = await stream.consumers.create(PullConsumerConfig(ack_policy=AckPolicy.NONE, memory_storage=True))
    got = 0
    while got < count:
        got += len(await consumer.fetch(min(5000, FETCH_BYTES // size, count - got), timeout=timedelta(seconds=10)))
    taken = time.perf_counter() - begun
    await nats.shutdown()
    return taken


# -- publishing ----------------------------------------------------------------------------------------------


def publish(mode: str, url: str, count: int, size: int, ids: bool | None = None) -> float:
    """`BulkConnection.publish` in one of its modes."""
    rows = batches(count, size)
    with BulkConnection(url) as bulk:
        begun = time.perf_counter()
        done = bulk.publish(STREAM, rows, mode, ids=ids, timeout=FOREVER)
        assert done.rows == count, done
        return time.perf_counter() - begun


def raw_fast(url: str, count: int, size: int, distinct: int = 0, ready: Callable[[], object] = lambda: None) -> float:
    """The limit: fast ingest with frames made before the clock starts, sent as the flow acks allow.

    distinct is the number of subjects that take turns; without it all is on one. ready is called when only the clock
    is to start.
    """
    inbox = f"_INBOX.{secrets.token_hex(8)}.{secrets.token_hex(8)}"
    payload = b"x" * size
    with BulkConnection(url) as bulk:
        frames = [
            b"PUB bench.%s %s.1000.fail.%d.%d.$FI %d\r\n%s\r\n"
            % (
                b"%07d" % (number % distinct) if distinct else b"a",
                inbox.encode(),
                number,
                0 if number == 1 else 2 if number == count else 1,
                size,
                payload,
            )
            for number in range(1, count + 1)
        ]
        # Joined before the clock starts too: a sender in C would not join lists of Python objects.
        step = max(1, min(250, 262_144 // size))
        pieces = [b"".join(frames[start : start + step]) for start in range(1, count, step)]
        wire, deadline = bulk.wire, Deadline(FOREVER)
        wire.send(f"SUB {inbox}.> 99\r\n".encode(), deadline)
        ready()
        begun = time.perf_counter()
        wire.send(frames[0], deadline)
        acked, flow, sent, place = 0, 1, 1, 0
        while True:
            while place < len(pieces) and acked + 3 * flow > sent:
                wire.send(pieces[place], deadline)
                sent += min(step, count - sent)
                place += 1
            said = json.loads(wire.next_event(deadline).payload)  # type: ignore[attr-defined]  # only messages come
            if said.get("type") == "ack":
                acked, flow = said["seq"], said["msgs"]
            elif "count" in said:
                assert said["count"] == count, said
                return time.perf_counter() - begun
            else:
                raise AssertionError(said)


def raw_acks(url: str, count: int, size: int) -> float:
    """Messages with an id and an ack each, frames made before the clock starts, 4,000 under way."""
    header = b"NATS/1.0\r\nNats-Msg-Id: %s.%d\r\n\r\n"
    name, payload = secrets.token_hex(8).encode(), b"x" * size
    with BulkConnection(url) as bulk:
        pieces = []
        step = max(1, min(500, 262_144 // size))
        for start in range(0, count, step):
            frames = []
            for number in range(start, min(count, start + step)):
                head = header % (name, number)
                line = b"HPUB bench.a drain.%d %d %d\r\n" % (number, len(head), len(head) + size)
                frames.append(line + head + payload + b"\r\n")
            pieces.append(b"".join(frames))
        wire, deadline = bulk.wire, Deadline(FOREVER)
        wire.send(b"SUB drain.* 99\r\n", deadline)
        begun = time.perf_counter()
        sent = acked = 0
        while acked < count:
            while pieces and sent - acked < 4000:
                wire.send(pieces.pop(0), deadline)
                sent = min(count, sent + step)
            wire.receive(deadline)
            acked += wire.parser.buffer.count(b"\r\n{", wire.parser.start, wire.parser.end)
            # A piece of a frame may be left; a line break before a brace is never cut in two for long.
            keep = 3 if acked < count else 0
            wire.parser.take(max(wire.parser.start, wire.parser.end - keep))
        return time.perf_counter() - begun


async def nats_async(url: str, count: int, size: int) -> float:
    """nats-py, `publish_async` with its default window."""
    import nats

    nc = await nats.connect(url)
    jetstream = nc.jetstream(publish_async_max_pending=4000)
    payload = b"x" * size
    begun = time.perf_counter()
    for _ in range(count):
        await jetstream.publish_async("bench.a", payload)
    await jetstream.publish_async_completed()
    taken = time.perf_counter() - begun
    await nc.close()
    return taken


SIDES: dict[str, Callable[..., object]] = {
    "raw_pull": raw_pull,
    "raw_push": raw_push,
    "raw_push_flow": raw_push_flow,
    "raw_direct": raw_direct,
    "read": read,
    "nats_pull": nats_pull,
    "nats_ordered": nats_ordered,
    "natsrpy_pull": natsrpy_pull,
    "raw_fast": raw_fast,
    "raw_acks": raw_acks,
    "publish_fast": lambda *given: publish("fast", *given),
    "publish_acks": lambda *given: publish("acks", *given),
    "publish_atomic": lambda *given: publish("atomic", *given),
    "publish_atomic_bare": lambda *given: publish("atomic", *given, ids=False),
    "nats_async": nats_async,
}


def main() -> None:
    """Run one side: name, address, messages, payload bytes."""
    name, url, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    try:
        found = SIDES[name](url, count, size)
    except DisconnectedError:
        if name not in ("raw_push", "raw_push_flow", "raw_direct"):
            raise
        found = math.inf  # nothing bounds what these ask for, and the server cuts off whoever is 64 MB behind
    taken = asyncio.run(found) if asyncio.iscoroutine(found) else found
    print(json.dumps({"seconds": taken, "rate": count / float(taken)}))  # type: ignore[arg-type]  # a float by now


if __name__ == "__main__":
    main()
