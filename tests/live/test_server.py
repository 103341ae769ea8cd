"""One real nats-server under our care: how it starts, whom it lets in, and that it always goes."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest

import penstock
from penstock.errors import (
    BinaryError,
    OptionError,
    ServerError,
    StartError,
    StoreInUseError,
    UnreachableError,
)
from penstock.server import Server, find_binary
from tests.support import Authority

Eventually = Callable[..., Any]


def lazy(**options: Any) -> Server:
    return Server(**{"sync": "2m", **options})


def exists(pid: int) -> bool:
    """Tell whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def run_folder(server: Server) -> Path:
    return server.nodes[0].log.parent


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a script in a Python of its own, which finds the same Penstock."""
    source = str(Path(penstock.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def parent() -> Iterator[Callable[..., tuple[subprocess.Popen[str], dict[str, Any]]]]:
    """Start a script that starts a server and prints, as JSON, what it started."""
    started = []

    def start(script: str, *arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        process = python(PREFACE + textwrap.dedent(script), *arguments)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        return process, json.loads(line)

    yield start
    for process in started:
        process.kill()
        process.communicate()


PREFACE = textwrap.dedent(
    """
    import json, os, sys, threading, time
    from penstock.server import Server

    def tell(server, **more):
        node = server.nodes[0]
        print(json.dumps({"pid": node.pid, "log": str(node.log), "url": server.url, **more}), flush=True)
    """
)


# -- starting and stopping


def test_it_starts_and_stops(eventually: Eventually) -> None:
    """A server runs inside `with`; after it the process, the folder and the port are free again."""
    with lazy() as server:
        node = server.nodes[0]
        pid, port, folder = node.pid, urlsplit(server.url).port, run_folder(server)
        assert server.running
        assert node.alive
        assert exists(pid)
        assert node.log.exists()
        assert server.monitor_urls == (node.monitor_url,)
    assert not server.running
    assert not exists(pid)
    assert not folder.exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    server.stop()


async def test_its_url_is_all_a_client_needs(server: Server, unique: Callable[..., str]) -> None:
    """Any NATS client connects with the URL alone, and JetStream is on."""
    name = unique()
    client = await nats.connect(server.url)
    try:
        await client.jetstream().add_stream(name=name, subjects=[name])
        ack = await client.jetstream().publish(name, b"hello")
        assert ack.seq == 1
        assert client.connected_server_version.major == int(server.version.split(".")[0])
    finally:
        await client.close()


def handshake(server: Server, connect: dict[str, Any]) -> bytes:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=5) as link:
        held = b""
        while b"\n" not in held:
            held += link.recv(65536)
        link.sendall(b"CONNECT " + json.dumps({"verbose": False, **connect}).encode() + b"\r\nPING\r\n")
        return link.recv(65536)


def test_the_token_is_required(server: Server) -> None:
    """A client without the token is refused, and one with a wrong token too; the right one is let in."""
    assert b"Authorization Violation" in handshake(server, {})
    assert b"Authorization Violation" in handshake(server, {"auth_token": "guess"})
    assert handshake(server, {"auth_token": server.token}).startswith(b"PONG")


def test_auth_can_be_turned_off() -> None:
    """With `auth=False` there is no token, and everybody on this machine is let in."""
    with lazy(auth=False) as server:
        assert server.token is None
        assert "@" not in server.url
        assert handshake(server, {}).startswith(b"PONG")


def test_a_token_can_be_chosen() -> None:
    """The token that was given is the one that the server asks for."""
    with lazy(token="chosen-by-us") as server:
        assert server.url.startswith("nats://chosen-by-us@127.0.0.1:")
        assert handshake(server, {"auth_token": "chosen-by-us"}).startswith(b"PONG")


def test_secrets_stay_secret(server: Server) -> None:
    """The token is in no repr, on no command line, and in no file that others can read."""
    node = server.nodes[0]
    assert server.token not in repr(server) + repr(node)
    command = Path(f"/proc/{node.pid}/cmdline").read_bytes()
    assert server.token.encode() not in command
    folder = run_folder(server)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "n1.conf").stat().st_mode) == 0o600
    assert server.token not in node.log.read_text()


def test_the_monitoring_port_shows_nothing_without_its_path(server: Server) -> None:
    """Whoever finds the port, as others of the machine can, finds no page there; each server has a path of its own."""
    address = urlsplit(server.monitor_urls[0])
    assert len(address.path) > 30
    for page in ("/", "/varz", "/connz", "/jsz", "/healthz", "/stacksz", "/debug/vars", f"{address.path[:-1]}/varz"):
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"http://{address.netloc}{page}", timeout=10)
        caught.value.close()
    with urllib.request.urlopen(f"{server.monitor_urls[0]}/varz", timeout=10) as page:
        assert page.status == 200
    with lazy() as other:
        assert urlsplit(other.monitor_urls[0]).path != address.path


def test_it_listens_on_loopback_only(server: Server) -> None:
    """Neither clients nor monitoring are reachable from outside this machine."""
    inodes = {
        os.readlink(entry)[8:-1]
        for entry in Path(f"/proc/{server.nodes[0].pid}/fd").iterdir()
        if os.readlink(entry).startswith("socket:[")
    }
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    addresses = {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
    assert addresses == {"0100007F"}


def test_fixed_port(eventually: Eventually) -> None:
    """A server listens on the port that it was given, and can take it again at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        with lazy(port=port) as server:
            assert urlsplit(server.url).port == port


def test_sync_is_always_unless_said_otherwise() -> None:
    """The server syncs before it acknowledges by default; a duration makes it lazy."""
    with Server() as server:
        assert server.nodes[0]._monitor("/jsz")[1]["config"]["sync_always"] is True
    with Server(sync="1d") as server:
        facts = server.nodes[0]._monitor("/jsz")[1]["config"]
        assert not facts.get("sync_always")
        assert facts["sync_interval"] == 86400 * 10**9


def test_extra_configuration() -> None:
    """Text in `config` reaches the server, and a jetstream block in it joins ours."""
    with lazy(max_payload=4096, config="max_connections: 7\njetstream { domain: hub }\nping_interval: 33s") as server:
        facts = server.nodes[0]._monitor("/varz")[1]
        assert facts["max_connections"] == 7
        assert facts["max_payload"] == 4096
        assert facts["ping_interval"] == 33 * 10**9
        assert facts["jetstream"]["config"]["domain"] == "hub"
        assert Path(facts["jetstream"]["config"]["store_dir"]).parent == server.nodes[0].store


# -- the store


async def test_a_store_survives(tmp_path: Path) -> None:
    """What was acknowledged is there again when another server opens the same folder, and so is the log."""
    folder = tmp_path / "deep" / "store"
    with Server(store=folder) as server:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="KEPT", subjects=["kept"])
        await client.jetstream().publish("kept", b"for ever")
        await client.close()
        assert server.nodes[0].store == folder
    with Server(store=folder) as server:
        client = await nats.connect(server.url)
        message = await client.jetstream().get_msg("KEPT", 1)
        await client.close()
    assert message.data == b"for ever"
    assert server.nodes[0].log.exists()


def test_a_store_in_use_is_refused(tmp_path: Path, parent: Any) -> None:
    """Two servers never share a store: the second one is told who holds it, here or in another process."""
    with lazy(store=tmp_path / "ours"):
        with pytest.raises(StoreInUseError, match="this process") as caught:
            lazy(store=tmp_path / "ours").start()
        assert caught.value.pid == os.getpid()
    process, _ = parent("server = Server(store=sys.argv[1]).start(); tell(server); time.sleep(60)", str(tmp_path / "s"))
    with pytest.raises(StoreInUseError, match=f"process {process.pid}") as caught:
        lazy(store=tmp_path / "s").start()
    assert caught.value.pid == process.pid


def test_a_store_outlives_a_crash_of_its_owner(tmp_path: Path, parent: Any) -> None:
    """A store whose owner was killed a moment ago is taken over, not refused."""
    process, _ = parent("server = Server(store=sys.argv[1]).start(); tell(server); time.sleep(60)", str(tmp_path))
    process.kill()
    process.wait()
    with lazy(store=tmp_path) as server:
        assert server.running


def test_a_store_keeps_its_shape(tmp_path: Path) -> None:
    """A folder that one node wrote is not opened by three, which would not see its streams; nor the other way."""
    with lazy(store=tmp_path / "one"):
        pass
    with pytest.raises(OptionError, match="nodes=1"):
        lazy(store=tmp_path / "one", nodes=3)
    (tmp_path / "three" / "n1").mkdir(parents=True)
    with pytest.raises(OptionError, match="nodes=3"):
        lazy(store=tmp_path / "three")


# -- it goes when we go


ENDINGS = {
    "killed": "server = Server().start(); tell(server); time.sleep(60)",
    "killed, started by a thread": """
        def work():
            global server
            server = Server().start()
        thread = threading.Thread(target=work); thread.start(); thread.join()
        tell(server); time.sleep(60)
    """,
    "killed, with a fork that holds every file open": """
        server = Server().start()
        import ctypes
        fork = ctypes.CDLL(None).fork()  # one that Python does not know of, so nothing is closed in it
        if fork == 0:
            os.close(1); os.close(2); time.sleep(60); os._exit(0)
        tell(server, fork=fork); time.sleep(60)
    """,
    "killed, three nodes, one of them paused": """
        server = Server(nodes=3).start(); server.nodes[0].pause(); tell(server); time.sleep(60)
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_kill_of_the_parent_leaves_nothing_behind(ending: str, parent: Any, eventually: Eventually) -> None:
    """After `kill -9` of the process that started it there is no nats-server and no temporary folder."""
    process, facts = parent(ENDINGS[ending])
    folder = Path(facts["log"]).parent
    pids = servers_of(folder)
    assert facts["pid"] in pids
    process.kill()
    process.wait()
    try:
        eventually(lambda: not any(exists(pid) for pid in pids))
        eventually(lambda: not folder.exists())
    finally:
        if "fork" in facts:
            os.kill(facts["fork"], signal.SIGKILL)


def servers_of(folder: Path) -> list[int]:
    """Find the processes whose command line names a file of this run folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{folder}/".encode() in command:
                found.append(int(entry.name))
    return found


def test_a_parent_that_forgets_to_stop(parent: Any) -> None:
    """A process that ends without `stop` takes its server along before it is gone."""
    process, facts = parent("server = Server().start(); tell(server)")
    assert process.wait(30) == 0
    assert not exists(facts["pid"])
    assert not Path(facts["log"]).parent.exists()
    assert process.stderr.read() == ""


def test_a_terminated_parent(parent: Any, eventually: Eventually) -> None:
    """SIGTERM, which runs no Python code of the parent, ends the server too."""
    process, facts = parent("server = Server().start(); tell(server); time.sleep(60)")
    process.terminate()
    process.wait()
    eventually(lambda: not exists(facts["pid"]) and not Path(facts["log"]).parent.exists())


def test_garbage_is_stopped() -> None:
    """A server that nobody refers to any more stops."""
    server = lazy().start()
    pid, folder = server.nodes[0].pid, run_folder(server)
    del server
    gc.collect()
    assert not exists(pid)
    assert not folder.exists()


def test_a_fork_cannot_stop_it(parent: Any) -> None:
    """A forked child neither ends the server of its parent nor may command it; the parent still can."""
    process, facts = parent(
        """
        server = Server().start()
        child = os.fork()
        if child == 0:
            server.stop()
            try:
                server.nodes[0].kill()
            except Exception as error:
                assert "fork" in str(error), error
                sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert server.running
        tell(server)
        server.stop()
        """
    )
    assert process.wait(30) == 0, process.stderr.read()
    assert not exists(facts["pid"])


def test_the_guard_killed(eventually: Eventually) -> None:
    """When the guard itself is killed the server dies with it, and `stop` still cleans up."""
    server = lazy().start()
    pid, folder = server.nodes[0].pid, run_folder(server)
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: not exists(pid))
    assert not server.running
    server.stop()
    assert not folder.exists()


def test_ctrl_c_is_ours_to_answer(server: Server) -> None:
    """The server is in no process group or session of ours, so Ctrl-C in a terminal does not reach it."""
    pid = server.nodes[0].pid
    assert os.getpgid(pid) != os.getpgid(0)
    assert os.getsid(pid) != os.getsid(0)


# -- faults of one node


async def test_a_killed_node_starts_again(tmp_path: Path) -> None:
    """A node that was killed comes back on the same ports, with everything that it had acknowledged."""
    with Server() as server:
        node = server.nodes[0]
        url, monitor, pid = node.url, node.monitor_url, node.pid
        client = await nats.connect(url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.jetstream().publish("s", b"kept")
        await client.close()
        node.kill()
        assert not node.alive
        assert node.pid is None
        assert not server.running
        node.kill()
        node.start()
        assert (node.url, node.monitor_url) == (url, monitor)
        assert node.pid != pid
        client = await nats.connect(url)
        assert (await client.jetstream().get_msg("S", 1)).data == b"kept"
        await client.close()
        node.stop()
        assert not node.alive
        assert "Server Exiting" in node.log.read_text()


def test_a_paused_node_answers_nothing() -> None:
    """A paused node accepts connections and stays silent; resumed, it goes on; paused, it can still be stopped."""
    with lazy() as server:
        node = server.nodes[0]
        node.pause()
        assert node.alive
        assert node.paused
        address = urlsplit(node.url)
        with socket.create_connection((address.hostname, address.port), timeout=0.3) as link:
            with pytest.raises(TimeoutError):
                link.recv(1)
            node.resume()
            assert not node.paused
            link.settimeout(10)
            assert link.recv(4) == b"INFO"
        node.pause()
        node.stop()
        assert not node.alive
        node.start()
        node.pause()


def test_many_at_once() -> None:
    """Servers can be started from several threads at the same time; each has ports and a store of its own."""
    servers = [lazy() for _ in range(4)]
    threads = [threading.Thread(target=server.start) for server in servers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({server.url for server in servers}) == 4
        assert all(server.running for server in servers)
    finally:
        for server in servers:
            server.stop()


# -- starts that fail


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary folders: other tests, which may run at the same time, make theirs elsewhere."""
    folder = tmp_path / "folders"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_garbage_configuration(folders: Path) -> None:
    """A server that cannot read its configuration raises with its own words, and leaves nothing behind."""
    with pytest.raises(StartError, match="Parse error") as caught:
        lazy(config="this is { not a configuration").start()
    assert "Parse error" in caught.value.log
    assert caught.value.status == 1
    assert not list(folders.iterdir())


def test_a_start_that_fails_never_shows_the_token() -> None:
    """Where the server repeats its token in an error, the error does not."""
    token = "precious-token-of-ours"
    with pytest.raises(StartError) as caught:
        lazy(token=token, config=f"max_connections: {token}").start()
    assert token not in str(caught.value)
    assert token not in caught.value.log


def test_a_port_in_use() -> None:
    """A port that somebody else has is refused before anything starts; a later clash brings the server's words."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OptionError, match=f"Port {port}") as caught:
            lazy(port=port).start()
        assert caught.value.option == "port"
        with pytest.raises(StartError, match="address already in use") as failed:
            lazy(config=f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}').start()
        assert str(port) in failed.value.log


def test_a_server_that_never_gets_ready(tmp_path: Path, folders: Path) -> None:
    """A program that answers to its version and then hangs is ended when the time is up."""
    script = tmp_path / "nats-server"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo nats-server: v2.14.0 && exit\nexec sleep 60\n')
    script.chmod(0o755)
    with pytest.raises(StartError, match="not ready after"):
        Server(binary=script, start_timeout=0.5).start()
    assert not list(folders.iterdir())


# -- the binary


def fake(path: Path, says: str, status: int = 0) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_an_old_binary_is_refused(tmp_path: Path) -> None:
    """A nats-server older than 2.12 is refused with its version; 2.12 lacks fast ingest, 2.14 has it."""
    path = fake(tmp_path / "old", "nats-server: v2.11.9")
    with pytest.raises(BinaryError, match=r"2\.12 or newer") as caught:
        Server(binary=path).start()
    assert caught.value.version == "2.11.9"
    fake(path, "nats-server: v2.12.0-RC.1")
    assert find_binary(path).supports_fast_ingest is False
    fake(path, "nats-server: v2.14.0 ")
    assert find_binary(path).supports_fast_ingest is True


def test_a_binary_that_is_none(tmp_path: Path) -> None:
    """A missing file, a file that cannot run and a program that tells no version are each told apart."""
    with pytest.raises(BinaryError, match="not a program"):
        find_binary(tmp_path / "missing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BinaryError, match="not a program"):
        find_binary(tmp_path / "text")
    with pytest.raises(BinaryError, match="status 3 and said 'oops'"):
        find_binary(fake(tmp_path / "odd", "oops", 3))


def test_where_the_binary_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option wins over the environment, which wins over the package."""
    one, two = fake(tmp_path / "one", "v2.13.0"), fake(tmp_path / "two", "v2.14.0")
    assert find_binary().source == "package"
    monkeypatch.setenv("PENSTOCK_NATS_SERVER", str(one))
    assert (find_binary().path, find_binary().source) == (one, "environment")
    assert (find_binary(two).path, find_binary(two).source) == (two, "option")


# -- options


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"nodes": 2}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"port": 70000}, "port"),
        ({"port": 65534, "nodes": 3}, "port"),
        ({"host": "example.com"}, "host"),
        ({"sync": "sometimes"}, "sync"),
        ({"sync": "0s"}, "sync"),
        ({"sync": 5}, "sync"),
        ({"max_payload": 0}, "max_payload"),
        ({"max_payload": 65 * 1024 * 1024}, "max_payload"),
        ({"token": "no spaces"}, "token"),
        ({"token": ""}, "token"),
        ({"token": "t", "auth": False}, "auth"),
        ({"host": "0.0.0.0", "auth": False}, "auth"),
        ({"tls_cert": "a.pem"}, "tls_key"),
        ({"tls_ca": "a.pem"}, "tls_cert"),
        ({"tls_cert": "/nowhere/a.pem", "tls_key": "/nowhere/b.pem"}, "tls_cert"),
        ({"store": "/dev/null"}, "store"),
        ({"start_timeout": 0}, "start_timeout"),
        ({"config": "debug: true\nport: 4222"}, "config"),
        ({"config": 'jetstream { "store_dir": "/elsewhere" }'}, "config"),
        ({"config": "authorization { user: u, password: p }"}, "config"),
    ],
)
def test_options_are_checked_first(options: dict[str, Any], culprit: str) -> None:
    """A bad option is refused when the server is described, with its name and what to do instead."""
    with pytest.raises(OptionError) as caught:
        Server(**options)
    assert caught.value.option == culprit
    assert caught.value.remedy


def test_unknown_host() -> None:
    """An address that is not of this machine is refused before anything starts."""
    with pytest.raises(OptionError) as caught:
        lazy(host="192.0.2.1").start()
    assert caught.value.option == "host"


# -- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs certificates."""
    return Authority(tmp_path_factory.mktemp("tls"))


async def test_tls(authority: Authority) -> None:
    """With a certificate and key the server speaks TLS, and its URL says so."""
    pair = authority.issue("server", "127.0.0.1", "localhost")
    with lazy(tls_cert=pair.cert, tls_key=pair.key) as server:
        assert server.url.startswith("tls://")
        trust = ssl.create_default_context(cafile=str(authority.ca))
        client = await nats.connect(server.url, tls=trust)
        await client.flush()
        await client.close()


async def test_mutual_tls(authority: Authority) -> None:
    """With an authority for clients only a client with a certificate of it gets in."""
    pair, own = authority.issue("server", "127.0.0.1", "localhost"), authority.issue("client")
    with lazy(tls_cert=pair.cert, tls_key=pair.key, tls_ca=authority.ca) as server:
        trust = ssl.create_default_context(cafile=str(authority.ca))

        async def quiet(error: Exception) -> None:
            """Errors reach us as the exception of `connect`."""

        with pytest.raises((OSError, nats.errors.Error)):
            await nats.connect(server.url, tls=trust, allow_reconnect=False, error_cb=quiet)
        trust.load_cert_chain(own.cert, own.key)
        client = await nats.connect(server.url, tls=trust)
        await client.flush()
        await client.close()


# -- a server already running


def test_the_same_face_for_a_running_server(server: Server) -> None:
    """`Server.at` reads like a server of ours; starting and stopping leave the real one alone."""
    with Server.at(server.url) as other:
        assert other.url == server.url
        assert other.urls == server.urls
        assert other.token == server.token
        assert other.version == server.version
        assert other.supports_fast_ingest == server.supports_fast_ingest
        assert other.running
        assert server.token not in repr(other) + repr(other.nodes)
    other.stop()
    assert server.running


@pytest.mark.parametrize("verb", ["kill", "pause", "resume", "stop", "start"])
def test_a_foreign_node_is_not_touched(server: Server, verb: str) -> None:
    """What was not started here cannot be killed, paused or started here, and the error says so."""
    node = Server.at(server.url).nodes[0]
    with pytest.raises(ServerError, match="was not started here") as caught:
        getattr(node, verb)()
    assert server.token not in str(caught.value)
    assert server.nodes[0].alive


def test_nobody_there() -> None:
    """An address where nobody answers is not running, and asking its version says where it looked."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"nats://secret@127.0.0.1:{closed.getsockname()[1]}"
        other = Server.at(url)
        assert not other.running
        with pytest.raises(UnreachableError) as caught:
            _ = other.version
        assert "secret" not in str(caught.value)
    with pytest.raises(OptionError):
        Server.at("ftp://somewhere")


def test_not_started_yet() -> None:
    """Before it is started a server has no address, and says so."""
    server = Server()
    assert not server.running
    assert server.nodes == ()
    with pytest.raises(ServerError, match="not started"):
        _ = server.url
