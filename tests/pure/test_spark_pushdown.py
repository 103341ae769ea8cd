"""Push-down: filters of Spark as ranges and subjects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

from penstock.spark.pushdown import (
    Pushed,
    by_sequence,
    by_subject,
    narrow,
    prefix_to_subject,
    push,
    without_overlap,
)
from penstock.wire.subjects import covers, overlaps

SEQUENCE, TIME, SUBJECT, STREAM = ("sequence",), ("time",), ("subject",), ("stream",)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
tokens = st.sampled_from(["a", "b", "c"])
literals = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda parts, tail: ".".join([*parts, *tail]),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)


def matches(pattern: str, subject: str) -> bool:
    """The rule of NATS, written down once more and differently."""
    left, right = pattern.split("."), subject.split(".")
    if left[-1] == ">":
        return len(right) >= len(left) and matches(
            ".".join([*left[:-1], "x"]), ".".join([*right[: len(left) - 1], "x"])
        )
    return len(left) == len(right) and all(one in ("*", other) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([ds.EqualTo(SEQUENCE, 7)], Pushed(start=7, end=8)),
        ([ds.GreaterThan(SEQUENCE, 7), ds.LessThanOrEqual(SEQUENCE, 9)], Pushed(start=8, end=10)),
        ([ds.GreaterThanOrEqual(SEQUENCE, 7), ds.LessThan(SEQUENCE, 9)], Pushed(start=7, end=9)),
        ([ds.In(SEQUENCE, (9, 3, 5))], Pushed(start=3, end=10)),
        ([ds.GreaterThan(SEQUENCE, 7), ds.GreaterThan(SEQUENCE, 3)], Pushed(start=8)),
        ([ds.EqualTo(SEQUENCE, None)], Pushed()),
        ([ds.Not(ds.EqualTo(SEQUENCE, 7))], Pushed()),
        ([ds.IsNotNull(SEQUENCE)], Pushed()),
        ([ds.GreaterThanOrEqual(TIME, NOON), ds.LessThan(TIME, NOON)], Pushed(since=NOON, until=NOON)),
        ([ds.EqualTo(TIME, NOON)], Pushed(since=NOON, until=NOON)),
        ([ds.EqualTo(TIME, NOON.replace(tzinfo=None))], Pushed()),
        ([ds.EqualTo(SUBJECT, "orders.eu")], Pushed(subjects=("orders.eu",))),
        ([ds.EqualTo(SUBJECT, "orders.*")], Pushed()),
        ([ds.In(SUBJECT, ("b", "a", "b"))], Pushed(subjects=("b", "a"))),
        ([ds.StringStartsWith(SUBJECT, "orders.eu.")], Pushed(subjects=("orders.eu.>",))),
        ([ds.StringStartsWith(SUBJECT, "orders.eu")], Pushed(subjects=("orders.>",))),
        ([ds.StringContains(SUBJECT, "orders.")], Pushed()),
        ([ds.EqualTo(STREAM, "A")], Pushed(streams=("A",))),
        ([ds.In(STREAM, ("A", "B")), ds.EqualTo(STREAM, "C")], Pushed(streams=())),
        ([ds.EqualTo(("headers", "key"), "x"), ds.EqualTo(("data",), b"x")], Pushed()),
    ],
)
def test_filters_narrow_the_read(filters, expected):
    """What is understood narrows the read; what is not changes nothing."""
    assert push(Pushed(), filters) == expected


def test_columns_of_another_reader():
    """A bucket's keys are subjects behind its own tokens, and its revisions are sequences."""
    rules = {"revision": by_sequence, "key": by_subject("$KV.PRICES.")}
    filters = [ds.GreaterThan(("revision",), 7), ds.In(("key",), ("eu", "us.a")), ds.EqualTo(SEQUENCE, 1)]
    assert push(Pushed(), filters, rules) == Pushed(start=8, subjects=("$KV.PRICES.eu", "$KV.PRICES.us.a"))
    starts = [ds.StringStartsWith(("key",), "e"), ds.EqualTo(("key",), "no key")]
    assert push(Pushed(), starts, rules) == Pushed(subjects=("$KV.PRICES.>",))


def test_a_prefix_covers_all_that_begins_with_it():
    """Only whole tokens of a prefix are sure."""
    assert prefix_to_subject("orders") == [">"]
    assert prefix_to_subject("") == [">"]
    assert prefix_to_subject("a..") == [">"]
    assert prefix_to_subject("a.*.") == [">"]


@given(literals, st.integers(0, 8))
def test_a_prefix_never_loses_a_subject(subject: str, length: int):
    """Whatever begins with a prefix matches the subject that stands for it."""
    assert any(matches(item, subject) for item in prefix_to_subject(subject[:length]))


@given(patterns, patterns, literals)
def test_relations_of_subjects(one: str, other: str, subject: str):
    """Covering and overlapping agree with what matches."""
    both = matches(one, subject) and matches(other, subject)
    assert overlaps(one, other) or not both
    assert not covers(one, other) or not matches(other, subject) or matches(one, subject)
    assert overlaps(one, other) == overlaps(other, one)


@given(st.lists(patterns, min_size=1, max_size=3), st.lists(patterns, min_size=1, max_size=3), literals)
def test_narrowing_never_loses_a_subject(old: list[str], new: list[str], subject: str):
    """A subject that matches both lists matches what is left of them."""
    left = narrow(tuple(old), tuple(new))
    if any(matches(item, subject) for item in old) and any(matches(item, subject) for item in new):
        assert any(matches(item, subject) for item in left)
    assert all(any(covers(item, found) for item in old) for found in left)


def test_what_another_covers_is_left_out():
    """A server refuses filters of which one holds the other."""
    assert without_overlap(("a.*", "a.b", "c", "c")) == ("a.*", "c")
    assert narrow(None, ("a", "a")) == ("a",)
    assert narrow(("orders.>",), ("events.x",)) == ()


def test_times_of_spark_have_a_zone():
    """Times in other zones narrow the read to the same instant."""
    other = NOON.astimezone(tz=None)
    assert push(Pushed(), [ds.GreaterThan(TIME, other)]).since == NOON
    assert push(Pushed(since=NOON + timedelta(1)), [ds.GreaterThan(TIME, other)]).since == NOON + timedelta(1)
