"""Push-down: filters of a batch query reach the server, and change what is read, never what is found."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest

from penstock.spark.filters import scans_are_apart
from tests.spark.conftest import sequences

CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def name(spark, server):
    """A stream of 1,000 messages on ten subjects."""
    from tests.spark.conftest import Streams

    made = Streams(server.url)
    name = made.make("pushdown")
    made.fill(name, [(f"{'ab'[number % 2]}.{number % 10}", b"") for number in range(1000)])
    yield name
    made.api(f"STREAM.DELETE.{name}")


@pytest.fixture
def pushed(spark):
    """Push-down switched on, which it is not by default."""
    spark.conf.set(CONF, "true")
    yield
    spark.conf.unset(CONF)


def scanned(frame) -> tuple[list[int], int]:
    """Run a frame; give its sequences, and how many rows came from the source."""
    found = sorted(row.sequence for row in frame.collect())
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return found, leaves.apply(0).metrics().apply("numOutputRows").value()


@pytest.mark.parametrize(
    ("condition", "expected", "read_rows"),
    [
        ("sequence > 100 AND sequence <= 200", range(101, 201), 100),
        ("sequence = 500", [500], 1),
        ("sequence IN (500, 510)", [500, 510], 11),
        ("subject = 'pushdown.a.2'", range(3, 1001, 10), 100),
        ("subject LIKE 'pushdown.a.%'", range(1, 1001, 2), 500),
        ("subject LIKE 'pushdown.a%' AND sequence < 11", range(1, 11, 2), 10),
        ("subject = 'pushdown.a.2' AND sequence BETWEEN 1 AND 100", range(3, 101, 10), 10),
        ("subject = 'elsewhere'", [], 0),
        ("stream = 'another'", [], 0),
        ("stream = 'pushdown' AND sequence = 7", [7], 1),
        ("subject = 'pushdown.a.2' OR sequence = 7", sorted([7, *range(3, 1001, 10)]), 1000),
        ("time < timestamp'2020-01-01 00:00:00'", [], 0),
    ],
)
def test_filters_reach_the_server(pushed, read, name, condition, expected, read_rows):
    """Fewer rows are read, and the same are found."""
    assert scanned(read(name, pushDown="true").where(condition)) == (list(expected), read_rows)


def test_filters_and_options_hold_together(pushed, read, name):
    """What is pushed narrows what the options say, and never widens it."""
    frame = read(name, start="100", end="200", subjects=f"{name}.a.>", pushDown="true")
    assert scanned(frame.where("sequence > 50 AND sequence < 150")) == (list(range(101, 150, 2)), 25)
    assert scanned(frame.where(f"subject = '{name}.b.1'")) == ([], 0)
    assert len(scanned(frame.where(f"subject LIKE '{name}.%'"))[0]) == 50


def test_a_filter_on_time(pushed, read, name):
    """A filter on time reads from there on, with a margin for clocks that differ."""
    newest = max(row.time for row in read(name).select("time").collect())
    later = (newest.astimezone(UTC) + timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
    assert scanned(read(name, pushDown="true").where(f"time > timestamp'{later}'")) == ([], 0)
    assert len(scanned(read(name, pushDown="true").where("time > timestamp'2020-01-01 00:00:00'"))[0]) == 1000


def test_reading_needs_no_setting(spark, read, name):
    """With push-down off, as Spark has it by default, the same query works and reads everything."""
    assert spark.conf.get(CONF) == "false"
    assert scanned(read(name, pushDown="true").where("sequence = 500")) == ([500], 1000)


def test_a_frame_that_is_used_again_has_all_its_rows(pushed, read, name):
    """Whatever a query of a frame pushes down, every other query of the frame finds what it finds without push-down."""
    frame = read(name)
    assert scanned(frame.where("sequence = 500"))[0] == [500]
    assert frame.count() == 1000
    assert scanned(frame.where("sequence = 7"))[0] == [7]


def test_one_frame_several_times_in_one_query(pushed, spark, read, name):
    """Unions and joins of a frame with itself, under other filters or none, miss nothing; nor do views and caches."""
    frame = read(name)
    low, high = frame.where("sequence < 3"), frame.where("sequence > 998")
    assert sequences(low.union(high)) == [1, 2, 999, 1000]
    assert low.union(frame).count() == 1002
    joined = frame.where(f"subject = '{name}.a.2'").alias("a").join(frame.alias("b"), "sequence")
    assert joined.count() == 100
    other = low.select("sequence").join(high.select((high.sequence - 998).alias("sequence")), "sequence")
    assert other.count() == 2
    frame.createOrReplaceTempView("pushed_view")
    both = "SELECT * FROM pushed_view WHERE sequence = 5 UNION ALL SELECT * FROM pushed_view WHERE subject LIKE '%.a.0'"
    assert spark.sql(both).count() == 101
    cached = frame.where("sequence <= 10").cache()
    try:
        assert (cached.count(), cached.where("sequence = 3").count(), frame.count()) == (10, 1, 1000)
    finally:
        cached.unpersist()


def test_it_is_on_where_spark_keeps_filters_to_their_query(pushed, read, name):
    """Push-down is on by default if, and only if, a query leaves nothing behind for the next one of the same frame."""
    frame = read(name, pushDown="true")
    assert frame.where("sequence = 500").count() == 1
    keeps_apart = frame.count() == 1000
    assert scans_are_apart() == keeps_apart
    assert scanned(read(name).where("sequence = 500")) == ([500], 1 if keeps_apart else 1000)
