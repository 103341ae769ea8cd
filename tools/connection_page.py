"""The part of docs/reference/connection.md that says what a connection has, and what it does when."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Sequence

from penstock.connection import Connection, Msg, Subscription
from penstock.connection.callbacks import Callbacks
from penstock.connection.connecting import FOREIGN, NEEDLESS, THEIRS
from penstock.connection.jetstream import JetStream

__all__ = ["sections"]

# What happens, and what the connection does then.
EVENTS = [
    ("a publisher is faster than the server", "`publish` waits; `send` does not, and `written` does"),
    (
        "a subscription is slower than what comes",
        "once 524,288 messages or 128 MiB of payloads and headers wait, further ones are dropped and counted in "
        "`dropped`; the error callback gets a `SlowSubscriptionError`, and again after it has caught up",
    ),
    (
        "the connection breaks",
        "`flush` and `confirm` raise `DisconnectedError` at once; subscriptions go on when it is back; what was "
        "published and not yet handed to the socket is sent then; what had been handed to it may be lost; "
        "`on_disconnect` is called, and if the server said why, the error callback has its words",
    ),
    (
        "something is published while it is away",
        "up to 8 MiB are kept and sent in order when it is back; more is a `DisconnectedError`",
    ),
    (
        "a request is under way when it breaks",
        "it waits for its answer until its time is over: the inbox is subscribed again",
    ),
    (
        "the server denies something",
        "a request raises `DeniedError` at once, with the subject; so does whoever reads from a denied subscription; "
        "of a denied publish the error callback is told, with the subject that the server made of it if it maps "
        "subjects",
    ),
    (
        "the server says nothing any more",
        "two pings without an answer, `ping_interval` apart, end this stretch of the connection",
    ),
    (
        "a server lets in and hangs up again and again",
        "it is tried with the pauses of one that lets nobody in",
    ),
    (
        "the connection is closed",
        "every call raises `DisconnectedError`; messages that had come can still be read, and callbacks get them if "
        "nobody asked for the end; of what was published and never sent the error callback is told how much",
    ),
    (
        "the server cuts off a connection that reads too slowly",
        "it does so without a word; what was under way is lost; the error says that much was on its way, `cut_off` "
        "counts it, and the connection is made again",
    ),
]


def sections() -> str:
    """Give these sections."""
    told = dict(_fields(Callbacks))
    callbacks = [
        ("`on_error`, `error_cb`", told["error"]),
        ("`on_disconnect`, `disconnected_cb`", told["disconnected"]),
        ("`on_reconnect`, `reconnected_cb`", told["reconnected"]),
        ("`on_close`, `closed_cb`", told["closed"]),
        ("`discovered_server_cb`", told["discovered"]),
        ("`lame_duck_mode_cb`", told["lame_duck"]),
    ]
    text = [
        "## What connect takes besides",
        "",
        "`tls` is a ready `ssl.SSLContext` in place of the options that name certificates, and insists on TLS as they",
        "do. `drain_timeout` is how many seconds callbacks have to handle what arrived, 30 unless something else is",
        "given. Some options have nats-py's name, too:",
        "",
        _table(("nats-py's name", "ours"), [(f"`{theirs}`", f"`{ours}`") for theirs, ours in sorted(FOREIGN.items())]),
        "",
        f"Taken, without effect: {_list(NEEDLESS)}. Refused: {_list(THEIRS)}, and any other name.",
        "",
        "## Callbacks",
        "",
        "Coroutine functions, called one after the other, in the order of what happened. Each may close the",
        "connection. What one raises is logged.",
        "",
        _table(("name", "when it is called"), callbacks),
        "",
        "## The connection",
        "",
        _members(
            Connection,
            *("publish", "subscribe", "request", "flush", "drain", "close", "new_inbox", "rtt", "jetstream"),
            *("is_connected", "is_connecting", "is_reconnecting", "is_draining", "is_draining_pubs", "is_closed"),
            *("stats", "last_error", "max_payload", "connected_url", "connected_server_version", "server_info"),
            *("servers", "client_id", "pending_data_size"),
        ),
        "",
        "More than nats-py has:",
        "",
        _members(
            Connection,
            *("send", "written", "unsent", "post", "tap", "stretch", "broken", "confirm", "standing", "expecting"),
            *("reading_ahead", "cut_off"),
        ),
        "",
        "## JetStream on a connection",
        "",
        "What `jetstream()` gives, with nats-py's names if that has one. [More](jetstream.md) than one request each",
        "is in `penstock.jetstream`; [the values](jetstream-values.md) say what is in an answer.",
        "",
        _members(JetStream, *(name for name in vars(JetStream) if not name.startswith("_"))),
        "",
        "## A subscription",
        "",
        _members(
            Subscription,
            *("next_msg", "messages", "unsubscribe", "drain", "pending_msgs", "pending_bytes", "delivered", "dropped"),
            *("max_msgs", "error"),
        ),
        "",
        "`subject`, `queue` and `id` are what it was made with.",
        "",
        "## A message",
        "",
        _members(Msg, "subject", "reply", "headers", "status", "description", "respond"),
        "",
        "`data` is the payload, `header_block` the headers as they came, None without any, and `sid` the number of the",
        "subscription.",
        "",
        "## What happens when",
        "",
        _table(("this happens", "the connection does"), EVENTS),
    ]
    return "\n".join(text)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _list(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _members(kind: type, *names: str) -> str:
    """Make a table of members with their sentences, and their parameters if they have some."""
    fields = dict(_fields(kind))
    rows = []
    for name in names:
        found = inspect.getattr_static(kind, name, None)
        text = inspect.getdoc(found) if found is not None else fields.get(name)
        assert text, f"{kind.__name__}.{name} has no sentence"
        given = list(inspect.signature(found).parameters)[1:] if inspect.isfunction(found) else None
        shown = name if given is None else f"{name}({', '.join(given)})"
        rows.append((f"`{shown}`", " ".join(text.split()).replace("|", "\\|")))
    return _table(("name", "meaning"), rows)


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    """Read the sentence under each field of a class and of its bases, whether it is declared or set when it is made."""
    for base in kind.__mro__[:-1]:
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            body = getattr(node, "body", None)
            for item, following in itertools.pairwise(body) if isinstance(body, list) else ():
                target = getattr(item, "target", None) or next(iter(getattr(item, "targets", ())), None)
                said = following.value if isinstance(following, ast.Expr) else None
                if isinstance(target, ast.Attribute | ast.Name) and isinstance(said, ast.Constant):
                    name = target.attr if isinstance(target, ast.Attribute) else target.id
                    yield name, " ".join(str(said.value).split())
