"""nats-py's own client from our options: stock, nothing patched, for programs that need that client itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from penstock.connection.stock import connect_nats_py
from penstock.errors import InputError, LoginError, OptionError
from penstock.options import ConnectionOptions
from penstock.server import Server
from tests.live.connecting import free_port, listed, plain
from tests.support import Authority, Key, Operator

Unique = Callable[..., str]


async def works(client: Client) -> bool:
    """Send a message through the server and back, with nats-py's own means."""
    subscription = await client.subscribe(inbox := client.new_inbox())
    await client.publish(inbox, b"hello")
    return (await subscription.next_msg(timeout=10)).data == b"hello"


async def test_it_is_nats_pys_own(server: Server, unique: Unique):
    """The client is nats-py's class itself, under our name or another one, and has everything that nats-py has."""
    name = unique("stock")
    client = await connect_nats_py(server.url, name=name)
    try:
        assert type(client) is Client
        assert await works(client)
        assert name in [item.get("name") for item in listed(server)]
        js = client.jetstream()
        await js.add_stream(name=name, subjects=[name])
        assert (await js.publish(name, b"x")).seq == 1
        await js.delete_stream(name)
    finally:
        await client.close()


async def test_logins(tmp_path: Path):
    """Token, user, nkey and credentials of our options reach nats-py, from text and from files."""
    key, operator = Key.make(), Operator()
    seed = tmp_path / "user.nk"
    seed.write_text(key.seed + "\n")
    creds = tmp_path / "user.creds"
    creds.write_text(operator.credentials())
    users = f"authorization {{ users: [ {{ user: ann, password: p4ss }}, {{ nkey: {key.public} }} ] }}"
    with (
        Server(sync="2m", auth=False, config=users) as by_user,
        Server(sync="2m", auth=False, config=operator.config()) as by_credentials,
    ):
        for server, options in (
            (by_user, {"user": "ann", "password": "p4ss"}),
            (by_user, {"nkey": key.seed}),
            (by_user, {"nkey": str(seed)}),
            (by_credentials, {"credentials": str(creds)}),
            (by_credentials, {"credentials": operator.credentials()}),
        ):
            client = await connect_nats_py(ConnectionOptions(plain(server), **options))
            assert await works(client)
            await client.close()
        with pytest.raises(LoginError, match="cannot be read"):
            await connect_nats_py(plain(by_user), nkey=str(tmp_path / "gone"))


async def test_contexts_and_environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Options come from where they come for every other connection of ours."""
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "here.json").write_text(json.dumps({"url": plain(server), "token": server.token}))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NATS_URL", raising=False)
    client = await connect_nats_py(context="here")
    assert await works(client)
    await client.close()
    monkeypatch.setenv("NATS_URL", server.url)
    client = await connect_nats_py()
    assert await works(client)
    await client.close()


async def test_nats_pys_own_options_pass_through(server: Server):
    """What only nats-py knows is given to it as it is, its callbacks included; what nobody knows it refuses."""
    closed: list[str] = []

    async def closed_cb() -> None:
        closed.append("closed")

    client = await connect_nats_py(server.url, closed_cb=closed_cb, pending_size=12345, inbox_prefix="_MINE")
    assert client.new_inbox().startswith("_MINE.")
    await client.close()
    assert closed == ["closed"]
    with pytest.raises(TypeError, match="nothing_like_it"):
        await connect_nats_py(server.url, nothing_like_it=1)
    with pytest.raises(OptionError):
        await connect_nats_py(server.url, reconnect_wait="soon")


async def test_errors_are_nats_pys_own(server: Server):
    """Nothing is translated: who asked for nats-py gets its errors."""

    async def quiet(error: Exception) -> None:
        """It is raised, too."""

    with pytest.raises(nats.errors.NoServersError):
        await connect_nats_py(f"nats://127.0.0.1:{free_port()}", reconnect_attempts=1, reconnect=True, error_cb=quiet)
    client = await connect_nats_py(server.url)
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("nobody.there", timeout=5)
    await client.close()


async def test_tls_is_not_left_to_chance(tmp_path: Path):
    """nats-py would go on in plain text with a server that has no TLS: a connection that insists on it is refused."""
    authority = Authority(tmp_path)
    pair = authority.issue("server", "127.0.0.1")
    for options in ({"tls_ca": str(authority.ca)}, {}):
        with pytest.raises(InputError, match="falls back to plain text") as caught:
            await connect_nats_py("tls://127.0.0.1:1" if not options else "nats://127.0.0.1:1", **options)
        assert "penstock.connect" in caught.value.remedy
    config = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", handshake_first: true }}'
    with Server(sync="2m", auth=False, config=config) as server:
        client = await connect_nats_py(plain(server), tls_ca=str(authority.ca), tls_first=True)
        assert await works(client)
        await client.close()


async def test_a_server_that_wants_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server that asks for TLS gets it, checked against the system's authorities."""
    authority = Authority(tmp_path)
    pair = authority.issue("server", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    with Server(sync="2m", tls_cert=pair.cert, tls_key=pair.key) as server:
        client = await connect_nats_py(plain(server), token=server.token)
        assert await works(client)
        await client.close()


async def test_without_nats_py(monkeypatch: pytest.MonkeyPatch):
    """Where nats-py is not installed that is said, with the way to install it."""
    for name in ("nats", "nats.aio", "nats.aio.client"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="nats-py is not installed") as caught:
        await connect_nats_py("nats://127.0.0.1:1")
    assert "penstock[nats-py]" in caught.value.remedy
