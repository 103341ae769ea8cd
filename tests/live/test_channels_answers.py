"""Odd requests are answered as by the last real server of NATS Streaming, but for what is listed here with its reason.

Its answers are golden data. If it is installed, it is asked, too; `python -m tests.live.test_channels_answers` writes
what it says.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.channels import Gateway, Limits
from penstock.channels.catalog import Catalog
from penstock.channels.limits import PAYLOAD
from penstock.channels.wire import CloseRequest, Ping, frame
from penstock.connection import api_request, connect
from penstock.errors import ChannelError, PenstockError
from penstock.server import Server
from tests.live.stan import Got, cluster_of, until
from tests.live.stan_probes import PROBES, Asking, ask_all

GOLDEN = Path(__file__).parent.parent / "golden" / "channels_answers.json"
CLUSTER = "test-cluster"
_SUBSCRIPTION = {"error": "stan: invalid subscription request"}
_CONNECTION = {"error": "stan: invalid connection request"}
_PUBLISH = {"error": "stan: invalid publish request"}
_UNSUBSCRIBE = {"error": "stan: invalid unsubscribe request"}

# What the gateway answers otherwise.
OTHERWISE: dict[str, Any] = {
    # The old server names its own folder.
    "publish to nul": {"guid": "g", **_PUBLISH},
    "subscribe to nul": {"error": "stan: invalid subject"},
    # Nothing could ever be sent there.
    "subscribe with inbox empty": _SUBSCRIPTION,
    # JetStream stores what is sent to a wildcard, in streams of others.
    "connect with heartbeats to star": _CONNECTION,
    "connect with heartbeats to gt": _CONNECTION,
    "subscribe with inbox star": _SUBSCRIPTION,
    "subscribe with inbox gt": _SUBSCRIPTION,
    # The old server takes these bytes for a message of its own.
    "bytes to publish: number for text": _PUBLISH,
    # Text is UTF-8 here; the old server did not look. Either refuses.
    "bytes to subscribe: no utf-8": _SUBSCRIPTION,
    "bytes to unsubscribe: no utf-8": _UNSUBSCRIBE,
    "bytes to close a subscription: no utf-8": _UNSUBSCRIBE,
    "bytes to close: no utf-8": {"error": "stan: invalid close request"},
}
# A publish that cannot be read is refused either way; the old server tells the guid, as far as it came.
WITHOUT_GUID = "requests with trailing bytes"


def installed() -> str | None:
    """Find the real server among the programs: ours may have its name."""
    for folder in os.get_exec_path():
        program = Path(folder) / "nats-streaming-server"
        if os.access(program, os.X_OK):
            asked = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
            if asked.stdout.startswith("nats-streaming-server version"):
                return str(program)
    return None


@contextmanager
def real_server(program: str) -> Iterator[str]:
    """Run the real server, and give its address."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        arguments = ("-a", "127.0.0.1", "-p", port, "-store", "file", "-dir", folder, "-mc", "0")
        process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


async def ask_real(url: str) -> dict[str, Any]:
    """Ask the real server everything, as soon as it serves."""
    async with asyncio.timeout(60):
        while True:
            try:
                connection = await connect(url)
            except PenstockError:
                await asyncio.sleep(0.1)
                continue
            answer = await Asking(connection, CLUSTER, "first").connect(timeout=1.0)
            await connection.close()
            if answer is not None:
                return await ask_all(_making(url))


def _making(url: str) -> Any:
    async def make(name: str) -> Asking:
        return Asking(await connect(url), CLUSTER, name)

    return make


async def test_odd_requests_are_answered_as_ever():
    """The gateway answers every odd request as the real server did, or as stated."""
    expected = json.loads(GOLDEN.read_text()) | OTHERWISE
    with Server(sync="2m", max_payload=PAYLOAD) as server:
        async with Gateway(server.url, cluster_id=CLUSTER, limits=Limits(channels=0)):
            answers = await ask_all(_making(server.url), at_once=16)
    expected[WITHOUT_GUID] = [
        {"error": answer["error"]} if "guid" in answer and "error" in answer else answer
        for answer in expected[WITHOUT_GUID]
    ]
    assert set(expected) == set(PROBES)
    differing = {name: (answers[name], expected[name]) for name in PROBES if answers[name] != expected[name]}
    assert not differing


async def test_the_real_server_answers_as_noted():
    """What we take for the answers of the real server is what it says, if it is here to be asked."""
    program = installed()
    if program is None:
        pytest.skip("nats-streaming-server is not installed")
    with real_server(program) as url:
        assert await ask_real(url) == json.loads(GOLDEN.read_text())


async def test_odd_names_over_a_restart(server, unique):
    """A channel with a long name, or one that begins as subjects of the server do, is there after a restart."""
    odd = ["$SYS.a", "$JS.API.INFO", "_INBOX.x", "y" * 255, "é" * 300]
    name = unique("c")
    async with cluster_of(server.url, name) as stan:
        for served in range(2):
            async with Gateway(server.url, cluster_id=name):
                client = await stan.client(f"c{served}")
                for channel in odd:
                    await client.subscribe(channel, got := Got(), start="First")
                    await client.publish(channel, b"x")
                    await got.count(served + 1)
                    assert got.sequences == list(range(1, served + 2))
                await client.close()
        async with Catalog(server.url, name) as catalog:
            assert {item.name for item in await catalog.channels()} == set(odd)


async def test_nobody_asks_jetstream_in_our_name(stan):
    """Where a client has its heartbeats, messages and answers sent, nothing is asked for with the gateway's rights."""
    await stan.serve()
    raw = await stan.raw()
    victim = f"$JS.API.STREAM.DELETE.{stan.stream('foo')}"
    raw.heartbeat_inbox, inbox = victim, raw.heartbeat_inbox
    assert (await raw.connect()).error == "stan: invalid connection request"
    raw.heartbeat_inbox = inbox
    assert not (await raw.connect()).error
    assert not (await raw.publish("foo")).error
    for where in (victim, f"{stan.cluster}.foo"):
        answer = await raw.subscribe("bar", inbox=where)
        assert answer.error == "stan: invalid subscription request", where
    ping = Ping(connID=raw.conn_id).SerializeToString()
    raw.connection.post(frame(f"_STAN.discover.{stan.cluster}.pings".encode(), ping, victim.encode()))
    close = CloseRequest(clientID=raw.client_id).SerializeToString()
    raw.connection.post(frame(f"_STAN.close.{stan.cluster}".encode(), close, victim.encode()))
    await until(lambda: not stan.gateways[0].service.clients.by_id)
    info = await api_request(raw.connection, f"STREAM.INFO.{stan.stream('foo')}")
    assert info["state"]["messages"] == 1
    await raw.connection.close()  # it answers what it takes for heartbeats: the deletion of the stream, afterwards


async def test_a_server_that_takes_less_is_told(server, unique, caplog):
    """A gateway says at its start how large a message may be, if the server takes less than the old one did."""
    async with cluster_of(server.url, unique("c")) as stan:
        await stan.serve()
        assert "messages of more than 1048176 bytes are refused" in caplog.text
        client = await stan.client()
        with pytest.raises(ChannelError, match="no room for its headers"):
            await client.publish("foo", b"x" * 1_048_300)


def _write() -> None:
    program = installed()
    assert program is not None, "nats-streaming-server is not installed"
    with real_server(program) as url:
        answers = asyncio.run(ask_real(url))
    GOLDEN.write_text(json.dumps(answers, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    _write()
