"""Acks of published messages are read as runs, and everything else is left for the parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire_sets import FORMS, form

INBOX = b"_INBOX.a.b."
WORDS = b'{"stream":"S","seq":'


def ack(number: int, sequence: int, *, sid: int = 7, tail: bytes = b"}") -> bytes:
    body = WORDS + b"%d" % sequence + tail
    return b"MSG %b%d %d %d\r\n%b\r\n" % (INBOX, number, sid, len(body), body)


def take(name: str, content: bytes) -> tuple[list[tuple[int, int, int]], int]:
    acks = form(name).plain_acks.PlainAcks(INBOX, WORDS)
    acks.sid = 7
    runs: list[tuple[int, int, int]] = []
    return runs, acks.take(bytearray(content), 0, len(content), runs)


@pytest.mark.parametrize("name", FORMS)
def test_neighbours_become_runs(name: str):
    """Acks whose numbers and sequences follow each other are one run; a jump in either begins the next."""
    content = ack(5, 10) + ack(6, 11) + ack(7, 13) + ack(9, 14) + ack(8, 15)
    assert take(name, content) == ([(5, 2, 10), (7, 1, 13), (9, 1, 14), (8, 1, 15)], len(content))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "strange",
    [
        ack(2, 2, tail=b',"duplicate":true}'),
        ack(2, 2, sid=8),
        ack(2, 0),
        b'MSG %b2 7 31\r\n{"stream":"OTHER","seq":2}     \r\n' % INBOX,
        b"MSG _INBOX.a.c.2 7 22\r\n" + WORDS + b"2}\r\n",
        b"MSG %bx 7 22\r\n" % INBOX + WORDS + b"2}\r\n",
        b"MSG %b2 7 21\r\n" % INBOX + WORDS + b"2}\r\n",
        b"MSG %b2 reply 7 22\r\n" % INBOX + WORDS + b"2}\r\n",
        b"MSG %b2 7 22\n\n" % INBOX + WORDS + b"2}\r\n",
        b"HMSG %b2 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % INBOX,
        b"PING\r\n",
        b"MSG %b2 7 40\r\n" % INBOX + WORDS + b"99999999999999999999}\r\n",
    ],
)
def test_anything_else_is_left(name: str, strange: bytes):
    """What is no plain ack of ours stays in the buffer, and so does all that follows it."""
    content = ack(1, 1) + strange + ack(3, 3)
    assert take(name, content) == ([(1, 1, 1)], len(ack(1, 1)))


@pytest.mark.parametrize("name", FORMS)
def test_an_ack_that_is_not_whole_waits(name: str):
    """Cut anywhere, the last ack is left until its last byte is there."""
    whole, last = ack(1, 1), ack(2, 2)
    for cut in range(len(last)):
        assert take(name, whole + last[:cut]) == ([(1, 1, 1)], len(whole))


@given(
    pieces=st.lists(
        st.one_of(
            st.builds(ack, st.integers(0, 9), st.integers(0, 9)),
            st.builds(ack, st.integers(0, 2**63), st.integers(0, 2**64)),
            st.binary(max_size=12),
        ),
        max_size=6,
    ),
    change=st.tuples(st.integers(0, 400), st.integers(0, 255)),
)
def test_both_forms_read_the_same(pieces: list[bytes], change: tuple[int, int]):
    """Compiled and plain take the same acks out of whatever comes, also where a byte is wrong."""
    content = bytearray(b"".join(pieces))
    place, byte = change
    if place < len(content):
        content[place] = byte
    found = [take(name, bytes(content)) for name in FORMS]
    assert all(each == found[0] for each in found)
