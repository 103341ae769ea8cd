"""The bytes that the sink keeps in streams, frozen by golden files, and the subjects that they stand under."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.errors import RemoteProtocolError
from penstock.spark import markers
from penstock.spark.digests import tally
from penstock.spark.markers import Head, MarkerSubjects, Tally

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "sink_markers.json"
DIGESTS = bytes(range(48))
TALLY = Tally(3, 2**127 + 5)


def bodies() -> dict[str, bytes]:
    """Every kind of marker, written by this version."""
    return {
        "origin": markers.origin_body(),
        "anchor": markers.anchor_body(7),
        "head open": Head(7, "r1", "open").body(),
        "head replay": Head(7, "r2", "replay", since=41, past=("r0", "r1"), start="s2", starts=("s1",)).body(),
        "head done": Head(7, "r2", "done", since=41, past=("r0", "r1"), start="s2", tally=TALLY).body(),
        "head changed": Head(7, "r2", "changed", since=41, start="s2", tally=TALLY, lacks=2).body(),
        "head whole": Head(7, "r1", "done", start="s2", tally=TALLY, behind=5).body(),
        "opening": markers.opening_body("r1", 4),
        "seal": markers.seal_body("r2"),
        "journal": markers.journal_body("ab12", DIGESTS),
        "fence": markers.fence_body(3),
        "claim": markers.claim_bodies(3, {1000: [True, False, True], 70000: [True] * 9}, 10_000)[0],
    }


def frozen() -> dict[str, bytes]:
    """Every kind of marker, as some version wrote it; those of older versions begin with theirs."""
    return {name: bytes.fromhex(text) for name, text in json.loads(GOLDEN.read_text()).items()}


def test_markers_are_written_as_ever():
    """A query that was begun by one version goes on under another: the bytes do not change."""
    assert bodies() == {name: body for name, body in frozen().items() if not name.startswith("v1 ")}


def test_heads_of_the_first_version_are_read():
    """A head that has neither starts nor a tally is that of a query which an older version began."""
    assert Head.read(frozen()["v1 head open"], 90) == Head(7, "r1", "open", sequence=90)
    assert Head.read(frozen()["v1 head replay"], 90) == Head(7, "r2", "replay", 41, ("r0", "r1"), sequence=90)
    done = Head.read(frozen()["v1 head done"], 90)
    assert done.tally is None
    assert not done.writable


def test_a_head_that_came_with_its_rows_knows_its_anchor():
    """A batch that was stored at once has rows between its anchor and its head, and an older version refuses it."""
    body = frozen()["head whole"]
    assert Head.read(body, 90).anchor == 85
    assert Head.read(Head(7, "r1", "open").body(), 90).anchor == 89
    assert json.loads(body)["v"] == 3


def test_a_tally_knows_no_order():
    """Digests add up to the same in any order and in any parts, and one more or less shows, also of equal rows."""
    rows = [bytes([number] * 15 + [255]) for number in range(100)] + [b"\xff" * 16] * 2
    whole = tally(b"".join(rows))
    assert whole == Tally(102, sum(int.from_bytes(row, "little") for row in rows) % 2**128)
    assert tally(b"".join(rows[::-1])) == whole == tally(b"".join(rows[:7])) + tally(b"".join(rows[7:]))
    assert tally(b"".join(rows[:-1])).sum != whole.sum
    assert tally(b"") == Tally()


def test_markers_are_read_as_they_were_written():
    """What was written is read, each kind by its reader."""
    written = bodies()
    assert Head.read(written["head replay"], 90) == Head(
        7, "r2", "replay", 41, ("r0", "r1"), "s2", ("s1",), sequence=90
    )
    assert Head.read(written["head changed"], 9, "now") == Head(
        7, "r2", "changed", 41, start="s2", tally=TALLY, lacks=2, sequence=9, time="now"
    )
    assert Head.read(written["head open"], 90).anchor == 89
    assert markers.read_lane(written["opening"])[0]["task"] == 4
    assert markers.read_lane(written["journal"])[1] == DIGESTS
    assert markers.read_claim(written["claim"])[1] == {1000: [True, False, True], 70000: [True] * 9}


@given(
    some.dictionaries(
        some.integers(1, 2**60), some.lists(some.booleans(), min_size=1, max_size=999), min_size=0, max_size=20
    ),
    some.integers(100, 2000),
)
def test_claims_survive_in_parts_of_any_size(taken, size):
    """Claims that are cut into parts are the same claims when the parts are put together."""
    found: dict[int, list[bool]] = {}
    parts = markers.claim_bodies(5, taken, size)
    for part in parts:
        fields, some_of_them = markers.read_claim(part)
        assert fields["partition"] == 5
        assert fields["parts"] == len(parts)
        assert fields["rows"] == sum(sum(rows) for rows in some_of_them.values())
        found.update(some_of_them)
    assert found == taken


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"[]\n",
        b'{"v":1}\n',
        b'{"v":1,"kind":"rows","id":"x","rows":3}\nshort',
        b'{"v":1,"kind":"claim","partition":1,"part":1,"parts":1,"rows":1}\n123',
        b'{"v":1,"batch":"x","run":"r","state":"open","since":0,"past":[]}\n',
        b'{"v":1,"batch":1,"run":"r","state":"asleep","since":0,"past":[]}\n',
        b'{"v":1,"batch":1,"run":"r","state":"done","since":0,"past":[],"rows":1,"sum":7}\n',
    ],
)
@pytest.mark.parametrize("read", [markers.read_lane, markers.read_claim, lambda body: Head.read(body, 1)])
def test_strange_markers_are_refused(body, read):
    """What is no marker is refused with a sentence that says who may write there."""
    with pytest.raises(RemoteProtocolError, match="only the sink may"):
        read(body)


def test_markers_of_a_newer_version_are_refused():
    """A version that this one does not know is named."""
    with pytest.raises(RemoteProtocolError, match="version 4, and this Penstock knows 3"):
        Head.read(b'{"v":4}\n', 1)
    with pytest.raises(RemoteProtocolError, match="version 2, and this Penstock knows 1"):
        markers.read_lane(b'{"v":2}\n')


def test_subjects():
    """Markers of a query stand under its own root, and its tasks' are told from the others."""
    places = MarkerSubjects("ORDERS", "q")
    assert places.head == "$PENSTOCK.ORDERS.q.head"
    assert places.all == "$PENSTOCK.ORDERS.q.>"
    assert places.is_of_task(places.of_task(9, 2, 0))
    assert places.is_of_task(places.of_task(9, 2, "abc"))
    assert not any(
        places.is_of_task(subject)
        for subject in (places.head, places.anchor, places.of_claims(9, "2-1"), places.of_claims(9, "last"))
    )
    assert markers.is_marker(markers.origin_subject("ORDERS"))
    assert not markers.is_marker("orders.PENSTOCK")
    assert markers.marker_filter("ORDERS") == "$PENSTOCK.ORDERS.>"
