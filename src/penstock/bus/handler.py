"""The handler's side: `Sender`, with which a handler answers, and `SectionWriter`, with which it sends sections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Self

from penstock.bus.mailbox import Mailbox
from penstock.bus.packets import StopAndWait, Windowed
from penstock.bus.request import encode_element
from penstock.bus.window import Offer, header_of
from penstock.bus.wire import Response, encode_close, encode_element_packet, encode_response, encode_section
from penstock.connection import Msg
from penstock.errors import LinkError, LocalProtocolError, NoConsumerError, PenstockError, SlowConsumerError

__all__ = ["SectionWriter", "Sender", "explain"]

log = logging.getLogger("penstock.bus")
MOST_TEXT = 8 * 1024  # characters of an error that travel


def explain(error: BaseException) -> str:
    """Give the text of an error, as the requester will read it."""
    if isinstance(error, asyncio.CancelledError):
        return "the service was stopped"
    return (str(error) or type(error).__name__)[:MOST_TEXT]


class SectionWriter:
    """Sends sections: begin one with `array` or `map`, then `send` its elements; `object` does both.

    A section without elements is never sent. After an error every later send raises it again.
    """

    def __init__(self, packets: StopAndWait | Windowed) -> None:
        self._packets = packets
        self._section: bytes | None = None  # begun, and not yet sent
        self._kind: str | None = None
        self._closed = False
        self._error: PenstockError | None = None

    @property
    def windowed(self) -> bool:
        """Whether the requester takes many elements in flight."""
        return isinstance(self._packets, Windowed)

    async def __aenter__(self) -> Self:
        try:
            await self._packets.listen()
        except PenstockError as error:
            await self.__aexit__(type(error), error, None)  # the requester learns it, too
            raise
        return self

    def array(self, type: str, path: Sequence[str] = ()) -> None:
        """Begin an array; nothing is sent before its first element."""
        self._begin("array", type, path)

    def map(self, type: str, path: Sequence[str] = ()) -> None:
        """Begin a map, whose elements have names; nothing is sent before its first element."""
        self._begin("map", type, path)

    async def object(self, type: str, element: Any, path: Sequence[str] = ()) -> None:
        """Send a section that is a single object; afterwards no section is open."""
        self._begin("object", type, path)
        try:
            await self.send(element)
        finally:
            self._section = self._kind = None

    async def send(self, element: Any, name: str | None = None) -> None:
        """Send an element, bytes as they are and anything else as JSON, and wait until there is room for the next.

        In a map it has a name. None is not sent. Raises NoConsumerError, SlowConsumerError or DeadlineError
        when the requester leaves, reads too slowly or gives no sign.
        """
        self._check()
        if self._kind is None:
            raise LocalProtocolError("No section is begun.", remedy="Call array() or map() first.")
        if self._kind == "map" and name is None:
            raise LocalProtocolError("An element of a map has no name.", remedy="Give name=.")
        if self._kind != "map" and name is not None:
            raise LocalProtocolError(f"An element of an array is named {name!r}.", remedy="Only maps have names.")
        if element is None:
            return
        packet = encode_element_packet(encode_element(element), name, self._section)
        try:
            await self._packets.send(packet)
        except LocalProtocolError:
            raise  # an element that cannot be sent; the next one may fit
        except PenstockError as error:
            self._error = error
            raise
        self._section = None

    def _begin(self, kind: str, type: str, path: Sequence[str]) -> None:
        self._check()
        self._section, self._kind = encode_section(kind, type, path), kind

    def _check(self) -> None:
        if self._closed:
            raise LocalProtocolError("The reply was closed.", remedy="Send before the block is left.")
        if self._error is not None:
            raise self._error

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._closed:
            return
        self._closed = True
        broken = self._error or self._packets.error
        try:
            # A requester that said it is gone, or slow, has ended the conversation, and one that nothing reaches hears
            # nothing; any other learns the error.
            if not isinstance(broken, NoConsumerError | SlowConsumerError | LinkError):
                cause = error or broken
                wait = broken is None and not isinstance(error, asyncio.CancelledError)
                await self._packets.close(encode_close(explain(cause) if cause else ""), wait=wait)
            if broken is not None and self._error is None:
                raise broken  # no send has told the handler
        except PenstockError as failure:
            if error is None:
                raise
            log.warning("A reply could not be closed: %s", failure)  # the error in flight tells more
        finally:
            self._packets.end()


class Sender:
    """Answers one request: with one response, or with sections."""

    answered = False
    """Whether a response was sent, or sections were begun."""

    def __init__(self, mail: Mailbox, message: Msg) -> None:
        self._mail, self._target, self._block = mail, message.reply, message.header_block

    async def respond(self, response: Response) -> None:
        """Send the single response to this request."""
        self._once()
        packet = encode_response(response)
        most = self._mail.nc.max_payload
        if len(packet) > most:
            raise LocalProtocolError(
                f"The response makes a packet of {len(packet):,} bytes, and the server takes {most:,}.",
                remedy="Send it as sections: elements may be larger.",
            )
        self.answered = True
        nc = self._mail.nc
        if nc.is_full(nc.send(self._target, packet)):
            await nc.written()

    def sections(self) -> SectionWriter:
        """Begin a reply of sections; use it with `async with`, which closes it, with the error if there is one."""
        self._once()
        self.answered = True
        options = self._mail.options
        offer = Offer.decode(header_of(self._block)) if options.window else None
        if offer is not None:
            mine = Offer(options.window, options.window_bytes, options.max_element)
            return SectionWriter(Windowed(self._mail, self._target, mine.meet(offer)))
        return SectionWriter(StopAndWait(self._mail, self._target))

    def _once(self) -> None:
        if self.answered:
            raise LocalProtocolError("This request was answered already.", remedy="Answer each request once.")
