"""Connecting to the real server: every way in, and one clear sentence for every way that is closed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
import pytest

import penstock
from penstock.connection import Client, api_request, connect, foreign_errors, jetstream, translate
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    LinkError,
    LocalProtocolError,
    LoginError,
    NoRespondersError,
    NotFoundError,
    OptionError,
    PenstockError,
    RemoteProtocolError,
    TlsError,
    UnreachableError,
)
from penstock.server import Server
from tests.support import Authority, Key, Operator, Pair, eventually, listening

# aiohttp calls the way in which nats-py gives it a timeout old-fashioned; that is between the two of them.
websocket_warnings = pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float':DeprecationWarning")


def plain(server: Server) -> str:
    """Give the address of a server without its token."""
    return f"nats://{server.nodes[0].address}"


async def works(nc: Client) -> bool:
    """Send a message through the server and back."""
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish(inbox, b"hello")
    return (await subscription.next_msg(timeout=10)).data == b"hello"


def listed(server: Server) -> list[dict[str, Any]]:
    """Give the server's own list of its connections."""
    with urllib.request.urlopen(f"{server.nodes[0].monitor_url}/connz", timeout=10) as page:
        return list(json.load(page)["connections"])


@asynccontextmanager
async def nothing_left_open() -> AsyncIterator[None]:
    """Check that a failed attempt leaves neither a task nor a socket of its own behind."""
    before = asyncio.all_tasks()
    loop: Any = asyncio.get_running_loop()
    watched = set(loop._selector.get_map()) if hasattr(loop, "_selector") else set()
    yield
    await eventually(lambda: not asyncio.all_tasks() - before, "the tasks of the attempt ending", timeout=5)
    now = set(loop._selector.get_map()) if hasattr(loop, "_selector") else set()
    assert now <= watched, "a socket is still being watched"


async def refused(kind: type[PenstockError], says: str, *given: Any, **options: Any) -> PenstockError:
    """Connect, and give the error; it is one sentence of the right kind, in time, with nothing left open."""
    options.setdefault("connect_timeout", 5.0)
    secrets = [options[name] for name in ("token", "password", "nkey", "credentials") if options.get(name)]
    begun = time.monotonic()
    async with nothing_left_open():
        with pytest.raises(kind, match=says) as caught:
            await connect(*given, **options)
    error = caught.value
    # The timeout, and the second that goodbyes may take; the rest is for a busy machine.
    assert time.monotonic() - begun < options["connect_timeout"] + 5
    assert "\n" not in str(error)
    assert error.remedy
    for secret in secrets:
        assert secret not in f"{error} {error!r} {error.facts} {error.__cause__}"
    return error


# -- ways in -------------------------------------------------------------------------------------------------


async def test_a_token_in_the_url(server: Server) -> None:
    """The URL of a server is all that a client needs."""
    async with await connect(server.url) as nc:
        assert await works(nc)


async def test_a_token_as_an_option(server: Server) -> None:
    """A token may stand beside the URL, and in ready options."""
    async with await connect(plain(server), token=server.token) as nc:
        assert await works(nc)
    async with await penstock.connect(penstock.ConnectionOptions(plain(server), token=server.token)) as nc:
        assert await works(nc)


async def test_the_name_is_visible_at_the_server(server: Server, unique: Callable[..., str]) -> None:
    """The server lists a connection under the name that it was given, and under ours where none is."""
    name = unique("name")
    async with await connect(server.url, name=name), await connect(server.url):
        names = [item.get("name") for item in listed(server)]
        assert name in names
        assert "penstock" in names


async def test_the_inbox_prefix_begins_every_reply(server: Server, unique: Callable[..., str]) -> None:
    """Replies come to subjects below the prefix, so that permissions can name it."""
    prefix, service = unique("_MINE"), unique("service")
    async with await connect(server.url, inbox_prefix=prefix) as nc:
        assert nc.new_inbox().startswith(f"{prefix}.")

        async def answer(message: Any) -> None:
            await message.respond(message.reply.encode())

        await nc.subscribe(service, cb=answer)
        assert (await nc.request(service, timeout=10)).data.decode().startswith(f"{prefix}.")


async def test_several_urls_with_a_dead_one_first(server: Server, unused_port: int) -> None:
    """One address of several is enough, wherever it stands, and whatever the dead one does."""
    for urls in ([f"nats://127.0.0.1:{unused_port}", plain(server)], [plain(server), f"127.0.0.1:{unused_port}"]):
        async with await connect(",".join(urls), token=server.token) as nc:
            assert await works(nc)
    async with listening() as silent:
        for _ in range(4):  # addresses are tried in random order
            url = f"nats://127.0.0.1:{silent.port},{plain(server)}"
            async with await connect(url, token=server.token, connect_timeout=2) as nc:
                assert await works(nc)


async def test_the_environment_names_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that names no server connects to NATS_URL, or with NATS_CONTEXT, or with the selected context."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", server.url)
    async with await connect() as nc:
        assert await works(nc)
    monkeypatch.delenv("NATS_URL")
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "here.json").write_text(json.dumps({"url": plain(server), "token": server.token}))
    monkeypatch.setenv("NATS_CONTEXT", "here")
    async with await connect() as nc:
        assert await works(nc)
    monkeypatch.delenv("NATS_CONTEXT")
    (tmp_path / "nats" / "context.txt").write_text("here")
    async with await connect() as nc:
        assert await works(nc)
    async with await connect(context="here") as nc:
        assert await works(nc)


@pytest.fixture(scope="module")
def unused_port() -> int:
    """A port where nobody listens: it was free a moment ago."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def user() -> Key:
    return Key.make()


@pytest.fixture(scope="module")
def logins(user: Key) -> Iterator[Server]:
    """A server that knows a user by password and one by nkey, with JetStream in a domain of its own."""
    config = f"""
        jetstream {{ domain: hub }}
        authorization {{ users: [ {{ user: ann, password: "p@ss/word" }}, {{ nkey: {user.public} }} ] }}
    """
    with Server(sync="2m", auth=False, config=config) as running:
        yield running


async def test_a_user_and_a_password(logins: Server) -> None:
    """User and password go as options, and quoted in the URL."""
    async with await connect(plain(logins), user="ann", password="p@ss/word") as nc:
        assert await works(nc)
    async with await connect(f"nats://ann:p%40ss%2Fword@{logins.nodes[0].address}") as nc:
        assert await works(nc)


async def test_an_nkey(logins: Server, user: Key, tmp_path: Path) -> None:
    """A seed signs the server's nonce, as text or from a file."""
    path = tmp_path / "user.nk"
    path.write_text(user.seed + "\n")
    for nkey in (user.seed, str(path)):
        async with await connect(plain(logins), nkey=nkey) as nc:
            assert await works(nc)


async def test_a_domain_is_part_of_the_jetstream_prefix(logins: Server, user: Key) -> None:
    """With the domain's name JetStream answers, by both ways in; with another name nobody does."""
    async with await connect(plain(logins), nkey=user.seed, domain="hub") as nc:
        assert (await api_request(nc, "INFO"))["domain"] == "hub"
        assert (await jetstream(nc).account_info()).domain == "hub"
    async with await connect(plain(logins), nkey=user.seed, api_prefix="$JS.hub.API") as nc:
        assert (await api_request(nc, "INFO"))["domain"] == "hub"
    async with await connect(plain(logins), nkey=user.seed, domain="elsewhere") as nc:
        with pytest.raises(NoRespondersError, match=r"Nobody listens on \$JS\.elsewhere\.API\.INFO"):
            await api_request(nc, "INFO")


async def test_every_refused_login_says_so(logins: Server, server: Server, user: Key) -> None:
    """A wrong token, password or key, or none where one is wanted, is a LoginError that names the way."""
    await refused(LoginError, r"refuses the login with a token\.", plain(server), token="wrong-t0ken")
    await refused(LoginError, "it wants one, and none is given", plain(server))
    await refused(LoginError, "refuses the login of user ann", plain(logins), user="ann", password="wr0ng")
    await refused(LoginError, "refuses the login of user bob", plain(logins), user="bob", password="p@ss/word")
    await refused(LoginError, "refuses the login with an nkey", plain(logins), nkey=Key.make().seed)
    await refused(LoginError, "refuses the login with an nkey", plain(server), nkey=user.seed)
    await refused(LoginError, "refuses the login with a token", plain(logins), token="wrong-t0ken")
    error = await refused(LoginError, "refuses the login", f"nats://wrong-t0ken@{server.nodes[0].address}")
    assert "wrong-t0ken" not in str(error)
    assert error.urls == (plain(server),)


async def test_missing_files_are_told_before_anything_is_opened(server: Server, tmp_path: Path) -> None:
    """A file that is not there is named; no connection is attempted."""
    gone = str(tmp_path / "gone")
    async with listening() as listener:
        url = f"nats://127.0.0.1:{listener.port}"
        for fields, kind in (
            ({"credentials": gone}, LoginError),
            ({"nkey": gone}, LoginError),
            ({"tls_ca": gone}, TlsError),
            ({"tls_cert": gone, "tls_key": gone}, TlsError),
        ):
            with pytest.raises(kind, match="gone cannot be read: No such file or directory"):
                await connect(url, **fields)
        assert listener.opened == 0


async def test_options_are_checked_before_anything_is_opened() -> None:
    """A misspelt option, or a context beside ready options, is the caller's mistake."""
    with pytest.raises(OptionError, match=r"no connection option 'tokn'\. Known: .*token"):
        await connect("nats://127.0.0.1:1", tokn="x")
    with pytest.raises(InputError, match="context is given beside ready options"):
        await connect(penstock.ConnectionOptions(), context="x")


# -- operator mode -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def operator() -> Operator:
    return Operator()


@pytest.fixture(scope="module")
def operated(operator: Operator) -> Iterator[Server]:
    """A server in operator mode, which lets in whoever holds a JWT that its accounts signed."""
    with Server(sync="2m", auth=False, config=operator.config()) as running:
        yield running


async def test_jwt_credentials(operated: Server, operator: Operator, tmp_path: Path) -> None:
    """A user's JWT and seed are a login, as text or from a file, and JetStream is there."""
    text = operator.credentials()
    path = tmp_path / "user.creds"
    path.write_text(text)
    for given in (text, str(path)):
        async with await connect(plain(operated), credentials=given) as nc:
            assert await works(nc)
            assert "streams" in await api_request(nc, "INFO")


async def test_refused_credentials(operated: Server, operator: Operator) -> None:
    """An expired JWT, one of a strange operator, and a seed that is not the JWT's are refused."""
    honest, thief = operator.credentials(), Key.make()
    stolen = honest.replace(honest.split("SEED-----\n")[1].split("\n")[0], thief.seed)
    for text in (operator.credentials(expired=True), Operator().credentials(), stolen):
        await refused(LoginError, "refuses the login with credentials", plain(operated), credentials=text)


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
    assert any(item.get("tls_version") for item in listed(secure)) or not listed(secure)


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


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@websocket_warnings
async def test_websocket() -> None:
    """A ws:// address carries the same protocol; refused logins and wrong ports are told as elsewhere."""
    port = free_port()
    with websocket_server(port, "no_tls: true") as server:
        url = f"ws://127.0.0.1:{port}"
        async with await connect(url, token="w3b-t0ken") as nc:
            assert await works(nc)
        await refused(LoginError, "refuses the login with a token", url, token="wr0ng-t0ken")
        await refused(UnreachableError, "No NATS server answers", f"ws://127.0.0.1:{free_port()}", token="t0ken")
        monitor = server.nodes[0].monitor_url.removeprefix("http://").rstrip("/")
        await refused(UnreachableError, "not the WebSocket port", f"ws://{monitor}", token="t0ken-x")


@websocket_warnings
async def test_secure_websocket(authority: Authority, pair: Pair) -> None:
    """A wss:// address has TLS of its own, checked in the same way."""
    port = free_port()
    with websocket_server(port, f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'):
        url = f"wss://127.0.0.1:{port}"
        async with await connect(url, token="w3b-t0ken", tls_ca=str(authority.ca)) as nc:
            assert await works(nc)
        error = await refused(TlsError, "TLS with .* failed", url, token="w3b-t0ken")
        assert "give tls_ca" in error.remedy


# -- nobody there --------------------------------------------------------------------------------------------


async def test_nobody_listens(unused_port: int) -> None:
    """A port where nobody listens is told at once, with the way to start a server."""
    url = f"nats://127.0.0.1:{unused_port}"
    error = await refused(UnreachableError, f"No NATS server answers at {url}: connection refused", url, token="t0ken")
    assert "penstock server run" in error.remedy


async def test_no_such_host() -> None:
    """A name that does not exist is told as such."""
    await refused(UnreachableError, "No NATS server answers at nats://no-such-host.invalid", "no-such-host.invalid")


@pytest.mark.parametrize(
    ("greeting", "hang_up", "says"),
    [
        (b"", False, r"No NATS server greeted us at nats://127.0.0.1:\d+ within 0.5 s"),
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
    url = server.nodes[0].monitor_url.replace("http://", "nats://").rstrip("/")
    await refused(UnreachableError, "within 0.5 s", url, connect_timeout=0.5)


async def test_a_full_server() -> None:
    """A server that takes no more connections says so; where its hanging up overtakes that, the remedy names it."""
    with Server(sync="2m", config="max_connections: 1") as server:
        async with await connect(server.url):
            says = "refuses the connection: maximum connections exceeded|does it take more connections"
            await refused(LinkError, says, server.url)


async def test_one_refusal_among_dead_addresses_is_the_reason(server: Server, unused_port: int) -> None:
    """Of several addresses the one that answered tells more than those that did not."""
    url = f"nats://127.0.0.1:{unused_port},{plain(server)}"
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


# -- JetStream and foreign errors ----------------------------------------------------------------------------


async def test_api_request(server: Server, unique: Callable[..., str]) -> None:
    """The JetStream API answers with JSON; its refusals carry the server's codes."""
    name = unique("S")
    async with await connect(server.url) as nc:
        assert "streams" in await api_request(nc, "INFO")
        with pytest.raises(NotFoundError, match=r"The server refused: stream not found \(10059\)") as caught:
            await api_request(nc, f"STREAM.INFO.{name}")
        assert caught.value.facts == {"code": 404, "err_code": 10059, "description": "stream not found"}
        body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3}
        with pytest.raises(JetStreamError, match="replicas > 1 not supported") as refusal:
            await api_request(nc, f"STREAM.CREATE.{name}", body)
        assert not isinstance(refusal.value, NotFoundError)
        assert refusal.value.err_code == 10074
        answer = await api_request(nc, f"STREAM.CREATE.{name}", {**body, "num_replicas": 1})
        assert answer["config"]["name"] == name


async def test_api_request_at_something_else(server: Server, unique: Callable[..., str]) -> None:
    """An answer that is no JSON object, and none at all, are told apart."""
    prefix = unique("api")
    async with await connect(server.url, api_prefix=prefix) as nc:

        async def answer(message: Any) -> None:
            await message.respond(b"hello" if message.subject.endswith("TEXT") else b"[]")

        await nc.subscribe(f"{prefix}.*", cb=answer)
        for method in ("TEXT", "LIST"):
            with pytest.raises(RemoteProtocolError, match=f"What answered on {prefix}.{method} is not JetStream"):
                await api_request(nc, method)
        await nc.subscribe(f"{prefix}.quiet.SILENCE")
        with pytest.raises(DeadlineError, match=r"No answer on .*SILENCE in time") as caught:
            await api_request(nc, "quiet.SILENCE", timeout=0.1)
        assert not isinstance(caught.value, NoRespondersError)
        assert caught.value.subject == f"{prefix}.quiet.SILENCE"


async def test_foreign_errors_become_ours(server: Server, unique: Callable[..., str]) -> None:
    """What nats-py raises inside the block comes out as one of ours, with its cause."""
    async with await connect(server.url) as nc:
        with pytest.raises(NoRespondersError, match="Nobody listens on nowhere") as caught, foreign_errors("nowhere"):
            await nc.request(unique("nowhere"), timeout=5)
        assert isinstance(caught.value.__cause__, nats.errors.NoRespondersError)
        with pytest.raises(LocalProtocolError, match="larger than the server takes"), foreign_errors():
            await nc.publish("big", b"x" * (nc.max_payload + 1))
        with pytest.raises(LocalProtocolError, match="nats-py refuses what we send"), foreign_errors():
            await nc.publish("bad subject\r\n", b"")
        with pytest.raises(NotFoundError, match="stream not found"), foreign_errors():
            await jetstream(nc).stream_info(unique("S"))
        with pytest.raises(NoRespondersError), foreign_errors():
            await jetstream(nc).publish(unique("no.stream"), b"")
        with pytest.raises(TlsError, match="as it was"), foreign_errors():
            raise TlsError("as it was")
        with pytest.raises(ZeroDivisionError), foreign_errors():
            _ = 1 / 0
    with pytest.raises(DisconnectedError, match="The connection is gone"), foreign_errors():
        await nc.publish("late", b"")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (nats.errors.TimeoutError(), DeadlineError),
        (nats.errors.FlushTimeoutError(), DeadlineError),
        (TimeoutError(), DeadlineError),
        (nats.errors.NoRespondersError(), NoRespondersError),
        (nats.js.errors.NoStreamResponseError(), NoRespondersError),
        (nats.js.errors.NotFoundError(code=404, err_code=10014), NotFoundError),
        (nats.js.errors.BadRequestError(code=400, err_code=10071), JetStreamError),
        (nats.errors.ConnectionReconnectingError(), DisconnectedError),
        (nats.errors.OutboundBufferLimitError(), DisconnectedError),
        (nats.errors.BadHeaderError("x"), LocalProtocolError),
        (nats.errors.Error("nats: 'odd'"), LinkError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_foreign_error_has_a_kind(error: Exception, kind: type[PenstockError]) -> None:
    """Every error of nats-py has exactly one class of ours, and a text that names the subject."""
    ours = translate(error, "a.b")
    assert type(ours) is kind
    assert "a.b" in str(ours) or isinstance(ours, JetStreamError)


# -- lost connections ----------------------------------------------------------------------------------------


async def test_a_lost_connection_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """When the server is back, so is the connection, its subscriptions with it; callbacks and the log tell."""
    events: list[str] = []

    def note(what: str) -> Callable[[], Awaitable[None]]:
        async def callback() -> None:
            events.append(what)

        return callback

    caplog.set_level(logging.WARNING, logger="penstock.connection")
    with Server(sync="2m") as server:
        nc = await connect(
            server.url,
            reconnect_wait=0.05,
            on_disconnect=note("lost"),
            on_reconnect=note("back"),
            on_close=note("closed"),
        )
        subscription = await nc.subscribe("still.here")
        await nc.flush()
        server.nodes[0].stop()
        await eventually(lambda: events == ["lost"], "the loss being noticed")
        server.nodes[0].start()
        await eventually(lambda: events == ["lost", "back"], "the connection coming back")
        await nc.publish("still.here", b"again")
        assert (await subscription.next_msg(timeout=10)).data == b"again"
        assert "Lost the connection" in caplog.text
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
    assert sum(isinstance(error, ConnectionRefusedError) for error in errors) == attempts
    assert nc.is_closed
    assert "Gave up the connection to" in caplog.text
    with pytest.raises(DisconnectedError), foreign_errors():
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
    """A server that comes back with another token refuses us: the log says so each time, until we give up."""
    closed = asyncio.Event()

    async def on_close() -> None:
        closed.set()

    caplog.set_level(logging.WARNING, logger="penstock.connection")
    with Server(sync="2m", store=tmp_path / "one", token="first-t0ken") as server:
        port = int(server.nodes[0].address.rpartition(":")[2])
        nc = await connect(server.url, reconnect_attempts=3, reconnect_wait=0.2, on_close=on_close)
        server.stop()
        with Server(sync="2m", store=tmp_path / "two", token="second-t0ken", port=port):
            async with asyncio.timeout(30):
                await closed.wait()
    assert nc.is_closed
    assert "first-t0ken" not in caplog.text


async def test_a_failed_attempt_calls_nobody(unused_port: int, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that never stood is neither lost nor closed: its error is enough."""
    events: list[str] = []

    async def callback(*_: object) -> None:
        events.append("called")

    for url in (f"nats://127.0.0.1:{unused_port}",):
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
