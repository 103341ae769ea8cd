"""The life of one connection to a NATS server, with no I/O: what the server says goes in, what to do comes out.

::

                 tls_first                        TLS wanted or required
    SECURING ───────────────► GREETING ──INFO──┬────────────────────────► SECURING
                                               │                              │ secured
                                               └──► LOGIN ◄───────────────────┘
                                                      │ PONG
                                                      ▼
                                                    OPEN ──────► CLOSED    (any state may end there)

A driver owns the socket. It gives every event of `protocol.Parser` that is not a message to `receive`, sends what
`take` gives, and shakes hands while the state is SECURING. Login, TLS, greeting and the sentence for each way in
which a connection fails are decided here, once for both drivers. A connection that wants TLS never goes on without it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from penstock.addresses import is_address
from penstock.errors import (
    DisconnectedError,
    LinkError,
    LocalProtocolError,
    LoginError,
    PenstockError,
    RemoteProtocolError,
    TlsError,
    UnreachableError,
)
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.complaints import Complaint, ComplaintKind, complaint_error, read_complaint

__all__ = ["LANGUAGE", "MAX_CONTROL_LINE", "Notice", "Session", "State", "check_size", "unreachable"]

Kind = TypeVar("Kind", bound=LinkError)

LANGUAGE = "python-penstock"
MAX_CONTROL_LINE = 4096  # nats-server's own limit unless it is told another one, which it never says
MOST_PONGS = 8  # that wait to be sent; the server takes any of them for a sign of life
_CLIENT_PORT = "Is it the client port of a NATS server, not the monitoring or cluster port?"
_NO_FILES = "too many open files"  # the system's words for it
_NO_CERTIFICATE = "The server wants a certificate of ours: give tls_cert and tls_key."
_OUR_CERTIFICATE = "The server does not take our certificate: is it signed by an authority that the server trusts?"


class State(enum.Enum):
    """Where a connection stands."""

    SECURING = "securing"
    GREETING = "greeting"
    LOGIN = "login"
    OPEN = "open"
    CLOSED = "closed"


class Notice(enum.Enum):
    """Something that the driver has to act on."""

    SECURE = "shake hands for TLS now, then say `secured`"
    OPENED = "the login was taken: the connection stands"
    PONGED = "the server has handled all that was sent before the oldest unanswered PING"
    LEARNT = "the server told its addresses"
    LAME_DUCK = "the server will go soon, and wants its clients to go elsewhere"


# The kinds of an INFO's fields that are used; a server that says something else is none.
_KINDS = {
    str: ("server_id", "server_name", "version", "nonce", "cluster", "domain", "client_ip", "xkey"),
    int: ("proto", "max_payload", "client_id"),
    bool: ("headers", "tls_required", "tls_available", "tls_verify", "auth_required", "jetstream", "ldm"),
    list: ("connect_urls", "ws_connect_urls"),
}


class Session:
    """One connection to one address, from its first byte to its last."""

    def __init__(
        self,
        options: ConnectionOptions,
        url: str,
        login: Callable[[str | None], Mapping[str, str]],
        version: str,
        *,
        insist_on_tls: bool = False,
    ) -> None:
        """Begin; `login` gives the fields of CONNECT that prove who we are, with the server's nonce if it has one.

        `insist_on_tls`: an earlier connection to the same cluster had TLS, so this one must have it, too.
        """
        self.options = options
        self.url = url
        self._tls = options.tls or insist_on_tls
        self.info: Mapping[str, Any] = MappingProxyType({})
        self.secure = url.startswith("wss:")
        """Whether what is sent is protected by TLS."""
        self.last_words: Complaint | None = None
        """What the server complained of before it hung up."""
        self.complaint: Complaint | None = None
        """What the error is about that `receive` gave last."""
        self.pings = 0
        """PINGs that wait for their PONG."""
        self.goodbye = False
        """Whether the server said that it will go soon."""
        self._login = login
        self._version = version
        self._outgoing = bytearray()
        self._pongs = 0
        first = options.tls_first and not url.startswith(("ws:", "wss:"))
        self.state = State.SECURING if first else State.GREETING

    # -- what is sent ---------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """Give what waits to be sent, and forget it."""
        if not self._outgoing:
            return b""
        found = bytes(self._outgoing)
        self._outgoing.clear()
        self._pongs = 0
        return found

    def ping(self) -> None:
        """Ask for a sign of life; `Notice.PONGED` is the answer to the oldest one that had none."""
        self._outgoing += protocol.PING
        self.pings += 1

    @property
    def max_payload(self) -> int:
        """The largest message, headers included, that the server takes."""
        return int(self.info.get("max_payload") or 1024 * 1024)

    # -- what is heard --------------------------------------------------------------------------------------------

    def receive(self, event: protocol.Event) -> Notice | PenstockError | None:
        """Take an event that is not a message.

        Gives what the driver has to act on; an error if the server complained and the connection goes on. Raises
        the error that ends the connection, or the attempt to make one.
        """
        if self.state is State.OPEN:
            return self._receive_open(event)
        if self.state not in (State.GREETING, State.LOGIN):
            raise self._strange("it speaks before the TLS handshake is done")
        if isinstance(event, protocol.Err):
            self.last_words = read_complaint(event.text)
            raise self._refused(self.last_words)
        return self._receive_login(event) if self.state is State.LOGIN else self._receive_greeting(event)

    def _receive_open(self, event: protocol.Event) -> Notice | PenstockError | None:
        if isinstance(event, protocol.Ping):
            self._pong()
        elif isinstance(event, protocol.Pong):
            if self.pings:  # one that nobody asked for says nothing
                self.pings -= 1
                return Notice.PONGED
        elif isinstance(event, protocol.Info):
            return self._learn(event)
        elif isinstance(event, protocol.Err):
            return self._complaint(event)
        return None

    def _receive_greeting(self, event: protocol.Event) -> Notice | None:
        if not isinstance(event, protocol.Info):
            raise self._strange("it does not begin with its INFO")
        self._read_info(event.fields)
        if self.info.get("headers") is False:
            raise self._too_old()
        offered = bool(self.info.get("tls_required") or self.info.get("tls_available"))
        if self._tls and not self.secure and not offered:
            raise self._end(
                TlsError,
                f"{self.url} does not offer TLS, and this connection insists on it.",
                "Use a nats:// address without TLS options, or turn TLS on at the server.",
            )
        websocket = self.url.startswith(("ws:", "wss:"))
        if not self.secure and not websocket and (self._tls or self.info.get("tls_required")):
            self.state = State.SECURING
            return Notice.SECURE
        self._log_in()
        return None

    def secured(self) -> None:
        """Say that the TLS handshake is done."""
        assert self.state is State.SECURING
        self.secure = True
        if self.info:
            self._log_in()
        else:
            self.state = State.GREETING

    def _log_in(self) -> None:
        self.state = State.LOGIN
        fields = {
            "verbose": False,
            "pedantic": False,
            "tls_required": self.secure,
            "name": self.options.name,
            "lang": LANGUAGE,
            "version": self._version,
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "echo": not self.options.no_echo,
            **self._login(self.info.get("nonce") or None),
        }
        self._outgoing += protocol.connect(fields) + protocol.PING

    def _receive_login(self, event: protocol.Event) -> Notice | PenstockError | None:
        if isinstance(event, protocol.Pong):
            if not self.info.get("headers"):
                raise self._too_old()
            self.state = State.OPEN
            return Notice.OPENED
        if isinstance(event, protocol.Ping):
            self._pong()
        elif isinstance(event, protocol.Info):
            self._read_info(event.fields)
        elif isinstance(event, protocol.Message):
            raise self._strange("it sends messages before it let us in")
        return None

    def _pong(self) -> None:
        if self._pongs < MOST_PONGS:
            self._pongs += 1
            self._outgoing += protocol.PONG

    def _learn(self, event: protocol.Info) -> Notice:
        self._read_info({**self.info, **event.fields})
        if event.fields.get("ldm") and not self.goodbye:
            self.goodbye = True
            return Notice.LAME_DUCK
        return Notice.LEARNT

    def _read_info(self, fields: dict[str, Any]) -> None:
        for kind, names in _KINDS.items():
            for name in names:
                value = fields.get(name)
                if value is not None and type(value) is not kind:
                    raise self._strange(f"its INFO has {name} as {type(value).__name__}")
        most = fields.get("max_payload")
        if most is not None and not 0 < most <= 1 << 40:
            raise self._strange("its INFO has a max_payload that is not possible")
        self.info = MappingProxyType(fields)

    def _complaint(self, event: protocol.Err) -> PenstockError | None:
        complaint = read_complaint(event.text)  # as it is: a secret may be part of any word, and of a subject
        if complaint.closes:
            self.last_words = complaint  # the server hangs up next, and `ended` tells why
            return None
        self.complaint = complaint
        said = self.options.scrub(complaint.text)
        return complaint_error(complaint, self.options.urls, text=said, inbox=self.options.inbox_prefix)

    # -- the end --------------------------------------------------------------------------------------------------

    def ended(self, reason: str) -> LinkError:
        """Give the error for a connection that ended, by what is known: the state, and what the server said last."""
        if self.secure and self.state in (State.GREETING, State.LOGIN) and "alert" in reason:
            # With TLS 1.3 the handshake is done for us before the server has looked at our certificate.
            return self.tls_failed(reason)
        if self.state is State.SECURING:
            if self.info.get("tls_verify") and self.options.tls_cert is None:
                # It refuses us for sure; its hanging up may overtake the alert that says so.
                return self.tls_failed("the server wants a certificate that it trusts, and hung up")
            what = f"{self.url} closed the connection during the TLS handshake: {reason}."
            return self._end(UnreachableError, what, _CLIENT_PORT)
        if self.state is State.GREETING:
            return self._strange("it closed the connection before it greeted us")
        if self.state is State.LOGIN:
            if self.last_words is not None:
                return self._refused(self.last_words)
            if self.secure and self.info.get("tls_verify"):
                # With TLS 1.3 the server's refusal of our certificate comes after the handshake.
                return self.tls_failed("the server wants a certificate that it trusts, and hung up")
            return self._end(
                UnreachableError,
                f"{self.url} closed the connection before it let us in.",
                f"Is it the client port of a NATS server, and does it take more connections?{self._hint_first()}",
            )
        said = self.options.scrub(self.last_words.text) if self.last_words else ""
        words = f": the server said {said}" if said else f": {reason}" if reason else ""
        what = f"The connection to {self.url} is gone{words}."
        return self._end(DisconnectedError, what, "Is the server still running?")

    def late(self, seconds: float) -> LinkError:
        """Give the error for an attempt that took too long."""
        what = f"No NATS server greeted us at {self.url}"
        if self.state is State.SECURING:
            what = f"The TLS handshake with {self.url} was not done"
        elif self.state is State.LOGIN:
            what = f"The server at {self.url} greeted us, and did not let us in"
        remedy = f"Is the address right, and does a firewall let us through?{self._hint_first()}"
        return self._end(UnreachableError, f"{what} within {seconds:.3g} s.", remedy)

    def tls_failed(self, reason: str) -> TlsError:
        """Give the error for a handshake that failed, or a certificate of ours that was refused."""
        return self._end(TlsError, f"TLS with {self.url} failed: {reason}.", self._tls_remedy(reason))

    def broken(self, error: RemoteProtocolError) -> LinkError | RemoteProtocolError:
        """Give the error for bytes that are not the protocol: before the login, no NATS server is there at all."""
        state, self.state = self.state, State.CLOSED
        return error if state is State.OPEN else self._strange(error.what.rstrip("."))

    @property
    def tls_name(self) -> str:
        """The name that the certificate must carry: an address that a cluster told us is known by the given name."""
        if self.options.tls_hostname:
            return self.options.tls_hostname
        host = urlsplit(self.url).hostname or ""
        given = [urlsplit(url).hostname or "" for url in self.options.urls]
        if host in given or not is_address(host):
            return host
        return next((name for name in given if not is_address(name)), host)

    def _refused(self, complaint: Complaint) -> LinkError:
        said = self.options.scrub(complaint.text)
        if complaint.kind in (ComplaintKind.LOGIN, ComplaintKind.EXPIRED):
            return self._end(
                LoginError,
                f"{self.url} refuses the login{_login_kind(self.options)}.",
                f"Check token, user and password, nkey or credentials. The server said: {said}.",
            )
        error = complaint_error(complaint, self.options.urls, text=said)
        if isinstance(error, LoginError | TlsError):
            self.state = State.CLOSED
            return error
        return self._end(UnreachableError, f"{self.url} refuses the connection: {said}.", error.remedy)

    def _too_old(self) -> UnreachableError:
        what = f"The server at {self.url} knows no headers."
        return self._end(UnreachableError, what, "Penstock needs nats-server 2.12 or newer.")

    def _strange(self, what: str) -> UnreachableError:
        said = f"What answers at {self.url} is not a NATS server: {what}."
        return self._end(UnreachableError, said, _CLIENT_PORT + self._hint_first())

    def _end(self, kind: type[Kind], what: str, remedy: str) -> Kind:
        """End the session, and give the error that says why."""
        self.state = State.CLOSED
        return kind(what, remedy=remedy, urls=self.options.urls)

    def _hint_first(self) -> str:
        return "" if self.options.tls_first else " A server with handshake_first needs the option tls_first."

    def _tls_remedy(self, reason: str) -> str:
        given = self.options
        if "certificate required" in reason or (given.tls_cert is None and "bad certificate" in reason):
            return _NO_CERTIFICATE
        if "alert" in reason or "hung up" in reason:
            return _NO_CERTIFICATE if given.tls_cert is None and "hung up" in reason else _OUR_CERTIFICATE
        if "mismatch" in reason:
            return "Use an address that the certificate names, or give the name it carries as tls_hostname."
        if "wrong version" in reason or "record layer" in reason:
            if self.url.startswith("wss:"):
                return "Is it the port of the server's websocket block? A port for clients has a tls:// address."
            return "It does not begin with TLS: leave tls_first out, and check the port."
        if given.tls_ca is None:
            return "Is its certificate signed by an authority that this machine trusts? If not, give tls_ca."
        return "Does tls_ca belong to the server's certificate?"


def _login_kind(given: ConnectionOptions) -> str:
    ways = ((given.credentials, "credentials"), (given.jwt, "a JWT"), (given.nkey, "an nkey"), (given.token, "a token"))
    for secret, text in ways:
        if secret:
            return f" with {text}"
    return f" of user {given.user}" if given.user else ": it wants one, and none is given"


def unreachable(options: ConnectionOptions, url: str, reason: str) -> UnreachableError:
    """Give the error for an address where no connection can be opened at all."""
    if _NO_FILES in reason.lower():
        what = f"No connection to {url} can be opened: this process has as many files open as it may."
        return UnreachableError(what, remedy="Raise the limit (ulimit -n), or close connections.", urls=options.urls)
    return UnreachableError(
        f"No NATS server answers at {url}: {reason.rstrip('.')}.",
        remedy="Is it running, and is the address right? `penstock server run` starts one.",
        urls=options.urls,
    )


def check_size(line: int, size: int, max_payload: int, subject: str) -> None:
    """Refuse a message, before it is sent, that the server would close the connection for."""
    if size > max_payload:
        raise LocalProtocolError(
            f"The message on {subject[:200]} has {size} bytes with its headers, larger than the server takes "
            f"({max_payload}).",
            remedy="Send it in chunks (penstock.chunks), or raise max_payload at the server.",
        )
    if line > MAX_CONTROL_LINE:
        raise LocalProtocolError(
            f"Subject and reply subject have {line} bytes together, and the server takes {MAX_CONTROL_LINE}: "
            f"{subject[:80]!r} and so on.",
            remedy="Use shorter subjects.",
        )
