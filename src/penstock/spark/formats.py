"""What a read makes of payloads, by its option `format`: bytes as they are, text, or the fields of JSON as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, StringType, StructField, StructType

from penstock.buckets.key_wire import stream_of_bucket
from penstock.errors import InputError, MessageError
from penstock.spark.schema import arrow_schema, check_schema, conform, known_columns, source_schema
from penstock.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ERROR", "check_columns", "columns_of", "needs_payloads", "raw_columns", "shaping"]

ERROR = "_error"
"""The column of JSON that says why a payload is not what the others say."""


def columns_of(options: SourceOptions) -> StructType:
    """Give the columns of a read if the user gives no schema."""
    if options.columns is not None:
        from penstock.spark.json_ddl import parse_ddl

        declared = StructType(parse_ddl(options.columns, "columns"))
        check_columns(declared, options)
        return declared
    schema = source_schema(options)
    if options.format == "text":
        schema[_payload(options)].dataType = StringType()
    if options.format != "json":
        return schema
    from penstock.spark.json_ddl import given_fields

    if (fields := given_fields(options)) is None:
        raise InputError(
            "The format json needs to know the columns.",
            remedy='Give them as .option("jsonSchema", "id BIGINT, price DOUBLE"), in a file named by jsonSchemaFile, '
            "or with .schema() or the option columns; penstock stream schema looks at messages and prints them.",
        )
    if options.json_column is not None:
        fields = [StructField(options.json_column, StructType(fields))]
    known = {name.lower() for name in (*known_columns(options), ERROR)}
    for field in fields:
        if field.name.lower() in known:
            what = f"The payload's field {field.name} has the name of a column of the format nats, or of another field."
            remedy = "Have the fields in a column of their own: the option jsonColumn names it."
            raise InputError(what, remedy=remedy)
        known.add(field.name.lower())
    made = StructType([*schema.fields, *(StructField(field.name, field.dataType) for field in fields)])
    if options.on_bad_json != "fail":
        made = made.add(ERROR, StringType())
    check_columns(made, options)
    return made


def check_columns(schema: StructType, options: SourceOptions) -> None:
    """Refuse columns that a read cannot give; the user's own, or those of a table."""
    names, known = [field.name.lower() for field in schema.fields], known_columns(options)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"The schema names the column {twice[0]} twice.", remedy="Leave one out.")
    if options.format == "raw":
        check_schema(schema, known)
        return
    ours = [field for field in schema.fields if field.name in known or options.format == "text"]
    kinds: dict[str, DataType] = known | ({_payload(options): StringType()} if options.format == "text" else {})
    if ours or options.format == "text":
        check_schema(StructType(ours), kinds)
    if options.format == "json":
        _check_fields([field for field in schema.fields if field.name not in known], options)


def _check_fields(fields: list[StructField], options: SourceOptions) -> None:
    import pyarrow as pa

    from penstock.spark.json_values import name_of

    if options.on_bad_json == "row" and ERROR not in {field.name for field in fields}:
        what = f"The option onBadJson is row, and the schema has no column {ERROR} for the reasons."
        raise InputError(what, remedy=f"Add {ERROR} STRING, or let a bad payload stop the query: onBadJson=fail.")
    for field in fields:
        if field.name == ERROR:
            if not isinstance(field.dataType, StringType):
                raise InputError(f"The column {ERROR} is {field.dataType.simpleString()}.", remedy="It is a string.")
            continue
        if options.json_column not in (None, field.name):
            what = f"The schema names a column {field.name!r}, and the fields of payloads are in {options.json_column}."
            raise InputError(what, remedy=f"Put it into {options.json_column}, or leave the option jsonColumn out.")
        if options.json_column is not None and not isinstance(field.dataType, StructType):
            raise InputError(f"The column {field.name} is {field.dataType.simpleString()}.", remedy="It is a struct.")
        if not field.nullable:
            what = f"The schema says that {field.name} is never null, and a payload may lack it."
            raise InputError(what, remedy="Leave NOT NULL out.")
        try:
            known = name_of(arrow_schema(StructType([field])).field(0).type)
        except (TypeError, pa.ArrowException):  # pyspark has no Arrow type for it
            known = None
        if known is None:
            raise InputError(
                f"The column {field.name} is {field.dataType.simpleString()}, which no JSON value becomes here.",
                remedy="Read it as a string, and convert it in the query.",
            )


def _payload(options: SourceOptions) -> str:
    """Give the column that holds the bytes of a message."""
    return "data" if options.bucket is None else "value"


def needs_payloads(schema: StructType, options: SourceOptions) -> bool:
    """Tell whether the rows cannot be made without payloads."""
    known = known_columns(options)
    return any(field.name == _payload(options) or field.name not in known for field in schema.fields)


def raw_columns(schema: StructType, options: SourceOptions) -> pa.Schema:
    """Give the columns of a bucket that the wanted ones are made of: those that are not parsed, as they are read."""
    if options.format == "raw":
        return arrow_schema(schema)
    names = {*schema.names, "key", "revision"}  # by which an error tells whose value it was
    if needs_payloads(schema, options):
        names.add(_payload(options))
    known = known_columns(options)
    return arrow_schema(StructType([StructField(name, known[name]) for name in known if name in names]))


def shaping(options: SourceOptions, schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Give what makes the batches that Spark wants of those that the wire reads."""
    wanted = arrow_schema(schema)
    if options.format == "json":
        return lambda batch: _with_json(batch, wanted, options)
    if options.format == "text" and _payload(options) in wanted.names:
        return lambda batch: conform(_with_text(batch, options), wanted)
    return lambda batch: conform(batch, wanted)


def _with_text(batch: pa.RecordBatch, options: SourceOptions) -> pa.RecordBatch:
    import pyarrow as pa

    name = _payload(options)
    payloads, place = batch.column(name), batch.schema.get_field_index(name)
    try:
        texts = payloads.cast(pa.string())
    except pa.ArrowInvalid:
        if options.invalid_text != "escape":
            bad, what = _first_not_text(payloads), "its bytes are not UTF-8"
            raise _refused(batch, bad, what, _TEXT, options) from None
        rows = payloads.to_pylist()
        texts = pa.array([item and item.decode(errors="backslashreplace") for item in rows], pa.string())
    return batch.set_column(place, name, texts)


_TEXT = "Read it with the format raw, or with invalidText=escape, which writes such bytes as \\xff."
_JSON = f"Let bad payloads be rows with their reason in the column {ERROR}: onBadJson=row."


def _first_not_text(payloads: pa.Array) -> int:
    for row, item in enumerate(payloads.to_pylist()):
        try:
            item and item.decode()
        except UnicodeDecodeError:
            return row
    return 0


def _refused(batch: pa.RecordBatch, row: int, what: str, remedy: str, options: SourceOptions) -> MessageError:
    if options.bucket is None:
        stream, sequence = batch.column("stream")[row].as_py(), batch.column("sequence")[row].as_py()
        who = f"Message {sequence} of stream {stream}"
    else:
        stream, sequence = stream_of_bucket(options.bucket), batch.column("revision")[row].as_py()
        who = f"Revision {sequence} of key {batch.column('key')[row].as_py()} of bucket {options.bucket}"
    return MessageError(
        f"{who} cannot be read: {what}.", remedy=remedy, stream=stream, sequence=sequence, column=_payload(options)
    )


def _with_json(batch: pa.RecordBatch, wanted: pa.Schema, options: SourceOptions) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.spark.json_payloads import parse

    known = known_columns(options)
    if all(name in known for name in wanted.names):
        return conform(batch, wanted)
    ours = [field for field in wanted if field.name in known]
    theirs = [field for field in wanted if field.name not in known and field.name != ERROR]
    column = options.json_column
    fields = list(theirs[0].type) if column and theirs else theirs
    columns = dict(zip([field.name for field in ours], conform(batch, pa.schema(ours)).columns, strict=True))
    payloads = batch.column(_payload(options))
    absent = payloads.is_null() if payloads.null_count else None  # of a key that was deleted
    parsed = parse(payloads if absent is None else payloads.fill_null(b"{}"), pa.schema(fields))
    if ERROR in wanted.names:
        columns[ERROR] = parsed.errors
    elif (bad := pc.index(pc.is_valid(parsed.errors), True).as_py()) >= 0:
        raise _refused(batch, bad, parsed.errors[bad].as_py(), _JSON, options)
    if column and theirs:
        columns[column] = pa.StructArray.from_arrays(parsed.columns, fields=fields, mask=absent)
    else:
        columns.update(zip([field.name for field in fields], parsed.columns, strict=True))
    return pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)
