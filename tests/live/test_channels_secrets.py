"""No secret of an old server's command line, configuration or database stands in what the gateway says or writes."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server import Server
from tests.live.connecting import free_port
from tests.live.inprocess import Done, Talk, invoke
from tests.old_store import GOLDEN
from tests.secret_forms import leaks, leaks_in_files

PASSWORD = f"pass-w0rd-{secrets.token_urlsafe(16)}"
TOKEN = f"t0ken-{secrets.token_urlsafe(16)}"
KEY = f"encrypt-{secrets.token_urlsafe(24)}"
SECRETS = (PASSWORD, TOKEN, KEY)
Run = Callable[..., Done]


@pytest.fixture
def run(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Run:
    """Give a function that runs a command with all that goes on logged, and looks for secrets in what it says."""
    caplog.set_level(logging.DEBUG)

    def run(*words: str, beside: Callable[[Talk], object] | None = None, **env: str) -> Done:
        done = invoke(None, *words[:2], "--trace", *words[2:], beside=beside, HOME=str(tmp_path), **env)
        assert not leaks(done.stdout + done.stderr, SECRETS), words
        assert not leaks(caplog.text, SECRETS), words
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def started() -> list[list[str]]:
    """Give the command lines of the programs that this process has started, and of those that they have."""
    parents, lines = dict[str, str](), dict[str, list[str]]()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            parents[place.name] = (place / "stat").read_text().rpartition(")")[2].split()[1]
            lines[place.name] = (place / "cmdline").read_text().split("\0")
    ours = {str(os.getpid())}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return [lines[number] for number in ours - {str(os.getpid())} if number in lines]


@pytest.mark.parametrize(
    ("login", "kept"),
    [
        (("-user", "me", "-pass", PASSWORD), ("-encrypt", "-encryption_key", KEY)),
        (("-auth", TOKEN), ()),
    ],
)
def test_an_embedded_old_server(run: Run, tmp_path: Path, login: tuple[str, ...], kept: tuple[str, ...]):
    """Passwords, tokens and the key of the store are in the configuration, which is ours alone, and nowhere else."""
    store = ("-store", "FILE", "-dir", str(tmp_path / "store"))
    looked = list[Path]()

    def look(talk: Talk) -> None:
        talk.wait_for("Serving the cluster", 60)
        lines = started()
        assert not leaks("\n".join(" ".join(line) for line in lines), SECRETS)
        for line in lines:
            looked.extend(Path(word) for word in line if word.endswith(".conf"))
        # Those of other tests' servers are among them; one knows the login, or the server would not.
        looked[:] = [path for path in looked if path.exists() and leaks(path.read_bytes(), [login[-1]])]
        assert len(looked) == 1, lines
        assert looked[0].stat().st_mode & 0o077 == 0
        assert looked[0].parent.stat().st_mode & 0o077 == 0
        assert not leaks_in_files(tmp_path, SECRETS)
        talk.interrupt()

    flags = ("-p", str(free_port()), "-a", "127.0.0.1", *login, *store, *kept)
    assert run("channels", "old-server", "--", *flags, beside=look).status in (0, 130)
    assert not looked[0].exists()
    assert not leaks_in_files(tmp_path, SECRETS)


def test_an_old_server_beside_another(run: Run, tmp_path: Path):
    """The same for a login in the address of another server, in a configuration file, and in what is refused."""

    def look(talk: Talk) -> None:
        talk.wait_for("Serving the cluster", 60)
        talk.interrupt()

    with Server(sync="2m", token=TOKEN) as server:
        port = server.nodes[0].address
        (file := tmp_path / "stan.conf").write_text(f'streaming {{ nats_token: "{TOKEN}" }}')
        for flags in (("-ns", f"nats://{TOKEN}@{port}"), ("-ns", f"nats://{port}", "-sc", str(file))):
            assert run("channels", "old-server", "--", *flags, beside=look).status in (0, 130)
        for flags in (("-ns", f"nats://{PASSWORD}@{port}"), ("-ns", f"nats://me:{PASSWORD}@{port}")):
            assert run("channels", "old-server", "--timeout", "2s", "--", *flags).status == 1


@pytest.mark.parametrize(
    "flags",
    [
        ("-store", "SQL", "-sql_driver", "postgres", "-sql_source", f"dbname=nss password={PASSWORD}"),
        ("-encrypt", "-encryption_key", KEY, "-encryption_cipher", "ROT13"),
        ("-ns", "nats://127.0.0.1:1", "-encryption_key", KEY),
        ("-user", "me", "-pass", PASSWORD, "-p", "none"),
        ("-pass", PASSWORD, "-nonsense"),
        ("-user", "me", "-pass", PASSWORD, "-tlscert", "/nowhere/cert.pem", "-tlskey", "/nowhere/key.pem", "-tls"),
    ],
)
def test_what_an_old_server_refuses(run: Run, flags: tuple[str, ...]):
    """What cannot be is said by the name of the flag, or in the server's words, without any value that is secret."""
    assert run("channels", "old-server", "--", "-p", str(free_port()), *flags).status in (1, 2)


def test_a_file_that_an_old_server_refuses(run: Run, tmp_path: Path):
    """The same for a configuration that the NATS server or we cannot take: its lines may hold secrets."""
    for text in (
        f"streaming {{ sql_options {{ driver: postgres, source: 'password={PASSWORD}' }} }}",
        f"streaming {{ encryption_key: '{KEY}', nonsense: 1 }}",
        f"authorization {{ users: [{{ user: me, password: '{PASSWORD}', nonsense: 1 }}] }}",
        f"authorization {{ token: '{TOKEN}'",
    ):
        (file := tmp_path / "stan.conf").write_text(text)
        assert run("channels", "old-server", "--", "-p", str(free_port()), "-sc", str(file)).status in (1, 2), text


def test_a_database_of_an_old_server(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The password of the database from which channels come over is in no output, no log and no file."""
    with sqlite3.connect(path := tmp_path / "nss.db") as database:
        database.executescript(GOLDEN.with_suffix(".sql").read_text())
    database.close()
    (modules := tmp_path / "modules").mkdir()
    (modules / "guarded.py").write_text(
        "import sqlite3\n\n\ndef connect(database, user, password):\n"
        f"    if password != {PASSWORD[::-1]!r}[::-1]:\n"
        "        raise sqlite3.OperationalError(f'no password {password} for {user}')\n"
        "    return sqlite3.connect(database)\n"
    )
    monkeypatch.syspath_prepend(modules)
    with Server(sync="2m") as server:
        words = ("channels", "migrate", "-s", server.url, "--cluster-id", "new", "--from-sql")
        good = f"guarded:database={path}&user=nss&password={PASSWORD}"
        for flags in (("--dry-run",), (), ("--json",)):
            done = run(*words, good, *flags)
            assert done.status == 0, done.stderr
        assert run(*words, f"guarded:database={path}&user=nss&password={TOKEN}").status in (1, 2)
        assert run(*words, f"guarded:database={path}.none&user=nss&password={PASSWORD}").status in (1, 2)
        assert run(*words, f"guarded:password={PASSWORD}&nothing").status in (1, 2)
        assert run(*words, f"{PASSWORD}").status in (1, 2)
    assert not leaks_in_files(tmp_path, SECRETS)
