"""One blocking connection to a NATS server: sockets, TLS, login, deadlines.

The socket never blocks by itself: every wait is a poll with the caller's deadline, and while bytes wait to be sent,
bytes that arrive are received, so that two full buffers cannot hold each other up. PING is answered wherever events
are read.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import time
from importlib.metadata import version
from urllib.parse import urlsplit

from penstock import credentials
from penstock.addresses import is_address
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    LinkError,
    LoginError,
    OptionError,
    RemoteProtocolError,
    TlsError,
    UnreachableError,
)
from penstock.options import ConnectionOptions
from penstock.wire import protocol

__all__ = ["Deadline", "Link"]

_LOGIN_WORDS = ("authorization", "authentication", "credentials", "nkey", "jwt", "user")


class Deadline:
    """A moment that a call must not outlive; `seconds` is what the caller allowed."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left, never below zero."""
        return max(0.0, self.at - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """Give a deadline in so many seconds, or this one where it comes first."""
        return Deadline(min(seconds, self.left))


class Link:
    """A connection to one of the servers of `options`, made by `open` and made again by the next `open`."""

    def __init__(self, options: ConnectionOptions) -> None:
        for url in options.urls:
            if url.startswith(("ws://", "wss://")):
                raise OptionError(
                    f"url {url} is a WebSocket address, and bulk connections speak TCP only.",
                    remedy="Give the server's nats:// or tls:// address.",
                    option="url",
                    value=url,
                )
        self.options = options
        self.info: dict[str, object] = {}
        self.parser = protocol.Parser()
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._proof: tuple[credentials.Login, ssl.SSLContext] | None = None
        self._discovered: tuple[str, ...] = ()
        self._last_words = ""

    # -- opening and closing --------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._socket is not None

    def proof(self) -> tuple[credentials.Login, ssl.SSLContext]:
        """Read login and certificates, once: that is work of ours, and no server must be fast because of it."""
        if self._proof is None:
            self._proof = credentials.login(self.options), credentials.tls_context(self.options)
        return self._proof

    def open(self, deadline: Deadline) -> None:
        """Connect and log in, trying every known address until one works or the deadline is over."""
        self.close()
        login, tls = self.proof()
        given = list(self.options.urls)
        found = [url for url in self._discovered if url not in given]
        urls = random.sample(given, len(given)) + random.sample(found, len(found))
        failure: LinkError | None = None
        for place, url in enumerate(urls):
            # A dead address must not eat the time of the ones behind it.
            share = deadline.within(max(deadline.left / (len(urls) - place), 0.05))
            try:
                self._open_one(url, login, tls, share)
                return
            except LinkError as error:
                self.close()
                # A login or certificate that is refused says more than an address that is dead.
                if failure is None or isinstance(error, LoginError | TlsError):
                    failure = error
            except BaseException:
                self.close()
                raise
            if deadline.left == 0:
                break
        assert failure is not None
        raise failure

    def _open_one(self, url: str, login: credentials.Login, tls: ssl.SSLContext, deadline: Deadline) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 4222
        self.parser = protocol.Parser()
        self.info = {}
        self._last_words = ""
        try:
            made = socket.create_connection((host, port), timeout=max(deadline.left, 0.001))
        except OSError as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error))
            raise UnreachableError(
                f"No NATS server answers at {url}: {reason}.",
                remedy="Is it running, and is the address right?",
                urls=(url,),
            ) from None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._use(made)
        name = self.options.tls_hostname or self._tls_name(host)
        try:
            if self.options.tls_first:
                self._secure(tls, name, url, deadline)
            info = self._greeting(url, deadline)
            offered = bool(info.get("tls_required") or info.get("tls_available"))
            if self.options.tls and not offered and not self.options.tls_first:
                raise TlsError(
                    f"{url} does not offer TLS, and this connection insists on it.",
                    remedy="Use a nats:// address without TLS options, or turn TLS on at the server.",
                    urls=(url,),
                )
            if (self.options.tls or info.get("tls_required")) and not self.options.tls_first:
                if self.parser.end > self.parser.start:
                    raise TlsError(f"{url} sent more than its greeting before the TLS handshake.", urls=(url,))
                self._secure(tls, name, url, deadline)
            self._log_in(info, login, url, deadline)
        except DeadlineError:
            raise UnreachableError(
                f"No NATS server greeted us at {url} within {deadline.seconds:.3g} s.",
                remedy="Is it the client port of a NATS server, and does a firewall let us through?"
                + ("" if self.options.tls_first else " A server that wants TLS first needs tls_first."),
                urls=(url,),
            ) from None
        except RemoteProtocolError as error:
            raise UnreachableError(
                f"What answers at {url} is not a NATS server: {error.what}",
                remedy="Is it the client port, not the monitoring or cluster port?",
                urls=(url,),
            ) from None

    def _tls_name(self, host: str) -> str:
        """Give the name that a certificate must carry: addresses that a cluster told us are known by the given name."""
        given = [urlsplit(url).hostname or "" for url in self.options.urls]
        if host in given or not is_address(host):
            return host
        names = [name for name in given if not is_address(name)]
        return names[0] if names else host

    def _use(self, made: socket.socket) -> None:
        made.setblocking(False)
        self._socket = made
        self._poll = select.poll()
        self._poll.register(made, select.POLLIN)

    def _secure(self, tls: ssl.SSLContext, name: str, url: str, deadline: Deadline) -> None:
        plain = self._socket
        assert plain is not None
        try:
            wrapped = tls.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
            self._use(wrapped)
            while True:
                try:
                    wrapped.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN, deadline)
                except ssl.SSLWantWriteError:
                    self._wait(select.POLLOUT, deadline)
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise TlsError(
                f"TLS with {url} failed: {reason}.",
                remedy="Does tls_ca belong to the server's certificate, does that name the host, and does the server "
                "want a certificate of ours (tls_cert, tls_key) or a handshake first (tls_first)?",
                urls=(url,),
            ) from None
        except OSError as error:
            raise UnreachableError(
                f"{url} closed the connection during the TLS handshake: {error}.", urls=(url,)
            ) from None

    def _greeting(self, url: str, deadline: Deadline) -> dict[str, object]:
        try:
            while (event := self.parser.next_event()) is None:  # nothing is answered before it
                self.receive(deadline)
        except DisconnectedError:
            raise UnreachableError(
                f"{url} closed the connection before it greeted us.",
                remedy="Is it the client port of a NATS server? One that wants TLS first needs tls_first.",
                urls=(url,),
            ) from None
        if not isinstance(event, protocol.Info):
            raise UnreachableError(f"What answers at {url} is not a NATS server.", urls=(url,))
        if not event.fields.get("headers"):
            raise UnreachableError(
                f"The server at {url} knows no headers.",
                remedy="Penstock needs nats-server 2.12 or newer.",
                urls=(url,),
            )
        return event.fields

    def _log_in(self, info: dict[str, object], login: credentials.Login, url: str, deadline: Deadline) -> None:
        nonce = info.get("nonce")
        fields = {
            "verbose": False,
            "pedantic": False,
            "tls_required": isinstance(self._socket, ssl.SSLSocket),
            "name": self.options.name,
            "lang": "python-penstock",
            "version": version("penstock"),
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            **login.connect_fields(str(nonce) if nonce else None),
        }
        self.send(protocol.connect(fields) + protocol.PING, deadline)
        try:
            while not isinstance(event := self.next_event(deadline), protocol.Pong):
                if isinstance(event, protocol.Err):
                    self._last_words = event.text
                    raise DisconnectedError(event.text)
        except DisconnectedError:
            words = self.options.scrub(self._last_words)
            if any(word in words.lower() for word in _LOGIN_WORDS):
                raise LoginError(
                    f"{url} refuses the login: {words}.",
                    remedy="Check token, user and password, nkey or credentials.",
                    urls=(url,),
                ) from None
            # With mutual TLS 1.3 the server's refusal of our certificate comes after the handshake.
            raise UnreachableError(f"{url} closed the connection at the login{_because(words)}.", urls=(url,)) from None
        self.info = info
        self._learn(info)

    def _learn(self, info: dict[str, object]) -> None:
        addresses = info.get("connect_urls")
        scheme = "tls" if isinstance(self._socket, ssl.SSLSocket) else "nats"
        if isinstance(addresses, list):
            self._discovered = tuple(f"{scheme}://{address}" for address in addresses[:100])

    def close(self) -> None:
        """Let go of the socket; safe to call twice."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # a socket that cannot close cleanly is gone all the same
                self._socket.close()
            self._socket = None

    # -- bytes ----------------------------------------------------------------------------------------------------

    def _gone(self, why: str) -> DisconnectedError:
        self.close()
        words = self.options.scrub(self._last_words)
        return DisconnectedError(
            f"The connection to {self.options.url} is gone: {words or why}.",
            remedy="Is the server still running?",
            urls=self.options.urls,
        )

    def _wait(self, what: int, deadline: Deadline) -> int:
        assert self._socket is not None
        left = deadline.left
        if left == 0:
            raise DeadlineError(f"No answer within {deadline.seconds:.3g} s.", seconds=deadline.seconds)
        if what & select.POLLOUT:
            self._poll.modify(self._socket, what)
        try:
            found = self._poll.poll(max(1, int(left * 1000)))
        finally:
            if what & select.POLLOUT:
                self._poll.modify(self._socket, select.POLLIN)
        return found[0][1] if found else 0

    def receive_some(self) -> bool:
        """Receive what is there; False where nothing is."""
        if self._socket is None:
            raise self._gone("it was closed")
        room = self.parser.space()
        try:
            size = self._socket.recv_into(room)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            raise self._gone(error.strerror or str(error)) from None
        finally:
            room.release()
        if size == 0:
            raise self._gone("the server closed it")
        self.parser.received(size)
        return True

    def receive(self, deadline: Deadline) -> None:
        """Wait for bytes and receive them."""
        while not self.receive_some():
            self._wait(select.POLLIN, deadline)

    def send(self, content: bytes | bytearray | memoryview, deadline: Deadline) -> None:
        """Send everything, receiving meanwhile whatever comes."""
        view = memoryview(content)
        while view:
            if self._socket is None:
                raise self._gone("it was closed")
            try:
                sent = self._socket.send(view)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                full = self.parser.end - self.parser.start >= self.parser.limit
                ready = self._wait(select.POLLOUT | (0 if full else select.POLLIN), deadline)
                if ready & select.POLLIN and not full:
                    self.receive_some()
                continue
            except OSError as error:
                self._hear_last_words()
                raise self._gone(error.strerror or str(error)) from None
            view = view[sent:]

    def _hear_last_words(self) -> None:
        """Look for the -ERR that a server sends before it closes."""
        with contextlib.suppress(DisconnectedError, RemoteProtocolError):
            while self.receive_some():
                while (event := self.parser.next_event()) is not None:
                    if isinstance(event, protocol.Err):
                        self._last_words = event.text

    # -- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: protocol.Event) -> bool:
        """Answer what concerns the connection itself; False for events that the caller must look at."""
        if isinstance(event, protocol.Ping):
            self.send(protocol.PONG, Deadline(self.options.request_timeout))
            return True
        if isinstance(event, protocol.Info) and self.info:
            self._learn(event.fields)
            return True
        if isinstance(event, protocol.Err) and self.info:
            if "permissions violation" in event.text.lower():
                raise LoginError(
                    f"The server does not permit this: {self.options.scrub(event.text)}.",
                    remedy="The user needs the permission that the text names.",
                    urls=self.options.urls,
                )
            self._last_words = event.text  # the server closes next
            return True
        return isinstance(event, protocol.Ok)

    def next_event(self, deadline: Deadline) -> protocol.Event:
        """Give the next event that the connection does not handle by itself."""
        while True:
            try:
                event = self.parser.next_event()
            except RemoteProtocolError:
                self.close()
                raise
            if event is None:
                self.receive(deadline)
            elif not self.handle(event):
                return event


def _because(words: str) -> str:
    return f": {words}" if words else ""
