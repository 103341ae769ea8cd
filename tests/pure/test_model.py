"""The model: the server's JSON there and back, with nothing lost; and what is no stream or consumer.

The golden files hold what nats-server 2.15.1 answered when each was created; `tests/live/test_model.py` creates them
anew and compares.
"""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.model import (
    Consumer,
    Message,
    Placement,
    PubAck,
    Stream,
    StreamSource,
    format_time,
    parse_time,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
STREAMS = json.loads((GOLDEN / "streams.json").read_text())
CONSUMERS = json.loads((GOLDEN / "consumers.json").read_text())


def meant(config: dict[str, Any], kind: type[Stream] | type[Consumer]) -> dict[str, Any]:
    """Leave out what means nothing on the wire: empty objects, and false where false is the default."""
    plain = {name for name, item in kind.model_fields.items() if item.default is False}
    return {
        name: value
        for name, value in config.items()
        if value not in ({}, []) and not (value is False and name in plain)
    }


# -- golden files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_the_server_comes_back_as_it_was(name: str) -> None:
    """Reading a stream's configuration and writing it again changes nothing that the server would see."""
    stream = Stream.from_json(STREAMS[name])
    assert stream.unknown == {}
    assert meant(stream.to_json(), Stream) == meant(STREAMS[name], Stream)
    assert Stream.from_json(stream.to_json()) == stream


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_of_the_server_comes_back_as_it_was(name: str) -> None:
    """Reading a consumer's configuration and writing it again changes nothing that the server would see."""
    consumer = Consumer.from_json(CONSUMERS[name])
    assert consumer.unknown == {}
    assert meant(consumer.to_json(), Consumer) == meant(CONSUMERS[name], Consumer)
    assert Consumer.from_json(consumer.to_json()) == consumer


def test_what_the_server_wrote_is_understood() -> None:
    """Durations become seconds, times become aware datetimes, and inner objects values of their own."""
    stream = Stream.from_json(STREAMS["FULL"])
    assert (stream.max_age, stream.duplicate_window) == (3600.000000001, 120.0)
    assert stream.sources[0].opt_start_time == datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)
    assert stream.sources[1].external is not None
    assert stream.sources[1].external.deliver == "deliver.hub"
    assert stream.sources[1].subject_transforms[0].dest == "y.$1"
    assert stream.republish is not None
    assert stream.republish.headers_only
    consumer = Consumer.from_json(CONSUMERS["full"])
    assert (consumer.durable, consumer.backoff) == ("full", [1.500000001, 2.0, 10.0])
    assert consumer.pause_until == datetime(2099, 1, 1, tzinfo=UTC)


def test_all_durations_are_known() -> None:
    """Every duration of the golden files is in seconds: none is left in nanoseconds."""
    for golden, kind in ((STREAMS, Stream), (CONSUMERS, Consumer)):
        for config in golden.values():
            for name, value in kind.from_json(config).model_dump().items():
                if name not in ("metadata", "consumer_limits", "max_bytes", "rate_limit_bps"):
                    numbers = value if isinstance(value, list) else [value]
                    assert all(number < 1e8 for number in numbers if isinstance(number, int | float)), name


# -- nothing is lost -----------------------------------------------------------------------------------------


def test_unknown_fields_are_kept() -> None:
    """What a newer server says survives an edit, also inside of inner objects."""
    content = {
        "name": "S",
        "of_tomorrow": {"a": [1]},
        "placement": {"cluster": "east", "zone": "z1"},
        "sources": [{"name": "O", "speed": 9}],
    }
    stream = Stream.from_json(content)
    assert stream.unknown == {"of_tomorrow": {"a": [1]}}
    edited = stream.model_copy(update={"max_msgs": 5}).to_json()
    assert edited["max_msgs"] == 5
    assert {name: edited[name] for name in content} == content
    assert "of_tomorrow" not in repr(stream)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (kind, name)
        for kind, names in (
            (Stream, "retention storage discard compression persist_mode"),
            (Consumer, "deliver_policy ack_policy replay_policy priority_policy"),
        )
        for name in names.split()
    ],
)
def test_unknown_words_are_kept(kind: type[Stream] | type[Consumer], field: str) -> None:
    """A policy that this version has never heard of is read, shown and sent back; nobody can write one by mistake."""
    content = {"name": "S", "durable_name": "S", field: "of_tomorrow"} if kind is Consumer else {"name": "S"}
    made = kind.from_json({**content, field: "of_tomorrow"})
    assert getattr(made, field) == "of_tomorrow"
    for same in (made, made.changed(description="x"), pickle.loads(pickle.dumps(made)), made.model_copy()):
        assert same.to_json()[field] == "of_tomorrow"
    fields = {name: getattr(made, name) for name in kind.model_fields}
    assert kind(**{**fields, "description": "x"}).to_json()[field] == "of_tomorrow"
    with pytest.raises(InputError, match=f"{field} is 'of_tomorrow'"):
        made.changed(**{field: "of_tomorrow"})


def test_a_change_is_checked_and_leaves_the_rest() -> None:
    """`changed` takes what a constructor takes, and keeps every nanosecond of what it does not name."""
    stream = Stream.from_json({"name": "S", "max_age": 9_999_999_999_999_999, "x": 1})
    made = stream.changed(max_msgs=5, duplicate_window="1m")
    assert (made.max_msgs, made.duplicate_window) == (5, 60.0)
    assert (made.to_json()["max_age"], made.to_json()["x"]) == (9_999_999_999_999_999, 1)
    with pytest.raises(InputError, match="max_msgs is -5"):
        stream.changed(max_msgs=-5)
    with pytest.raises(InputError, match="there is no field 'max_mgs'"):
        stream.changed(max_mgs=5)


def test_a_field_named_unknown_is_only_unknown() -> None:
    """A field that has the name of our own bag does not get into it by the wrong door."""
    stream = Stream.from_json({"name": "S", "unknown": {"max_msgs": 1}})
    assert stream.unknown == {"unknown": {"max_msgs": 1}}
    assert stream.to_json()["unknown"] == {"max_msgs": 1}


@given(st.integers(min_value=0, max_value=2**63 - 1))
@example(9_999_999_999_999_999)
def test_no_nanosecond_of_a_duration_is_lost(nanoseconds: int) -> None:
    """Seconds as float cannot hold every duration; what the server wrote goes back to it all the same."""
    content = {"name": "S", "max_age": nanoseconds, "subject_delete_marker_ttl": nanoseconds}
    stream = Stream.from_json(content)
    assert stream.max_age == nanoseconds / 10**9  # of integers: rounded once
    assert {name: stream.to_json()[name] for name in content} == content
    for same in (pickle.loads(pickle.dumps(stream)), copy.deepcopy(stream), stream.model_copy()):
        assert same == stream
        assert same.to_json() == stream.to_json()


@given(st.lists(st.integers(min_value=0, max_value=2**63 - 1), max_size=4))
def test_no_nanosecond_of_a_backoff_is_lost(nanoseconds: list[int]) -> None:
    """Lists of durations are kept as exactly."""
    assert Consumer.from_json({"backoff": nanoseconds}).to_json().get("backoff", []) == nanoseconds


def test_no_nanosecond_of_a_time_is_lost() -> None:
    """A start time cannot be changed, so the server must get back the one that it wrote; an edit replaces it."""
    consumer = Consumer.from_json({"opt_start_time": "2026-01-31T23:59:59.123456789Z"})
    assert consumer.to_json()["opt_start_time"] == "2026-01-31T23:59:59.123456789Z"
    later = consumer.model_copy(update={"opt_start_time": datetime(2027, 1, 1, tzinfo=UTC)})
    assert later.to_json()["opt_start_time"] == "2027-01-01T00:00:00Z"


def test_null_means_not_given() -> None:
    """A null of the server is the default."""
    assert Stream.from_json({"name": "S", "subjects": None, "placement": None}) == Stream(name="S")


def test_false_is_written_where_it_says_something() -> None:
    """Direct reads are on by default here and off on the server: both are written."""
    assert Stream(name="S").to_json()["allow_direct"] is True
    assert Stream(name="S", allow_direct=False).to_json()["allow_direct"] is False
    assert Stream.from_json(Stream(name="S", allow_direct=False).to_json()).allow_direct is False


def test_a_stream_asks_only_for_what_is_set() -> None:
    """A server refuses fields that it does not know, so features that nobody asked for are not mentioned."""
    assert Stream(name="S").to_json() == {
        "name": "S",
        "retention": "limits",
        "storage": "file",
        "num_replicas": 1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
        "discard": "old",
        "compression": "none",
        "allow_direct": True,
    }
    assert Consumer(durable="c").to_json() == {
        "durable_name": "c",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "max_deliver": -1,
        "replay_policy": "instant",
    }


# -- durations and times -------------------------------------------------------------------------------------


def test_durations_are_given_as_people_write_them() -> None:
    """A duration is seconds, or text with a unit; on the wire it is nanoseconds."""
    stream = Stream(name="S", max_age="1h30m", duplicate_window=0.5)
    assert (stream.max_age, stream.to_json()["max_age"]) == (5400.0, 5_400_000_000_000)
    assert stream.to_json()["duplicate_window"] == 500_000_000
    assert Consumer(backoff=["1s", 2, "1m"]).to_json()["backoff"] == [10**9, 2 * 10**9, 60 * 10**9]


@given(
    st.datetimes(timezones=st.timezones() | st.just(UTC), min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1))
)
def test_times_keep_their_instant(time: datetime) -> None:
    """A time of any zone is written in UTC and read back as the same instant."""
    written = format_time(time)
    assert written.endswith("Z")
    assert parse_time(written) == time.astimezone(UTC)  # in UTC: a local time in a gap equals nothing


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-31T23:59:59Z", datetime(2026, 1, 31, 23, 59, 59, 0, UTC)),
        ("2026-01-31T23:59:59.5Z", datetime(2026, 1, 31, 23, 59, 59, 500000, UTC)),
        ("2026-01-31T23:59:59.1234Z", datetime(2026, 1, 31, 23, 59, 59, 123400, UTC)),
        ("2026-01-31T23:59:59.123456789Z", datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)),
        ("2026-01-31T23:59:59.999999999+02:00", datetime(2026, 1, 31, 21, 59, 59, 999999, UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_of_the_server_are_read(text: str, time: datetime) -> None:
    """Go writes as many digits as it needs, up to nine; what Python cannot hold is cut, never rounded up."""
    assert parse_time(text) == time


def test_a_time_in_another_zone_is_written_in_utc() -> None:
    """The server gets UTC, whatever zone a program lives in."""
    east = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert Consumer(opt_start_time=east).to_json()["opt_start_time"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """A time without a zone would mean another instant on another machine."""
    with pytest.raises(InputError, match=r"is not a time.*Write it as"):
        parse_time(text)
    with pytest.raises(InputError, match=r"Consumer: opt_start_time is .*not a time"):
        Consumer(opt_start_time=text)


def test_a_naive_datetime_is_refused() -> None:
    """Nobody guesses a zone."""
    with pytest.raises(InputError, match="has no zone"):
        Consumer(opt_start_time=datetime(2026, 1, 1))


# -- what is refused -----------------------------------------------------------------------------------------

BAD_NAMES = ["", "a.b", "a b", "a*", ">", "a/b", "a\\b", "a\tb", "a\x00b", "x" * 256, "ü" * 128]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused(name: str) -> None:
    """A name that the server would refuse, or that would be another subject, never gets there."""
    with pytest.raises(InputError, match=r"Stream: name is .* a name has"):
        Stream(name=name)
    with pytest.raises(InputError, match=r"Consumer: durable is .* a name has"):
        Consumer(durable=name)
    with pytest.raises(InputError, match="Consumer: name is"):
        Consumer(name=name)


@pytest.mark.parametrize("name", ["ORDERS", "orders-2_x", "Bücher", "x" * 255, "$KV"])
def test_good_names_are_taken(name: str) -> None:
    """Everything else is a name."""
    assert Stream(name=name).name == name


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_msgs": -2}, "max_msgs is -2"),
        ({"max_bytes": -2}, "max_bytes is -2"),
        ({"max_consumers": -2}, "max_consumers is -2"),
        ({"max_age": -1}, "max_age is -1"),
        ({"max_age": "-5s"}, "max_age is '-5s'"),
        ({"max_age": "soon"}, "max_age is 'soon', which is not a duration"),
        ({"max_age": float("inf")}, "max_age is inf"),
        ({"duplicate_window": float("nan")}, "duplicate_window is nan"),
        ({"num_replicas": 0}, "num_replicas is 0"),
        ({"num_replicas": 6}, "num_replicas is 6"),
        ({"first_seq": 0}, "first_seq is 0"),
        ({"retention": "forever"}, "retention is 'forever'"),
        ({"subjects": "orders.>"}, "subjects is 'orders.>'"),
        ({"sources": [{"name": "O", "opt_start_tme": 1}]}, r"sources\.0.*opt_start_tme"),
        ({"max_mgs": 5}, "there is no field 'max_mgs', did you mean 'max_msgs'"),
        ({"zzz": 5}, r"there is no field 'zzz'\."),
    ],
)
def test_what_is_no_stream_is_refused(fields: dict[str, Any], says: str) -> None:
    """Each wrong field is named with its value, in one sentence of ours."""
    with pytest.raises(InputError, match=says) as caught:
        Stream(name="S", **fields)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_several_mistakes_are_told_at_once() -> None:
    """Who wrote three things wrong need not try three times."""
    with pytest.raises(InputError, match=r"Stream: name is missing; max_msgs is -5: .*; there is no field"):
        Stream(max_msgs=-5, zzz=1)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "read from a JSON object, not from list"),
        ({"name": "S", "max_age": "5s"}, "max_age is '5s', and not a number of nanoseconds"),
        ({"name": "S", "max_age": 10**400}, "max_age is 1000.*000, and not a number of nanoseconds"),
        ({"name": "S", "mirror": "O"}, "StreamSource is read from a JSON object, not from str"),
        ({}, "name is missing"),
    ],
)
def test_json_that_is_no_stream_is_refused(content: Any, says: str) -> None:
    """What does not come from a server is an InputError, too."""
    with pytest.raises(InputError, match=says):
        Stream.from_json(content)


def test_values_are_frozen() -> None:
    """A declared stream is not changed in place."""
    with pytest.raises(ValueError, match="frozen"):
        Stream(name="S").max_msgs = 5  # type: ignore[misc]


# -- messages and acks ---------------------------------------------------------------------------------------


@given(
    st.binary(max_size=64),
    st.dictionaries(st.text(min_size=1, max_size=8), st.lists(st.text(max_size=8), min_size=1), max_size=3),
    st.integers(min_value=1),
)
def test_messages_survive_json(data: bytes, headers: dict[str, list[str]], sequence: int) -> None:
    """Any payload and headers go through JSON text and back."""
    time = datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)
    message = Message(subject="a.b", data=data, headers=headers, sequence=sequence, time=time, stream="S")
    assert Message.from_json(json.loads(json.dumps(message.to_json()))) == message


def test_a_payload_that_is_no_base64_is_refused() -> None:
    """A damaged payload is no other payload."""
    for data in ("%%%", "YQ", 5):
        with pytest.raises(InputError, match="data is not base64"):
            Message.from_json({"subject": "a", "data": data})


def test_a_stream_with_sources_is_completed() -> None:
    """Only a stream that has both subjects and sources, and says nothing of a window, is given one."""
    copied, both = {"sources": [StreamSource(name="O")]}, {"sources": [StreamSource(name="O")], "subjects": ["s"]}
    for fields, window in (
        ({}, None),
        ({"subjects": ["s"]}, None),
        (copied, None),
        (both, 120.0),
        ({**both, "max_age": 60.0}, 60.0),
        ({**both, "max_age": 600.0}, 120.0),
        ({**both, "duplicate_window": 0.0}, 0.0),
        ({**both, "duplicate_window": 5.0}, 5.0),
    ):
        assert Stream(name="S", **fields).completed().duplicate_window == window


def test_acks_are_read() -> None:
    """The server's short names become ours, and go back."""
    content = {"stream": "S", "seq": 7, "duplicate": True, "domain": "hub", "batch": "b", "count": 3, "val": "9"}
    ack = PubAck.from_json(content)
    assert (ack.stream, ack.sequence, ack.duplicate, ack.count) == ("S", 7, True, 3)
    assert (ack.seq, ack.value) == (7, "9")
    assert ack.to_json() == content


def test_inner_values_are_given_as_values_or_as_fields() -> None:
    """A source may be written as a value or as plain fields."""
    source = StreamSource(name="O", opt_start_seq=5)
    assert Stream(name="S", sources=[source]) == Stream(name="S", sources=[{"name": "O", "opt_start_seq": 5}])
    assert Stream(name="S", placement=Placement(tags=["ssd"])).to_json()["placement"] == {"tags": ["ssd"]}
