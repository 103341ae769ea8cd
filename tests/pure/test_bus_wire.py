"""The packets of the bus, byte for byte: written, read whole, read cut, read with a tail."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus.wire import (
    ORDER,
    Close,
    Element,
    First,
    Misc,
    MiscInbox,
    ReplyDecoder,
    Response,
    State,
    Type,
    decode_misc,
    encode_close,
    encode_element_packet,
    encode_inbox,
    encode_response,
    encode_section,
)
from penstock.errors import LocalProtocolError, RemoteProtocolError

INBOX = "_INBOX.idSCP8zILj9TXywbQ8Nrqs"
# Captured from the reference: the state before, the bytes, what they mean, and how many bytes are fixed: cut
# anywhere before, the packet is broken; from there on everything is payload.
GOLDEN = {
    "response": (
        State.START,
        b'\x00\x10application/json\xc8\x00{"a":1}',
        Response(200, "application/json", b'{"a":1}'),
        20,
    ),
    "empty response": (State.START, b"\x00\x00\x94\x01", Response(404, "", b""), 4),
    "error response": (State.START, b"\x00\x0atext/plain\xf4\x01boom", Response(500, "text/plain", b"boom"), 14),
    "close": (State.ARRAY, b"\x01", Close(), 1),
    "close with an error": (State.ARRAY, b"\x01test error", Close("test error"), 1),
    "map": (
        State.OPEN,
        b'\x02\x02\x0aclassifier\x012\x06secMap\x03id1{"fld1":"fld1Val"}',
        First("map", "secMap", ("classifier", "2"), Element(b'{"fld1":"fld1Val"}', "id1")),
        26,
    ),
    "array": (
        State.OPEN,
        b'\x03\x00\x06secArr"arr\\u003cEl1\\u003e"',
        First("array", "secArr", (), Element(b'"arr\\u003cEl1\\u003e"')),
        9,
    ),
    "object": (
        State.OPEN,
        b'\x04\x01\x04meta\x06secObj{"total":1}',
        First("object", "secObj", ("meta",), Element(b'{"total":1}')),
        14,
    ),
    "element of a map": (State.MAP, b"\x05\x03id2raw<&>", Element(b"raw<&>", "id2"), 5),
    "element of an array": (State.ARRAY, b"\x0542", Element(b"42"), 1),
    "inbox": (State.START, b"\x06_INBOX.idSCP8zILj9TXywbQ8Nrqs", MiscInbox(INBOX), 2),
}
golden = pytest.mark.parametrize(("state", "data", "value", "fixed"), GOLDEN.values(), ids=GOLDEN)


def decoder(state: State) -> ReplyDecoder:
    made = ReplyDecoder()
    made.state = state
    return made


def encode(value: object) -> bytes:
    match value:
        case Response():
            return encode_response(value)
        case Close(error):
            return encode_close(error)
        case MiscInbox(name):
            return encode_inbox(name)
        case First(kind, type, path, Element(data, name)):
            return encode_element_packet(data, name, encode_section(kind, type, path))
        case Element(data, name):
            return encode_element_packet(data, name)
    raise AssertionError(value)


@golden
def test_golden_bytes_are_written(state, data, value, fixed):
    """Each value is written as the bytes that the reference writes."""
    assert encode(value) == data


@golden
def test_golden_bytes_are_read_whole(state, data, value, fixed):
    """The bytes that the reference writes are read as the value, and the table says what may follow."""
    reader = decoder(state)
    assert reader.decode(data) == value
    assert reader.state == ORDER[state][Type(data[0])]


@golden
def test_golden_bytes_cut_short(state, data, value, fixed):
    """Cut inside its fixed part a packet is refused; cut inside its payload it is a shorter payload."""
    for end in range(len(data)):
        reader = decoder(state)
        if end < fixed or data[:end].endswith(b"_INBOX."):  # a subject does not end with a dot
            with pytest.raises(RemoteProtocolError):
                reader.decode(data[:end])
            assert reader.state is state, "a refused packet changes nothing"
        else:
            assert encode(reader.decode(data[:end])) == data[:end]


@golden
def test_golden_bytes_with_a_tail(state, data, value, fixed):
    """A message is one packet, so a tail belongs to its payload."""
    assert encode(decoder(state).decode(data + b"tail")) == data + b"tail"


@pytest.mark.parametrize(
    ("signal", "data"), [(Misc.GO_ON, b"\x00"), (Misc.NO_CONSUMER, b"\x01"), (Misc.SLOW_CONSUMER, b"\x02")]
)
def test_misc_stream(signal: Misc, data: bytes):
    """A signal is one byte; nothing, another byte or a tail is refused."""
    assert decode_misc(data) is signal
    for wrong in (b"", b"\x03", b"\xff", data + b"\x00"):
        with pytest.raises(RemoteProtocolError):
            decode_misc(wrong)


def test_order_of_packets():
    """The table of orders is exact: every state with every type is either taken, skipped or refused as it says."""
    samples = {Type(data[0]): data for _, data, _, _ in GOLDEN.values()}
    assert set(samples) == set(Type)
    for state, number in itertools.product(State, Type):
        reader = decoder(state)
        # An element is read by the section that it is in: this one is good in both.
        data = b"\x05\x01ab" if number is Type.ELEMENT else samples[number]
        if number not in ORDER[state]:
            with pytest.raises(RemoteProtocolError, match=number.name):
                reader.decode(data)
            assert reader.state is state
        else:
            value = reader.decode(data)
            assert (value is None) == (number is Type.RESPONSE and state is not State.START)
            assert reader.state is ORDER[state][number]


@pytest.mark.parametrize("state", [State.OPEN, State.MAP, State.ARRAY, State.OBJECT])
def test_unknown_types_are_skipped_in_mid_stream(state: State):
    """A packet of a type that nobody has defined is passed over, as the reference does."""
    assert decoder(state).decode(b"\x2aanything") is None


@pytest.mark.parametrize("state", [State.START, State.DONE])
def test_unknown_types_are_refused_at_the_edges(state: State):
    """A reply neither begins nor goes on after its end with a packet of an unknown type."""
    with pytest.raises(RemoteProtocolError, match="type 42"):
        decoder(state).decode(b"\x2aanything")


def test_empty_packet():
    """An empty packet is refused in every state."""
    for state in State:
        with pytest.raises(RemoteProtocolError, match="empty"):
            decoder(state).decode(b"")


def test_element_before_a_section():
    """An element before any section, or after an object, is refused: it belongs to nothing."""
    reader = ReplyDecoder()
    reader.decode(b"\x06" + INBOX.encode())
    with pytest.raises(RemoteProtocolError, match="before the first section"):
        reader.decode(b"\x0542")
    reader.decode(GOLDEN["object"][1])
    with pytest.raises(RemoteProtocolError, match="after an object"):
        reader.decode(b"\x0542")


def test_text_that_is_not_utf8():
    """Text that is not UTF-8 is refused with the place of the bad byte; only the text of an error is let through."""
    with pytest.raises(RemoteProtocolError) as caught:
        decoder(State.OPEN).decode(b"\x03\x00\x03a\xffbvalue")
    assert caught.value.place == 4
    assert decoder(State.MAP).decode(b"\x01oh \xff") == Close("oh \ufffd")


@pytest.mark.parametrize("name", ["", "a b", "a.*", "a.>", "a..b", ".a", "\xff", "a\x00"])
def test_inbox_that_is_no_subject(name: str):
    """We publish to the inbox that a handler names, so it must be a plain subject."""
    with pytest.raises(RemoteProtocolError):
        ReplyDecoder().decode(b"\x06" + name.encode("latin-1"))


TOO_LONG = "é" * 128  # 128 characters, 256 bytes


@pytest.mark.parametrize(
    "write",
    [
        lambda: encode_section("map", TOO_LONG),
        lambda: encode_section("map", "type", [TOO_LONG]),
        lambda: encode_section("map", "type", ["x"] * 256),
        lambda: encode_section("map", "type", "path"),
        lambda: encode_section("map", None),
        lambda: encode_element_packet(b"", TOO_LONG),
        lambda: encode_element_packet(b"", "\udc80"),
        lambda: encode_response(Response(200, "x" * 255)),
        lambda: encode_response(Response(65536)),
        lambda: encode_response(Response(-1)),
        lambda: encode_inbox(""),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_sent(write):
    """Lengths count bytes, and what does not fit its length is refused; the reference would cut it silently."""
    with pytest.raises(LocalProtocolError):
        write()


def test_what_just_fits():
    """255 bytes fit where a length is one byte; 254 for the content type, whose length the reference adds one to."""
    path = ["p" * 255] * 255
    packet = encode_element_packet(b"v", "n" * 255, encode_section("map", "t" * 255, path))
    assert decoder(State.OPEN).decode(packet) == First("map", "t" * 255, tuple(path), Element(b"v", "n" * 255))
    response = Response(65535, "c" * 254, b"d")
    assert decoder(State.START).decode(encode_response(response)) == response


short = (
    st.text(max_size=60)
    .filter(lambda text: len(text.encode("utf-8", "surrogatepass")) <= 255)
    .filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
)


@given(st.integers(0, 65535), short.filter(lambda text: len(text.encode()) < 255), st.binary(max_size=300))
def test_every_response_survives(status, content_type, data):
    """Whatever response is written is read back."""
    response = Response(status, content_type, data)
    assert ReplyDecoder().decode(encode_response(response)) == response


@given(st.sampled_from(["map", "array", "object"]), short, st.lists(short, max_size=5), short, st.binary(max_size=300))
def test_every_section_survives(kind, type, path, name, data):
    """Whatever section is written is read back, and so is an element that follows it."""
    reader = decoder(State.OPEN)
    first = First(kind, type, tuple(path), Element(data, name if kind == "map" else None))
    assert reader.decode(encode(first)) == first
    if kind != "object":
        assert reader.decode(encode(first.element)) == first.element


@given(st.sampled_from(list(State)), st.binary(max_size=80))
def test_garbage_is_refused_or_read(state, data):
    """Any bytes are either read or refused with our error; nothing else is raised, and what is read is written back."""
    try:
        value = decoder(state).decode(data)
    except RemoteProtocolError:
        return
    if (
        value is not None
        and not isinstance(value, Close)
        and not (isinstance(value, Response) and len(value.content_type.encode()) == 255)
    ):
        assert encode(value) == data


def test_json_of_values():
    """Elements and responses give their data as JSON."""
    assert Element(b'{"a":1}').json() == {"a": 1}
    assert Response(data=b"[1]").json() == [1]
    assert Response.text(500, "boom") == Response(500, "text/plain", b"boom")
