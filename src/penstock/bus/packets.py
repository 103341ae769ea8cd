"""Sends the packets of a sectioned reply: one at a time as in the seed, or a window of them if one was offered.

Both ways send to the requester's inbox and listen for its signals on an inbox of their own, which the requester learns
from MiscInboxName before the first packet.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.bus.mailbox import Conversation, Mailbox
from penstock.bus.window import HEADER, PIECE, RESEND, RUN_HEAD, UNIT_HEAD, Offer, SendWindow, decode_signal, split
from penstock.bus.wire import Misc, decode_misc, encode_inbox
from penstock.connection.messages import LARGE, as_bytes
from penstock.connection.waiter import Lookout, Waiter
from penstock.errors import DeadlineError, LocalProtocolError, NoConsumerError, PenstockError, SlowConsumerError

__all__ = ["SLACK", "StopAndWait", "Windowed"]

# The requester's clock starts when the packet arrives, ours when it is sent. Ours must not ring first, or the
# handler would hear of a timeout where the requester meant to say SlowConsumer.
SLACK = 1.0
GO_ON, NO_CONSUMER, SLOW_CONSUMER = (bytes((kind,)) for kind in (Misc.GO_ON, Misc.NO_CONSUMER, Misc.SLOW_CONSUMER))
UNSENT = 4 * 1024 * 1024  # bytes that wait for the socket, at which a handler waits, too
PROBE_FIRST, PROBE_LAST = 0.5, 4.0  # seconds of silence before the reader is asked what it has; doubling
SOON = 0.0003  # seconds for which a handler does not sleep, if the reader took the last packet as soon


class PacketSender(Conversation):
    """What both ways share: the misc inbox, and the error after which nothing is sent any more."""

    _inbox: bytes | None = None

    def __init__(self, mail: Mailbox, target: str) -> None:
        super().__init__(mail, target)
        self._to = as_bytes(target)

    async def listen(self) -> None:
        """See to it that signals arrive: the server may have ended the inbox of the bus since its service began."""
        if not self._mail.is_open:
            await self._mail.open()

    def deliver(self, data: bytes, block: bytes | None) -> None:
        try:
            if data == NO_CONSUMER:
                raise NoConsumerError("Nobody reads the reply any more.", subject=self._target)
            if data == SLOW_CONSUMER:
                raise SlowConsumerError("The requester says that it reads the reply too slowly.", subject=self._target)
            self._signal(data)
        except PenstockError as error:
            self.fail(error)
        self._wake()

    def end(self) -> None:
        """Give the misc inbox up."""
        if self._inbox is not None:
            self._mail.remove(self._inbox)
            self._expect_no_more()

    def _signal(self, data: bytes) -> None:
        raise NotImplementedError

    def _open(self, headers: dict[str, str] | None = None) -> None:
        if self._inbox is None:
            self._inbox = self._mail.add(self)
            self._expect(self._target)
            self._publish(encode_inbox(self._inbox.decode()), headers)

    def _publish(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        try:
            self._nc.send(self._target, data, headers=headers)
        except PenstockError as error:
            self.error = self.error or error
            raise

    async def _pause(self, until: float) -> bool:
        """Wait for a signal until a moment of the loop's clock; tell whether one came."""
        self._waiter = Waiter(self._loop)
        self.deadline = until
        if until < self._mail.rings:
            self._mail.wind(until)
        try:
            await self._waiter
            return self._loop.time() < until
        finally:
            self.deadline = math.inf
            self._waiter = None

    def expire(self) -> None:
        """End a pause."""
        self.deadline = math.inf
        self._wake()

    def _late(self, seconds: float) -> DeadlineError:
        self.error = DeadlineError(
            f"The requester gave no sign for {seconds:g} s.",
            remedy="It may be gone, or its signal was lost; nothing more is sent.",
            seconds=seconds,
            subject=self._target,
        )
        return self.error


class StopAndWait(PacketSender):
    """One packet at a time: each waits for GoOn, as the seed has it."""

    _go_on = False

    def __init__(self, mail: Mailbox, target: str) -> None:
        super().__init__(mail, target)
        self._watch = Lookout(SOON)

    def deliver(self, data: bytes, block: bytes | None) -> None:
        waiter = self._waiter
        if data != GO_ON or waiter is None or self.error is not None:
            super().deliver(data, block)
            return
        self._go_on = True
        waiter.wake_now()  # the requester waits for what the handler sends next

    async def send(self, packet: bytes) -> None:
        """Send a packet and wait until the reader has taken it."""
        most, size = self._nc.max_payload, len(packet)
        if size > most:
            raise LocalProtocolError(
                f"The element makes a packet of {size:,} bytes, and the server takes {most:,}.",
                remedy="Send smaller elements; a requester with a window takes larger ones in pieces.",
            )
        if self._inbox is None:
            self._open()
        if self.error is not None:  # the reader left while the element was made
            raise self.error
        self._go_on = False  # one that came unasked for must not count for this packet
        if size < LARGE:
            try:
                self._mail.signal(self._to, packet)
            except PenstockError as error:
                self.error = self.error or error
                raise
        else:
            self._publish(packet)
        seconds = self._options.allowance(size) + SLACK
        self.deadline = until = self._loop.time() + seconds
        if until < self._mail.rings:
            self._mail.wind(until)
        self._waiter = waiter = Waiter(self._loop)
        try:
            if self.error is None:  # it could not be written
                await self._watch.wait(waiter)
        finally:
            self.deadline, self._waiter = math.inf, None
        if not self._go_on:  # it was an error that woke us, or the clock
            raise self.error or self._late(seconds)

    async def close(self, packet: bytes, *, wait: bool) -> None:
        self._publish(packet)

    def _signal(self, data: bytes) -> None:
        decode_misc(data)
        self._go_on = True


class Windowed(PacketSender):
    """Many units in flight, bounded by number and bytes; what is lost on the way is sent again."""

    def __init__(self, mail: Mailbox, target: str, offer: Offer) -> None:
        super().__init__(mail, target)
        self._offer = offer
        self._out = SendWindow(offer.window, offer.bytes)
        self._largest = 0  # bytes of the largest packet that may still be under way
        self._progress = self._loop.time()
        self._flushing = False
        self._again = False

    async def send(self, packet: bytes) -> None:
        """Send a packet, in pieces if it is large; return at once while the window has room."""
        if len(packet) > self._offer.element:
            raise LocalProtocolError(
                f"The element makes {len(packet):,} bytes, and the requester takes {self._offer.element:,}.",
                remedy="Send smaller elements, or raise max_element at the requester.",
            )
        self._open({HEADER: self._offer.encode()})
        out = self._out
        for unit in split(packet, min(PIECE, self._offer.bytes, self._nc.max_payload - RUN_HEAD - UNIT_HEAD)):
            if self.error is not None:
                raise self.error
            size = len(unit)
            if not out.fits(size):
                await self._until(lambda size=size: out.fits(size))  # type: ignore[misc]  # binds the loop's value
            if not out.bytes:
                self._progress, self._largest = self._loop.time(), 0
            self._largest = max(self._largest, len(packet))
            out.push(unit)
            if not self._flushing:  # soon: what is sent until the handler next waits travels together
                self._flushing = True
                self._loop.call_soon(self._flush_soon)
        if self._nc.unsent > UNSENT:  # the window bounds one reply; this, all replies over a slow connection
            await self._nc.written()

    async def close(self, packet: bytes, *, wait: bool) -> None:
        """Send Close behind the rest, and wait until the reader has taken the rest."""
        if self._inbox is None:
            self._publish(packet)  # nothing was sent: a lone Close
            return
        end = self._out.end
        self._out.push(packet)
        if wait:
            await self._until(lambda: self._out.first >= end)
        else:
            self._flush(broken=True)

    def _signal(self, data: bytes) -> None:
        signal = decode_signal(data)
        if signal.kind == RESEND:
            self._out.rewind(signal.number)
            self._again = True
        elif self._out.taken(signal.number):
            self._progress = self._loop.time()

    def _flush_soon(self) -> None:
        if self._flushing:
            try:
                self._flush()
            except PenstockError as error:  # the next send, or the end of the block, raises it
                self.fail(error)

    def _flush(self, *, broken: bool = False) -> None:
        """Send what has not been sent; while the connection is down it stays in the window.

        After an error nothing is sent but, if `broken` is set, what leads up to Close.
        """
        self._flushing = False
        while (broken or self.error is None) and self._nc.is_connected:
            run = self._out.run(self._nc.max_payload)
            if run is None:
                return
            self._publish(run)
        self._nc.check_open()

    async def _until(self, ready: Callable[[], bool]) -> None:
        """Send, and wait for the reader to make progress until there is enough of it."""
        quiet = PROBE_FIRST
        self._flush()
        while not ready():
            if self.error is not None:
                raise self.error
            now = self._loop.time()
            seconds = self._options.allowance(max(self._out.bytes, self._largest)) + SLACK
            limit = self._progress + seconds
            if now >= limit:
                raise self._late(seconds)
            heard = await self._pause(min(limit, now + quiet))
            if self._again:
                self._again = False
                self._flush()
            elif heard:
                quiet = PROBE_FIRST
            elif self._nc.is_connected:
                quiet = min(quiet * 2, PROBE_LAST)
                self._flush()
                self._publish(self._out.probe())
