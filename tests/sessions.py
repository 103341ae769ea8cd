"""Sessions for tests, anywhere in their life, with no socket."""

from __future__ import annotations

import json
from typing import Any

from penstock import credentials
from penstock.options import ConnectionOptions
from penstock.wire.protocol import Info, Pong
from penstock.wire.session import Notice, Session, State

URL = "nats://a.example:4222"
INFO: dict[str, Any] = {"server_id": "X", "version": "2.15.1", "proto": 1, "headers": True, "max_payload": 1000}


def session(url: str = URL, *, at: str | None = None, insist_on_tls: bool = False, **options: Any) -> Session:
    given = ConnectionOptions(url, **options)
    login = credentials.login(given).connect_fields
    return Session(given, at or given.urls[0], login, "1.2.3", insist_on_tls=insist_on_tls)


def said(made: Session) -> tuple[dict[str, Any], bytes]:
    """Give the fields of the CONNECT that waits to be sent, and what follows it."""
    line, _, rest = made.take().partition(b"\r\n")
    assert line.startswith(b"CONNECT ")
    return json.loads(line.removeprefix(b"CONNECT ")), rest


def opened(**options: Any) -> Session:
    made = session(**options)
    assert made.receive(Info(dict(INFO))) is None
    assert made.receive(Pong()) is Notice.OPENED
    made.take()
    return made


STATES = ["securing", "greeting", "login", "open", "closed"]


def in_state(name: str) -> Session:
    """Give a session that stands somewhere in its life."""
    if name == "securing":
        made = session(f"tls://{URL.partition('://')[2]}")
        assert made.receive(Info({**INFO, "tls_required": True})) is Notice.SECURE
    elif name == "open":
        made = opened()
    else:
        made = session()
        if name == "login":
            made.receive(Info(dict(INFO)))
            made.take()
        elif name == "closed":
            made.ended("it is over")
    assert made.state is State(name)
    return made
