"""The packets of a reply, byte for byte as the seed has them.

One NATS message is one packet. Lengths are one byte and count bytes; text is UTF-8; the status is two bytes,
the lower first::

    Response Stream = Response | MiscInboxName {MapSection+Elem {Elem} | ArraySection+Elem {Elem}
                      | ObjectSection+Elem} Close | Close
    Response          = 0x00 ContentTypeLen_1 ContentType StatusCode_2 Data
    Close             = 0x01 [ErrorMessage]
    MapSection+Elem   = 0x02 PathsCount_1 {PathLen_1 Path} LenSectionType_1 SectionType LenElemName_1 ElemName ElemBytes
    ArraySection+Elem = 0x03 PathsCount_1 {PathLen_1 Path} LenSectionType_1 SectionType ElemBytes
    ObjectSection+Elem= 0x04 PathsCount_1 {PathLen_1 Path} LenSectionType_1 SectionType ElemBytes
    Elem              = 0x05 [LenElemName_1 ElemName] ElemBytes           the name in maps only
    MiscInboxName     = 0x06 Name

    Misc Stream  = GoOn | NoConsumer | SlowConsumer                       requester to handler, to the misc inbox
    GoOn         = 0x00
    NoConsumer   = 0x01
    SlowConsumer = 0x02

Types 0x07 and above belong to our extension (`penstock.bus.window`) and never reach a peer that did not ask
for it. A packet of another type is skipped, and so is a Response in mid-stream, as the reference does.
Pure: bytes in, values out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.json_text import load_json
from penstock.wire.subjects import subject_fault

__all__ = [
    "ORDER",
    "Close",
    "Element",
    "First",
    "Misc",
    "MiscInbox",
    "ReplyDecoder",
    "Response",
    "State",
    "Type",
    "decode_misc",
    "decode_response",
    "encode_close",
    "encode_element_packet",
    "encode_inbox",
    "encode_response",
    "encode_section",
]


class Type(IntEnum):
    """The first byte of a packet."""

    RESPONSE = 0
    CLOSE = 1
    MAP = 2
    ARRAY = 3
    OBJECT = 4
    ELEMENT = 5
    INBOX = 6


class Misc(IntEnum):
    """What the requester tells the handler."""

    GO_ON = 0
    NO_CONSUMER = 1
    SLOW_CONSUMER = 2


class State(Enum):
    """Where in a reply we are."""

    START = "at the start"
    OPEN = "before the first section"
    MAP = "in a map"
    ARRAY = "in an array"
    OBJECT = "after an object"
    DONE = "after the end"


# Plain numbers, for what is done for each packet.
_RESPONSE, _CLOSE, _ELEMENT, _INBOX = map(int, (Type.RESPONSE, Type.CLOSE, Type.ELEMENT, Type.INBOX))
_ARRAY = State.ARRAY
_SECTIONS = {Type.MAP: State.MAP, Type.ARRAY: State.ARRAY, Type.OBJECT: State.OBJECT}
# Which packet may come when, and the state after it. What is not here is refused; unknown types are skipped.
ORDER: dict[State, dict[Type, State]] = {
    State.START: {Type.RESPONSE: State.DONE, Type.CLOSE: State.DONE, Type.INBOX: State.OPEN},
    State.OPEN: {**_SECTIONS, Type.CLOSE: State.DONE, Type.RESPONSE: State.OPEN},
    State.MAP: {**_SECTIONS, Type.ELEMENT: State.MAP, Type.CLOSE: State.DONE, Type.RESPONSE: State.MAP},
    State.ARRAY: {**_SECTIONS, Type.ELEMENT: State.ARRAY, Type.CLOSE: State.DONE, Type.RESPONSE: State.ARRAY},
    State.OBJECT: {**_SECTIONS, Type.CLOSE: State.DONE, Type.RESPONSE: State.OBJECT},
    State.DONE: {},
}


@dataclass(frozen=True)
class Response:
    """A single answer, with the status of HTTP."""

    status: int = 200
    content_type: str = "application/json"
    data: bytes = b""

    @classmethod
    def text(cls, status: int, message: str) -> Response:
        """Give a plain text answer, as errors are answered."""
        return cls(status, "text/plain", message.encode("utf-8", "replace"))

    def json(self) -> Any:
        """Read the data as JSON."""
        return load_json(self.data)


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a section: its bytes, and its name if the section is a map."""

    data: bytes
    name: str | None = None

    def json(self) -> Any:
        """Read the data as JSON."""
        return load_json(self.data)


@dataclass(frozen=True, slots=True)
class First:
    """The beginning of a section, which always carries its first element."""

    kind: str
    type: str
    path: tuple[str, ...]
    element: Element


@dataclass(frozen=True, slots=True)
class Close:
    """The end of a reply, with an error if there was one."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class MiscInbox:
    """The subject on which the handler listens for the misc stream."""

    name: str


def encode_response(response: Response) -> bytes:
    if not isinstance(response.status, int) or not 0 <= response.status <= 0xFFFF:
        raise LocalProtocolError(f"The status {response.status!r} does not fit two bytes.", remedy="Use one of HTTP.")
    # The reference adds one to this length in a byte: 255 wraps to 0 there.
    content_type = _text("The content type", response.content_type, 254)
    return b"".join((b"\x00", content_type, response.status.to_bytes(2, "little"), response.data))


def encode_close(error: str = "") -> bytes:
    return b"\x01" + error.encode("utf-8", "replace")


def encode_inbox(name: str) -> bytes:
    if not name:
        raise LocalProtocolError("The misc inbox has no name.")
    return b"\x06" + name.encode()


def encode_section(kind: str, type: str, path: Sequence[str] = ()) -> bytes:
    """Write the beginning of a section, for the packet of its first element."""
    if isinstance(path, str):
        raise LocalProtocolError(f"The path {path!r} is one text.", remedy="Give a list of texts.")
    if len(path) > 255:
        raise LocalProtocolError(f"The path has {len(path)} parts.", remedy="255 fit.")
    parts = [_text("A part of the path", part) for part in path]
    return b"".join((bytes((Type[kind.upper()], len(parts))), *parts, _text("The type of the section", type)))


def encode_element_packet(data: bytes, name: str | None = None, section: bytes | None = None) -> bytes:
    """Write an Elem packet, with a name in a map; the first one of a section has the beginning of the section."""
    if name is None and section is None:
        return b"\x05" + data
    return b"".join((section or b"\x05", b"" if name is None else _text("The name of the element", name), data))


def _text(what: str, text: str, most: int = 255) -> bytes:
    if not isinstance(text, str):
        raise LocalProtocolError(f"{what} is {type(text).__name__}.", remedy="Give text.")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError(f"{what} is not text that UTF-8 can carry.") from None
    if len(data) > most:
        raise LocalProtocolError(f"{what} is {len(data)} bytes long.", remedy=f"{most} bytes fit.")
    return bytes((len(data),)) + data


def decode_misc(data: bytes) -> Misc:
    """Read a packet of the misc stream."""
    if len(data) != 1 or data[0] > Misc.SLOW_CONSUMER:
        raise RemoteProtocolError(f"The requester sent {data[:16]!r}, which is not a signal.", place=0)
    return Misc(data[0])


class ReplyDecoder:
    """Reads the packets of one reply, in order, and knows what may come next."""

    state = State.START

    def decode(self, packet: bytes) -> Response | Close | MiscInbox | First | Element | None:
        """Read the next packet, None if it is passed over; one broken or out of order is a RemoteProtocolError."""
        if not packet:
            raise RemoteProtocolError("The handler sent an empty packet.", place=0)
        number = packet[0]
        state = self.state
        if number == _ELEMENT and state is _ARRAY:  # what comes most, and changes nothing
            return Element(packet[1:])
        if number > _INBOX:
            if state in (State.START, State.DONE):
                raise RemoteProtocolError(
                    f"A packet of type {number} cannot come {state.value} of a reply.",
                    remedy="Does a stream, or a service of another kind, listen on the subject as well?",
                    place=0,
                )
            return None
        after = ORDER[state].get(number)  # type: ignore[call-overload]  # an IntEnum is its number
        if after is None:
            raise RemoteProtocolError(
                f"The handler sent {Type(number).name} {state.value}{' of a reply' if state is State.START else ''}.",
                place=0,
            )
        if number == _RESPONSE and state is not State.START:
            return None
        value = self._read(number, packet)
        self.state = after
        return value

    def _read(self, number: int, packet: bytes) -> Response | Close | MiscInbox | First | Element:
        if number == _ELEMENT:
            if self.state is State.MAP:
                name, place = _read_text(packet, 1)
                return Element(packet[place:], name)
            return Element(packet[1:])
        if number == _RESPONSE:
            return decode_response(packet)
        if number == _CLOSE:
            return Close(packet[1:].decode("utf-8", "replace"))
        if number == _INBOX:
            return MiscInbox(_read_inbox(packet))
        return _read_first(Type(number), packet)


def decode_response(packet: bytes) -> Response:
    """Read a packet of type Response."""
    content_type, place = _read_text(packet, 1)
    if len(packet) < place + 2:
        raise _cut(packet, place)
    return Response(int.from_bytes(packet[place : place + 2], "little"), content_type, packet[place + 2 :])


def _read_first(number: Type, packet: bytes) -> First:
    if len(packet) < 2:
        raise _cut(packet, 1)
    place, path = 2, []
    for _ in range(packet[1]):
        part, place = _read_text(packet, place)
        path.append(part)
    section, place = _read_text(packet, place)
    name = None
    if number is Type.MAP:
        name, place = _read_text(packet, place)
    return First(number.name.lower(), section, tuple(path), Element(packet[place:], name))


def _read_inbox(packet: bytes) -> str:
    try:
        name = packet[1:].decode()
    except UnicodeDecodeError:
        name = ""
    # Somebody will publish there: it must be a plain subject.
    if subject_fault(name, literal=True):
        raise RemoteProtocolError(f"The handler names {packet[1:80]!r} as its inbox.", place=1)
    return name


def _read_text(packet: bytes, place: int) -> tuple[str, int]:
    """Read a length and that much text; give it and the place after it."""
    if place >= len(packet) or (end := place + 1 + packet[place]) > len(packet):
        raise _cut(packet, place)
    try:
        return packet[place + 1 : end].decode(), end
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("A packet holds text that is not UTF-8.", place=place + 1 + error.start) from None


def _cut(packet: bytes, place: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"A packet of type {packet[0]} ends too early, after {len(packet)} bytes.", place=place)
