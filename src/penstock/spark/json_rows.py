"""Rows as JSON payloads, for the sink's option `format`: what `json_values` reads is written the same way.

As Spark's `to_json` does it: fields that are null are left out, decimals are numbers with all their digits, times are
RFC 3339 in UTC, bytes are base64, and what no number can say (NaN, Infinity) is a string.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import UTC
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from penstock.errors import InputError

__all__ = ["encode_rows"]

Writer = Callable[[Any], str]


def encode_rows(columns: dict[str, pa.Array]) -> pa.Array:
    """Give one JSON object for each row of some columns of the same length."""
    write = _object([(name, column.type) for name, column in columns.items()])
    values = [column.to_pylist() for column in columns.values()]
    names = list(columns)
    rows = (write(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True))
    return pa.array([row.encode() for row in rows], pa.binary())


def _object(fields: list[tuple[str, pa.DataType]]) -> Writer:
    known = [(name, _text(name), _writer(kind)) for name, kind in fields]

    def write(value: dict[str, Any]) -> str:
        parts = [f"{shown}:{put(value[name])}" for name, shown, put in known if value[name] is not None]
        return f"{{{','.join(parts)}}}"

    return write


def _writer(kind: pa.DataType) -> Writer:
    if types.is_struct(kind):
        return _object([(field.name, field.type) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        item = _writer(kind.value_type)
        return lambda value: f"[{','.join('null' if one is None else item(one) for one in value)}]"
    if types.is_map(kind):
        of_item = _writer(kind.item_type)
        return lambda value: (
            "{" + ",".join(f"{_text(str(k))}:{'null' if one is None else of_item(one)}" for k, one in value) + "}"
        )
    if types.is_string(kind) or types.is_large_string(kind):
        return _text
    if types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if types.is_integer(kind):
        return str
    if types.is_floating(kind):
        shown: Writer = repr if types.is_float64(kind) else lambda value: str(np.float32(value))
        return lambda value: shown(value) if math.isfinite(value) else _text(_ENDLESS[str(value)])
    return _other(kind)


_ENDLESS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _other(kind: pa.DataType) -> Writer:
    if types.is_decimal(kind):
        return lambda value: format(value, "f")
    if types.is_date(kind):
        return lambda value: f'"{value.isoformat()}"'
    if types.is_timestamp(kind):
        if kind.tz is None:
            return lambda value: f'"{value.isoformat()}"'
        return lambda value: f'"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"'
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    if types.is_null(kind):
        return lambda value: "null"
    raise InputError(f"A column of the type {kind} has no form in JSON.", remedy="Cast it in the query.")


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
