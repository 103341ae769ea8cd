"""The way through a SOCKS proxy, for asyncio."""

from __future__ import annotations

import asyncio
import socket

from penstock.connection.transport import plain_reason
from penstock.errors import LinkError
from penstock.options import SocksProxy
from penstock.wire.socks import SocksHandshake, proxy_unreachable

__all__ = ["connect_through"]


async def connect_through(proxy: SocksProxy, host: str, port: int, urls: tuple[str, ...]) -> socket.socket:
    """Give a socket that a proxy has connected to `host`; the caller sees to the deadline.

    UnreachableError or LoginError, with the proxy's reason, if it has not.
    """
    handshake = SocksHandshake(proxy, host, port, urls)
    loop = asyncio.get_running_loop()
    try:
        made = await _connect(proxy)
    except UnicodeError:
        raise proxy_unreachable(proxy, "that is not a host name", urls) from None
    except OSError as error:
        raise proxy_unreachable(proxy, plain_reason(error).lower(), urls) from None
    try:
        while handshake.wanted:
            await loop.sock_sendall(made, handshake.take())
            handshake.receive(await loop.sock_recv(made, handshake.wanted))
    except BaseException as error:
        made.close()
        if isinstance(error, OSError) and not isinstance(error, LinkError):
            raise proxy_unreachable(proxy, plain_reason(error).lower(), urls) from None
        raise
    return made


async def _connect(proxy: SocksProxy) -> socket.socket:
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    for family, kind, number, _, address in await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, number)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, address)
            return made
        except BaseException as error:
            made.close()
            if not isinstance(error, OSError):
                raise
            failed = error
    raise failed or OSError("it has no address")
