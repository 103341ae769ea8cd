"""The first steps: a server that is found without a URL, by whom it should be, and as long as it runs."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cli import server as server_command
from tests.live.command import Command, Running

FOUND = "find it without a URL"


@pytest.fixture
def home(tmp_path: Path) -> Command:
    """An empty home."""
    with socket.socket() as probe:  # what others run there would be in the way, and is respected
        if probe.connect_ex(("127.0.0.1", 4222)) == 0:
            pytest.fail("Something listens at 127.0.0.1:4222: stop it, and run this again.")
    return Command(tmp_path)


@pytest.fixture
def running(home: Command) -> Iterator[Running]:
    with home.running("server", "run", "--sync", "2m") as child:
        child.wait_for("is running")
        yield child


def test_commands_find_the_server_that_runs(home: Command, running: Running):
    """pub, stream and server info need no URL and no token; Ctrl-C takes it all back, and says nothing of a killing."""
    assert any(FOUND in line for line in running.lines)
    assert home("stream", "add", "ORDERS", "--subjects", "orders.>", "--defaults").returncode == 0
    assert home("pub", "orders.new", "hello").returncode == 0
    assert json.loads(home("stream", "info", "ORDERS", "--json").stdout)["state"]["messages"] == 1
    assert running.interrupt() == 0
    after = home("stream", "ls")
    assert after.returncode == 1
    assert "127.0.0.1:4222" in after.stderr
    assert "is gone" not in after.stderr


async def test_programs_find_the_server_that_runs(
    home: Command, running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`penstock.connect()` in a program of the same user finds it, too."""
    for name in ("NATS_URL", "NATS_CONTEXT", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    client = await penstock.connect()
    try:
        await client.flush()
    finally:
        await client.close()


def test_a_server_that_was_killed_is_told(home: Command, running: Running):
    """After kill -9 the next command says that the server is gone, once, and goes to no dead address."""
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    first, second = home("stream", "ls"), home("stream", "ls")
    assert "is gone, and was not stopped in order" in first.stderr
    assert "is gone" not in second.stderr
    for done in (first, second):
        assert done.returncode == 1
        assert "127.0.0.1:4222" in done.stderr


def test_who_selected_a_context_keeps_it(home: Command):
    """With a selected context `server run` says so, changes nothing, and names the context that leads to it."""
    assert home("context", "add", "mine", "--server", "nats://127.0.0.1:1", "--select").returncode == 0
    with home.running("server", "run", "--sync", "2m") as child:
        told = child.wait_for("is selected")
        child.wait_for("is running")
        assert "The context mine is selected, and commands go on using it." in told
        refused = home("rtt")
        assert refused.returncode == 1
        assert "127.0.0.1:1" in refused.stderr
        path = told.split("--context ")[1].split(",")[0]
        assert home("pub", "a", "b", "--context", path).returncode == 0
        assert child.interrupt() == 0
    assert home("context", "ls", "--json").stdout.count("mine")


def test_variables_go_before_it(home: Command):
    """NATS_URL in the shell of `server run` goes on counting there, which is said."""
    with home.running("server", "run", "--sync", "2m", NATS_URL="nats://127.0.0.1:1") as child:
        assert "in other shells they find this one" in child.wait_for("NATS_URL is set in this shell")
        child.wait_for("is running")
        assert home("pub", "a", "b").returncode == 0
        assert home("pub", "a", "b", NATS_URL="nats://127.0.0.1:1").returncode == 1


def test_a_second_server_changes_nothing(home: Command, running: Running):
    """Commands go on finding the first one; the second says so, and how it is named."""

    def found() -> str:
        return json.loads(home("server", "info", "--json").stdout)["server"]["server_id"]

    first = found()
    with home.running("server", "run", "--sync", "2m") as child:
        told = child.wait_for("do not find this one")
        assert f"(pid {running.process.pid})" in told
        child.wait_for("is running")
        assert found() == first
        assert child.interrupt() == 0
    assert home("pub", "a", "b").returncode == 0, "the first one is still found"


def test_a_server_at_the_default_address_stays_the_one(home: Command, monkeypatch: pytest.MonkeyPatch, server):
    """If something listens where commands go by default, they go on going there, and nobody is sent elsewhere."""
    monkeypatch.setattr(server_command, "DEFAULT_URL", penstock.ConnectionOptions(server.url).url)

    class Other:
        url = urls = ("nats://127.0.0.1:1",)

    with server_command._found(Other()) as (context, told):  # type: ignore[arg-type]
        assert context is None
        assert "commands that name no server go there" in told
    assert server_command._listener(server) is None, "this server itself is nobody else"
