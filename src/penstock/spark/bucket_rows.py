"""Rows of a DataFrame as changes of a key-value bucket: puts, deletes and purges, each checked before it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.buckets.key_wire import DELETE, KV_OPERATION, PURGE, PUT, check_key, key_subject
from penstock.errors import InputError
from penstock.spark.messages import (
    ERROR,
    Messages,
    Shape,
    Wrong,
    as_kind,
    check_fields,
    column_texts,
    note,
    payload_columns,
)
from penstock.spark.options import refuse
from penstock.spark.sink_options import SinkOptions, read_ttl
from penstock.wire.arrow import HEADERS
from penstock.wire.jetstream.names import EXPECTED_LAST_SUBJECT_SEQUENCE, ROLLUP, TTL

__all__ = ["KeyShape", "check_key_columns", "expected_revision"]

LONGEST_KEY = 2048  # characters; a line of the protocol has 4,096
OPERATIONS = (PUT, DELETE, PURGE)
SOURCE_COLUMNS = ("revision", "time", "bucket")  # what reading a bucket gives beside; the bucket gives them anew
_NULLS = {"delete": DELETE, "purge": PURGE}


def check_key_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Refuse a DataFrame that cannot be written to a bucket, by the names and Spark's types of its columns."""
    examples = {"key": "col('symbol').alias('key')", "value": "to_json(struct('*')).alias('value')"}
    if options.format == "json":
        check_fields(columns, _fields(columns, options), options)
        del examples["value"]
    for name, example in examples.items():
        if name not in columns:
            raise InputError(
                f"The DataFrame has no column {name}, only {', '.join(columns)}.",
                remedy=f"Select it, for instance {example}.",
            )
    kinds = {"key": ("string",), "value": ("binary", "string"), "operation": ("string",)}
    if options.revision_column is not None:
        kinds[options.revision_column] = ("bigint", "int")
    for name, allowed in kinds.items():
        if name in columns and columns[name] not in allowed:
            raise InputError(
                f"Column {name} has the type {columns[name]}.", remedy=f"Cast it to {' or '.join(allowed)}."
            )
    named = {"revisionColumn": options.revision_column, "ttlColumn": options.ttl_column}
    for option, column in named.items():
        if column is not None and column not in columns:
            refuse(
                option,
                column,
                f"The columns are {', '.join(columns)}.",
                f"names {column!r}, and there is no such column.",
            )
    used = {*kinds, *SOURCE_COLUMNS, *named.values()}
    if options.format == "json":
        used.update(_fields(columns, options), (ERROR,))
    if lost := [name for name in columns if name not in used]:
        raise InputError(
            f"Nothing of column {lost[0]} would be written.",
            remedy="Drop it, put it into value, or name it in revisionColumn or ttlColumn.",
        )


def _fields(columns: Iterable[str], options: SinkOptions) -> list[str]:
    """Give the columns that become fields of a value of JSON: those that say nothing of its key."""
    own = ("key", "value", "operation", options.revision_column or "", options.ttl_column or "", *SOURCE_COLUMNS)
    return payload_columns(columns, options, own)


class KeyShape(Shape):
    """Turns Arrow batches of Spark into messages of a bucket."""

    payload: ClassVar[str] = "value"
    _operations: list[str | None] | None

    def messages(self, batch: pa.RecordBatch) -> tuple[Messages, Messages | None]:
        """Give the messages of a batch, and those that go to the dead letters; RowError if that is not wanted."""
        self._operations = None
        if "operation" in batch.schema.names:
            given = as_kind(batch.column("operation"), pa.string())
            if given.null_count < len(given):
                self._operations = given.to_pylist()
        return super().messages(batch)

    def _data(self, batch: pa.RecordBatch, wrong: Wrong) -> Any:
        data = self._payloads(batch, wrong)
        if self._operations is not None:
            for row, operation in enumerate(self._operations):
                if operation is not None and operation not in OPERATIONS:
                    wrong[row] = "operation", f"is {operation!r}, and neither PUT, DEL nor PURGE"
        if not data.null_count and self._operations is None:
            return data
        by_null = _NULLS.get(self.options.on_null_value)
        operations = self._operations or [None] * len(data)
        for row, is_null in enumerate(data.is_null().to_pylist()):
            if is_null and operations[row] is None:
                operations[row] = by_null
            if is_null and operations[row] in (None, PUT):
                remedy = ", and there is neither an operation nor onNullValue that says what that means"
                column = self.options.json_column or "value"
                wrong.setdefault(row, (column, f"is null{remedy if operations[row] is None else ' in a PUT'}"))
        self._operations = operations
        empty = pa.array([item in (DELETE, PURGE) for item in operations])
        return pc.if_else(empty, pa.scalar(b"", pa.binary()), data)  # a delete carries no value

    def _fields(self, names: Iterable[str]) -> list[str]:
        return _fields(names, self.options)

    def _subjects(self, batch: pa.RecordBatch, wrong: Wrong) -> Any:
        keys = as_kind(batch.column("key"), pa.string())
        note(wrong, "key", keys, self._judge)
        return pc.binary_join_element_wise(pa.scalar(key_subject(self.options.bucket or "", "x")[:-1]), keys, "")

    def _judge(self, key: str | None) -> str:
        if key is None:
            return "is null"
        if len(key) > LONGEST_KEY:
            return f"has {len(key)} characters, and a key has {LONGEST_KEY} at most"
        try:
            check_key(key)
        except InputError:
            return f"is {key!r}, which cannot be a key: letters, digits, - / _ = and dots between them"
        return ""

    def _headers(self, batch: pa.RecordBatch, wrong: Wrong) -> tuple[Any, Any]:
        options = self.options
        plain = self._operations is None and options.ttl is None
        if plain and options.ttl_column is None and options.revision_column is None:
            return None, 0
        operations = self._operations or [None] * batch.num_rows
        ttls, revisions = column_texts(batch, options.ttl_column), column_texts(batch, options.revision_column)
        rows: list[list[tuple[str, list[str]]]] = []
        for row, (operation, ttl, revision) in enumerate(zip(operations, ttls, revisions, strict=True)):
            found = [] if operation in (None, PUT) else [(KV_OPERATION, [str(operation)])]
            if operation == PURGE:
                found.append((ROLLUP, ["sub"]))
            try:
                lives = options.ttl if ttl is None else read_ttl(options.ttl_column or "", ttl)
            except InputError as error:
                wrong.setdefault(row, (options.ttl_column or "ttl", error.what))
                lives = None
            if lives is not None:
                found.append((TTL, [lives]))
            if revision is not None:
                if int(revision) < 0:
                    wrong.setdefault(row, (options.revision_column or "", f"is {revision}, which is not a revision"))
                found.append((EXPECTED_LAST_SUBJECT_SEQUENCE, [revision]))
            rows.append(found)
        sizes = [sum(len(name) + len(value) + 4 for name, (value,) in found) for found in rows]
        return (pa.array(rows, HEADERS) if any(rows) else None), np.array(sizes, dtype=np.int64)


def expected_revision(entries: list[tuple[str, list[str]]] | None) -> int | None:
    """Give the revision that a row's headers expect; None if they expect none."""
    for name, values in entries or ():
        if name == EXPECTED_LAST_SUBJECT_SEQUENCE:
            return int(values[0])
    return None
