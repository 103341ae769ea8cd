"""What the server says with -ERR: every sentence has a meaning, and an error of ours that says the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    DeniedError,
    DisconnectedError,
    LocalProtocolError,
    LoginError,
    PenstockError,
    TlsError,
    UnreachableError,
)
from penstock.wire.complaints import SENTENCES, Complaint, ComplaintKind, complaint_error, read_complaint
from penstock.wire.jetstream.verdicts import Verdict, judge

STAYS = False
CLOSES = True
# Each sentence as nats-server 2.15 writes it to a client, or as an older one did.
SPOKEN = [
    ("Authorization Violation", "login", CLOSES, LoginError),
    ("Failed Account Registration", "login", CLOSES, LoginError),
    ("Authentication Timeout", "busy", CLOSES, UnreachableError),
    ("maximum connections exceeded", "busy", CLOSES, UnreachableError),
    ("maximum account active connections exceeded", "busy", CLOSES, UnreachableError),
    ("Connection throttling is active. Please try again later.", "busy", CLOSES, UnreachableError),
    ("User Authentication Expired", "expired", CLOSES, LoginError),
    ("User Authentication Revoked", "expired", CLOSES, LoginError),
    ("Account Authentication Expired", "expired", CLOSES, LoginError),
    ("Authentication Expired", "expired", CLOSES, LoginError),
    ('Permissions Violation for Publish to "a.b"', "denied", STAYS, DeniedError),
    ('Permissions Violation for Publish with Reply of "a.b"', "denied", STAYS, DeniedError),
    ('Permissions Violation for Subscription to "a.>"', "denied", STAYS, DeniedError),
    ('Permissions Violation for Subscription to "a.>" using queue "q"', "denied", STAYS, DeniedError),
    ('Permissions Violation for Subscription to "a.>" (sid "7")', "denied", STAYS, DeniedError),
    ('Permissions Violation for Subscription to "a.>" using queue "q" (sid "7")', "denied", STAYS, DeniedError),
    ('Permissions Violation for Subscription to "a.b.c", too many tokens', "denied", STAYS, DeniedError),
    ("maximum subscriptions exceeded", "subscriptions", STAYS, DeniedError),
    ("Invalid Subject", "subject", STAYS, LocalProtocolError),
    ("Invalid Publish Subject", "subject", STAYS, LocalProtocolError),
    ("Maximum Payload Violation", "protocol", CLOSES, LocalProtocolError),
    ("maximum control line exceeded", "protocol", CLOSES, LocalProtocolError),
    ("Unknown Protocol Operation", "protocol", CLOSES, LocalProtocolError),
    ("Parser Error", "protocol", CLOSES, LocalProtocolError),
    ("invalid client protocol", "protocol", CLOSES, LocalProtocolError),
    ("no responders requires headers support", "protocol", CLOSES, LocalProtocolError),
    ("Secure Connection - TLS Required", "tls", CLOSES, TlsError),
    ("Stale Connection", "gone", CLOSES, DisconnectedError),
    ("Slow Consumer", "gone", CLOSES, DisconnectedError),
    ("Server Shutdown", "gone", CLOSES, DisconnectedError),
    ("attempted to connect to route port", "port", CLOSES, LoginError),
    ("attempted to connect to leaf node port", "port", CLOSES, LoginError),
    ("attempted to connect to gateway port", "port", CLOSES, LoginError),
    ('Rejecting connection from gateway "A" on the Route port', "port", CLOSES, LoginError),
    ('Loop detected for leafnode account="A". Delaying attempt to reconnect for 30s', "port", CLOSES, LoginError),
]


@pytest.mark.parametrize(("text", "kind", "closes", "error"), SPOKEN, ids=[text for text, *_ in SPOKEN])
def test_sentences(text: str, kind: str, closes: bool, error: type[PenstockError]):
    """A sentence has its kind and its end of the connection, in any case and with quotes, and becomes one error."""
    for form in (text, f"'{text}'", text.upper(), text.lower(), f" '{text}' "):
        found = read_complaint(form)
        assert (found.kind, found.closes) == (ComplaintKind(kind), closes)
    made = complaint_error(read_complaint(text), ["nats://somewhere:4222"])
    assert type(made) is error
    assert text in str(made)
    assert made.remedy
    if "urls" in error.fact_names:
        assert made.facts["urls"] == ("nats://somewhere:4222",)


def test_every_entry_of_the_table_is_spoken():
    """No sentence of the table hides behind another one: each, said alone, is read as what it stands for."""
    for start, kind in SENTENCES.items():
        assert read_complaint(start).kind is kind
    assert set(SENTENCES.values()) == set(ComplaintKind) - {ComplaintKind.UNKNOWN}


@pytest.mark.parametrize("start", SENTENCES)
def test_one_verdict(start: str):
    """What a busy server says passes; one that gives the connection up leaves all unknown; the rest is refused."""
    expected = {ComplaintKind.BUSY: Verdict.PASSING, ComplaintKind.GONE: Verdict.UNKNOWN}
    found = read_complaint(start)
    assert judge(complaint_error(found)) is expected.get(found.kind, Verdict.REFUSED)


def test_a_slow_login_is_no_wrong_password():
    """ "Authentication Timeout" is what a busy server says to a slow login: it passes, and asks for no new secret."""
    found = read_complaint("Authentication Timeout")
    assert judge(complaint_error(found)) is Verdict.PASSING
    assert not isinstance(complaint_error(found), LoginError)


def test_a_stranger_claims_nothing():
    """A sentence that we do not know has no kind, closes nothing, and leaves everything under way unknown."""
    for text in ("", "'", "''", "Something New", "Permission"):
        found = read_complaint(text)
        assert (found.kind, found.closes) == (ComplaintKind.UNKNOWN, False)
        assert type(complaint_error(found)) is DisconnectedError
        assert judge(complaint_error(found)) is Verdict.UNKNOWN


# -- denials ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('Publish to "a.b"', ("publish", "a.b", None, None, False)),
        ('Publish with Reply of "_INBOX.x"', ("publish", "_INBOX.x", None, None, True)),
        ('Subscription to "a.*"', ("subscribe", "a.*", None, None, False)),
        ('Subscription to "a.*" using queue "work"', ("subscribe", "a.*", "work", None, False)),
        ('Subscription to "a.*" (sid "12")', ("subscribe", "a.*", None, 12, False)),
        ('Subscription to "a.*" using queue "work" (sid "12")', ("subscribe", "a.*", "work", 12, False)),
        ('Subscription to "a.b.c", too many tokens', ("subscribe", "a.b.c", None, None, False)),
        ('Subscription to "a" (sid "x1")', ("subscribe", "a", None, None, False)),
        (f'Subscription to "a" (sid "{"9" * 5000}")', ("subscribe", "a", None, None, False)),
        (r'Publish to "say \"a\" \\ \t\n"', ("publish", 'say "a" \\ \t\n', None, None, False)),
        (r'Publish to "\u2028\x00\U0010ffff\a"', ("publish", "\u2028\x00\U0010ffff\a", None, None, False)),
        (r'Publish to "a\xffb"', ("publish", "a\udcffb", None, None, False)),
        ('Publish to "grüße.日本"', ("publish", "grüße.日本", None, None, False)),
        ('Publish to " using queue "', ("publish", " using queue ", None, None, False)),
        ("Publish to a.b", ("publish", "a.b", None, None, False)),  # older servers wrote no quotes
        ("Subscription to a.b (sid 3)", ("subscribe", "a.b", None, 3, False)),
        ("Publish", (None, None, None, None, False)),  # still a denial, of we do not know what
        ('Publish to "a', ("publish", '"a', None, None, False)),
    ],
)
def test_denials(text: str, parts: tuple[str | None, str | None, str | None, int | None, bool]):
    """A denial says what, where, for which queue and subscription, with the subject as it was sent."""
    found = read_complaint(f"Permissions Violation for {text}")
    assert found.kind is ComplaintKind.DENIED
    assert (found.operation, found.subject, found.queue, found.sid, found.of_reply) == parts
    error = complaint_error(found)
    assert isinstance(error, DeniedError)
    assert (error.operation, error.subject) == parts[:2]


def test_a_masked_sentence():
    """The text that may be shown can differ from what the server said; the facts are the server's."""
    found = read_complaint('Permissions Violation for Publish to "s3cret"')
    assert "s3cret" not in str(complaint_error(found, text="Permissions Violation for Publish to ***"))


def go_quote(text: str) -> str:
    """Write a string as Go's %q does: printable ASCII as it is, everything else escaped."""
    plain = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\a": "\\a", "\b": "\\b"}
    plain |= {"\f": "\\f", "\v": "\\v"}

    def one(char: str) -> str:
        number = ord(char)
        if char in plain:
            return plain[char]
        if 32 <= number < 127:
            return char
        return f"\\x{number:02x}" if number < 128 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"

    return '"' + "".join(map(one, text)) + '"'


SUBJECTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(subject=SUBJECTS, queue=st.none() | SUBJECTS, sid=st.none() | st.integers(1, 2**59))
def test_any_subject_comes_back(subject: str, queue: str | None, sid: int | None):
    """Whatever a subject or a queue holds, quotes and line ends too, it is read back as it was."""
    text = f"Permissions Violation for Subscription to {go_quote(subject)}"
    text += f" using queue {go_quote(queue)}" if queue is not None else ""
    text += f' (sid "{sid}")' if sid is not None else ""
    found = read_complaint(text)
    assert (found.operation, found.subject, found.queue, found.sid) == ("subscribe", subject, queue, sid)


@given(st.text())
def test_anything_is_survived(text: str):
    """No sentence, however broken, does more than become a complaint and an error of ours."""
    for form in (text, f"Permissions Violation for {text}", f'Permissions Violation for Publish to "{text}'):
        found = read_complaint(form)
        assert isinstance(found, Complaint)
        assert isinstance(complaint_error(found, ()), PenstockError)


@pytest.mark.parametrize(
    ("said", "add"),
    [
        ('Publish to "orders.new"', 'publish: { allow: ["orders.new"] }'),
        ('Publish to "$JS.ACK.S.c.1.2.3.4.5"', 'publish: { allow: ["$JS.ACK.S.c.>"] }'),
        ('Publish to "$JS.API.CONSUMER.CREATE.S.x.orders.>"', 'publish: { allow: ["$JS.API.CONSUMER.CREATE.S.>"] }'),
        ('Publish to "$JS.API.CONSUMER.CREATE.S"', 'publish: { allow: ["$JS.API.CONSUMER.CREATE.S"] }'),
        ('Publish to "$JS.API.STREAM.INFO.S"', 'publish: { allow: ["$JS.API.STREAM.INFO.S"] }'),
        ('Subscription to "_INBOX.abc.def"', 'subscribe: { allow: ["_INBOX.>"] }'),
        ('Subscription to "acme.in.abc.def" using queue "q"', 'subscribe: { allow: ["acme.in.>"] }'),
    ],
)
def test_a_denial_says_what_to_add(said: str, add: str):
    """The remedy is what the configuration lacks: also for the next time, if a part of the subject is made up."""
    error = complaint_error(read_complaint(f"Permissions Violation for {said}"), inbox="acme.in")
    assert add in error.remedy
