"""The door to NATS for asyncio code: options in, a connected nats-py client out.

This is the only module that imports nats-py's client, and the place where its errors become ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import nats.errors
import nats.js
import nats.js.errors
from nats.aio.client import Client as NatsClient
from nats.aio.client import RawCredentials
from nats.aio.transport import TcpTransport
from nats.js.api import DEFAULT_PREFIX

from penstock import contexts, credentials
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
    PenstockError,
    RemoteProtocolError,
    TlsError,
    UnreachableError,
)
from penstock.options import ConnectionOptions

__all__ = ["Client", "api_request", "connect", "foreign_errors", "jetstream", "server_info", "translate"]

log = logging.getLogger("penstock.connection")

Callback = Callable[[], Awaitable[None]]
# nats-py multiplies a frame's cost by every buffer it fills; 8 MiB holds a burst of large messages and bounds
# the rest.
PENDING_BYTES = 8 * 1024 * 1024


class Client(NatsClient):
    """A nats-py client that remembers its options and never falls back from TLS to plain text.

    nats-py goes on in plain text, login included, where a `tls://` address is answered by a server without
    TLS. Here the connection ends before anything is sent.
    """

    def __init__(self, given: ConnectionOptions) -> None:
        super().__init__()
        self.given = given
        self.ended = False  # whether the connection was closed because somebody asked for it

    async def close(self) -> None:
        # nats-py closes itself, too, when it has run out of servers.
        self.ended = not isinstance(self._err, nats.errors.NoServersError)
        await super().close()

    async def drain(self) -> None:
        self.ended = self.is_connected
        await super().drain()

    async def __aexit__(self, *about: object) -> None:
        self.ended = True
        await super().__aexit__(*about)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self.given.tls and not self.given.url.startswith("wss:"):
            if not info.get("tls_required") and not info.get("tls_available") and not self.given.tls_first:
                raise _NoTls("the server does not offer TLS")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


class _NoTls(nats.errors.Error):
    """The server offers no TLS and we insist on it."""


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

    async def errored(error: Exception) -> None:
        if not stands:
            failures.append(error)
            return
        log.warning("%s", given.scrub(str(error)) or type(error).__name__)
        if on_error is not None:
            await on_error(error)

    async def disconnected() -> None:
        if client.is_closed:  # nats-py says "disconnected" of a connection that we closed ourselves, too
            return
        log.warning("Lost the connection to %s.", given.url)
        if on_disconnect is not None:
            await on_disconnect()

    async def reconnected() -> None:
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
            if not client.is_connected:  # nats-py takes the end of the stream for the answer to its first ping
                raise nats.errors.UnexpectedEOF
    except BaseException as error:
        await _abandon(client)
        if not isinstance(error, Exception):
            raise
        # The last attempt may be a bare "no servers": what each attempt died of tells more.
        raise _connect_error(given, [*failures, error]) from None
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
            # nats-py calls itself closed after the first failed attempt, and then leaves those of later ones
            # open.
            if transport := client._transport:
                transport.close()  # type: ignore[no-untyped-call]  # nats-py types its client, not its transports
                await transport.wait_closed()  # type: ignore[no-untyped-call]  # the same
    except (TimeoutError, nats.errors.Error, OSError) as error:
        log.debug("closing an unfinished connection: %r", error)
    if isinstance(client._transport, TcpTransport) and client._transport._bare_io_writer is not None:
        # A peer that never answers our goodbye keeps no socket.
        client._transport._bare_io_writer.transport.abort()


def _connect_error(given: ConnectionOptions, causes: list[Exception]) -> PenstockError:
    """Find the sentence that tells a user why no connection came about."""
    where = given.url
    for cause in causes:
        text = given.scrub(str(cause))
        lowered = text.lower()
        if isinstance(cause, PenstockError):
            return cause
        if isinstance(cause, _NoTls):
            return TlsError(
                f"{where} does not offer TLS, and this connection insists on it.",
                remedy="Use a nats:// address without TLS options, or turn TLS on at the server.",
                urls=given.urls,
            )
        if isinstance(cause, ssl.SSLError | ssl.CertificateError):
            return TlsError(
                f"TLS with {where} failed: {_tls_reason(cause)}.",
                remedy=_tls_remedy(given, cause),
                urls=given.urls,
            )
        if "authorization" in lowered or "authentication" in lowered or "nonce" in lowered:
            return LoginError(
                f"{where} refuses the login{_login_kind(given)}.",
                remedy="Check token, user and password, nkey or credentials.",
                urls=given.urls,
            )
        if isinstance(cause, nats.errors.Error) and (said := re.fullmatch(r"nats: '(.+)'", text)):
            return LinkError(
                f"{where} refuses the connection: {said.group(1)}.",
                remedy="The server's log and limits tell more.",
                urls=given.urls,
            )
        if isinstance(cause, ImportError):
            return InputError(
                f"{where} is a WebSocket address, and aiohttp is not installed.",
                remedy="Run: pip install 'penstock[websocket]'.",
            )
    return _unreachable(given, causes)


def _unreachable(given: ConnectionOptions, causes: list[Exception]) -> LinkError:
    where = given.url
    first = "" if given.tls_first else " A server with handshake_first needs the option tls_first."
    for cause in causes:
        if isinstance(cause, ConnectionResetError | BrokenPipeError | nats.errors.UnexpectedEOF):
            return UnreachableError(
                f"{where} closed the connection before it let us in.",
                remedy=f"Is it the client port of a NATS server?{first}",
                urls=given.urls,
            )
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            reason = (cause.strerror or str(cause)).split("] ")[-1]
            return UnreachableError(
                f"No NATS server answers at {where}: {_plain(reason)}.",
                remedy="Is it running, and is the address right? `penstock server run` starts one.",
                urls=given.urls,
            )
        # nats-py lets the errors of its parsing through where an INFO line is none.
        if "info message" in str(cause).lower() or isinstance(cause, ValueError | AttributeError | TypeError):
            return UnreachableError(
                f"What answers at {where} is not a NATS server.",
                remedy=f"Is it the client port, not the monitoring or cluster port?{first}",
                urls=given.urls,
            )
        if type(cause).__name__ == "WSServerHandshakeError":  # aiohttp's; it is not imported where nobody needs it
            return UnreachableError(
                f"What answers at {where} is not the WebSocket port of a NATS server.",
                remedy="Does the server's configuration have a websocket block, with this port?",
                urls=given.urls,
            )
    return UnreachableError(
        f"No NATS server greeted us at {where} within {given.connect_timeout:g} s.",
        remedy=f"Is the address right, and does a firewall let us through?{first}",
        urls=given.urls,
    )


def _plain(reason: str) -> str:
    # asyncio writes "Connect call failed ('127.0.0.1', 1)"; people know it as a refused connection.
    return "connection refused" if "Connect call failed" in reason else reason.rstrip(".")


def _tls_reason(cause: ssl.SSLError) -> str:
    verify = getattr(cause, "verify_message", "").rstrip(".")
    return verify or str(cause.reason or cause).replace("_", " ").lower()


def _tls_remedy(given: ConnectionOptions, cause: ssl.SSLError) -> str:
    reason = _tls_reason(cause)
    if "certificate required" in reason or (given.tls_cert is None and "bad certificate" in reason):
        return "The server wants a certificate of ours: give tls_cert and tls_key."
    if "alert" in reason:
        return "The server does not take our certificate: is it signed by an authority that the server trusts?"
    if "mismatch" in reason:
        return "Use an address that the certificate names, or give the name it carries as tls_hostname."
    if "wrong version" in reason or "record layer" in reason:
        return "It does not begin with TLS: leave tls_first out, and check the port."
    if given.tls_ca is None:
        return "Is its certificate signed by an authority that this machine trusts? If not, give tls_ca."
    return "Does tls_ca belong to the server's certificate?"


def _login_kind(given: ConnectionOptions) -> str:
    for field, text in (
        ("credentials", "with credentials"),
        ("nkey", "with an nkey"),
        ("token", "with a token"),
    ):
        if getattr(given, field):
            return f" {text}"
    return f" of user {given.user}" if given.user else ": it wants one, and none is given"


def jetstream(client: NatsClient, *, timeout: float | None = None) -> nats.js.JetStreamContext:
    """Give nats-py's JetStream context with the domain or API prefix of the connection."""
    given = client.given if isinstance(client, Client) else None
    return client.jetstream(
        prefix=given.js_prefix if given else DEFAULT_PREFIX,
        timeout=timeout or (given.request_timeout if given else 5.0),
    )


def server_info(client: NatsClient) -> Mapping[str, Any]:
    """Give what the server said of itself when we connected: its INFO."""
    return MappingProxyType(client._server_info)


async def api_request(client: NatsClient, method: str, body: object = None, *, timeout: float | None = None) -> Any:
    """Call the JetStream API, `method` being what follows the prefix, and give the decoded answer.

    An answer that holds an error raises JetStreamError with the server's codes; `foreign_errors` covers the
    rest.
    """
    given = client.given if isinstance(client, Client) else None
    prefix = given.js_prefix if given else DEFAULT_PREFIX
    payload = b"" if body is None else json.dumps(body).encode()
    subject = f"{prefix}.{method}"
    with foreign_errors(subject):
        reply = await client.request(subject, payload, timeout=timeout or (given.request_timeout if given else 5.0))
    try:
        answer = json.loads(reply.data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise RemoteProtocolError(
            f"What answered on {subject} is not JetStream: {reply.data[:40]!r}.",
            remedy="Does another service listen on that subject? Check domain and api_prefix.",
        )
    if error := answer.get("error"):
        raise api_error(error)
    return answer


def api_error(error: dict[str, Any]) -> JetStreamError:
    """Turn the `error` object of a JetStream answer into ours."""
    code, description = error.get("code"), str(error.get("description", "no description"))
    kind = NotFoundError if code == 404 else JetStreamError
    return kind(
        f"The server refused: {description} ({error.get('err_code', code)}).",
        code=code,
        err_code=error.get("err_code"),
        description=description,
    )


@contextmanager
def foreign_errors(subject: str | None = None) -> Iterator[None]:
    """Translate what nats-py raises inside the block into our errors."""
    try:
        yield
    except PenstockError:
        raise
    except (nats.errors.Error, TimeoutError) as error:
        raise translate(error, subject) from error


def translate(error: Exception, subject: str | None = None) -> PenstockError:
    """Give our error for one of nats-py's."""
    about = f" on {subject}" if subject else ""
    if isinstance(error, nats.js.errors.APIError):
        return api_error({"code": error.code, "err_code": error.err_code, "description": error.description})
    if isinstance(error, nats.errors.NoRespondersError | nats.js.errors.NoStreamResponseError):
        return NoRespondersError(
            f"Nobody listens{about}.",
            remedy="Is the service running, or, for JetStream, is it on and does a stream hold the subject?",
            subject=subject,
        )
    if isinstance(error, TimeoutError):
        return DeadlineError(f"No answer{about} in time.", remedy="A longer timeout may help.", subject=subject)
    if isinstance(error, nats.errors.MaxPayloadError):
        return LocalProtocolError(
            f"The message{about} is larger than the server takes.",
            remedy="Send it in chunks (penstock.chunks), or raise max_payload at the server.",
        )
    if isinstance(error, nats.errors.BadSubjectError | nats.errors.BadHeaderError | nats.errors.BadSubscriptionError):
        return LocalProtocolError(f"nats-py refuses what we send{about}: {error}.")
    if isinstance(
        error,
        nats.errors.ConnectionClosedError
        | nats.errors.StaleConnectionError
        | nats.errors.ConnectionDrainingError
        | nats.errors.ConnectionReconnectingError
        | nats.errors.OutboundBufferLimitError,
    ):
        return DisconnectedError(f"The connection is gone{about}: {error}.", remedy="Is the server still running?")
    return LinkError(f"nats-py reports{about}: {str(error) or type(error).__name__}.")
