"""The NATS protocol as pure code: frames whole, in pieces and with a tail, limits, garbage, and what a client sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from tests.wire_sets import FORMS, form

BLOCK = b"NATS/1.0\r\nA: 1\r\nb:2 \r\nA: 3\r\n\r\n"
# Each golden frame: its name, the bytes of a server, and the event as its fields.
GOLDEN: list[tuple[str, bytes, str, dict[str, Any]]] = [
    ("ping", b"PING\r\n", "Ping", {}),
    ("small ping", b"ping\r\n", "Ping", {}),
    ("pong", b"PONG\r\n", "Pong", {}),
    ("ok", b"+OK\r\n", "Ok", {}),
    ("error", b"-ERR 'Stale Connection'\r\n", "Err", {"text": "Stale Connection"}),
    ("info", b'INFO {"server_id":"x","headers":true} \r\n', "Info", {"fields": {"server_id": "x", "headers": True}}),
    (
        "message",
        b"MSG a.b 7 5\r\nhello\r\n",
        "Message",
        {"subject": "a.b", "sid": 7, "reply": None, "header": None, "payload": b"hello"},
    ),
    (
        "message with a reply",
        b"MSG a.b 7 _INBOX.1 0\r\n\r\n",
        "Message",
        {"subject": "a.b", "sid": 7, "reply": "_INBOX.1", "header": None, "payload": b""},
    ),
    (
        "payload that looks like frames",
        b"MSG a 1 20\r\nPING\r\nMSG b 2 0\r\n\r\nx\r\n",
        "Message",
        {"subject": "a", "sid": 1, "reply": None, "header": None, "payload": b"PING\r\nMSG b 2 0\r\n\r\nx"},
    ),
    (
        "headers",
        b"HMSG a 1 r 30 33\r\n" + BLOCK + b"\r\n!" + b"\r\n",
        "Message",
        {"subject": "a", "sid": 1, "reply": "r", "header": BLOCK, "payload": b"\r\n!"},
    ),
    (
        "status",
        b"HMSG a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        "Message",
        {"subject": "a", "sid": 1, "reply": None, "header": b"NATS/1.0 503\r\n\r\n", "payload": b""},
    ),
    (
        "tabs between words",
        b"MSG\ta  1\t 2\r\nhi\r\n",
        "Message",
        {"subject": "a", "sid": 1, "reply": None, "header": None, "payload": b"hi"},
    ),
]
assert len(BLOCK) == 30
# Each broken frame, and the offset of the frame that is wrong.
BROKEN: list[tuple[str, bytes]] = [
    ("nothing known", b"HELLO\r\n"),
    ("empty line", b"\r\n"),
    ("blank first", b" PING\r\n"),
    ("a word too much", b"PING now\r\n"),
    ("no carriage return", b"PING\n"),
    ("only a line feed", b"\n"),
    ("HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
    ("TLS alert", b"\x15\x03\x01\x00\x02\x02\x46\n"),
    ("INFO of nothing", b"INFO\r\n"),
    ("INFO of a list", b"INFO [1]\r\n"),
    ("INFO of deep lists", b"INFO " + b"[" * 30_000 + b"\r\n"),
    ("INFO that is cut", b'INFO {"a":\r\n'),
    ("too few words", b"MSG a 1\r\n"),
    ("too many words", b"MSG a 1 b c 5\r\nhello\r\n"),
    ("too many words with headers", b"HMSG a 1 b c 5 5\r\nhello\r\n"),
    ("negative size", b"MSG a 1 -5\r\nhello\r\n"),
    ("size that is no number", b"MSG a 1 5x\r\nhello\r\n"),
    ("size with an underscore", b"MSG a 1 1_0\r\nhellohello\r\n"),
    ("size in Arabic digits", "MSG a 1 ٥\r\nhello\r\n".encode()),
    ("sid that is no number", b"MSG a x 5\r\nhello\r\n"),
    ("huge size", b"MSG a 1 99999999999999999999\r\n"),
    ("size over the limit", b"MSG a 1 1000001\r\n"),
    ("header over its message", b"HMSG a 1 6 5\r\nhello\r\n"),
    ("header over its limit", b"HMSG a 1 5001 6000\r\n"),
    ("size too small", b"MSG a 1 4\r\nhello\r\n"),
    ("size too large", b"MSG a 1 6\r\nhello\r\nPING\r\n"),
    ("endless line", b"INFO {" + b"x" * 40_000),
]


@pytest.fixture(params=FORMS)
def wire(request: pytest.FixtureRequest) -> Any:
    return form(request.param)


def parser(wire: Any) -> Any:
    return wire.protocol.Parser(max_line=32_768, max_header=5000, max_payload=1_000_000)


def drain(one: Any) -> list[Any]:
    """Take every event that is there."""
    found = []
    while (event := one.next_event()) is not None:
        found.append(event)
    return found


def feed_all(one: Any, content: bytes, step: int) -> None:
    """Feed bytes in steps, taking the events after each."""
    for place in range(0, len(content), step):
        one.feed(content[place : place + step])
        drain(one)


def fields(event: Any) -> tuple[str, dict[str, Any]]:
    return type(event).__name__, {name: getattr(event, name) for name in type(event).__slots__}


@pytest.mark.parametrize(("frame", "kind", "content"), [item[1:] for item in GOLDEN], ids=[item[0] for item in GOLDEN])
def test_golden_frames(wire: Any, frame: bytes, kind: str, content: dict[str, Any]) -> None:
    """A frame gives its event whole, byte by byte, and with a tail, which stays for later."""
    whole = parser(wire)
    whole.feed(frame)
    assert [fields(event) for event in drain(whole)] == [(kind, content)]
    slow, found = parser(wire), []
    for place in range(len(frame)):
        assert not found, "the event came before its last byte"
        slow.feed(frame[place : place + 1])
        found = drain(slow)
    assert [fields(event) for event in found] == [(kind, content)]
    tailed = parser(wire)
    tailed.feed(frame + b"PIN")
    assert [fields(event) for event in drain(tailed)] == [(kind, content)]
    tailed.feed(b"G\r\n")
    assert [fields(event) for event in drain(tailed)] == [("Ping", {})]


@pytest.mark.parametrize("frame", [item[1] for item in BROKEN], ids=[item[0] for item in BROKEN])
@pytest.mark.parametrize("before", [b"", b"PING\r\nMSG a 1 2\r\nhi\r\n"], ids=["first", "later"])
def test_broken_frames(wire: Any, frame: bytes, before: bytes) -> None:
    """A broken frame raises RemoteProtocolError with the place of its first byte, fed whole or byte by byte."""
    for step in (len(before + frame), 1):
        with pytest.raises(RemoteProtocolError) as caught:
            feed_all(parser(wire), before + frame, step)
        assert caught.value.place == len(before)
        assert f"at byte {len(before)}" in str(caught.value)


@given(
    frames=st.lists(st.sampled_from([item[1] for item in GOLDEN]), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
@settings(max_examples=150)
def test_any_split_gives_the_same_events(frames: list[bytes], cuts: list[int]) -> None:
    """However the bytes are cut, the events are the same, and both forms agree."""
    content = b"".join(frames)
    wanted = None
    for name in FORMS:
        wire = form(name)
        whole = parser(wire)
        whole.feed(content)
        expected = [fields(event) for event in drain(whole)]
        assert len(expected) == len(frames)
        assert wanted in (None, expected)
        wanted = expected
        one, found, last = parser(wire), [], 0
        for cut in [*sorted(min(cut, len(content)) for cut in cuts), len(content)]:
            one.feed(content[last:cut])
            found += drain(one)
            last = cut
        assert [fields(event) for event in found] == expected


_bits = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([item[1] for item in GOLDEN]),
    st.sampled_from([b"MSG ", b"HMSG ", b"\r\n", b"a 1 5", b"hello", b" ", b"INFO {", b"-ERR", b"9" * 30, b"\x00"]),
)


@given(pieces=st.lists(_bits, max_size=12))
@settings(max_examples=300)
def test_garbage_is_refused_or_understood(pieces: list[bytes]) -> None:
    """Whatever comes, the parser gives events or RemoteProtocolError, the same in both forms, and stays small."""
    outcomes = []
    for name in FORMS:
        one, found = parser(form(name)), []
        try:
            for piece in pieces:
                one.feed(piece)
                found += [fields(event) for event in drain(one)]
            outcome: Any = one.place
        except RemoteProtocolError as error:
            outcome = ("refused", error.place)
        assert len(one.buffer) <= one.limit
        outcomes.append((found, outcome))
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_the_buffer_grows_for_one_large_message_and_no_further(wire: Any) -> None:
    """A message at the limit passes, in an arena that never exceeds it; feeding on without taking is refused."""
    one = wire.protocol.Parser(max_line=1024, max_payload=3_000_000)
    payload = bytes(range(256)) * 11718
    one.feed(b"MSG a 1 %d\r\n%s\r\n" % (len(payload), payload))
    assert one.next_event().payload == payload
    assert len(one.buffer) <= one.limit == 3_001_028
    with pytest.raises(LocalProtocolError, match="More bytes than the limit"):
        one.feed(b"x" * 4_000_000)


def test_receiving_into_the_buffer(wire: Any) -> None:
    """A socket can receive into the parser's room, and the room never runs out while events are taken."""
    one = parser(wire)
    frame = b"MSG a 1 1000\r\n" + b"y" * 1000 + b"\r\n"
    content, count = frame * 5000, 0
    view = memoryview(content)
    while view:
        room = one.space()
        size = min(len(room), len(view), 70_001)
        assert size > 0
        room[:size] = view[:size]
        room.release()
        one.received(size)
        view = view[size:]
        count += len(drain(one))
    assert count == 5000
    assert one.place == len(content)


def test_a_small_rest_is_received_on_at_the_front(wire: Any) -> None:
    """What is left of a frame goes to the front at once, so that the same part of the buffer is used again."""
    one = parser(wire)
    frame = b"MSG a 1 1000\r\n" + b"y" * 1000 + b"\r\n"
    for _ in range(50):
        one.feed(frame * 10 + frame[:700])
        assert len(drain(one)) == 10
        one.feed(frame[700:])
        assert (one.start, one.end) == (0, len(frame))
        assert len(drain(one)) == 1
    assert one.place == 50 * 11 * len(frame)


# -- headers -------------------------------------------------------------------------------------------------


def test_headers_are_read_as_written(wire: Any) -> None:
    """Names keep their case, values lose outer blanks, repeated names keep their order, statuses are told apart."""
    decode = wire.protocol.decode_headers
    assert decode(BLOCK) == (None, "", {"A": ["1", "3"], "b": ["2"]})
    assert decode(b"NATS/1.0\r\n\r\n") == (None, "", {})
    assert decode(b"NATS/1.0 503\r\n\r\n") == (503, "", {})
    assert decode(b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nX: a:b\r\n\r\n") == (
        409,
        "Message Size Exceeds MaxBytes",
        {"X": ["a:b"]},
    )
    message = wire.protocol.Message("a", 1, None, b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 5\r\n\r\n", b"")
    assert (message.status, message.description) == (100, "Idle Heartbeat")
    assert message.headers == {"Nats-Last-Stream": ["5"]}


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"HTTP/1.1\r\n\r\n",
        b"NATS/1.0",
        b"NATS/1.0\r\nA: 1\r\n",
        b"NATS/1.0\r\nA\r\n\r\n",
        b"NATS/1.0\r\n: 1\r\n\r\n",
    ],
)
def test_broken_header_blocks(wire: Any, block: bytes) -> None:
    """A header block that breaks the grammar is refused by whoever reads it, with a place."""
    with pytest.raises(RemoteProtocolError) as caught:
        wire.protocol.decode_headers(block)
    assert caught.value.place is not None


_names = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=12)
_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=20)


@given(headers=st.dictionaries(_names, st.lists(_values, min_size=1, max_size=3), max_size=5))
def test_headers_survive_the_way(headers: dict[str, list[str]]) -> None:
    """What is written is read again, but for blanks around values."""
    for name in FORMS:
        protocol = form(name).protocol
        stripped = {key: [value.strip(" \t") for value in values] for key, values in headers.items()}
        assert protocol.decode_headers(protocol.encode_headers(headers))[2] == stripped


@pytest.mark.parametrize(
    "headers", [{"": "a"}, {"a b": "c"}, {"a:": "c"}, {"é": "c"}, {"a": "b\r\nc: d"}, {"a": ["b", "c\nd"]}]
)
def test_illegal_headers_are_not_sent(wire: Any, headers: dict[str, Any]) -> None:
    """A name or value that would break the block, or smuggle a line into it, is refused."""
    with pytest.raises(LocalProtocolError):
        wire.protocol.encode_headers(headers)


# -- what a client sends -------------------------------------------------------------------------------------


def test_what_a_client_sends(wire: Any) -> None:
    """Every command of a client has exactly these bytes."""
    protocol = wire.protocol
    line = protocol.connect({"verbose": False, "name": "é"})
    assert line.startswith(b"CONNECT {")
    assert line.endswith(b"}\r\n")
    assert json.loads(line[8:]) == {"verbose": False, "name": "é"}
    assert protocol.publish("a.b", b"hi") == b"PUB a.b 2\r\nhi\r\n"
    assert protocol.publish("a.b", b"", "r.1") == b"PUB a.b r.1 0\r\n\r\n"
    head = protocol.encode_headers({"A": "1"})
    assert head == b"NATS/1.0\r\nA: 1\r\n\r\n"
    assert protocol.publish("a", b"hi", None, head) == b"HPUB a 18 20\r\n" + head + b"hi\r\n"
    assert protocol.publish("a", b"", "r", head) == b"HPUB a r 18 18\r\n" + head + b"\r\n"
    assert protocol.subscribe("a.*", 3) == b"SUB a.* 3\r\n"
    assert protocol.subscribe("a.>", 3, "q") == b"SUB a.> q 3\r\n"
    assert protocol.unsubscribe(3) == b"UNSUB 3\r\n"
    assert protocol.unsubscribe(3, 5) == b"UNSUB 3 5\r\n"
    assert (protocol.PING, protocol.PONG) == (b"PING\r\n", b"PONG\r\n")


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", "a b", "a\r\nPUB x 0\r\n", "a\tb", "a\x00", "a\x7f"])
def test_illegal_subjects_are_not_sent(wire: Any, subject: str) -> None:
    """A subject that is none, or that would smuggle a command into the connection, is refused."""
    for attempt in (
        lambda: wire.protocol.publish(subject, b""),
        lambda: wire.protocol.publish("a", b"", subject),
        lambda: wire.protocol.subscribe(subject, 1),
    ):
        with pytest.raises(LocalProtocolError, match="is not a subject"):
            attempt()


def test_wildcards_are_for_subscribing(wire: Any) -> None:
    """A message goes to one subject; > stands at the end only; a star inside a token is an ordinary character."""
    for subject in ("a.*", "a.>", "*", ">"):
        with pytest.raises(LocalProtocolError, match="wildcards"):
            wire.protocol.publish(subject, b"")
        assert wire.protocol.subscribe(subject, 1)
    with pytest.raises(LocalProtocolError, match="before its last token"):
        wire.protocol.subscribe("a.>.b", 1)
    assert wire.protocol.publish("a*b.c>", b"") == b"PUB a*b.c> 0\r\n\r\n"
