"""What every command says when the world around is not right: nobody there, the wrong login, no right, no JetStream."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.server import Server
from tests.live.command import environment
from tests.live.inprocess import Done, Talk, invoke
from tests.live.terminal import Terminal, terminal

GUARDED = """
accounts {
  MAIN {
    jetstream: enabled
    users: [
      {user: full, password: pw}
      {user: shy, password: pw, permissions: {publish: {deny: [
        "secret.>", "$JS.API.STREAM.DELETE.>", "$JS.API.STREAM.CREATE.>", "$JS.API.CONSUMER.CREATE.>",
        "$JS.ACK.>"
      ]}, subscribe: {deny: "secret.>"}}}
    ]
  }
  BARE { users: [ {user: bare, password: pw} ] }
}
"""
# Every command that needs a server, with words that are right; FILE and DIR are there, and DIR is empty.
NEEDING = [
    "pub a b",
    "sub a",
    "sub a --all",
    "req a b",
    "reply a b",
    "rtt",
    "server info",
    "stream add A --subjects a --defaults",
    "stream edit A --max-msgs 5 -f",
    "stream seal A -f",
    "stream rm A -f",
    "stream purge A -f",
    "stream info A",
    "stream ls",
    "stream report",
    "stream subjects A",
    "stream view A",
    "stream get A 1",
    "stream rmm A 1 -f",
    "stream backup A DIR/b",
    "consumer add A c --defaults",
    "consumer edit A c --max-deliver 5 -f",
    "consumer rm A c -f",
    "consumer pause A c 1h -f",
    "consumer resume A c -f",
    "consumer info A c",
    "consumer ls A",
    "consumer report A",
    "consumer next A c",
    "consumer sub A c",
    "consumer redeliver A",
    "consumer samples A",
    "apply FILE",
    "apply FILE --plan",
    "chunks send FILE a",
    "chunks send FILE a --persistent A",
    "chunks receive a --to DIR",
    "chunks receive a --to DIR --persistent A --id x",
    "bus call q x",
    "bus serve tests.live.test_cli_failures:handler --queue q",
    "channels ls",
    "channels info a",
    "channels export a",
    "channels serve",
    "channels migrate a --from nats://127.0.0.1:1",
    "bench pub a",
    "bench service serve a",
    "bench js pub fast a",
    "bench js ordered",
    "bench kv get",
    "bench channels",
]


async def handler(request: object, sender: object) -> None:
    """A handler for `bus serve` that is never called here."""


@pytest.fixture
def words(tmp_path: Path) -> Callable[[str], list[str]]:
    """Put a file and an empty folder of this test into a line of words."""
    file, folder = tmp_path / "file.toml", tmp_path / "folder"
    file.write_text('[streams.A]\nsubjects = ["a"]\n')
    folder.mkdir()
    return lambda line: line.replace("FILE", str(file)).replace("DIR", str(folder)).split()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Callable[..., Done]]:
    """Run a command as one of the users of a server with accounts."""
    with Server(config=GUARDED, auth=False, sync="2m") as server:
        address = urlsplit(server.url).netloc

        def run(user: str, *arguments: str, password: str = "pw") -> Done:
            return invoke(f"nats://{user}:{password}@{address}", *arguments, "--timeout", "20s")

        for line in ("stream add S --subjects s.> --defaults", "consumer add S c --defaults"):
            done = run("full", *line.split())
            assert done.status == 0, done.stderr
        yield run


def is_one_sentence(done: Done, status: int = 1) -> None:
    """Assert the manner of a failure: its status, nothing for programs, one sentence for people, no traceback."""
    assert done.status == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("penstock: ")


@pytest.mark.parametrize("line", NEEDING)
def test_nobody_is_there(words: Callable[[str], list[str]], tmp_path: Path, line: str):
    """Every command that needs a server says which one does not answer, in one line, and leaves nothing behind."""
    done = invoke("nats://127.0.0.1:1", *words(line), "--timeout", "2s")
    is_one_sentence(done)
    assert "nats://127.0.0.1:1" in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("line", ["pub a b", "stream ls", "consumer next A c", "channels ls", "bus call q x", "rtt"])
def test_a_wrong_login(guarded: Callable[..., Done], words: Callable[[str], list[str]], line: str):
    """A refused login is told as one, without the password."""
    done = guarded("full", *words(line), password="not-the-one")
    is_one_sentence(done)
    assert "login" in done.stderr
    assert "not-the-one" not in done.stderr


def test_a_login_by_flags(guarded: Callable[..., Done], server: Server):
    """--user and --password take the place of what the address says; a lone --user is a token."""
    assert guarded("nobody", "rtt", "1", "--user", "full", "--password", "pw").status == 0
    done = guarded("full", "rtt", "1", "--user", "full", "--password", "wrong")
    is_one_sentence(done)
    address = urlsplit(server.url)
    bare = f"nats://{address.hostname}:{address.port}"
    assert invoke(bare, "rtt", "1", "--user", str(server.token)).status == 0
    is_one_sentence(invoke(bare, "rtt", "1", "--user", "some-token"))
    assert invoke(bare, "rtt", "1", NATS_USER=str(server.token)).status == 0


@pytest.mark.parametrize(
    "line",
    [
        "stream ls",
        "stream info S",
        "stream add X --subjects x --defaults",
        "stream view S",
        "consumer ls S",
        "consumer next S c",
        "pub s.a b -J",
        "pub s.a b --atomic",
        "sub --stream S",
        "sub s.> --all",
        "apply FILE",
        "apply FILE --plan",
        "chunks send FILE a --persistent S",
        "channels ls",
    ],
)
def test_no_jetstream(guarded: Callable[..., Done], words: Callable[[str], list[str]], line: str):
    """An account without JetStream is told, by every command that needs it."""
    done = guarded("bare", *words(line))
    is_one_sentence(done)
    assert "JetStream" in done.stderr
    assert done.stdout == ""


def test_what_needs_no_jetstream(guarded: Callable[..., Done]):
    """Plain messages, round trips and `server info` work without it, and the latter says that it is missing."""
    assert guarded("bare", "pub", "a", "b").stdout == "Published 1 bytes to a\n"
    assert guarded("bare", "rtt", "1", "--json").status == 0
    shown = guarded("bare", "server", "info")
    assert (shown.status, "JetStream: not available" in shown.stdout) == (0, True)
    assert '"jetstream": null' in guarded("bare", "server", "info", "--json").stdout


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("pub secret.x y", "secret.x"),
        ("pub secret.{{Count}} y --count 3", "secret."),
        ("pub secret.x y -J", "secret.x"),
        ("req secret.x y", "secret.x"),
        ("req secret.x y --replies 0", "secret.x"),
        ("sub --stream S", "CONSUMER.CREATE.S"),
        ("sub s.> --last --raw", "CONSUMER.CREATE.S"),
        ("sub secret.x --report-subjects", "secret.x"),
        ("sub secret.x", "secret.x"),
        ("sub open.x secret.x --raw", "secret.x"),
        ("reply secret.x y", "secret.x"),
        ("chunks send FILE secret.x", "secret.x"),
        ("stream rm S -f", "STREAM.DELETE.S"),
        ("stream add X --subjects x --defaults", "STREAM.CREATE.X"),
        ("consumer add S d --defaults", "CONSUMER.CREATE.S.d"),
        ("apply FILE", "STREAM.CREATE.A"),
    ],
)
def test_no_right(guarded: Callable[..., Done], words: Callable[[str], list[str]], line: str, subject: str):
    """What the login may not do fails at once with the subject that is denied, and nothing says that it was done."""
    began = time.monotonic()
    done = guarded("shy", *words(line))
    assert time.monotonic() - began < 15, "nobody waits for an answer that cannot come"
    is_one_sentence(done)
    assert subject in done.stderr
    for claim in ("Published", "Sent ", "created", "deleted", "Applied", "Subscribing", "Listening"):
        assert claim not in done.stdout + done.stderr
    assert guarded("full", "stream", "ls", "-n").stdout == "S\n"
    assert guarded("full", "consumer", "ls", "S", "-n").stdout == "c\n"


def test_one_sentence_for_all_that_is_denied(guarded: Callable[..., Done]):
    """Many messages that are denied are told once, and no further ones are sent."""
    done = guarded("shy", "pub", "secret.x", "y", "--count", "2000")
    is_one_sentence(done)
    assert done.stderr.count("\n") == 1


def test_an_ack_that_is_denied(guarded: Callable[..., Done]):
    """Messages are shown, and a login that may not acknowledge them is a failure."""
    assert guarded("full", "stream", "add", "T", "--subjects", "t", "--defaults").status == 0
    assert guarded("full", "consumer", "add", "T", "d", "--defaults", "--pull").status == 0
    assert guarded("full", "pub", "t", "shown", "-J").status == 0
    done = guarded("shy", "sub", "--stream", "T", "--durable", "d", "-T", "--raw")
    assert guarded("full", "stream", "rm", "T", "-f").status == 0
    is_one_sentence(done)
    assert (done.stdout, "$JS.ACK.T.d" in done.stderr) == ("shown\n", True)


def test_what_is_allowed_is_done(guarded: Callable[..., Done]):
    """A login that may not do everything does what it may."""
    assert guarded("shy", "pub", "open.x", "y").status == 0
    assert guarded("shy", "stream", "info", "S", "--json").status == 0
    assert guarded("shy", "consumer", "ls", "S", "-n").stdout == "c\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-s", "http://x"], "scheme"),
        (["-s", "nats://"], "url"),
        (["-s", "nats://h:port"], "port"),
        (["--creds", "/nowhere/u.creds"], "/nowhere/u.creds"),
        (["--nkey", "/nowhere/seed"], "/nowhere/seed"),
        (["--tlsca", "/nowhere/ca.pem"], "/nowhere/ca.pem"),
        (["--tlscert", "/nowhere/cert.pem"], "tls_key"),
        (["--context", "nowhere"], "nowhere"),
        (["--password", "alone"], "password"),
        (["--js-domain", "a b"], "domain"),
        (["--js-domain", "a", "--js-api-prefix", "b"], "api_prefix"),
        (["--inbox-prefix", "a b"], "inbox_prefix"),
        (["--timeout", "soon"], "--timeout"),
    ],
)
def test_connections_that_cannot_be(arguments: list[str], words: str):
    """A global flag that makes no sense is refused by name before a server is asked, by any command."""
    for command in (["rtt"], ["stream", "ls"], ["chunks", "receive", "a"]):
        done = invoke("nats://127.0.0.1:1", *command, *arguments)
        assert done.status in (1, 2)
        is_one_sentence(done, done.status)
        assert words in done.stderr
        assert "nats://127.0.0.1:1" not in done.stderr


def test_a_domain_that_is_not_there(server: Server):
    """A domain or prefix that nobody serves is told with the subject, and does not wait for the time-out."""
    began = time.monotonic()
    for flags in (["--js-domain", "nowhere"], ["--js-api-prefix", "nowhere.API"]):
        done = invoke(server.url, "stream", "ls", "--timeout", "30s", *flags)
        is_one_sentence(done)
        assert "nowhere" in done.stderr
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"INFO {broken\r\n", b"\x00" * 5000])
def test_somebody_else_is_there(greeting: bytes):
    """What is no NATS server, whatever it says or does not say, is told within the time-out."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(listener.accept()[0])
                    held[-1].sendall(greeting)
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            began = time.monotonic()
            done = invoke(url, "stream", "ls", "--timeout", "300ms")
            assert time.monotonic() - began < 20
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in held:
                connection.close()
    is_one_sentence(done)
    assert url in done.stderr


def test_a_server_that_dies_under_a_reader():
    """`sub` says that the connection is lost, goes on when the server is back, and Ctrl-C ends it with 0."""
    with Server(sync="2m") as mortal:

        def kill(talk: Talk) -> None:
            talk.wait_for("Subscribing")
            mortal.nodes[0].kill()
            talk.wait_for("Lost the connection")
            mortal.nodes[0].start()
            talk.wait_for("again")
            talk.interrupt()

        done = invoke(mortal.url, "sub", "a", beside=kill)
        assert (done.status, done.stdout) == (0, "")
        assert mortal.token not in done.stderr


def press_ctrl_c(shown: Terminal, said: str) -> None:
    """Press Ctrl-C until something is said: between the prompt and the waiting for a key Python does not hear it."""
    for _ in range(5):
        shown.process.send_signal(signal.SIGINT)
        with suppress(AssertionError):
            shown.wait(lambda terminal: any(said in line for line in terminal.lines), timeout=5.0)
            return
    shown.see(said)


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("stream rm ASKED", "[y/N]"),
        ("stream add NEW", "Subjects"),
        ("stream info", "Which stream"),
        ("pipeline reset DIR/shop --storage DIR", "Delete"),
        ("context edit broken", "Edit it again"),
    ],
)
def test_ctrl_c_ends_a_question(tmp_path: Path, line: str, question: str):
    """Ctrl-C at a question ends the command at once, which says that nothing was changed, with 130."""
    contexts, checkpoints = tmp_path / ".config" / "nats" / "context", tmp_path / "_checkpoints"
    contexts.mkdir(parents=True)
    (contexts / "broken.json").write_text("{")
    checkpoints.mkdir()
    with Server(sync="2m") as server:
        assert invoke(server.url, "stream", "add", "ASKED", "--subjects", "asked", "--defaults").status == 0
        assert invoke(None, "pipeline", "new", "shop", "--in", str(tmp_path)).status == 0
        words = line.replace("DIR", str(tmp_path)).split()
        with terminal(environment(tmp_path, NATS_URL=server.url, EDITOR="true"), *words) as shown:
            press_ctrl_c(shown.see(question), "penstock: Ended at the question; nothing was changed.")
            assert shown.end() == 130
            assert "Traceback" not in shown.raw
            assert "never retrieved" not in shown.raw
        assert invoke(server.url, "stream", "ls", "--names").stdout == "ASKED\n"
    assert checkpoints.is_dir()


def test_a_full_stream():
    """What a full stream refuses is one sentence with what to do; so is a stream of three replicas on one server."""
    with Server(sync="2m") as server:
        made = ("stream", "add", "FULL", "--subjects", "full", "--max-msgs", "1", "--discard", "new", "--defaults")
        assert invoke(server.url, *made).status == invoke(server.url, "pub", "full", "one", "-J").status == 0
        done = invoke(server.url, "pub", "full", "two", "-J")
        is_one_sentence(done)
        assert "maximum messages exceeded (10077). The stream is full" in done.stderr
        done = invoke(server.url, "stream", "add", "THREE", "--subjects", "three", "--replicas", "3", "--defaults")
        is_one_sentence(done)
        assert "Ask for one replica, or connect to a cluster." in done.stderr


def test_contexts(tmp_path: Path, server: Server):
    """A context names the server and the login; a flag wins over it; a broken one is bad input that names the file."""
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    address = urlsplit(server.url)
    bare = f"nats://{address.hostname}:{address.port}"
    (folder / "good.json").write_text(f'{{"url": "{bare}", "token": "{server.token}"}}')
    (folder / "broken.json").write_text("{")
    (folder / "proxy.json").write_text(f'{{"url": "{bare}", "socks_proxy": "x"}}')
    (tmp_path / "nats" / "context.txt").write_text("good")

    def run(*arguments: str, **env: str) -> Done:
        return invoke(None, "rtt", "1", "--timeout", "2s", *arguments, XDG_CONFIG_HOME=str(tmp_path), **env)

    assert run("--context", "good").status == 0
    assert run().status == 0, "the selected context is used where nothing else is said"
    assert run(NATS_CONTEXT="good").status == 0
    assert run("--context", str(folder / "good.json")).status == 0
    is_one_sentence(run("--context", "good", "--user", "another-token"))
    is_one_sentence(run("--context", "good", "-s", "nats://127.0.0.1:1"))
    for name in ("broken", "proxy", "none"):
        done = run("--context", name)
        is_one_sentence(done, 2)
        assert name in done.stderr


def test_trace_tells_what_goes_on(server: Server):
    """--trace logs to standard error and never the token; the output stays what it is."""
    plain, traced = (invoke(server.url, "stream", "ls", "-n", *flags) for flags in ([], ["--trace"]))
    assert set(traced.stdout.split()) >= set(plain.stdout.split())
    assert (plain.stderr, traced.status) == ("", 0)
    assert server.token not in traced.stderr
    assert re.search(r"\S", traced.stderr)
