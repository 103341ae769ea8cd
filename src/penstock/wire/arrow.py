"""Columns as Arrow record batches: the buffers that `columns` filled are wrapped, not copied."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

from penstock.errors import InputError

try:
    import pyarrow as pa
except ModuleNotFoundError as error:  # Arrow comes with the extra that brings Spark; the rest works without
    raise InputError(
        "Bulk reading and writing needs pyarrow, which is not installed.", remedy="Run: pip install 'penstock[spark]'."
    ) from error

__all__ = ["HEADERS", "SCHEMA", "constant", "to_batch"]

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
_NAME, _VALUES = HEADERS.key_field, HEADERS.item_field


def to_batch(closed: dict[str, Any], stream: str) -> pa.RecordBatch:
    """Wrap what `Columns.close` gives."""
    rows, names = closed["rows"], closed["names"]
    values = _strings(closed["header_values"], closed["values"])
    lists = _array(_VALUES.type, names, closed["header_lists"], children=[values])
    entries = pa.StructArray.from_arrays([_strings(closed["header_names"], names), lists], fields=[_NAME, _VALUES])
    return pa.RecordBatch.from_arrays(
        [
            _strings(closed["subject"], rows),
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


def _strings(buffers: tuple[Any, Any], rows: int) -> pa.StringArray:
    wrapped = _array(pa.binary(), rows, *buffers)
    if buffers[1].isascii():
        return wrapped.view(pa.string())
    # NATS carries any bytes in subjects and headers, Arrow's strings do not. Each string is looked at by itself,
    # because pieces of one character in two neighbours would pass together.
    return pa.array([item.as_py().decode("utf-8", "replace") for item in wrapped], pa.string())


def constant(text: str, rows: int) -> pa.StringArray:
    """Give a column that says the same in every row.

    Arrow's own `repeat` does too, but its scalars import pandas where that is installed, which takes a second.
    """
    return _constant(text, 1 << max(rows - 1, 0).bit_length()).slice(0, rows)


@lru_cache(maxsize=8)  # a read asks for the same column with every batch
def _constant(text: str, rows: int) -> pa.StringArray:
    content = text.encode()
    offsets = array("i", range(0, (rows + 1) * len(content), len(content)) if content else [0] * (rows + 1))
    return _array(pa.string(), rows, offsets, content * rows)
