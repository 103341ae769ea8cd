"""`connect`: options in, a connection out, or the error that says why not."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock import contexts
from penstock.connection.callbacks import Callbacks, is_coroutine_function
from penstock.connection.connection import DRAIN, Connection
from penstock.errors import InputError, OptionError
from penstock.options import ConnectionOptions

__all__ = ["FOREIGN", "NEEDLESS", "THEIRS", "check_connection", "connect", "gather"]

Callback = Callable[[], Awaitable[None]]

# nats-py's names of what `ConnectionOptions` has under its own.
FOREIGN = {
    "user_credentials": "credentials",
    "nkeys_seed": "nkey",
    "nkeys_seed_str": "nkey",
    "allow_reconnect": "reconnect",
    "max_reconnect_attempts": "reconnect_attempts",
    "reconnect_time_wait": "reconnect_wait",
    "dont_randomize": "keep_order",
    "tls_handshake_first": "tls_first",
}
# What nats-py has to be told and we do not: taken, without effect.
NEEDLESS = {
    "flush_timeout",
    "flusher_queue_size",
    "max_outstanding_pings",
    "pedantic",
    "pending_size",
    "skip_subject_validation",
    "verbose",
}
# What only nats-py has.
THEIRS = {"reconnect_to_server_handler", "signature_cb", "user_jwt_cb", "ws_connection_headers"}


async def connect(
    url: str | Sequence[str] | ConnectionOptions | None = None,
    *,
    context: str | None = None,
    on_error: Callable[[Exception], Awaitable[None]] | None = None,
    on_disconnect: Callback | None = None,
    on_reconnect: Callback | None = None,
    on_close: Callback | None = None,
    error_cb: Callable[[Exception], Awaitable[None]] | None = None,
    disconnected_cb: Callback | None = None,
    reconnected_cb: Callback | None = None,
    closed_cb: Callback | None = None,
    discovered_server_cb: Callback | None = None,
    lame_duck_mode_cb: Callback | None = None,
    tls: ssl.SSLContext | None = None,
    drain_timeout: float = DRAIN,
    **options: Any,
) -> Connection:
    """Connect to NATS and give the connection.

    `url` is an address, several of them, `ConnectionOptions`, or nothing: then the environment and the selected context
    decide (`penstock.contexts` says how). Further options are fields of `ConnectionOptions`. The callbacks are
    coroutine functions; those and some options may be given under nats-py's names. `tls` is a ready context in place of
    the `tls_` options that name files, and insists on TLS as they do; `drain_timeout` is how many seconds callbacks
    have to handle what arrived. Raises UnreachableError, LoginError or TlsError within `connect_timeout`.
    """
    given = gather(url, context, options)
    callbacks = Callbacks(
        error=_one("error_cb", error_cb, on_error),
        disconnected=_one("disconnected_cb", disconnected_cb, on_disconnect),
        reconnected=_one("reconnected_cb", reconnected_cb, on_reconnect),
        closed=_one("closed_cb", closed_cb, on_close),
        discovered=_one("discovered_server_cb", discovered_server_cb, None),
        lame_duck=_one("lame_duck_mode_cb", lame_duck_mode_cb, None),
    )
    connection = Connection(given, callbacks, tls=tls, drain_timeout=drain_timeout)
    await connection.open()
    return connection


def check_connection(given: object) -> Connection:
    """Refuse what is not a connection of ours, such as a client of nats-py, before anything is done with it."""
    if not isinstance(given, Connection):
        kind = type(given)
        raise InputError(
            f"{kind.__module__}.{kind.__qualname__} is not a connection of Penstock.",
            remedy="Connect with penstock.connect: it takes the options of nats-py's connect, and its result has the "
            "names of nats-py's client.",
        )
    return given


def _one(name: str, foreign: Any, own: Any) -> Any:
    if foreign is not None and own is not None:
        raise InputError(f"{name} is given under two names.", remedy="Leave one of them out.")
    found = foreign if own is None else own
    if found is not None and not is_coroutine_function(found):
        raise InputError(f"{name} is not a coroutine function.", remedy="Give an `async def` function.")
    return found


def gather(
    url: str | Sequence[str] | ConnectionOptions | None, context: str | None, options: dict[str, Any]
) -> ConnectionOptions:
    """Make one value of everything that was given."""
    known = ConnectionOptions.__dataclass_fields__
    if url is None and "servers" in options:
        url = options.pop("servers")
    for foreign, own in FOREIGN.items():
        if foreign in options:
            if own in options:
                raise OptionError(f"{own} and {foreign} are one option.", remedy="Leave one out.", option=foreign)
            options[own] = options.pop(foreign)
    options = {name: value for name, value in options.items() if name not in NEEDLESS}
    if options.get("name", "") is None:
        del options["name"]
    if isinstance(prefix := options.get("inbox_prefix"), bytes):
        options["inbox_prefix"] = prefix.decode()
    for name in options:
        if name in THEIRS:
            raise OptionError(
                f"{name} is an option of nats-py that this connection has not.",
                remedy="penstock.connection.connect_nats_py gives a client of nats-py.",
                option=name,
            )
        if name not in known:
            raise OptionError(
                f"There is no connection option {name!r}.",
                remedy=f"Known: {', '.join(sorted(known))}.",
                option=name,
            )
    if isinstance(url, ConnectionOptions):
        if context is not None:
            raise InputError("context is given beside ready options.", remedy="Leave one of them out.")
        return url.replace(**options) if options else url
    if url is not None and not isinstance(url, str):
        url = ",".join(url)
    return contexts.load_options(url, context=context, **options)
