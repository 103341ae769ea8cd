"""Mutual TLS of blocking connections, which Spark's tasks use: a refused certificate is told and not tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import connect
from penstock.errors import TlsError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.connections import TaskConnection, borrow
from penstock.wire.bulk import BulkConnection
from tests.live.connecting import plain
from tests.support import Authority, Pair

PATIENCE = 600.0  # how long an outage would be waited for; no test waits


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A certificate of an authority that the server does not know."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger").issue("client")


@pytest.fixture(scope="module", params=["greets", "handshake first"])
def mutual(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Server]:
    """A server that wants a certificate of every client, after it greeted or before it says anything."""
    pair, first = authority.issue("server", "127.0.0.1", "localhost"), request.param == "handshake first"
    files = f'cert_file: "{pair.cert}", key_file: "{pair.key}", ca_file: "{authority.ca}", verify: true'
    config = f"tls {{ {files}, handshake_first: {str(first).lower()} }}"
    with Server(sync="2m", auth=False, config=config) as running:
        running.first = first
        yield running


def options(server: Any, authority: Authority, pair: Pair | None = None) -> ConnectionOptions:
    ours = {} if pair is None else {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    return ConnectionOptions(plain(server), tls_ca=str(authority.ca), tls_first=server.first, **ours)


@pytest.mark.parametrize("known", ["none", "stranger"])
def test_a_certificate_that_is_missing_or_not_trusted(
    mutual: Server, authority: Authority, stranger: Pair, known: str, caplog: pytest.LogCaptureFixture
):
    """TlsError with what to give, from each way to make a blocking connection, and no second attempt."""
    given = options(mutual, authority, stranger if known == "stranger" else None)
    remedy = "does not take our certificate" if known == "stranger" else "give tls_cert and tls_key"
    for _ in range(3):  # the alert races with the end of the stream
        for make in (BulkConnection, lambda item: TaskConnection(item, PATIENCE), _borrow):
            with pytest.raises(TlsError, match=r"TLS with .* failed") as caught:
                make(given)
            assert remedy in str(caught.value)
    assert "Trying on" not in caplog.text


def _borrow(given: ConnectionOptions) -> None:
    with borrow(given, PATIENCE):
        pass


async def test_the_same_with_asyncio(mutual: Server, authority: Authority, stranger: Pair):
    """The other driver says the same, also where the handshake comes before the greeting."""
    for pair, remedy in ((None, "give tls_cert and tls_key"), (stranger, "does not take our certificate")):
        with pytest.raises(TlsError, match=r"TLS with .* failed") as caught:
            await connect(options(mutual, authority, pair))
        assert remedy in str(caught.value)


def test_a_certificate_that_is_trusted(mutual: Server, authority: Authority):
    """With a certificate of the server's authority, reading works."""
    with TaskConnection(options(mutual, authority, authority.issue("client"))) as bulk:
        assert bulk.ask("INFO")["streams"] == 0


async def test_a_certificate_that_is_trusted_no_more(authority: Authority, stranger: Pair, tmp_path: Path):
    """A task that has worked, and is refused after an outage, is told so and does not try until its patience ends."""
    pair, ours = authority.issue("server", "127.0.0.1"), authority.issue("client")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(authority.ca.read_text())
    with Server(sync="2m", auth=False, tls_cert=pair.cert, tls_key=pair.key, tls_ca=trusted) as server:
        server.first = False
        with TaskConnection(options(server, authority, ours), PATIENCE) as bulk:
            bulk.ask("INFO")
            server.nodes[0].stop()
            trusted.write_text(stranger.cert.read_text())
            server.nodes[0].start()
            with pytest.raises(TlsError, match=r"TLS with .* failed"):
                bulk.ask("INFO")
