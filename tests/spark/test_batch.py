"""Batch reads: what is between start and end, whole, once, and in the columns of the design."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # as every Spark program writes it

from tests.spark.conftest import sequences


def test_rows_are_the_messages(read, streams, unique):
    """Every message is a row: subject, payload, headers with all their values, sequence, time, stream."""
    name = streams.make(unique("rows"))
    began = datetime.now(UTC)
    streams.fill(name, [("a", b"one", {"K": "v"}), ("b", b"\x00\xff"), ("c", b"")])
    frame = read(name)
    assert frame.dtypes == [
        ("subject", "string"),
        ("data", "binary"),
        ("headers", "map<string,array<string>>"),
        ("sequence", "bigint"),
        ("time", "timestamp"),
        ("stream", "string"),
    ]
    rows = sorted(frame.collect(), key=lambda row: row.sequence)
    assert [(row.subject, bytes(row.data), row.sequence, row.stream) for row in rows] == [
        (f"{name}.a", b"one", 1, name),
        (f"{name}.b", b"\x00\xff", 2, name),
        (f"{name}.c", b"", 3, name),
    ]
    assert rows[0].headers == {"K": ["v"]}
    assert not rows[1].headers
    assert all(began <= row.time.astimezone(UTC) <= datetime.now(UTC) for row in rows)


def test_found_without_a_register_call(spark, server, streams, unique):
    """`format("nats")` works in a fresh session that imported nothing of ours, also from SQL."""
    name = streams.make(unique("sql"))
    streams.fill(name, 3)
    view = unique("view")
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING nats OPTIONS (url '{server.url}', stream '{name}')")
    assert spark.sql(f"SELECT count(*) AS n FROM {view} WHERE sequence > 1").first().n == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(1, 101)),
        ({"start": "all", "end": "new"}, range(1, 101)),
        ({"start": "40"}, range(40, 101)),
        ({"start": "40", "end": "50"}, range(40, 50)),
        ({"start": "last"}, [100]),
        ({"end": "last"}, range(1, 100)),
        ({"start": "new"}, []),
        ({"start": "101"}, []),
        ({"start": "60", "end": "40"}, []),
        ({"end": "1000"}, range(1, 101)),
        ({"start": "1h"}, range(1, 101)),
        ({"end": "1h"}, []),
        ({"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"}, []),
    ],
)
def test_where_a_batch_starts_and_ends(read, streams, unique, options, expected):
    """Words, sequences, times and durations name places; the end is exclusive."""
    name = streams.make(unique("place"))
    streams.fill(name, 100)
    assert sequences(read(name, **options)) == list(expected)


def test_a_time_in_the_middle(read, streams, unique):
    """A start by time gives what was stored from then on, an end by time what was stored before."""
    name = streams.make(unique("time"))
    streams.fill(name, 20)
    middle = sorted(read(name).select("sequence", "time").collect())[10]
    text = middle.time.astimezone(UTC).isoformat()
    first = sequences(read(name, start=text))
    rest = sequences(read(name, end=text))
    assert first[-1] == 20
    assert rest[0] == 1
    assert rest + first == list(range(1, 21))
    assert abs(first[0] - middle.sequence) <= 1  # times have nanoseconds at the server, microseconds here


def test_a_time_that_matches_nothing(read, streams, unique):
    """Where no message is young enough: nothing yet, or an error if that is asked for; never a time to come."""
    name = streams.make(unique("late"))
    streams.fill(name, 3)
    assert sequences(read(name, start="0s")) == []
    with pytest.raises(Exception, match="holds no message from"):
        read(name, start="0s", startStrategy="error").collect()
    with pytest.raises(Exception, match="yet to come"):
        read(name, start="2100-01-01T00:00:00Z").collect()
    with pytest.raises(Exception, match="ends with 3"):
        read(name, start="9").collect()


def test_subjects(read, streams, unique):
    """Subjects filter at the server; wildcards and several work."""
    name = streams.make(unique("subjects"))
    streams.fill(name, [(f"{kind}.{number}", b"") for number in range(30) for kind in ("a", "b", "c")])
    assert len(sequences(read(name, subjects=f"{name}.a.>"))) == 30
    found = read(name, subjects=f"{name}.a.1,{name}.c.*").groupBy("subject").count().collect()
    assert len(found) == 31
    assert sequences(read(name, subjects="nothing.>")) == []


def test_several_streams(read, streams, unique):
    """Several streams, by name or by pattern, each with a start of its own."""
    prefix = unique("many")
    names = [streams.make(f"{prefix}_{letter}") for letter in "abc"]
    for number, name in enumerate(names):
        streams.fill(name, 10 * (number + 1))
    both = read(streams=f"{names[0]},{names[2]}").groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in both} == {names[0]: 10, names[2]: 30}
    starts = f'{{"{names[1]}": 15, "{names[2]}": "last", "*": "all"}}'
    every = read(streams=f"{prefix}_*", start=starts).groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in every} == {names[0]: 10, names[1]: 6, names[2]: 1}


def test_headers_can_be_left_out(read, streams, unique):
    """Without headers there is no such column."""
    name = streams.make(unique("bare"))
    streams.fill(name, [("a", b"x", {"K": "v"})])
    frame = read(name, includeHeaders="false")
    assert "headers" not in frame.columns
    assert bytes(frame.first().data) == b"x"


def test_a_schema_says_which_columns_are_read(spark, server, streams, unique):
    """A schema with some of the columns reads only those; one with others is refused."""
    name = streams.make(unique("schema"))
    streams.fill(name, 10)
    reader = spark.read.format("nats").option("url", server.url).option("stream", name)
    frame = reader.schema("sequence bigint, subject string").load()
    assert [tuple(row) for row in frame.orderBy("sequence").limit(2).collect()] == [(1, f"{name}.x"), (2, f"{name}.x")]
    assert reader.schema("time timestamp").load().count() == 10
    with pytest.raises(Exception, match="names a column 'price'"):
        reader.schema("price double").load().collect()
    with pytest.raises(Exception, match="gives sequence the type string"):
        reader.schema("sequence string").load().collect()


def test_tasks(read, streams, unique):
    """A read is cut into tasks as the options say; each keeps the order, and together they hold every message once."""
    name = streams.make(unique("tasks"))
    streams.fill(name, 1000)

    def tasks(**options):
        frame = read(name, **options).withColumn("task", F.spark_partition_id())
        found = {}
        for row in frame.select("task", "sequence").collect():
            found.setdefault(row.task, []).append(row.sequence)
        assert all(items == sorted(items) for items in found.values())
        assert sorted(place for items in found.values() for place in items) == list(range(1, 1001))
        return sorted(len(items) for items in found.values())

    assert tasks() == [1000]
    four = tasks(minPartitions="4")
    assert len(four) == 4
    assert four[-1] - four[0] < 25
    assert max(tasks(maxRecordsPerPartition="300")) <= 300
    assert len(tasks(maxBytesPerPartition="20k")) > 4


def test_tasks_are_balanced_by_what_is_there(read, streams, unique):
    """With gaps, filters and messages of different sizes, tasks still get about the same."""
    name = streams.make(unique("gaps"))
    streams.fill(name, [("rare" if number >= 3600 else "common", b"") for number in range(4000)])
    frame = read(name, subjects=f"{name}.rare", minPartitions="4").withColumn("task", F.spark_partition_id())
    counts = [row["count"] for row in frame.groupBy("task").count().collect()]
    assert sum(counts) == 400
    assert len(counts) == 4
    assert max(counts) <= 150
    capped = read(name, subjects=f"{name}.rare", maxRecordsPerPartition="90").withColumn("task", F.spark_partition_id())
    counts = [row["count"] for row in capped.groupBy("task").count().collect()]
    assert sum(counts) == 400
    assert max(counts) <= 90
    large = streams.make(unique("sizes"))
    streams.fill(large, [("x", b"y" * (20_000 if number < 100 else 10)) for number in range(1000)])
    frame = read(large, minPartitions="4").withColumn("task", F.spark_partition_id())
    weights = [row.weight for row in frame.groupBy("task").agg(F.sum(F.length("data")).alias("weight")).collect()]
    assert max(weights) < 0.5 * sum(weights)


def test_one_message_that_is_large(read, streams, unique):
    """A message larger than a window or a batch comes all the same."""
    name = streams.make(unique("large"))
    streams.fill(name, [("x", bytes(900_000)), ("x", b"small"), ("x", bytes(900_000))])
    rows = read(name, windowBytes="64k").select("sequence", F.length("data").alias("size")).collect()
    assert sorted(tuple(row) for row in rows) == [(1, 900_000), (2, 5), (3, 900_000)]


def test_without_direct_get(read, streams, unique):
    """A stream that does not allow direct get is read another way, filters, times and counts included."""
    name = streams.make(unique("indirect"), allow_direct=False)
    streams.fill(name, [("a" if number % 3 else "b", b"") for number in range(300)])
    assert sequences(read(name, minPartitions="3")) == list(range(1, 301))
    assert len(sequences(read(name, subjects=f"{name}.b", minPartitions="3", maxRecordsPerPartition="40"))) == 100
    assert len(sequences(read(name, start="1h", end="last"))) == 299


def test_an_empty_stream(read, streams, unique):
    """A stream without messages gives no rows, from wherever it is read."""
    name = streams.make(unique("empty"))
    for start in ("all", "last", "new", "1h", "1"):
        assert sequences(read(name, start=start)) == []


def test_errors_come_at_once_and_say_what_to_do(read, spark, server, streams, unique):
    """An unknown option, a missing stream, an address where nobody is while there is patience: a sentence each, none
    of which shows a secret.
    """
    name = streams.make(unique("errors"))
    with pytest.raises(AnalysisException, match="Did you mean stream\\?"):
        spark.read.format("nats").option("url", server.url).option("steam", name).load()
    with pytest.raises(AnalysisException, match="No stream is named"):
        spark.read.format("nats").option("url", server.url).load()
    with pytest.raises(Exception, match="The stream no_such does not exist") as caught:
        read("no_such").collect()
    assert server.url.split("@")[0].split("//")[1] not in str(caught.value)
    away = {"url": "nats://sekrit@127.0.0.1:1", "stream": name, "patience": "300ms"}
    with pytest.raises(Exception, match=r"No NATS server answers at nats://127\.0\.0\.1:1"):
        spark.read.format("nats").options(**away).load().collect()


def test_a_secret_never_shows_in_a_plan(spark, server, streams, unique, capfd):
    """Whatever Spark prints about a query, the login is not in it."""
    name = streams.make(unique("plan"))
    streams.fill(name, 1)
    token = server.url.split("@")[0].split("//")[1]
    seed = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
    frame = spark.read.format("nats").option("url", server.url).option("stream", name).load()
    frame.explain(extended=True)
    frame.explain(mode="formatted")
    other = spark.read.format("nats").option("nkey", seed).option("stream", name).load()
    other.explain(extended=True)
    shown = capfd.readouterr().out + frame._jdf.queryExecution().toString() + other._jdf.queryExecution().toString()
    assert "nats" in shown
    assert token not in shown
    assert seed not in shown


def test_counting_moves_no_payload(spark, read, server, streams, unique):
    """A schema without `data` and `headers` leaves the payloads at the server."""
    name = streams.make(unique("count"))
    streams.fill(name, [("x", bytes(10_000)) for _ in range(300)])
    reader = spark.read.format("nats").option("url", server.url).option("stream", name)

    def sent() -> int:
        with urllib.request.urlopen(f"{server.monitor_urls[0]}/varz", timeout=10) as answer:
            return json.loads(answer.read())["out_bytes"]

    before = sent()
    assert reader.schema("sequence bigint").load().count() == 300
    bare = sent() - before
    assert read(name).count() == 300  # a reader keeps its schema, so this is another one
    assert sent() - before - bare > 3_000_000
    assert bare < 500_000
