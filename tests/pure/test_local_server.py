"""The server of `penstock server run`: found by its user, here, while it lives, and by nobody who chose another."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import local_server
from penstock.contexts import load_options, to_context
from penstock.errors import ContextError
from penstock.local_server import announce, find_local_server, state_home
from penstock.options import ConnectionOptions

URL = "nats://sesame@127.0.0.1:4333"
FIELDS = to_context(ConnectionOptions(URL))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


@pytest.fixture
def announced(environ: dict[str, str]) -> Iterator[Path]:
    with announce(FIELDS, environ) as path:
        yield path


def test_it_is_found_while_it_runs_and_not_after(environ: dict[str, str], tmp_path: Path):
    """Whoever names no server gets its address and its token; when the block is over, the default address."""
    assert load_options(environ=environ).urls == ("nats://127.0.0.1:4222",)
    with announce(FIELDS, environ) as path:
        found = load_options(environ=environ)
        assert (found.urls, found.token) == (("nats://127.0.0.1:4333",), "sesame")
        assert path == tmp_path / ".local" / "state" / "penstock" / "server.json"
        for file in (path, path.with_suffix(".lock")):
            assert file.stat().st_mode & 0o777 == 0o600, "the token is for its owner alone"
    assert not path.exists()
    assert load_options(environ=environ).urls == ("nats://127.0.0.1:4222",)


@pytest.mark.usefixtures("announced")
def test_who_chose_a_server_keeps_it(environ: dict[str, str], tmp_path: Path):
    """A URL, NATS_URL, NATS_CONTEXT, a selected context and `no_context` all go before it."""
    folder = tmp_path / ".config" / "nats"
    (folder / "context").mkdir(parents=True)
    (folder / "context" / "mine.json").write_text(json.dumps({"url": "nats://mine:1"}))
    mine = ("nats://mine:1",)
    assert load_options("nats://mine:1", environ=environ).urls == mine
    assert load_options(environ={**environ, "NATS_URL": "nats://mine:1"}).urls == mine
    assert load_options(environ={**environ, "NATS_CONTEXT": "mine"}).urls == mine
    assert load_options(context="mine", environ=environ).urls == mine
    assert load_options(environ=environ, no_context=True).urls == ("nats://127.0.0.1:4222",)
    assert load_options(environ=environ).token == "sesame"
    (folder / "context.txt").write_text("mine")
    found = load_options(environ=environ)
    assert (found.urls, found.token) == (mine, None), "no token of the one goes to the other"


def test_a_second_one_changes_nothing(announced: Path, environ: dict[str, str]):
    """While one is found, another one is not, is told so, and leaves the first as it is."""
    before = announced.read_bytes()
    with pytest.raises(ContextError, match=rf"found already \(pid {os.getpid()}\)"):
        announce({**FIELDS, "url": "nats://127.0.0.1:4444"}, environ).__enter__()
    assert announced.read_bytes() == before
    assert find_local_server(environ) == announced


_DIE = """
import os, signal, sys
from penstock.local_server import announce
with announce({"url": "nats://127.0.0.1:4333", "token": "sesame"}):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_that_was_killed_is_told_once_and_forgotten(environ: dict[str, str], caplog: pytest.LogCaptureFixture):
    """After kill -9 nobody is sent to the dead address: it is said that the server is gone, and the file goes."""
    child = subprocess.run([sys.executable, "-c", _DIE], env={**os.environ, **environ}, timeout=60)
    assert child.returncode < 0
    path = Path(environ["HOME"], ".local/state/penstock/server.json")
    assert path.exists()
    with caplog.at_level(logging.WARNING):
        assert load_options(environ=environ).urls == ("nats://127.0.0.1:4222",)
        assert load_options(environ=environ).token is None
    (record,) = caplog.records
    assert "is gone" in record.getMessage()
    assert "penstock server run" in record.getMessage()
    assert "sesame" not in record.getMessage()
    assert not path.exists()
    with announce(FIELDS, environ):
        assert load_options(environ=environ).token == "sesame"


def test_another_machine_is_another_network(
    announced: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A home may be on two machines, or in two containers: an address of loopback counts where it was written."""
    monkeypatch.setattr(local_server, "_here", lambda: "elsewhere")
    assert find_local_server(environ) is None
    assert announced.exists()
    assert not caplog.records


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"url": "nats://127.0.0.1:1"}', '{"run": 1}', "[" * 100_000])
def test_a_file_that_is_none_leads_nowhere(announced: Path, environ: dict[str, str], content: str):
    """What somebody broke is not used."""
    announced.write_text(content)
    assert find_local_server(environ) is None


def test_a_file_that_others_may_write_leads_nowhere(announced: Path, environ: dict[str, str]):
    """Nobody else can send this user's messages, or a token, to a server of theirs."""
    announced.chmod(0o622)
    assert find_local_server(environ) is None
    announced.chmod(0o600)
    assert find_local_server(environ) == announced
    announced.rename(announced.with_name("other"))
    announced.symlink_to(announced.with_name("other"))
    assert find_local_server(environ) is None


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path):
    """The server runs all the same, so what is wrong is an error that its command can tell."""
    (tmp_path / ".local").write_text("a file")
    with pytest.raises(ContextError, match="cannot be written"):
        announce(FIELDS, {"HOME": str(tmp_path)}).__enter__()
    assert find_local_server({"HOME": str(tmp_path)}) is None


def test_where_state_lives(tmp_path):
    """XDG_STATE_HOME counts if it is a whole path; a home that is not there gives no place, and is not made."""
    home = str(tmp_path)
    assert state_home({"HOME": home, "XDG_STATE_HOME": "/s"}) == Path("/s")
    assert state_home({"HOME": home, "XDG_STATE_HOME": "s"}) == tmp_path / ".local" / "state"
    assert state_home({"HOME": f"{home}/nobody"}) is None
