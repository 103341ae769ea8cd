"""nats-py's own client from our options, for programs that need that client itself: stock, nothing patched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import credentials
from penstock.connection.connecting import gather
from penstock.errors import InputError
from penstock.options import ConnectionOptions

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["connect_nats_py"]


async def connect_nats_py(
    url: str | ConnectionOptions | None = None, *, context: str | None = None, **options: Any
) -> Client:
    """Connect a client of nats-py with our options; further ones are those of `nats.connect`, its callbacks included.

    What nats-py raises is nats-py's own. A connection that insists on TLS is refused here unless its address says so,
    since nats-py goes on in plain text with a server that offers none.
    """
    try:
        import nats
        from nats.aio.client import RawCredentials
    except ImportError:
        raise InputError(
            "nats-py is not installed.", remedy="Run: pip install 'penstock[nats-py]'; penstock.connect needs none."
        ) from None
    known = ConnectionOptions.__dataclass_fields__
    given = gather(url, context, {name: value for name, value in options.items() if name in known})
    if given.tls and not given.tls_first and not given.url.startswith("wss://"):
        raise InputError(
            "nats-py falls back to plain text if a server offers no TLS, and this connection insists on TLS.",
            remedy="Use penstock.connect, or set tls_first with a server that has handshake_first.",
        )
    login = credentials.login(given)
    if given.socks_proxy is not None or (login.jwt is not None and login.seed is None):
        what = "a SOCKS proxy" if given.socks_proxy is not None else "a JWT without a seed"
        raise InputError(f"nats-py cannot connect with {what}.", remedy="Use penstock.connect.")
    arguments: dict[str, Any] = {
        "servers": list(given.urls),
        "name": given.name,
        "inbox_prefix": given.inbox_prefix,
        "connect_timeout": given.connect_timeout,
        "allow_reconnect": given.reconnect,
        "max_reconnect_attempts": given.reconnect_attempts,
        "reconnect_time_wait": given.reconnect_wait,
        "ping_interval": given.ping_interval,
        "dont_randomize": given.keep_order,
        "no_echo": given.no_echo,
        "token": login.token,
        "user": login.user,
        "password": login.password,
        "tls": credentials.tls_context(given),
        "tls_handshake_first": given.tls_first,
    }
    if given.tls_hostname is not None:
        arguments["tls_hostname"] = given.tls_hostname
    if login.jwt is not None and login.seed is not None:
        arguments["user_credentials"] = RawCredentials(
            f"-----BEGIN NATS USER JWT-----\n{login.jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{login.seed}\n------END USER NKEY SEED------\n"
        )
    elif login.seed is not None:
        arguments["nkeys_seed_str"] = login.seed
    foreign = {name: value for name, value in options.items() if name not in known}
    return await nats.connect(**arguments | foreign)
