"""What servers say of themselves, and what they and other programs say when something is refused, for the corpus."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import penstock
from penstock.channels import Client, Gateway
from penstock.errors import PenstockError
from penstock.jetstream import assets
from penstock.jetstream.consume import Deliveries
from penstock.jetstream.deadletter import DeadLetters
from penstock.model import Consumer, Stream
from tests.support import eventually

__all__ = ["from_servers"]

Write = Callable[..., None]
_USERS = "SYS { users: [{user: sys, password: p}] }, APP { jetstream: enabled, users: [{user: app, password: p}] }"
_KINDS: dict[str, dict[str, Any]] = {
    "VARZ": {},
    "CONNZ": {"subscriptions": True, "auth": True},
    "JSZ": {"accounts": True, "streams": True, "consumer": True, "config": True},
    "ROUTEZ": {},
    "GATEWAYZ": {},
    "LEAFZ": {},
    "ACCOUNTZ": {"account": "APP"},
    "HEALTHZ": {},
}
_TOLD = ("max_deliver", "terminated", "nak", "consumer_ack", "stream_action")
_SAID = (
    b"CONNECT {}\r\nPING\r\n",  # no login
    b'CONNECT {"user":"app","pass":"p"}\r\nSUB bad..subject 1\r\nPING\r\n',
    b'CONNECT {"user":"app","pass":"p"}\r\nNONSENSE\r\n',
    b'CONNECT {"user":"app","pass":"p"}\r\nPUB a 99999999\r\n',
    b'CONNECT {"user":"few","pass":"p"}\r\nPUB a.b 1\r\nx\r\nSUB c.> 1\r\nSUB a.* 1\r\nPING\r\n',
    b'CONNECT {"user":"app","pass":"p","protocol":"x"}\r\nPING\r\n',
)


async def from_servers(write: Write) -> None:
    """Take answers of the system account, of accounts and of lists, advisories, refusals and requests for pages."""
    config = f"accounts {{ {_USERS} }}\nsystem_account: SYS"
    with penstock.Server(nodes=3, auth=False, config=config, sync="2m") as server:
        options = penstock.ConnectionOptions(server.url, user="app", password="p")  # of this moment
        async with await penstock.connect(options) as nc:
            told = await _advisories(nc)
            about = [(await nc.request(name, b"{}")).data for name in ("$SYS.REQ.USER.INFO", "$JS.API.INFO")]
            about += await _all(nc, "$SYS.REQ.ACCOUNT.PING.STATZ", {}, 3)
            names = ("INFO", "STREAM.LIST", "CONSUMER.LIST.S", "STREAM.INFO.S")
            listed = [(await nc.request(f"$JS.API.{name}", b"")).data for name in names]
            async with await penstock.connect(options.replace(user="sys")) as system:
                found = {"PING": await _all(system, "$SYS.REQ.SERVER.PING", {}, 3)}
                for kind, body in _KINDS.items():
                    found[kind] = await _all(system, f"$SYS.REQ.SERVER.PING.{kind}", body, 3)
    short = [item for kind in ("GATEWAYZ", "LEAFZ", "HEALTHZ") for item in found.pop(kind)]
    answers = [*(list(_small(kind, answers)) for kind, answers in found.items()), list(map(_one_line, short))]
    write("system", [_masked(b"\n\n".join(items)) for items in answers], whole=True)
    write("accounts", map(_masked, about), whole=True)
    write("advisories", told, whole=True)
    write("lists", [_masked(b"\n\n".join(map(_one_line, listed)))], whole=True)
    few = (
        'few { users: [{user: few, password: p, permissions: {publish: "x", subscribe: {allow: "a.>", deny: "a.*"}}}] }'
    )
    with penstock.Server(auth=False, config=f"accounts {{ {_USERS}, {few} }}", sync="2m") as server:
        heard = [await _said(server.nodes[0].address, said) for said in _SAID]
    write("complaints", [found for text in heard for found in re.findall(rb"-ERR '([^\r]*)'\r\n", text)])
    write("monitoring", [await _asked(*words) for words in _PAGES])
    await _gateway(write)


def _one_line(answer: bytes) -> bytes:
    return json.dumps(json.loads(answer)).encode()


def _small(kind: str, answers: list[bytes]) -> Iterable[bytes]:
    """Give all answers of those that are short, and one of the others."""
    return map(_one_line, answers[:1] if kind in ("VARZ", "CONNZ", "JSZ") else answers)


def _masked(content: bytes) -> bytes:
    """Put the same words in the place of folders and addresses of this machine."""
    return re.sub(rb'"/(?:home|root|tmp|work)[^"]*"', b'"/srv/nats"', content)


async def _all(nc: Any, subject: str, body: object, count: int) -> list[bytes]:
    subscription = await nc.subscribe(inbox := nc.new_inbox())
    await nc.publish(subject, json.dumps(body).encode(), reply=inbox)
    found: list[bytes] = []
    with suppress(PenstockError):  # not every server has something to say
        while len(found) < count:
            found.append((await subscription.next_msg(1.0 if found else 10.0)).data)
    return found


async def _advisories(nc: Any) -> list[bytes]:
    """Let deliveries run out, refuse one, acknowledge one with a sample, and put a dead letter back."""
    heard: list[bytes] = []

    async def hear(message: Any) -> None:
        heard.append(message.data)

    await assets.add_stream(nc, Stream(name="S", subjects=["s.>"], num_replicas=3))
    few = Consumer(durable="c", ack_wait=0.2, max_deliver=1, sample_freq="100")
    await assets.add_consumer(nc, "S", few)
    await nc.subscribe(">", cb=hear)
    dead = DeadLetters(nc, "S")
    await dead.ensure()
    for number in range(4):
        await nc.jetstream().publish("s.1", b"%d" % number)
    async with Deliveries(nc, "S", "c") as deliveries:
        for act in ("ack", "term", "nak"):
            await getattr(await anext(deliveries), act)()
        await anext(deliveries)  # its only delivery, of which nobody tells what became
        await eventually(lambda: any(b"advisory.v1.max_deliver" in data for data in heard), "the advisory")
    await assets.add_consumer(nc, "S", Consumer(durable="d"))
    async with Deliveries(nc, "S", "d", limit=1) as deliveries:
        async for delivery in deliveries:
            await dead.put(delivery, "there is no paper")
    async for letter in dead.letters():
        await dead.redeliver(letter)
    notes = [data for data in heard if b'"after"' in data]
    kinds = {json.loads(data)["type"]: data for data in heard if b'"type":"io.nats.jetstream.' in data}
    return [data for kind, data in kinds.items() if kind.endswith(_TOLD)] + notes


async def _said(address: str, said: bytes) -> bytes:
    """Give what a server answers to these bytes."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    found = b""
    try:
        writer.write(said)
        async with asyncio.timeout(5):
            while (data := await reader.read(65536)) and b"PONG" not in found:
                found += data
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return found


_PAGES = (
    ("curl", "-s", "-m", "2", "{url}/streaming/channelsz?subs=1"),
    ("curl", "-s", "-m", "2", "-H", "Authorization: Bearer a-token", "{url}/metrics"),
    ("curl", "-s", "-m", "2", "-I", "{url}/varz"),
    ("python3", "-c", "import urllib.request as u; u.urlopen('{url}/metrics?x=1', timeout=2)"),
)


async def _asked(*words: str) -> bytes:
    """Give the request that a program makes."""
    kept = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            kept.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    line = [word.format(url=f"http://127.0.0.1:{port}") for word in words]
    await asyncio.to_thread(subprocess.run, line, capture_output=True, check=True)
    server.close()
    return re.sub(rb"(?<=127\.0\.0\.1:)[0-9]+", b"8222", bytes(kept))


async def _gateway(write: Write) -> None:
    """Take what a gateway remembers of a client, and its signs of life while it serves and at its end."""
    with penstock.Server(sync="2m") as server:
        async with Gateway(server.url, cluster_id="test-cluster"), Client(server.url, client_id="me") as client:

            async def hear(message: Any) -> None:
                pass

            await client.subscribe("orders", hear, durable="d")
            await client.publish("orders", b"1")
            first = await _kept(server.url)
        write("beat", [first, await _kept(server.url)])


async def _kept(url: str) -> bytes:
    async with await penstock.connect(url) as nc:
        stream = next(item.name for item in await assets.streams(nc) if "state" in item.name.lower())
        held = await assets.stream_subjects_held(nc, stream)
        lines = []
        for kind in (".client.", ".sub.", ".pos.", ".beat"):
            subject = next((name for name in held if kind in name), None)
            with suppress(PenstockError, TypeError):
                lines.append((await assets.get_message(nc, stream, last_for=subject)).data if subject else b"")
        return b"\n".join(lines)
