"""The blocking connection with the real server: every way in, requests, deadlines, and peers that are none."""

from __future__ import annotations

import json
import pickle
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

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
    RemoteProtocolError,
    TlsError,
    UnreachableError,
)
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.wire import protocol
from penstock.wire.bulk import BulkConnection
from penstock.wire.patience import Deadline
from tests.live.connecting import free_port
from tests.live.relay import make_stream, relayed, rows, speaking
from tests.support import Authority, Key, Operator, Pair

INFO = {"server_id": "X", "version": "2.15.1", "proto": 1, "max_payload": 1048576, "headers": True}


def greeting(**more: Any) -> bytes:
    return b"INFO " + json.dumps({**INFO, **more}).encode() + b"\r\n"


def plain(server: Server) -> str:
    return f"nats://{server.nodes[0].address}"


def works(bulk: BulkConnection) -> bool:
    return "memory" in bulk.api("INFO")


# -- ways in -------------------------------------------------------------------------------------------------


def test_a_url_is_all_that_it_needs(server: Server, unique: Callable[..., str]) -> None:
    """The URL of a server, or ready options, make a connection that the server lists under its name."""
    name = unique("bulk")
    with BulkConnection(server.url) as bulk:
        assert works(bulk)
    with BulkConnection(ConnectionOptions(plain(server), token=server.token, name=name)) as bulk:
        assert works(bulk)
        with urllib.request.urlopen(f"{server.nodes[0].monitor_url}/connz", timeout=10) as page:
            (listed,) = [item for item in json.load(page)["connections"] if item.get("name") == name]
        assert listed["lang"] == "python-penstock"
        assert str(server.token) not in repr(bulk)
        assert repr(bulk).endswith("open)")
    assert repr(bulk).endswith("closed)")


def test_user_nkey_and_domain() -> None:
    """User and password, and an nkey that signs the server's nonce, log in; the domain is part of API subjects."""
    user = Key.make()
    config = f"""
        jetstream {{ domain: hub }}
        authorization {{ users: [ {{ user: ann, password: "p@ss" }}, {{ nkey: {user.public} }} ] }}
    """
    with Server(sync="2m", auth=False, config=config) as server:
        for fields in ({"user": "ann", "password": "p@ss"}, {"nkey": user.seed}):
            with BulkConnection(ConnectionOptions(plain(server), domain="hub", **fields)) as bulk:
                assert bulk.api("INFO")["domain"] == "hub"
        for fields in ({"user": "ann", "password": "wr0ng"}, {"nkey": Key.make().seed}, {}, {"token": "gu3ss"}):
            with pytest.raises(LoginError, match="refuses the login") as caught:
                BulkConnection(ConnectionOptions(plain(server), **fields))
            assert not [value for value in fields.values() if len(value) > 3 and value in str(caught.value)]
        with (
            BulkConnection(ConnectionOptions(plain(server), nkey=user.seed, domain="elsewhere")) as bulk,
            pytest.raises(NoRespondersError),
        ):
            bulk.api("INFO")


def test_jwt_credentials(tmp_path: Path) -> None:
    """A user's JWT and seed are a login, as text or from a file; an expired one is refused."""
    operator = Operator()
    with Server(sync="2m", auth=False, config=operator.config()) as server:
        path = tmp_path / "user.creds"
        path.write_text(operator.credentials())
        for given in (str(path), path.read_text()):
            with BulkConnection(ConnectionOptions(plain(server), credentials=given)) as bulk:
                assert works(bulk)
        with pytest.raises(LoginError, match="refuses the login"):
            BulkConnection(ConnectionOptions(plain(server), credentials=operator.credentials(expired=True)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server", "127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def secure(authority: Authority, pair: Pair) -> Iterator[Server]:
    """A server that wants TLS, and a certificate of every client."""
    with Server(sync="2m", tls_cert=pair.cert, tls_key=pair.key, tls_ca=authority.ca) as running:
        yield running


def test_tls(secure: Server, authority: Authority, tmp_path: Path, unique: Callable[..., str]) -> None:
    """TLS after the greeting, with a certificate of ours; a large answer passes whole."""
    ours = authority.issue("client", "client")
    known = {"token": secure.token, "tls_ca": str(authority.ca)}
    fields = {**known, "tls_cert": str(ours.cert), "tls_key": str(ours.key)}
    for scheme in ("nats", "tls"):
        with BulkConnection(ConnectionOptions(f"{scheme}://{secure.nodes[0].address}", **fields)) as bulk:
            assert works(bulk)
    with BulkConnection(ConnectionOptions(plain(secure), **fields)) as bulk:
        name = unique("tls")
        make_stream(bulk, name)
        bulk.request(f"{name}.a", b"x" * 900_000)
        (batch,) = bulk.read(name)
        assert batch.column("data")[0].as_py() == b"x" * 900_000
    stranger = Authority(tmp_path, "stranger")
    for wrong in ({**fields, "tls_ca": str(stranger.ca)}, {"token": secure.token}):
        with pytest.raises(TlsError, match=r"TLS with .* failed") as caught:
            BulkConnection(ConnectionOptions(plain(secure), **wrong))
        assert "tls_ca" in caught.value.remedy
    with pytest.raises(LinkError, match=r"TLS|closed the connection"):
        BulkConnection(ConnectionOptions(plain(secure), **known))


def test_tls_first(authority: Authority, pair: Pair) -> None:
    """A server that waits for our hello gets it with `tls_first`; without it the error names the option."""
    config = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", handshake_first: true }}'
    with Server(sync="2m", auth=False, config=config) as server:
        with BulkConnection(ConnectionOptions(plain(server), tls_first=True, tls_ca=str(authority.ca))) as bulk:
            assert works(bulk)
        with pytest.raises(UnreachableError) as caught:
            BulkConnection(ConnectionOptions(plain(server), tls_ca=str(authority.ca), connect_timeout=1.0))
        assert "tls_first" in caught.value.remedy


def test_no_login_goes_out_in_plain_text_where_tls_is_wanted(authority: Authority) -> None:
    """A server without TLS, or one that talks on before the handshake, gets neither CONNECT nor token."""
    for said in (greeting(), greeting(tls_required=True) + b"PING\r\n"):
        with speaking(said, b"PONG\r\n") as (port, heard), pytest.raises(TlsError):
            BulkConnection(ConnectionOptions(f"tls://127.0.0.1:{port}", token="s3cret-t0ken", connect_timeout=3))
        assert b"CONNECT" not in heard


def test_several_addresses(server: Server) -> None:
    """One address of several is enough, whatever the others are: closed, silent, or no NATS server."""
    with speaking() as (silent, _), speaking(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (http, _):
        for dead in (free_port(), silent, http):
            for _ in range(3):  # addresses are tried in random order
                url = f"nats://127.0.0.1:{dead},{plain(server)}"
                with BulkConnection(ConnectionOptions(url, token=server.token, connect_timeout=2)) as bulk:
                    assert works(bulk)


def test_peers_that_are_no_server() -> None:
    """A closed port, silence, a hang-up and another protocol are each told in one sentence, in time."""
    with pytest.raises(UnreachableError, match="No NATS server answers at"):
        BulkConnection(f"nats://127.0.0.1:{free_port()}")
    with speaking() as (port, _), pytest.raises(UnreachableError, match=r"greeted us at .* within 0\.[23]"):
        BulkConnection(ConnectionOptions(f"nats://127.0.0.1:{port}", connect_timeout=0.3))
    with speaking(hang_up=True) as (port, _), pytest.raises(UnreachableError, match="closed the connection before"):
        BulkConnection(f"nats://127.0.0.1:{port}")
    with speaking(b"SSH-2.0-OpenSSH\r\n") as (port, _), pytest.raises(UnreachableError, match="is not a NATS server"):
        BulkConnection(f"nats://127.0.0.1:{port}")
    with speaking(b"PING\r\n") as (port, _), pytest.raises(UnreachableError, match="is not a NATS server"):
        BulkConnection(f"nats://127.0.0.1:{port}")
    with speaking(greeting(headers=False)) as (port, _), pytest.raises(UnreachableError, match="knows no headers"):
        BulkConnection(f"nats://127.0.0.1:{port}")


def test_websocket_addresses_are_refused() -> None:
    """A WebSocket address is refused before anything is opened, with what to give instead."""
    with pytest.raises(OptionError, match="bulk connections speak TCP only"):
        BulkConnection("ws://127.0.0.1:1")


# -- asking --------------------------------------------------------------------------------------------------


def test_requests(server: Server, unique: Callable[..., str]) -> None:
    """A request gets its answer, headers and all; nobody listening is told at once; silence ends at the deadline."""
    subject = unique("service")
    with BulkConnection(server.url) as bulk, BulkConnection(server.url) as other:
        with pytest.raises(NoRespondersError, match=f"Nobody listens on {subject}") as caught:
            bulk.request(subject)
        assert caught.value.subject == subject
        sid = other.subscribe(subject, Deadline(5))
        other.request("$SYS.REQ.USER.INFO")  # an answer means that the server has seen the subscription
        with pytest.raises(DeadlineError, match=r"No answer on .* within 0\.2 s"):
            bulk.request(subject, b"hello", headers={"A": "1"}, timeout=0.2)
        event: Any = other.wire.next_event(Deadline(5))
        assert (event.sid, event.payload, event.headers) == (sid, b"hello", {"A": ["1"]})
        assert works(bulk), "a late answer must not confuse what comes next"


def test_api_errors_by_code(server: Server, unique: Callable[..., str]) -> None:
    """An error answer of JetStream carries the server's codes; what is missing is a NotFoundError."""
    with BulkConnection(server.url) as bulk:
        with pytest.raises(NotFoundError) as missing:
            bulk.api(f"STREAM.INFO.{unique()}")
        assert (missing.value.code, missing.value.err_code) == (404, 10059)
        name = unique()
        make_stream(bulk, name)
        with pytest.raises(JetStreamError) as taken:
            make_stream(bulk, name, subjects=["another.>"])
        assert taken.value.err_code == 10058
        assert pickle.loads(pickle.dumps(taken.value)).err_code == 10058


def test_what_only_asks_is_asked_again(
    server: Server, unique: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question is asked again, and the answer to any asking counts; what changes something is sent once."""
    monkeypatch.setattr("penstock.wire.jetstream.questions.AGAIN", 0.2)
    prefix = unique("api")
    options = ConnectionOptions(server.url, api_prefix=prefix)
    with BulkConnection(server.url) as service, BulkConnection(options) as bulk:
        service.subscribe(f"{prefix}.>", Deadline(5))
        assert works(service), "so the subscription is there"
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(bulk.api, "STREAM.INFO.S", timeout=30)
            asked = [asking(service) for _ in range(3)]
            assert len({subject for subject, _ in asked}) == 1
            assert len({reply for _, reply in asked}) == 3
            service.wire.send(protocol.publish(asked[1][1], b'{"second": true}'), Deadline(5))
            assert answer.result(30) == {"second": True}
        with pytest.raises(DeadlineError, match="within 1 s") as caught:
            bulk.api("STREAM.INFO.S", timeout=1)
        assert caught.value.seconds == 1
        with pytest.raises(DeadlineError):
            bulk.api("STREAM.PURGE.S", timeout=1)
        bulk.wire.send(protocol.publish(f"{prefix}.END", b""), Deadline(5))
        later = []
        while not later or not later[-1].endswith("END"):
            later.append(asking(service)[0])
        assert later.count(f"{prefix}.STREAM.PURGE.S") == 1
        assert later.count(f"{prefix}.STREAM.INFO.S") > 2


def asking(service: BulkConnection) -> tuple[str, str]:
    """Wait for what somebody asks, and give its subject and where the answer goes."""
    while not isinstance(event := service.wire.next_event(Deadline(30)), protocol.Message):
        continue
    return event.subject, event.reply or ""


def test_bad_input_is_refused_before_anything_is_sent(server: Server) -> None:
    """Subjects, payloads and names that cannot be are the caller's mistake, and the connection goes on."""
    with BulkConnection(server.url) as bulk:
        with pytest.raises(LocalProtocolError, match="is not a subject"):
            bulk.request("a b")
        with pytest.raises(LocalProtocolError, match="larger than the server takes"):
            bulk.request("a", b"x" * (bulk.max_payload + 1))
        for name in ("", "a b", "a.b", "a>", "a/b"):
            with pytest.raises(InputError, match="cannot be the name of a stream"):
                bulk.read(name)
        assert works(bulk)
    bulk.close()
    with pytest.raises(InputError, match="was closed"):
        bulk.api("INFO")


def test_pings_are_answered_while_we_wait() -> None:
    """A server that pings every moment keeps a connection whose requests take long."""
    with (
        Server(sync="2m", config='ping_interval: "100ms"\nping_max: 1') as server,
        relayed(server) as relay,
        BulkConnection(relay.url(server)) as bulk,
        BulkConnection(server.url) as other,
    ):
        other.subscribe("slow", Deadline(5))
        other.api("INFO")
        with pytest.raises(DeadlineError):
            bulk.request("slow", timeout=1.5)
        assert works(bulk)
        assert relay.connections == 1, "the connection was lost in between"


def test_a_lost_connection_is_made_again_by_the_next_call(server: Server) -> None:
    """The call that finds the connection gone says so; the next one works, or says in time that nobody is left."""
    with relayed(server) as relay, BulkConnection(ConnectionOptions(relay.url(server), connect_timeout=1)) as bulk:
        relay.cut()
        with pytest.raises(DisconnectedError, match="is gone"):
            bulk.api("INFO")
        assert works(bulk)
        assert relay.connections == 2
        relay.refusing = True
        relay.cut()
        with pytest.raises(LinkError):
            bulk.api("INFO")
        with pytest.raises(UnreachableError):
            bulk.api("INFO")


def test_a_message_that_was_cut_off_is_never_completed_by_the_next() -> None:
    """Where a deadline ends a request in the middle of its payload, that payload arrives whole or not at all."""
    payload = b"x" * 1_000_000
    with Server(sync="2m") as server, BulkConnection(server.url) as listener, BulkConnection(server.url) as bulk:
        sid = listener.subscribe("cut.>", Deadline(5))
        assert works(listener)
        assert works(bulk)
        server.nodes[0].pause()
        try:
            for _ in range(20):
                if bulk.wire.is_open:  # the socket takes more
                    with pytest.raises(DeadlineError):
                        bulk.request("cut.off", payload, timeout=0.1)
        finally:
            server.nodes[0].resume()
        with pytest.raises(DeadlineError):  # the listener does not answer
            bulk.request("cut.last", b"the last", timeout=1)
        got: list[bytes] = []
        while b"the last" not in got:
            event = listener.wire.next_event(Deadline(10))
            if isinstance(event, protocol.Message) and event.sid == sid:
                got.append(bytes(event.payload))
        assert set(got) <= {payload, b"the last"}


@pytest.mark.parametrize(
    "nonsense", [b"MSG a 1 99999999999\r\n", b"\x00\xff\xfe garbage\r\n", b"HMSG _ 1 9 5\r\nhello\r\n"]
)
def test_a_server_gone_mad_is_left(nonsense: bytes) -> None:
    """Bytes that are not the protocol end the connection with the place of the first bad one."""
    with (
        speaking(greeting(), b"PONG\r\n", nonsense) as (port, _),
        BulkConnection(f"nats://127.0.0.1:{port}") as bulk,
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            bulk.api("INFO", timeout=5)
        assert caught.value.place == len(greeting() + b"PONG\r\n")
        assert not bulk.wire.is_open


def test_permissions_are_told() -> None:
    """What the server does not permit is a LoginError with the server's own words."""
    config = 'authorization { users: [ { user: ann, password: pw, permissions: { publish: { deny: "secret.>" } } } ] }'
    with (
        Server(sync="2m", auth=False, config=config) as server,
        BulkConnection(ConnectionOptions(plain(server), user="ann", password="pw")) as bulk,
    ):
        with pytest.raises(LoginError, match="Permissions Violation for Publish"):
            bulk.request("secret.a")
        assert works(bulk)


def test_a_consumer_that_may_not_be_deleted() -> None:
    """A read whose user may not delete its consumer leaves that to the server, and disturbs nothing that follows."""
    denied = '"$JS.API.CONSUMER.DELETE.>"'
    user = f"{{user: ann, password: pw, permissions: {{publish: {{deny: {denied}}}}}}}"
    config = f"authorization {{ users: [{user}] }}"
    with (
        Server(sync="2m", auth=False, config=config) as server,
        BulkConnection(ConnectionOptions(plain(server), user="ann", password="pw")) as bulk,
    ):
        make_stream(bulk, "S")
        bulk.publish("S", rows("S", range(1000)))
        for _ in range(2):
            assert sum(batch.num_rows for batch in bulk.read("S")) == 1000
            assert bulk.api("STREAM.INFO.S")["state"]["messages"] == 1000
