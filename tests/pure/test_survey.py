"""What a survey makes of looks: rates, ages, trends, troubles, edges and a history that stays bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.survey import FlowSeen, PipelineSeen, SurveySettings
from penstock.survey.edges import find_edges
from penstock.survey.last_hour import FIELDS, LastHour
from penstock.survey.pipelines import PipelineLook, with_streams
from penstock.survey.state import page_of
from penstock.survey.trouble import pipeline_trouble
from tests.pure.surveyed import BEGUN, MADE, Seen

CONSUMER = ("consumer", "A", "c")

# -- rates -------------------------------------------------------------------------------------------------------------


def test_a_rate_needs_two_looks_at_the_same_stream():
    """The first look knows no rate; the second does; a stream that was made anew, or went back, has none."""
    seen = Seen()
    seen.stream("A", 0, messages=100)
    assert seen.known.streams["A"].rate is None
    seen.stream("A", 10, messages=300)
    assert seen.known.streams["A"].rate == 20
    seen.stream("A", 20, messages=50)
    assert seen.known.streams["A"].rate is None, "restored from an older copy"
    seen.stream("A", 30, messages=60, created="2026-01-01T00:00:25Z")
    assert seen.known.streams["A"].rate is None, "another stream of that name"


def test_markers_are_no_messages():
    """A stream counts its messages without the markers of the sink: removing markers lets no count fall."""
    seen = Seen()
    seen.stream("REVENUE", 0, markers=7, messages=107)
    first = seen.known.streams["REVENUE"].messages
    seen.stream("REVENUE", 10, markers=2, messages=112, state={"last_seq": 130})
    state = seen.known.streams["REVENUE"]
    assert (first, state.messages, state.markers) == (100, 110, 2)
    assert state.rate == 1, "rows, not what the sequence went on by"


def test_a_consumer_that_was_reset_has_no_rate():
    """Deliveries that are counted from the beginning again are no rate below zero."""
    seen = Seen()
    seen.consumer("A", "c", 0, num_pending=1)
    seen.consumer("A", "c", 10, num_pending=1, delivered={"consumer_seq": 1, "stream_seq": 1})
    assert seen.known.consumers["A", "c"].rate is None


# -- troubles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({"num_pending": 5, "age": 60.0}, ["stuck"]),
        ({"num_pending": 5, "age": 3.0}, []),
        ({"num_pending": 5, "age": 60.0, "moved": 95.0}, []),
        ({"num_ack_pending": 1000}, ["stuck"]),
        ({"num_ack_pending": 1000, "moved": 99.0}, []),
        ({"num_ack_pending": 3}, ["stuck"]),
        ({"num_ack_pending": 3, "moved": 50.0}, []),
        ({"paused": True, "num_pending": 5, "age": 60.0}, ["paused"]),
        ({"num_redelivered": 2}, ["redelivered"]),
        ({"p99": 20.0}, ["slow acks"]),
        ({"p99": 2.0}, []),
        ({"cluster": {"name": "C", "replicas": []}}, ["leaderless"]),
        (
            {"cluster": {"name": "C", "leader": "n1", "replicas": [{"name": "n2", "offline": True, "current": False}]}},
            ["replica"],
        ),
        ({"num_pending": 5, "age": 60.0, "config": {"sourcing": True}}, []),
        (
            {
                "num_pending": 5,
                "age": 60.0,
                "config": {"description": "holds the place of a Spark query; nothing is delivered to it"},
            },
            [],
        ),
    ],
)
def test_consumers_in_trouble(more: dict[str, Any], kinds: list[str]):
    """Each rule finds its trouble, and nothing in what is as it should be, 100 s after a consumer was made."""
    seen = Seen()
    seen.consumer("A", "c", 100, **more)
    assert seen.troubles().get(CONSUMER, []) == kinds


def test_a_consumer_is_stuck_when_two_looks_saw_it_wait():
    """If nobody knows how old what waits is, the second look that sees the same, ten seconds on, tells."""
    seen = Seen()
    for at, kinds in ((100, []), (105, []), (111, ["stuck"])):
        seen.consumer("A", "c", at, num_pending=5)
        assert seen.troubles().get(CONSUMER, []) == kinds
    (trouble,) = seen.known.snapshot(1, BEGUN, problem=None, jetstream=True).trouble
    assert trouble.since == BEGUN + 100, "it is since the first of these looks"
    assert trouble.page == "/streams/A/consumers/c"
    seen.consumer("A", "c", 120, moved=119, num_pending=4)
    assert seen.troubles() == {}


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({"messages": 9, "config": {"max_msgs": 10, "discard": "new"}}, ["full"]),
        ({"messages": 10, "config": {"max_msgs": 10, "discard": "old"}}, []),
        ({"messages": 8, "config": {"max_msgs": 10, "discard": "new"}}, []),
        ({"messages": 95, "config": {"max_bytes": 1000, "discard": "new"}}, ["full"]),
        ({"cluster": {"name": "C", "replicas": []}}, ["leaderless"]),
        (
            {"cluster": {"name": "C", "leader": "n1", "replicas": [{"name": "n2", "current": False, "lag": 7}]}},
            ["replica"],
        ),
        ({"mirror": {"name": "B", "lag": 3, "active": 1}}, ["copy"]),
        ({"mirror": {"name": "B", "lag": 0, "active": 1}}, []),
        ({"mirror": {"name": "B", "lag": 0, "active": 120_000_000_000}}, ["copy"]),
        ({"sources": [{"name": "B", "lag": 0, "active": 1, "error": {"description": "no such stream"}}]}, ["copy"]),
        ({"state": {"lost": {"msgs": [4, 5], "bytes": 10}}}, ["damaged"]),
    ],
)
def test_streams_in_trouble(more: dict[str, Any], kinds: list[str]):
    """A stream that refuses, has no leader, lags or lost messages is named; one that is full by design is not."""
    seen = Seen()
    seen.stream("A", 0, **more)
    assert seen.troubles().get(("stream", "A"), []) == kinds


def test_a_lag_that_grows_is_a_trend_not_a_moment():
    """A lag that rises for a minute and more is told; one that comes and goes is not."""
    grows, waves = Seen(), Seen()
    for at in range(0, 121, 10):
        moved = {"moved": float(at)}
        grows.consumer("A", "c", at, num_pending=100 + 50 * at, **moved)
        waves.consumer("A", "c", at, num_pending=5000 if at % 20 else 100, **moved)
        if at < 60:
            assert grows.troubles() == {}
    assert grows.troubles() == {CONSUMER: ["growing"]}
    assert grows.says() == "its lag grew by 6,000 to 6,100 messages in 2 min"
    assert waves.troubles() == {}


def test_dead_letters_that_come_are_told():
    """A stream of dead letters is no trouble as long as none comes, and is once one does."""
    seen = Seen()
    about: dict[str, Any] = {"config": {"subjects": ["PENSTOCK.DEAD.A.>"]}}
    seen.stream("A-DEAD", 0, messages=3, **about)
    assert seen.troubles() == {}
    seen.stream("A-DEAD", 10, messages=5, **about)
    assert seen.troubles() == {("stream", "A-DEAD"): ["dead letters"]}
    assert seen.says() == "2 came in the last 10 s"


def test_another_thing_of_the_same_name_has_no_old_troubles():
    """A trouble is since when it was seen first; a stream that was made anew begins anew."""
    seen = Seen()
    full: dict[str, Any] = {"messages": 10, "config": {"max_msgs": 10, "discard": "new"}}
    for at, made in ((0, MADE), (50, MADE), (70, "2026-01-01T00:01:00Z")):
        seen.stream("A", at, created=made, **full)
        (trouble,) = seen.known.snapshot(1, BEGUN, problem=None, jetstream=True).trouble
        assert trouble.since == BEGUN + (70 if made != MADE else 0)
    seen.known.forget_stream("A")
    assert seen.troubles() == {}


# -- pipelines ---------------------------------------------------------------------------------------------------------


def flow(name: str = "f", **more: Any) -> FlowSeen:
    given: dict[str, Any] = dict.fromkeys(
        ("target", "status", "complete", "rows", "rows_out", "rate", "batch_seconds", "state_rows", "lag")
    )
    return FlowSeen(**{"name": name, "batches": 1, "state_bytes": 0, "streams": {}, "latest": {}, **given, **more})


def pipeline(**more: Any) -> PipelineSeen:
    given: dict[str, Any] = dict.fromkeys(("replay", "phase", "failure", "note", "begun", "told", "pid", "spark"))
    given |= {"name": "p", "in_use": True, "looked": 0.0, "folder": "/p", "storage": "/s", "state": "running"}
    given |= {"continuous": True, "updates": 1, "flows": (), "batches": ()}
    return PipelineSeen(**{**given, **more})


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        (pipeline(told=100.0), []),
        (pipeline(told=20.0), ["silent"]),
        (pipeline(state="troubled", told=100.0, flows=(flow(status="failed"),)), ["failed"]),
        (pipeline(state="failed", failure="no such column", flows=(flow(status="failed"),)), ["failed"]),
        (pipeline(state="cut off"), ["cut off"]),
        (pipeline(state="done", flows=(flow(streams={"A": 5}, latest={"A": None}),)), ["gone"]),
        (pipeline(state="done", note="Its checkpoints cannot be read."), ["unknown"]),
    ],
)
def test_pipelines_in_trouble(state: PipelineSeen, kinds: list[str]):
    """A flow that failed is trouble though its pipeline runs; so is a run that ended without a word, or went silent."""
    assert [found.kind for found in pipeline_trouble(state, 100.0)] == kinds


def test_a_flow_waits_for_the_stream_that_it_read_and_no_other():
    """The lag counts from where the flow is to where its stream is; one that was made anew is another stream."""
    look = PipelineLook(
        pipeline(flows=(flow(streams={"A": 5, "B": 1}),)), {"f": {"A": "then", "B": "then"}}, {"f": "q"}
    )
    state = with_streams(look, {"A": ("then", 12), "B": ("later", 50)}, {"q": "OUT"}, whole=True)
    (seen,) = state.flows
    assert (seen.lag, dict(seen.latest), seen.writes) == (7, {"A": 12, "B": None}, ("OUT",))
    (seen,) = with_streams(look, {}, {}, whole=False).flows
    assert (seen.lag, dict(seen.latest), seen.writes) == (None, {}, ()), "what was not looked at is not gone"


def test_edges_lead_from_publishers_to_readers():
    """Subjects feed a stream, a mirror and a source copy it, consumers and flows read it, a flow writes another."""
    seen = Seen()
    seen.stream("A", 0, messages=10)
    seen.stream("B", 0, config={"subjects": [], "mirror": {"name": "A"}}, mirror={"name": "A", "lag": 4, "active": 1})
    seen.stream("FAR", 0, config={"subjects": []}, sources=[{"name": "A", "external": {"api": "$JS.x.API"}}])
    seen.stream("A-DEAD", 0, config={"subjects": ["PENSTOCK.DEAD.A.>"]})
    seen.consumer("A", "c", 0, num_pending=3)
    runs = pipeline(flows=(flow(streams={"A": 5}, latest={"A": 11}, writes=("OUT",)),))
    edges = find_edges(seen.known.streams, seen.known.consumers, [runs])
    assert {(edge.source, edge.target, edge.kind, edge.lag) for edge in edges} == {
        (("subjects", "A"), ("stream", "A"), "publish", None),
        (("stream", "A"), ("stream", "B"), "mirror", 4),
        (("stream", "A"), ("stream", "A-DEAD"), "dead", None),
        (("stream", "A"), CONSUMER, "consume", 3),
        (("stream", "A"), ("flow", "p", "f"), "read", 6),
        (("flow", "p", "f"), ("stream", "OUT"), "write", None),
    }


# -- history -----------------------------------------------------------------------------------------------------------


def test_what_stays_the_same_takes_no_room():
    """A stream that nobody writes to takes two rows, from when it was seen first to when it was seen last."""
    history = LastHour()
    for at in range(0, 3000, 10):
        history.add(("stream", "A"), float(at), (0.0, 5.0, 50.0, 5.0), None)
    assert history.series(("stream", "A"), "messages") == [(0.0, 5.0), (2990.0, 5.0)]


def test_an_hour_is_kept_and_no_more():
    """What is older than the history goes; what nobody looked at for that long goes whole."""
    history = LastHour(seconds=100.0)
    history.add(("stream", "GONE"), 0.0, (0.0, 1.0, 1.0, 1.0), None)
    for at in range(0, 1000, 10):
        history.add(("stream", "A"), float(at), (0.0, float(at), 0.0, float(at)), None)
    kept = history.series(("stream", "A"), "messages")
    assert kept[0][0] >= 890.0
    assert len(kept) == 11
    assert history.series(("stream", "GONE"), "messages") == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1e6)), min_size=50, max_size=400))
def test_the_room_of_a_history_is_never_exceeded(looks: list[tuple[int, float]]):
    """Whatever is taken down, no more figures are kept than there is room for, and the newest of each thing is."""
    history, newest = LastHour(seconds=1e6, room=200), {}
    for place, (name, value) in enumerate(looks):
        when = 10.0 * place
        subject = ("consumer", "A", str(name))
        history.add(subject, when, (value, None, None, 0, 0, None, None), None)
        newest[subject] = (when, value)
        assert history.size <= 200
    assert {subject: history.series(subject, "lag")[-1] for subject in newest} == newest
    assert history.series(("consumer", "A", str(looks[0][0])), "lag_seconds") == [], "what nobody knew is no figure"
    assert history.series(("consumer", "A", "0"), "nothing") == []
    assert set(FIELDS) == {"stream", "consumer", "flow"}


def test_a_history_tells_when_a_sequence_was_stored():
    """The moment lies between the looks before and after it; before the first look nobody knows."""
    history = LastHour()
    for at, last in ((0.0, 100.0), (10.0, 200.0), (20.0, 200.0), (30.0, 300.0)):
        history.add(("stream", "A"), at, (0.0, last, 0.0, last), None)
    assert history.passed("A", 150) == 5.0
    assert history.passed("A", 250) == 25.0
    assert history.passed("A", 100) is None
    assert history.passed("A", 301) is None
    assert history.passed("B", 1) is None


def test_settings_are_checked():
    """A setting that is no number above zero is named before anything is asked."""
    assert SurveySettings(every=1).every == 1
    for name, value in (("requests", 0), ("at_once", 1.5), ("every", -1.0), ("room", True)):
        with pytest.raises(OptionError, match=name):
            SurveySettings(**{name: value})


def test_every_subject_has_its_page():
    """Names become paths whatever they hold; the account has no page."""
    assert page_of(("stream", "a/b?c")) == "/streams/a%2Fb%3Fc"
    assert page_of(("consumer", "a", "b#")) == "/streams/a/consumers/b%23"
    assert page_of(("flow", "p", "f")) == "/pipelines/one?name=p"
    assert page_of(("account", "memory")) is None
