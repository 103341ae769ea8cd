"""Topologies as data, plans as arithmetic, and the server's words read: deliveries, events, headers."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputError, RemoteProtocolError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream import Topology
from penstock.jetstream.changes import Plan, consumer_step, stream_step
from penstock.jetstream.delivery import parse_place
from penstock.jetstream.samples import AckSample, Advisory, Figures, parse_event
from penstock.model import Consumer, Stream
from penstock.wire.jetstream.direct import read_headers

TOML = """
[streams.ORDERS]
subjects = ["ORDERS.*"]
max_age = "7d"
max_bytes = "1GB"
sources = []

[streams.ORDERS.consumers.DISPATCH]
filter_subjects = ["ORDERS.processed"]
ack_wait = "30s"
sample_freq = 80

[streams.ORDERS.consumers.MONITOR]
ephemeral = true
deliver_policy = "last"

[streams.COPY]
mirror = { name = "ORDERS" }
"""


def test_a_file_and_python_say_the_same():
    """What TOML declares is what the models declare; durations, sizes and percentages are written as people do."""
    made = Topology(
        [
            Stream(name="ORDERS", subjects=["ORDERS.*"], max_age=604800, max_bytes=1024**3),
            Stream(name="COPY", mirror={"name": "ORDERS"}),
        ],
        {
            "ORDERS": [
                Consumer(durable="DISPATCH", filter_subjects=["ORDERS.processed"], ack_wait=30, sample_freq="80"),
                Consumer(name="MONITOR", deliver_policy="last"),
            ]
        },
    )
    assert Topology.parse(TOML) == made
    assert Topology.parse(TOML) != Topology()


def test_the_topologies_of_the_docs_can_be_read():
    """Every TOML block in the pages is a topology, and so is every YAML block with streams."""
    pages = (Path(__file__).resolve().parents[2] / "docs").rglob("*.md")
    found = [block for page in pages for block in re.findall(r"```(toml|yaml)\n(.*?)```", page.read_text(), re.S)]
    forms = {form for form, text in found if form == "toml" or text.startswith("streams:")}
    assert forms == {"toml", "yaml"}
    for form, text in found:
        if form in forms:
            Topology.parse(text, form)


def test_limits_of_consumers_are_written_as_people_do():
    """The longest inactive threshold is a duration, as everywhere."""
    made = Topology.parse("[streams.A]\nconsumer_limits = { inactive_threshold = '1m', max_ack_pending = 5 }")
    assert made.streams["A"].consumer_limits == {"inactive_threshold": 60 * 10**9, "max_ack_pending": 5}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[streams.A", "This is not TOML"),
        ("[stream.A]", "has no 'stream'. Did you mean 'streams'"),
        ("streams = 5", "not a table of tables"),
        ("[streams.A]\nmax_mgs = 5", "Stream A: there is no field 'max_mgs', did you mean 'max_msgs'"),
        ("[streams.A]\nmax_msgs = -5", "max_msgs is -5"),
        ("[streams.A]\nmax_bytes = 'much'", "max_bytes of stream A is 'much'"),
        ("[streams.A]\nmax_age = 'soon'", "max_age is 'soon', which is not a duration"),
        ("[streams.A]\nname = 'B'", "says that its name is B"),
        ("[streams.'A.B']", "a name has no dots"),
        ("[streams.A]\nunknown = {}", "no field 'unknown'"),
        ("[streams.A]\nsubjects = ['x.>']\n[streams.B]\nsubjects = ['x.y']", "Streams A and B overlap"),
        ("[streams.A.consumers.c]\ndurable = 'd'", "says durable"),
        ("[streams.A.consumers.c]\nephemeral = 1", "Write true or false"),
        (
            "[streams.A.consumers.c]\nack_polcy = 'none'",
            "Consumer c of A: there is no field 'ack_polcy', did you mean 'ack_policy'",
        ),
        ("[streams.A.consumers.'c.d']", "a name has no dots"),
        ("[streams.A]\nconsumers = 5", "streams.A.consumers is not a table of tables"),
        (
            "[streams.A]\nretention = 'workqueue'\n[streams.A.consumers.a]\n[streams.A.consumers.b]",
            "Consumers a and b of the work queue A overlap",
        ),
    ],
)
def test_bad_files(text: str, says: str):
    """What a file says wrong is one sentence."""
    with pytest.raises(InputError, match=says) as caught:
        Topology.parse(text)
    assert "\n" not in caught.value.what


def test_bad_files_are_named(tmp_path: Any):
    """The sentence begins with the file; a file that is not there is told."""
    (tmp_path / "t.toml").write_text("[streams.A]\nmax_msgs = -5")
    with pytest.raises(InputError, match=r"t\.toml: Stream A: max_msgs"):
        Topology.load(tmp_path / "t.toml")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        Topology.load(tmp_path / "u.toml")
    (tmp_path / "v.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read: it is not UTF-8 text"):
        Topology.load(tmp_path / "v.toml")


def test_consumers_need_a_declared_stream_and_a_name():
    """A consumer of no stream, without a name or twice is refused."""
    stream = Stream(name="ORDERS")
    with pytest.raises(InputError, match=r"ORDRES, which is not declared. Did you mean ORDERS"):
        Topology([stream], {"ORDRES": [Consumer(durable="c")]})
    with pytest.raises(InputError, match="has no name"):
        Topology([stream], {"ORDERS": [Consumer()]})
    with pytest.raises(InputError, match="declared twice"):
        Topology([stream], {"ORDERS": [Consumer(durable="c"), Consumer(durable="c")]})


# -- plans -----------------------------------------------------------------------------------------------------------


def there(messages: int = 0, bytes_: int = 0, subjects: int = 0, age: float = 0, **fields: Any) -> StreamInfo:
    """A stream as a server would show it, with the defaults it fills in."""
    config = Stream(name="S", subjects=["s.>"], **{"duplicate_window": 120.0, **fields})
    first = datetime.now(UTC) - timedelta(seconds=age)
    state = {"messages": messages, "bytes": bytes_, "num_subjects": subjects, "first_ts": first.isoformat()}
    return StreamInfo.from_json({"config": {**config.to_json(), "of_tomorrow": 1}, "state": state})


def test_the_same_is_no_change():
    """What the server fills in, keys of its own and zero for no limit are no drift."""
    wanted = Stream(name="S", subjects=["s.>"], max_msgs=0, metadata={"a": "b"})
    info = there(metadata={"a": "b", "_nats.ver": "2.15.1"})
    assert stream_step(wanted, info).action == "none"
    assert stream_step(wanted, None).action == "create"


def test_changes_are_told_field_by_field():
    """A plan names each field, its old and its new value; what does not change goes back as it came."""
    step = stream_step(Stream(name="S", subjects=["s.>", "t"], max_age=60, description="d"), there())
    assert [(change.field, change.old, change.new) for change in step.changes] == [
        ("subjects", ["s.>"], ["s.>", "t"]),
        ("description", None, "d"),
        ("max_age", 0.0, 60.0),
    ]
    assert str(step.changes[1]) == "description: nothing -> d"
    assert isinstance(step.target, Stream)
    assert step.target.to_json()["of_tomorrow"] == 1
    assert step.target.duplicate_window == 60.0  # a window that nobody chose follows


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ({}, {"storage": "memory"}, "storage"),
        ({"retention": "workqueue"}, {}, "retention"),
        ({}, {"retention": "workqueue"}, "retention"),
        ({"deny_delete": True}, {}, "deny_delete"),
        ({"allow_msg_ttl": True}, {}, "allow_msg_ttl"),
        ({}, {"allow_msg_counter": True}, "allow_msg_counter"),
    ],
)
def test_what_no_update_can_change_is_a_conflict(old: dict[str, Any], new: dict[str, Any], field: str):
    """The error names the field, and the plan is refused as a whole."""
    plan = Plan((stream_step(Stream(name="S", subjects=["s.>"], **new), there(**old)),))
    assert [change.field for change in plan.steps[0].conflicts] == [field]
    with pytest.raises(InputError, match=f"stream S: {field} is .* and cannot become .*Nothing was changed"):
        plan.check(may_lose_data=True)


@pytest.mark.parametrize(
    ("state", "new", "says"),
    [
        ({"messages": 10}, {"max_msgs": 4}, "it would drop 6 of 10 messages"),
        ({"messages": 10, "bytes_": 1000}, {"max_bytes": 400}, "it would drop 600 of 1,000 bytes"),
        ({"messages": 10, "age": 100}, {"max_age": 50}, "it would drop messages older than 50s"),
        ({"messages": 10, "subjects": 2}, {"max_msgs_per_subject": 5}, "all but the last 5 messages of a subject"),
        ({"messages": 10}, {"retention": "interest"}, "messages that no consumer waits for"),
    ],
)
def test_what_would_drop_messages_must_be_allowed(state: dict[str, Any], new: dict[str, Any], says: str):
    """A change that would drop what the stream holds is refused unless the caller gave it up."""
    plan = Plan((stream_step(Stream(name="S", subjects=["s.>"], **new), there(**state)),))
    with pytest.raises(InputError, match=f"This would lose data: stream S: .*{says}"):
        plan.check()
    plan.check(may_lose_data=True)
    assert says in json.dumps(plan.to_json())


@pytest.mark.parametrize(
    ("state", "new"),
    [
        ({"messages": 10}, {"max_msgs": 10}),
        ({"messages": 10}, {"max_msgs": 4, "discard": "new"}),
        ({"messages": 10, "subjects": 9}, {"max_msgs_per_subject": 2}),
        ({"messages": 10, "age": 10}, {"max_age": 50}),
        ({"messages": 0}, {"retention": "interest", "max_msgs": 1}),
    ],
)
def test_what_drops_nothing_is_no_loss(state: dict[str, Any], new: dict[str, Any]):
    """A tighter limit that nothing reaches is an ordinary change."""
    step = stream_step(Stream(name="S", subjects=["s.>"], **new), there(**state))
    assert step.action == "update"
    assert not step.losses


def consumer_there(**fields: Any) -> ConsumerInfo:
    config = {"ack_wait": 30.0, "max_ack_pending": 1000, "max_waiting": 512, **fields}
    config = Consumer(durable="c", name="c", **config).to_json()
    return ConsumerInfo.from_json({"stream_name": "S", "name": "c", "config": config})


def test_consumers_are_compared_in_the_same_way():
    """What is left open is no change; one filter may be written in two ways; fixed fields are conflicts."""
    one = consumer_there(filter_subject="s.a")
    assert consumer_step("S", "c", Consumer(durable="c", filter_subjects=["s.a"]), one).action == "none"
    step = consumer_step("S", "c", Consumer(durable="c", filter_subjects=["s.a", "s.b"], max_deliver=5), one)
    assert [change.field for change in step.changes] == ["filter_subjects", "max_deliver"]
    assert isinstance(step.target, Consumer)
    assert (step.target.filter_subject, step.target.filter_subjects) == (None, ["s.a", "s.b"])
    for fields in ({"ack_policy": "none"}, {"replay_policy": "original"}, {"deliver_subject": "out"}):
        step = consumer_step("S", "c", Consumer(durable="c", filter_subject="s.a", **fields), one)
        assert [change.field for change in step.conflicts] == list(fields)


# -- the server's words ----------------------------------------------------------------------------------------------


def test_places_are_read():
    """A reply subject tells where a delivery stands, with a domain or without."""
    place = parse_place("$JS.ACK.ORDERS.C.2.7.9.1700000000123456789.5")
    assert (place.stream, place.consumer, place.delivered, place.sequence) == ("ORDERS", "C", 2, 7)
    assert (place.consumer_sequence, place.pending, place.domain) == (9, 5, None)
    assert place.time == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    other = parse_place("$JS.ACK.hub.abcDEF.ORDERS.C.2.7.9.1700000000123456789.5.x7")
    assert (other.domain, other.stream, other.pending) == ("hub", "ORDERS", 5)
    assert parse_place("$JS.ACK._.abc.S.C.1.1.1.1.0.x").domain is None


@pytest.mark.parametrize("reply", ["", "_INBOX.x", "$JS.ACK.S.C.1.2.3.4", "$JS.ACK.S.C.one.2.3.4.5"])
def test_other_replies_are_no_places(reply: str):
    """What is no reply subject of a delivery is refused."""
    with pytest.raises(RemoteProtocolError):
        parse_place(reply)


def test_header_blocks_are_read():
    """Every value of a name is kept, in order."""
    assert read_headers(b"NATS/1.0\r\nA: 1\r\nB:x:y\r\nA: 2\r\n\r\n") == {"A": ["1", "2"], "B": ["x:y"]}
    assert read_headers(b"") == {}


SAMPLE = {
    "type": "io.nats.jetstream.metric.v1.consumer_ack",
    "id": "x",
    "timestamp": "2026-01-31T23:59:59.123456789Z",
    "stream": "S",
    "consumer": "C",
    "consumer_seq": 9,
    "stream_seq": 7,
    "ack_time": 1_500_000,
    "deliveries": 2,
}


def test_events_are_read():
    """A sample becomes a sample, anything else of the server an advisory, and anything else an error."""
    sample = parse_event(json.dumps(SAMPLE).encode())
    assert isinstance(sample, AckSample)
    assert (sample.sequence, sample.deliveries, sample.ack_time) == (7, 2, 0.0015)
    kind = "io.nats.jetstream.advisory.v1.max_deliver"
    advisory = parse_event(json.dumps({**SAMPLE, "type": kind}).encode())
    assert isinstance(advisory, Advisory)
    assert (advisory.kind, advisory.summary) == ("max_deliver", "stream_seq 7, deliveries 2")
    for data in (b"", b"5", b"[]", b"{}", b"[" * 20_000):
        with pytest.raises(RemoteProtocolError):
            parse_event(data)


@pytest.mark.parametrize("kind", [SAMPLE["type"], "io.nats.jetstream.advisory.v1.nak"])
@pytest.mark.parametrize("value", ["a b", "a.b", "x" * 256, [], ["a"], {"a": 1}, True, 1.5, 10**400, float("nan")])
def test_an_event_with_a_field_that_is_none_is_no_event(kind: str, value: Any):
    """Anybody may publish where the server tells its events: no value of a field becomes an error later on."""
    fields = ["timestamp", "stream", "consumer"]
    if kind == SAMPLE["type"]:
        fields += ["consumer_seq", "stream_seq", "ack_time", "deliveries"]
    for field in fields:
        with pytest.raises(RemoteProtocolError):
            parse_event(json.dumps({**SAMPLE, "type": kind, field: value}).encode())
    with pytest.raises(RemoteProtocolError):
        parse_event(json.dumps({**SAMPLE, "type": kind, "more": "x" * 100_000}).encode())


def test_figures_add_up():
    """Counts, the most deliveries and percentiles follow from the events."""
    figures = Figures()
    assert figures.percentile(0.5) is None
    for number in range(1, 101):
        event = parse_event(json.dumps({**SAMPLE, "ack_time": number * 1_000_000, "deliveries": 1}).encode())
        figures.add(event)
    figures.add(parse_event(json.dumps({**SAMPLE, "deliveries": 5, "ack_time": 500_000_000}).encode()))
    for kind in ("nak", "terminated", "max_deliver", "consumer_action"):
        figures.add(parse_event(json.dumps({**SAMPLE, "type": f"io.nats.jetstream.advisory.v1.{kind}"}).encode()))
    assert (figures.samples, figures.redelivered, figures.most_deliveries) == (101, 1, 5)
    assert (figures.naks, figures.terminated, figures.exceeded) == (1, 1, 1)
    assert figures.percentile(0.5) == pytest.approx(0.051)
    assert figures.percentile(1) == 0.5
    assert figures.to_json()["ack_seconds"]["p99"] == pytest.approx(0.1)
    with pytest.raises(InputError):
        figures.percentile(50)
