"""Connecting to the real server: every way to log in, and what can be asked then."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.connection import Connection, api_request, connect
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    LocalProtocolError,
    LoginError,
    NoRespondersError,
    NotFoundError,
    OptionError,
    PenstockError,
    RemoteProtocolError,
    TlsError,
)
from penstock.server import Server
from tests.live.connecting import free_port, listed, plain, refused, works
from tests.support import Key, Operator, listening


@pytest.fixture
def closed_port() -> int:
    return free_port()


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


async def test_several_urls_with_a_dead_one_first(server: Server, closed_port: int) -> None:
    """One address of several is enough, wherever it stands, and whatever the dead one does."""
    for urls in ([f"nats://127.0.0.1:{closed_port}", plain(server)], [plain(server), f"127.0.0.1:{closed_port}"]):
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
        assert (await nc.jetstream().account_info())["domain"] == "hub"
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


# -- JetStream, and what goes wrong --------------------------------------------------------------------------


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


async def test_what_only_asks_is_asked_again(
    server: Server, unique: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question whose answer is lost is asked again until its time is over; a change only if one says so."""
    monkeypatch.setattr("penstock.wire.jetstream.questions.AGAIN", 0.2)
    monkeypatch.setattr("penstock.wire.jetstream.questions._LIST_AGAIN", 0.3)
    prefix, asked = unique("api"), Counter[str]()
    async with await connect(server.url, api_prefix=prefix) as nc:

        async def answer(message: Any) -> None:
            method = message.subject.removeprefix(f"{prefix}.")
            asked[method] += 1
            if asked[method] == 3:
                await message.respond(b'{"third": true}')

        await nc.subscribe(f"{prefix}.>", cb=answer)
        for question in ("INFO", "STREAM.INFO.S", "CONSUMER.LIST.S", "STREAM.MSG.GET.S"):
            assert await api_request(nc, question, timeout=30.0) == {"third": True}
        for change in ("STREAM.CREATE.S", "CONSUMER.MSG.NEXT.S.c", "STREAM.PURGE.S"):
            with pytest.raises(DeadlineError):
                await api_request(nc, change, timeout=1.0)
            assert asked[change] == 1
        assert await api_request(nc, "STREAM.CREATE.T", timeout=30.0, again=True) == {"third": True}


async def test_every_failure_is_one_of_ours(server: Server, unique: Callable[..., str]) -> None:
    """What goes wrong on a connection is raised as one of our errors, by the call that it concerns, with its facts."""
    async with await connect(server.url) as nc:
        nowhere = unique("nowhere")
        with pytest.raises(NoRespondersError, match=f"Nobody listens on {nowhere}") as caught:
            await nc.request(nowhere, timeout=5)
        assert (caught.value.subject, caught.value.seconds) == (nowhere, 5)
        with pytest.raises(LocalProtocolError, match="larger than the server takes"):
            await nc.publish("big", b"x" * (nc.max_payload + 1))
        with pytest.raises(LocalProtocolError, match="is not a subject"):
            await nc.publish("bad subject\r\n", b"")
        with pytest.raises(NotFoundError, match="stream not found"):
            await nc.jetstream().stream_info(unique("S"))
        with pytest.raises(NoRespondersError):
            await nc.jetstream().publish(unique("no.stream"), b"")
    with pytest.raises(DisconnectedError, match="The connection is gone"):
        await nc.publish("late", b"")


async def _late(nc: Connection, name: str) -> None:
    await nc.subscribe(name)
    await nc.request(name, timeout=0.05)


async def _unflushed(nc: Connection, name: str) -> None:
    await nc.flush(0)


async def _nothing_came(nc: Connection, name: str) -> None:
    await (await nc.subscribe(name)).next_msg(timeout=0.05)


async def _nobody(nc: Connection, name: str) -> None:
    await nc.request(name)


async def _no_stream(nc: Connection, name: str) -> None:
    await nc.jetstream().publish(name, b"")


async def _no_consumer(nc: Connection, name: str) -> None:
    await nc.jetstream().add_stream(name=name, subjects=[name])
    await nc.jetstream().consumer_info(name, "nobody")


async def _wrong_stream(nc: Connection, name: str) -> None:
    await nc.jetstream().add_stream(name=name, subjects=[name])
    await nc.jetstream().publish(name, b"", stream="another")


async def _bad_header(nc: Connection, name: str) -> None:
    await nc.publish(name, headers={"a b": "x"})


async def _bad_value(nc: Connection, name: str) -> None:
    await nc.publish(name, headers={"a": "x\r\ny"})


async def _closed(nc: Connection, name: str) -> None:
    await nc.close()
    await nc.flush()


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (_late, DeadlineError),
        (_unflushed, DeadlineError),
        (_nothing_came, DeadlineError),
        (_nobody, NoRespondersError),
        (_no_stream, NoRespondersError),
        (_no_consumer, NotFoundError),
        (_wrong_stream, JetStreamError),
        (_bad_header, LocalProtocolError),
        (_bad_value, LocalProtocolError),
        (_closed, DisconnectedError),
    ],
    ids=lambda value: value.__name__.strip("_"),
)
async def test_each_failure_has_a_kind(server: Server, unique: Callable[..., str], action: Any, kind: type) -> None:
    """Every way to fail has exactly one class of ours, and a text that names the subject or the reason."""
    name = unique("kind")
    async with await connect(server.url) as nc:
        with pytest.raises(PenstockError) as caught:
            await action(nc, name)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is None
    if kind in (DeadlineError, NoRespondersError) and action is not _unflushed:
        assert caught.value.facts["subject"] == name
        assert name in str(caught.value)
