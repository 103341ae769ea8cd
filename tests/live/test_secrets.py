"""No secret of a login stands in what commands print, what is logged, what the console shows, or what is written."""

from __future__ import annotations

import logging
import re
import secrets
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.buckets import KeyValue, ObjectStore
from penstock.channels.names import state_stream
from penstock.chunks import Publisher
from penstock.connection import Connection, connect
from penstock.console.act_pages import ACTS
from penstock.errors import PenstockError
from penstock.jetstream import DeadLetters, assets
from penstock.jetstream.consume import Deliveries
from penstock.model import Consumer, Stream
from penstock.options import ConnectionOptions
from penstock.pipelines.new_project import write_project
from penstock.pipelines.project import Project
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.acting import Actor
from tests.live.inprocess import Talk, invoke
from tests.live.secret_commands import BENCHMARKS, ELSEWHERE, EVERYWHERE, SYSTEM, every_command, named
from tests.live.socks import Proxy, proxy
from tests.live.visitor import every_download, every_page, visiting
from tests.secret_forms import leaks, leaks_in_files
from tests.support import Authority, Key, Operator, Pair, eventually

PASSWORD = f"pass-w0rd-{secrets.token_urlsafe(16)}"
TOKEN = f"t0ken-{secrets.token_urlsafe(16)}"
SEED = Key.make()


@dataclass(frozen=True)
class Way:
    """One way to log in: flags of a command, options in Python, and what must never be seen."""

    server: str
    flags: tuple[str, ...]
    options: dict[str, str]
    secrets: tuple[str, ...]


@pytest.fixture(scope="module")
def operator() -> Operator:
    return Operator()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("client")


@pytest.fixture(scope="module")
def proxied() -> Iterator[Proxy]:
    """A SOCKS proxy that wants a login."""
    with proxy(("bob", PASSWORD)) as running:
        yield running


@pytest.fixture(scope="module")
def servers(operator: Operator, authority: Authority) -> Iterator[dict[str, Server]]:
    own = authority.issue("server", "127.0.0.1")
    tls = f'cert_file: "{own.cert}", key_file: "{own.key}", ca_file: "{authority.ca}", verify: true'
    users = f"{{user: ann, password: '{PASSWORD}'}}, {{nkey: {SEED.public}}}"
    with (
        Server(sync="2m", token=TOKEN) as tokens,
        Server(sync="2m", auth=False, config=f"authorization {{ users: [{users}] }}") as users_,
        Server(sync="2m", auth=False, config=operator.config()) as jwts,
        Server(sync="2m", auth=False, config=f"tls {{ {tls} }}") as mutual,
    ):
        yield {"token": tokens, "users": users_, "jwt": jwts, "mutual": mutual}


@pytest.fixture(params=["token", "url", "password", "nkey", "creds", "tls", "socks"])
def way(
    request: pytest.FixtureRequest, tmp_path: Path, operator: Operator, authority: Authority, pair: Pair, proxied: Proxy
) -> Iterator[Way]:
    key, through = pair.key.read_text(), f"socks5://bob:{PASSWORD}@{proxied.address}"
    before = len(proxied.asked)
    files = ("--tlsca", str(authority.ca), "--tlscert", str(pair.cert), "--tlskey", str(pair.key))
    mutual = {"tls_ca": authority.ca.read_text(), "tls_cert": pair.cert.read_text(), "tls_key": key}
    creds, seed = tmp_path / "me.creds", tmp_path / "me.nk"
    creds.write_text(text := operator.credentials())
    seed.write_text(SEED.seed)
    yield {
        "token": Way("token", ("--token", TOKEN), {"token": TOKEN}, (TOKEN,)),
        "url": Way("users", (), {"user": "ann", "password": PASSWORD}, (PASSWORD,)),
        "password": Way(
            "users", ("--user", "ann", "--password", PASSWORD), {"user": "ann", "password": PASSWORD}, (PASSWORD,)
        ),
        "nkey": Way("users", ("--nkey", str(seed)), {"nkey": SEED.seed}, (SEED.seed,)),
        "creds": Way("jwt", ("--creds", str(creds)), {"credentials": text}, (text,)),
        "tls": Way("mutual", files, mutual, (key,)),
        "socks": Way(
            "token",
            ("--token", TOKEN, "--socks-proxy", through),
            {"token": TOKEN, "socks_proxy": through},
            (PASSWORD, TOKEN),
        ),
    }[request.param]
    assert (len(proxied.asked) > before) == (request.param == "socks"), "nobody went through the proxy"


def test_every_command_is_run_or_has_a_reason():
    """Each command of the tree is in the lines that are run with secrets, or says why none can reach it."""
    run = {named(line) for line in (*EVERYWHERE, *BENCHMARKS, *SYSTEM)}
    assert not run & ELSEWHERE.keys()
    assert run | ELSEWHERE.keys() == set(every_command())


def address(server: Server, way: Way) -> str:
    """Give the address of a server as this way to log in wants it."""
    url = f"nats://{server.nodes[0].address}"
    return url if way.flags else url.replace("//", f"//ann:{PASSWORD}@")


def run_all(lines: Iterable[str], url: str, way: Way, folder: Path) -> None:
    """Run commands in turn, each of which must end as its line says; neither they nor their files hold a secret."""
    (topology := folder / "topology.toml").write_text('[streams.Z]\nsubjects = ["z.>"]\n')
    (out := folder / "out").mkdir()
    wrong = list[str]()
    for line in lines:
        words, goes_on, text = line.removeprefix("! ").partition(" ~ ")

        def look(talk: Talk, text: str = text) -> None:
            said = talk.wait_for(text)
            for page in re.findall(r"http://\S+/metrics", said):
                with urllib.request.urlopen(page, timeout=30) as answer:
                    assert not leaks(answer.read(), way.secrets), page
            talk.interrupt()

        done = invoke(
            url,
            *words.format(file=topology, folder=out).split(),
            *way.flags,
            *("--trace", "--timeout", "2s"),
            beside=look if goes_on else None,
            HOME=str(out),
            XDG_CONFIG_HOME=str(out / "config"),
        )
        assert not leaks(done.stdout + done.stderr, way.secrets), line
        assert "Traceback" not in done.stderr, (line, done.stderr)
        assert "-h` says what it takes" not in done.stderr, (line, done.stderr)
        fine = (0, 130) if goes_on else (0,)
        if (done.status not in fine) != line.startswith("!"):
            wrong.append(f"{line}: {done.status}, {done.stderr or done.stdout}")
    assert not wrong, "\n".join(wrong)
    assert not leaks_in_files(out, way.secrets)


def test_commands(way: Way, servers: dict[str, Server], tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Whether they succeed or fail, and with all that goes on logged, they print none; nor do they write any."""
    caplog.set_level(logging.DEBUG)
    run_all(EVERYWHERE, address(servers[way.server], way), way, tmp_path)
    assert not leaks(caplog.text, way.secrets)


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["password"], indirect=True)
def test_benchmarks(way: Way, servers: dict[str, Server], tmp_path: Path):
    """The same for what starts processes that log in by themselves."""
    run_all(BENCHMARKS, address(servers[way.server], way), way, tmp_path)


def test_the_system_account(tmp_path: Path):
    """The same for what servers tell of themselves, of their connections and of their accounts."""
    users = f"SYS {{ users: [{{user: ann, password: '{PASSWORD}'}}] }}, APP {{ jetstream: enabled }}"
    way = Way("system", ("--user", "ann", "--password", PASSWORD), {}, (PASSWORD,))
    with Server(sync="2m", auth=False, config=f"accounts {{ {users} }}\nsystem_account: SYS") as server:
        run_all(SYSTEM, address(server, way), way, tmp_path)


def test_a_credentials_file(tmp_path: Path, operator: Operator):
    """A check of it tells of its validity, and of nothing in it."""
    (file := tmp_path / "me.creds").write_text(text := operator.credentials())
    done = invoke(None, "server", "check", "credential", "--credential", str(file), "--trace")
    assert "never expires" in done.stdout
    assert not leaks(done.stdout + done.stderr, [text])


def test_a_context(way: Way, servers: dict[str, Server], tmp_path: Path):
    """A context file holds what it was given, for its owner alone; whatever shows it shows no secret."""
    url = address(servers[way.server], way)
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert invoke(None, "context", "add", "mine", "--server", url, *way.flags, **env).status == 0
    for file in (tmp_path / "config").rglob("*.json"):
        assert file.stat().st_mode & 0o077 == 0
    for words in (["ls"], ["info", "mine"], ["info", "mine", "--json"], ["select", "mine"], ["validate"]):
        done = invoke(None, "context", *words, **env)
        assert not leaks(done.stdout + done.stderr, way.secrets), words
    done = invoke(None, "rtt", "--trace", **env)
    assert done.status == 0, done.stderr
    assert not leaks(done.stdout + done.stderr, way.secrets)

    def look(talk: Talk) -> None:
        talk.wait_for("Serving")
        talk.interrupt()

    done = invoke(None, "channels", "serve", "--trace", beside=look, **env)
    assert done.status == 0, done.stderr
    assert not leaks(done.stdout + done.stderr, way.secrets)
    for words in (["copy", "mine", "other"], ["edit", "other"], ["previous"], ["unselect"], ["rm", "other", "-f"]):
        done = invoke(None, "context", *words, EDITOR="true", **env)
        assert not leaks(done.stdout + done.stderr, way.secrets), words
        assert "Traceback" not in done.stderr, words


async def test_connections(way: Way, servers: dict[str, Server], caplog: pytest.LogCaptureFixture):
    """Reprs, logs, what fails and what is refused: of both drivers, while the server goes away and comes back."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    node = servers[way.server].nodes[0]
    options = ConnectionOptions(f"nats://{node.address}", reconnect_wait=0.05, **way.options)
    said += [repr(options), str(options), repr(options.secrets and [options])]

    async def failed(error: Exception) -> None:
        said.append(repr(error))

    async with await connect(options, on_error=failed) as nc:
        said += [repr(nc), repr(nc.server_info)]
        stretch = nc.stretch
        node.kill()
        node.start()
        await eventually(lambda: nc.stretch > stretch and nc.is_connected, "the way back")
        try:
            await nc.jetstream().stream_info("missing")
        except PenstockError as error:
            said += [repr(error), repr(error.__cause__), str(vars(error))]
    with BulkConnection(options) as bulk:
        said.append(repr(bulk))
    wrong = {name: f"{value[:-2]}x" for name, value in way.options.items() if name in ("token", "password")}
    if wrong:
        for make in (lambda: connect(options.replace(**wrong)), lambda: BulkConnection(options.replace(**wrong))):
            try:
                made = make()
                await made  # type: ignore[misc]
            except PenstockError as error:
                said += [repr(error), str(vars(error))]
        assert not leaks("\n".join([*said, caplog.text]), [wrong[name] for name in wrong])
    assert not leaks("\n".join([*said, caplog.text]), way.secrets)


NAMES = {"stream": "SHOWN", "consumer": "reader", "sequence": "1", "bucket": "shown", "cluster": "shop"}
ASKED = {"entry": "key=k", "object_entry": "name=o", "object_content": "name=o", "pipeline": "name=sensors"}


async def test_the_console(way: Way, servers: dict[str, Server], caplog: pytest.LogCaptureFixture, tmp_path: Path):
    """No page, no twin, no download, no act and no refusal holds one, also if a message, words and an error do."""
    caplog.set_level(logging.DEBUG)
    options = ConnectionOptions(f"nats://{servers[way.server].nodes[0].address}", **way.options)
    plain = way.secrets[0].splitlines()[0] if "\n" not in way.secrets[0] else "nothing"
    project = Project.load(write_project(tmp_path, "sensors"))
    async with visiting(options, pipelines=[project], audit=(audit := tmp_path / "acts.log")) as visitor:
        nc = await visitor.nats()
        await _show(nc, plain)
        await visitor.survey.fresh()
        secret = [*way.secrets, visitor.access.token, visitor.access.write_token or ""]
        there = 0
        pages = [path.partition("?") for path in [*every_page(NAMES, ASKED), "/dead-letters/SHOWN-DEAD", "/nowhere"]]
        paths = [f"{path}{form}{mark}{question}" for path, mark, question in pages for form in ("", ".json")]
        for path in [*paths, *every_download(NAMES, ASKED), "/metrics"]:
            for known in (True, False):
                answer = await visitor.get(path, known=known)
                there += answer.status == 200
                assert not leaks(answer.text, secret), path
        assert there >= len(paths) - 2, "all but what is nowhere"
        actor, targets = Actor(visitor, audit), {**NAMES, "key": "k", "object": "o", "project": "sensors"}
        for name, act in ACTS.items():
            about = {target: targets[target] for target in act.targets if target in targets}
            answer = await actor.form(name, **about)
            assert not leaks(answer.text, secret), name
        answer = await actor.do(
            "publish", {"stream": "SHOWN"}, subject="shown", payload=plain, headers=f"Plain: {plain}"
        )
        assert answer.status == 200
        assert not leaks(answer.text, secret)
        for stream in ("SHOWN", "SHOWN-DEAD", "KV_shown", "OBJ_shown", state_stream("shop")):
            await nc.jetstream().delete_stream(stream)
    assert not leaks(caplog.text, way.secrets)
    assert not leaks_in_files(tmp_path / "sensors", way.secrets)
    assert not leaks(audit.read_bytes(), secret)


async def _show(nc: Connection, plain: str) -> None:
    """Put down one of everything that the console shows, with a secret in it."""
    js = nc.jetstream()
    await js.add_stream(name="SHOWN", subjects=["shown"], description=plain[:60])
    await js.publish("shown", plain.encode(), headers={"Authorization": "Bearer x", "Plain": plain})
    await assets.add_consumer(nc, "SHOWN", Consumer(durable="reader", description=plain[:60]))
    dead = DeadLetters(nc, "SHOWN")
    await dead.ensure()
    async with Deliveries(nc, "SHOWN", "reader", limit=1) as deliveries:
        async for delivery in deliveries:
            await dead.put(delivery, plain)
    await (await KeyValue.create_bucket(nc, "shown", description=plain[:60])).put("k", plain.encode())
    await (await ObjectStore.create_bucket(nc, "shown")).put("o", plain.encode(), description=plain)
    state = Stream(name=state_stream("shop"), subjects=["_PENSTOCK.channels.shop.>"], allow_direct=True)
    await assets.add_stream(nc, state)
    await Publisher(nc).publish("shown", plain.encode(), message_id="large")


def test_the_embedded_server(servers: dict[str, Server]):
    """Its token and its monitoring path stand on no command line, in no log, and in files of ours alone."""
    server = servers["token"]
    node = server.nodes[0]
    secret = [TOKEN, node.monitor_url.rpartition("/")[2]]
    assert not leaks(Path(f"/proc/{node.pid}/cmdline").read_bytes() + node.log.read_bytes(), secret)
    assert not leaks(repr(server) + repr(node), secret)
    assert node._config.stat().st_mode & 0o077 == 0
    assert node._config.parent.stat().st_mode & 0o077 == 0
