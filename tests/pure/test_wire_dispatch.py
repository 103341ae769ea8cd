"""The message path of asyncio connections: however the bytes are cut, each taker gets the same messages, in order."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from tests.wire_sets import FORMS, form

BLOCK = b"NATS/1.0\r\n\r\n"
STREAM = (
    b"MSG foo 1 5\r\nhello\r\n"
    b"PING\r\n"
    b"MSG foo.bar 1 _INBOX.x 0\r\n\r\n"
    b"HMSG foo 2 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    b"+OK\r\n"
    b'INFO {"a":1}\r\n'
    b"MSG other 3 7\r\nMSG x 1\r\n"
    b"HMSG foo 1 reply 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"MSG foo 2 77 2\r\n\r\n\r\n"
    b"MSG \xff\xfe 1 \xc3\xbc 3\r\n\x00\r\n\r\n"
    b"-ERR 'Slow Consumer'\r\n"
    b"MSG lent 4 6\r\nviewed\r\n"
    b"PONG\r\n"
)
EVENTS = [
    (1, b"foo", b"", b"hello", None),
    "Ping",
    (1, b"foo.bar", b"_INBOX.x", b"", None),
    (2, b"foo", b"", b"hi", BLOCK),
    "Ok",
    "Info",
    "Message",  # of a subscription that nobody has
    (1, b"foo", b"reply", b"", b"NATS/1.0 503\r\n\r\n"),
    (2, b"foo", b"77", b"\r\n", None),
    (1, b"\xff\xfe", b"\xc3\xbc", b"\x00\r\n", None),
    "Err",
    (4, b"lent", b"", b"viewed", None),
    "Pong",
]


@pytest.fixture(params=FORMS)
def wire(request: pytest.FixtureRequest) -> Any:
    """The modules, compiled and plain."""
    return form(request.param)


class Reader:
    """Reads as a connection does: messages by `hand_out`, everything else by the parser's events."""

    def __init__(self, wire: Any) -> None:
        self.wire, self.parser = wire, wire.protocol.Parser()
        self.events: list[object] = []
        self.takers: dict[int, Any] = {sid: self._taker(sid) for sid in (1, 2)}
        self.borrowers: dict[int, Any] = {4: self._taker(4)}
        self.waits: list[object] = []

    def _taker(self, sid: int) -> Any:
        def heard(subject: bytes, reply: bytes, payload: Any, block: bytes | None) -> None:
            assert type(subject) is bytes
            assert type(reply) is bytes
            self.events.append((sid, subject, reply, bytes(payload), block))

        return heard

    def feed(self, *parts: bytes) -> Reader:
        for part in parts:
            self.parser.feed(part)
            self.read()
        return self

    def read(self) -> None:
        parser = self.parser
        while parser.start < parser.end:
            place, count, wait = self.wire.dispatch.hand_out(
                parser.buffer, parser.start, parser.end, self.takers, self.borrowers
            )
            if count:
                parser.take(place)
                if wait is not None:
                    self.waits.append(wait)
                    return
            else:
                assert place == parser.start
            event = parser.next_event()
            if event is None:
                return
            self.events.append(type(event).__name__)

    @property
    def rest(self) -> bytes:
        return bytes(self.parser.buffer[self.parser.start : self.parser.end])


def test_whole_and_byte_by_byte(wire: Any):
    """The stream fed whole, or a byte at a time, gives the same events and leaves nothing."""
    for parts in ([STREAM], [STREAM[place : place + 1] for place in range(len(STREAM))]):
        reader = Reader(wire).feed(*parts)
        assert (reader.events, reader.rest) == (EVENTS, b"")


@pytest.mark.parametrize("name", FORMS)
@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_split(name: str, cuts: list[int]):
    """However the bytes are cut, the events are the same."""
    places = [0, *sorted(cuts), len(STREAM)]
    reader = Reader(form(name)).feed(*(STREAM[start:end] for start, end in itertools.pairwise(places)))
    assert (reader.events, reader.rest) == (EVENTS, b"")


@pytest.mark.parametrize("end", range(len(STREAM)))
def test_a_tail_stays(wire: Any, end: int):
    """What is not whole stays for later, to the byte."""
    reader = Reader(wire).feed(STREAM[:end])
    assert reader.events == EVENTS[: len(reader.events)]
    again = Reader(wire).feed(reader.rest, STREAM[end:])
    assert reader.events + again.events == EVENTS
    assert again.rest == b""


def test_messages_in_the_middle_of_a_buffer(wire: Any):
    """Only what stands between the two places is read, whatever is before and behind it."""
    got: list[bytes] = []
    takers = {1: lambda subject, reply, payload, block: got.append(payload)}
    frames = b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\ny\r\n"
    buffer = bytearray(b"MSG a 1 1\r\nw\r\n" + frames + b"MSG a 1 1\r\nz\r\n")
    assert wire.dispatch.hand_out(buffer, 14, 14 + len(frames), takers, {}) == (14 + len(frames), 2, None)
    assert got == [b"x", b"y"]
    assert wire.dispatch.hand_out(buffer, 14, 14 + len(frames) - 1, takers, {}) == (28, 1, None)
    assert wire.dispatch.hand_out(buffer, 14, 14, takers, {}) == (14, 0, None)


def test_a_large_message_is_gathered(wire: Any):
    """A large message that arrives in many pieces is handed out when it is whole."""
    payload = bytes(range(256)) * 4096
    frame = b"MSG foo 1 %d\r\n%b\r\n" % (len(payload), payload)
    reader = Reader(wire).feed(*(frame[place : place + 4096] for place in range(0, len(frame), 4096)))
    assert reader.events == [(1, b"foo", b"", payload, None)]
    assert reader.rest == b""


@pytest.mark.parametrize("name", FORMS)
@given(cuts=st.lists(st.integers(0, 300_000), max_size=8))
def test_payloads_are_lent(name: str, cuts: list[int]):
    """A borrower gets the bytes that were sent, in a view that is gone when it is done; others get bytes to keep."""
    payloads = [bytes([number]) * 50_000 for number in range(5)]
    stream = b"".join(
        b"HMSG foo %d 12 50012\r\nNATS/1.0\r\n\r\n%b\r\n" % (1 + number % 2 * 3, payload)
        for number, payload in enumerate(payloads)
    )
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader, views, kept = Reader(form(name)), [], []

    def borrow(subject: bytes, reply: bytes, payload: Any, block: bytes | None) -> None:
        assert type(payload) is memoryview
        assert type(block) is bytes
        kept.append(bytes(payload))
        views.append(payload)

    reader.borrowers[4] = borrow
    reader.feed(*(stream[start:end] for start, end in itertools.pairwise(places)))
    assert reader.rest == b""
    assert kept == [payloads[1], payloads[3]]
    assert [event[3] for event in reader.events] == [payloads[0], payloads[2], payloads[4]]  # type: ignore[index]
    for view in views:
        with pytest.raises(ValueError, match="released"):
            bytes(view)


def test_what_is_lent_belongs_to_who_waits(wire: Any):
    """A borrower that asks to be waited for keeps its view until then; the place behind the message is given."""
    held: list[memoryview] = []

    def borrow(subject: bytes, reply: bytes, payload: memoryview, block: bytes | None) -> str:
        held.append(payload)
        return "wait for me"

    buffer = bytearray(b"MSG a 4 3\r\none\r\nMSG a 4 3\r\ntwo\r\n")
    assert wire.dispatch.hand_out(buffer, 0, len(buffer), {}, {4: borrow}) == (16, 1, "wait for me")
    assert bytes(held[0]) == b"one"
    assert held[0].obj is buffer
    assert wire.dispatch.hand_out(buffer, 16, len(buffer), {}, {4: borrow}) == (32, 1, "wait for me")
    assert [bytes(view) for view in held] == [b"one", b"two"]


def test_a_borrower_that_keeps_its_view_disturbs_nobody(wire: Any):
    """A view that something holds on to cannot be taken back; the messages behind it are handed out all the same."""
    pyarrow = pytest.importorskip("pyarrow")
    kept: list[Any] = []
    buffer = bytearray(b"MSG a 4 3\r\none\r\nMSG a 4 3\r\ntwo\r\n")
    borrowers = {4: lambda subject, reply, payload, block: kept.append(pyarrow.py_buffer(payload))}
    assert wire.dispatch.hand_out(buffer, 0, len(buffer), {}, borrowers) == (32, 2, None)
    assert [found.to_pybytes() for found in kept] == [b"one", b"two"]


def test_a_taker_can_hold_up_the_reading(wire: Any):
    """A taker that returns something is the last one that is called; nothing behind its message is taken."""
    reader, order = Reader(wire), []

    def slow(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> str | None:
        order.append(payload)
        return "wait" if payload == b"2" else None

    reader.takers[1] = slow
    reader.feed(b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\nMSG a 1 1\r\n3\r\nPING\r\n")
    assert (order, reader.waits, reader.events) == ([b"1", b"2"], ["wait"], [])
    reader.read()
    assert (order, reader.waits, reader.events) == ([b"1", b"2", b"3"], ["wait"], ["Ping"])


def test_a_taker_that_comes_and_goes(wire: Any):
    """A subscription that a taker begins or ends counts from the next message on."""
    reader, got = Reader(wire), []

    def last(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        got.append((1, payload))
        del reader.takers[1]
        reader.takers[3] = lambda subject, reply, payload, block: got.append((3, payload))

    reader.takers[1] = last
    reader.feed(b"MSG a 3 1\r\n1\r\nMSG a 1 1\r\n2\r\nMSG a 1 1\r\n3\r\nMSG a 3 1\r\n4\r\n")
    assert got == [(1, b"2"), (3, b"4")]
    assert reader.events == ["Message", "Message"]


def test_what_a_taker_raises_is_raised(wire: Any):
    """Nobody swallows what goes wrong in a taker; what was taken before is taken."""

    def fails(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        raise KeyError(payload)

    with pytest.raises(KeyError):
        wire.dispatch.hand_out(bytearray(b"MSG a 1 1\r\nx\r\n"), 0, 14, {1: fails}, {})


# -- what is left to the parser ----------------------------------------------------------------------------------------

ODD = [
    b"msg a 1 1\r\nx\r\n",
    b"MSG  a 1 1\r\nx\r\n",
    b"MSG a  1 1\r\nx\r\n",
    b"MSG a 1  1\r\nx\r\n",
    b"MSG a 1 1 \r\nx\r\n",
    b"MSG\ta 1 1\r\nx\r\n",
    b"MSG a\t1 1\r\nx\r\n",
    b"MSG a 1 r\t1\r\nx\r\n",
    b"MSG %b 1 1\r\nx\r\n" % (b"s" * 9000),
]


@pytest.mark.parametrize("frame", ODD, ids=range(len(ODD)))
def test_odd_frames_are_left_to_the_parser(wire: Any, frame: bytes):
    """A frame in an unusual form is nothing for the short way; the parser reads it."""
    reader = Reader(wire).feed(b"MSG a 1 1\r\n0\r\n" + frame + b"MSG a 1 1\r\n9\r\n")
    assert reader.events == [(1, b"a", b"", b"0", None), "Message", (1, b"a", b"", b"9", None)]


BROKEN = [
    b"MSG foo x 5\r\nhello\r\n",
    b"MSG foo 1 -\r\n",
    b"MSG\r\n",
    b"MSG foo\r\n",
    b"MSG foo 1\r\n",
    b"HMSG foo 1 5\r\nhello\r\n",
    b"HMSG foo 1 x 5\r\nhello\r\n",
    b"MSG foo 1 -5\r\n",
    b"MSG foo 1 +5\r\nhello\r\n",
    b"MSG foo -1 5\r\nhello\r\n",
    b"HMSG foo 1 9 5\r\nhello\r\n",
    b"HMSG foo 1 r -1 5\r\nhello\r\n",
    b"MSG foo 1 a b 5\r\nhello\r\n",
    b"HMSG foo 1 a b 1 5\r\nhello\r\n",
    b"MSG foo 1 5\r\nhelloxx",
    b"MSG foo 1 5\r\nhello\n\n",
    b"MSG foo 1 5\nhello\r\n",
    b"MSG foo 1 99999999999\r\n",
    b"MSG foo 1 9999999999\r\n",
    b"MSG foo 1 00000000000000000000000005\r\nhello\r\n",
    b"MSG foo 1%b 5\r\nhello\r\n" % (b"0" * 30),
    b"NONSENSE\r\n",
    b"\r\n",
    b" MSG foo 1 5\r\nhello\r\n",
]


@pytest.mark.parametrize("frame", BROKEN, ids=range(len(BROKEN)))
def test_broken_frames(wire: Any, frame: bytes):
    """A frame that is none of the protocol is handed to nobody, and the parser complains of it."""
    reader = Reader(wire)
    with pytest.raises(RemoteProtocolError):
        reader.feed(b"MSG a 1 1\r\n0\r\n" + frame)
    assert reader.events == [(1, b"a", b"", b"0", None)]


@pytest.mark.parametrize("name", FORMS)
@given(noise=st.binary(max_size=60), place=st.integers(0, len(STREAM)))
def test_noise_never_does_harm(name: str, noise: bytes, place: int):
    """Bytes of any kind in the middle of a stream give events or a RemoteProtocolError, and both forms agree."""
    outcomes = []
    for form_name in {name, "plain"}:
        reader = Reader(form(form_name))
        try:
            reader.feed(STREAM[:place] + noise + STREAM[place:])
            outcomes.append((reader.events, reader.rest))
        except RemoteProtocolError as error:
            outcomes.append((reader.events, str(error).partition("at byte")[2]))
    assert outcomes[0] == outcomes[-1]


def test_a_message_of_a_gibibyte_is_not_waited_for(wire: Any):
    """A size that no server has is left to the parser, which refuses it at once."""
    reader = Reader(wire)
    with pytest.raises(RemoteProtocolError, match=r"more than the .* allowed"):
        reader.feed(b"MSG foo 1 1073741824\r\n")


# -- the outbox --------------------------------------------------------------------------------------------------------


def test_what_is_plain_is_posted(wire: Any):
    """A known subject and plain bytes below the bound are posted; anything else is left to a closer look."""
    outbox = wire.dispatch.Outbox()
    assert outbox.post("a.b", b"hello") == -1
    outbox.subjects["a.b"] = b"a.b"
    assert outbox.post("a.b", b"hello") == -1  # nothing may be posted yet
    outbox.plain = 6
    assert outbox.post("a.b", b"hello") == len(b"PUB a.b 5\r\nhello\r\n")
    for subject, payload in (("a.b", b"hello!"), ("a.c", b""), ("a.b", bytearray(b"x")), ("a.b", None), (b"a.b", b"")):
        assert outbox.post(subject, payload) == -1
    assert (outbox.messages, outbox.bytes) == (1, 5)
    assert outbox.take() == b"PUB a.b 5\r\nhello\r\n"


def test_frames_are_put_together(wire: Any):
    """What is published is written as the protocol has it, in order, with and without reply and headers."""
    outbox = wire.dispatch.Outbox()
    assert outbox.publish(b"a.b", b"", None, b"hello") == len(b"PUB a.b 5\r\nhello\r\n")
    assert outbox.publish(b"a", b"r", None, b"") == outbox.size
    outbox.add(b"SUB x 1\r\n")
    outbox.publish(b"a", b"", BLOCK, b"x")
    outbox.publish(b"a", b"r", BLOCK, b"")
    assert (outbox.messages, outbox.bytes) == (4, 5 + 0 + 13 + 12)
    written = outbox.take()
    assert type(written) is bytes
    assert bytes(written) == (
        b"PUB a.b 5\r\nhello\r\nPUB a r 0\r\n\r\nSUB x 1\r\n"
        b"HPUB a 12 13\r\nNATS/1.0\r\n\r\nx\r\nHPUB a r 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    )
    assert (outbox.size, bytes(outbox.take())) == (0, b"")
    outbox.publish(b"a", b"", None, b"again")
    assert bytes(outbox.take()) == b"PUB a 5\r\nagain\r\n"
    assert (outbox.messages, bytes(written)[:3]) == (5, b"PUB"), "what was taken stays as it was"


@pytest.mark.parametrize("name", FORMS)
@given(sizes=st.lists(st.integers(0, 200_000), max_size=12), taken=st.sets(st.integers(0, 11)))
def test_an_outbox_of_any_sizes(name: str, sizes: list[int], taken: set[int]):
    """Whatever is put in, and whenever it is taken, comes out whole."""
    outbox = form(name).dispatch.Outbox()
    expected = found = b""
    for number, size in enumerate(sizes):
        payload = bytes([number + 65]) * size
        expected += b"PUB s %d\r\n%b\r\n" % (size, payload)
        outbox.publish(b"s", b"", None, payload)
        if number in taken:
            found += bytes(outbox.take())
    assert found + bytes(outbox.take()) == expected


def test_a_large_message_leaves_no_cost_behind(wire: Any):
    """After a large message small ones are put together as fast as before: no room is kept that must be cleared."""
    outbox = wire.dispatch.Outbox()

    def spent() -> float:
        began = time.process_time()
        for _ in range(300):
            outbox.publish(b"a", b"", None, b"small")
            outbox.take()
        return time.process_time() - began

    before = min(spent() for _ in range(5))
    outbox.publish(b"a", b"", None, bytes(8_000_000))
    outbox.take()
    after = min(spent() for _ in range(5))
    assert after < 20 * before + 0.005, "it was a thousand times as much"
