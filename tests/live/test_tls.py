"""TLS with the real server, over TCP and WebSocket; and that no login ever goes out in plain text against our will."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.connection import connect
from penstock.errors import (
    LoginError,
    TlsError,
    UnreachableError,
)
from penstock.server import Server
from tests.live.connecting import free_port, listed, plain, refused, works
from tests.support import Authority, Pair, listening

# -- TLS -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server", "127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def secure(pair: Pair) -> Iterator[Server]:
    """A server that wants TLS."""
    with Server(sync="2m", tls_cert=pair.cert, tls_key=pair.key) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(authority: Authority, pair: Pair) -> Iterator[Server]:
    """A server that wants a certificate of every client."""
    with Server(sync="2m", tls_cert=pair.cert, tls_key=pair.key, tls_ca=authority.ca) as running:
        yield running


async def test_tls_with_the_servers_authority(secure: Server, authority: Authority) -> None:
    """The authority may be a file or text, and the address nats:// or tls://: the server asks for TLS."""
    for scheme, given in (("tls", str(authority.ca)), ("nats", authority.ca.read_text())):
        url = f"{scheme}://{secure.nodes[0].address}"
        async with await connect(url, token=secure.token, tls_ca=given) as nc:
            assert await works(nc)
            assert [item.get("tls_version") for item in listed(secure)] == ["1.3"]


async def test_a_certificates_name_may_differ_from_the_address(authority: Authority) -> None:
    """`tls_hostname` names what the certificate carries; without it the mismatch is told, with the way out."""
    other = authority.issue("elsewhere", "elsewhere.example")
    with Server(sync="2m", tls_cert=other.cert, tls_key=other.key) as server:
        fields = {"token": server.token, "tls_ca": str(authority.ca)}
        async with await connect(plain(server), tls_hostname="elsewhere.example", **fields) as nc:
            assert await works(nc)
        error = await refused(TlsError, "mismatch", plain(server), **fields)
        assert "tls_hostname" in error.remedy


async def test_an_unknown_authority(secure: Server, tmp_path: Path) -> None:
    """A certificate of an authority that we do not know is refused, with the option that would help."""
    error = await refused(TlsError, "TLS with .* failed: self.signed|unable to get", plain(secure), token=secure.token)
    assert "give tls_ca" in error.remedy
    stranger = Authority(tmp_path, "stranger")
    error = await refused(TlsError, "TLS with .* failed", plain(secure), token=secure.token, tls_ca=str(stranger.ca))
    assert "Does tls_ca belong" in error.remedy


async def test_mutual_tls(mutual: Server, authority: Authority) -> None:
    """A certificate of ours, as files or as text, opens a server that wants one."""
    ours = authority.issue("client")
    files = {"tls_ca": authority.ca, "tls_cert": ours.cert, "tls_key": ours.key}
    for given in ({k: str(v) for k, v in files.items()}, {k: v.read_text() for k, v in files.items()}):
        async with await connect(plain(mutual), token=mutual.token, **given) as nc:
            assert await works(nc)


async def test_mutual_tls_without_a_certificate_of_ours(mutual: Server, authority: Authority, tmp_path: Path) -> None:
    """A server that wants our certificate says so, whether we have none or one that it does not trust."""
    fields = {"token": mutual.token, "tls_ca": str(authority.ca)}
    for _ in range(5):  # the alert races with the end of the stream
        error = await refused(TlsError, "TLS with .* failed", plain(mutual), **fields)
        assert "give tls_cert and tls_key" in error.remedy
    wrong = Authority(tmp_path, "stranger").issue("client")
    pair = {"tls_cert": str(wrong.cert), "tls_key": str(wrong.key)}
    for _ in range(5):
        error = await refused(TlsError, "TLS with .* failed", plain(mutual), **fields, **pair)
        assert "does not take our certificate" in error.remedy


async def test_handshake_first(authority: Authority, pair: Pair) -> None:
    """A server that waits for our hello gets it with `tls_first`; without it the error names the option."""
    config = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", handshake_first: true }}'
    with Server(sync="2m", auth=False, config=config) as server:
        async with await connect(plain(server), tls_first=True, tls_ca=str(authority.ca)) as nc:
            assert await works(nc)
        error = await refused(
            UnreachableError,
            "greeted us|not a NATS server",
            plain(server),
            tls_ca=str(authority.ca),
            connect_timeout=1.0,
        )
        assert "tls_first" in error.remedy


async def test_handshake_first_with_a_server_that_greets(server: Server) -> None:
    """`tls_first` at a server that speaks first in plain text is told apart, and nothing is sent."""
    error = await refused(TlsError, "TLS with .* failed", plain(server), token=server.token, tls_first=True)
    assert "leave tls_first out" in error.remedy


INFO = {"server_id": "X", "version": "2.15.1", "proto": 1, "max_payload": 1048576, "headers": True}


@pytest.mark.parametrize("insist", ["tls://", "tls_ca", "tls_first"])
async def test_no_login_is_sent_in_plain_text_where_tls_is_wanted(authority: Authority, insist: str) -> None:
    """A server without TLS gets neither CONNECT nor token from a connection that insists on TLS."""
    greeting = b"INFO " + json.dumps({**INFO, "auth_required": True}).encode() + b"\r\n"
    async with listening(greeting, answer=b"PONG\r\n") as listener:
        scheme = "tls" if insist == "tls://" else "nats"
        fields: dict[str, Any] = {"tls_ca": str(authority.ca)} if insist == "tls_ca" else {}
        fields |= {"tls_first": True} if insist == "tls_first" else {}
        url = f"{scheme}://127.0.0.1:{listener.port}"
        await refused(TlsError, "does not offer TLS|failed: ", url, token="s3cr3t-t0ken", **fields)
        assert listener.opened == 1
        assert b"CONNECT" not in listener.heard
        assert b"s3cr3t" not in listener.heard


async def test_the_recording_listener_would_hear_a_login() -> None:
    """The same listener hears CONNECT and the token from a connection that does not insist: the test above can fail."""
    greeting = b"INFO " + json.dumps({**INFO, "auth_required": True}).encode() + b"\r\n"
    async with listening(greeting, answer=b"PONG\r\n") as listener:
        nc = await connect(f"nats://127.0.0.1:{listener.port}", token="s3cr3t-t0ken")
        await nc.close()
        assert b"CONNECT" in listener.heard
        assert b"s3cr3t-t0ken" in listener.heard


async def test_tls_is_wanted_of_a_real_server_without_it(server: Server) -> None:
    """The real server without TLS is refused in the same words."""
    url = f"tls://{server.nodes[0].address}"
    await refused(TlsError, "does not offer TLS, and this connection insists on it", url, token=server.token)


# -- WebSocket -----------------------------------------------------------------------------------------------


@contextmanager
def websocket_server(port: int, tls: str) -> Iterator[Server]:
    config = f'websocket {{ listen: "127.0.0.1:{port}", {tls} }}\nauthorization {{ token: "w3b-t0ken" }}'
    with Server(sync="2m", auth=False, config=config) as running:
        yield running


async def test_websocket() -> None:
    """A ws:// address carries the same protocol; refused logins and wrong ports are told as elsewhere."""
    port = free_port()
    with websocket_server(port, "no_tls: true") as server:
        url = f"ws://127.0.0.1:{port}"
        async with await connect(url, token="w3b-t0ken") as nc:
            assert await works(nc)
        await refused(LoginError, "refuses the login with a token", url, token="wr0ng-t0ken")
        await refused(UnreachableError, "No NATS server answers", f"ws://127.0.0.1:{free_port()}", token="t0ken")
        monitor = urlsplit(server.nodes[0].monitor_url).netloc
        await refused(UnreachableError, "not the WebSocket port", f"ws://{monitor}", token="t0ken-x")


async def test_secure_websocket(authority: Authority, pair: Pair) -> None:
    """A wss:// address has TLS of its own, checked in the same way."""
    port = free_port()
    with websocket_server(port, f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'):
        url = f"wss://127.0.0.1:{port}"
        async with await connect(url, token="w3b-t0ken", tls_ca=str(authority.ca)) as nc:
            assert await works(nc)
        error = await refused(TlsError, "TLS with .* failed", url, token="w3b-t0ken")
        assert "give tls_ca" in error.remedy


async def test_a_websocket_address_of_a_port_for_clients(secure: Server, authority: Authority, pair: Pair) -> None:
    """A wss:// or ws:// address of a port that is no WebSocket's is told in a sentence, whoever speaks first there."""
    wss = {"token": secure.token, "tls_ca": str(authority.ca)}
    error = await refused(TlsError, "TLS with wss://.* failed", f"wss://{secure.nodes[0].address}", **wss)
    assert "port of the server's websocket block? A port for clients has a tls:// address" in error.remedy
    await refused(UnreachableError, "not the WebSocket port", f"ws://{secure.nodes[0].address}", token=secure.token)
    first = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", handshake_first: true }}'
    with Server(sync="2m", auth=False, config=first) as server:
        await refused(UnreachableError, "not the WebSocket port", f"wss://{server.nodes[0].address}", **wss)
