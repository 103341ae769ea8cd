"""SOCKS5, the client's half of CONNECT: RFC 1928, with user and password as RFC 1929 has them. Pure.

::

    us      05  count  methods              00: no login; 02: user and password
    proxy   05  method                      FF: none of these
    us      01  length user length password     only after method 02
    proxy   01  status                      00: let in
    us      05 01 00  address  port         address: 01 and 4 bytes, 04 and 16 bytes, 03 and a length and a name
    proxy   05  reply  00  address  port    reply 00: connected

The server behind the proxy may speak at once, so a driver never reads more than `wanted` bytes.
"""

from __future__ import annotations

import ipaddress

from penstock.addresses import is_address
from penstock.errors import LoginError, UnreachableError
from penstock.options import SocksProxy

__all__ = ["SocksHandshake", "proxy_unreachable"]

_NO_LOGIN, _LOGIN, _NONE = 0, 2, 0xFF
_IPV4, _NAME, _IPV6 = 1, 3, 4
_REPLIES = {
    1: "it failed",
    2: "its rules do not allow it",
    3: "the network cannot be reached",
    4: "the host cannot be reached",
    5: "the connection was refused",
    6: "it took too long",
    7: "it knows no CONNECT",
    8: "it knows no addresses of this kind",
}


class SocksHandshake:
    """What is said to a proxy until it has connected us; send what `take` gives, then `receive` what is `wanted`."""

    def __init__(self, proxy: SocksProxy, host: str, port: int, urls: tuple[str, ...]) -> None:
        self.wanted = 2
        """How many bytes of the proxy are missing; 0 when we are connected."""
        self._proxy, self._urls = proxy, urls
        self._target, self._asked = f"{host}:{port}", _address(host) + port.to_bytes(2, "big")
        methods = [_NO_LOGIN] if proxy.user is None else [_NO_LOGIN, _LOGIN]
        self._outgoing = bytes([5, len(methods), *methods])
        self._received = bytearray()
        self._read = self._read_method

    def take(self) -> bytes:
        """Give what is to be sent now, and forget it."""
        found, self._outgoing = self._outgoing, b""
        return found

    def receive(self, data: bytes) -> None:
        """Take bytes of the proxy, no more than were wanted; raises what ends the attempt."""
        if not data:
            raise self._strange("it closed the connection")
        assert len(data) <= self.wanted
        self._received += data
        self.wanted -= len(data)
        if not self.wanted:
            self._read(bytes(self._received))

    # -- steps ----------------------------------------------------------------------------------------------------

    def _read_method(self, got: bytes) -> None:
        version, method = got
        if version != 5:
            raise self._strange("it does not speak SOCKS5")
        if method == _LOGIN and self._proxy.user is not None and self._proxy.password is not None:
            user, password = self._proxy.user.encode(), self._proxy.password.encode()
            self._ask(bytes([1, len(user)]) + user + bytes([len(password)]) + password, 2, self._read_login)
        elif method == _NO_LOGIN:
            self._ask_connect()
        elif method == _NONE and self._proxy.user is None:
            raise self._refused("wants a login, and none is given")
        elif method == _NONE:
            raise self._refused("takes no user and password")
        else:
            raise self._strange("it chose a login that was not offered")

    def _read_login(self, got: bytes) -> None:
        if got[1] != 0:
            raise self._refused("refuses the login")
        self._ask_connect()

    def _ask_connect(self) -> None:
        self._ask(b"\x05\x01\x00" + self._asked, 5, self._read_reply)

    def _read_reply(self, got: bytes) -> None:
        """Read the reply up to the first byte of its address, which says how much more there is."""
        version, reply, _, kind, first = got
        if version != 5:
            raise self._strange("its reply is not SOCKS5")
        if reply != 0:
            raise UnreachableError(
                f"The SOCKS proxy at {self._proxy} cannot connect us to {self._target}: "
                f"{_REPLIES.get(reply, f'its reply is {reply}')}.",
                remedy="Is the server running, and may the proxy reach that address?",
                urls=self._urls,
            )
        left = {_IPV4: 3, _IPV6: 15, _NAME: first}.get(kind)
        if left is None:
            raise self._strange("its reply has an address of no known kind")
        self._ask(b"", left + 2, self._read_bound)

    def _read_bound(self, got: bytes) -> None:
        """Pass over the address from which the proxy connects."""

    def _ask(self, content: bytes, wanted: int, read: object) -> None:
        self._outgoing, self.wanted = content, wanted
        self._read = read  # type: ignore[assignment]  # one of the steps above
        self._received.clear()

    # -- failures -------------------------------------------------------------------------------------------------

    def _strange(self, what: str) -> UnreachableError:
        said = f"What answers at {self._proxy} is not a SOCKS5 proxy: {what}."
        return UnreachableError(said, remedy="Check socks_proxy.", urls=self._urls)

    def _refused(self, what: str) -> LoginError:
        remedy = "Write socks_proxy as socks5://user:password@host:port."
        return LoginError(f"The SOCKS proxy at {self._proxy} {what}.", remedy=remedy, urls=self._urls)


def proxy_unreachable(proxy: SocksProxy, reason: str, urls: tuple[str, ...]) -> UnreachableError:
    """Give the error for a proxy that no connection can be made to."""
    return UnreachableError(
        f"The SOCKS proxy at {proxy} cannot be reached: {reason.rstrip('.')}.",
        remedy="Is it running, and is socks_proxy right?",
        urls=urls,
    )


def _address(host: str) -> bytes:
    if is_address(host):
        packed = ipaddress.ip_address(host).packed
        return bytes([_IPV4 if len(packed) == 4 else _IPV6]) + packed
    name = host.encode("idna")  # UnicodeError if it is not a host name
    if not 0 < len(name) <= 255:
        raise UnicodeError("no host name")
    return bytes([_NAME, len(name)]) + name
