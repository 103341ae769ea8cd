"""`penstock channels old-server`: what starts the old server starts a gateway, and its clients find the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.channels import Client
from penstock.connection import connect
from penstock.errors import LoginError
from penstock.options import ConnectionOptions
from tests.live.command import Command
from tests.live.connecting import free_port
from tests.live.inprocess import invoke
from tests.live.stan import Got
from tests.old_store import GOLDEN
from tests.support import Authority

OLD = shutil.which("nats-streaming-server")


@asynccontextmanager
async def gateway(tmp_path: Path, *flags: str):
    """Run the command with these flags of the old server until the block ends; it must end well."""
    with Command(tmp_path).running("channels", "old-server", "--", *flags) as running:
        await asyncio.to_thread(running.wait_for, "Serving the cluster", 60)
        yield running
        assert await asyncio.to_thread(running.interrupt, signal.SIGTERM) == 0, running.lines


async def page(port: int, path: str) -> dict:
    def read() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.read()

    return json.loads(await asyncio.to_thread(read))


async def test_flags_start_it(tmp_path):
    """Port, login, store, limits and monitoring are as the flags say; messages and durables outlive a restart."""
    port, pages = free_port(), free_port()
    flags = (
        *("-p", str(port), "-a", "127.0.0.1", "-m", str(pages), "-store", "FILE", "-dir", str(tmp_path / "new")),
        *("-cid", "mine", "-user", "me", "-pass", "s3cret", "-mm", "7", "-P", str(tmp_path / "pid"), "-SD"),
    )
    to = ConnectionOptions(f"nats://127.0.0.1:{port}", user="me", password="s3cret")
    async with gateway(tmp_path, *flags) as running:
        assert "-SD has no effect: Penstock logs to standard error." in running.lines
        assert not any("s3cret" in line for line in running.lines)
        assert (tmp_path / "pid").read_text() == str(running.process.pid)
        running.process.send_signal(signal.SIGHUP)  # a reload, once
        await asyncio.to_thread(running.wait_for, "SIGHUP: the configuration is read at the start.")
        async with Client(to, cluster_id="mine", client_id="me") as client:
            for number in range(1, 11):
                await client.publish("foo", b"%d" % number)
            await client.publish("large", b"x" * 1_048_300)  # with its envelope as large as the old server took
            sub = await client.subscribe("foo", durable="d", start="First", manual_acks=True)
            (await sub.next(20)).ack()
        assert (await page(pages, "/streaming/storez"))["limits"]["max_msgs"] == 7
        assert (await page(pages, "/streaming/serverz"))["state"] == "STANDALONE"
        assert "server_id" in await page(pages, "/varz")
        assert (await page(pages, "/healthz"))["status"] == "ok"
        with pytest.raises(LoginError):
            await connect(f"nats://127.0.0.1:{port}", reconnect=False)
    assert not (tmp_path / "pid").exists()
    async with gateway(tmp_path, *flags), Client(to, cluster_id="mine", client_id="me") as client:
        got = Got()
        await client.subscribe("foo", got, durable="d")
        await got.count(6)
        assert got.sequences == [*range(5, 11)]


async def test_the_file_of_its_documentation_starts_it(tmp_path):
    """A file with TLS for both servers, as the old documentation shows it, starts a gateway that asks for it."""
    authority = Authority(tmp_path / "tls")
    pair = authority.issue("server", "localhost", "127.0.0.1")
    port = free_port()
    (tmp_path / "limits.conf").write_text('store_limits: { max_msgs: 11, channels: { "foo.*": { max_msgs: 2 } } }\n')
    (tmp_path / "old.conf").write_text(f"""
# Some NATS Server TLS Configuration
listen: localhost:{port}
tls: {{
    cert_file: "{pair.cert}"
    key_file: "{pair.key}"
    ca_file: "{authority.ca}"
    verify: true
    timeout: 2
}}

# NATS Streaming Configuration
streaming: {{
    cluster_id: my_cluster
    include "limits.conf"

    tls: {{
        client_cert: "{pair.cert}"
        client_key: "{pair.key}"
        client_ca: "{authority.ca}"
    }}
}}
""")
    files = {"tls_ca": str(authority.ca), "tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    async with gateway(tmp_path, "-sc", str(tmp_path / "old.conf")):
        to = ConnectionOptions(f"tls://localhost:{port}", **files)
        async with Client(to, cluster_id="my_cluster", client_id="me") as client:
            for number in range(5):
                await client.publish("foo.a", b"%d" % number)
            got = Got()
            await client.subscribe("foo.a", got, start="First")
            await got.count(2)
            assert got.sequences == [4, 5]


async def test_users_of_a_file(tmp_path, server):
    """Where a file lists users, the gateway logs in with the one that its own block names; wrong names are refused."""
    port = free_port()
    text = f"""
listen: 127.0.0.1:{port}
authorization {{
    users = [
      {{user: alice, password: foo}}
      {{user: bob,   password: bar}}
    ]
}}
streaming {{ id: c, username: alice, password: %s }}
"""
    path = tmp_path / "users.conf"
    path.write_text(text % "foo")
    async with gateway(tmp_path, "-c", str(path)):
        to = ConnectionOptions(f"nats://127.0.0.1:{port}", user="bob", password="bar")
        async with Client(to, cluster_id="c", client_id="me") as client:
            await client.publish("foo", b"x")
    accounts = "accounts { A { users = [{user: alice, password: foo}, {user: bob, password: bar}] }, B { users = [] } }"
    head, _, tail = (text % "foo").partition("authorization {")
    path.write_text(f"{head}{accounts}\n{tail[tail.index('streaming') :]}")
    async with gateway(tmp_path, "-c", str(path)) as running:
        assert "The account A keeps the channels: JetStream is on for it." in running.lines
        async with Client(to, cluster_id="c", client_id="me") as client:
            await client.publish("foo", b"x")
    path.write_text(text % "wrong")
    done = await asyncio.to_thread(Command(tmp_path), "channels", "old-server", "--", "-c", str(path))
    assert done.returncode == 1
    assert "login" in done.stderr.lower()
    assert "wrong" not in done.stderr


async def test_another_nats_server_and_the_old_name(tmp_path, server, unique):
    """With -ns it serves on a server that is there; a script of two lines gives it the old program's name."""
    script = tmp_path / "bin" / "nats-streaming-server"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock channels old-server -- "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    cluster = unique("old")
    process = await asyncio.create_subprocess_exec(
        *("nats-streaming-server", "-ns", server.url, "--cluster_id", cluster, "-store", "memory"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": f"{script.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
    )
    try:
        assert process.stderr is not None
        said = ""
        async with asyncio.timeout(60):
            while "Serving the cluster" not in said:
                line = await process.stderr.readline()
                assert line, said
                said += line.decode()
        assert "-store: no effect" in said
        async with Client(server.url, cluster_id=cluster, client_id="me") as client:
            sub = await client.subscribe("foo", start="First")
            await sub.unsubscribe()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-store", "FILE", "-dir", str(GOLDEN)), "migrate --from-store"),
        (("-routes", "nats://x:6222"), "-routes cannot be used here"),
        (("-clustered",), "-ns nats://a:4222"),
        (("-hbi", "0s"), "hb_interval"),
        (("-cid", "a.b"), "cluster_id"),
        (("-P", "/nowhere/pid"), "/nowhere/pid cannot be written"),
    ],
)
def test_what_cannot_be_is_refused(server, flags, words):
    """A wrong command line ends with status 2 and a sentence, and starts nothing."""
    done = invoke(server.url, "channels", "old-server", "--", *flags)
    assert (done.status, words in done.stderr) == (2, True), done.stderr


def test_what_it_says_of_itself(server):
    """-v tells the version, -h lists every flag and what becomes of it."""
    assert "as nats-streaming-server" in invoke(server.url, "channels", "old-server", "--", "-v").stdout
    listed = invoke(server.url, "channels", "old-server", "--", "-h").stdout
    for words in ("-cluster_id, -cid", "-sql_driver", "refused", "no effect"):
        assert words in listed


@pytest.mark.skipif(OLD is None, reason="nats-streaming-server is not installed")
async def test_limits_of_one_file_at_both_servers(tmp_path):
    """The real server and the gateway show the same limits for one file."""
    ports = [free_port() for _ in range(4)]
    path = tmp_path / "both.conf"
    path.write_text("""
host: 127.0.0.1
KEEP: "36h"
streaming {
  id = same; store = "memory"
  limits { mc 12, msu: 1k, max_count 13; max_bytes: 2kb, max_age: $KEEP
    max_inactivity: 1h30m }
}
""")
    process = await asyncio.create_subprocess_exec(
        *(OLD, "-c", str(path), "-p", str(ports[0]), "-m", str(ports[1])), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with gateway(tmp_path, "-c", str(path), "-p", str(ports[2]), "-m", str(ports[3])):
            ours, theirs = await page(ports[3], "/streaming/storez"), None
            async with asyncio.timeout(30):
                while theirs is None:
                    with contextlib.suppress(OSError):
                        theirs = await page(ports[1], "/streaming/storez")
        assert ours["limits"] == theirs["limits"]
    finally:
        process.terminate()
        await process.wait()


def test_the_distribution_installs_the_command_of_the_old_name(tmp_path):
    """Its wheel holds nothing but a script of that name, which understands the old flags."""
    folder = Path(__file__).parents[2] / "packages" / "streaming-server"
    source = shutil.copytree(folder, tmp_path / "source")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", ".", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert {path.name for path in tmp_path.iterdir() if path.suffix == ".py"} == set()
    done = subprocess.run(
        [sys.executable, tmp_path / "bin" / "nats-streaming-server", "-v"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("penstock ")
    wrong = subprocess.run(
        [sys.executable, tmp_path / "bin" / "nats-streaming-server", "-store", "TAPE"], capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert "The store TAPE cannot be used here." in wrong.stderr
