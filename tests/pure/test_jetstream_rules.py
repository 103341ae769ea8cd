"""Subjects, the rules of streams and consumers, sizes, and what a message may say of itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputError, OptionError
from penstock.jetstream.outgoing import Outgoing
from penstock.jetstream.rules import (
    check_consumer,
    check_consumers_together,
    check_stream,
    check_streams_together,
    stream_subjects,
)
from penstock.jetstream.size import estimate, record_size
from penstock.model import Consumer, Stream
from penstock.sizes import format_size, parse_size
from penstock.wire.subjects import covers, is_literal, overlaps, subject_fault

# -- subjects --------------------------------------------------------------------------------------------------------

patterns = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"])])
)
literals = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(".".join)


def matches(pattern: str, subject: str) -> bool:
    """The plain meaning of wildcards, token by token, against which the others are held."""
    want, have = pattern.split("."), subject.split(".")
    if want[-1] == ">":
        if len(have) < len(want):
            return False
        want, have = want[:-1], have[: len(want) - 1]
    return len(want) == len(have) and all(a in ("*", b) for a, b in zip(want, have, strict=True))


@given(patterns, patterns, literals)
def test_what_matches_both_patterns_shows_that_they_overlap(one: str, other: str, subject: str):
    """Patterns overlap when a subject matches both, and overlap goes both ways."""
    if matches(one, subject) and matches(other, subject):
        assert overlaps(one, other)
    assert overlaps(one, other) == overlaps(other, one)


@given(patterns, patterns, literals)
def test_what_a_covered_pattern_matches_the_cover_matches(one: str, other: str, subject: str):
    """A pattern that covers another matches all that the other matches, and overlaps it."""
    if covers(one, other):
        assert overlaps(one, other)
        assert not matches(other, subject) or matches(one, subject)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("ORDERS.*", "ORDERS.new", True),
        ("ORDERS.>", "ORDERS", False),
        ("ORDERS.>", ">", True),
        ("a.*.c", "a.b.*", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.>", True),
        ("a.*.c", "a.b.d", False),
    ],
)
def test_overlap(one: str, other: str, together: bool):
    """`*` is one token, `>` is one or more."""
    assert overlaps(one, other) is together


@pytest.mark.parametrize("subject", ["", "a..b", ".a", "a.", "a b", "a.>.b", "a\tb", "a\r\nb"])
def test_what_is_no_subject(subject: str):
    """A subject that cannot be is told why."""
    assert subject_fault(subject)


def test_a_plain_subject_has_no_wildcard():
    """Publishing needs one subject; a star inside of a token is no wildcard."""
    assert subject_fault("a.*", literal=True)
    assert subject_fault("a.b", literal=True) is None
    assert is_literal("a*.b>c")


# -- streams ---------------------------------------------------------------------------------------------------------


IMPOSSIBLE_STREAMS: list[tuple[dict[str, Any], str]] = [
    ({"subjects": ["a..b"]}, "the subject 'a..b' has an empty token"),
    ({"subjects": ["a.*", "a.b"]}, r"its subjects 'a.\*' and 'a.b' overlap"),
    ({"subjects": ["a.*.c", "a.b.*"]}, "overlap"),
    ({"subjects": ["$JS.API.>"]}, r"overlaps with the server's own \$JS.>"),
    ({"subjects": ["$SYS.a"]}, r"overlaps with the server's own \$SYS.>"),
    ({"subjects": [">"]}, "overlaps with the server's own"),
    ({"deny_purge": True, "allow_rollup_hdrs": True}, "deny_purge forbids it"),
    ({"mirror": {"name": "O"}, "subjects": ["a"]}, "a mirror cannot have subjects"),
    ({"mirror": {"name": "O"}, "sources": [{"name": "P"}]}, "a mirror cannot have sources"),
    ({"mirror": {"name": "S"}}, "it mirrors itself"),
    ({"sources": [{"name": "P"}, {"name": "P"}]}, "two of its sources are the same"),
    (
        {"sources": [{"name": "P", "filter_subject": "a", "subject_transforms": [{"src": "a", "dest": "b"}]}]},
        "has a filter and transforms",
    ),
]
"""Fields of a stream S, and what is said of them."""


@pytest.mark.parametrize(("fields", "says"), IMPOSSIBLE_STREAMS)
def test_impossible_streams(fields: dict[str, Any], says: str):
    """What contradicts itself is refused in one sentence that names the stream and ends with what to do."""
    with pytest.raises(InputError, match=f"Stream S: .*{says}") as caught:
        check_stream(Stream(name="S", **fields))
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


POSSIBLE_STREAMS: list[dict[str, Any]] = [
    {},
    {"subjects": ["$JS.EVENT.ADVISORY.>"]},
    {"subjects": [">"], "no_ack": True},
    {"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True},
    {"sources": [{"name": "P"}, {"name": "P", "filter_subject": "x"}]},
    {"sources": [{"name": "P", "subject_transforms": [{"src": to, "dest": to}]} for to in "ab"]},
    {"sources": [{"name": "P", "opt_start_seq": 1, "opt_start_time": datetime(2026, 1, 1, tzinfo=UTC)}]},
    {"mirror": {"name": "O"}, "mirror_direct": True},
    {"compression": "s2", "storage": "memory"},
    {"allow_msg_schedules": True},
    {"subject_delete_marker_ttl": 5},
    {"subject_delete_marker_ttl": 5, "allow_msg_ttl": True},
]
"""Streams that the server takes."""


@pytest.mark.parametrize("fields", POSSIBLE_STREAMS)
def test_possible_streams(fields: dict[str, Any]):
    """What the server takes is not refused."""
    check_stream(Stream(name="S", **fields))


def test_streams_share_no_subject():
    """A subject goes to one stream; a stream without subjects captures its name, one that copies nothing."""
    assert stream_subjects(Stream(name="S")) == ["S"]
    assert stream_subjects(Stream(name="S", mirror={"name": "O"})) == []
    with pytest.raises(InputError, match=r"Streams A and B overlap: 'a\.>' and 'a\.b'"):
        check_streams_together([Stream(name="A", subjects=["a.>"]), Stream(name="B", subjects=["a.b"])])
    with pytest.raises(InputError, match="declared twice"):
        check_streams_together([Stream(name="A"), Stream(name="A")])
    check_streams_together([Stream(name="A", subjects=["a.>"]), Stream(name="B", mirror={"name": "A"})])


# -- consumers -------------------------------------------------------------------------------------------------------

ORDERS = Stream(name="ORDERS", subjects=["ORDERS.*"])
QUEUE = Stream(name="QUEUE", subjects=["Q.>"], retention="workqueue")


IMPOSSIBLE_CONSUMERS: list[tuple[dict[str, Any], str]] = [
    ({"filter_subject": "a", "filter_subjects": ["b"]}, "both given"),
    ({"filter_subject": "a..b"}, "the filter 'a..b' has an empty token"),
    ({"filter_subjects": ["a.*", "a.b"]}, r"its filters 'a.\*' and 'a.b' overlap"),
    ({"filter_subjects": ["a.b", "a.*"]}, r"its filters 'a.b' and 'a.\*' overlap"),
    ({"opt_start_seq": 5}, "opt_start_seq is given, and deliver_policy is all"),
    ({"deliver_policy": "by_start_sequence"}, "opt_start_seq is missing"),
    ({"deliver_policy": "by_start_time"}, "opt_start_time is missing"),
    ({"deliver_policy": "last_per_subject"}, "needs a filter"),
    ({"deliver_subject": "a.*"}, "has a wildcard"),
    ({"deliver_subject": "a", "max_waiting": 5}, "max_waiting is for pull consumers"),
    ({"idle_heartbeat": 5}, "idle_heartbeat is for push consumers"),
    ({"rate_limit_bps": 5}, "rate_limit_bps is for push consumers"),
    ({"flow_control": True}, "flow_control is for push consumers"),
    ({"backoff": [1, 2, 3], "max_deliver": 2}, "backoff has 3 steps, and max_deliver allows 2"),
]
"""Fields of a consumer c, and what is said of them."""
POSSIBLE_CONSUMERS: list[dict[str, Any]] = [
    {"name": "d"},
    {"ack_policy": "none", "max_deliver": 2},
    {"ack_policy": "none", "backoff": [1, 2]},
    {"backoff": [1, 2, 3], "max_deliver": 0},
    {"filter_subject": "OTHER.a"},
    {"filter_subjects": ["a.*.c", "a.b.*"]},
    {"sample_freq": "200"},
    {"deliver_group": "g"},
    {"deliver_subject": "a", "max_batch": 5, "max_expires": 1, "max_bytes": 5},
    {"priority_policy": "overflow", "priority_groups": ["g"], "priority_timeout": 5},
    {"ack_policy": "flow_control", "deliver_subject": "a"},
]
"""Consumers of a plain stream that the server takes."""


@pytest.mark.parametrize("fields", POSSIBLE_CONSUMERS)
def test_possible_consumers(fields: dict[str, Any]):
    """What the server takes is not refused, however little sense it makes."""
    check_consumer(Consumer(durable="c", **fields), ORDERS)


@pytest.mark.parametrize(("fields", "says"), IMPOSSIBLE_CONSUMERS)
def test_impossible_consumers(fields: dict[str, Any], says: str):
    """What contradicts itself is refused in one sentence that names the consumer and ends with what to do."""
    with pytest.raises(InputError, match=f"Consumer c: .*{says}") as caught:
        check_consumer(Consumer(durable="c", **fields))
    assert caught.value.remedy


UNFIT_CONSUMERS: list[tuple[Stream, dict[str, Any], str]] = [
    (ORDERS, {"deliver_subject": "ORDERS.out"}, "a cycle"),
    (ORDERS, {"num_replicas": 3}, "it has 3 replicas, and stream ORDERS has 1"),
    (QUEUE, {"ack_policy": "none"}, "needs explicit acks"),
    (QUEUE, {"ack_policy": "all"}, "needs explicit acks"),
    (QUEUE, {"deliver_policy": "new"}, "Set deliver_policy to all"),
]
"""Consumers of a stream that cannot have them."""


@pytest.mark.parametrize(("stream", "fields", "says"), UNFIT_CONSUMERS)
def test_consumers_that_do_not_fit_their_stream(stream: Stream, fields: dict[str, Any], says: str):
    """A consumer is held against its stream, too."""
    with pytest.raises(InputError, match=says):
        check_consumer(Consumer(durable="c", **fields), stream)


def test_consumers_of_a_work_queue_do_not_overlap():
    """Each message of a work queue is for one consumer; elsewhere consumers may overlap."""
    both = {"a": Consumer(durable="a", filter_subject="Q.x"), "b": Consumer(durable="b")}
    with pytest.raises(InputError, match=r"Consumers a and b of the work queue QUEUE overlap: 'Q.x' and '>'"):
        check_consumers_together(QUEUE, both)
    check_consumers_together(ORDERS, both)
    apart = {"a": Consumer(durable="a", filter_subject="Q.x"), "b": Consumer(durable="b", filter_subject="Q.y")}
    check_consumers_together(QUEUE, apart)


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [("512", 512), ("1K", 1024), ("64KiB", 65536), ("1.5 GB", 1610612736), ("2tb", 2 * 1024**4), ("-1", -1), (7, 7)],
)
def test_sizes_are_read(text: str | int, count: int):
    """Sizes are written as with the nats command, where every unit counts in 1,024s."""
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "much", "1X", "-5", "1e9", "9999999TB", True])
def test_what_is_no_size(text: Any):
    """What is no size is refused by the name of its option."""
    with pytest.raises(OptionError, match="--max-bytes is"):
        parse_size(text, option="--max-bytes")


@given(st.integers(min_value=0, max_value=1000 * 1024**4))
def test_shown_sizes_are_close(count: int):
    """A shown size is the size within its one digit."""
    assert parse_size(format_size(count).replace(" ", "")) == pytest.approx(count, rel=0.051)


def test_shown_sizes_never_reach_the_next_unit():
    """1,024 of a unit is one of the next."""
    assert [format_size(count) for count in (0, 1023, 1024, 1024**2 - 1, 1024**2)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "1.0 MiB",
    ]


def test_the_five_byte_message_takes_39_bytes():
    """A record is 30 bytes and the subject and the payload; with headers 4 more and themselves."""
    assert record_size(len("test"), len("hello")) == 39
    assert record_size(4, 5, 28) == 39 + 4 + 28
    assert record_size(4, 5, 28, storage="memory") == 16 + 4 + 5 + 28


def test_estimates():
    """Many small messages are mostly overhead; large ones hardly."""
    small, large = estimate(1000, 5, "test"), estimate(10, 1_000_000, "test")
    assert (small.total, round(small.overhead, 3)) == (39_000, 0.872)
    assert large.overhead < 0.001
    with pytest.raises(InputError):
        estimate(-1, 5, "test")
    with pytest.raises(InputError):
        estimate(1, 5, "")


# -- outgoing messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"subject": "a.*"}, "has a wildcard"),
        ({"data": "text"}, "Give bytes"),
        ({"headers": {"A b": "c"}}, "cannot be sent"),
        ({"headers": {"A": "b\r\nc"}}, "cannot be sent"),
        ({"headers": {"Nats-Msg-Id": "1"}}, "Use id, ttl"),
        ({"headers": {"A": ["b", "c\nd"]}}, "cannot be sent"),
        ({"headers": {"A": 7}}, "Give text, or a list of texts"),
        ({"headers": {"A": ["b", 7]}}, "Give text, or a list of texts"),
        ({"headers": {"A": b"b"}}, "Give text, or a list of texts"),
        ({"id": " "}, "id is empty"),
        ({"expect_last_id": "a\nb"}, "cannot be sent"),
        ({"expect_last_sequence": "3"}, "expect_last_sequence is '3'"),
        ({"id": "a\nb"}, "cannot be sent"),
        ({"ttl": "500ms"}, "shortest is a second"),
        ({"expect_last_sequence": -1}, "expect_last_sequence is -1"),
    ],
)
def test_messages_that_cannot_be_sent(fields: dict[str, Any], says: str):
    """A message is checked before it is sent."""
    with pytest.raises(InputError, match=says):
        Outgoing(**{"subject": "a.b", **fields})


def test_what_a_message_says_to_the_server():
    """Ids, TTLs and conditions become headers; a condition of zero is one, too."""
    out = Outgoing("a", b"x", ttl="1m30s", headers={"K": "v"}, expect_last_subject_sequence=0, expect_last_id="7")
    assert out.expects
    assert out.wire_headers("8") == {
        "K": "v",
        "Nats-Msg-Id": "8",
        "Nats-TTL": "90000ms",
        "Nats-Expected-Last-Subject-Sequence": "0",
        "Nats-Expected-Last-Msg-Id": "7",
    }
    assert not Outgoing("a").expects
    assert Outgoing("a", ttl="never").wire_headers("9")["Nats-TTL"] == "never"


def test_a_header_may_have_several_values():
    """All values of a repeated header are sent, in order, however often the message is; an iterator is read once."""
    out = Outgoing("a", headers={"K": iter(["v", "w"]), "L": "x", "None": []})
    lines = b"NATS/1.0\r\nK: v\r\nK: w\r\nL: x\r\nNats-Msg-Id: 1\r\n\r\n"
    assert [out.header_block("1"), out.header_block("1")] == [lines, lines]
    assert out.size == len("a" + "Kv" + "Kw" + "Lx")
