"""Streams as tables of Spark SQL: created, queried, written to and dropped with SQL alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.buckets.key_stream import bucket_stream


@pytest.fixture(scope="module")
def context(server, tmp_path_factory) -> str:
    """The path of a context that leads to the server: a table holds no secret, and the address of ours has one."""
    path = tmp_path_factory.mktemp("contexts") / "tests.json"
    path.write_text(json.dumps({"url": server.url}))
    return str(path)


@pytest.fixture
def table(spark, context) -> Iterator[Callable[..., str]]:
    """Make tables; they are gone after the test."""
    made: list[str] = []

    def create(name: str, **options: Any) -> str:
        given = ", ".join(f"{key} '{value}'" for key, value in {"context": context, **options}.items())
        spark.sql(f"CREATE TABLE {name} USING nats OPTIONS ({given})")
        made.append(name)
        return name

    yield create
    for name in made:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def test_a_table_is_read_as_it_is_now(spark, streams, table, unique):
    """Each query of a table sees what the stream holds when it runs, and so does one of a view over it."""
    stream, name = streams.make(unique("SQL")), unique("orders")
    streams.fill(stream, 5)
    table(name, stream=stream)
    assert [row.col_name for row in spark.sql(f"DESCRIBE {name}").collect()] == [
        "subject", "data", "headers", "sequence", "time", "stream",
    ]  # fmt: skip
    spark.sql(f"CREATE TEMPORARY VIEW {name}_late AS SELECT CAST(data AS STRING) FROM {name} WHERE sequence > 4")
    assert rows(spark.sql(f"SELECT count(*) FROM {name}")) == [(5,)]
    assert rows(spark.table(f"{name}_late")) == [("4",)]
    streams.fill(stream, 2)
    assert rows(spark.sql(f"SELECT count(*), max(stream) FROM {name}")) == [(7, stream)]
    assert spark.table(name).count() == 7
    assert rows(spark.sql(f"SELECT sequence FROM {name} WITH (start '6')")) == [(6,), (7,)]
    assert len(rows(spark.table(f"{name}_late"))) == 3
    # two of them in one query are two reads of the same messages
    joined = spark.sql(f"SELECT count(*) FROM {name} a JOIN {name} b USING (sequence) WHERE a.sequence > 3")
    assert rows(joined) == [(4,)]
    spark.sql(f"DROP VIEW {name}_late")
    spark.sql(f"DROP TABLE {name}")
    assert streams.info(stream)["state"]["messages"] == 7


def test_what_is_inserted_is_published(spark, streams, table, unique):
    """INSERT publishes rows: columns by list, by name or by place, missing ones null; a writeId makes it count once."""
    stream, name = streams.make(unique("SQL")), unique("orders")
    table(name, stream=stream, prepare="true", format="text", subject=f"{stream}.else")
    spark.sql(f"INSERT INTO {name} (data, subject) VALUES ('one', '{stream}.a'), ('two', NULL)")
    spark.sql(f"INSERT INTO {name} BY NAME SELECT '{stream}.b' AS subject, 'three' AS data")
    spark.sql(f"INSERT INTO {name} VALUES ('{stream}.c', 'four', map('K', array('v')), NULL, NULL, NULL)")
    for _ in range(2):
        spark.sql(f"INSERT INTO {name} WITH (writeId 'load') (subject, data) VALUES ('{stream}.d', 'five')")
    spark.sql(f"SELECT '{stream}.e' AS subject, 'six' AS data").writeTo(name).append()
    found = spark.sql(f"SELECT subject, data, headers['K'] FROM {name}")
    assert {(data, subject.rpartition(".")[2], str(header)) for subject, data, header in rows(found)} == {
        ("one", "a", "None"),
        ("two", "else", "None"),
        ("three", "b", "None"),
        ("four", "c", "['v']"),
        ("five", "d", "None"),
        ("six", "e", "None"),
    }
    with pytest.raises(Exception, match="cannot be overwritten"):
        spark.sql(f"INSERT OVERWRITE {name} (subject, data) VALUES ('{stream}.a', 'x')")
    with pytest.raises(Exception, match=r"DELETE|deletes"):
        spark.sql(f"DELETE FROM {name} WHERE sequence = 1")


def test_a_table_as_a_stream(spark, streams, table, unique, tmp_path):
    """readStream.table reads a table's stream; a streaming write to one names the stream itself."""
    stream, name, folder = streams.make(unique("SQL")), unique("orders"), str(tmp_path / "checkpoint")
    copy = streams.make(unique("COPY"))
    streams.fill(stream, 5)
    table(name, stream=stream)
    table(f"{name}_copy", stream=copy)
    read = spark.readStream.table(name).selectExpr(f"'{copy}.x' AS subject", "data")
    write = read.writeStream.option("checkpointLocation", folder).trigger(availableNow=True)
    options = {key: value for key, value in json.loads(_metadata(spark, f"{name}_copy")).items() if key != "prepare"}
    query = write.options(**options, prepare="true").toTable(f"{name}_copy")
    assert query.awaitTermination(60)
    assert spark.table(f"{name}_copy").count() == 5


def _metadata(spark: Any, name: str) -> str:
    return str(spark.table(name).schema.fields[-1].metadata["penstock.options"])


def test_no_secret_gets_into_a_table(spark, server, streams, unique):
    """A secret among the OPTIONS is refused before there is a table, with the way to do it."""
    stream, name = streams.make(unique("SQL")), unique("orders")
    for option, value in {"url": server.url, "token": "s3cret", "password": "s3cret", "credentials": "/x"}.items():
        more = ", user 'u'" if option == "password" else ""
        with pytest.raises(Exception, match="context") as raised:
            spark.sql(f"CREATE TABLE {name} USING nats OPTIONS (stream '{stream}', {option} '{value}'{more})")
        assert "s3cret" not in str(raised.value)
    assert not spark.catalog.tableExists(name)


def test_what_a_table_shows(spark, streams, table, unique, context, tmp_path):
    """DESCRIBE says where the rows come from; nothing of the login is in statements, plans or files made of a table."""
    stream, name = streams.make(unique("SQL")), unique("orders")
    streams.fill(stream, 3)
    table(name, stream=stream)
    secret = json.loads(Path(context).read_text())["url"].partition("//")[2].partition("@")[0]
    spark.table(name).write.parquet(str(tmp_path / "rows"))
    told = [
        str(rows(spark.sql(f"DESCRIBE EXTENDED {name}"))),
        str(rows(spark.sql(f"SHOW CREATE TABLE {name}"))),
        str(rows(spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {name}"))),
        spark.table(name).schema.json(),
        *(file.read_bytes().decode("latin-1") for file in (tmp_path / "rows").glob("*.parquet")),
    ]
    assert len(secret) > 10
    assert not [text for text in told if secret in text]
    assert f"stream '{stream}'" in told[0]


def test_wrong_tables(spark, streams, table, unique):
    """What cannot work is refused with a sentence, at the latest by the first query."""
    stream, name = streams.make(unique("SQL")), unique("orders")
    with pytest.raises(Exception, match="Did you mean stream"):
        table(name, strem=stream)
    with pytest.raises(Exception, match="duration"):
        table(name, stream=stream, patience="soon")
    with pytest.raises(Exception, match="guarantee"):
        table(name, stream=stream, guarantee="twice")
    with pytest.raises(Exception, match="a column 'price', which the format nats does not have"):
        table(name, stream=stream, columns="time TIMESTAMP, price DOUBLE")
    spark.sql(f"CREATE TABLE {name} (subject STRING) USING nats OPTIONS (stream '{stream}')")
    with pytest.raises(Exception, match=r"without a list of columns.*columns 'time TIMESTAMP"):
        spark.table(name).count()
    spark.sql(f"DROP TABLE {name}")


def test_tables_of_declared_columns(spark, server, streams, table, unique, context):
    """A table has the columns that it declares, fields of JSON among them, from a stream or from a bucket."""
    stream, name = streams.make(unique("SQL")), unique("orders")
    streams.fill(stream, [("a", b'{"id": 1, "price": 2.5}'), ("b", b'{"id": 2}')])
    table(name, stream=stream, format="json", columns="id BIGINT, price DOUBLE, subject STRING", prepare="true")
    assert [row.col_name for row in spark.sql(f"DESCRIBE {name}").collect()] == ["id", "price", "subject"]
    found = [(1, 2.5, f"{stream}.a"), (2, None, f"{stream}.b")]
    assert rows(spark.sql(f"SELECT * FROM {name}")) == found
    spark.sql(f"INSERT INTO {name} VALUES (3, 0.5, '{stream}.c')")
    assert rows(spark.sql(f"SELECT * FROM {name} WHERE id > 1")) == [found[1], (3, 0.5, f"{stream}.c")]
    # Spark hands a list of columns over where a query brings the options, and to a view.
    spark.sql(f"CREATE TABLE {name}_bare (id BIGINT) USING nats")
    with_options = f"WITH (context '{context}', stream '{stream}', format 'json')"
    assert rows(spark.sql(f"SELECT sum(id) FROM {name}_bare {with_options}")) == [(6,)]
    options = f"OPTIONS (stream '{stream}', format 'json', url '{server.url}')"
    spark.sql(f"CREATE TEMPORARY VIEW {name}_view (id BIGINT, price DOUBLE) USING nats {options}")
    assert rows(spark.sql(f"SELECT * FROM {name}_view")) == [(1, 2.5), (2, None), (3, 0.5)]
    spark.sql(f"DROP VIEW {name}_view")
    spark.sql(f"DROP TABLE {name}_bare")


def test_a_bucket_of_json_as_a_table(spark, streams, table, unique):
    """What is inserted into a table of a bucket are its values as JSON, and queries see them parsed."""
    bucket, name = unique("SQLB"), unique("prices")
    streams.api(f"STREAM.CREATE.KV_{bucket}", bucket_stream(bucket).to_json())
    table(name, bucket=bucket, format="json", columns="key STRING, price DOUBLE, operation STRING", prepare="true")
    spark.sql(f"INSERT INTO {name} (key, price) VALUES ('a', 1.5), ('b', 2)")
    spark.sql(f"INSERT INTO {name} VALUES ('a', 3.5, NULL), ('b', NULL, 'DEL')")
    assert rows(spark.sql(f"SELECT key, price FROM {name}")) == [("a", 3.5)]
    streams.api(f"STREAM.DELETE.KV_{bucket}")


def test_a_temporary_view(spark, server, streams, unique):
    """A view with OPTIONS of its own is read and written; Spark plans it once, as it does a loaded frame."""
    stream, name = streams.make(unique("SQL"), allow_atomic=True), unique("view")
    streams.fill(stream, 3)
    spark.sql(f"CREATE TEMPORARY VIEW {name} USING nats OPTIONS (stream '{stream}', url '{server.url}')")
    assert rows(spark.sql(f"SELECT count(*) FROM {name} WHERE sequence > 1")) == [(2,)]
    plan = str(rows(spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {name}")))
    assert server.url not in plan
    spark.sql(f"DROP VIEW {name}")
