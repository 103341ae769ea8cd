"""Payloads of JSON as columns: Arrow parses them by the thousand, and what it refuses is read one by one.

Arrow's parser takes a text of many objects and gives columns. It does not say which payload was bad, and its rules are
narrower than ours (`json_values`), so what it refuses is parsed again in smaller parts, and a small part is read by
the rule itself. What it accepts is what the rule gives, too; a test holds the two against each other.

Rows cannot slip: every payload must begin with a brace and end with one, and stand alone on its lines. A payload that
is left open makes the whole text wrong, because no comma follows; one with two objects makes a row too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyarrow import types

from penstock.spark.json_values import load, reader_of

__all__ = ["Parsed", "parse"]

FEW = 16
"""How many payloads are read one by one rather than parsed in smaller parts."""
PARTS = 16
"""In how many parts payloads are parsed again if there is a bad one among them."""
MOST_BYTES = 2**30
"""The longest text that is parsed at once; Arrow counts it with 31 bits."""
LONGEST_ERROR = 500
DEEPEST = 500
"""How deep a payload may be nested to be parsed among others; Python follows to about twice that."""


@dataclass(frozen=True)
class Parsed:
    """The columns of some payloads, and for each payload why it is not what the columns say; null if it is."""

    columns: list[pa.Array]
    errors: pa.Array


def parse(payloads: pa.BinaryArray, schema: pa.Schema) -> Parsed:
    """Parse payloads, each of which should be one JSON object with the fields of a schema."""
    quick = [_quick(field.type) for field in schema]
    faster = None if None in quick else pa.schema(list(zip(schema.names, quick, strict=True)))
    parts = list(_parts(payloads, schema, faster))
    if len(parts) == 1:
        return parts[0]
    columns = [
        pa.concat_arrays([part.columns[at] for part in parts]) if parts else pa.array([], field.type)
        for at, field in enumerate(schema)
    ]
    errors = pa.concat_arrays([part.errors for part in parts]) if parts else pa.array([], pa.string())
    return Parsed(columns, errors)


def _parts(payloads: pa.BinaryArray, schema: pa.Schema, faster: pa.Schema | None) -> Iterator[Parsed]:
    if len(payloads) == 0:
        return
    if faster is not None and (columns := _by_columns(payloads, schema, faster)) is not None:
        yield Parsed(columns, pa.nulls(len(payloads), pa.string()))
    elif faster is None or len(payloads) <= FEW:
        yield _one_by_one(payloads, schema)
    else:
        size = max(FEW, -(-len(payloads) // PARTS))
        for start in range(0, len(payloads), size):
            yield from _parts(payloads[start : start + size], schema, faster)


def _quick(kind: pa.DataType) -> pa.DataType | None:
    """Give the type that Arrow's parser should read for one of ours, which it is cast to; None if it has none.

    Arrow would take a number for a date, would refuse nanoseconds if microseconds are wanted, and rounds a float
    in one step, and we take two.
    """
    if types.is_map(kind):
        return None
    if types.is_struct(kind):
        inner = [(field.name, _quick(field.type)) for field in kind]
        return None if any(found is None for _, found in inner) else pa.struct(inner)
    if types.is_list(kind):
        found = _quick(kind.value_type)
        return None if found is None else pa.list_(found)
    if types.is_timestamp(kind):
        return pa.timestamp("ns", "UTC")
    if types.is_date32(kind):
        return pa.string()
    return pa.float64() if types.is_float32(kind) else kind


def _by_columns(payloads: pa.BinaryArray, schema: pa.Schema, faster: pa.Schema) -> list[pa.Array] | None:
    """Let Arrow parse payloads; None if it refuses one of them."""
    if payloads.nbytes > MOST_BYTES:
        return None
    try:
        texts = payloads.cast(pa.string())  # which looks whether it is UTF-8; the parser does not
        trimmed = pc.ascii_trim_whitespace(texts)
        if not pc.all(pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}"))).as_py():
            return None
        if _is_deep(texts):
            return None
        everything = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0].as_buffer()
        if b'"0000-' in everything.to_pybytes():
            return None  # the year 0, which Arrow takes for a date, and nobody else does
        found = arrow_json.read_json(
            pa.BufferReader(everything),
            arrow_json.ReadOptions(use_threads=False, block_size=everything.size + 1),
            arrow_json.ParseOptions(explicit_schema=faster, unexpected_field_behavior="ignore"),
        )
        if found.num_rows != len(payloads):
            return None
        return [_cast(found.column(field.name), field.type) for field in schema]
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _is_deep(texts: pa.StringArray) -> bool:
    """Tell whether a payload may be nested deeper than the rule follows; brackets in strings count, too."""
    long = pc.greater(pc.binary_length(texts), 2 * DEEPEST)  # each bracket is closed, too
    texts = texts.filter(long)
    opened = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
    for row in pc.indices_nonzero(pc.greater(opened, DEEPEST)).to_pylist():
        found = np.frombuffer(texts[row].as_buffer(), np.uint8)
        steps = np.isin(found, (91, 123)).astype(np.int64) - np.isin(found, (93, 125))
        if int(steps.cumsum().max()) > DEEPEST:
            return True
    return False


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    whole: Any = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0)
    return whole if whole.type.equals(kind) else whole.cast(kind, safe=False)


def _one_by_one(payloads: pa.BinaryArray, schema: pa.Schema) -> Parsed:
    readers = [(field.name, reader_of(field.type), list[Any]()) for field in schema]
    errors: list[str | None] = []
    for payload in payloads.to_pylist():
        found, error = load(payload)
        wrong = [error] if error else []
        for name, read, values in readers:
            try:
                values.append(read(found[name], name, wrong) if name in found else None)
            except RecursionError:
                values.append(None)
                wrong.append(f"{name} is nested too deep")
        errors.append(_told(wrong) if wrong else None)
    columns = [pa.array(values, field.type) for (_, _, values), field in zip(readers, schema, strict=True)]
    return Parsed(columns, pa.array(errors, pa.string()))


def _told(wrong: list[str]) -> str:
    more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{wrong[0][:LONGEST_ERROR]}{more}"
