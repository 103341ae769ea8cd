"""One connection, from options to a client that stands; or the error that says why not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from nats.aio.client import RawCredentials

from penstock import contexts, credentials
from penstock.connection.client import Client
from penstock.connection.failures import connect_error
from penstock.errors import InputError, OptionError
from penstock.options import ConnectionOptions

__all__ = ["connect"]

log = logging.getLogger("penstock.connection")

Callback = Callable[[], Awaitable[None]]
# nats-py multiplies a frame's cost by every buffer it fills; 8 MiB holds a burst of large messages and bounds
# the rest.
PENDING_BYTES = 8 * 1024 * 1024


async def connect(
    url: str | ConnectionOptions | None = None,
    *,
    context: str | None = None,
    on_error: Callable[[Exception], Awaitable[None]] | None = None,
    on_disconnect: Callback | None = None,
    on_reconnect: Callback | None = None,
    on_close: Callback | None = None,
    **options: Any,
) -> Client:
    """Connect to NATS and give the nats-py client.

    `url` is an address, `ConnectionOptions`, or nothing: then the environment and the selected context decide
    (`penstock.contexts` says how). Further options are fields of `ConnectionOptions`. The callbacks are
    coroutine functions. Raises UnreachableError, LoginError or TlsError within `connect_timeout`.
    """
    given = _gather(url, context, options)
    client = Client(given)
    failures: list[Exception] = []
    stands = False
    told = ""  # the last error of an outage; every attempt brings it again

    async def errored(error: Exception) -> None:
        if not stands:
            failures.append(error)
            return
        nonlocal told
        again, told = told, given.scrub(str(error)) or type(error).__name__
        log.log(logging.DEBUG if told == again and client.is_reconnecting else logging.WARNING, "%s", told)
        if on_error is not None:
            await on_error(error)

    async def disconnected() -> None:
        if client.is_closed:  # nats-py says "disconnected" of a connection that we closed ourselves, too
            return
        log.warning("Lost the connection to %s.", given.url)
        if on_disconnect is not None:
            await on_disconnect()

    async def reconnected() -> None:
        nonlocal told
        told = ""
        log.warning("Connected to %s again.", given.url)
        if on_reconnect is not None:
            await on_reconnect()

    async def closed() -> None:
        if not stands:
            return
        if not client.ended:
            reason = given.scrub(str(client.last_error)) or type(client.last_error).__name__
            log.error("Gave up the connection to %s: %s.", given.url, reason)
        if on_close is not None:
            await on_close()

    arguments = _arguments(given)
    arguments |= {
        "error_cb": errored,
        "disconnected_cb": disconnected,
        "reconnected_cb": reconnected,
        "closed_cb": closed,
    }
    try:
        async with asyncio.timeout(given.connect_timeout):
            await client.connect(**arguments)
    except BaseException as error:
        await _abandon(client)
        if not isinstance(error, Exception):
            raise
        # The last attempt may be a bare "no servers": what each attempt died of tells more.
        raise connect_error(given, [*failures, error]) from None
    stands = True
    # The first connection tries each address once, and briefly; from here on the policy of the options holds.
    client.options["connect_timeout"] = given.connect_timeout
    client.options["allow_reconnect"] = given.reconnect and given.reconnect_attempts != 0
    client.options["max_reconnect_attempts"] = _attempts(given.reconnect_attempts)
    client.options["reconnect_time_wait"] = given.reconnect_wait
    return client


def _attempts(count: int) -> float:
    # nats-py gives an address up once it failed more often than this, and takes zero for "never": the half
    # makes `count` mean what it says, 1 included.
    return -1 if count < 0 else count - 0.5


def _gather(url: str | ConnectionOptions | None, context: str | None, options: dict[str, Any]) -> ConnectionOptions:
    known = ConnectionOptions.__dataclass_fields__
    for name in options:
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
    return contexts.load_options(url, context=context, **options)


def _arguments(given: ConnectionOptions) -> dict[str, Any]:
    login = credentials.login(given)
    arguments: dict[str, Any] = {
        "servers": list(given.urls),
        "name": given.name,
        "inbox_prefix": given.inbox_prefix,
        # An address that accepts and stays silent must leave time for the next one.
        "connect_timeout": given.connect_timeout / len(given.urls),
        "allow_reconnect": True,
        "max_reconnect_attempts": _attempts(1),
        "reconnect_time_wait": given.reconnect_wait,
        "ping_interval": given.ping_interval,
        "pending_size": PENDING_BYTES,
        "token": login.token,
        "user": login.user,
        "password": login.password,
    }
    if login.jwt is not None and login.seed is not None:
        arguments["user_credentials"] = RawCredentials(
            f"-----BEGIN NATS USER JWT-----\n{login.jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{login.seed}\n------END USER NKEY SEED------\n"
        )
    elif login.seed is not None:
        arguments["nkeys_seed_str"] = login.seed
    # Always our own context: the server may ask for TLS although the address does not.
    arguments["tls"] = credentials.tls_context(given)
    arguments["tls_handshake_first"] = given.tls_first
    if given.tls_hostname is not None:
        arguments["tls_hostname"] = given.tls_hostname
    return arguments


async def _abandon(client: Client) -> None:
    """Close what a failed or cancelled connection attempt left open."""
    client.options["allow_reconnect"] = False
    try:
        async with asyncio.timeout(1.0):
            await client.close()
    except (TimeoutError, nats.errors.Error, OSError) as error:
        log.debug("closing an unfinished connection: %r", error)
    await client.hang_up()  # nats-py calls itself closed after the first attempt that fails, and does nothing then
