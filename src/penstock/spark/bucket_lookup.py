"""Values of a bucket for the keys of rows, asked for while the rows pass: a join that sees every change.

Each task asks for the distinct keys of a few thousand rows at a time, and the leader of the bucket answers: what is
stored before the rows are processed is seen. Nothing is kept between two such askings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from penstock.buckets.key_wire import PUT, check_key, operation_of, stream_of_bucket
from penstock.errors import InputError
from penstock.options import ConnectionOptions
from penstock.spark.bucket_entries import bucket_prefix
from penstock.spark.connections import TaskConnection, borrow
from penstock.spark.options import CONNECTION, Option, duration, refuse_unknown
from penstock.spark.provider import connection_options
from penstock.wire.jetstream.direct import Found, nanoseconds, read_headers

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["lookup_column"]

FOUND = StructType(
    [StructField("value", BinaryType()), StructField("revision", LongType()), StructField("time", TimestampType())]
)
_PATIENCE = Option("patience", duration, "")


def lookup_column(key: Column, bucket: str, options: Mapping[str, str]) -> Column:
    """Give the column of what a bucket holds under the keys of another column; null if it holds nothing."""
    stream = stream_of_bucket(bucket)
    refuse_unknown(options, (*CONNECTION, _PATIENCE))
    patience = duration("patience", options.get("patience", "1m"))
    given = {name: value for name, value in options.items() if name != "patience"}
    connection = connection_options(given, "penstock-spark-lookup")
    # A lambda has no annotations, from which pyspark would guess another kind of function.
    by_columns = lambda keys: _look_up(keys, bucket, stream, connection, patience)  # noqa: E731  # see above
    by_columns.__name__ = "lookup"  # in plans
    made: Any = arrow_udf(by_columns, FOUND)  # type: ignore[call-overload]  # takes a type
    function: Callable[[Column], Column] = made.asNondeterministic()  # Spark must not ask twice, nor remember
    return function(key)


def _look_up(keys: Any, bucket: str, stream: str, connection: ConnectionOptions, patience: float) -> Any:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    wanted = [key for key in keys.unique().to_pylist() if key is not None and _is_key(key)]
    found: dict[str, dict[str, Any]] = {}
    if wanted:
        with borrow(connection, patience) as bulk:
            bulk.patience = patience
            found = _values(bulk, bucket, stream, wanted)
    return pa.array([found.get(key) for key in keys.to_pylist()], to_arrow_type(FOUND, timezone="UTC"))


def _values(bulk: TaskConnection, bucket: str, stream: str, keys: list[str]) -> dict[str, dict[str, Any]]:
    prefix = bucket_prefix(bucket, bulk.stream_info(stream)["config"])
    asked = bulk.lasts(stream, [f"{prefix}{key}" for key in keys])
    return {key: value for key, item in zip(keys, asked, strict=True) if item and (value := _value(item))}


def _value(found: Found) -> dict[str, Any] | None:
    if operation_of(read_headers(found.header)) != PUT:
        return None
    time = (nanoseconds(found.time) or 0) // 1000
    return {"value": found.payload, "revision": found.sequence, "time": time}


def _is_key(key: str) -> bool:
    try:
        return bool(check_key(key))
    except InputError:
        return False  # nothing can be stored under it
