"""The requester's side of a reply: a single response, or sections read at the reader's own pace.

Packets arrive in `deliver` and wait in a bounded queue; the reader takes them with `async for`. GoOn is sent
as an element is taken. At any moment one clock runs: with a packet waiting, the reader's (SlowConsumer);
with none, the handler's (timeout). So every reply ends, also one that somebody forgot.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Self

from penstock.bus.mailbox import Conversation, Mailbox
from penstock.bus.window import HEADER, LAST, PART, RESEND, Offer, ReceiveWindow, Signal, header_of
from penstock.bus.wire import (
    Close,
    Element,
    First,
    Misc,
    MiscInbox,
    ReplyDecoder,
    Response,
    State,
    Type,
    decode_response,
)
from penstock.connection.waiter import Waiter
from penstock.errors import (
    DeadlineError,
    HandlerError,
    InputError,
    LinkError,
    NoRespondersError,
    PenstockError,
    RemoteProtocolError,
    SlowConsumerError,
)
from penstock.wire.protocol import decode_status, encode_headers

__all__ = ["Reply", "Section"]

log = logging.getLogger("penstock.bus")
MOST_PLAIN = 16  # stop-and-wait has three packets under way at most; more is a handler that does not wait
CREDIT_EVERY = 1.0  # seconds after which room is given back even if little was taken
ASK_AGAIN = 0.5  # seconds before a lost unit is asked for once more
_RESPONSE, _INBOX = int(Type.RESPONSE), int(Type.INBOX)
_IN_SECTION = (State.ARRAY, State.MAP)
_PLAIN_ELEMENT = bytes((Type.ELEMENT,))
_SIGNALS = [bytes((kind,)) for kind in range(RESEND + 1)]
_GO_ON = _SIGNALS[Misc.GO_ON]


@functools.lru_cache(maxsize=256)
def _offer(window: int, size: int, element: int) -> tuple[Offer, bytes]:
    """Give an offer, and the header block that makes it."""
    offer = Offer(window, size, element)
    return offer, encode_headers({HEADER: offer.encode()})


class Section:
    """A section of a reply: its kind ("map", "array" or "object"), type and path, and its elements in order."""

    def __init__(self, reply: Reply, first: First) -> None:
        self._reply, self._first = reply, first
        self.kind, self.type, self.path = first.kind, first.type, first.path

    def __repr__(self) -> str:
        return f"<Section {self.kind} {self.type!r} at {'/'.join(self.path) or 'the root'}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Element:
        reply = self._reply
        if reply._current is not self:
            raise StopAsyncIteration
        first = reply._section if reply._head is not None else await reply._peek()
        if first is not self._first or reply._current is not self:
            raise StopAsyncIteration
        return reply._take()


class Reply(Conversation):
    """What came back: `response`, or, if that is None, `sections()`.

    Leave it early with `break`, `close()` or by leaving an `async with` on it: the handler is told.
    """

    # What most replies never need stands here: a single response is read with no more than the first packet.
    response: Response | None = None
    offer: Offer | None = None
    """The window that we offer for this reply; None if we keep to the plain protocol."""
    _offered: bytes | None = None  # the same as a header block
    _decoder: ReplyDecoder | None = None
    _head: Element | None = None  # read, and not yet taken by the reader
    _section: First | None = None  # where it belongs
    _head_size = 0
    _clock_size = 0  # bytes that the clock allows time for; 0 if it runs for the handler
    _pieces: tuple[bytes, ...] = ()
    _pieces_size = 0
    _inbox: bytes | None = None
    _window: ReceiveWindow | None = None
    _credited, _credited_bytes, _credited_at = 0, 0, 0.0
    _asked: tuple[int, float] = (-1, 0.0)
    _current: Section | None = None
    _gone_on = False  # whether the handler was told to go on when the element came, because a reader waited for it
    _done = False

    def __init__(self, mail: Mailbox, target: str, timeout: float) -> None:
        super().__init__(mail, target)
        self._timeout = timeout
        self._units: deque[bytes] = deque()
        self._name = mail.add(self)
        options = mail.options
        if options.window:
            self.offer, self._offered = _offer(options.window, mail.reserve(options.window_bytes), options.max_element)
        self.deadline = deadline = self._loop.time() + timeout
        mail.wind(deadline)

    def __repr__(self) -> str:
        what = f"{self.response.status}" if self.response else "sections"
        return f"<Reply of {self._target}: {what}{', ended' if self._done else ''}>"

    @property
    def subject(self) -> str:
        """Where the handler sends the packets."""
        return self._name.decode()

    @property
    def windowed(self) -> bool:
        """Whether the handler took up our window."""
        return self._window is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading; a handler that still sends is told that nobody reads."""
        self._leave()

    def _leave(self) -> None:
        if not self._done:
            # What was taken counts, also if the handler has not heard of it.
            if self._window is not None:
                self._say(Misc.GO_ON, failing=False)
            self._say(Misc.NO_CONSUMER, failing=False)
            self._end()

    async def sections(self) -> AsyncIterator[Section]:
        """Give the sections as they come; after the last one, raise what went wrong, if anything did.

        What is left of a section when the next one is asked for is passed over.
        """
        if self.response is not None:
            raise InputError("This reply is a single response.", remedy="Read reply.response.")
        try:
            while (first := await self._peek()) is not None:
                if self._current is not None and self._current._first is first:
                    self._take()
                else:
                    self._current = Section(self, first)
                    yield self._current
            if self.error is not None:
                raise self.error
        finally:
            self._current = None
            self._leave()

    # -- what arrives -------------------------------------------------------------------------------------------------

    def deliver(self, data: bytes, block: bytes | None) -> None:
        """Take a message from the handler, or the server's word that there is none."""
        if self._done:
            return
        decoder, waiter = self._decoder, self._waiter
        # A reader that waits takes the element now: the handler is told before the reader has its turn.
        if (
            waiter is not None
            and not waiter.done()
            and self._inbox is not None
            and self._window is None
            and not self._units
            and self._head is None
            and data[:1] == _PLAIN_ELEMENT
            and decoder is not None
            and decoder.state in _IN_SECTION
        ):
            self._hand_on(waiter, data)
            return
        if decoder is None:  # the first packet
            if data and data[0] == _RESPONSE:
                try:
                    self.response = decode_response(data)
                    self._end()
                except PenstockError as error:
                    self.fail(error)
                return
            self._decoder = decoder = ReplyDecoder()
        empty = not self._units and self._head is None
        try:
            if not data:
                self._refuse_empty(block)
            elif data[0] == _INBOX and self._inbox is not None:
                self._mail.decline(data)
                raise RemoteProtocolError(
                    f"{self._target} sent INBOX in the middle of a reply: a second handler answers the request.",
                    remedy="Does somebody listen on that subject in another queue group?",
                )
            elif self._window is not None:
                self._take_in(self._window, data)
            elif data[0] == _INBOX and decoder.state is State.START:
                value = decoder.decode(data)
                assert isinstance(value, MiscInbox)
                if not self._mail.is_inbox(value.name):
                    raise RemoteProtocolError(
                        f"The handler of {self._target} names {value.name[:80]!r} as its inbox, which looks like none.",
                        remedy="If inboxes have names of their own there, give their prefix: Bus(..., inboxes=[...]).",
                    )
                self._inbox = value.name.encode()
                self._expect(value.name)
                self._accept(header_of(block))
            else:
                self._units.append(data)
                if len(self._units) > MOST_PLAIN:
                    raise RemoteProtocolError(f"{self._target} sends without waiting for the signal to go on.")
        except PenstockError as error:
            self.fail(error)
        if empty and not self._done:
            self._rearm()
        self._wake()

    def _hand_on(self, waiter: Waiter, data: bytes) -> None:
        """Let the handler go on, and run the reader that waits for this element."""
        assert self._inbox is not None
        try:
            self._mail.signal(self._inbox, _GO_ON)
        except PenstockError as error:
            self.fail(error)
            return
        self._units.append(data)
        self._gone_on = True
        waiter.wake_now()
        if self._units and not self._done:  # it has its turn later: until then its clock runs
            self._rearm()

    def _refuse_empty(self, block: bytes | None) -> None:
        if block is not None and decode_status(block)[0] == 503:
            raise NoRespondersError(
                f"Nobody serves {self._target}.",
                remedy="Is the service running, and does it serve this partition?",
                subject=self._target,
            )
        raise RemoteProtocolError(f"{self._target} sent an empty packet.", place=0)

    def _accept(self, header: str | None) -> None:
        """Take up the window, if the handler says that it did."""
        mine, offer = self.offer, Offer.decode(header)
        if mine is None or offer is None:
            return
        if offer.window > mine.window or offer.bytes > mine.bytes:
            raise RemoteProtocolError(f"{self._target} takes a larger window than it was offered.")
        self._window = ReceiveWindow(offer.window, offer.bytes)

    def _take_in(self, window: ReceiveWindow, data: bytes) -> None:
        units, gap = window.feed(data)
        self._units += units
        if gap:
            number, when = self._asked
            if number != window.expected or self._loop.time() - when > ASK_AGAIN:
                self._asked = (window.expected, self._loop.time())
                log.info("%s: unit %d was lost, asking for it again", self._target, window.expected)
                self._say(RESEND)
        elif not units:  # a probe, or units that came twice: the handler has not heard from us
            self._say(Misc.GO_ON)

    # -- what is read -------------------------------------------------------------------------------------------------

    async def ask(self, target: bytes, request: bytes) -> None:
        """Send the request, and wait for the first packet; a single response is read at once."""
        nc = self._nc
        with nc.expecting(self._target, self.fail):
            # A peer of the reference looks at no header.
            if nc.is_full(nc.send_checked(target, request, self._name, self._offered)):
                await nc.written()
            while self.response is None and not self._units and self._inbox is None:
                self._raise_failure()
                waiter = self._begin_waiting()  # written out, as in `_peek`: a call less for each element
                try:
                    await waiter
                except asyncio.CancelledError:
                    self._leave()
                    raise
                finally:
                    self._waiter = None

    async def _peek(self) -> First | None:
        """Give the section of the next element, which is the head then; None at the end."""
        while self._head is None:
            if self._units:
                try:
                    self._read(self._units.popleft())
                except PenstockError as error:
                    self.fail(error)
                    raise
            elif self._done:
                self._raise_failure()
                return None
            else:
                waiter = self._begin_waiting()
                try:
                    await waiter
                except asyncio.CancelledError:
                    self._leave()
                    raise
                finally:
                    self._waiter = None
        return self._section

    def _read(self, unit: bytes) -> None:
        """Read one unit: it becomes the head, a piece of the head to be, or the end."""
        size = len(unit)
        if self._window is not None and unit[0] in (PART, LAST):
            self._pieces_size += size - 1
            if self._pieces_size > self._options.max_element + 1024:
                raise RemoteProtocolError(
                    f"{self._target} sends an element of more than {self._options.max_element:,} bytes.",
                    remedy="Raise max_element of the bus.",
                )
            self._pieces += (unit[1:],)
            if unit[0] == PART:
                self._credit(size)
                self._rearm()
                return
            unit = b"".join(self._pieces)
            self._pieces, self._pieces_size = (), 0
        elif self._pieces:
            raise RemoteProtocolError(f"{self._target} breaks off an element that it sends in pieces.")
        assert self._decoder is not None
        value = self._decoder.decode(unit)
        if isinstance(value, First):
            self._section, value = value, value.element
        if isinstance(value, Element):
            self._head, self._head_size = value, size
            if len(unit) > size:
                self._rearm(len(unit))
        elif isinstance(value, Close):
            if value.error:
                self.error = HandlerError(
                    f"The handler of {self._target} failed: {value.error}", subject=self._target, message=value.error
                )
            if self._window is not None:
                self._window.take(size)
                self._say(Misc.GO_ON, failing=False)
            self._end()
        elif value is None:
            log.debug("%s: a packet of type %d is passed over", self._target, unit[0])
            self._credit(size)
            self._rearm()
        else:
            raise RemoteProtocolError(f"{self._target} sent {type(value).__name__} in mid-stream.")

    def _take(self) -> Element:
        """Hand the head over: the handler may go on."""
        head, size = self._head, self._head_size
        assert head is not None
        self._head, self._head_size = None, 0
        self._credit(size)
        self._rearm()
        return head

    def _credit(self, size: int) -> None:
        window = self._window
        if window is None:
            if not self._gone_on:
                self._say(Misc.GO_ON)
            self._gone_on = False
            return
        window.take(size)
        self._credited += 1
        self._credited_bytes += size
        if (
            not self._units
            or self._credited * 4 >= window.units
            or self._credited_bytes * 4 >= window.size
            or self._loop.time() - self._credited_at > CREDIT_EVERY
        ):
            self._say(Misc.GO_ON)
            self._credited, self._credited_bytes, self._credited_at = 0, 0, self._loop.time()

    def _begin_waiting(self) -> Waiter:
        """Give what is woken when something arrives or the reply ends; the clock sees to it that one of them does."""
        if self._waiter is not None:
            raise InputError("Two readers read one reply.", remedy="Read it from one task.")
        self._waiter = waiter = Waiter(self._loop)
        return waiter

    # -- the clock, and the end ---------------------------------------------------------------------------------------

    def _rearm(self, size: int = 0) -> None:
        """Set the clock for the packet that now waits for the reader, or for the packet that we wait for."""
        if self._done:
            return
        size = size or self._head_size or (len(self._units[0]) if self._units else 0)
        self._clock_size = size
        self.deadline = deadline = self._loop.time() + (self._options.allowance(size) if size else self._timeout)
        if deadline < self._mail.rings:
            self._mail.wind(deadline)

    def expire(self) -> None:
        """End the reply: the reader, or the handler, took too long."""
        if size := self._clock_size:
            seconds = self._options.allowance(size)
            error: PenstockError = SlowConsumerError(
                f"The reply of {self._target} is read too slowly: {size:,} bytes waited {seconds:g} s.",
                remedy="Read faster, or set a lower kbits or a longer grace on both sides.",
                subject=self._target,
                seconds=seconds,
                size=size,
            )
        else:
            error = DeadlineError(
                f"{self._target} sent nothing for {self._timeout:g} s.",
                remedy="Is its handler busy or stuck? A longer timeout may help.",
                seconds=self._timeout,
                subject=self._target,
            )
        self.fail(error)

    def _say(self, kind: int, *, failing: bool = True) -> None:
        """Tell the handler, with a window also how far we are; if that fails the reply ends, unless it ends anyway."""
        if self._inbox is None:
            return
        window, data = self._window, _SIGNALS[kind]
        if window is not None:
            data = Signal(kind, window.expected if kind == RESEND else window.taken).encode()
        try:
            if self._done:
                self._nc.send(self._inbox.decode(), data)  # if that is denied, it is nobody's who waits
            else:
                self._mail.signal(self._inbox, data)
        except PenstockError as error:
            if failing:
                self._end(error)
                raise
            log.warning("%s could not be told that the reply ends: %s", self._target, error)

    def fail(self, error: PenstockError) -> None:
        """End the reply with an error of ours, and tell the handler that nobody reads any more, or too slowly."""
        if not self._done:
            self._end(error)
            if not isinstance(error, LinkError):  # the way to the handler is closed
                slow = isinstance(error, SlowConsumerError)
                self._say(Misc.SLOW_CONSUMER if slow else Misc.NO_CONSUMER, failing=False)

    def _end(self, error: PenstockError | None = None) -> None:
        if self.offer is not None and not self._done:
            self._mail.reserved -= self.offer.bytes
        self._done = True
        self.error = error or self.error
        self._units.clear()
        self._pieces = ()
        self._head = None
        self._mail.remove(self._name)
        self._expect_no_more()
        self._wake()

    def _raise_failure(self) -> None:
        """Raise what broke the reply; an error that the handler sent waits for the end of the sections."""
        if self.error is not None and not isinstance(self.error, HandlerError):
            raise self.error
