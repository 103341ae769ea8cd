"""The columns of the format "nats", for Spark and for Arrow.

A read gives all of them, or those that the schema of the user names: a schema that leaves out `data` is how a query
says that it needs no payloads, because Spark tells a Python source nothing about pruned columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InputError
from penstock.spark.source_options import SourceOptions
from penstock.wire.jetstream.names import BATCH_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BUCKET_COLUMNS",
    "COLUMNS",
    "CONTENT_COLUMNS",
    "OBJECT_COLUMNS",
    "arrow_schema",
    "check_schema",
    "conform",
    "known_columns",
    "source_schema",
    "without_batch_headers",
]

COLUMNS: dict[str, DataType] = {
    "subject": StringType(),
    "data": BinaryType(),
    "headers": MapType(StringType(), ArrayType(StringType())),
    "sequence": LongType(),
    "time": TimestampType(),
    "stream": StringType(),
}
"""Every column with its type, in order; the same for reading and writing."""

BUCKET_COLUMNS: dict[str, DataType] = {
    "key": StringType(),
    "value": BinaryType(),
    "revision": LongType(),
    "time": TimestampType(),
    "operation": StringType(),
}
"""The columns of a key-value bucket."""

OBJECT_COLUMNS: dict[str, DataType] = {
    "name": StringType(),
    "size": LongType(),
    "digest": StringType(),
    "time": TimestampType(),
    "description": StringType(),
    "metadata": MapType(StringType(), StringType()),
    "headers": MapType(StringType(), ArrayType(StringType())),
    "link": StringType(),
    "deleted": BooleanType(),
    "revision": LongType(),
}
"""The columns of an object bucket, without those of its bytes."""

CONTENT_COLUMNS: dict[str, dict[str, DataType]] = {
    "none": {},
    "binary": {"content": BinaryType()},
    "chunks": {"chunk": LongType(), "offset": LongType(), "content": BinaryType()},
}
"""The columns of an object's bytes, by the option `content`."""


def known_columns(options: SourceOptions) -> dict[str, DataType]:
    """Give every column that a read may have."""
    if options.objects is not None:
        return OBJECT_COLUMNS | CONTENT_COLUMNS[options.content]
    return COLUMNS if options.bucket is None else BUCKET_COLUMNS


def source_schema(options: SourceOptions) -> StructType:
    """Give the columns of a read if the user gives no schema."""
    columns = known_columns(options)
    names = [name for name in columns if name != "headers" or options.include_headers]
    return StructType([StructField(name, columns[name]) for name in names])


def check_schema(schema: StructType, columns: Mapping[str, DataType] = COLUMNS) -> None:
    """Refuse a schema of the user that names other columns or other types than the source has."""
    if not schema.fields:
        raise InputError("The schema is empty.", remedy=f"Name some of {', '.join(columns)}, or give no schema.")
    for field in schema.fields:
        if field.name not in columns:
            raise InputError(
                f"The schema names a column {field.name!r}, which the format nats does not have.",
                remedy=f"Its columns are {', '.join(columns)}; the fields of JSON payloads are columns with the option "
                "format=json.",
            )
        if field.dataType != columns[field.name]:
            raise InputError(
                f"The schema gives {field.name} the type {field.dataType.simpleString()}.",
                remedy=f"It is {columns[field.name].simpleString()}; cast it in the query.",
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Give the Arrow schema that Spark wants for these columns, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give the columns that Spark wants of a batch that the wire read, in its order and exact types."""
    import pyarrow as pa

    columns = []
    for field in schema:
        column = batch.column(field.name)
        if field.name == "headers":
            column = without_batch_headers(column)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def without_batch_headers(column: pa.MapArray) -> pa.MapArray:
    """Leave out the headers that say in which atomic batch a message was stored: they are the transport's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(column.keys) == 0:
        return column
    theirs = pc.starts_with(column.keys, BATCH_PREFIX)
    if not pc.any(theirs).as_py():
        return column
    kept = pc.invert(theirs)
    # How many headers are kept before each place in the flat list: the new offsets of the rows.
    before = pc.cumulative_sum(pc.cast(kept, pa.int32()))
    before = pa.concat_arrays([pa.array([0], pa.int32()), before])
    offsets = before.take(column.offsets)  # the offsets of a slice still count from the whole
    keys, items = column.keys.filter(kept), column.items.filter(kept)
    return pa.MapArray.from_arrays(offsets, keys, items, type=column.type)
