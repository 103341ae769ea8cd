"""Connections through a SOCKS proxy: asyncio's, the blocking one and the command's."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from penstock import ConnectionOptions
from penstock.connection import connect, connect_nats_py
from penstock.errors import InputError, LoginError, UnreachableError
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.connecting import free_port
from tests.live.inprocess import invoke
from tests.live.socks import proxy

DRIVERS = ["asyncio", "bulk"]


def behind(server: Server, host: str = "127.0.0.1") -> str:
    """Give the server's address by another name."""
    parts = urlsplit(server.url)
    return f"nats://{parts.username}@{host}:{parts.port}"


async def ask(driver: str, options: ConnectionOptions) -> dict[str, object]:
    """Connect with one of the drivers, and ask JetStream something."""
    if driver == "bulk":
        with BulkConnection(options) as bulk:
            return bulk.api("INFO")
    client = await connect(options)
    try:
        from penstock.connection import api_request

        found: dict[str, object] = await api_request(client, "INFO")
        return found
    finally:
        await client.close()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("login", [None, ("ann", "p@:/ß")])
async def test_a_proxy_connects_us_to_a_name_that_it_alone_knows(server: Server, driver: str, login):
    """Everything goes through the proxy, with its login; names are looked up there; nothing of the greeting is lost."""
    with proxy(login) as socks:
        user = "ann:p%40%3A%2F%C3%9F@" if login else ""
        options = ConnectionOptions(behind(server, "nats.test"), socks_proxy=f"socks5://{user}{socks.address}")
        assert "limits" in await ask(driver, options)
        port = urlsplit(server.url).port
        assert set(socks.asked) == {("nats.test", port)}
        assert socks.logins == ([login] if login else [])


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("login", "reply", "given", "kind", "says"),
    [
        (None, 5, "", UnreachableError, "cannot connect us to 127.0.0.1:9: the connection was refused"),
        (None, 99, "", UnreachableError, "its reply is 99"),
        (("ann", "right"), 0, "ann:s3cr3t@", LoginError, "refuses the login"),
        (("ann", "right"), 0, "", LoginError, "wants a login, and none is given"),
    ],
)
async def test_what_a_proxy_refuses_is_told(driver: str, login, reply: int, given: str, kind, says: str):
    """The proxy's reason is told, with its address and without its password."""
    with proxy(login, reply) as socks:
        options = ConnectionOptions("nats://127.0.0.1:9", socks_proxy=f"socks5://{given}{socks.address}")
        with pytest.raises(kind, match=says) as caught:
            await ask(driver, options)
        assert socks.address in str(caught.value)
        assert "s3cr3t" not in str(caught.value) + repr(options)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_proxy_that_is_none_is_told(server: Server, driver: str):
    """A proxy that is not there, and a server that is no proxy, are told at once; both are the proxy's fault."""
    options = ConnectionOptions(server.url, socks_proxy=f"socks5://127.0.0.1:{free_port()}")
    with pytest.raises(UnreachableError, match=r"The SOCKS proxy at .* cannot be reached: connection refused"):
        await ask(driver, options)
    options = ConnectionOptions(server.url, socks_proxy=f"socks5://127.0.0.1:{urlsplit(server.url).port}")
    with pytest.raises(UnreachableError, match="is not a SOCKS5 proxy"):
        await ask(driver, options)


async def test_nats_py_says_that_it_cannot(server: Server):
    """nats-py has no way through a proxy, and goes none around it."""
    with pytest.raises(InputError, match="nats-py cannot connect with a SOCKS proxy"):
        await connect_nats_py(server.url, socks_proxy="socks5://127.0.0.1:1080")


def test_the_command_goes_through_a_proxy(server: Server, tmp_path):
    """--socks-proxy and NATS_SOCKS_PROXY name one, and `none` takes back that of a context."""
    with proxy() as socks:
        done = invoke(behind(server), "rtt", "1", "--socks-proxy", f"socks5://{socks.address}")
        assert done.status == 0, done.stderr
        assert len(socks.asked) == 1
        done = invoke(behind(server), "rtt", "1", NATS_SOCKS_PROXY=f"socks5h://{socks.address}")
        assert done.status == 0, done.stderr
        assert len(socks.asked) == 2
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    gone = f"socks5://{socks.address}"
    assert invoke(None, "context", "add", "x", "-s", server.url, "--socks-proxy", gone, **home).status == 0
    done = invoke(None, "rtt", "1", "--context", "x", **home)
    assert done.status == 1
    assert f"The SOCKS proxy at {socks.address} cannot be reached" in done.stderr
    assert invoke(None, "rtt", "1", "--context", "x", "--socks-proxy", "none", **home).status == 0
    done = invoke(None, "rtt", "--socks-proxy", "http://s3cr3t@h")
    assert (done.status, "is not a SOCKS5 proxy" in done.stderr, "s3cr3t" in done.stderr) == (2, True, False)
