"""The complaints of a real server: it says what the table says, and closes the connection where the table says so."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from penstock.server import Server
from penstock.wire.complaints import Complaint, complaint_error, read_complaint
from penstock.wire.jetstream.verdicts import judge

USERS = """users: [
    { user: all, password: p }
    { user: few, password: p, permissions: { publish: "open.>", subscribe: ["open.>", "open.> mine"] } }
  ]"""
STRICT = f"""
max_payload: 1000
max_control_line: 512
max_subscriptions: 3
max_subscription_tokens: 4
leafnodes {{ listen: "127.0.0.1:-1" }}
authorization {{ {USERS} }}
"""
# Whoever does not log in, answer pings or come first is sent away soon.
IMPATIENT = f"""
max_connections: 2
ping_interval: "200ms"
ping_max: 1
authorization {{ timeout: 0.2, {USERS} }}
"""


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    with Server(sync="2m", auth=False, config=STRICT) as running:
        yield running


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    with Server(sync="2m", auth=False, config=IMPATIENT) as running:
        yield running


class Raw:
    """A client of bare bytes, so that it can say what ours would never send."""

    def __init__(self, server: Server, port: int | None = None) -> None:
        parts = urlsplit(server.url)
        self.socket = socket.create_connection((parts.hostname, port or parts.port), timeout=20)
        self.stream = self.socket.makefile("rb")

    def login(self, user: str = "all", **options: object) -> None:
        login = {"user": user, "pass": "p", "verbose": False, "lang": "raw", "protocol": 1, "headers": True}
        self.say("CONNECT " + json.dumps(login | options))

    def say(self, text: str) -> None:
        self.socket.sendall(text.encode() + b"\r\n")

    def complaint(self) -> Complaint:
        """Wait for the next -ERR; pings get no answer meanwhile."""
        said = next((line for line in self.stream if line.startswith(b"-ERR")), None)
        assert said is not None, "the server closed without a word"
        return read_complaint(said[4:].decode())

    def is_open(self) -> bool:
        """Ask for a pong."""
        try:
            self.say("PING")
            return any(line == b"PONG\r\n" for line in self.stream)
        except ConnectionError:
            return False

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


SUBSCRIBED = "SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nSUB d 4"
CASES = [
    ("wrong password", {"pass": "x"}, "", "login", None),
    ("nobody", {"user": "nobody"}, "", "login", None),
    ("old protocol", {"protocol": 9}, "", "protocol", None),
    ("no headers", {"no_responders": True, "headers": False}, "", "protocol", None),
    ("too large", {}, f"PUB a 1001\r\n{'x' * 1001}", "protocol", None),
    ("too long", {}, f"PUB {'a' * 600} 1\r\nx", "protocol", None),
    ("no operation", {}, "HELLO", "protocol", None),
    ("no subject", {}, "SUB a..b 1", "subject", ("subscribe", None, None)),
    ("wildcards", {"pedantic": True}, "PUB a.* 1\r\nx", "subject", ("publish", None, None)),
    ("too many subscriptions", {}, SUBSCRIBED, "subscriptions", ("subscribe", None, None)),
    ("too many tokens", {}, "SUB a.b.c.d.e 1", "denied", ("subscribe", "a.b.c.d.e", None)),
    ("denied publish", {"user": "few"}, "PUB other 1\r\nx", "denied", ("publish", "other", None)),
    ("denied publish in quotes", {"user": "few"}, 'PUB say."hi" 1\r\nx', "denied", ("publish", 'say."hi"', None)),
    ("denied publish in Greek", {"user": "few"}, "PUB λόγος 1\r\nx", "denied", ("publish", "λόγος", None)),
    ("denied subscription", {"user": "few"}, "SUB other.> 1", "denied", ("subscribe", "other.>", None)),
    ("denied queue", {"user": "few"}, "SUB other mine 1", "denied", ("subscribe", "other", "mine")),
]


@pytest.mark.parametrize(("options", "said", "kind", "parts"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_what_a_server_says(
    strict: Server, options: dict[str, object], said: str, kind: str, parts: tuple[str, str | None, str | None] | None
):
    """A real server says a sentence that we know, names what we read from it, and closes only where the table says."""
    with closing(Raw(strict)) as raw:
        raw.login(**options)
        if said:
            raw.say(said)
        found = raw.complaint()
        assert found.kind.value == kind
        assert (found.operation, found.subject, found.queue) == (parts or (None, None, None))
        assert raw.is_open() is not found.closes


def test_a_slow_login_passes(impatient: Server):
    """Who has not logged in when the time is over hears a sentence that passes, not one about passwords."""
    with closing(Raw(impatient)) as raw:
        found = raw.complaint()
        assert (found.text, found.kind.value, judge(complaint_error(found)).value) == (
            "Authentication Timeout",
            "busy",
            "passing",
        )
        assert not raw.is_open()


def test_no_answer_to_pings(impatient: Server):
    """Who answers no ping is told that the connection is stale, and it ends."""
    with closing(Raw(impatient)) as raw:
        raw.login()
        found = raw.complaint()
        assert (found.text, found.kind.value, judge(complaint_error(found)).value) == (
            "Stale Connection",
            "gone",
            "unknown",
        )
        assert not raw.is_open()


def test_too_many_connections(impatient: Server):
    """The connection that is one too many is refused for now, whatever its login."""
    with closing(Raw(impatient)) as one, closing(Raw(impatient)) as two:
        for raw in (one, two):  # the server lets in several that come at once in any order
            raw.login()
            assert raw.is_open()
        three = Raw(impatient)
        found = three.complaint()
        assert (found.text, found.kind.value) == ("maximum connections exceeded", "busy")
        assert not three.is_open()
        three.close()


def test_a_port_for_servers(strict: Server):
    """A client at the port for leaf nodes is told so."""
    with urllib.request.urlopen(f"{strict.monitor_urls[0]}/varz") as answer:
        port = json.load(answer)["leaf"]["port"]
    with closing(Raw(strict, port)) as raw:
        raw.login()
        found = raw.complaint()
        assert (found.text, found.kind.value) == ("attempted to connect to leaf node port", "port")
        assert not raw.is_open()
