"""Planning: how ranges are cut and limits are shared, without a server."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.offsets import Range
from penstock.spark.planning import ROW_BYTES, Point, Profile, cut, how_many, share, spread
from penstock.spark.source_options import SourceOptions


@st.composite
def profiles(draw):
    """Profiles with gaps: no segment holds more messages than it has sequences."""
    sequence, before, points = draw(st.integers(1, 10**6)), 0, []
    points.append(Point(sequence, 0, draw(st.integers(0, 10**6))))
    for width in draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=20)):
        sequence, before = sequence + width, before + draw(st.integers(0, width))
        points.append(Point(sequence, before, draw(st.integers(0, 10**6))))
    return Profile(points)


@given(profiles(), st.integers(1, 100))
def test_a_cut_loses_and_doubles_nothing(profile: Profile, parts: int):
    """Whatever is known of a range, its parts follow each other without gap or overlap, and none is empty."""
    ranges = cut("S", profile, parts)
    assert ranges[0].start == profile.points[0].sequence
    assert ranges[-1].end == profile.points[-1].sequence
    assert all(one.end == other.start for one, other in pairwise(ranges))
    assert all(item.width > 0 for item in ranges)
    assert len(ranges) <= parts


def test_parts_follow_the_weight():
    """A stretch of large messages, or of many, is cut finer than the rest."""
    sizes = Profile([Point(1, 0, 0), Point(1001, 1000, 0), Point(1002, 1001, 9 * ROW_BYTES), Point(2002, 2001, 900)])
    ranges = cut("S", sizes, 11)
    small = [item for item in ranges if item.end <= 1010]
    large = [item for item in ranges if item.start >= 1002]
    assert (len(small), len(large)) == (1, 9)  # and one across the border
    gaps = Profile([Point(1, 0, 1), Point(1_000_001, 100, 1), Point(1_000_101, 200, 1)])
    assert cut("S", gaps, 2) == [Range("S", 1, 1_000_001), Range("S", 1_000_001, 1_000_101)]


def test_how_many_tasks():
    """Bytes, records and the least number each ask for tasks; nobody gets more tasks than messages."""
    even = Profile.even(1, 1001, 1000, 1000 - ROW_BYTES)
    assert how_many(even, SourceOptions("S")) == 1
    assert how_many(even, SourceOptions("S", min_partitions=7)) == 7
    assert how_many(even, SourceOptions("S", max_bytes_per_partition=100_000)) == 10
    assert how_many(even, SourceOptions("S", max_records_per_partition=300)) == 4
    assert how_many(Profile.even(1, 1001, 3, 10), SourceOptions("S", min_partitions=7)) == 3
    assert how_many(Profile.even(1, 1001, 0, 10), SourceOptions("S", min_partitions=7)) == 0


@given(profiles(), st.data())
def test_the_bound_between_two_places_is_one(profile: Profile, data):
    """The number of messages that a part may have at the most is never less than what the points prove."""
    points = profile.points
    low = data.draw(st.integers(0, len(points) - 2))
    high = data.draw(st.integers(low + 1, len(points) - 1))
    assert profile.most_between(points[low].sequence, points[high].sequence) == points[high].before - points[low].before


def test_the_heaviest_segment_is_looked_into_only_where_it_has_gaps():
    """A segment in which every sequence is a message has nothing left to find out."""
    dense, gappy = Point(101, 100, 10), Point(1101, 200, 10)
    profile = Profile([Point(1, 0, 10), dense, gappy])
    assert profile.heaviest(above=0) == 1
    assert Profile([Point(1, 0, 10), dense]).heaviest(above=0) is None
    assert profile.heaviest(above=10**9) is None


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(1, 300))
def test_samples_lie_inside(start: int, width: int, count: int):
    """Evenly spaced samples are inside the range, in order and once each."""
    places = spread(start, start + width, count)
    assert len(places) <= count
    assert all(start < place < start + width for place in places)
    assert places == sorted(set(places))


@given(st.dictionaries(st.sampled_from("ABCDEFG"), st.integers(0, 10**6)), st.integers(0, 10**6))
def test_a_limit_is_shared(wanted: dict[str, int], limit: int):
    """Shares never exceed what a stream has nor the limit together, and use the limit where there is enough."""
    shares = share(wanted, limit)
    assert all(0 <= shares[name] <= wanted[name] for name in wanted)
    total = sum(shares.values())
    assert total <= limit
    assert total == sum(wanted.values()) or total > limit - len(wanted)


def test_a_small_stream_does_not_starve():
    """A stream with little gets all of it beside one with a great deal."""
    assert share({"BIG": 1_000_000, "SMALL": 10}, 1000) == {"BIG": 990, "SMALL": 10}
