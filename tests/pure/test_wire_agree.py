"""One grammar: the parser, the handing out and the columns judge the same bytes alike, compiled and plain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire_outcomes import SID, filled, handed_out, outcomes, parsed
from tests.wire_sets import FORMS, form

BLOCK = b"NATS/1.0\r\nA: 1\r\nb:2 \r\nA: 3\r\n\r\n"
TRANSPORT = (
    b"NATS/1.0\r\nB: 2\r\nNats-Stream: S\r\nNats-Subject: a.b\r\nNats-Sequence: %d\r\n"
    b"Nats-Time-Stamp: 2025-11-15T07:00:00.123456789Z\r\nNats-Num-Pending: 5\r\nNats-Last-Sequence: 0\r\n\r\n"
)
ACK = b"$JS.ACK.S.c.1.%d.%d.1763190000123456789.0"
LINES = [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Stale Connection'\r\n", b'INFO {"server_id":"x"}\r\n']


def message(subject: bytes, reply: bytes, payload: bytes, block: bytes | None = None, sid: int = SID) -> bytes:
    """Write a message as a server does."""
    words = b" ".join(word for word in (subject, b"%d" % sid, reply) if word)
    if block is None:
        return b"MSG %s %d\r\n%s\r\n" % (words, len(payload), payload)
    return b"HMSG %s %d %d\r\n%s%s\r\n" % (words, len(block), len(block) + len(payload), block, payload)


# Frames of three kinds of traffic; %d-th of its kind where a stream's messages count up.
KINDS = {
    "core": lambda number: [
        *LINES,
        message(b"a", b"", b"hi"),
        message(b"a.b", b"r.1", b""),
        message(b"a", b"", b"hi", BLOCK),
        message(b"a", b"r", b"hi", BLOCK),
        message(b"a", b"", b"", b"NATS/1.0 503\r\n\r\n"),
        message(b"a", b"", b"hi", sid=8),
    ],
    "deliveries": lambda number: [
        message(b"a.b", ACK % (number, number), b"data"),
        message(b"a.b", ACK % (number, number), b"data", BLOCK),
        message(b"a", b"$JS.ACK.d.h.S.c.1.%d.%d.5.0.x" % (number, number), b""),
        LINES[0],
    ],
    "direct get": lambda number: [
        message(b"_INBOX.x", b"", b"data", TRANSPORT % number),
        message(b"_INBOX.x", b"", b"", TRANSPORT % number),
        message(b"_INBOX.x", b"", b"", b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n"),
    ],
}
# What spoils traffic best.
PIECES = [b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x00", b"\x0b", b"0", b"9", b"-", b"+", b"_", b".", b":", b"H", b"\xff"]
PIECES += [b"\x85", b"9" * 20, b"0" * 12, b"5" * 5000, b"MSG ", b"x" * 70_000]


@st.composite
def near_the_grammar(draw: st.DrawFn) -> tuple[str, bytes]:
    """Make valid traffic of one kind with a few bytes put in, taken out or replaced."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    content = bytearray().join(
        draw(st.sampled_from(KINDS[kind](number))) for number in range(1, draw(st.integers(2, 5)))
    )
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(content)))
        content[place : place + draw(st.integers(0, 2))] = draw(st.sampled_from(PIECES) | st.binary(max_size=3))
    return kind, bytes(content)


@pytest.mark.skipif(len(FORMS) < 2, reason="there is no C compiler on this machine")
@given(traffic=near_the_grammar())
@settings(max_examples=800)
def test_compiled_and_plain_agree(traffic: tuple[str, bytes]) -> None:
    """Both forms give the same events, messages and rows, and end at the same place with the same words."""
    assert outcomes(form("compiled"), traffic[1]) == outcomes(form("plain"), traffic[1])


@given(traffic=near_the_grammar())
@settings(max_examples=500)
def test_columns_take_only_what_the_parser_takes(traffic: tuple[str, bytes]) -> None:
    """Every row is a message to the parser as well, with the same payload and subject."""
    kind, content = traffic
    for name in FORMS:
        found = outcomes(form(name), content)
        events, _ = found["parser"]
        messages = [event[1:] for event in events if event[0] == "Message"]  # subject, sid, reply, header, payload
        rows, _ = found[kind if kind in found else "deliveries"]
        assert len(rows) <= len(messages)
        for row, (subject, sid, _, _, payload) in zip(rows, messages, strict=False):
            assert (row[1], sid) == (payload, SID)
            assert kind == "direct get" or "\ufffd" in subject or row[0].decode() == subject


@given(traffic=near_the_grammar())
@settings(max_examples=500)
def test_only_what_the_parser_takes_is_handed_out(traffic: tuple[str, bytes]) -> None:
    """Every message that is handed out is the one that the parser gives there, and nothing is passed over."""
    for name in FORMS:
        wire = form(name)
        events, _ = parsed(wire, traffic[1])
        found, (place, count, waited) = handed_out(wire, traffic[1])
        assert (len(found), waited) == (count, None)
        assert [event[0] for event in events[:count]] == ["Message"] * count
        for (subject, reply, payload, block), event in zip(found, events, strict=False):
            _, name_of, sid, answer, header, body = event
            assert (payload, block) == (body, header)
            assert (subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace")) == (name_of, answer or "")
            assert sid in (SID, SID + 1)
        one = wire.protocol.Parser()
        one.feed(traffic[1][:place])
        assert [one.next_event() for _ in range(count)][-1:] != [None]
        assert one.place == place


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_lone_cr_or_lf_is_refused_wherever_it_stands(name: str, kind: str) -> None:
    """A CR or LF inside a line breaks the protocol, for the parser and for whatever reads around it."""
    wire = form(name)
    for frame in KINDS[kind](1):
        for place in range(frame.find(b"\r\n") + 1):
            for piece in (b"\r", b"\n"):
                spoilt = frame[:place] + piece + frame[place:]
                events, ended = parsed(wire, spoilt)
                assert (events, isinstance(ended, str)) == ([], True), spoilt
                assert handed_out(wire, spoilt)[0] == []
                assert filled(wire, spoilt, kind == "direct get")[0] == []
