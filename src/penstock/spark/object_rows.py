"""Rows of a DataFrame as objects of a bucket, each checked before anything of it is sent.

A row becomes one of `Messages`: the subject is the one on which the object is described, the data are its content, and
what stands for headers is all else that the row says of it, so that the digest of the row covers everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.buckets.object_info import ObjectInfo, check_headers, check_metadata
from penstock.buckets.object_wire import check_object, description_subject, name_of
from penstock.errors import InputError, PenstockError
from penstock.json_text import load_json
from penstock.spark.messages import Shape, Wrong, as_kind, column_texts, note, note_nulls
from penstock.spark.sink_options import SinkOptions
from penstock.wire.arrow import HEADERS

__all__ = ["ObjectShape", "check_object_columns", "described"]

OF_NAME = 8192  # bytes that a name and what is known of the content may take in a description
SOURCE_COLUMNS = ("size", "digest", "time", "bucket", "nuid", "chunks", "sequence")  # what the bucket gives anew
TEXTS = "map<string,string>"
LISTS = "map<string,array<string>>"


def check_object_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Refuse a DataFrame that cannot be written as objects, by the names and Spark's types of its columns."""
    kinds: dict[str, tuple[str, ...]] = {
        "name": ("string",),
        "content": ("binary", "string"),
        "description": ("string",),
        "metadata": (TEXTS,),
        "headers": (LISTS, TEXTS),
    }
    for name in ("name", "content"):
        if name not in columns:
            raise InputError(
                f"The DataFrame has no column {name}, only {', '.join(columns)}.",
                remedy=f"Select it, for instance col('path').alias('{name}').",
            )
    for name, allowed in kinds.items():
        if name in columns and columns[name] not in allowed:
            raise InputError(
                f"Column {name} has the type {columns[name]}.", remedy=f"Cast it to {' or '.join(allowed)}."
            )
    if lost := [name for name in columns if name not in (*kinds, *SOURCE_COLUMNS)]:
        raise InputError(
            f"Nothing of column {lost[0]} would be written.", remedy="Drop it, or put it into content or metadata."
        )


class ObjectShape(Shape):
    """Turns Arrow batches of Spark into objects."""

    payload: ClassVar[str] = "content"

    def _data(self, batch: pa.RecordBatch, wrong: Wrong) -> Any:
        data = as_kind(batch.column("content"), pa.binary())
        note_nulls(wrong, "content", data)
        return data

    def _subjects(self, batch: pa.RecordBatch, wrong: Wrong) -> Any:
        names = as_kind(batch.column("name"), pa.string())
        note(wrong, "name", names, _judge_name)
        bucket = self.options.objects or ""
        named = enumerate(names.to_pylist())
        return pa.array(
            [None if row in wrong else description_subject(bucket, name) for row, name in named], pa.string()
        )

    def _headers(self, batch: pa.RecordBatch, wrong: Wrong) -> tuple[Any, Any]:
        said = column_texts(batch, "description" if "description" in batch.schema.names else None)
        metadata, headers = (
            batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
            for name in ("metadata", "headers")
        )
        rows, sizes = [], np.zeros(batch.num_rows, dtype=np.int64)
        for row, (description, facts, own) in enumerate(zip(said, metadata, headers, strict=True)):
            found = []
            try:
                if description:
                    found.append(("description", [description]))
                if facts:
                    found.append(("metadata", [_json(check_metadata(dict(facts)))]))
                if own:
                    found.append(("headers", [_json(check_headers(dict(own)))]))
            except PenstockError as error:
                wrong.setdefault(row, ("metadata or headers", f"cannot be used: {error.what}"))
            rows.append(found)
            sizes[row] = sum(len(value.encode()) for _, (value,) in found)
        return (pa.array(rows, HEADERS) if any(rows) else None), sizes

    def _check_sizes(self, data: Any, header_sizes: Any, wrong: Wrong) -> None:
        room = self.target.limit - OF_NAME  # the content goes into chunks: only the description must fit
        for row in np.flatnonzero(np.asarray(header_sizes) > room).tolist():
            what = f"have {int(header_sizes[row])} bytes together, and {self.target.stream} takes {room}"
            wrong.setdefault(row, ("description, metadata and headers", what))


def described(bucket: str, subject: str, facts: list[tuple[str, list[str]]] | None) -> ObjectInfo:
    """Give the description of a row's object, without what is known of its bytes."""
    said = {name: values[0] for name, values in facts or ()}
    name = name_of(bucket, subject)
    assert name is not None
    return ObjectInfo(
        name=name,
        bucket=bucket,
        nuid="",
        description=said.get("description", ""),
        headers=load_json(said.get("headers", "{}")),
        metadata=load_json(said.get("metadata", "{}")),
    )


def _judge_name(name: str | None) -> str:
    if not name:
        return "is null" if name is None else "is empty"
    try:
        check_object(name)
    except InputError as error:
        return f"cannot be used: {error.what}"
    return ""


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, sort_keys=True)
