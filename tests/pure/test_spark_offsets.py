"""Offsets: what stands in a checkpoint, and what lies between two of them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.spark.offsets import Mark, Offset, Range

GOLDEN = Path(__file__).parents[1] / "golden" / "spark_offset_v1.json"
OFFSET = Offset(
    {
        "ORDERS": Mark("2026-02-01T00:00:00Z", 17, 1001, 5),
        "EVENTS": Mark("2026-01-31T23:59:59.123456789Z", 1, 1),
    }
)
marks = st.builds(
    Mark,
    created=st.text(),
    begun=st.integers(1, 2**62),
    next=st.integers(1, 2**62),
    skipped=st.integers(0, 2**62),
    last=st.integers(0, 2**62),
    time=st.text(),
)


def test_what_a_stream_was_seen_to_hold_stands_beside():
    """It is written as this version wrote it first; a mark with it is the same place as one of earlier versions."""
    seen = Offset(
        {
            "ORDERS": replace(OFFSET.marks["ORDERS"], last=1205, time="2026-02-01T00:04:17.5Z"),
            "EVENTS": OFFSET.marks["EVENTS"],
        }
    )
    golden = GOLDEN.with_name("spark_offset_v1_seen.json")
    assert json.dumps(seen.to_json()) + "\n" == golden.read_text()
    found = Offset.from_json(golden.read_text()).marks["ORDERS"]
    assert (found.last, found.time, found.reach) == (1205, "2026-02-01T00:04:17.5Z", 1206)
    assert found == OFFSET.marks["ORDERS"]
    assert OFFSET.marks["ORDERS"].reach == 1001


def test_the_form_in_checkpoints_is_frozen():
    """An offset is written, byte for byte, as the first version wrote it; a checkpoint of today is read for ever."""
    assert json.dumps(OFFSET.to_json()) + "\n" == GOLDEN.read_text()
    assert Offset.from_json(json.loads(GOLDEN.read_text())) == OFFSET
    assert Offset.from_json(GOLDEN.read_text()) == OFFSET


@given(st.dictionaries(st.text(min_size=1), marks))
def test_every_offset_survives_the_checkpoint(found: dict[str, Mark]):
    """What is written is what is read, and equal offsets are equal text, whatever order their streams came in."""
    text = json.dumps(Offset(found).to_json())
    assert Offset.from_json(text) == Offset(found)
    assert json.dumps(Offset(dict(reversed(found.items()))).to_json()) == text
    assert pickle.loads(pickle.dumps(Offset(found))) == Offset(found)


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        "no JSON",
        {"ORDERS": 5},
        {"version": 1},
        {"version": 1, "streams": {"A": 5}},
        {"version": 1, "streams": {"A": {"created": "x", "from": 1}}},
        {"version": 1, "streams": {"A": {"created": "x", "from": 1, "next": "7"}}},
        {"version": 1, "streams": {"A": {"created": "x", "from": 1, "next": True}}},
        {"version": 1, "streams": {"A": {"created": 3, "from": 1, "next": 7}}},
        {"version": 1, "streams": {"A": {"created": "x", "from": -1, "next": 7}}},
        {"version": 1, "streams": {"A": {"created": "x", "from": 1, "next": 7, "last": "9"}}},
        {"version": 1, "streams": {"A": {"created": "x", "from": 1, "next": 7, "last": 9, "time": 5}}},
    ],
)
def test_what_is_no_offset_is_refused(content):
    """Another source's checkpoint, or a broken one, gives a sentence and not a stack trace."""
    with pytest.raises(InputError, match="is not an offset of the format nats"):
        Offset.from_json(content)


def test_what_a_later_version_adds_is_left_alone():
    """A mark with a field that nobody here knows is read, as versions before this one read `last` and `time`."""
    found = Offset.from_json({"version": 1, "streams": {"A": {"created": "x", "from": 1, "next": 7, "later": []}}})
    assert found == Offset({"A": Mark("x", 1, 7)})


def test_an_offset_of_a_newer_version_is_refused():
    """An offset that a newer Penstock wrote is not guessed at."""
    with pytest.raises(InputError, match="version 2"):
        Offset.from_json({"version": 2, "streams": {}})


def test_what_lies_between_two_offsets():
    """A known stream is read from the old mark, a new one and one that was made anew from where they entered."""
    start = Offset({"A": Mark("a", 1, 10), "B": Mark("b", 1, 500), "C": Mark("c", 1, 7)})
    end = Offset({"A": Mark("a", 1, 15), "B": Mark("anew", 3, 9), "C": Mark("c", 1, 7), "D": Mark("d", 40, 50)})
    assert list(start.ranges(end)) == [Range("A", 10, 15), Range("B", 3, 9), Range("D", 40, 50)]
    assert start.lag(end) == {"A": 5, "B": 6, "C": 0, "D": 10}


def test_a_mark_that_went_back_gives_nothing():
    """A stream that was restored to an earlier state is never read backwards."""
    start, end = Offset({"A": Mark("a", 1, 10)}), Offset({"A": Mark("a", 1, 4)})
    assert list(start.ranges(end)) == []
    assert start.lag(end) == {"A": 0}
