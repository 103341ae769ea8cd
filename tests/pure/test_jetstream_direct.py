"""Direct get and the leader's get: requests, answers in any form, and the end of many."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import JetStreamError, NoRespondersError, RemoteProtocolError
from penstock.wire.jetstream.direct import (
    DirectGet,
    Found,
    nanoseconds,
    question,
    read_answer,
    read_found,
    read_message,
    value,
    whole,
)

TIME = "2026-11-15T23:26:23.343075623Z"


def block(sequence: object = 3, own: str = "", more: str = "Nats-Num-Pending: 1\r\nNats-Last-Sequence: 2\r\n") -> bytes:
    """Write headers as nats-server 2.15 does: the publisher's, then its own."""
    return (
        f"NATS/1.0\r\n{own}Nats-Stream: S\r\nNats-Subject: S.0\r\nNats-Sequence: {sequence}\r\n"
        f"Nats-Time-Stamp: {TIME}\r\n{more}\r\n"
    ).encode()


END = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 5\r\nNats-Last-Sequence: 4\r\nNats-UpTo-Sequence: 9\r\n\r\n"


# -- requests ------------------------------------------------------------------------------------------------


def test_requests() -> None:
    """A request names what it wants and nothing else."""
    assert question(7) == {"seq": 7}
    assert question(7, subject="a.>") == {"seq": 7, "next_by_subj": "a.>"}
    assert question(last="a.b") == {"last_by_subj": "a.b"}
    assert question(7, batch=100, max_bytes=1024) == {"seq": 7, "batch": 100, "max_bytes": 1024}
    assert DirectGet("S", question(7, batch=2)).payload == b'{"seq":7,"batch":2}'


# -- one message ---------------------------------------------------------------------------------------------


def test_a_message() -> None:
    """A message says its subject, sequence and time in headers that stand behind the publisher's."""
    assert read_found(b"x", block()) == Found("S.0", 3, b"x", block(), TIME, 1)
    assert read_found(b"", block(more="")).pending is None


def test_headers_of_the_publisher_do_not_count() -> None:
    """A publisher may write the server's headers too; the server's own come last, and they count."""
    forged = "Nats-Sequence: 99\r\nNats-Subject: other\r\nNats-Time-Stamp: never\r\nNats-Num-Pending: 0\r\n"
    found = read_found(b"x", block(own=forged))
    assert (found.subject, found.sequence, found.time, found.pending) == ("S.0", 3, TIME, 1)


def test_one_message_of_the_stream_that_was_asked() -> None:
    """The quick way gives what the slow one gives, whatever a publisher wrote; another stream's message is none."""
    forged = "Nats-Stream: other\r\nNats-Sequence: 99\r\nNats-Subject: other\r\nNats-Num-Pending: 0\r\n"
    for own in ("", "A: b\r\n", "Nats-Time-Stamp: never\r\n"):
        assert read_answer(b"x", block(own=own, more=""), "S") == read_found(b"x", block(own=own, more=""))
    found = read_answer(b"x", block(own=forged, more=""), "S")
    assert found is not None
    assert (found.subject, found.sequence, found.time, found.pending) == ("S.0", 3, TIME, None)
    assert read_answer(b"x", block(more=""), "OTHER") is None
    assert read_answer(b"x", block(), "OTHER") is None
    assert read_answer(b"x", block(), "S") == read_found(b"x", block())
    with pytest.raises(RemoteProtocolError):
        read_answer(b"x", block("x", more=""), "S")


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"NATS/1.0\r\n\r\n",
        block("x"),
        block("-1"),
        block("9" * 5000),
        block("").replace(b"Nats-Sequence: ", b"Nats-Sequence"),
        block().replace(b"Nats-Subject", b"Nats-Other"),
        block().replace(b"Nats-Sequence", b"Nats-Other"),
    ],
)
def test_messages_without_a_place(header: bytes | None) -> None:
    """A message that does not say where it stands is the peer's fault."""
    with pytest.raises(RemoteProtocolError, match="subject and sequence"):
        read_found(b"x", header)


def test_values() -> None:
    """Of a header that comes several times the last value counts; one that is not there has none."""
    several = b"NATS/1.0\r\nA: 1\r\nB:  two  \r\nA: 2\r\n\r\n"
    assert (value(several, b"\r\nA:"), value(several, b"\r\nB:"), value(several, b"\r\nC:")) == (b"2", b"two", b"")
    assert (whole(b"12"), whole(b""), whole(b"-1"), whole(b"1.0"), whole(b"9" * 30)) == (12, None, None, None, None)


@pytest.mark.parametrize(
    ("time", "found"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("2026-11-15T23:26:23.343075623Z", 1_794_785_183_343_075_623),
        ("", None),
        ("yesterday", None),
        ("2026-11-15T23:26:23.xZ", None),
        ("2026-11-15T23:26:23.343075623+01:00", None),
    ],
)
def test_times(time: str, found: int | None) -> None:
    """Times are read to the nanosecond; what is none is None."""
    assert nanoseconds(time) == found


# -- the leader's ---------------------------------------------------------------------------------------------


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_a_message_of_the_leader() -> None:
    """The leader gives the publisher's headers alone, and leaves out what is empty."""
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    message = {"subject": "S.0", "seq": 3, "time": TIME}
    assert read_message({"message": message}) == Found("S.0", 3, b"", b"", TIME)
    assert read_message({"message": {**message, "data": b64(b"x"), "hdrs": b64(header)}}) == Found(
        "S.0", 3, b"x", header, TIME
    )


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"message": None},
        {"message": []},
        {"message": {}},
        {"message": {"subject": "a", "seq": "3"}},
        {"message": {"subject": "a", "seq": -3}},
        {"message": {"subject": 5, "seq": 3}},
        {"message": {"subject": "a", "seq": 3, "data": "%%%"}},
        {"message": {"subject": "a", "seq": 3, "data": "abc"}},
        {"message": {"subject": "a", "seq": 3, "data": "ä"}},
        {"message": {"subject": "a", "seq": 3, "hdrs": 7}},
        {"message": {"subject": "a", "seq": 3, "time": 7}},
    ],
)
def test_answers_of_a_leader_that_are_none(answer: dict[str, object]) -> None:
    """What is no answer of a leader is told as such, whatever stands in it."""
    with pytest.raises(RemoteProtocolError):
        read_message(answer)


# -- many ----------------------------------------------------------------------------------------------------


def test_one_or_many() -> None:
    """One message ends a request for one; many end with a status."""
    one = DirectGet("S", question(3))
    assert one.hear(b"x", block())
    assert one.result() == [(b"x", block())]
    many = DirectGet("S", question(3, batch=2))
    assert not many.hear(b"x", block(3))
    assert not many.hear(b"y", block(4))
    assert many.hear(b"", END)
    assert [read_found(*answer).sequence for answer in many.result()] == [3, 4]


def test_more_than_was_asked_for_is_not_kept() -> None:
    """A server that gives message after message is told at the first one too many, and nothing more is kept."""
    get = DirectGet("S", question(3, batch=2))
    assert [get.hear(b"x", block(number)) for number in range(3, 8)] == [False, False, True, True, True]
    assert len(get.answers) == 2
    with pytest.raises(RemoteProtocolError, match="more than the 2 messages"):
        get.result()


def test_nothing_is_there() -> None:
    """Where there is nothing, the result is empty, for one and for many."""
    for body in (question(9), question(9, batch=5)):
        get = DirectGet("S", body)
        assert get.hear(b"", b"NATS/1.0 404 Message Not Found\r\n\r\n")
        assert get.result() == []


@pytest.mark.parametrize(
    ("header", "kind", "code"),
    [
        (b"NATS/1.0 503\r\nNats-Subject: $JS.API.DIRECT.GET.S\r\n\r\n", NoRespondersError, None),
        (b"NATS/1.0 408 Empty Request\r\n\r\n", JetStreamError, 408),
        (b"NATS/1.0 413 Too Many Results\r\n\r\n", JetStreamError, 413),
        (b"NATS/1.0 400 Bad Request\r\n\r\n", JetStreamError, 400),
        (b"NATS/1.0 999 What\r\n\r\n", JetStreamError, 999),
        (b"NATS/1.0 x\r\n\r\n", RemoteProtocolError, None),
        (b"nonsense", RemoteProtocolError, None),
    ],
)
def test_refusals(header: bytes, kind: type[Exception], code: int | None) -> None:
    """A request that the server does not take ends at once; the error comes with the result, not with the hearing."""
    get = DirectGet("S", question(3, batch=5))
    get.hear(b"x", block())
    assert get.hear(b"", header)
    with pytest.raises(kind) as caught:
        get.result()
    assert getattr(caught.value, "code", None) == code


@given(st.lists(st.tuples(st.binary(max_size=20), st.one_of(st.none(), st.binary(max_size=60))), max_size=5))
def test_anything_may_come(answers: list[tuple[bytes, bytes | None]]) -> None:
    """Hearing never raises; the result is messages or an error of ours."""
    get = DirectGet("S", question(1, batch=5))
    for answer in answers:
        if get.hear(*answer):
            break
    try:
        found = get.result()
    except (RemoteProtocolError, JetStreamError, NoRespondersError):
        return
    assert found == answers[: len(found)]
