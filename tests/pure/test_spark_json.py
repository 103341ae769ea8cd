"""JSON payloads as columns and back: two ways to parse that agree, DDL, what is learnt of samples, what is written."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructType

from penstock.errors import InputError, OptionError
from penstock.spark import json_payloads
from penstock.spark.formats import check_columns, columns_of
from penstock.spark.json_ddl import parse_ddl
from penstock.spark.json_learn import LearntType, ddl
from penstock.spark.json_payloads import parse
from penstock.spark.json_rows import encode_rows
from penstock.spark.source_options import SourceOptions

TIME = pa.timestamp("us", "UTC")
KINDS = {
    "i": pa.int64(),
    "b": pa.int8(),
    "f": pa.float64(),
    "g": pa.float32(),
    "s": pa.string(),
    "t": TIME,
    "d": pa.date32(),
    "c": pa.decimal128(10, 2),
    "o": pa.bool_(),
    "l": pa.list_(pa.int64()),
    "z": pa.struct([("t", TIME), ("d", pa.date32()), ("l", pa.list_(pa.struct([("x", pa.float32())])))]),
}
SCHEMA = pa.schema(list(KINDS.items()))
VALUES = [
    *("null", "1", "-1", "0", "300", "1.0", "1.5", "1e2", "1.005", "99999999999", "9223372036854775808", "1e999"),
    *("NaN", "Infinity", "true", "false", '"x"', '""', '"1"', '"1.25"', '"NaN"', "1E+3", "0.1", "16777217"),
    *('"2020-01-01"', '"2020-01-01T10:11:12Z"', '"2020-01-01T10:11:12.123456789+02:00"', '"2020-01-01T10"'),
    *('"2020-13-01"', '"9999-12-31T00:00:00Z"', '"0000-01-01"', '"1969-12-31T23:59:59.9999999Z"', '"20200101"'),
    *('"+2020-01-01"', '"2020-01-01T10:11:12-23:59"', "12345678.123", "123456789.126", '"\\u00e9"', '"\\ud800"'),
    *('"\\ud83d\\ude00"', "[]", "[1,null]", '["a"]', "{}", '{"t":"2020-01-01T00:00:00Z"}', '{"t":5}'),
    '{"d":"2020-01-01","l":[{"x":0.1},null]}',
]
names = st.sampled_from([*KINDS, "zz", "I", ""])
pairs = st.lists(st.tuples(names, st.sampled_from(VALUES)), max_size=4, unique_by=lambda pair: pair[0])
payloads = pairs.map(lambda found: "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in found) + "}")
pieces = st.sampled_from(["{", "}", '"', ",", "\n", "[", "", "\\", "}{", "\x0b"])
broken = st.tuples(payloads, st.integers(0, 40), pieces)
texts = st.one_of(payloads, broken.map(lambda part: part[0][: part[1]] + part[2] + part[0][part[1] :]))


def binary(*payloads: str | bytes) -> pa.Array:
    return pa.array([item.encode() if isinstance(item, str) else item for item in payloads], pa.binary())


def rows_of(parsed: Any) -> list[Any]:
    columns = [column.to_pylist() for column in parsed.columns]
    return [*map(repr, zip(*columns, parsed.errors.to_pylist(), strict=True))]


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, min_size=1, max_size=40))
def test_a_payload_gives_the_same_row_in_any_company(given_texts: list[str]):
    """However payloads are parsed, many at once, in parts or one by one, each gives the row that it gives alone."""
    together = parse(binary(*given_texts), SCHEMA)
    assert len(together.errors) == len(given_texts)
    one_by_one = json_payloads._one_by_one(binary(*given_texts), SCHEMA)
    assert rows_of(together) == rows_of(one_by_one)


def test_rows_cannot_slip():
    """Payloads that hold two objects, none, or the halves of one do not move the rows behind them."""
    odd = ['{"i": 1}{"i": 2}', "", '{"s": "', '"}', '{"l": [', "]}", '{"i": 3},', '{"i": 4}\n{"i": 5}', "  {} "]
    given_texts = [*odd, *(f'{{"i": {number}}}' for number in range(100))]
    parsed = parse(binary(*given_texts, b'{"s": "\xff"}'), pa.schema([("i", pa.int64()), ("s", pa.string())]))
    assert parsed.columns[0].to_pylist() == [*[None] * 9, *range(100), None]
    errors = parsed.errors.to_pylist()
    assert [number for number, error in enumerate(errors) if error is None] == list(range(8, 109))
    assert errors[-1] == "the payload is not UTF-8"


def test_deep_payloads_are_no_danger():
    """A payload that is nested without end is a row with a reason, and the others are theirs."""
    deep, deeper = ('{"x": ' + "[" * depth + "]" * depth + ', "s": "y"}' for depth in (400, 100_000))
    for schema in (pa.schema([("s", pa.string())]), pa.schema([("m", pa.map_(pa.string(), pa.int64()))])):
        alone = [rows_of(parse(binary(item), schema))[0] for item in (deep, deeper, '{"x": ' + "[" * 100_000)]
        assert rows_of(parse(binary(deep, deeper, '{"x": ' + "[" * 100_000), schema)) == alone
        assert ["not JSON" in row for row in alone] == [False, True, True]


def test_what_is_wrong_is_said():
    """The reason names the field and what was found, and never the value."""
    kinds = {**KINDS, "m": pa.map_(pa.string(), pa.int32())}
    cases = {
        '{"i": "secret"}': "i is a string, not bigint",
        '{"i": true}': "i is true or false, not bigint",
        '{"b": 300}': "b is too large for tinyint",
        '{"f": [1]}': "f is an array, not double",
        '{"t": "soon"}': "t is a string, not timestamp",
        '{"d": 5}': "d is a whole number, not date",
        '{"c": 123456789012}': "c is too large for decimal(10,2)",
        '{"c": "x"}': "c is a string, not decimal(10,2)",
        '{"l": [1, "x", "y"]}': "l[1] is a string, not bigint; and 1 more",
        '{"z": {"l": [{"x": "y"}]}}': "z.l[0].x is a string, not float",
        '{"m": {"k": 1.5}}': "m['k'] is a number, not int",
        '{"s": "\\ud800"}': "s holds half a character",
        "5": "the payload is a whole number, not an object",
        "null": "the payload is null, not an object",
    }
    parsed = parse(binary(*cases), pa.schema(list(kinds.items())))
    assert parsed.errors.to_pylist() == list(cases.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id BIGINT", [("id", LongType())]),
        ("id: long, `a b` string COMMENT 'it''s'", None),
        ("`a``b` STRING", [("a`b", StringType())]),
        ("sum DECIMAL(10, 2), n dec", [("sum", DecimalType(10, 2)), ("n", DecimalType(10, 0))]),
        ("l ARRAY<MAP<STRING, STRUCT<a: BIGINT, b STRING>>>", [("l", ArrayType)]),
        ("v VARCHAR(10), m map<string,string>", [("v", StringType()), ("m", MapType(StringType(), StringType()))]),
    ],
)
def test_ddl_is_read_as_spark_reads_it(text: str, expected: Any):
    """Names and types as Spark's DDL has them."""
    if expected is None:
        with pytest.raises(OptionError):
            parse_ddl(text)
        return
    for field, (name, kind) in zip(parse_ddl(text), expected, strict=True):
        assert field.name == name
        assert isinstance(field.dataType, kind) if isinstance(kind, type) else field.dataType == kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no field"),
        ("id", "ends too early"),
        ("id BIGINT price DOUBLE", "cannot be read behind 'id BIGINT ', at 'price DOUBLE'"),
        ("id BIGINT, ", "ends too early"),
        ("a STRUCT<>", "cannot be read"),
        ("a ARRAY<STRING", "ends too early"),
        ("a MAP<INT, STRING>", "keys are not strings"),
        ("a DECIMAL(50, 2)", "an impossible decimal"),
        ("a VARIANT", "names the type variant"),
        ("a STRING; DROP", "cannot be read"),
        ("a " + "ARRAY<" * 60 + "INT" + ">" * 60, "nested more than"),
        ("a INT NOT NULL", "never null"),
    ],
)
def test_ddl_that_is_refused(text: str, said: str):
    """What is no DDL, or no type for JSON, is refused with its place."""
    with pytest.raises(OptionError, match=said.replace("(", r"\(")):
        parse_ddl(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs to know the columns"),
        ({"jsonSchema": "id BIGINT,"}, "ends too early"),
        ({"jsonSchema": "id"}, "ends too early"),
        ({"jsonSchema": "id INTERVAL"}, "names the type interval"),
        ({"jsonSchema": "id BIGINT NOT NULL"}, "never null"),
        ({"jsonSchema": "id BIGINT, ID STRING"}, "jsonColumn"),
        ({"jsonSchemaFile": "/nowhere/x.ddl"}, "not a file"),
        ({"jsonSchema": "id INT", "format": "raw"}, "format=json"),
        ({"jsonSchema": "x BINARY"}, "names the type binary"),
        ({"columns": "x BINARY"}, "which no JSON value becomes"),
        ({"columns": "id BIGINT, ID STRING"}, "names the column id twice"),
        ({"columns": "id BIGINT", "jsonSchema": "id BIGINT"}, "columns and jsonSchema are given together"),
        ({"columns": "id BIGINT, time STRING"}, "It is timestamp"),
        ({"columns": "id BIGINT", "format": "raw"}, "a column 'id', which the format nats does not have"),
        ({"columns": "data BINARY", "format": "text"}, "It is string"),
        ({"columns": "value STRING", "stream": None, "bucket": "B", "format": "raw"}, "It is binary"),
        ({"columns": "key STRING, data BINARY", "stream": None, "bucket": "B", "format": "text"}, "a column 'data'"),
        ({"jsonSchema": "key STRING", "stream": None, "bucket": "B"}, "jsonColumn"),
        ({"columns": "name STRING, subject STRING", "stream": None, "objects": "B", "format": "raw"}, "'subject'"),
        ({"stream": None, "objects": "B", "format": "text"}, "An object is bytes"),
    ],
)
def test_columns_that_are_refused(options: dict[str, str], said: str):
    """Columns that cannot be are refused when the frame is loaded, with a sentence."""
    given = {"stream": "S", "format": "json", **options}
    with pytest.raises(InputError, match=said):
        columns_of(SourceOptions.parse({name: value for name, value in given.items() if value is not None}))


@pytest.mark.parametrize(
    ("options", "columns", "expected"),
    [
        ({"stream": "S"}, "time TIMESTAMP, data BINARY", "time:timestamp,data:binary"),
        ({"stream": "S"}, "headers MAP<STRING, ARRAY<STRING>>", "headers:map<string,array<string>>"),
        ({"stream": "S", "format": "text"}, "data STRING", "data:string"),
        ({"stream": "S", "format": "json"}, "id BIGINT, time TIMESTAMP, _error STRING", None),
        ({"bucket": "B", "format": "json"}, "key STRING, price DOUBLE", None),
        ({"objects": "B"}, "name STRING, size BIGINT", None),
    ],
)
def test_columns_that_are_declared(options: dict[str, str], columns: str, expected: str | None):
    """The option columns gives exactly the columns that it names."""
    made = columns_of(SourceOptions.parse({**options, "columns": columns}))
    shown = ",".join(f"{field.name}:{field.dataType.simpleString()}" for field in made.fields)
    assert shown == (expected or ",".join(item.strip().replace(" ", ":", 1).lower() for item in columns.split(",")))


@pytest.mark.parametrize(
    ("ddl_text", "options", "said"),
    [
        ("id BIGINT, data STRING", {}, "It is binary"),
        ("id BIGINT", {"onBadJson": "row"}, "no column _error"),
        ("id BIGINT, _error INT", {}, "_error is int"),
        ("id BIGINT, x STRUCT<a: INT>", {"jsonColumn": "x"}, "names a column 'id'"),
        ("x BIGINT", {"jsonColumn": "x"}, "It is a struct"),
    ],
)
def test_schemas_of_the_user_that_are_refused(ddl_text: str, options: dict[str, str], said: str):
    """A schema of the user's own is checked as one from the options is."""
    with pytest.raises(InputError, match=said):
        check_columns(
            StructType(parse_ddl(ddl_text)), SourceOptions.parse({"stream": "S", "format": "json", **options})
        )


def learnt(*values: str) -> str:
    found = LearntType()
    for value in values:
        found.see({"x": json.loads(value)})
    return ddl(found).removeprefix("x ")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "2", "null"], "BIGINT"),
        (["1", "1.5"], "DOUBLE"),
        (["1", "18446744073709551615"], "DECIMAL(38,0)"),
        (["true"], "BOOLEAN"),
        (["true", "1"], "STRING"),
        (['"2026-01-31T12:00:00Z"', '"2026-01-31T12:00:00.5+01:00"'], "TIMESTAMP"),
        (['"2026-01-31"'], "DATE"),
        (['"2026-01-31"', '"2026-01-31T12:00:00Z"'], "TIMESTAMP"),
        (['"2026-01-31"', '"soon"'], "STRING"),
        (["null"], "STRING"),
        (["[]"], "ARRAY<STRING>"),
        (["[1]", "[2.5, null]"], "ARRAY<DOUBLE>"),
        (['{"a": 1}', '{"b c": "x", "a": 2}'], "STRUCT<a: BIGINT, `b c`: STRING>"),
        (["{}"], "MAP<STRING, STRING>"),
        (['{"": 5, "a": 1}'], "STRUCT<a: BIGINT>"),
        (['{"a": 1}', "5"], "STRING"),
        ([json.dumps({f"k{number}": number for number in range(300)}), '{"k": 1.5}'], "MAP<STRING, DOUBLE>"),
    ],
)
def test_what_a_sample_teaches(values: list[str], expected: str):
    """Types grow with what is seen, and can be read again."""
    assert learnt(*values) == expected
    assert parse_ddl(f"x {expected}")


def test_rows_are_written_as_they_are_read():
    """What is written is JSON, without nulls, and parsing gives the columns back."""
    columns = {
        "i": pa.array([1, None], pa.int64()),
        "g": pa.array([0.1, math.inf], pa.float32()),
        "f": pa.array([1e300, math.nan], pa.float64()),
        "s": pa.array(['é"\n', None], pa.string()),
        "t": pa.array([datetime(2026, 1, 31, 12, 0, 0, 5, UTC), None], TIME),
        "d": pa.array([date(2026, 1, 31), None], pa.date32()),
        "c": pa.array([Decimal("12345678.10"), None], pa.decimal128(10, 2)),
        "o": pa.array([False, True], pa.bool_()),
        "l": pa.array([[1, None], []], pa.list_(pa.int64())),
        "m": pa.array([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int32())),
        "z": pa.array([{"a": None, "b": "x"}, None], pa.struct([("a", pa.int64()), ("b", pa.string())])),
    }
    written = encode_rows(columns)
    assert b'"c":12345678.10' in written[0].as_py()
    assert written[1].as_py() == b'{"g":"Infinity","f":"NaN","o":true,"l":[]}'
    parsed = parse(written, pa.schema([(name, column.type) for name, column in columns.items()]))
    assert parsed.errors.to_pylist() == [None, None]
    for column, back in zip(columns.values(), parsed.columns, strict=True):
        assert repr(back.to_pylist()) == repr(column.to_pylist())
