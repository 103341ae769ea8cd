"""Bytes to and from one server: TCP, TLS and WebSocket, driven by a `wire.session.Session`.

A `Wire` reads into the parser's own buffer, hands messages out in the order of the wire, and gives everything else to
the session. It stops reading while a taker asks for it, and says when the socket takes no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

from penstock.connection.backlog import Ahead, Backlog
from penstock.connection.tasks import cut, end
from penstock.credentials import tls_reason
from penstock.errors import InputError, LinkError, PenstockError, RemoteProtocolError, TlsError
from penstock.wire import protocol
from penstock.wire.dispatch import Reading, Taker, hand_out
from penstock.wire.session import Notice, Session, State, unreachable

__all__ = ["Transport", "Wire", "open_wire", "plain_reason"]

log = logging.getLogger("penstock.connection")

READ = 256 * 1024  # bytes taken from the socket at once: what is handed on while it is in the cache is handed on faster
BEHIND_BYTES = 32 * 1024 * 1024  # received without the socket ever being empty: then we are behind
BURST = 256 * 1024 * 1024  # bytes up to which receiving goes first; who sends more than that is slowed down
BUSY = 1024 * 1024  # bytes received without a pause that look like a queue of the server's
BUSY_SECONDS = 2.0  # before the end of the connection, for the two to be taken together
BEHIND_SECONDS = 0.005  # that others took between two reads, and the socket was full again
MOST_EVENTS = 100  # read at once that are not messages: who talks without end must not keep deadlines from being kept
UNSENT_HIGH, UNSENT_LOW = (
    1024 * 1024,
    256 * 1024,
)  # bytes in the socket's own queue at which a writer waits, and goes on
_OPEN, _CLOSED = State.OPEN, State.CLOSED


class Transport(Protocol):
    """What a wire needs of a transport, as asyncio has it."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send."""

    def close(self) -> None:
        """Send what is waiting, then close."""

    def abort(self) -> None:
        """Close at once."""

    def is_closing(self) -> bool:
        """Tell whether the end has begun."""

    def pause_reading(self) -> None:
        """Read no more."""

    def resume_reading(self) -> None:
        """Read again."""

    def get_write_buffer_size(self) -> int:
        """Count the bytes that wait to be sent."""

    def get_extra_info(self, name: str) -> Any:
        """Tell something of the socket, such as its `ssl_object`."""


class Wire(Reading, asyncio.BufferedProtocol):
    """One connection to one server. The callbacks are called by the event loop and must not raise."""

    def __init__(
        self,
        session: Session,
        takers: dict[int, Taker],
        borrowers: dict[int, Taker],
        notify: Callable[[Notice | PenstockError], None],
        ahead: Ahead,
    ) -> None:
        super().__init__(protocol.Parser(), session, _OPEN, takers, borrowers)
        self.on_lost: Callable[[LinkError | RemoteProtocolError], None] | None = None
        """Called once, when a connection that stood is gone."""
        self._notify = notify
        self._transport: Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._step: asyncio.Future[Notice] = self._loop.create_future()  # the next thing that an opening waits for
        self._ahead = ahead
        self._scheduled = False  # whether a part of what was received ahead is read in a moment
        self._filled = False  # whether there was more to receive
        self._busy_at = -BUSY_SECONDS  # when much had come without a pause
        self._read_at = 0.0  # when we had read last
        self._resting = False  # held up for others' turn only
        self.cut_off = False
        """Whether the server hung up, and said nothing, while much was on its way: so it gives up a slow reader."""
        self.full = False
        """Whether the socket takes no more for now."""
        self._writable: asyncio.Future[None] | None = None
        self._failure: LinkError | RemoteProtocolError | None = None
        self._lost: str | None = None  # why the socket is gone
        self._ended_itself = False  # whether the server closed it in an orderly way
        self._gone: asyncio.Future[None] = self._loop.create_future()

    # -- what asyncio calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_HIGH, low=UNSENT_LOW)

    def make_room(self) -> memoryview:
        """Give room to receive into if there is something to consider."""
        if self._backlog is not None:
            waiting: memoryview = self._backlog.room
            return waiting
        parser = self._parser
        most = READ
        if parser.missing > READ:
            # Of a large message its rest and no more: what follows would have to be moved to the front with it.
            rest = parser.missing - (parser.end - parser.start)
            most = rest if rest < READ + READ // 2 else READ
        room: memoryview = parser.space()[:most]
        if parser.end == 0:
            self._viewed, self._view = parser.buffer, room
        self._asked = len(room)
        return room

    def read_closely(self, nbytes: int) -> None:
        """Read what was received if it may be anything."""
        if self._backlog is not None:
            self._receive_ahead(self._backlog, nbytes)
            return
        self._parser.received(nbytes)
        if self._held is None:
            self._read()
        self.notice(nbytes)

    def read_on(self, wait: Awaitable[None] | None) -> None:
        """Wait, if there is something to wait for, and read what follows the messages."""
        if wait is not None:
            self._hold(wait)
        else:
            self._read()

    def notice(self, nbytes: int) -> None:
        """Notice how much came at once."""
        if nbytes == self._asked:
            self._streak += nbytes
        else:
            if self._streak >= BUSY:
                self._busy_at = self._loop.time()
            self._streak = 0
        if self._ahead:
            self._notice_lag()

    def received(self, data: bytes) -> None:
        """Read bytes that came another way than into our buffer."""
        self._parser.feed(data)
        if self._held is None:
            self._read()

    def eof_received(self) -> bool:
        """Let the connection end: a server that hangs up will not hear us any more."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Tell that the connection is gone."""
        if not self._gone.done():
            self._gone.set_result(None)
        reason = "the server closed it" if error is None else getattr(error, "strerror", None) or str(error)
        if isinstance(error, ssl.SSLError):
            reason = tls_reason(error)
        self._lost = str(reason).split("] ")[-1].rstrip(".")
        self._ended_itself = error is None
        if self._backlog:
            self._busy_at = self._loop.time()
        if not self._backlog:  # else what came before is read first
            self._socket_gone()

    def _socket_gone(self) -> None:
        reason = self._lost or ""
        busy = self._streak >= BUSY or self._loop.time() - self._busy_at < BUSY_SECONDS
        if self._ended_itself and busy and self.session.state is State.OPEN and self.session.last_words is None:
            self.cut_off = True
            reason += " while much was on its way, as it does if a client reads too slowly"
        self._fail(self._failure or self.session.ended(reason))

    def pause_writing(self) -> None:
        """Let writers wait."""
        self.full = True
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let writers go on."""
        self.full = False
        if self._writable is not None:
            waiting, self._writable = self._writable, None
            if not waiting.done():
                waiting.set_result(None)

    # -- reading --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        parser, session = self._parser, self.session
        events = 0
        try:
            while (start := parser.start) < parser.end and (state := session.state) is not _CLOSED:
                # Who has not let us in yet, perhaps without TLS, has no messages for anybody.
                if state is _OPEN:
                    place, count, wait = hand_out(parser.buffer, start, parser.end, self._takers, self._borrowers)
                    if count:
                        self.messages += count
                        self.bytes += place - start
                        parser.take(place)
                        if wait is not None:
                            self._hold(wait)
                            break
                        if place == parser.end:
                            break
                if events == MOST_EVENTS:
                    self._resting = True
                    self._hold(asyncio.sleep(0))
                    break
                events += 1
                event = parser.next_event()
                if event is None:
                    break
                if isinstance(event, protocol.Message) and session.state is _OPEN:
                    if (wait := self._hand_over(event)) is not None:
                        self._hold(wait)
                        break
                elif (notice := session.receive(event)) is not None:
                    self._noticed(notice)
        except RemoteProtocolError as error:
            self._fail(session.broken(error))
        except LinkError as error:
            self._fail(error)
        if answers := session.take():
            self.write(answers)

    def _hand_over(self, event: protocol.Message) -> Any:
        """Hand out a message in an unusual form, or of a subscription that is gone."""
        taker = self._takers.get(event.sid) or self._borrowers.get(event.sid)
        if taker is None:
            return None
        self.messages += 1
        return taker(event.subject.encode(), (event.reply or "").encode(), event.payload, event.header)

    def _noticed(self, notice: Notice | PenstockError) -> None:
        if notice in (Notice.SECURE, Notice.OPENED):
            if notice is Notice.SECURE and self._parser.start < self._parser.end:
                raise TlsError(
                    f"{self.session.url} sent more than its greeting before the TLS handshake.",
                    remedy="Somebody may stand between us and the server.",
                    urls=self.session.options.urls,
                )
            if not self._step.done():
                self._step.set_result(notice)
        else:
            self._notify(notice)

    def _hold(self, wait: Awaitable[None]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._held = self._loop.create_task(self._go_on(wait))

    async def _go_on(self, wait: Awaitable[None]) -> None:
        try:
            await wait
        except Exception:  # what a taker waits for is its own affair; the reading goes on
            log.exception("The function that held up the reading failed.")
        self._held, self._resting = None, False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._read()
        if self._backlog:
            self._schedule()

    # -- receiving ahead ------------------------------------------------------------------------------------------

    def _notice_lag(self) -> None:
        """Begin to receive ahead if the socket is never empty, or others keep us from reading."""
        now = self._loop.time()
        late = self._streak >= BUSY and now - self._read_at > BEHIND_SECONDS
        if (late or self._streak >= BEHIND_BYTES) and self._held is None:
            self._streak = 0
            self._backlog = Backlog(self._ahead.folder, self._ahead.memory)
        self._read_at = now

    def _receive_ahead(self, backlog: Backlog, nbytes: int) -> None:
        backlog.received(nbytes)
        self._filled = nbytes >= READ
        if nbytes >= BUSY:
            self._busy_at = self._loop.time()
        if backlog.full:
            assert self._transport is not None
            self._transport.pause_reading()
            if backlog.error is not None:
                log.warning("Nothing more is received ahead of what is read: %s", backlog.error)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._work_off)

    def _work_off(self) -> None:
        """Read a part of what was received ahead; others have their turn before the next."""
        self._scheduled = False
        backlog = self._backlog
        if backlog is None or self._held is not None or self.session.state is State.CLOSED:
            return
        if self._filled and backlog.size < BURST:
            self._filled = False  # unless the next look at the socket finds it full again
            self._schedule()
            return
        was_full = backlog.full
        self._parser.feed(backlog.take())
        self._read()
        if was_full and not backlog.full and not self._gone.done() and self._held is None:
            assert self._transport is not None
            self._transport.resume_reading()
        if backlog:
            self._schedule()
        elif self._backlog is not None:
            self._drop_backlog()
            if self._lost is not None:
                self._socket_gone()

    def _drop_backlog(self) -> None:
        if self._backlog is not None:
            self._backlog.close()
            self._backlog = None

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send; nothing happens if the connection is gone, which `on_lost` has told."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    @property
    def held(self) -> bool:
        """Whether what the server says waits, because a taker holds up the reading or much came before it."""
        return (self._held is not None and not self._resting) or bool(self._backlog)

    async def writable(self) -> None:
        """Wait until the socket takes more, or the connection is gone."""
        if self._writable is not None:
            await asyncio.wait({self._writable, self._gone}, return_when=asyncio.FIRST_COMPLETED)

    @property
    def unsent(self) -> int:
        """Bytes that the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS of the socket; None if it has none."""
        return None if self._transport is None else self._transport.get_extra_info("ssl_object")

    # -- opening and ending ---------------------------------------------------------------------------------------

    async def open(self, transport: Any, context: Callable[[], ssl.SSLContext]) -> None:
        """Greet, secure and log in, on a transport that is connected."""
        if transport is not None:
            self._transport = transport
        while True:
            notice = await asyncio.shield(self._step)
            self._step = self._loop.create_future()
            if notice is Notice.OPENED:
                if self._failure is not None:  # it let us in and hung up before we noticed either
                    raise self._failure
                return
            secured = await self._loop.start_tls(
                self._transport,  # type: ignore[arg-type]  # one of asyncio's, as only TCP gets here
                self,
                context(),
                server_hostname=self.session.tls_name,
                ssl_shutdown_timeout=1.0,
            )
            assert secured is not None
            self.connection_made(secured)
            self.session.secured()
            self._read()

    def attach(self, transport: Transport) -> None:
        """Use a transport that is not TCP."""
        self._transport = transport

    def _fail(self, error: LinkError | RemoteProtocolError) -> None:
        first, self._failure = self._failure is None, self._failure or error
        self.abort()
        if not self._step.done():
            self._step.set_exception(self._failure)
            self._step.exception()  # an opening that was cancelled does not ask any more
        self.resume_writing()
        if first and self.on_lost is not None:
            lost, self.on_lost = self.on_lost, None
            lost(self._failure)

    def abort(self) -> None:
        """Close at once."""
        self.session.state = State.CLOSED
        self._drop_backlog()
        self._cut()

    def _cut(self) -> None:
        if self._transport is not None:
            cut(self._transport, self._gone)

    async def close(self, within: float) -> int:
        """Send what is waiting, and close; at once if the peer does not take it in time: give what was not sent."""
        self.on_lost = None
        if self._transport is None:
            return 0
        self._transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await asyncio.shield(self._gone)
        unsent = 0 if self._gone.done() else self._transport.get_write_buffer_size()
        self._cut()
        self._drop_backlog()
        if self._held is not None:
            await end([self._held], within=1.0)
        return unsent


async def open_wire(wire: Wire, context: Callable[[], ssl.SSLContext], timeout: float) -> None:
    """Connect a wire to its session's address and log in; raises the LinkError that says why that failed."""
    session = wire.session
    parts = urlsplit(session.url)
    loop = asyncio.get_running_loop()
    connecting = True
    try:
        async with asyncio.timeout(timeout):
            if parts.scheme in ("ws", "wss"):
                from penstock.connection import websocket

                await websocket.connect(wire, context)
                connecting = False
                await wire.open(None, context)
                return
            first: dict[str, Any] = {}
            if session.state is State.SECURING:
                first = {"ssl": context(), "server_hostname": session.tls_name, "ssl_shutdown_timeout": 1.0}
            host, port = parts.hostname or "", parts.port or 4222
            if (proxy := session.options.proxy) is not None:
                from penstock.connection.proxy import connect_through

                through = await connect_through(proxy, host, port, session.options.urls)
                transport, _ = await loop.create_connection(lambda: wire, sock=through, **first)
            else:
                transport, _ = await loop.create_connection(lambda: wire, host, port, **first)
            connecting = False
            if first:
                session.secured()
            await wire.open(transport, context)
    except TimeoutError:
        wire.abort()
        raise session.late(timeout) from None
    except ssl.SSLError as error:
        wire.abort()
        raise session.tls_failed(tls_reason(error)) from None
    except (LinkError, InputError):
        wire.abort()
        raise
    except RemoteProtocolError as error:
        wire.abort()
        raise session.broken(error) from None
    except UnicodeError:  # of a host name with a part that is empty or too long
        wire.abort()
        raise unreachable(session.options, session.url, "that is not a host name") from None
    except OSError as error:
        wire.abort()
        if connecting:
            raise unreachable(session.options, session.url, plain_reason(error)) from None
        raise session.ended(plain_reason(error)) from None
    except BaseException:
        wire.abort()
        raise


def plain_reason(error: OSError) -> str:
    """Give the system's words for an error: asyncio has its own for a connection that failed, alone or in a list."""
    found = re.search(r"\[Errno (\d+)\] Connect call failed", str(error))
    return os.strerror(int(found[1])).lower() if found else (error.strerror or str(error)).split("] ")[-1]
