"""Payloads in a query: decompress, parse, and set aside what cannot be parsed; and values of a bucket for its rows.

Every parser gives a column of two fields: `value`, and `error`, which is null if parsing worked. `split` makes two
frames of that, and `dead_letters` gives the bad rows the form that the sink writes::

    from penstock.spark.functions import dead_letters, parse_json, split

    parsed = orders.withColumn("order", parse_json("data", "id long, price double"))
    good, bad = split(parsed, "order")
    dead_letters(bad, "order", subject="dead.orders").writeStream.format("nats")...

JSON is parsed by Spark itself. Gzip, zstd and Protobuf are decoded in Python, by columns. For Avro, Spark has
`from_avro` in a package of its own: start it with `--packages org.apache.spark:spark-avro_2.13:4.x.y`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # as every Spark program writes it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructType

from penstock.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["dead_letters", "decompress", "header", "lookup", "parse_json", "parse_protobuf", "split", "trace_context"]

Codec = Literal["gzip", "zstd", "auto"]
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_CORRUPT = "_penstock_corrupt"
_TRACE = ("traceparent", "tracestate", "baggage")  # headers of the W3C, which OpenTelemetry writes


def _column(given: Column | str) -> Column:
    return F.col(given) if isinstance(given, str) else given


def header(name: str, column: Column | str = "headers") -> Column:
    """Give the first value of a header, null if there is none."""
    return F.try_element_at(F.try_element_at(_column(column), F.lit(name)), F.lit(1))


def trace_context(column: Column | str = "headers") -> Column:
    """Keep of a row's headers those that say which trace its message belongs to, as OpenTelemetry writes them.

    The sink passes a row's headers on, whatever they are. A row that is made of another one, with headers of its own,
    stays in its trace with this column as `headers`. Names are compared without regard to case, and stay as they are.
    """
    return F.map_filter(_column(column), lambda name, _: F.lower(name).isin(*_TRACE))


def lookup(key: Column | str, bucket: str, **options: str) -> Column:
    """Look up keys in a key-value bucket while rows pass: `value`, `revision` and `time`, or null.

    The options are those of the connection, and `patience`, as the source has them. A row gets what the bucket holds
    when the row is processed, also in a streaming query; what a replayed micro-batch gets may be newer.
    """
    from penstock.spark.bucket_lookup import lookup_column

    return lookup_column(_column(key), bucket, options)


def decompress(column: Column | str, codec: Codec = "auto", limit: int = 64 * 2**20) -> Column:
    """Decompress gzip or zstd payloads; `auto` looks at each payload and leaves the others as they are.

    A payload that is broken, or larger than `limit` bytes once decompressed, becomes null.
    """
    if codec not in ("gzip", "zstd", "auto"):
        raise InputError(f"There is no codec {codec!r}.", remedy="Known: gzip, zstd, auto.")

    return _by_value(_column(column), "binary", lambda payload: unpack_one(payload, codec, limit))


def _by_value(column: Column, kind: Literal["binary", "string"], convert: Callable[[bytes], Any]) -> Column:
    """Convert every value of a column in Python, null for null; the columns come and go as Arrow."""

    def convert_all(values: Any) -> Any:
        import pyarrow as pa

        given = (item.as_py() for item in values)
        return pa.array([None if item is None else convert(item) for item in given], kind)

    # A lambda has no annotations, from which pyspark would guess another kind of function.
    by_columns = lambda values: convert_all(values)  # noqa: E731, PLW0108  # see above
    function: Callable[[Column], Column] = arrow_udf(by_columns, kind)  # type: ignore[call-overload]  # takes text
    return function(column)


def unpack_one(payload: bytes, codec: str, limit: int) -> bytes | None:
    """Decompress one payload; None if it is broken or too large."""
    if codec == "auto":
        codec = next((name for magic, name in MAGIC.items() if payload.startswith(magic)), "")
        if not codec:
            return payload
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.py_buffer(payload), codec) as stream:
            found: bytes = stream.read(limit + 1)
    except (OSError, pa.ArrowException):
        return None
    return found if len(found) <= limit else None


def parse_json(column: Column | str, schema: StructType | str) -> Column:
    """Parse JSON text in a binary or string column: `value` as the schema says, or `error`."""
    source = _column(column)
    text = F.try_validate_utf8(source.cast("string"))
    fields = _fields(schema)
    wider = StructType([*fields.fields]).add(_CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = F.from_json(text, wider, options)
    value = F.struct(*(parsed[field.name].alias(field.name) for field in fields.fields))
    error = (
        F.when(source.isNull(), F.lit("there is no payload"))
        .when(text.isNull(), F.lit("the payload is not UTF-8"))
        .when(parsed.isNull() | parsed[_CORRUPT].isNotNull(), F.lit("the payload is not JSON of this schema"))
    )
    return _outcome(value, error)


def parse_protobuf(column: Column | str, message: str, schema: StructType | str) -> Column:
    """Parse Protobuf payloads: `message` names a generated class as `package.module_pb2.Message`.

    Fields have their names as the `.proto` file has them; the schema says which of them are wanted, and as what.
    """
    module, _, name = message.rpartition(".")
    if not module:
        raise InputError(f"{message!r} names no class.", remedy="Write it as package.module_pb2.Message.")

    def convert(payload: bytes) -> str | None:
        from google.protobuf.json_format import MessageToJson
        from google.protobuf.message import DecodeError

        kind = getattr(importlib.import_module(module), name)
        try:
            return str(MessageToJson(kind.FromString(payload), preserving_proto_field_name=True))
        except (DecodeError, ValueError):
            return None

    text = _by_value(_column(column), "string", convert)
    value = F.from_json(text, _fields(schema))
    return _outcome(value, F.when(text.isNull(), F.lit(f"the payload is no {name}")))


def _fields(schema: StructType | str) -> StructType:
    found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    if not isinstance(found, StructType):
        raise InputError(f"The schema {schema!r} names no fields.", remedy='Write it as "id long, price double".')
    return found


def _outcome(value: Column, error: Column) -> Column:
    return F.struct(F.when(error.isNull(), value).alias("value"), error.alias("error"))


def split(frame: DataFrame, column: str) -> tuple[DataFrame, DataFrame]:
    """Split a frame by a parsed column: rows that parsed, the value in place of the pair, and rows that did not."""
    error = F.col(column)["error"]
    return frame.where(error.isNull()).withColumn(column, F.col(column)["value"]), frame.where(error.isNotNull())


def dead_letters(frame: DataFrame, column: str, subject: str) -> DataFrame:
    """Give bad rows the columns that the sink writes: their payload and headers, and why and where from.

    The reason is in a parsed column, or is the column `_error` of a read with the format json.
    The headers `Penstock-Error`, `Penstock-Stream`, `Penstock-Sequence` and `Penstock-Subject` are added.
    """
    facts = {
        "Penstock-Error": F.col(column) if column == "_error" else F.col(column)["error"],
        "Penstock-Stream": F.col("stream"),
        "Penstock-Sequence": F.col("sequence").cast("string"),
        "Penstock-Subject": F.col("subject"),
    }
    reasons = F.create_map(*(part for name, value in facts.items() for part in (F.lit(name), F.array(value))))
    kept = reasons
    if "headers" in frame.columns:
        given = F.map_filter("headers", lambda name, _: ~name.startswith("Penstock-"))
        kept = F.map_concat(F.coalesce(given, F.create_map().cast("map<string,array<string>>")), reasons)
    return frame.select(F.lit(subject).alias("subject"), "data", kept.alias("headers"))
