"""The short way through nats-py's parser: any split of the bytes gives the same messages, in order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from penstock.connection.taps import _TapParser

STREAM = (
    b"MSG foo 1 5\r\nhello\r\n"
    b"PING\r\n"
    b"MSG foo.bar 1 _INBOX.x 0\r\n\r\n"
    b"HMSG foo 2 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    b"+OK\r\n"
    b'INFO {"a":1}\r\n'
    b"MSG other 3 7\r\nMSG x 1\r\n"
    b"HMSG foo 1 reply 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"-ERR 'Slow Consumer'\r\n"
    b"PONG\r\n"
)
EVENTS = [
    ("tap 1", b"foo", b"", b"hello", None),
    "ping",
    ("tap 1", b"foo.bar", b"_INBOX.x", b"", None),
    ("tap 2", b"foo", b"", b"hi", b"NATS/1.0\r\n\r\n"),
    ("info", {"a": 1}),
    ("plain 3", b"other", b"", b"MSG x 1", None),
    ("tap 1", b"foo", b"reply", b"", b"NATS/1.0 503\r\n\r\n"),
    ("err", "'slow consumer'"),
    "pong",
]


class Listener:
    """Writes down what the parser says."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self._borrowers: set[int] = set()
        self._taps = {number: self._tap(number) for number in (1, 2)}

    def _tap(self, number: int):
        def heard(subject, reply, data, header):
            self.events.append((f"tap {number}", subject, reply, data, header))

        return heard

    async def _process_msg(self, sid, subject, reply, data, header):
        self.events.append((f"plain {sid}", subject, reply, data, header))

    async def _process_ping(self):
        self.events.append("ping")

    async def _process_pong(self):
        self.events.append("pong")

    async def _process_info(self, info):
        self.events.append(("info", info))

    async def _process_err(self, text):
        self.events.append(("err", text))


async def read(*parts: bytes) -> tuple[list[object], bytes]:
    listener = Listener()
    parser = _TapParser(listener)
    for part in parts:
        await parser.parse(part)
    return listener.events, parser.rest


async def test_whole_and_byte_by_byte():
    """The stream fed whole, or a byte at a time, gives the same events and leaves nothing."""
    assert await read(STREAM) == (EVENTS, b"")
    assert await read(*(STREAM[place : place + 1] for place in range(len(STREAM)))) == (EVENTS, b"")


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
async def test_any_split(cuts):
    """However the bytes are cut, the events are the same."""
    places = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert await read(*parts) == (EVENTS, b"")


@given(st.integers(0, len(STREAM) - 1))
async def test_a_tail_stays(end):
    """What is not whole stays for later, to the byte."""
    events, rest = await read(STREAM[:end])
    assert events == EVENTS[: len(events)]
    again, nothing = await read(rest + STREAM[end:])
    assert events + again == EVENTS
    assert nothing == b""


async def test_a_large_message_is_gathered():
    """A large message that arrives in many pieces is looked at twice: at its start, and when it is whole."""
    payload = bytes(range(256)) * 4096
    frame = b"MSG foo 1 %d\r\n%b\r\n" % (len(payload), payload)
    events, rest = await read(*(frame[place : place + 4096] for place in range(0, len(frame), 4096)))
    assert events == [("tap 1", b"foo", b"", payload, None)]
    assert rest == b""


@given(st.lists(st.integers(0, 300_000), max_size=8))
async def test_large_messages_are_lent(cuts):
    """A borrower gets the bytes that were sent, in a view that is gone when it is done; others get bytes to keep."""
    payloads = [bytes([number]) * 50_000 for number in range(5)]
    stream = b"".join(
        b"HMSG foo %d 12 50012\r\nNATS/1.0\r\n\r\n%b\r\n" % (1 + n % 3, p) for n, p in enumerate(payloads)
    )
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    listener, views, kept = Listener(), [], []

    def borrow(subject, reply, data, header):
        kept.append(bytes(data))
        views.append(data)

    listener._taps[1], listener._borrowers = borrow, {1}
    parser = _TapParser(listener)
    for start, end in itertools.pairwise(places):
        await parser.parse(stream[start:end])
    assert parser.rest == b""
    assert kept == [payloads[0], payloads[3]]
    assert [event[3] for event in listener.events] == [payloads[1], payloads[2], payloads[4]]
    assert all(type(event[3]) is bytes for event in listener.events)
    for view in views:
        if not isinstance(view, bytes):  # one that came whole was copied out of what came with it
            with pytest.raises(ValueError, match="released"):
                bytes(view)


async def test_a_message_that_does_not_end_where_it_says():
    """A large message whose end is not where its line says ends the connection, and is handed to nobody."""
    listener = Listener()
    parser = _TapParser(listener)
    await parser.parse(b"MSG foo 1 40000\r\n")
    await parser.parse(bytes(40_000))
    with pytest.raises(ProtocolError):
        await parser.parse(b"xx")
    assert listener.events == []


@pytest.mark.parametrize(
    "line",
    [
        b"MSG foo x 5\r\n",
        b"MSG foo 1 -\r\n",
        b"MSG\r\n",
        b"HMSG foo 1 x 5\r\n",
        b"MSG foo 1 -5\r\n",
        b"HMSG foo 1 9 5\r\n",
        b"NONSENSE\r\n",
    ],
)
async def test_broken_lines(line):
    """A line that is none of the protocol ends the connection."""
    with pytest.raises(ProtocolError):
        await read(line)


async def test_a_tap_can_hold_up_the_reading():
    """A tap that gives an awaitable is waited for before the next message is read."""
    listener = Listener()
    order = []

    async def wait():
        order.append("waited")

    def slow(subject, reply, data, header):
        order.append("heard")
        return wait()

    listener._taps[1] = slow
    await _TapParser(listener).parse(b"MSG a 1 0\r\n\r\nMSG a 1 0\r\n\r\n")
    assert order == ["heard", "waited", "heard", "waited"]
