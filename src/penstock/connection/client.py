"""nats-py's client, kept from what would surprise: plain text where TLS is wanted, and connections left open."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import ParseResult

import nats.errors
from nats.aio.client import DEFAULT_BUFFER_SIZE
from nats.aio.transport import TcpTransport

from penstock.connection.taps import TappedClient
from penstock.options import ConnectionOptions

if TYPE_CHECKING:
    from nats.aio.client import Srv

__all__ = ["CertificateRefusedError", "Client", "NoTlsError"]

log = logging.getLogger("penstock.connection")

GOODBYE = 5.0  # seconds that a peer has to take what is still on its way, and to answer the end of a connection
BRIEF_GOODBYE = 1.0  # the same after an attempt that failed: nothing is on its way


class NoTlsError(nats.errors.Error):
    """The server offers no TLS and we insist on it."""


class CertificateRefusedError(nats.errors.Error):
    """The server checks our certificate, and hung up after the handshake."""


class Client(TappedClient):
    """A nats-py client that remembers its options and never falls back from TLS to plain text.

    nats-py goes on in plain text, login included, where a `tls://` address is answered by a server without
    TLS. Here the connection ends before anything is sent.
    """

    def __init__(self, given: ConnectionOptions) -> None:
        super().__init__()
        self.given = given
        self.ended = False  # whether the connection was closed because somebody asked for it

    async def close(self) -> None:
        """Close the connection for good."""
        # nats-py closes itself, too, when it has run out of servers.
        self.ended = not isinstance(self._err, nats.errors.NoServersError)
        await super().close()

    async def drain(self) -> None:
        """Handle what has arrived, send what is waiting, then close the connection."""
        self.ended = self.is_connected
        await super().drain()

    async def __aexit__(self, *about: object) -> None:
        self.ended = True
        await super().__aexit__(*about)

    async def hang_up(self) -> None:
        """End the connection of an attempt that failed: nats-py leaves it open, and opens the next one."""
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(BRIEF_GOODBYE):
                self._transport.close()  # type: ignore[no-untyped-call]  # transports have no types
                await self._transport.wait_closed()  # type: ignore[no-untyped-call]  # the same
        except (TimeoutError, OSError) as error:
            log.debug("ending a failed attempt: %r", error)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        await self._end_reconnecting()
        if isinstance(self._transport, Tcp) and self._transport.gone:
            # Nobody is there to take what is still waiting; trying would raise, and the callbacks never run.
            self._pending, self._pending_data_size = [], 0
        if isinstance(self._transport, Tcp):
            self._transport.leaving = True
        await super()._close(status, do_cbs)
        await self._end_reconnecting()
        if status == self.CLOSED and not self.is_closed:  # a reconnection that had come too far to be stopped
            await super()._close(status, False)

    async def _end_reconnecting(self) -> None:
        # Before Python 3.12 `wait_for` passes over a cancellation that comes just as it ends. nats-py cancels once: the
        # reconnection would go on, and open a connection that is closed by nobody.
        task, deadline = self._reconnection_task, time.monotonic() + GOODBYE
        while task is not None and task is not asyncio.current_task() and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
            if time.monotonic() > deadline:
                log.warning("A reconnection does not end, although the connection was closed.")
                return

    async def _connect_to_server(self, server: Srv) -> None:
        await self.hang_up()
        if server.uri.scheme in ("ws", "wss"):
            await super()._connect_to_server(server)
            return
        server.last_attempt = time.monotonic()
        transport = Tcp()  # type: ignore[no-untyped-call]  # transports have no types
        await transport.connect(server.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])
        transport.read_less_at_once()
        self._transport = transport

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        # nats-py writes a ping past the commands that wait for its flusher, so that its answer confirms nothing:
        # after `subscribe` and `flush` the server may not know of the subscription.
        if self.is_connected and self._transport is not None and self._pending:
            waiting, self._pending, self._pending_data_size = self._pending, [], 0
            self._transport.writelines(waiting)
        await super()._send_ping(future)

    async def _process_pong(self) -> None:
        # A flush that was given up leaves a future that is done; nats-py would set it again, and stop reading.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
            if not self.is_connected:  # nats-py takes the end of the stream for the answer to its first ping
                raise nats.errors.UnexpectedEOF
        except (ConnectionError, nats.errors.UnexpectedEOF):
            # A server that is full says so and hangs up; the end may overtake what it said.
            if isinstance(self._transport, Tcp) and (said := self._transport.complaint()):
                raise nats.errors.Error(f"nats: {said}") from None
            # So may the alert that tells of a certificate that is missing, or not trusted.
            if self._server_info.get("tls_verify"):
                raise CertificateRefusedError from None
            raise

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self.given.tls and not self.given.url.startswith("wss:"):
            if not info.get("tls_required") and not info.get("tls_available") and not self.given.tls_first:
                raise NoTlsError("the server does not offer TLS")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


class Tcp(TcpTransport):
    """nats-py's TCP transport, which here always ends: after a failed handshake, and at a peer that is silent."""

    aborted = False
    leaving = False  # the connection is being closed, and nobody needs to hear that it broke

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._io_writer is None or self._io_writer.transport.is_closing()

    def read_less_at_once(self) -> None:
        """Take as much from the socket as nats-py's reader buffers, where asyncio takes four times as much.

        What is passed on while it is still in the processor's cache is passed on faster, and holds less memory.
        """
        if self._io_writer is not None and hasattr(self._io_writer.transport, "max_size"):
            self._io_writer.transport.max_size = 2 * DEFAULT_BUFFER_SIZE

    def complaint(self) -> str:
        """Give the error that the server sent before it hung up, if it did."""
        waiting = bytes(getattr(self._io_reader, "_buffer", b""))
        _, mark, rest = waiting.partition(b"-ERR ")
        return rest.partition(b"\r\n")[0].decode(errors="replace").strip() if mark else ""

    async def drain(self) -> None:
        """Wait until the peer takes more."""
        try:
            await super().drain()  # type: ignore[no-untyped-call]  # transports have no types
        except ConnectionError:
            if not self.leaving:
                raise

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Shake hands; where that fails the connection is gone, and nobody waits for its end."""
        try:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        except BaseException:
            self._abort()
            raise
        # asyncio's own start_tls sets this; without it every end of a connection leaves a warning in the log.
        self._io_writer._protocol._over_ssl = True  # type: ignore[union-attr]  # set by the call above

    async def wait_closed(self) -> None:
        """Wait for the end, for as long as a peer may take to answer it."""
        if self._io_writer is None or self.aborted:
            return
        try:
            async with asyncio.timeout(GOODBYE):
                await super().wait_closed()  # type: ignore[no-untyped-call]  # transports have no types
        except TimeoutError:
            log.debug("the peer does not answer the end of the connection")
        finally:
            self._abort()

    def _abort(self) -> None:
        self.aborted = True  # asyncio tells the end to nobody where a handshake failed: waiting would be for ever
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()
