"""One blocking connection to a NATS server: sockets, TLS, login, deadlines.

The socket never blocks by itself: every wait is a poll with the caller's deadline, and while bytes wait to be sent,
bytes that arrive are received, so that two full buffers cannot hold each other up. PING is answered wherever events
are read.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock import __version__, credentials
from penstock.credentials import tls_reason
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    LinkError,
    OptionError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.patience import Deadline
from penstock.wire.servers import Servers, most_telling
from penstock.wire.session import Notice, Session, State, unreachable
from penstock.wire.socks import SocksHandshake, proxy_unreachable

__all__ = ["BlockingWire"]

log = logging.getLogger("penstock.wire")


class BlockingWire:
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
        self.parser = protocol.Parser()
        self.unheeded: set[str] = set()
        """Subjects whose denial concerns nobody: nobody waits for what was sent there."""
        self._session: Session | None = None
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._servers = Servers(options)
        self._login: credentials.Login | None = None
        self._context: ssl.SSLContext | None = None
        self._was_secure = False

    # -- opening and closing --------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._socket is not None

    @property
    def info(self) -> Mapping[str, Any]:
        """What the server said of itself when we connected."""
        return {} if self._session is None else self._session.info

    def proof(self) -> None:
        """Read login and certificates, once: that is work of ours, and no server must be fast because of it."""
        if self._login is None:
            self._login = credentials.login(self.options)
        if self.options.tls:
            self._tls_context()

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = credentials.tls_context(self.options)
        return self._context

    def open(self, deadline: Deadline) -> None:
        """Connect and log in, trying every known address until one works or the deadline is over."""
        self.close()
        self.proof()
        failures: list[LinkError] = []
        addresses = self._servers.round()
        for place, address in enumerate(addresses):
            # A dead address must not eat the time of the ones behind it.
            share = deadline.within(max(deadline.left / (len(addresses) - place), 0.05))
            try:
                self._open_one(address.url, share)
                return
            except BaseException as error:
                self.close()
                if not isinstance(error, LinkError):
                    raise
                failures.append(error)
            if deadline.left == 0:
                break
        raise most_telling(failures)

    def _open_one(self, url: str, deadline: Deadline) -> None:
        assert self._login is not None
        parts = urlsplit(url)
        self.parser = protocol.Parser()
        session = self._session = Session(
            self.options, url, self._login.connect_fields, __version__, insist_on_tls=self._was_secure
        )
        try:
            made = self._dial(parts.hostname or "", parts.port or 4222, deadline)
        except UnicodeError:  # of a host name with a part that is empty or too long
            raise unreachable(self.options, url, "that is not a host name") from None
        except LinkError:
            raise
        except OSError as error:
            raise unreachable(self.options, url, _reason(error)) from None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._use(made)
        try:
            while session.state is not State.OPEN:
                deadline.check()
                if session.state is State.SECURING:
                    self._secure(session, deadline)
                    session.secured()
                elif (event := self.parser.next_event()) is not None:
                    if session.receive(event) is Notice.SECURE and self.parser.end > self.parser.start:
                        raise session.tls_failed("it sent more than its greeting before the handshake")
                elif waiting := session.take():
                    self.send(waiting, deadline)
                else:
                    self.receive(deadline)
        except DeadlineError:
            raise session.late(deadline.seconds) from None
        except RemoteProtocolError as error:
            raise session.broken(error) from None
        self._was_secure = self._was_secure or session.secure
        self._servers.learn(session.info, url)

    def _dial(self, host: str, port: int, deadline: Deadline) -> socket.socket:
        """Connect a socket, through the proxy if there is one."""
        proxy = self.options.proxy
        if proxy is None:
            return socket.create_connection((host, port), timeout=max(deadline.left, 0.001))
        handshake = SocksHandshake(proxy, host, port, self.options.urls)
        try:
            made = socket.create_connection((proxy.host, proxy.port), timeout=max(deadline.left, 0.001))
        except UnicodeError:
            raise proxy_unreachable(proxy, "that is not a host name", self.options.urls) from None
        except OSError as error:
            raise proxy_unreachable(proxy, _reason(error), self.options.urls) from None
        try:
            while handshake.wanted:
                made.settimeout(max(deadline.left, 0.001))
                made.sendall(handshake.take())
                handshake.receive(made.recv(handshake.wanted))
        except BaseException as error:
            made.close()
            if isinstance(error, OSError) and not isinstance(error, LinkError):
                raise proxy_unreachable(proxy, _reason(error), self.options.urls) from None
            raise
        return made

    def _use(self, made: socket.socket) -> None:
        made.setblocking(False)
        self._socket = made
        self._poll = select.poll()
        self._poll.register(made, select.POLLIN)

    def _secure(self, session: Session, deadline: Deadline) -> None:
        plain = self._socket
        assert plain is not None
        try:
            wrapped = self._tls_context().wrap_socket(
                plain, server_hostname=session.tls_name, do_handshake_on_connect=False
            )
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
            raise session.tls_failed(tls_reason(error)) from None
        except OSError as error:
            raise session.ended(error.strerror or str(error)) from None

    def close(self) -> None:
        """Let go of the socket; safe to call twice."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # a socket that cannot close cleanly is gone all the same
                self._socket.close()
            self._socket = None

    # -- bytes ----------------------------------------------------------------------------------------------------

    def _gone(self, why: str) -> LinkError:
        self.close()
        if self._session is None:
            return DisconnectedError(f"There is no connection to {self.options.url}: {why}.", urls=self.options.urls)
        return self._session.ended(why.rstrip("."))

    def _wait(self, what: int, deadline: Deadline) -> int:
        assert self._socket is not None
        deadline.check()
        if what & select.POLLOUT:
            self._poll.modify(self._socket, what)
        try:
            found = self._poll.poll(max(1, int(deadline.left * 1000)))
        finally:
            if what & select.POLLOUT:
                self._poll.modify(self._socket, select.POLLIN)
        return found[0][1] if found else 0

    def receive_some(self) -> bool:
        """Receive what is there; False if nothing is."""
        if self._socket is None:
            raise self._gone("it was closed")
        room = self.parser.space()
        try:
            size = self._socket.recv_into(room)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            words = tls_reason(error) if isinstance(error, ssl.SSLError) else error.strerror or str(error)
            raise self._gone(words) from None
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
        """Send everything, receiving meanwhile whatever comes.

        If time runs out in the middle, the connection is closed: what came next would be taken for the rest.
        """
        view = memoryview(content)
        size = len(view)
        while view:
            if self._socket is None:
                raise self._gone("it was closed")
            try:
                sent = self._socket.send(view)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                full = self.parser.end - self.parser.start >= self.parser.limit
                try:
                    ready = self._wait(select.POLLOUT | (0 if full else select.POLLIN), deadline)
                except DeadlineError:
                    if len(view) < size:
                        self.close()
                    raise
                if ready & select.POLLIN and not full:
                    self.receive_some()
                continue
            except OSError as error:
                raise self._last_words() or self._gone(error.strerror or str(error)) from None
            view = view[sent:]

    def _last_words(self) -> LinkError | None:
        """Look for the -ERR that a server sends before it closes."""
        assert self._session is not None
        try:
            while self.receive_some():
                while (event := self.parser.next_event()) is not None:
                    if not isinstance(event, protocol.Message):
                        self._session.receive(event)
        except LinkError as error:
            return error
        except RemoteProtocolError:
            return None  # what broke the connection tells more
        return None

    # -- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: protocol.Event, deadline: Deadline) -> bool:
        """Take what concerns the connection itself; False for events that the caller must look at.

        Raises what the server complained of: DeniedError for what we may not do.
        """
        if isinstance(event, protocol.Message):
            return False
        session = self._session
        assert session is not None
        notice = session.receive(event)
        if waiting := session.take():
            self.send(waiting, deadline)
        if notice is Notice.LEARNT or notice is Notice.LAME_DUCK:
            self._servers.learn(session.info, session.url)
        elif isinstance(notice, PenstockError):
            if getattr(notice, "subject", None) not in self.unheeded:
                raise notice
            log.debug("%s", notice)
        return not isinstance(event, protocol.Pong)

    def next_event(self, deadline: Deadline) -> protocol.Event:
        """Give the next event that the connection does not handle by itself."""
        while True:
            try:
                event = self.parser.next_event()
                if event is not None and not self.handle(event, deadline):
                    return event
            except RemoteProtocolError:
                self.close()
                raise
            if event is None:
                self.receive(deadline)
            else:
                deadline.check()


def _reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
