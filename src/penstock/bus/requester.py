"""The requester's side of a reply: a single response, or sections read at the reader's own pace.

Packets arrive in `deliver` and wait in a bounded queue; the reader takes them with `async for`. GoOn is sent
as an element is taken. At any moment one clock runs: with a packet waiting, the reader's (SlowConsumer);
with none, the handler's (timeout). So every reply ends, also one that somebody forgot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Self

from penstock.bus.mailbox import Conversation, Mailbox
from penstock.bus.window import HEADER, LAST, PART, RESEND, Offer, ReceiveWindow, Signal
from penstock.bus.wire import Close, Element, First, Misc, MiscInbox, ReplyDecoder, Response, State, Type
from penstock.connection import Msg
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

__all__ = ["Reply", "Section"]

log = logging.getLogger("penstock.bus")
MOST_PLAIN = 16  # stop-and-wait has three packets under way at most; more is a handler that does not wait
CREDIT_EVERY = 1.0  # seconds after which room is given back even if little was taken
ASK_AGAIN = 0.5  # seconds before a lost unit is asked for once more


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
        if self._reply._current is not self or await self._reply._peek() is not self._first:
            raise StopAsyncIteration
        return self._reply._take()


class Reply(Conversation):
    """What came back: `response`, or, if that is None, `sections()`.

    Leave it early with `break`, `close()` or by leaving an `async with` on it: the handler is told.
    """

    def __init__(self, mail: Mailbox, target: str, timeout: float) -> None:
        super().__init__(mail, target)
        self.response: Response | None = None
        self._timeout = timeout
        self._decoder = ReplyDecoder()
        self._units: deque[bytes] = deque()
        self._head: Element | None = None  # read, and not yet taken by the reader
        self._section: First | None = None  # where it belongs
        self._head_size = 0
        self._clock_size = 0  # bytes that the clock allows time for; 0 if it runs for the handler
        self._pieces: list[bytes] = []
        self._pieces_size = 0
        self._inbox: str | None = None
        self._window: ReceiveWindow | None = None
        self._credited, self._credited_bytes, self._credited_at = 0, 0, 0.0
        self._asked: tuple[int, float] = (-1, 0.0)
        self._current: Section | None = None
        self._done = False
        self.subject = mail.add(self)
        self.offer: Offer | None = None
        """The window that we offer for this reply; None if we keep to the plain protocol."""
        if (options := mail.options).window:
            self.offer = Offer(options.window, mail.reserve(options.window_bytes), options.max_element)
        self._deadline = self._loop.time() + timeout
        self._timer = self._loop.call_at(self._deadline, self._expire)

    def __repr__(self) -> str:
        what = f"{self.response.status}" if self.response else "sections"
        return f"<Reply of {self._target}: {what}{', ended' if self._done else ''}>"

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

    def deliver(self, message: Msg) -> None:
        """Take a message from the handler, or the server's word that there is none."""
        if self._done:
            return
        data = message.data
        empty = not self._units and self._head is None
        try:
            if not data:
                self._refuse_empty(message)
            elif data[0] == Type.INBOX and self._inbox is not None:
                self._mail.decline(data)
                raise RemoteProtocolError(
                    f"{self._target} sent INBOX in the middle of a reply: a second handler answers the request.",
                    remedy="Does somebody listen on that subject in another queue group?",
                )
            elif self._window is not None:
                self._take_in(self._window, data)
            elif data[0] == Type.INBOX and self._decoder.state is State.START:
                value = self._decoder.decode(data)
                assert isinstance(value, MiscInbox)
                if not self._mail.is_inbox(value.name):
                    raise RemoteProtocolError(
                        f"The handler of {self._target} names {value.name[:80]!r} as its inbox, which looks like none.",
                        remedy="If inboxes have names of their own there, give their prefix: Bus(..., inboxes=[...]).",
                    )
                self._inbox = value.name
                self._expecting.enter_context(self._nc.expecting(value.name, self.fail))
                self._accept((message.headers or {}).get(HEADER))
            else:
                self._units.append(data)
                if len(self._units) > MOST_PLAIN:
                    raise RemoteProtocolError(f"{self._target} sends without waiting for the signal to go on.")
        except PenstockError as error:
            self.fail(error)
        if empty and not self._done:
            self._rearm()
        self._wake()

    def _refuse_empty(self, message: Msg) -> None:
        if message.status == 503:
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

    async def ask(self, request: bytes) -> None:
        """Send the request, and wait for the first packet; a single response is read at once."""
        # A peer of the reference looks at no header.
        headers = {HEADER: self.offer.encode()} if self.offer else None
        with self._nc.expecting(self._target, self.fail):
            await self._nc.publish(self._target, request, self.subject, headers)
            while not self._units and self._inbox is None:
                self._raise_failure()
                await self._arrival()
        if self._units and self._units[0][0] == Type.RESPONSE and self._decoder.state is State.START:
            value = self._decoder.decode(self._units.popleft())
            assert isinstance(value, Response)
            self.response = value
            self._end()

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
                await self._arrival()
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
            self._pieces.append(unit[1:])
            if unit[0] == PART:
                self._credit(size)
                self._rearm()
                return
            unit = b"".join(self._pieces)
            self._pieces, self._pieces_size = [], 0
        elif self._pieces:
            raise RemoteProtocolError(f"{self._target} breaks off an element that it sends in pieces.")
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
            self._say(Misc.GO_ON)
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

    async def _arrival(self) -> None:
        """Wait until something arrives or the reply ends; the clock sees to it that one of them happens."""
        if self._waiter is not None:
            raise InputError("Two readers read one reply.", remedy="Read it from one task.")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._leave()
            raise
        finally:
            self._waiter = None

    # -- the clock, and the end ---------------------------------------------------------------------------------------

    def _rearm(self, size: int = 0) -> None:
        """Set the clock for the packet that now waits for the reader, or for the packet that we wait for."""
        if self._done:
            return
        size = size or self._head_size or (len(self._units[0]) if self._units else 0)
        self._clock_size = size
        self._deadline = self._loop.time() + (self._options.allowance(size) if size else self._timeout)
        # A timer that rings too early looks at the deadline again: cheaper than a new one for every packet.
        if self._deadline < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._expire)

    def _expire(self) -> None:
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._expire)
            return
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
        window, data = self._window, bytes((kind,))
        if window is not None:
            data = Signal(kind, window.expected if kind == RESEND else window.taken).encode()
        try:
            self._nc.send(self._inbox, data)
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
        self._timer.cancel()
        self._units.clear()
        self._pieces.clear()
        self._head = None
        self._mail.remove(self.subject)
        self._expecting.close()
        self._wake()

    def _raise_failure(self) -> None:
        """Raise what broke the reply; an error that the handler sent waits for the end of the sections."""
        if self.error is not None and not isinstance(self.error, HandlerError):
            raise self.error
