"""The picture of the overview: what is drawn, where, and what is left out."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.console.layout import WIDTH, Box, lay_out
from penstock.console.picture import READERS, STREAMS, draw, short
from penstock.survey import Snapshot
from tests.pure.surveyed import BEGUN, Seen


def snapshot(seen: Seen) -> Snapshot:
    return seen.known.snapshot(1, BEGUN, problem=None, jetstream=True)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 14).flatmap(
        lambda most: st.tuples(st.just(most), st.sets(st.tuples(*[st.integers(0, most - 1)] * 2)))
    )
)
def test_no_box_lies_on_another(asked: tuple[int, set[tuple[int, int]]]):
    """Whatever leads where, in circles too, boxes stand apart, in the picture, and ways go from left to right."""
    most, pairs = asked
    edges = sorted(pair for pair in pairs if pair[0] != pair[1])
    boxes = {key: Box() for key in range(most)}
    width, height, paths = lay_out(boxes, edges)
    for box in boxes.values():
        assert box.x >= 0
        assert box.x + WIDTH <= width
        assert box.y >= 0
        assert box.y + box.height <= height + 1
    for one, other in itertools.combinations(boxes.values(), 2):
        assert one.column != other.column or abs(one.y - other.y) >= min(one.height, other.height)
    for (source, target), path in zip(edges, paths, strict=True):
        begin, end = (target, source) if path.back else (source, target)
        assert boxes[begin].column < boxes[end].column
    assert lay_out({key: Box() for key in range(most)}, edges) == (width, height, paths), "the same looks the same"


def test_a_long_way_bends_around_what_stands_between():
    """A way over a column passes it where no box is."""
    boxes = {name: Box() for name in "abc"}
    _, _, (_, _, long) = lay_out(boxes, [("a", "b"), ("b", "c"), ("a", "c")])
    assert [boxes[name].column for name in "abc"] == [0, 1, 2]
    assert long.d.count("C") == 2
    middle = float(long.d.split("C")[1].split()[-1].split("L")[0])
    assert not boxes["b"].y <= middle <= boxes["b"].y + boxes["b"].height


def test_publishers_streams_and_readers_stand_in_their_order():
    """From left to right: subjects, the stream, its mirror and its consumers; each leads to its page."""
    seen = Seen()
    seen.stream("ORDERS", 0, messages=10)
    seen.stream("ORDERS", 10, messages=1010)
    seen.stream("COPY", 0, config={"subjects": [], "mirror": {"name": "ORDERS"}}, mirror={"name": "ORDERS", "lag": 0})
    seen.consumer("ORDERS", "billing", 10, num_pending=7, age=3.0, moved=9.0)
    drawn = draw(snapshot(seen))
    found = {box["title"]: box for box in drawn.boxes}
    assert found["ORDERS.>"]["x"] < found["ORDERS"]["x"] < found["billing"]["x"] == found["COPY"]["x"]
    assert found["ORDERS"]["line"] == "1,010 messages · 100/s"
    assert found["billing"]["line"] == "lag 7, 3.0 s"
    assert found["billing"]["page"] == "/streams/ORDERS/consumers/billing"
    assert {way["kind"] for way in drawn.ways} == {"publish", "mirror", "consume"}
    assert (drawn.streams_left_out, drawn.consumers_left_out) == (0, 0)


def test_a_large_account_shows_the_troubled_and_the_busy_and_counts_the_others():
    """Of a thousand streams the picture has those in trouble and the busiest, and says how many it leaves out."""
    seen = Seen()
    for number in range(1000):
        seen.stream(f"S{number}", 0, messages=1, state={"consumer_count": 1})
    seen.stream("S7", 10, messages=5001)
    seen.consumer("S500", "stuck", 100, num_pending=5, age=60.0)
    drawn = draw(snapshot(seen))
    titles = {box["title"] for box in drawn.boxes if box["kind"] == "stream"}
    assert {"S7", "S500"} <= titles
    assert len(titles) == STREAMS
    assert drawn.streams_left_out == drawn.consumers_left_out == 1000 - STREAMS
    (troubled,) = [box for box in drawn.boxes if box["state"]]
    assert (troubled["title"], troubled["state"]) == ("stuck", "bad")
    assert "and nobody asks for them" in troubled["says"]


def test_many_consumers_share_a_box():
    """A stream with many consumers shows a few, those in trouble first, and one box for the others."""
    seen = Seen()
    seen.stream("A", 0, state={"consumer_count": 100})
    for number in range(100):
        seen.consumer("A", f"c{number}", 100, moved=99.0, num_pending=1, age=1.0)
    seen.consumer("A", "c77", 100, num_redelivered=1, moved=99.0)
    drawn = draw(snapshot(seen))
    readers = [box for box in drawn.boxes if box["kind"] == "consumer"]
    assert len(readers) == READERS - 1
    assert [box["state"] for box in readers if box["title"] == "c77"] == ["warn"]
    (others,) = [box for box in drawn.boxes if box["kind"] == "consumers"]
    assert others["title"] == f"{100 - len(readers)} more consumers"
    assert others["page"] == "/streams/A"


def test_with_many_streams_quiet_consumers_share_a_box():
    """A picture of many streams stays low: of a stream's consumers only those in trouble have boxes of their own."""
    seen = Seen()
    for name in "ABCDEFGH":
        seen.stream(name, 0, state={"consumer_count": 3})
        for number in range(3):
            seen.consumer(name, f"c{number}", 100, moved=99.0)
    seen.consumer("A", "c2", 100, num_pending=5, age=60.0)
    drawn = draw(snapshot(seen))
    assert [box["title"] for box in drawn.boxes if box["kind"] == "consumer"] == ["c2"]
    shared = [box["title"] for box in drawn.boxes if box["kind"] == "consumers"]
    assert sorted(shared) == ["2 more consumers", *["3 consumers"] * 7]


def test_nothing_is_a_picture_too():
    """Without streams there is nothing to draw."""
    drawn = draw(Snapshot())
    assert (drawn.boxes, drawn.ways) == ([], [])


def test_counts_are_short():
    """A count in a box takes few letters."""
    known = {0: "0", 9999: "9,999", 12_345: "12.3 k", 999_000: "999 k", 1_500_000: "1.5 M", 2e9: "2.0 G"}
    assert {value: short(value) for value in known} == known
