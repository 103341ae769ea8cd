"""Why a connection did not come about, in one sentence that a user can act on."""

from __future__ import annotations

import re
import ssl

import nats.errors

from penstock.connection.client import CertificateRefusedError, NoTlsError
from penstock.errors import InputError, LinkError, LoginError, PenstockError, TlsError, UnreachableError
from penstock.options import ConnectionOptions

__all__ = ["connect_error"]

_NO_CERTIFICATE = "The server wants a certificate of ours: give tls_cert and tls_key."
_OUR_CERTIFICATE = "The server does not take our certificate: is it signed by an authority that the server trusts?"


def connect_error(given: ConnectionOptions, causes: list[Exception]) -> PenstockError:
    """Find the sentence that tells a user why no connection came about."""
    where = given.url
    for cause in causes:
        text = given.scrub(str(cause))
        lowered = text.lower()
        if isinstance(cause, PenstockError):
            return cause
        if isinstance(cause, NoTlsError):
            return TlsError(
                f"{where} does not offer TLS, and this connection insists on it.",
                remedy="Use a nats:// address without TLS options, or turn TLS on at the server.",
                urls=given.urls,
            )
        if isinstance(cause, CertificateRefusedError):
            return TlsError(
                f"TLS with {where} failed: the server wants a certificate that it trusts, and hung up.",
                remedy=_OUR_CERTIFICATE if given.tls_cert else _NO_CERTIFICATE,
                urls=given.urls,
            )
        # aiohttp wraps what the ssl module found.
        cause = getattr(cause, "certificate_error", None) or cause
        if isinstance(cause, ssl.SSLError):
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
                remedy=f"Is it the client port of a NATS server, and does it take more connections?{first}",
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
    verify = str(getattr(cause, "verify_message", "")).rstrip(".")
    return verify or str(cause.reason or cause).replace("_", " ").lower()


def _tls_remedy(given: ConnectionOptions, cause: ssl.SSLError) -> str:
    reason = _tls_reason(cause)
    if "certificate required" in reason or (given.tls_cert is None and "bad certificate" in reason):
        return _NO_CERTIFICATE
    if "alert" in reason:
        return _OUR_CERTIFICATE
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
