"""Keeps a connection up: the first one, pings, and a new one if the old one is gone."""

from __future__ import annotations

import asyncio
import enum
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable

from penstock import __version__, credentials
from penstock.connection.backlog import Ahead
from penstock.connection.tasks import end
from penstock.connection.transport import Wire, open_wire
from penstock.errors import DisconnectedError, LinkError, PenstockError, RemoteProtocolError, UnreachableError
from penstock.options import ConnectionOptions
from penstock.wire.dispatch import Taker
from penstock.wire.servers import Address, Servers, most_telling
from penstock.wire.session import Notice, Session

__all__ = ["Lifeline", "Phase"]

log = logging.getLogger("penstock.connection")

MOST_PINGS = 2  # unanswered ones, after which the server counts as gone


class Phase(enum.Enum):
    """Where a connection stands, over all its wires."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


class Lifeline:
    """One connection to a cluster, over as many wires as it takes.

    `stands` is called when a wire is open, `broke` when it is gone, with the reason and whether the server said it,
    `failed` for every attempt that came to nothing, `informed` when the server says something new of itself, `noticed`
    for what it says besides, and `ended` when no attempt is left.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        tls: ssl.SSLContext | None,
        takers: dict[int, Taker],
        borrowers: dict[int, Taker],
        *,
        stands: Callable[[], None],
        broke: Callable[[PenstockError, bool], None],
        failed: Callable[[PenstockError], None],
        informed: Callable[[Session], None],
        noticed: Callable[[Notice | PenstockError], None],
        ended: Callable[[PenstockError], None],
    ) -> None:
        self.options = options
        self.phase = Phase.CONNECTING
        self.wire: Wire | None = None
        """The wire that stands; None while there is none."""
        self.stretch = 0
        """Counts the unbroken stretches."""
        self.servers = Servers(options)
        self.messages = self.bytes = 0
        """What wires that are gone handed out."""
        self.cut_off = 0
        """How many of them ended in the way in which a server gives up a slow reader."""
        self.ahead = Ahead()
        """Who wants to be read for ahead of time."""
        self._takers, self._borrowers = takers, borrowers
        self._stands, self._broke, self._failed = stands, broke, failed
        self._informed, self._noticed, self._ended = informed, noticed, ended
        self._context = tls
        self._was_secure = tls is not None  # who brings a context wants it used
        self._task: asyncio.Task[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._unanswered = 0  # pings of our own
        self._loop = asyncio.get_running_loop()
        credentials.login(options)  # files that are missing are told before anything is opened
        if options.tls:
            self._tls_context()

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = credentials.tls_context(self.options)
        return self._context

    # -- opening --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the first connection: every address once, each with its share of the time."""
        deadline = time.monotonic() + self.options.connect_timeout
        addresses = self.servers.round()
        failures: list[LinkError] = []
        for place, address in enumerate(addresses):
            left = deadline - time.monotonic()
            if left <= 0 and failures:
                break
            # An address that accepts and stays silent must leave time for the next one.
            share = max(left / (len(addresses) - place), 0.05)
            try:
                await self._attempt(address, share)
                return
            except LinkError as error:
                failures.append(error)
        raise most_telling(failures)

    async def _attempt(self, address: Address, timeout: float) -> None:
        session = Session(
            self.options,
            address.url,
            credentials.login(self.options).connect_fields,  # read anew: credentials may have been renewed
            __version__,
            insist_on_tls=self._was_secure,
        )
        wire = Wire(session, self._takers, self._borrowers, self._heard, self.ahead)
        await open_wire(wire, self._tls_context, timeout)
        if self.phase is Phase.CLOSED:  # meanwhile, and the cancellation passed by
            wire.abort()
            raise asyncio.CancelledError
        self._was_secure = self._was_secure or session.secure
        now = time.monotonic()
        self.servers.stands(address.url, now)
        fresh = self.servers.learn(session.info, address.url)
        self.wire, self.phase = wire, Phase.CONNECTED
        self.stretch += 1
        wire.on_lost = self._lost
        self._stands()
        if fresh and self.stretch > 1:  # of the first greeting nothing is news
            self._noticed(Notice.LEARNT)
        self._pongs.clear()
        self._unanswered = 0
        self._ticker = self._loop.call_later(self.options.ping_interval, self._tick)

    # -- while it stands ------------------------------------------------------------------------------------------

    def _heard(self, notice: Notice | PenstockError) -> None:
        wire = self.wire
        if notice is Notice.PONGED:
            self._ponged()
            return
        if notice in (Notice.LEARNT, Notice.LAME_DUCK) and wire is not None:
            self._informed(wire.session)
            fresh = self.servers.learn(wire.session.info, wire.session.url)
            if notice is Notice.LEARNT and not fresh:
                return
        elif notice is Notice.LEARNT:
            return  # it came with the answer to our login, and is learnt with the greeting
        self._noticed(notice)

    def ping(self, waiter: asyncio.Future[None] | None = None) -> None:
        """Send a ping; `waiter` is done when it is answered, and fails when the wire breaks before."""
        assert self.wire is not None
        self.wire.session.ping()
        self._pongs.append(waiter)
        self.wire.write(self.wire.session.take())

    def _ponged(self) -> None:
        if not self._pongs:
            return
        waiter = self._pongs.popleft()
        if waiter is None:
            self._unanswered -= 1
        elif not waiter.done():  # who waited may have given up
            waiter.set_result(None)

    def _tick(self) -> None:
        wire = self.wire
        if wire is None:
            return
        if wire.held:  # its answers wait with everything else; that is not a sign of death
            self._ticker = self._loop.call_later(self.options.ping_interval, self._tick)
            return
        if self._unanswered >= MOST_PINGS:
            error = wire.session.ended(f"it left {self._unanswered} pings unanswered")
            wire.on_lost = None
            wire.abort()
            self._lost(error)
            return
        self._unanswered += 1
        self.ping()
        self._ticker = self._loop.call_later(self.options.ping_interval, self._tick)

    # -- breaking and mending -------------------------------------------------------------------------------------

    def _lost(self, error: LinkError | RemoteProtocolError) -> None:
        wire, self.wire = self.wire, None
        if wire is None or self.phase is Phase.CLOSED:
            return
        self._stop_ticking()
        self.messages += wire.messages
        self.bytes += wire.bytes
        self.cut_off += wire.cut_off
        wire.on_lost = None
        self.servers.lost(wire.session.url, time.monotonic())
        if not isinstance(error, DisconnectedError):  # what is under way ends for the same reason, and nothing is known
            gone = DisconnectedError(f"The connection to {wire.session.url} broke: {error}", urls=self.options.urls)
            gone.__cause__ = error
            error = gone
        self._fail_pings(error)
        again = self.options.reconnect and self.options.reconnect_attempts != 0
        self.phase = Phase.RECONNECTING if again else Phase.CLOSED
        self._broke(error, wire.session.last_words is not None)
        if again:
            self._task = self._loop.create_task(self._mend(error))
        else:
            self._ended(error)

    async def _mend(self, error: PenstockError) -> None:
        while (found := self.servers.next(time.monotonic())) is not None:
            address, wait = found
            await asyncio.sleep(wait)
            try:
                await self._attempt(address, self.options.connect_timeout)
                return
            except PenstockError as failure:  # a certificate or credentials that cannot be read, too, may come back
                error = failure
            except Exception as failure:  # nothing may end the attempts in silence
                log.exception("An attempt to connect to %s failed in an unexpected way.", address.url)
                error = UnreachableError(f"No connection to {address.url}: {failure!r}.", urls=self.options.urls)
            self.servers.failed(address, time.monotonic())
            self._failed(error)
        self.phase = Phase.CLOSED
        self._ended(error)

    def _fail_pings(self, error: PenstockError) -> None:
        """Tell whoever waits for the server to confirm what it got that it will not."""
        waiters, self._pongs = self._pongs, deque()
        for waiter in waiters:
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # who gave up waiting is not told

    def _stop_ticking(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    async def close(self, within: float, reason: PenstockError) -> int:
        """Close for good, and give how many bytes were not sent.

        What is on its way to the server has `within` seconds; who waits for an answer gets the reason.
        """
        self.phase = Phase.CLOSED
        self._stop_ticking()
        wire, self.wire = self.wire, None
        if self._task is not None:
            await end([self._task])
        if wire is not None:
            self.messages += wire.messages
            self.bytes += wire.bytes
            self._fail_pings(reason)
            return await wire.close(within)
        return 0
