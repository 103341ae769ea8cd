"""Atomic batches: their headers and frames, and what each answer to an attempt means."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    JetStreamError,
    LoginError,
    NoRespondersError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.wire import protocol
from penstock.wire.arrow import HEADERS
from penstock.wire.bulk.rows import Source
from penstock.wire.jetstream.answers import api_error
from penstock.wire.jetstream.atomic import MOST, Attempts, confirm_batch, encode, encode_rows, marks, new_id
from penstock.wire.jetstream.verdicts import Verdict

LOST = DisconnectedError("gone")
SILENT = DeadlineError("late")


def refused(err_code: int, code: int = 400) -> JetStreamError:
    return api_error({"code": code, "err_code": err_code, "description": "no"})


def sent(content: bytes | bytearray) -> list[protocol.Message]:
    """Read published frames as a server that passes them on would send them."""
    parser = protocol.Parser()
    found: list[protocol.Message] = []
    rest = bytes(content)
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        words = line.split()
        kind = b"HMSG" if words[0] == b"HPUB" else b"MSG"
        size = int(words[-1]) + 2
        parser.feed(b" ".join([kind, words[1], b"1", *words[2:]]) + b"\r\n" + rest[:size])
        rest = rest[size:]
        event = parser.next_event()
        assert isinstance(event, protocol.Message)
        found.append(event)
    return found


# -- frames --------------------------------------------------------------------------------------------------


def test_marks() -> None:
    """A message says its batch and its place; the last one also that it commits. No two ids are the same."""
    assert marks("b", 3) == {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "3"}
    assert marks("b", 4, commit=True) == {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "4", "Nats-Batch-Commit": "1"}
    made = {new_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(one) <= 64 for one in made), "the server takes no longer ones"


def test_messages() -> None:
    """Messages become frames with their own headers first, numbered, and only the last commits and wants an answer."""
    frames = encode([(b"s.1", "A: 1\r\n", b"one"), (b"s.2", "", b""), (b"s.3", "", b"three")], "b", b"reply.7")
    assert frames.startswith(
        b"HPUB s.1 60 63\r\nNATS/1.0\r\nA: 1\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\n\r\none\r\nHPUB s.2 "
    )
    found = sent(frames)
    assert [(event.subject, event.reply, event.payload) for event in found] == [
        ("s.1", None, b"one"),
        ("s.2", None, b""),
        ("s.3", "reply.7", b"three"),
    ]
    assert found[0].headers == {"A": ["1"], "Nats-Batch-Id": ["b"], "Nats-Batch-Sequence": ["1"]}
    assert [event.headers.get("Nats-Batch-Commit") for event in found] == [None, None, ["1"]]


def test_messages_of_a_batch_that_stays_open() -> None:
    """Without a reply subject nothing commits: another one, that is sent behind, does."""
    found = sent(encode([(b"s.1", "", b"1"), (b"s.2", "", b"2")], "b"))
    assert [event.headers for event in found] == [
        {"Nats-Batch-Id": ["b"], "Nats-Batch-Sequence": [str(place)]} for place in (1, 2)
    ]
    assert encode([], "b") == b""


def source(count: int, headers: list[object] | None = None) -> Source:
    columns = {
        "subject": pa.array([f"s.{n}" for n in range(count)]),
        "data": pa.array([b"%d" % n for n in range(count)]),
    }
    if headers is not None:
        columns["headers"] = pa.array(headers, HEADERS)
    return Source(pa.record_batch(columns), subject=None, subjects=["s.>"], max_payload=2**20)


@pytest.mark.parametrize("count", [1, 2, MOST])
def test_rows(count: int) -> None:
    """Rows become the same frames; each gets an id of its own in all that is published."""
    ((_, rows),) = source(count)
    stop, content = encode_rows(rows, 0, count, "b", reply="in.4.", ids=b"x.", id_offset=99)
    found = sent(content)
    assert stop == count
    assert [event.payload for event in found] == [b"%d" % n for n in range(count)]
    assert [event.reply for event in found] == [None] * (count - 1) + [f"in.4.{count}"]
    for place, event in enumerate(found, start=1):
        assert event.headers == {
            **{name: [value] for name, value in marks("b", place, commit=place == count).items()},
            "Nats-Msg-Id": [f"x.{place + 99}"],
        }


def test_rows_of_a_batch_that_stays_open() -> None:
    """Some of the rows, up to about a size, become a batch that is not committed; it says where it stopped."""
    ((_, rows),) = source(50, [[("Nats-Msg-Id", ["mine"])]] + [[]] * 49)
    stop, content = encode_rows(rows, 10, 40, "b", most_bytes=500)
    found = sent(content)
    assert 10 < stop < 40
    assert len(content) >= 500
    assert [event.payload for event in found] == [b"%d" % n for n in range(10, stop)]
    assert [event.headers for event in found] == [
        {name: [value] for name, value in marks("b", place).items()} for place in range(1, stop - 9)
    ]
    assert encode_rows(rows, 10, 40, "b")[0] == 40
    (own,) = sent(encode_rows(rows, 0, 1, "b", reply="r.", ids=b"x.")[1])
    assert own.headers["Nats-Msg-Id"] == ["mine"]


# -- acks ----------------------------------------------------------------------------------------------------


def test_the_ack_of_a_batch() -> None:
    """The ack of a batch names it and counts all of its messages; that of a batch of one does, too."""
    for count in (1, 3):
        ack = confirm_batch(b'{"stream":"S","seq":7,"batch":"mine","count":%d}' % count, None, "S", None, "mine", count)
        assert (ack.sequence, ack.batch, ack.count) == (7, "mine", count)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "said",
    [
        b'{"stream":"S","seq":7}',
        b'{"stream":"S","seq":7,"duplicate":true}',
        b'{"stream":"S","seq":7,"batch":"mine"}',
        b'{"stream":"S","seq":7,"count":3}',
        b'{"stream":"S","seq":7,"batch":"other","count":3}',
        b'{"stream":"S","seq":7,"batch":"mine","count":2}',
        b'{"stream":"S","seq":7,"batch":"mine","count":4}',
        b'{"stream":"S","seq":7,"batch":"mine","count":0}',
    ],
)
def test_an_ack_that_is_not_of_the_batch(said: bytes, count: int) -> None:
    """An ack of something else than all of the batch, as a server gives that knows no batches, proves nothing."""
    with pytest.raises(RemoteProtocolError, match="may be in stream S, or some, or none"):
        confirm_batch(said, None, "S", None, "mine", count)


# -- attempts ------------------------------------------------------------------------------------------------


def attempts(count: int, *, ids: bool = True, ours: bool = True) -> Attempts:
    made = Attempts(ids=ids, ours=ours, safe=10.0)
    for now in range(count):
        made.begin(float(now))
    return made


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (refused(10201), Verdict.REFUSED),  # the caller's own id is known
        (refused(10176), Verdict.PASSING),
        (refused(10071), Verdict.REFUSED),
        (refused(10077, 503), Verdict.REFUSED),
        (refused(10008, 503), Verdict.PASSING),
        (refused(10210, 429), Verdict.PASSING),
        (refused(10199), Verdict.REFUSED),
        (NoRespondersError("nobody"), Verdict.PASSING),
        (LOST, Verdict.UNKNOWN),
        (SILENT, Verdict.UNKNOWN),
        (LoginError("no"), Verdict.REFUSED),
        (RemoteProtocolError("what"), Verdict.REFUSED),
    ],
)
def test_the_first_attempt(error: PenstockError, verdict: Verdict) -> None:
    """What the first attempt comes to is judged as anywhere."""
    assert attempts(1).judge(error) is verdict


def test_a_duplicate_after_a_lost_ack() -> None:
    """A batch that was sent again after its ack was lost, and is a duplicate then, is stored."""
    made = attempts(1, ours=False)
    made.judge(LOST)
    made.begin(5.0)
    assert made.judge(refused(10201)) is Verdict.STORED


def test_a_duplicate_of_an_id_that_is_not_ours() -> None:
    """An id of the caller's that is known says nothing of a batch that was only put off; one of ours is proof."""
    for ours, verdict in ((False, Verdict.REFUSED), (True, Verdict.STORED)):
        made = attempts(1, ours=ours)
        assert made.judge(refused(10008, 503)) is Verdict.PASSING
        made.begin(1.0)
        assert made.judge(refused(10201)) is verdict


def test_an_incomplete_batch() -> None:
    """A batch that is incomplete is sent again; three times, because a message that the server drops makes it so."""
    made = attempts(0)
    found = []
    for now in range(3):
        made.begin(float(now))
        found.append(made.judge(refused(10176)))
    assert found == [Verdict.PASSING, Verdict.PASSING, Verdict.REFUSED]


def test_what_stands_against_sending_again() -> None:
    """Without ids nothing is sent twice, and with ids only while the stream remembers those of the first attempt."""
    assert attempts(1, ids=False).hindrance(0.0) == "without ids nothing is sent twice"
    made = Attempts(ids=True, ours=True, safe=10.0)
    made.begin(100.0)
    made.begin(108.0)
    assert made.hindrance(110.0) == ""
    assert "duplicate window is too short" in made.hindrance(110.1)


@given(st.lists(st.sampled_from(["lost before", "lost behind", "busy", "incomplete"]), max_size=6), st.booleans())
def test_a_batch_is_stored_once(fates: list[str], ours: bool) -> None:
    """Whatever happens to the attempts, the batch is told as stored only if the stream has it, and it has it once."""
    made = Attempts(ids=True, ours=ours, safe=1e9)
    stored = 0
    batch_ids = set()
    for fate in [*fates, "well"]:
        batch_ids.add(made.begin(0.0))
        error: PenstockError | None = None
        if fate == "lost before":
            error = LOST
        elif fate in ("busy", "incomplete"):
            error = refused(10008, 503) if fate == "busy" else refused(10176)
        elif stored:
            error = refused(10201)
        else:
            stored += 1
        if fate == "lost behind":
            error = SILENT
        verdict = Verdict.STORED if error is None else made.judge(error)
        if verdict is Verdict.STORED:
            assert stored == 1
            return
        if verdict is Verdict.REFUSED:
            assert fate == "incomplete"
            assert stored == 0 or made.lost, "a doubt is told"
            return
    raise AssertionError("the last attempt settles it")
