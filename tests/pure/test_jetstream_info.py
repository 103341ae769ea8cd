"""What the server says of streams and consumers: read whole, with what is left out, and with anything in its place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import InputError, RemoteProtocolError
from penstock.info import Alternate, ConsumerInfo, Replica, StreamInfo

STREAM: dict[str, Any] = {
    "config": {"name": "S", "subjects": ["s.>"], "description": "Orders."},
    "created": "2026-01-31T23:59:59.123456789Z",
    "state": {
        "messages": 3,
        "bytes": 99,
        "first_seq": 2,
        "first_ts": "2026-01-31T23:59:59Z",
        "last_seq": 5,
        "last_ts": "0001-01-01T00:00:00Z",
        "consumer_count": 1,
        "num_subjects": 2,
        "num_deleted": 1,
        "deleted": [4],
        "lost": {"msgs": [3], "bytes": 7},
        "subjects": {"s.a": 2, "s.b": 1},
    },
    "cluster": {
        "name": "C",
        "leader": "n1",
        "leader_since": "2026-01-31T23:59:59Z",
        "raft_group": "S-R3F-x",
        "system_account": True,
        "traffic_account": "A",
        "replicas": [
            {"name": "n2", "current": True, "active": 1_500_000_000, "peer": "p2"},
            {"name": "n3", "offline": True, "lag": 7, "pending": True},
        ],
    },
    "ts": "2026-01-31T23:59:59Z",
    "domain": "hub",
    "alternates": [{"name": "S", "cluster": "C"}, {"name": "M", "cluster": "D", "domain": "leaf"}],
    "sources": [
        {"name": "A", "lag": 7, "active": 1_500_000_000, "error": {"code": 404, "description": "no such stream"}},
        {
            "name": "B",
            "lag": 0,
            "active": -1,
            "filter_subject": "b.>",
            "subject_transforms": [{"src": "b.>", "dest": "c.>"}],
            "external": {"api": "$JS.leaf.API"},
        },
    ],
    "mirror": {"name": "M", "lag": 1},
}
CONSUMER: dict[str, Any] = {
    "stream_name": "S",
    "name": "c",
    "config": {"durable_name": "c", "ack_policy": "explicit"},
    "created": "2026-01-31T23:59:59Z",
    "delivered": {"consumer_seq": 4, "stream_seq": 5, "last_active": "2026-01-31T23:59:59Z"},
    "ack_floor": {"consumer_seq": 2, "stream_seq": 3},
    "num_ack_pending": 2,
    "num_redelivered": 1,
    "priority_groups": [{"group": "g", "pinned_client_id": "pin1", "pinned_ts": "2026-01-31T23:59:59Z"}],
    "num_waiting": 6,
    "num_pending": 7,
    "push_bound": True,
    "paused": True,
    "pause_remaining": 2_500_000_000,
    "cluster": {"name": "C", "leader": "n1"},
    "ts": "2026-01-31T23:59:59Z",
}
WRONG = ["text", -7, 1.5, True, [7], {"a": 1}, 10**30, float("nan")]


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the way to every value that stands somewhere in an answer."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def changed(content: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(content)
    inner: Any = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def test_a_stream() -> None:
    """Every figure of a stream is read; Go's zero time is none, and a copy that was never active has no age."""
    info = StreamInfo.from_json(STREAM)
    assert (info.name, info.messages, info.bytes, info.first_sequence, info.last_sequence) == ("S", 3, 99, 2, 5)
    assert (info.consumers, info.subjects, info.deleted, info.description) == (1, 2, 1, "Orders.")
    assert info.created == datetime(2026, 1, 31, 23, 59, 59, 123456, tzinfo=UTC)
    assert (info.first_time, info.last_time) == (datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC), None)
    assert (info.placed.leader, info.placed.cluster, info.placed.replicas) == ("n1", "C", (("n2", True), ("n3", False)))
    assert [(item.name, item.lag, item.active) for item in info.copies] == [
        ("A", 7, 1.5),
        ("B", 0, None),
        ("M", 1, None),
    ]
    assert info.config.subjects == ["s.>"]
    assert [(item.error, item.filter_subject, item.transforms, item.external) for item in info.copies] == [
        ("no such stream", None, (), None),
        ("", "b.>", (("b.>", "c.>"),), "$JS.leaf.API"),
        ("", None, (), None),
    ]
    assert (info.lost, info.lost_bytes) == (1, 7)
    moment = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    assert (info.time, info.domain, info.held, info.gaps) == (moment, "hub", {"s.a": 2, "s.b": 1}, (4,))
    assert info.alternates == (Alternate("S", "C", None), Alternate("M", "D", "leaf"))
    placed = info.placed
    assert (placed.leader_since, placed.group, placed.system_account) == (moment, "S-R3F-x", True)
    assert placed.traffic_account == "A"
    assert placed.others == (
        Replica(name="n2", current=True, offline=False, active=1.5, lag=0, id="p2", pending=False),
        Replica(name="n3", current=False, offline=True, active=None, lag=7, id="", pending=True),
    )


@pytest.mark.parametrize("kind", [StreamInfo, ConsumerInfo])
def test_what_a_newer_server_says_is_kept(kind: Any) -> None:
    """Fields that this version does not know, of any depth, stand in `raw`."""
    content = {**(STREAM if kind is StreamInfo else CONSUMER), "of_tomorrow": {"a": 1}}
    assert kind.from_json(content).raw["of_tomorrow"] == {"a": 1}


def test_a_consumer() -> None:
    """Every figure of a consumer is read."""
    info = ConsumerInfo.from_json(CONSUMER)
    assert (info.stream, info.name, info.ack_pending, info.redelivered) == ("S", "c", 2, 1)
    assert (info.waiting, info.pending, info.push_bound, info.paused, info.pause_remaining) == (6, 7, True, True, 2.5)
    assert (info.delivered.consumer, info.delivered.stream) == (4, 5)
    assert info.delivered.last == datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    assert (info.ack_floor.consumer, info.ack_floor.stream, info.ack_floor.last) == (2, 3, None)
    assert (info.placed.leader, info.placed.replicas, info.config.durable) == ("n1", (), "c")
    (group,) = info.groups
    assert (group.name, group.pin, group.since) == ("g", "pin1", datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC))
    assert not info.is_sourcing
    assert info.time == info.created


def test_what_is_left_out() -> None:
    """A lone server says little: what it leaves out is nothing."""
    stream = StreamInfo.from_json({"config": {"name": "S"}, "state": {}})
    assert (stream.messages, stream.created, stream.placed.leader, stream.copies) == (0, None, None, ())
    consumer = ConsumerInfo.from_json({"stream_name": "S", "name": "c", "config": {}})
    assert (consumer.pending, consumer.delivered.stream, consumer.pause_remaining) == (0, 0, None)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize(
    ("kind", "content", "path"),
    [
        pytest.param(kind, content, path, id=".".join(map(str, path)))
        for kind, content in ((StreamInfo, STREAM), (ConsumerInfo, CONSUMER))
        for path in places(content)
    ],
)
def test_anything_in_the_place_of_a_value(kind: Any, content: Any, path: tuple[Any, ...], wrong: Any) -> None:
    """Whatever stands where something else should, the answer is read, or refused as the server's fault."""
    try:
        info = kind.from_json(changed(content, path, wrong))
    except RemoteProtocolError:
        return
    try:
        info.config  # noqa: B018  # it is read when it is asked for
    except InputError:
        assert path[0] == "config"


@pytest.mark.parametrize("gone", [("config",), ("state",), ("config", "name"), ("sources", 0, "name")])
def test_what_a_stream_must_say(gone: tuple[Any, ...]) -> None:
    """A stream has a configuration with its name, and a state; what it copies has a name."""
    made = changed(STREAM, gone, None)
    with pytest.raises(RemoteProtocolError):
        StreamInfo.from_json(made)


@pytest.mark.parametrize("gone", ["stream_name", "name", "config"])
def test_what_a_consumer_must_say(gone: str) -> None:
    """A consumer has a name, a stream and a configuration."""
    with pytest.raises(RemoteProtocolError):
        ConsumerInfo.from_json({name: value for name, value in CONSUMER.items() if name != gone})
