"""No secret of a login stands in what commands print, what is logged, what the console shows, or what is written."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.connection import connect
from penstock.errors import PenstockError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.inprocess import invoke
from tests.live.visitor import visiting
from tests.secret_forms import leaks, leaks_in_files
from tests.support import Key, Operator, eventually

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
def servers(operator: Operator) -> Iterator[dict[str, Server]]:
    users = f"{{user: ann, password: '{PASSWORD}'}}, {{nkey: {SEED.public}}}"
    with (
        Server(sync="2m", token=TOKEN) as tokens,
        Server(sync="2m", auth=False, config=f"authorization {{ users: [{users}] }}") as users_,
        Server(sync="2m", auth=False, config=operator.config()) as jwts,
    ):
        yield {"token": tokens, "users": users_, "jwt": jwts}


@pytest.fixture(params=["token", "url", "password", "nkey", "creds"])
def way(request: pytest.FixtureRequest, tmp_path: Path, operator: Operator) -> Way:
    creds, seed = tmp_path / "me.creds", tmp_path / "me.nk"
    creds.write_text(text := operator.credentials())
    seed.write_text(SEED.seed)
    return {
        "token": Way("token", ("--token", TOKEN), {"token": TOKEN}, (TOKEN,)),
        "url": Way("users", (), {"user": "ann", "password": PASSWORD}, (PASSWORD,)),
        "password": Way(
            "users", ("--user", "ann", "--password", PASSWORD), {"user": "ann", "password": PASSWORD}, (PASSWORD,)
        ),
        "nkey": Way("users", ("--nkey", str(seed)), {"nkey": SEED.seed}, (SEED.seed,)),
        "creds": Way("jwt", ("--creds", str(creds)), {"credentials": text}, (text,)),
    }[request.param]


COMMANDS = """
stream add S --subjects s.> --defaults
stream ls
stream info S
stream info S --json
stream report
pub s.a hello
req s.b hello
stream view S
stream get S 1
stream subjects S
consumer add S c --pull --defaults
consumer next S c
consumer info S c --json
consumer report S
kv add bucket
kv put bucket key value
kv get bucket key
kv ls bucket
object add files
object ls files
account info
account report connections
server info
server info --json
server check connection
rtt
counter incr S 1
apply {file} --dry-run
backup stream S {folder}/backup
chunks send {file} s.large
bench pub s.bench --msgs 10 --no-progress
doctor
stream info missing
consumer info S missing
pub s..a bad
stream rm S -f
""".strip().splitlines()


def test_commands(way: Way, servers: dict[str, Server], tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Whether they succeed or fail, and with all that goes on logged, they print none; nor do they write any."""
    caplog.set_level(logging.DEBUG)
    server = servers[way.server]
    url = f"nats://{server.nodes[0].address}"
    if not way.flags:
        url = url.replace("//", f"//ann:{PASSWORD}@")
    (tmp_path / "topology.toml").write_text('[streams.T]\nsubjects = ["t.>"]\n')
    out = tmp_path / "out"
    out.mkdir()
    ended: dict[str, int] = {}
    for line in COMMANDS:
        words = line.format(file=tmp_path / "topology.toml", folder=out).split()
        done = invoke(url, *words, *way.flags, "--trace", HOME=str(out), XDG_CONFIG_HOME=str(out / "config"))
        assert not leaks(done.stdout + done.stderr, way.secrets), words
        assert "Traceback" not in done.stderr, (words, done.stderr)
        ended[line] = done.status
    assert sum(status == 0 for status in ended.values()) > len(COMMANDS) * 0.7, ended
    assert not leaks(caplog.text, way.secrets)
    assert not leaks_in_files(out, way.secrets)


def test_a_context(way: Way, servers: dict[str, Server], tmp_path: Path):
    """A context file holds what it was given, for its owner alone; whatever shows it shows no secret."""
    url = f"nats://{servers[way.server].nodes[0].address}"
    if not way.flags:
        url = url.replace("//", f"//ann:{PASSWORD}@")
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


async def test_the_console(way: Way, servers: dict[str, Server], caplog: pytest.LogCaptureFixture):
    """No page, no twin and no refusal holds one, also if a message, a stream's words and an error do."""
    caplog.set_level(logging.DEBUG)
    options = ConnectionOptions(f"nats://{servers[way.server].nodes[0].address}", **way.options)
    async with visiting(options) as visitor:
        js = (await visitor.nats()).jetstream()
        plain = way.secrets[0].splitlines()[0] if "\n" not in way.secrets[0] else "nothing"
        await js.add_stream(name="SHOWN", subjects=["shown"], description=plain[:60])
        await js.publish("shown", plain.encode(), headers={"Authorization": "Bearer x", "Plain": plain})
        names = ("overview", "streams", "streams/SHOWN", "streams/SHOWN/messages", "streams/SHOWN/messages/1")
        paths = [
            f"/{name}{form}"
            for name in (*names, "about", "pipelines", "transfers", "nowhere")
            for form in ("", ".json")
        ]
        for path in paths:
            for known in (True, False):
                answer = await visitor.get(path, known=known)
                assert not leaks(answer.text, [*way.secrets, visitor.access.token]), path
        await js.delete_stream("SHOWN")
    assert not leaks(caplog.text, way.secrets)


def test_the_embedded_server(servers: dict[str, Server]):
    """Its token and its monitoring path stand on no command line, in no log, and in files of ours alone."""
    server = servers["token"]
    node = server.nodes[0]
    secret = [TOKEN, node.monitor_url.rpartition("/")[2]]
    assert not leaks(Path(f"/proc/{node.pid}/cmdline").read_bytes() + node.log.read_bytes(), secret)
    assert not leaks(repr(server) + repr(node), secret)
    assert node._config.stat().st_mode & 0o077 == 0
    assert node._config.parent.stat().st_mode & 0o077 == 0
