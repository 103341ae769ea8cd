"""Payloads of JSON as columns, on a real Spark: what from_json gives, in batch, in streams and in SQL."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

DDL = (
    "id BIGINT, small TINYINT, price DOUBLE, ratio FLOAT, paid BOOLEAN, name STRING, at TIMESTAMP, day DATE, "
    "sum DECIMAL(10,2), tags ARRAY<STRING>, more STRUCT<x: INT, at: TIMESTAMP>, counts MAP<STRING, INT>"
)
PAYLOADS = [
    '{"id": 1, "small": 7, "price": 1.5, "ratio": 0.1, "paid": true, "name": "é", "at": "2026-01-31T12:00:00.123456Z", '
    '"day": "2026-01-31", "sum": 12.345, "tags": ["a", null], "more": {"x": 1, "at": "2026-01-31T12:00:00+01:00", '
    '"y": 2}, "counts": {"a": 1, "b": null}, "unknown": [1, {"x": 2}]}',
    "{}",
    '{"id": null, "ID": 5, "name": 5, "price": 2, "sum": "3.1", "at": 1769860800, "tags": [], "more": {}, '
    '"counts": {}}',
    '{"name": {"a": [1, true]}, "price": "NaN", "id": 9223372036854775807}',
]


@pytest.fixture(scope="module")
def stream(server):
    """A stream of good payloads, and of one that is not JSON and one with wrong types."""
    from tests.spark.conftest import Streams

    made = Streams(server.url)
    name = made.make("payloads")
    bad = ["not JSON", '{"id": "7", "price": 1.5, "small": 300, "more": {"x": "?"}, "name": "kept"}', "[1]", ""]
    made.fill(name, [("x", text.encode()) for text in (*PAYLOADS, *bad)])
    yield name
    made.api(f"STREAM.DELETE.{name}")


def by_spark(read: Any, stream: str, fields: str) -> Any:
    text = F.col("data").cast("string")
    options = {"timeZone": "UTC"}
    return (
        read(stream).select("sequence", F.from_json(text, fields, options).alias("found")).select("sequence", "found.*")
    )


def test_the_columns_are_those_of_from_json(read, stream):
    """Good payloads give what Spark's own parser gives; so do the good fields of a payload with bad ones."""
    for fields in (DDL, DDL.rpartition(",")[0].rpartition(", counts")[0]):  # with a map, and without: two ways to parse
        frame = read(stream, format="json", jsonSchema=fields)
        names = ["sequence", *(field.name for field in frame.schema.fields[6:-1])]
        ours = {row.sequence: row.asDict(recursive=True) for row in frame.select(*names).collect()}
        theirs = {row.sequence: row.asDict(recursive=True) for row in by_spark(read, stream, fields).collect()}
        for sequence in (1, 2, 3, 4, 6):
            assert str(ours[sequence]) == str(theirs[sequence])
    first = read(stream, format="json", jsonSchema=DDL).where("sequence = 1").collect()[0]
    assert (first.id, first.paid, first["sum"], first.day) == (1, True, Decimal("12.35"), date(2026, 1, 31))
    assert first.more.at.astimezone(UTC) == datetime(2026, 1, 31, 11, tzinfo=UTC)
    assert (first.subject, first.data, first._error) == ("payloads.x", PAYLOADS[0].encode(), None)


def test_a_bad_payload_is_a_row_with_its_reason(read, stream):
    """What is not as the columns say has a reason in _error; good rows have none."""
    frame = read(stream, format="json", jsonSchema="id BIGINT, small TINYINT, price DOUBLE, more STRUCT<x: INT>")
    found = {row.sequence: (row.id, row.price, row._error) for row in frame.collect()}
    assert [sequence for sequence, (_, _, error) in found.items() if error] == [5, 6, 7, 8]
    assert found[5] == (None, None, "the payload is not JSON")
    assert found[6] == (None, 1.5, "id is a string, not bigint; and 2 more")
    assert found[7][2] == "the payload is an array, not an object"
    assert found[8][2] == "the payload is empty"


def test_a_bad_payload_may_stop_the_query(read, spark, server, stream):
    """With onBadJson=fail, or a schema without _error, the first bad payload ends the query, and is named."""
    for options in ({"onBadJson": "fail", "jsonSchema": "id BIGINT"}, {}):
        reader = spark.read.format("nats").option("url", server.url).option("stream", stream).option("format", "json")
        frame = (reader.options(**options) if options else reader.schema("sequence BIGINT, id BIGINT")).load()
        assert "_error" not in frame.columns
        with pytest.raises(Exception, match=f"Message 5 of stream {stream} cannot be read: the payload is not JSON"):
            frame.collect()


def test_a_schema_of_the_users_own(spark, read, server, stream, tmp_path):
    """.schema() names the columns, ours among them; a file does, as DDL or as Spark's JSON; a struct holds clashes."""
    reader = spark.read.format("nats").option("url", server.url).option("stream", stream).option("format", "json")
    frame = reader.schema("id BIGINT, sequence BIGINT, _error STRING").load()
    assert [tuple(row) for row in frame.where("_error IS NULL AND id = 1").collect()] == [(1, 1, None)]
    bare = spark.read.format("nats").option("url", server.url).option("stream", stream).option("format", "json")
    assert bare.schema("sequence BIGINT").load().count() == 8
    ddl, as_json = tmp_path / "orders.ddl", tmp_path / "orders.json"
    ddl.write_text("id BIGINT,\n  price DOUBLE\n")
    as_json.write_text(spark.createDataFrame([], "id BIGINT, price DOUBLE").schema.json())
    for file in (ddl, as_json):
        assert read(stream, format="json", jsonSchemaFile=str(file)).columns[6:] == ["id", "price", "_error"]
    with pytest.raises(Exception, match="jsonColumn"):
        read(stream, format="json", jsonSchema="id BIGINT, time STRING")
    inside = read(stream, format="json", jsonSchema="id BIGINT, time STRING", jsonColumn="order")
    assert [row.id for row in inside.where("sequence = 1").select("order.id").collect()] == [1]


def test_a_stream_of_json(spark, server, stream, tmp_path):
    """A streaming query has the same columns."""
    reader = spark.readStream.format("nats").option("url", server.url).option("stream", stream)
    frame = reader.option("format", "json").option("jsonSchema", "id BIGINT").load()
    write = frame.where("_error IS NULL").select("sequence", "id").writeStream.format("memory").queryName("json_rows")
    query = write.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(row.sequence for row in spark.table("json_rows").collect()) == [1, 2, 3, 4]


def test_a_table_of_json_goes_both_ways(spark, streams, server, unique, tmp_path):
    """INSERT makes payloads of the columns, and SELECT gives the columns back."""
    name, context = streams.make(unique("JSON")), tmp_path / "here.json"
    context.write_text(json.dumps({"url": server.url}))
    spark.sql(
        f"CREATE TABLE {name} USING nats OPTIONS (stream '{name}', context '{context}', prepare 'true', format 'json', "
        f"subject '{name}.{{region}}', jsonSchema '{DDL}, region STRING')"
    )
    try:
        spark.sql(
            f"INSERT INTO {name} (id, region, price, sum, at, day, tags, more, counts) VALUES (1, 'eu', 1.5, 12.30, "
            "timestamp'2026-01-31 12:00:00.5', date'2026-01-31', array('a', NULL), named_struct('x', 1, 'at', NULL), "
            "map('k', 1)), (2, 'us', double('NaN'), NULL, NULL, NULL, NULL, NULL, NULL)"
        )
        found = {row.id: row for row in spark.table(name).collect()}
        assert bytes(found[2].data) == b'{"id":2,"price":"NaN","region":"us"}'
        assert json.loads(found[1].data) == {
            "id": 1,
            "price": 1.5,
            "at": "2026-01-31T12:00:00.500000Z",
            "day": "2026-01-31",
            "sum": 12.3,
            "tags": ["a", None],
            "more": {"x": 1},
            "counts": {"k": 1},
            "region": "eu",
        }
        row = found[1]
        assert (row.subject, row["sum"], row.more.x, row.counts, row._error) == (
            f"{name}.eu", Decimal("12.30"), 1, {"k": 1}, None,
        )  # fmt: skip
        with pytest.raises(Exception, match="data is given"):
            spark.sql(f"INSERT INTO {name} SELECT * FROM {name} LIMIT 1")
    finally:
        spark.sql(f"DROP TABLE {name}")


def test_text(spark, read, streams, unique):
    """With format=text the payload is a string; bytes that are none stop the query, or are escaped."""
    name = streams.make(unique("TEXT"))
    streams.fill(name, [("x", "né".encode())])
    assert [row.data for row in read(name, format="text").collect()] == ["né"]
    streams.fill(name, [("x", b"a\xff")])
    with pytest.raises(Exception, match=f"Message 2 of stream {name}"):
        read(name, format="text").collect()
    assert [row.data for row in read(name, format="text", invalidText="escape").collect()] == ["né", "a\\xff"]
