"""What is published, put together for one write: the frames of the protocol, counted, in either form of the code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import dispatch
from penstock.wire.protocol import encode_headers, publish
from tests.wire_sets import PLAIN

WORD = st.text("abcdefgh", min_size=1, max_size=300)
MESSAGE = st.tuples(
    WORD,
    st.none() | WORD,
    st.none() | st.dictionaries(WORD, st.text("xyz", max_size=20), min_size=1, max_size=3),
    st.binary(max_size=300) | st.integers(60_000, 200_000).map(bytes),
)


@pytest.fixture(scope="module", params=["plain", "in use"])
def outbox(request):
    """Make outboxes, as plain Python and as they are in use: compiled where there is a compiler."""
    return PLAIN["dispatch"].Outbox if request.param == "plain" else dispatch.Outbox


@given(st.lists(MESSAGE, max_size=6))
def test_frames_are_those_of_the_protocol(outbox, messages):
    """Message by message, what waits is the frame that `protocol.publish` gives; a taken outbox begins anew."""
    box = outbox()
    for _ in range(2):
        expected = b""
        for subject, reply, headers, payload in messages:
            block = None if headers is None else encode_headers(headers)
            expected += publish(subject, payload, reply, block)
            assert box.publish(subject.encode(), (reply or "").encode(), block, payload) == len(expected)
        assert box.size == len(expected)
        assert bytes(box.take()) == expected
        assert box.size == 0
        assert bytes(box.take()) == b""
    assert box.messages == 2 * len(messages)


@given(MESSAGE)
def test_a_message_without_its_payload_is_the_front_of_its_frame(outbox, message):
    """`begin` gives what stands before the payload, and counts the message as if it were whole."""
    subject, reply, headers, payload = message
    block = None if headers is None else encode_headers(headers)
    whole, front = outbox(), outbox()
    whole.publish(subject.encode(), (reply or "").encode(), block, payload)
    front.begin(subject.encode(), (reply or "").encode(), block, len(payload))
    assert (front.messages, front.bytes) == (whole.messages, whole.bytes)
    assert bytes(front.take()) + payload + b"\r\n" == bytes(whole.take())


@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
def test_ready_frames_stand_where_they_were_added(outbox, size):
    """Frames that somebody else made keep their place between messages, also after much has waited."""
    box = outbox()
    box.publish(b"a", b"", None, bytes(size))
    box.add(b"SUB b 1\r\n")
    assert box.publish(b"c", b"d", None, b"e") == box.size
    assert bytes(box.take()) == b"PUB a %d\r\n%b\r\nSUB b 1\r\nPUB c d 1\r\ne\r\n" % (size, bytes(size))
    assert box.add(b"PING\r\n") == 6
    assert bytes(box.take()) == b"PING\r\n"
