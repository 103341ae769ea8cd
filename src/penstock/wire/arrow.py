"""Columns as Arrow record batches: the buffers that `columns` filled are wrapped, not copied."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import lru_cache
from typing import Any

from penstock.errors import InputError, MessageError

try:
    import pyarrow as pa
except ModuleNotFoundError as error:  # Arrow comes with the extra that brings Spark; the rest works without
    raise InputError(
        "Bulk reading and writing needs pyarrow, which is not installed.", remedy="Run: pip install 'penstock[spark]'."
    ) from error

__all__ = ["HEADERS", "SCHEMA", "constant", "most_rows", "to_batch"]

HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
SCHEMA = pa.schema(
    [
        pa.field("subject", pa.string(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
    ]
)
_CONSTANT = 1 << 28  # bytes of a column that says the same in every row; twice that, rounded up, still fits its offsets
_NAME, _VALUES = HEADERS.key_field, HEADERS.item_field


def to_batch(closed: dict[str, Any], stream: str, *, escape: bool = False) -> pa.RecordBatch:
    """Wrap what `Columns.close` gives; MessageError for text that is not UTF-8, unless it is to be escaped."""
    rows, names = closed["rows"], closed["names"]
    try:
        subjects = _strings(closed["subject"], rows, escape)
        values = _strings(closed["header_values"], closed["values"], escape)
        keys = _strings(closed["header_names"], names, escape)
    except pa.ArrowInvalid:
        raise _unreadable(closed, stream) from None
    lists = _array(_VALUES.type, names, closed["header_lists"], children=[values])
    entries = pa.StructArray.from_arrays([keys, lists], fields=[_NAME, _VALUES])
    return pa.RecordBatch.from_arrays(
        [
            subjects,
            _array(pa.binary(), rows, *closed["data"]),
            _array(HEADERS, rows, closed["header_maps"], children=[entries]),
            _array(pa.int64(), rows, closed["sequence"]),
            _array(SCHEMA.field("time").type, rows, closed["time"]),
            constant(stream, rows),
        ],
        schema=SCHEMA,
    )


def _array(kind: pa.DataType, rows: int, *buffers: Any, children: list[Any] | None = None) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, buffers)], children=children)


def _strings(buffers: tuple[Any, Any], rows: int, escape: bool) -> pa.StringArray:
    wrapped = _array(pa.binary(), rows, *buffers)
    if buffers[1].isascii():
        return wrapped.view(pa.string())
    # NATS carries any bytes in subjects and headers, Arrow's strings do not. A cast looks at each string by itself:
    # pieces of one character in two neighbours would pass together.
    try:
        return wrapped.cast(pa.string())
    except pa.ArrowInvalid:
        if not escape:
            raise
    return pa.array([item.as_py().decode("utf-8", "backslashreplace") for item in wrapped], pa.string())


def _unreadable(closed: dict[str, Any], stream: str) -> MessageError:
    """Say which is the first message whose text is not UTF-8."""
    subjects, values, names = (closed[name] for name in ("subject", "header_values", "header_names"))
    of_name, of_value = (memoryview(closed[name]).cast("B").cast("i") for name in ("header_maps", "header_lists"))
    found = []
    if (row := _first_bad(subjects, closed["rows"])) is not None:
        found.append((row, "subject", f"its subject is {_item(subjects, row)!r}"))
    if (place := _first_bad(names, closed["names"])) is not None:
        found.append((bisect_right(of_name, place) - 1, "headers", f"a header is called {_item(names, place)!r}"))
    if (place := _first_bad(values, closed["values"])) is not None:
        name = bisect_right(of_value, place) - 1
        found.append((bisect_right(of_name, name) - 1, "headers", f"its header {_item(names, name)!r} has a value"))
    row, column, what = min(found, key=lambda item: item[0])
    sequence = memoryview(closed["sequence"]).cast("B").cast("q")[row]
    return MessageError(
        f"Message {sequence} of stream {stream} cannot be read as text: {what}, which is not UTF-8.",
        remedy="Have its publisher write UTF-8; or read with escape=True (option invalidText=escape in Spark), which "
        "writes such bytes as \\xff; or leave the headers out.",
        stream=stream,
        sequence=sequence,
        column=column,
    )


def _item(buffers: tuple[Any, Any], place: int) -> bytes:
    offsets = memoryview(buffers[0]).cast("B").cast("i")
    return bytes(buffers[1][offsets[place] : min(offsets[place + 1], offsets[place] + 80)])


def _first_bad(buffers: tuple[Any, Any], count: int) -> int | None:
    for place, item in enumerate(_array(pa.binary(), count, *buffers)):
        try:
            item.as_py().decode()
        except UnicodeDecodeError:
            return place
    return None


def most_rows(text: str, wanted: int) -> int:
    """Give the rows that a batch may have, as many as wanted or fewer, so that `constant` gives no huge column."""
    return min(wanted, max(1, _CONSTANT // max(1, len(text.encode()))))


def constant(text: str, rows: int) -> pa.StringArray:
    """Give a column that says the same in every row.

    Arrow's own `repeat` does too, but its scalars import pandas if that is installed, which takes a second.
    """
    made = _made(text)
    column = made[0] if made else None
    if column is None or len(column) < rows:
        column = _constant(text.encode(), 1 << max(rows - 1, 0).bit_length())
        made[:] = [column]
    return column.slice(0, rows)


@lru_cache(maxsize=8)  # a read asks for the same column with every batch
def _made(text: str) -> list[pa.StringArray]:
    """Give where the longest such column is kept that was made so far; shorter ones are a part of it."""
    return []


def _constant(content: bytes, rows: int) -> pa.StringArray:
    offsets = array("i", range(0, (rows + 1) * len(content), len(content)) if content else bytes(4 * (rows + 1)))
    return _array(pa.string(), rows, offsets, content * rows)
