"""How a key-value bucket is a stream: its declaration is that of nats.go, names are checked, mirrors keep subjects."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.buckets.key_stream import addresses_of, bucket_of, bucket_source, bucket_stream
from penstock.buckets.key_wire import check_bucket, check_key, check_key_filter, key_of, marker_reason, operation_of
from penstock.errors import InputError
from penstock.model import ExternalStream, Stream, StreamSource, SubjectTransform

# What nats.go 1.53 declares for a bucket of the same fields, but for what is the server's own default.
DECLARED = {
    "name": "KV_prices",
    "subjects": ["$KV.prices.>"],
    "max_msgs_per_subject": 5,
    "max_bytes": 1000,
    "max_msg_size": 100,
    "max_age": 60_000_000_000,
    "duplicate_window": 60_000_000_000,
    "storage": "memory",
    "num_replicas": 1,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "allow_direct": True,
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 5_000_000_000,
    "compression": "s2",
}


def test_a_bucket_is_declared_as_others_declare_it():
    """Every field that a bucket sets is the one that nats.go sets."""
    made = bucket_stream(
        "prices",
        history=5,
        ttl="1m",
        max_bytes=1000,
        max_value_size=100,
        storage="memory",
        compression=True,
        marker_ttl=5,
    ).to_json()
    assert {name: made[name] for name in DECLARED} == DECLARED
    assert {made[name] for name in ("max_msgs", "max_consumers")} == {-1}
    plain = bucket_stream("prices").to_json()
    assert (plain["max_msgs_per_subject"], plain["duplicate_window"]) == (1, 120_000_000_000)
    assert "allow_msg_ttl" not in plain


def test_a_mirror_has_no_subjects_and_names_the_stream_of_its_origin():
    """The origin may be named as a bucket or as a stream, and be in another domain."""
    for origin in ("prices", "KV_prices", bucket_source("prices"), StreamSource(name="prices")):
        made = bucket_stream("copy", mirror=origin)
        assert made.mirror is not None
        assert (made.mirror.name, made.subjects, made.mirror_direct) == ("KV_prices", [], True)
    abroad = bucket_source("prices", "hub")
    assert abroad.external == ExternalStream(api="$JS.hub.API")


def test_sources_arrive_under_the_subjects_of_the_bucket():
    """A source that says itself how its subjects change is left as it is."""
    made = bucket_stream("all", sources=["eu", "KV_us"])
    assert [item.name for item in made.sources] == ["KV_eu", "KV_us"]
    assert made.sources[0].subject_transforms == [SubjectTransform(src="$KV.eu.>", dest="$KV.all.>")]
    own = StreamSource(name="ORDERS", subject_transforms=[SubjectTransform(src="ORDERS.*", dest="$KV.all.{{1}}")])
    assert bucket_stream("all", sources=[own]).sources == [own]
    assert bucket_stream("all", sources=[bucket_source("all", "hub")]).sources[0].subject_transforms == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"history": 0}, "1 to 64"),
        ({"history": 65}, "1 to 64"),
        ({"history": True}, "history is True"),
        ({"ttl": "soon"}, "ttl is 'soon'"),
        ({"max_bytes": -5}, "max_bytes is -5"),
        ({"mirror": "a", "sources": ["b"]}, "has a mirror and sources"),
        ({"mirror": "a.b"}, "cannot be the name of a bucket"),
        ({"storage": "tape"}, "storage is 'tape'"),
    ],
)
def test_what_no_bucket_can_be_is_said_before_anything_is_sent(fields: dict[str, Any], said: str):
    """One sentence names the field."""
    with pytest.raises(InputError, match=said):
        bucket_stream("prices", **fields)


def test_where_keys_are_read_and_written():
    """A mirror is read under the subjects of its origin and written there; another domain has its own way."""
    plain = addresses_of("b", bucket_stream("b"))
    assert (plain.stream, plain.kept, plain.written, plain.origin) == ("KV_b", "$KV.b.", "$KV.b.", "KV_b")
    abroad = addresses_of("b", bucket_stream("b"), "$JS.hub.API")
    assert (abroad.kept, abroad.written, abroad.abroad) == ("$KV.b.", "$JS.hub.API.$KV.b.", False)
    mirror = addresses_of("m", bucket_stream("m", mirror="b"))
    assert (mirror.stream, mirror.kept, mirror.written, mirror.origin) == ("KV_m", "$KV.b.", "$KV.b.", "KV_b")
    far = addresses_of("m", bucket_stream("m", mirror=bucket_source("b", "hub")))
    assert (far.kept, far.written, far.abroad) == ("$KV.b.", "$JS.hub.API.$KV.b.", True)


def test_names():
    """Buckets, keys and filters of keys are what every client takes, and nothing else becomes part of a subject."""
    for key in ("a", "a.b", "A-1/x_y=z", "a.b.c.d"):
        assert check_key(key) == check_key_filter(key) == key
    for key in ("", ".", ".a", "a.", "a..b", "a b", "a*", ">", "ä", "a\r\nPUB x", "a\n"):
        with pytest.raises(InputError):
            check_key(key)
    for pattern in (">", "*", "a.*", "a.>", "*.b"):
        assert check_key_filter(pattern) == pattern
    for pattern in ("", "a*", ">.a", "a.>.b", "a..*", "x\n"):
        with pytest.raises(InputError):
            check_key_filter(pattern)
    for bucket in ("", "a.b", "a b", "ä", "a\n"):
        with pytest.raises(InputError):
            check_bucket(bucket)
    assert key_of("b", "$KV.b.x.y") == "x.y"
    assert key_of("b", "$KV.c.x") is key_of("b", "$KV.b.") is None
    assert (bucket_of("KV_b"), bucket_of("ORDERS"), bucket_of("KV_")) == ("b", None, None)


@pytest.mark.parametrize(
    ("headers", "operation", "reason"),
    [
        ({}, "PUT", None),
        ({"KV-Operation": ["DEL"]}, "DEL", None),
        ({"KV-Operation": ["PURGE"], "Nats-Rollup": ["sub"]}, "PURGE", None),
        ({"KV-Operation": ["NEW"]}, "PUT", None),
        ({"Nats-Marker-Reason": ["MaxAge"]}, "PURGE", "MaxAge"),
        ({"Nats-Marker-Reason": ["Remove"]}, "DEL", "Remove"),
    ],
)
def test_what_a_message_did_to_its_key(headers: dict[str, list[str]], operation: str, reason: str | None):
    """Clients and the server itself say it in headers."""
    assert (operation_of(headers), marker_reason(headers)) == (operation, reason)


def test_a_bucket_survives_its_json():
    """What a server says of the stream of a bucket is read as the declaration that made it."""
    made = bucket_stream("b", history=3, metadata={"owner": "x"}, description="words")
    assert Stream.from_json(made.to_json()) == made
