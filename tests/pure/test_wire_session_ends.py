"""What a connection makes of complaints, and the sentence for each way in which it ends; no socket."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import (
    DeniedError,
    DisconnectedError,
    LinkError,
    LocalProtocolError,
    LoginError,
    PenstockError,
    RemoteProtocolError,
    TlsError,
    UnreachableError,
)
from penstock.options import ConnectionOptions
from penstock.wire.complaints import SENTENCES, ComplaintKind, read_complaint
from penstock.wire.protocol import Err, Info
from penstock.wire.session import (
    MAX_CONTROL_LINE,
    State,
    check_size,
    unreachable,
)
from tests.sessions import INFO, STATES, URL, in_state, opened, session
from tests.support import Key, Operator

# -- complaints --------------------------------------------------------------------------------------------------------

DENIED = 'Permissions Violation for Publish to "a.b"'


@pytest.mark.parametrize("state", ["greeting", "login"])
@pytest.mark.parametrize("sentence", [*sorted(SENTENCES), DENIED, "something new", ""])
def test_every_complaint_before_the_login_is_done(state: str, sentence: str):
    """A server that complains before it lets us in refuses us: the error is of the kind that the sentence has."""
    made = in_state(state)
    complaint = read_complaint(sentence)
    with pytest.raises(LinkError) as caught:
        made.receive(Err(sentence))
    expected: dict[ComplaintKind, type[LinkError]] = {
        ComplaintKind.LOGIN: LoginError,
        ComplaintKind.EXPIRED: LoginError,
        ComplaintKind.PORT: LoginError,
        ComplaintKind.DENIED: DeniedError,
        ComplaintKind.SUBSCRIPTIONS: DeniedError,
        ComplaintKind.TLS: TlsError,
    }
    assert type(caught.value) is expected.get(complaint.kind, UnreachableError)
    assert caught.value.urls == (URL,)
    assert made.state is State.CLOSED
    assert made.last_words == complaint
    if sentence:
        assert sentence in str(caught.value)


@pytest.mark.parametrize("sentence", [*sorted(SENTENCES), DENIED, "something new", ""])
def test_every_complaint_to_an_open_connection(sentence: str):
    """What closes the connection is kept as the reason of its end; what does not is an error that the driver tells."""
    made = opened()
    complaint = read_complaint(sentence)
    error = made.receive(Err(sentence))
    assert made.state is State.OPEN
    if complaint.closes:
        assert error is None
        assert made.last_words == complaint
        ending = made.ended("the server closed it")
        assert type(ending) is DisconnectedError
        assert f"is gone: the server said {complaint.text}." in str(ending)
    else:
        assert isinstance(error, PenstockError)
        assert made.complaint == complaint
        assert made.last_words is None
        assert "is gone: the server closed it" in str(made.ended("the server closed it"))


def test_a_denial_names_what_was_denied():
    """The error has the subject, and the complaint behind it what else is needed to find who asked."""
    made = opened()
    error = made.receive(Err('Permissions Violation for Subscription to "a.b" using queue "q" (sid "7")'))
    assert isinstance(error, DeniedError)
    assert (error.operation, error.subject) == ("subscribe", "a.b")
    assert made.complaint is not None
    assert (made.complaint.queue, made.complaint.sid, made.complaint.of_reply) == ("q", 7, False)
    made.receive(Err('Permissions Violation for Publish with Reply of "r"'))
    assert (made.complaint.subject, made.complaint.of_reply) == ("r", True)


def test_no_secret_is_shown_and_none_disturbs_the_reading():
    """A secret in a sentence is masked in the text, in every way to end, and the subject is read all the same."""
    made = opened(token="orders")
    error = made.receive(Err('Permissions Violation for Publish to "orders.eu"'))
    assert isinstance(error, DeniedError)
    assert error.subject == "orders.eu"
    assert '"***.eu"' in str(error)
    made.receive(Err("Stale Connection of orders"))
    assert "Stale Connection of ***." in str(made.ended("x"))
    for state in ("greeting", "login"):
        made = session(token="s3cret")
        if state == "login":
            made.receive(Info(dict(INFO)))
        with pytest.raises(LoginError) as caught:
            made.receive(Err("Authorization Violation for s3cret"))
        assert "s3cret" not in f"{caught.value} {caught.value!r} {caught.value.facts}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"token": "t0ken"}, "refuses the login with a token."),
        ({"user": "ann", "password": "p4ss"}, "refuses the login of user ann."),
        ({"nkey": Key.make().seed}, "refuses the login with an nkey."),
        ({"credentials": Operator().credentials()}, "refuses the login with credentials."),
        ({}, "refuses the login: it wants one, and none is given."),
    ],
    ids=["token", "user", "nkey", "credentials", "none"],
)
def test_a_refused_login_names_the_way_in(options: dict[str, Any], says: str):
    """The error says with what we tried, and what the server said."""
    made = session(**options)
    made.receive(Info({**INFO, "nonce": "n"}))
    with pytest.raises(LoginError) as caught:
        made.receive(Err("Authorization Violation"))
    assert says in str(caught.value)
    assert "The server said: Authorization Violation." in caught.value.remedy


# -- how it ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "kind", "says"),
    [
        ("securing", UnreachableError, "closed the connection during the TLS handshake: no reason."),
        ("greeting", UnreachableError, "is not a NATS server: it closed the connection before it greeted us."),
        ("login", UnreachableError, "closed the connection before it let us in."),
        ("open", DisconnectedError, f"The connection to {URL} is gone: no reason."),
        ("closed", DisconnectedError, f"The connection to {URL} is gone: no reason."),
    ],
)
def test_each_state_ends_in_its_own_words(state: str, kind: type[LinkError], says: str):
    """A connection that ends says how far it had come."""
    made = in_state(state)
    error = made.ended("no reason")
    assert type(error) is kind
    assert says in str(error)
    assert error.remedy
    assert made.state is State.CLOSED


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("securing", "The TLS handshake with tls://a.example:4222 was not done within 2.5 s."),
        ("greeting", f"No NATS server greeted us at {URL} within 2.5 s."),
        ("login", f"The server at {URL} greeted us, and did not let us in within 2.5 s."),
    ],
)
def test_an_attempt_that_takes_too_long(state: str, says: str):
    """The error says what was waited for."""
    made = in_state(state)
    error = made.late(2.5)
    assert type(error) is UnreachableError
    assert str(error).startswith(says)
    assert made.state is State.CLOSED


def test_a_certificate_that_is_refused_after_the_handshake():
    """With TLS 1.3 a server that does not take our certificate hangs up when we log in: that is TLS, not the login."""
    made = session("tls://a.example:4222")
    made.receive(Info({**INFO, "tls_required": True, "tls_verify": True}))
    made.secured()
    error = made.ended("the server closed it")
    assert isinstance(error, TlsError)
    assert "give tls_cert and tls_key" in error.remedy


def test_last_words_explain_the_end_of_a_login():
    """What the server said before it hung up is the reason."""
    made = in_state("login")
    made.last_words = read_complaint("Authorization Violation")
    assert isinstance(made.ended("x"), LoginError)


@pytest.mark.parametrize("state", STATES)
def test_bytes_that_are_no_protocol(state: str):
    """Before the login no NATS server is there at all; an open connection says what broke it."""
    made = in_state(state)
    broken = RemoteProtocolError("An unknown command b'SSH'.")
    error = made.broken(broken)
    assert made.state is State.CLOSED
    if state == "open":
        assert error is broken
    else:
        assert isinstance(error, UnreachableError)
        assert "is not a NATS server: An unknown command b'SSH'." in str(error)


def test_the_hint_at_handshake_first_is_given_once():
    """A silent server may wait for our handshake; who uses tls_first needs no hint."""
    assert "needs the option tls_first" in session().late(1).remedy
    assert "tls_first" not in session(tls_first=True).late(1).remedy


def test_an_address_where_nobody_is():
    """The error names the address, the reason and the way to start a server."""
    error = unreachable(ConnectionOptions(URL), URL, "connection refused.")
    assert str(error).startswith(f"No NATS server answers at {URL}: connection refused. Is it running")
    assert "penstock server run" in error.remedy


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_sizes_are_checked_before_anything_is_sent():
    """What the server would close the connection for is refused: payload and headers together, and the line."""
    check_size(MAX_CONTROL_LINE, 1000, 1000, "a")
    with pytest.raises(LocalProtocolError, match=r"on a has 1001 bytes .* larger than the server takes \(1000\)"):
        check_size(10, 1001, 1000, "a")
    with pytest.raises(LocalProtocolError, match=f"{MAX_CONTROL_LINE + 1} bytes together"):
        check_size(MAX_CONTROL_LINE + 1, 10, 1000, "a" * 5000)
    with pytest.raises(LocalProtocolError) as caught:
        check_size(10, 1001, 1000, "s" * 100_000)
    assert len(str(caught.value)) < 600
