"""Write the corpus anew, from real traffic of a real server and from the golden files: `python -m tests.fuzz.capture`.

A relay records what the server sends on each connection; a subscription to everything records each message; what other
programs write and browsers send is in `capture_files`. With names of targets, only their files are written. What was
found by fuzzing (files whose names begin with `found-`) stays.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock
from penstock.buckets import KeyValue, ObjectStore
from penstock.bus import Bus, Request, Response
from penstock.channels import Client, Gateway
from penstock.chunks import Archive, Publisher
from penstock.errors import PenstockError
from penstock.jetstream import Publisher as StreamPublisher
from penstock.jetstream import assets
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.deadletter import DeadLetters
from penstock.jetstream.letter import LETTERS
from penstock.jetstream.snapshot import backup
from penstock.model import Consumer, Stream
from penstock.wire.bulk import BulkConnection
from tests.fuzz.capture_files import from_browser, from_programs, from_spark
from tests.fuzz.capture_servers import from_servers
from tests.fuzz.capture_tables import from_files
from tests.fuzz.recorder import Recorder
from tests.fuzz.target import CORPUS
from tests.fuzz.words import WORDS

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
_SID = re.compile(rb"(H?MSG [^ \r\n]+) [0-9]+ ")
_MOST = 4096  # bytes of a file of the corpus, and files of a kind below
_FILES = 8
_only: set[str] = set()  # the targets whose files are written; all, if it is empty


class Tap:
    """Every message that the server carries."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, bytes, bytes]] = []

    async def start(self, nc: Any) -> None:
        """Listen to everything."""
        await nc.subscribe(">", cb=self._hear)
        await nc.flush()

    async def _hear(self, message: Any) -> None:
        block = message.header_block or b""
        self.messages.append((message.subject, message.reply, block, bytes(message.data)))

    def on(self, pattern: str) -> Iterable[bytes]:
        """Give header block and payload of the messages whose subject fits."""
        return [block + data for subject, _, block, data in self.messages if re.search(pattern, subject)]


def write(name: str, contents: Iterable[bytes], *, whole: bool = False, kind: str = "real") -> None:
    """Write some of the contents that differ, the shortest ones first, as the corpus of a target."""
    if _only and name not in _only:
        return
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{kind}-*"):
        old.unlink()
    chosen = sorted(
        {bytes(item) if whole else bytes(item[:_MOST]) for item in contents}, key=lambda item: (len(item), item)
    )
    step = -(-len(chosen) // _FILES) or 1
    for number, content in enumerate(chosen[::step][:_FILES]):
        (folder / f"{kind}-{number}").write_bytes(content)


async def traffic(url: str, port: int, tap: Tap, folder: Path) -> None:
    """Use every room once."""
    options = penstock.ConnectionOptions(re.sub(r":\d+$", f":{port}", url))
    nc = await penstock.connect(options)
    await tap.start(nc)
    await nc.subscribe("core.*", cb=_quiet)
    await nc.publish("core.a", b"hello", headers={"A": "1", "B": "é"})
    await nc.publish("core.b", b"", reply="core.c")
    await nc.publish("core.b", bytes(range(256)))
    with suppress(PenstockError):
        await nc.request("nobody.there", b"?", timeout=1)
    for name, wished in {
        "S": Stream(name="S", subjects=["s.>"], allow_direct=True),
        "Q": Stream(name="Q", subjects=["q.>"], retention="workqueue", allow_direct=True),
    }.items():
        await assets.add_stream(nc, wished)
        async with StreamPublisher(nc, name) as publisher:
            for number in range(6):
                headers = {"X": "y"} if number % 2 else None
                await publisher.publish(f"{name.lower()}.{number}", b"row %d" % number, headers=headers)
    await asyncio.to_thread(_bulk, options)
    keys = await KeyValue.create_bucket(nc, "B")
    await keys.put("key", b"value")
    await keys.delete("key")
    await _dead_letter(nc)
    objects = await ObjectStore.create_bucket(nc, "B")
    await objects.put("name", b"x" * 300_000)
    await nc.publish("chunks.a", b"")
    await Publisher(nc, chunk_size=2000, digest=True).publish("chunks.core", b"c" * 5000)
    await Archive.create(nc, "CHUNKS", "chunks.stored")
    await Publisher.persistent(nc, "CHUNKS", 2000).publish("chunks.stored", b"d" * 5000)
    await _bus(nc, url)
    await _channels(nc, url)
    await backup(nc, "S", folder / "backup")
    await nc.flush()
    await nc.close()


async def _dead_letter(nc: Any) -> None:
    await assets.add_consumer(nc, "S", Consumer(durable="worker"))
    dead = DeadLetters(nc, "S")
    await dead.ensure()
    async with Deliveries(nc, "S", "worker", limit=2) as deliveries:
        async for delivery in deliveries:
            await dead.put(delivery, "there is no paper")
            await delivery.ack()


async def _quiet(message: Any) -> None:
    pass


def _bulk(options: Any) -> None:
    bulk = BulkConnection(options)
    for stream in ("S", "Q"):
        assert sum(batch.num_rows for batch in bulk.read(stream)) == 6
    assert sum(batch.num_rows for batch in bulk.read("S", subjects=["s.0", "s.1", "s.2"])) == 3  # by a consumer
    bulk.close()


async def _bus(nc: Any, url: str) -> None:
    serving = await penstock.connect(url)

    async def handler(request: Any, sender: Any) -> None:
        if request.resource == "ping":
            await sender.respond(Response(data=b'{"pong":1}', content_type="application/json"))
            return
        async with sender.sections() as out:
            out.array("orders", path=["shop", "1"])
            for number in range(3):
                await out.send({"number": number})
            out.map("named")
            await out.send("x" * 50, name="one")
            await out.object("total", 3)

    async with Bus(serving, {"shop": 1}) as bus, bus.serve("shop", handler):
        for window in (0, 64):
            async with Bus(nc, {"shop": 1}, window=window) as asking:
                for resource in ("ping", "orders"):
                    asked = Request(queue="shop", resource=resource, query={"a": ["b"]}, body=b"{}")
                    reply = await asking.request(asked)
                    if resource == "orders":
                        async for section in reply.sections():
                            assert [element async for element in section]
    await serving.close()


async def _channels(nc: Any, url: str) -> None:
    async with Gateway(url, cluster_id="test-cluster"), Client(url, client_id="me") as client:
        got = asyncio.Event()

        async def hear(message: Any) -> None:
            got.set()

        await client.subscribe("orders", hear, durable="d")
        for number in range(4):
            await client.publish("orders", b"order %d" % number)
        await asyncio.wait_for(got.wait(), 30)
    await nc.flush()


def from_golden() -> None:
    """Take what the golden files hold."""
    write("markers", [bytes.fromhex(text) for text in json.loads((GOLDEN / "sink_markers.json").read_text()).values()])
    write("offsets", [path.read_bytes() for path in GOLDEN.glob("spark_offset*.json")])
    write("assembly", [(GOLDEN / "spark_assembly_v1.bin").read_bytes()])
    write("archive", [path.read_bytes() for path in (GOLDEN / "archive_v1").glob("*.json")])
    state = json.loads((GOLDEN / "pipeline_state.json").read_text())
    write("pipeline-files", [(item if isinstance(item, str) else json.dumps(item)).encode() for item in state.values()])
    write("replays", [(item if isinstance(item, str) else json.dumps(item)).encode() for item in state.values()])
    old = [path.read_bytes() for path in (GOLDEN / "nats_streaming_store").rglob("*.dat")]
    write("channels-store", old)
    for version, archive in (("server_2_10", "backup-tar"), ("server_2_15", "backup")):
        place = GOLDEN / "backups" / version
        packed = next(path for path in place.iterdir() if path.suffix == ".s2")
        write(archive, [(place / "backup.json").read_bytes() + b"\n\n" + packed.read_bytes()], whole=True)
        write("s2", [packed.read_bytes()], whole=True)
    write("backup-meta", [path.read_bytes() for path in (GOLDEN / "backups").glob("*/backup.json")])
    index, blocks = [], []
    for path in sorted((GOLDEN / "stores").glob("*.tar.xz")):
        with tarfile.open(path) as packed_store:
            for member in packed_store.getmembers():
                if member.isfile() and member.name.endswith((".idx", "index.db")):
                    content = packed_store.extractfile(member)
                    (blocks if member.name.endswith(".idx") else index).append(content.read() if content else b"")
    write("block-index", blocks)
    write("index", index)


def from_store(store: Path) -> None:
    """Take the files that a server wrote."""
    streams = store / "jetstream" / "$G" / "streams"
    write("records", [path.read_bytes() for path in streams.glob("S/msgs/*.blk")])
    folder = streams / "S"
    parts = [folder / "meta.inf", folder / "msgs" / "index.db", *sorted((folder / "msgs").glob("*.blk"))[:2]]
    found = [path.read_bytes() if path.exists() else b"" for path in parts]
    broken = [found[0], b"", found[2][:-5]]  # as after a crash: no index, and a record is cut off
    write("store", [_in_parts(found), _in_parts(broken)], whole=True)
    consumers = [path.read_bytes() for path in streams.glob("*/obs/*/o.dat")]
    write("server-records", [*consumers, found[1]])


def _in_parts(parts: list[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def packets(contents: Iterable[bytes]) -> bytes:
    """Put packets behind their lengths."""
    return b"".join(len(item).to_bytes(2, "little") + item for item in contents if len(item) < 65536)


def from_traffic(recorder: Recorder, tap: Tap) -> None:
    """Take what the server sent, and each message by its subject."""
    heard = [_SID.sub(rb"\1 7 ", bytes(kept)) for kept in recorder.heard]
    behind = [kept[kept.find(b"PONG\r\n") :] for kept in heard]
    frames = [part for kept in behind for part in _pieces(kept)]
    write("wire", frames)
    write("wire-small", frames)
    write("session", [kept[:_MOST] for kept in heard])
    blocks = [block for _, _, block, _ in tap.messages if block]
    write("headers", blocks)
    write("outbox", tap.on("^core|^s"))
    told = [block + data for subject, reply, block, data in tap.messages if subject.startswith("_INBOX")]
    answers = [content for content in told if b'"type":"io.nats' in content]
    write("stored-message", [content for content in answers if b'"message":' in content])
    write("info", [content for content in answers if b'"message":' not in content])
    acks = [content for content in told if b'"stream":' in content[:60]]
    write("answers", [*acks, *[content for content in told if content.startswith(b"NATS/1.0 ")], *answers[:3]])
    fast = b'{"type":"ack","seq":5,"msgs":10}\n{"type":"gap","last_seq":1,"seq":3}\n{"stream":"S","seq":9,"count":9}'
    write("fast", [fast, b"\n".join(acks[:3])])
    ends = [b"NATS/1.0 404 Message Not Found\r\n\r\n", b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n"]
    write("direct", [*ends, *(content for content in told if b"Nats-Stream:" in content)])
    replies = [found for kept in heard for found in re.findall(rb"\$JS\.ACK\.[^ \r\n]+", kept)]
    write("ordered", [b"\n".join(replies[:8]), b"NATS/1.0 100 Idle Heartbeat|Nats-Last-Consumer: 3||"])
    write("deliveries", replies)
    statuses = [b"NATS/1.0 408 Request Timeout", b"NATS/1.0 409 Consumer Deleted", b"NATS/1.0 404 No Messages"]
    write("pulls", [b"\n".join(statuses)])
    plain = b"".join(
        b"MSG _INBOX.a.b.%d 7 %d\r\n%s\r\n" % (number, len(ack), ack)
        for number, ack in enumerate(b'{"stream":"ORDERS","seq":%d}' % (number + 3) for number in range(9))
    )
    write("plain-acks", [plain])
    rows = b"\n".join(b"s.%d\t%s\tA:1\tB:x,y" % (number, b"row") for number in range(3)) + b"\na.b\tx\tNats-Msg-Id:z"
    sent = [(s, data, block) for s, _, block, data in tap.messages if not re.search(rb"[\t\n]", data)]
    write("frames", [rows, *(b"\n".join(_row(*item) for item in sent[start::7][:20]) for start in range(6))])
    write("console-payload", tap.on("^core|^[sq]|^_STAN|^KV"))
    write("chunks", [b"".join(tap.on("^chunks.core")), b"".join(tap.on("^chunks.stored"))], whole=True)
    bus(tap)
    channels(tap)
    write("objects", [content.partition(b"\r\n\r\n")[2] for content in tap.on(r"^\$O\.B\.M")])
    write("object-names", [b"bmFtZQ==", b"SHA-256=ypeBEsobvcr6wjGzmiPcTaeG7_gUfE5yuYB3ha_uSLs="])
    write("keys", [content for content in told if b"Nats-Subject: $KV" in content or b"Nats-Stream:" in content])
    write("dead-letter", tap.on(f"^{LETTERS}"))
    write("events", tap.on(r"^\$JS\.EVENT"))


def _row(subject: str, data: bytes, block: bytes) -> bytes:
    """Write a message as the target of frames reads it."""
    lines = [line.replace(b": ", b":", 1) for line in block.split(b"\r\n")[1:] if b":" in line]
    return b"\t".join([subject.encode(), data, *lines])


def _pieces(kept: bytes) -> list[bytes]:
    """Cut what a server sent into pieces that begin with a frame."""
    starts = [found.start() for found in re.finditer(rb"(?:^|(?<=\r\n))(?:H?MSG|PING|PONG|INFO)", kept)]
    return [kept[start : start + 300 + start % 1200] for start in starts[::3]]


def bus(tap: Tap) -> None:
    """Take the requests and the packets of the bus."""
    asked = [block + data for _, _, block, data in tap.messages if b'"Resource"' in data]
    write("bus-request", asked)
    inboxes: dict[str, list[bytes]] = {}
    for subject, _, _, data in tap.messages:
        if data[:1] in (bytes([number]) for number in range(10)) and "INBOX" in subject:
            inboxes.setdefault(subject, []).append(data)
    replies = [packets(found) for found in inboxes.values() if len(found) > 1 or found[0][:1] != b"\x00"]
    write("bus-reply", replies)
    write("bus-window", [packets(found) for found in inboxes.values() if any(item[:1] == b"\x07" for item in found)])


def channels(tap: Tap) -> None:
    """Take the messages of channels: publishes, requests, deliveries and acks, and what the gateway keeps."""
    sent = [data for subject, _, block, data in tap.messages if "STAN" in subject and data and not block]
    write("channels", sent)
    write("channels-publishes", [packets(tap.on(r"^_STAN\.pub")[:4])])
    write("channels-acks", [b"\x01", b"\x96\x01", b"\xff\xff\xff\xff\x0f"])
    state = [
        data for _, _, _, data in tap.messages if data.startswith(b'{"v":') and b'"channel"' in data + b'"channel"'
    ]
    write("channels-state", [b"\n".join(_in_turn(state)), *state])
    stored = [block + data for _, _, block, data in tap.messages if b"Penstock-Time" in block]
    write("channels-answers", [b"".join(stored[:4]), *stored])


def _in_turn(state: list[bytes]) -> list[bytes]:
    kinds = {"client": b'"heartbeat"', "sub": b'"inbox"', "pos": b'"pending"'}
    return [next((item for item in state if word in item), b"") for word in kinds.values()]


async def main() -> None:
    """Write the corpus."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        with penstock.Server(store=Path(name) / "store") as server:
            port = int(server.url.rpartition(":")[2])
            recorder, tap = Recorder(port), Tap()
            await traffic(server.url, await recorder.start(), tap, Path(name))
            recorder.close()
        for target, contents in WORDS.items():
            write(target, contents, kind="hand")
        from_golden()
        from_traffic(recorder, tap)
        from_store(next(path.parent for path in Path(name, "store").rglob("jetstream")))
        packed = next(Path(name, "backup").glob("*.s2")).read_bytes()
        write("entries", [_unpacked(packed)])
        await from_programs(write, Path(name))
        await from_servers(write)
        await asyncio.to_thread(from_files, write)
        await from_browser(write)
        await asyncio.to_thread(from_spark, write, Path(name))
    print(f"{sum(1 for _ in CORPUS.rglob('*') if _.is_file())} files in {CORPUS}")


def _unpacked(packed: bytes) -> bytes:
    from penstock.store.s2 import decompress

    return bytes(decompress(bytearray(packed)))[8:]


if __name__ == "__main__":
    _only |= set(sys.argv[1:])
    asyncio.run(main())
