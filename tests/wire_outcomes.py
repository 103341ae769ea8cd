"""What each reader of the wire makes of the same bytes, in a form that can be compared."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.errors import RemoteProtocolError
from penstock.wire.arrow import to_batch

__all__ = ["SID", "filled", "handed_out", "outcomes", "parsed"]

SID = 7
_BYTES = pa.map_(pa.binary(), pa.list_(pa.binary()))


def parsed(wire: Any, content: bytes) -> tuple[list[Any], Any]:
    """Give the events, and how it ended: the place behind them, or what the parser says is wrong there."""
    parser, found = wire.protocol.Parser(), []
    parser.feed(content)
    try:
        while (event := parser.next_event()) is not None:
            found.append((type(event).__name__, *(getattr(event, name) for name in type(event).__slots__)))
    except RemoteProtocolError as error:
        return found, str(error)
    return found, (parser.place, parser.missing)


def handed_out(wire: Any, content: bytes) -> tuple[list[Any], Any]:
    """Give what is handed to a taker and to a borrower, and how it ended."""
    found: list[Any] = []

    def take(subject: bytes, reply: bytes, payload: Any, block: bytes | None) -> None:
        found.append((subject, reply, bytes(payload), block))

    buffer = bytearray(content)
    return found, wire.dispatch.hand_out(buffer, 0, len(buffer), {SID: take}, {SID + 1: take})


def filled(wire: Any, content: bytes, direct: bool) -> tuple[list[Any], Any]:
    """Give the rows, without their stream, and how it ended."""
    most = wire.protocol.MAX_PAYLOAD
    made = wire.columns.Columns(1, 1 << 40, max_rows=1000, max_bytes=1 << 20, max_payload=most, stream=b"S")
    made.sid, made.direct = SID, direct
    place = made.fill(bytearray(content), 0, len(content))
    ended = place, made.stop, made.next, made.gap, made.count, made.wire_size
    return rows(made), ended


def rows(made: Any) -> list[Any]:
    """Give the rows of filled columns, without their stream."""
    columns = to_batch(made.close(), "S", escape=True)
    found = zip(
        (text.as_buffer().to_pybytes() for text in columns.column("subject")),  # it may be no UTF-8
        columns.column("data").to_pylist(),
        columns.column("sequence").to_pylist(),
        columns.column("time").cast("int64").to_pylist(),
        columns.column("headers").cast(_BYTES).to_pylist(),
        strict=True,
    )
    return list(found)


def outcomes(wire: Any, content: bytes) -> dict[str, Any]:
    """Judge bytes in every way there is."""
    return {
        "parser": parsed(wire, content),
        "dispatch": handed_out(wire, content),
        "deliveries": filled(wire, content, False),
        "direct get": filled(wire, content, True),
    }
