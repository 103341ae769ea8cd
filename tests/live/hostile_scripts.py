"""The hostile scripts: what a broken, busy or malicious server might say, at every stage of a client's work.

A `Script` has a name and the cases that belong to it: the same attack at each stage, or each wrong value of one field.
A `Case` is what one server plays, and the operation of a client that meets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.scripted import (
    GREETING,
    INFO,
    Answer,
    Step,
    flood,
    greeting,
    half_close,
    hang_up,
    hear,
    js,
    log_in,
    play,
    reset,
    say,
    serve,
    then,
)
from tests.scripted_stream import CONFIG, STREAM

__all__ = ["DEEP", "DIGITS", "INDIRECT", "WRONG", "Case", "Script", "attacks", "greetings", "replaced"]

DIGITS = b"9" * 5000  # more than Python turns into a number without being asked to
DEEP = b"[" * 20_000
INDIRECT = {**STREAM, "config": {**CONFIG, "allow_direct": False}}


@dataclass(frozen=True)
class Case:
    """What one server plays, and the operation that a client tries on it."""

    name: str
    operation: str
    steps: tuple[Step, ...]
    fails: bool = True
    """Whether the operation must fail; if not, it may: what does not concern it can be passed over."""


@dataclass(frozen=True)
class Script:
    """Something hostile, in all its cases."""

    name: str
    cases: tuple[Case, ...]


# -- attacks: at every stage -----------------------------------------------------------------------------------------


def _in_feed(attack: Step) -> Answer:
    return lambda asked: then(attack)(asked) if asked.subject == "feed" else b""


def _at_the_commit(attack: Step) -> Answer:
    return lambda asked: then(attack)(asked) if b"Nats-Batch-Commit" in asked.header else b""


# The operation that gets to a stage, and the script that attacks there.
STAGES: dict[str, tuple[str, Callable[[Step], tuple[Step, ...]]]] = {
    "the greeting": ("connect", lambda attack: (attack,)),
    "the login": ("connect", lambda attack: (say(GREETING), hear(rb"PING\r\n"), attack)),
    "a reply": ("request", lambda attack: (log_in(), serve(request=then(attack)))),
    "the answer to a flush": ("flush", lambda attack: (log_in(), serve(ping=then(attack)))),
    "a message": ("subscribe", lambda attack: (log_in(), serve(subscribe=_in_feed(attack)))),
    "the answer to a question": ("api", lambda attack: (log_in(), serve(stream_info=then(attack)))),
    "an ack": ("publish", lambda attack: (log_in(), serve(ack=then(attack)))),
    "one of many acks": ("acks", lambda attack: (log_in(), serve(ack=then(attack)))),
    "the ack of a batch": ("atomic", lambda attack: (log_in(), serve(atomic=_at_the_commit(attack)))),
    "a flow ack": ("fast", lambda attack: (log_in(), serve(fast=then(attack)))),
    "the answer to a direct get": ("direct", lambda attack: (log_in(), serve(direct=then(attack)))),
    "a delivery": ("consume", lambda attack: (log_in(), serve(pull=then(attack)))),
    "a message of a read": ("pull", lambda attack: (log_in(), serve(stream_info=js(INDIRECT), pull=then(attack)))),
}
# Said again and again at full speed. What a client does about them costs it time, and must not cost it memory.
FLOODS: dict[str, bytes] = {
    "INFO": GREETING,
    "INFO with addresses": greeting(connect_urls=["127.0.0.1:1", "127.0.0.2:2"]),
    "PING": b"PING\r\n",
    "PONG": b"PONG\r\n",
    "+OK": b"+OK\r\n",
    "-ERR": b"-ERR 'Something Else'\r\n",
    "-ERR about permissions": b"-ERR 'Permissions Violation for Publish to \"other\"'\r\n",
    "foreign messages": b"MSG other 99 5\r\nhello\r\n",
    "foreign messages with headers": b"HMSG other 99 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
    "foreign messages of 500 kB": b"MSG other 99 500000\r\n" + b"x" * 500_000 + b"\r\n",
    "messages for the first subscription": b"MSG other 1 5\r\nhello\r\n",
    "messages for the second subscription": b"MSG other 2 5\r\nhello\r\n",
    "bytes without a line end": b"x",
    "blanks": b" ",
    "empty lines": b"\r\n",
}
# A flood costs a core for as long as the deadline lasts, so that only the commonest come at every stage.
EVERYWHERE = {"PING", "-ERR", "foreign messages"}
FEW_STAGES = ("the greeting", "the login", "a reply", "one of many acks")
ATTACKS: dict[str, tuple[Step, ...]] = {
    "silence": (),
    "a hang up": (hang_up,),
    "a reset": (reset,),
    "half a close": (half_close,),
    "binary garbage": (say(bytes(range(256)) * 4),),
    "binary garbage without a line end": (say(bytes(range(128, 256))),),
    "a sentence": (say(b"Welcome to the machine!\r\n"),),
    "HTTP": (say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),),
    "a TLS alert": (say(b"\x15\x03\x01\x00\x02\x02\x46"),),
    "a lone LF": (say(b"\n"),),
    "a lone CR": (say(b"PING\rPONG\r\n"),),
    "a lone LF inside a line": (say(b"MSG other\n99 5\r\nhello\r\n"),),
    "NUL bytes": (say(b"\x00" * 1000 + b"\r\n"),),
    "a word behind PING": (say(b"PING now\r\n"),),
    "a command of clients": (say(b"PUB other 5\r\nhello\r\n"),),
    "INFO of nothing": (say(b"INFO\r\n"),),
    "INFO of a list": (say(b"INFO [1,2]\r\n"),),
    "INFO of a number of 5,000 digits": (say(b"INFO " + DIGITS + b"\r\n"),),
    "INFO that holds a number of 5,000 digits": (say(b'INFO {"proto":' + DIGITS + b"}\r\n"),),
    "INFO that is nested deeply": (say(b'INFO {"a":' + DEEP + b"\r\n"),),
    "INFO that is cut": (say(GREETING[:40] + b"\r\n"),),
    "INFO that is no UTF-8": (say(b'INFO {"server_id":"\xff\xfe"}\r\n'),),
    "INFO of 8 MB": (say(greeting(server_name="x" * 8_000_000)),),
    "INFO with 20,000 addresses": (
        say(greeting(connect_urls=[f"10.0.{n // 250}.{n % 250}:4" for n in range(20_000)])),
    ),
    "a hang up in the middle of INFO": (say(GREETING[:30]), hang_up),
    "silence in the middle of INFO": (say(GREETING[:30]),),
    "-ERR of nothing": (say(b"-ERR\r\n"), hang_up),
    "-ERR of 60 kB": (say(b"-ERR '" + b"y" * 60_000 + b"'\r\n"), hang_up),
    "-ERR that is no UTF-8": (say(b"-ERR '\xff\xfe\xfd'\r\n"), hang_up),
    "MSG of nothing": (say(b"MSG\r\n"),),
    "MSG with too few words": (say(b"MSG other 99\r\n"),),
    "MSG with too many words": (say(b"MSG other 99 a b 5\r\nhello\r\n"),),
    "MSG with a negative size": (say(b"MSG other 99 -5\r\nhello\r\n"),),
    "MSG with text for a size": (say(b"MSG other 99 five\r\nhello\r\n"),),
    "MSG with a size of 5,000 digits": (say(b"MSG other 99 " + DIGITS + b"\r\nhello\r\n"),),
    "MSG with a size beyond all limits": (say(b"MSG other 99 4000000000\r\nhello\r\n"),),
    "MSG with a negative subscription": (say(b"MSG other -1 5\r\nhello\r\n"),),
    "MSG with text for a subscription": (say(b"MSG other nine 5\r\nhello\r\n"),),
    "MSG with a subscription of 5,000 digits": (say(b"MSG other " + DIGITS + b" 5\r\nhello\r\n"),),
    "MSG for nobody": (say(b"MSG other 99 5\r\nhello\r\n"),),
    "MSG with a subject that is no UTF-8": (say(b"MSG \xff\xfe 99 5\r\nhello\r\n"),),
    "MSG with a line of 70 kB": (say(b"MSG " + b"a" * 70_000 + b" 99 5\r\nhello\r\n"),),
    "MSG whose payload does not end": (say(b"MSG other 99 5\r\nhello!!\r\n"),),
    "MSG of 60 MB that stays away": (say(b"MSG other 99 60000000\r\n"),),
    "MSG of 60 MB byte by byte": (say(b"MSG other 99 60000000\r\n"), flood(b"x", every=0.01)),
    "HMSG with too few words": (say(b"HMSG other 99 20\r\n"),),
    "HMSG with headers larger than all of it": (say(b"HMSG other 99 30 20\r\nNATS/1.0\r\n\r\nhello\r\n"),),
    "HMSG with text for a header size": (say(b"HMSG other 99 x 20\r\n"),),
    "HMSG with a header size of 5,000 digits": (say(b"HMSG other 99 " + DIGITS + b" 20\r\n"),),
    "HMSG with a negative header size": (say(b"HMSG other 99 -12 20\r\n"),),
    "a hang up in the line of a message": (say(b"MSG other 9"), hang_up),
    "a hang up in a payload": (say(b"MSG other 99 5\r\nhel"), hang_up),
    "a hang up in headers": (say(b"HMSG other 99 12 17\r\nNATS/"), hang_up),
    "a hang up before the last LF": (say(b"MSG other 99 5\r\nhello\r"), hang_up),
    "a reset in a payload": (say(b"MSG other 99 5\r\nhel"), reset),
    "silence in a payload": (say(b"MSG other 99 5\r\nhel"),),
    "half a close in a payload": (say(b"MSG other 99 5\r\nhel"), half_close),
    "one byte after the other": (flood(b"x", every=0.01),),
    "PING now and then": (flood(b"PING\r\n", every=0.01),),
    "INFO now and then": (flood(GREETING, every=0.01),),
    "foreign messages now and then": (flood(b"MSG other 99 5\r\nhello\r\n", every=0.01),),
}
# A client may take these for what it waits for: an INFO is a greeting, a PONG is a login.
TAKEN = {("PONG without end", "the login"), ("PONG without end", "the answer to a flush")}
TAKEN |= {("messages for the first subscription without end", "a message")}


def attacks() -> Iterator[Script]:
    """Give every attack, at every stage."""
    floods = {f"{name} without end": (flood(frame),) for name, frame in FLOODS.items()}
    for name, steps in {**ATTACKS, **floods}.items():
        stages = STAGES if name in ATTACKS or name.removesuffix(" without end") in EVERYWHERE else FEW_STAGES
        cases = []
        for stage in stages:
            operation, script = STAGES[stage]
            cases.append(Case(f"instead of {stage}", operation, script(play(*steps)), (name, stage) not in TAKEN))
        yield Script(name, tuple(cases))


# -- wrong values ----------------------------------------------------------------------------------------------------

WRONG: dict[str, bytes | None] = {
    "text": b'"12x"',
    "empty text": b'""',
    "text of a number": b'"4"',
    "text of 5,000 digits": b'"' + DIGITS + b'"',
    "text that is no UTF-8": b'"\xff\xfe"',
    "text with line breaks": b'"a\\r\\nPUB x 0\\r\\n\\r\\n"',
    "half a surrogate": b'"\\ud800"',
    "a number of 5,000 digits": DIGITS,
    "a huge number": b"99999999999999999999999999",
    "a negative number": b"-5",
    "zero": b"0",
    "a fraction": b"1.5",
    "an infinite number": b"1e400",
    "NaN": b"NaN",
    "null": b"null",
    "true": b"true",
    "a list": b"[1,2]",
    "an object": b'{"a":1}',
    "left out": None,
}


def replaced(content: dict[str, Any], path: Iterable[str], raw: bytes | None) -> bytes:
    """Write JSON with the value at a path replaced by raw bytes, or left out."""
    copy = json.loads(json.dumps(content))
    inner, (*names, last) = copy, path
    for name in names:
        inner = inner[name]
    if raw is None:
        inner.pop(last, None)
        return json.dumps(copy).encode()
    inner[last] = "@@@"
    return json.dumps(copy).encode().replace(b'"@@@"', raw)


INFO_FIELDS = (
    *("server_id", "version", "proto", "headers", "max_payload", "tls_required", "tls_available", "nonce"),
    *("auth_required", "connect_urls", "ldm", "jetstream", "client_id", "domain"),
)
# Where a TLS handshake should come.
HANDSHAKES: dict[str, tuple[Step, ...]] = {
    "silence": (),
    "a hang up": (hang_up,),
    "a reset": (reset,),
    "garbage": (say(b"\x00\x01garbage\r\n" * 100),),
    "the plain protocol": (say(b"+OK\r\nPING\r\n"),),
    "garbage without end": (flood(b"garbage"),),
    "a TLS alert": (say(b"\x15\x03\x03\x00\x02\x02\x28"),),
    "a broken hello": (say(b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + b"\xee" * 200),),
    "a record that is too large": (say(b"\x16\x03\x03\xff\xff" + b"\x00" * 70_000),),
    "records without end": (flood(b"\x16\x03\x03\x40\x00" + b"\x01" * 16384),),
    "one byte after the other": (flood(b"\x16", every=0.01),),
}
COMPLAINTS = ("Authorization Violation", "Authentication Timeout", "maximum connections exceeded", "Something Else")


def greetings() -> Iterator[Script]:
    """Give INFO with every wrong value in every field, handshakes that are none, and complaints at the login."""
    for field in INFO_FIELDS:
        lines = {kind: b"INFO %s\r\n" % replaced({**INFO, field: 0}, [field], raw) for kind, raw in WRONG.items()}
        first = [
            Case(
                f"{kind} in the greeting", "request", (say(line), hear(rb"PING\r\n"), say(b"PONG\r\n"), serve()), False
            )
            for kind, line in lines.items()
        ]
        later = [
            Case(f"{kind} later", "request", (log_in(), say(line), serve()), False) for kind, line in lines.items()
        ]
        yield Script(f"INFO with a wrong {field}", (*first, *later))
    wanted = say(greeting(tls_required=True))
    shakes = [Case(name, "connect", (wanted, hear(rb"\x16\x03"), play(*steps))) for name, steps in HANDSHAKES.items()]
    early = Case("more than a greeting before it", "connect", (say(greeting(tls_required=True) + b"PING\r\n"),))
    yield Script("a TLS handshake that is none", (*shakes, early))
    for text in COMPLAINTS:
        line = say(f"-ERR '{text}'\r\n".encode())
        before = (say(GREETING), hear(rb"PING\r\n"), line)
        yield Script(
            f"a login that is answered with {text}",
            (
                Case("and a hang up", "connect", (*before, hang_up)),
                Case("and silence", "connect", before),
                Case("instead of a greeting", "connect", (line, hang_up)),
            ),
        )
