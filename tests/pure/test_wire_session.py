"""The life of one connection, with no socket: greeting, login, TLS, pings, and what the server says of itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import (
    LoginError,
    TlsError,
    UnreachableError,
)
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.protocol import Err, Info, Message, Ok, Ping, Pong
from penstock.wire.session import (
    LANGUAGE,
    MOST_PONGS,
    Notice,
    Session,
    State,
)
from tests.sessions import INFO, URL, in_state, opened, said, session
from tests.support import Key, Operator

# -- greeting and login ------------------------------------------------------------------------------------------------


def test_from_the_greeting_to_an_open_connection():
    """INFO is answered with CONNECT and PING; the PONG to that opens the connection."""
    made = session(name="tester")
    assert (made.state, made.take(), dict(made.info)) == (State.GREETING, b"", {})
    assert made.max_payload == 1024 * 1024, "nothing else is known"
    assert made.receive(Info(dict(INFO))) is None
    assert made.state is State.LOGIN
    fields, rest = said(made)
    assert fields == {
        "verbose": False,
        "pedantic": False,
        "tls_required": False,
        "name": "tester",
        "lang": LANGUAGE,
        "version": "1.2.3",
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        "echo": True,
    }
    assert rest == protocol.PING
    assert made.take() == b""
    assert made.receive(Pong()) is Notice.OPENED
    assert (made.state, made.max_payload, made.pings) == (State.OPEN, 1000, 0)
    assert dict(made.info) == INFO
    with pytest.raises(TypeError):
        made.info["x"] = 1  # type: ignore[index]


def test_what_may_come_between_greeting_and_pong():
    """A ping is answered, +OK is passed by, a second INFO takes the place of the first."""
    made = session()
    made.receive(Info(dict(INFO)))
    made.take()
    assert made.receive(Ping()) is None
    assert made.take() == protocol.PONG
    assert made.receive(Ok()) is None
    assert made.receive(Info({**INFO, "max_payload": 77})) is None
    assert made.receive(Pong()) is Notice.OPENED
    assert made.max_payload == 77


@pytest.mark.parametrize("event", [Ping(), Pong(), Ok(), Message("a", 1, None, None, b"")], ids=repr)
def test_who_does_not_begin_with_info_is_no_server(event: Any):
    """The first thing a NATS server says is its INFO."""
    made = session()
    with pytest.raises(UnreachableError, match="is not a NATS server: it does not begin with its INFO"):
        made.receive(event)
    assert (made.state, made.take()) == (State.CLOSED, b"")


def test_messages_before_the_login_are_refused():
    """Who has not let us in has no messages for us."""
    made = in_state("login")
    with pytest.raises(UnreachableError, match="it sends messages before it let us in"):
        made.receive(Message("a", 1, None, None, b""))


@pytest.mark.parametrize("state", ["securing", "closed"])
@pytest.mark.parametrize(
    "event", [Ping(), Pong(), Ok(), Err("x"), Info({}), Message("a", 1, None, None, b"")], ids=repr
)
def test_nothing_is_heard_before_the_handshake_nor_after_the_end(state: str, event: Any):
    """Plain bytes while TLS is being made are not the server's; after the end nothing counts."""
    made = in_state(state)
    with pytest.raises(UnreachableError):
        made.receive(event)
    assert made.state is State.CLOSED
    assert made.take() == b""


def test_a_server_without_headers_is_too_old():
    """A server that has no headers is told as such, at its greeting or after the login."""
    made = session()
    with pytest.raises(UnreachableError, match="knows no headers") as caught:
        made.receive(Info({**INFO, "headers": False}))
    assert "2.12 or newer" in caught.value.remedy
    made = session()
    made.receive(Info({"version": "1.0"}))
    with pytest.raises(UnreachableError, match="knows no headers"):
        made.receive(Pong())


def test_no_echo_is_asked_for():
    """The option reaches the server."""
    made = session(no_echo=True)
    made.receive(Info(dict(INFO)))
    assert said(made)[0]["echo"] is False


# -- who we are --------------------------------------------------------------------------------------------------------


def test_a_token_and_a_user():
    """A token, or user and password, stand in CONNECT as they are."""
    made = session(token="t0ken")
    made.receive(Info({**INFO, "auth_required": True}))
    assert said(made)[0]["auth_token"] == "t0ken"
    made = session("nats://ann:p%40ss@a.example:4222")
    made.receive(Info(dict(INFO)))
    fields, _ = said(made)
    assert (fields["user"], fields["pass"]) == ("ann", "p@ss")
    assert "auth_token" not in fields


def test_an_nkey_signs_the_nonce():
    """With a seed the server's nonce is signed, and the public key is named; without a nonce nothing is."""
    key = Key.make()
    made = session(nkey=key.seed)
    made.receive(Info({**INFO, "nonce": "n0nce"}))
    fields, _ = said(made)
    assert fields["nkey"] == key.public
    assert base64.urlsafe_b64decode(fields["sig"] + "==") == key.sign(b"n0nce")
    assert "jwt" not in fields
    made = session(nkey=key.seed)
    made.receive(Info({**INFO, "nonce": ""}))
    assert not {"nkey", "sig"} & set(said(made)[0])


def test_credentials_send_the_jwt():
    """With credentials the JWT and the signature go out, and the key is in the JWT."""
    user = Key.make()
    text = Operator().credentials(user=user)
    made = session(credentials=text)
    made.receive(Info({**INFO, "nonce": "n0nce"}))
    fields, _ = said(made)
    assert fields["jwt"] in text
    assert base64.urlsafe_b64decode(fields["sig"] + "==") == user.sign(b"n0nce")
    assert "nkey" not in fields


def test_a_login_that_cannot_be_made_ends_the_attempt():
    """What the login raises is raised, and nothing was sent."""

    def fails(nonce: str | None) -> Mapping[str, str]:
        raise LoginError(f"no key for {nonce}")

    made = Session(ConnectionOptions(URL), URL, fails, "1")
    with pytest.raises(LoginError, match="no key for n0nce"):
        made.receive(Info({**INFO, "nonce": "n0nce"}))
    assert made.take() == b""


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "insist", "info", "outcome"),
    [
        (URL, {}, False, {}, "plain"),
        (URL, {}, False, {"tls_available": True}, "plain"),
        (URL, {}, False, {"tls_required": True}, "tls"),
        (URL, {}, True, {}, "refused"),
        (URL, {}, True, {"tls_available": True}, "tls"),
        ("tls://a.example:4222", {}, False, {}, "refused"),
        ("tls://a.example:4222", {}, False, {"tls_required": False, "tls_available": False}, "refused"),
        ("tls://a.example:4222", {}, False, {"tls_available": True}, "tls"),
        ("tls://a.example:4222", {}, False, {"tls_required": True}, "tls"),
        (URL, {"tls_ca": "-----BEGIN x"}, False, {}, "refused"),
        (URL, {"tls_ca": "-----BEGIN x"}, False, {"tls_required": True}, "tls"),
        (f"{URL},tls://b.example:4222", {}, False, {}, "refused"),
        ("ws://a.example:80", {}, False, {}, "plain"),
        ("ws://a.example:80", {}, False, {"tls_required": True}, "plain"),
        ("wss://a.example:443", {}, False, {"tls_required": True}, "secure"),
        ("wss://a.example:443", {}, True, {}, "secure"),
    ],
)
def test_the_decision_about_tls(url: str, options: dict[str, Any], insist: bool, info: dict[str, Any], outcome: str):
    """A server that wants TLS gets it; a connection that wants it never goes on without; nothing is sent before."""
    made = session(url, insist_on_tls=insist, **options)
    if outcome == "refused":
        with pytest.raises(TlsError, match="does not offer TLS, and this connection insists on it"):
            made.receive(Info({**INFO, **info}))
        assert made.take() == b""
        return
    notice = made.receive(Info({**INFO, **info}))
    if outcome == "tls":
        assert notice is Notice.SECURE
        assert (made.state, made.take(), made.secure) == (State.SECURING, b"", False)
        made.secured()
    assert made.state is State.LOGIN
    assert made.secure is (outcome in ("tls", "secure"))
    assert said(made)[0]["tls_required"] is made.secure


def test_tls_first_shakes_hands_before_anything():
    """With `tls_first` the handshake comes before the greeting, and the greeting asks for no other one."""
    made = session(tls_first=True)
    assert made.state is State.SECURING
    made.secured()
    assert (made.state, made.secure) == (State.GREETING, True)
    assert made.receive(Info({**INFO, "tls_required": True})) is None
    assert made.state is State.LOGIN
    assert said(made)[0]["tls_required"] is True


def test_a_handshake_out_of_turn_is_our_mistake():
    """`secured` is said once, in its time."""
    with pytest.raises(AssertionError):
        session().secured()


@pytest.mark.parametrize(
    ("url", "at", "options", "name"),
    [
        ("tls://a.example:4222", None, {}, "a.example"),
        ("tls://10.0.0.1:4222", None, {}, "10.0.0.1"),
        ("tls://a.example:4222", "tls://10.0.0.2:4222", {}, "a.example"),
        ("tls://10.0.0.1:4222", "tls://10.0.0.2:4222", {}, "10.0.0.2"),
        ("tls://10.0.0.1:4222,tls://b.example:4222", "tls://10.0.0.2:4222", {}, "b.example"),
        ("tls://a.example:4222", "tls://b.example:4222", {}, "b.example"),
        ("tls://a.example:4222", "tls://10.0.0.2:4222", {"tls_hostname": "c.example"}, "c.example"),
        ("tls://[::1]:4222", None, {}, "::1"),
    ],
)
def test_the_name_on_the_certificate(url: str, at: str | None, options: dict[str, Any], name: str):
    """An address that the cluster told us is known by the name that we were given; an option decides."""
    assert session(url, at=at, **options).tls_name == name


@pytest.mark.parametrize(
    ("reason", "options", "remedy"),
    [
        ("tlsv13 alert certificate required", {}, "give tls_cert and tls_key"),
        ("sslv3 alert bad certificate", {}, "give tls_cert and tls_key"),
        (
            "sslv3 alert bad certificate",
            {"tls_cert": "c", "tls_key": "k"},
            "does not take our certificate",
        ),
        ("the server wants a certificate that it trusts, and hung up", {}, "give tls_cert and tls_key"),
        (
            "the server wants a certificate that it trusts, and hung up",
            {"tls_cert": "c", "tls_key": "k"},
            "does not take our certificate",
        ),
        ("Hostname mismatch, certificate is not valid for 'a'", {}, "tls_hostname"),
        ("wrong version number", {"tls_first": True}, "leave tls_first out"),
        ("record layer failure", {}, "leave tls_first out"),
        ("self signed certificate", {}, "give tls_ca"),
        ("self signed certificate", {"tls_ca": "ca"}, "Does tls_ca belong"),
    ],
)
def test_a_failed_handshake_names_the_way_out(reason: str, options: dict[str, Any], remedy: str):
    """Each reason has its remedy."""
    made = session("tls://a.example:4222", **options)
    error = made.tls_failed(reason)
    assert isinstance(error, TlsError)
    assert str(error).startswith(f"TLS with tls://a.example:4222 failed: {reason}.")
    assert remedy in error.remedy
    assert made.state is State.CLOSED


# -- pings -------------------------------------------------------------------------------------------------------------


def test_pings_are_answered_in_one_piece():
    """Each PING gets its PONG, but of a flood only a few: any of them is a sign of life."""
    made = opened()
    made.receive(Ping())
    made.receive(Ping())
    assert made.take() == 2 * protocol.PONG
    for _ in range(1000):
        assert made.receive(Ping()) is None
    assert made.take() == MOST_PONGS * protocol.PONG
    made.receive(Ping())
    assert made.take() == protocol.PONG


def test_each_pong_answers_a_ping_of_ours():
    """PONGs are counted off against PINGs; one that nobody asked for says nothing."""
    made = opened()
    assert made.receive(Pong()) is None
    made.ping()
    made.ping()
    assert (made.take(), made.pings) == (2 * protocol.PING, 2)
    assert [made.receive(Pong()) for _ in range(3)] == [Notice.PONGED, Notice.PONGED, None]
    assert made.pings == 0
    assert made.receive(Ok()) is None


# -- what the server says of itself ------------------------------------------------------------------------------------


def test_a_new_info_adds_to_what_is_known():
    """Fields that a later INFO leaves out stay as they were."""
    made = opened()
    assert made.receive(Info({"connect_urls": ["b:1"], "max_payload": 5})) is Notice.LEARNT
    assert (made.info["connect_urls"], made.max_payload, made.info["server_id"]) == (["b:1"], 5, "X")


def test_lame_duck_mode_is_told_once():
    """A server that will go says so, perhaps several times; that is one notice."""
    made = opened()
    assert made.receive(Info({"ldm": False})) is Notice.LEARNT
    assert not made.goodbye
    assert made.receive(Info({"ldm": True})) is Notice.LAME_DUCK
    assert made.receive(Info({"ldm": True})) is Notice.LEARNT
    assert made.goodbye


WRONG: list[tuple[str, Any]] = [
    ("server_id", 5),
    ("version", ["2"]),
    ("nonce", 7),
    ("nonce", {"a": 1}),
    ("cluster", False),
    ("domain", 1.5),
    ("client_ip", []),
    ("proto", "1"),
    ("proto", True),
    ("max_payload", "1048576"),
    ("max_payload", 1.0),
    ("max_payload", True),
    ("max_payload", 0),
    ("max_payload", -1),
    ("max_payload", 10**5000),
    ("client_id", "7"),
    ("headers", "yes"),
    ("headers", 1),
    ("tls_required", "false"),
    ("tls_required", 0),
    ("tls_available", "true"),
    ("tls_verify", 1),
    ("auth_required", "no"),
    ("jetstream", "on"),
    ("ldm", 1),
    ("connect_urls", "a:1"),
    ("connect_urls", {"a": 1}),
    ("ws_connect_urls", 5),
]


@pytest.mark.parametrize(
    ("field", "value"), WRONG, ids=lambda value: repr(value)[:20] if not isinstance(value, int) else "number"
)
@pytest.mark.parametrize("state", ["greeting", "login", "open"])
def test_an_info_of_the_wrong_kind_is_no_servers(state: str, field: str, value: Any):
    """A field of another kind than a server's ends the connection in every state, before anything is made of it."""
    made = in_state(state)
    made.take()
    with pytest.raises(UnreachableError, match=f"is not a NATS server: its INFO has .*{field}") as caught:
        made.receive(Info({**INFO, field: value}))
    assert made.state is State.CLOSED
    assert made.take() == b""
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("state", ["greeting", "login", "open"])
def test_fields_that_are_null_or_new_do_no_harm(state: str):
    """A field that is null counts as not there, and one that we do not know is kept."""
    made = in_state(state)
    made.receive(Info({**INFO, "nonce": None, "connect_urls": None, "something_new": [1, {"a": "b"}]}))
    assert made.info["something_new"] == [1, {"a": "b"}]
