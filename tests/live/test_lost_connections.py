"""Connections that do not come about, or do not last: one clear sentence each, and nothing left open."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.connection import connect, lifeline
from penstock.connection.transport import plain_reason
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    LinkError,
    LoginError,
    UnreachableError,
)
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.cable import relay
from tests.live.connecting import free_port, nothing_left_open, plain, refused
from tests.support import eventually, listening


@pytest.fixture
def closed_port() -> int:
    return free_port()


# -- nobody there --------------------------------------------------------------------------------------------


async def test_nobody_listens(closed_port: int) -> None:
    """A port where nobody listens is told at once, with the way to start a server."""
    url = f"nats://127.0.0.1:{closed_port}"
    error = await refused(UnreachableError, f"No NATS server answers at {url}: connection refused", url, token="t0ken")
    assert "penstock server run" in error.remedy


async def test_no_such_host() -> None:
    """A name that does not exist is told as such."""
    await refused(UnreachableError, "No NATS server answers at nats://no-such-host.invalid", "no-such-host.invalid")


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example"], ids=["too long", "empty"])
async def test_what_is_no_host_name(host: str) -> None:
    """A name that no host can have is told as such, by both ways to connect."""
    await refused(UnreachableError, "that is not a host name", f"nats://{host}:4222")
    with pytest.raises(UnreachableError, match="that is not a host name"):
        BulkConnection(ConnectionOptions(f"nats://{host}:4222"))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError(101, "Connect call failed ('240.0.0.1', 1)"), "network is unreachable"),
        (
            OSError(
                "Multiple exceptions: [Errno 113] Connect call failed ('::1', 1, 0, 0), "
                "[Errno 111] Connect call failed ('127.0.0.1', 1)"
            ),
            "no route to host",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (OSError("[SSL] odd] words"), "words"),
    ],
)
def test_reasons_are_the_systems(error: OSError, says: str) -> None:
    """What the system says of a failed connection is told, not only ever that it was refused."""
    assert plain_reason(error) == says


@pytest.mark.parametrize(
    ("greeting", "hang_up", "says"),
    [
        (b"", False, r"No NATS server greeted us at nats://127.0.0.1:\d+ within 0\.\d+ s"),
        (b"", True, "is not a NATS server"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "is not a NATS server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False, "is not a NATS server"),
        (b"INFO nonsense\r\n", False, "is not a NATS server"),
        (b"INFO\r\n", False, "is not a NATS server"),
        (b"INFO []\r\n", False, "is not a NATS server"),
        (b"x" * 300_000, False, "is not a NATS server"),
        (b'INFO {"max_payload": 1}\r\n', True, "closed the connection before it let us in"),
        (b"INFO {}\r\n-ERR 'maximum connections exceeded'\r\n", False, "refuses the connection: maximum connections"),
    ],
    ids=["silent", "hangs-up", "http", "ssh", "bad-info", "bare-info", "list-info", "flood", "half-way", "full"],
)
async def test_what_answers_is_no_nats_server(greeting: bytes, hang_up: bool, says: str) -> None:
    """A listener that is something else, or half of a NATS server, is told within the timeout."""
    async with listening(greeting, hang_up=hang_up) as listener:
        url = f"nats://127.0.0.1:{listener.port}"
        await refused(LinkError, says, url, token="s3cr3t-t0ken", connect_timeout=0.5)
        await eventually(lambda: listener.closed == listener.opened > 0, "the connection ending")


async def test_a_http_server(server: Server) -> None:
    """The monitoring port is a common mistake: it speaks HTTP and waits for us to begin."""
    url = f"nats://{urlsplit(server.nodes[0].monitor_url).netloc}"
    await refused(UnreachableError, r"within 0\.\d+ s", url, connect_timeout=0.5)


async def test_a_full_server() -> None:
    """A server that takes no more connections says so; where its hanging up overtakes that, the remedy names it."""
    with Server(sync="2m", config="max_connections: 1") as server:
        async with await connect(server.url):
            says = "refuses the connection: maximum connections exceeded|does it take more connections"
            await refused(LinkError, says, server.url)


async def test_one_refusal_among_dead_addresses_is_the_reason(server: Server, closed_port: int) -> None:
    """Of several addresses the one that answered tells more than those that did not."""
    url = f"nats://127.0.0.1:{closed_port},{plain(server)}"
    error = await refused(LoginError, "refuses the login", url, token="wr0ng-t0ken")
    assert len(error.facts["urls"]) == 2


async def test_a_cancelled_attempt_leaves_nothing_open() -> None:
    """Whoever gives up waiting leaves no socket behind."""
    async with listening() as listener:
        async with nothing_left_open():
            attempt = asyncio.create_task(connect(f"nats://127.0.0.1:{listener.port}", connect_timeout=60))
            await eventually(lambda: listener.opened, "the attempt reaching the listener")
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
        await eventually(lambda: listener.closed, "the connection ending")


# -- lost connections ----------------------------------------------------------------------------------------


async def test_a_lost_connection_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """When the server is back, so is the connection, its subscriptions with it; callbacks and the log tell."""
    events: list[str] = []

    def note(what: str) -> Callable[[], Awaitable[None]]:
        async def callback() -> None:
            events.append(what)

        return callback

    failed: list[str] = []

    async def attempted(error: Exception) -> None:
        failed.append(str(error))

    caplog.set_level(logging.WARNING, logger="penstock.connection")
    with Server(sync="2m") as server:
        nc = await connect(
            server.url,
            reconnect_wait=0.05,
            on_error=attempted,
            on_disconnect=note("lost"),
            on_reconnect=note("back"),
            on_close=note("closed"),
        )
        subscription = await nc.subscribe("still.here")
        await nc.flush()
        server.nodes[0].stop()
        await eventually(lambda: events == ["lost"], "the loss being noticed")
        await eventually(lambda: sum("connection refused" in text for text in failed) >= 3, "some attempts")
        server.nodes[0].start()
        await eventually(lambda: events == ["lost", "back"], "the connection coming back")
        await nc.publish("still.here", b"again")
        assert (await subscription.next_msg(timeout=10)).data == b"again"
        assert "Lost the connection" in caplog.text
        assert caplog.text.count("connection refused") == 1, "once, not with each attempt"
        assert "again." in caplog.text
        caplog.clear()
        await nc.close()
        assert events == ["lost", "back", "closed"]
        assert caplog.text == ""
        assert str(server.token) not in caplog.text


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_a_connection_is_given_up_after_its_attempts(attempts: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each address is tried as often as the option says, then the connection is closed and says why."""
    closed, errors = asyncio.Event(), []

    async def on_close() -> None:
        closed.set()

    async def on_error(error: Exception) -> None:
        errors.append(error)

    caplog.set_level(logging.WARNING, logger="penstock.connection")
    with Server(sync="2m") as server:
        nc = await connect(
            server.url,
            reconnect_attempts=attempts,
            reconnect_wait=0.05,
            on_close=on_close,
            on_error=on_error,
        )
        server.nodes[0].kill()
        await eventually(lambda: not nc.is_connected, "the loss being noticed")
        if not nc.is_closed:
            await nc.publish("waiting", b"for a server that never comes")
        async with asyncio.timeout(20):
            await closed.wait()
    refusals = [error for error in errors if isinstance(error, UnreachableError)]
    assert len(refusals) == attempts
    assert all("connection refused" in str(error) for error in refusals)
    assert nc.is_closed
    assert "Gave up the connection to" in caplog.text
    with pytest.raises(DisconnectedError):
        await nc.publish("late", b"")


@pytest.mark.parametrize("fields", [{"reconnect": False}, {"reconnect_attempts": 0}], ids=["off", "zero"])
async def test_a_connection_without_reconnect_ends(fields: dict[str, Any]) -> None:
    """Without reconnects, or with none allowed, the first loss is the end."""
    closed = asyncio.Event()

    async def on_close() -> None:
        closed.set()

    with Server(sync="2m") as server:
        nc = await connect(server.url, on_close=on_close, **fields)
        server.nodes[0].kill()
        async with asyncio.timeout(20):
            await closed.wait()
        assert nc.is_closed
        assert not nc.is_reconnecting


async def test_a_login_that_is_refused_on_the_way_back_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that comes back with another token refuses us: the log says so each time, without the token."""
    caplog.set_level(logging.WARNING, logger="penstock.connection")
    with Server(sync="2m", store=tmp_path / "one", token="first-t0ken") as server:
        port = int(server.nodes[0].address.rpartition(":")[2])
        nc = await connect(server.url, reconnect_wait=0.05)
        server.stop()
        with Server(sync="2m", store=tmp_path / "two", token="second-t0ken", port=port):
            await eventually(lambda: caplog.text.count("Authorization Violation") >= 2, "the refusals")
            assert not nc.is_connected
            await nc.close()
    assert "first-t0ken" not in caplog.text


async def test_a_failed_attempt_calls_nobody(closed_port: int, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that never stood is neither lost nor closed: its error is enough."""
    events: list[str] = []

    async def callback(*_: object) -> None:
        events.append("called")

    for url in (f"nats://127.0.0.1:{closed_port}",):
        with pytest.raises(UnreachableError):
            await connect(url, on_close=callback, on_disconnect=callback, on_reconnect=callback, on_error=callback)
    async with listening() as silent:
        with pytest.raises(UnreachableError):
            await connect(
                f"nats://127.0.0.1:{silent.port}",
                connect_timeout=0.3,
                on_close=callback,
                on_disconnect=callback,
                on_error=callback,
            )
    assert events == []
    assert caplog.text == ""


async def test_no_surprise_ends_the_attempts(server: Server, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """Whatever goes wrong in an attempt to come back, the next one is made."""
    attempts, opening = [], lifeline.open_wire

    async def surprising(*given: Any) -> None:
        attempts.append(given)
        if len(attempts) < 3:
            raise ZeroDivisionError("on purpose")
        await opening(*given)

    async with relay(server) as wire:
        nc = await connect(wire.url, reconnect_wait=0.02)
        monkeypatch.setattr(lifeline, "open_wire", surprising)
        wire.cut()
        await eventually(lambda: nc.stretch == 2, "the connection coming back")
        await nc.close()
    assert caplog.text.count("failed in an unexpected way") == 2


async def test_a_question_during_an_outage_blames_the_outage() -> None:
    """A request that ends while there is no connection says so, and advises no longer timeout."""
    with Server(sync="2m") as server:
        nc = await connect(server.url, reconnect_wait=0.05)
        server.nodes[0].kill()
        await eventually(lambda: not nc.is_connected, "the loss being noticed")
        with pytest.raises(DeadlineError, match="being made again: is the server still running") as caught:
            await nc.request("anybody", timeout=0.1)
        assert "longer timeout" not in str(caught.value)
        await nc.close()
