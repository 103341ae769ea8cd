"""A message as a subscription gets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.protocol import decode_headers, decode_status

if TYPE_CHECKING:
    from penstock.connection.connection import Connection

__all__ = ["LARGE", "UNREAD", "HeaderValues", "Msg", "Payload", "as_bytes", "as_text", "is_lasting"]

Payload = bytes | bytearray | memoryview

LARGE = 128 * 1024  # bytes of a payload that is not put together with others

HeaderValues = Mapping[str, str | Iterable[str]]

UNREAD: dict[str, str] = {}
"""What stands for headers that nobody has asked for yet."""


def as_text(raw: bytes) -> str:
    """Give the text of a subject; bytes that are not UTF-8 survive, and `as_bytes` gives them back."""
    return raw.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """Give the bytes of a subject; LocalProtocolError for one that no bytes stand for."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise LocalProtocolError(f"{text[:200]!r} is not a subject.", remedy="Take lone surrogates out.") from None


def is_lasting(payload: Payload) -> bool:
    """Tell a large view of bytes, which nobody can change while it waits for the socket, from any other payload."""
    return (
        type(payload) is memoryview
        and len(payload) >= LARGE
        and type(payload.obj) is bytes
        and payload.itemsize == 1
        and payload.ndim == 1
        and payload.c_contiguous
    )


class Msg:
    """A message: `data` is its payload, `header_block` its headers as they came, None if there are none."""

    __slots__ = ("_connection", "_headers", "_reply", "_subject", "data", "header_block", "sid")

    def __init__(
        self, connection: Connection, sid: int, subject: bytes, reply: bytes, data: bytes, block: bytes | None
    ) -> None:
        self._connection = connection
        self.sid = sid
        self._subject = subject
        self._reply = reply
        self.data = data
        self.header_block = block
        self._headers: dict[str, str] | None = UNREAD

    @property
    def subject(self) -> str:
        """Where it was published."""
        return as_text(self._subject)

    @property
    def reply(self) -> str:
        """Where an answer is wanted; empty if none is."""
        return as_text(self._reply)

    @property
    def headers(self) -> dict[str, str] | None:
        """The headers, of a repeated one the last; a status stands under Status and Description. None without any."""
        if self._headers is UNREAD:
            self._headers = None if self.header_block is None else _read(self.header_block)
        return self._headers

    header = headers

    @property
    def status(self) -> int | None:
        """The status of a message that the server made up, such as 503; None for any other."""
        return None if self.header_block is None else decode_status(self.header_block)[0]

    @property
    def description(self) -> str:
        """What the server says beside the status."""
        return "" if self.header_block is None else decode_status(self.header_block)[1]

    async def respond(self, data: bytes, headers: HeaderValues | None = None) -> None:
        """Answer; LocalProtocolError if no answer is wanted."""
        if not self._reply:
            raise LocalProtocolError(f"The message on {self.subject} wants no answer.", remedy="Look at its reply.")
        if headers or type(data) is not bytes:
            await self._connection.publish(self.reply, data, headers=headers)
        elif self._connection.is_full(self._connection.send_checked(self._reply, data)):
            await self._connection.written()

    def __repr__(self) -> str:
        return f"<Msg on {self.subject}, {len(self.data)} bytes>"


def _read(block: bytes) -> dict[str, str] | None:
    try:
        status, description, found = decode_headers(block)
    except RemoteProtocolError:  # another publisher wrote them; nobody shall stumble over that
        return None
    headers = {name: values[-1] for name, values in found.items()}
    if status is not None:
        headers["Status"] = str(status)
        if description:
            headers["Description"] = description
    return headers
