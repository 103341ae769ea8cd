"""Messages of channels on their way into a stream and out of it: frames, headers, deliveries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import (
    ChannelMessage,
    ChannelStream,
    encode,
    more_lines,
    read_message,
    write_frames,
)
from penstock.channels.publishes import NewMessages
from penstock.channels.wire import MsgProto, decode, frame, is_nobody
from penstock.errors import RemoteProtocolError
from penstock.wire.jetstream import names
from penstock.wire.protocol import decode_headers
from tests.channels_sets import deliveries, new_messages

NOW = 1_700_000_000_000_000_000


def written(messages: NewMessages, *, atomic: bool, expected: int = 10, so_far: int = 100, not_before: int = 0):
    """Write messages to the channel foo."""
    stream = ChannelStream("foo", "c:foo", "ch.foo", ChannelLimits())
    stream.last, stream.bytes_so_far, stream.last_time = expected, so_far, not_before
    return write_frames(stream, messages, "b1", now=NOW, atomic=atomic, first=0, end=len(messages))


def split(frames: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Read HPUB frames as a server does: what stands between the verb and the sizes, the headers, the payload."""
    found = []
    while frames:
        line, _, rest = frames.partition(b"\r\n")
        verb, *where, head, size = line.split(b" ")
        assert verb == b"HPUB"
        found.append((b" ".join(where), rest[: int(head)], rest[int(head) : int(size)]))
        assert rest[int(size) : int(size) + 2] == b"\r\n"
        frames = rest[int(size) + 2 :]
    return found


def times(made) -> list[int]:
    """Give the times of what was written, as subscribers get them."""
    return [decode(MsgProto, content).timestamp for _, content in deliveries(made.encoded)]


def test_golden_frames_one_by_one():
    """Without an atomic batch each message names the one it follows; the last one asks for the ack."""
    messages = new_messages(b"a")
    messages.add(b"bb", b"r", lines=more_lines(reply=b"r"))
    made = written(messages, atomic=False)
    first, second = (len(content) for _, content in deliveries(made.encoded))
    assert made.make(b"_INBOX.1") == b"".join(
        b"HPUB %b %d %d\r\n%b%b\r\n" % (where, len(head), len(head) + len(data), head, data)
        for where, head, data in (
            (
                b"ch.foo",
                f"NATS/1.0\r\nPenstock-Time: {NOW}\r\nPenstock-Bytes: {100 + first}\r\nPenstock-Batch: b1\r\n"
                "Nats-Expected-Last-Sequence: 10\r\n\r\n".encode(),
                b"a",
            ),
            (
                b"ch.foo _INBOX.1",
                f"NATS/1.0\r\nPenstock-Time: {NOW}\r\nPenstock-Bytes: {100 + first + second}\r\nPenstock-Batch: b1\r\n"
                "Nats-Expected-Last-Sequence: 11\r\nPenstock-Reply: r\r\n\r\n".encode(),
                b"bb",
            ),
        )
    )


def test_golden_frames_of_an_atomic_batch():
    """In an atomic batch the first message names the one that it follows, and the last one commits."""
    made = written(new_messages(b"a", b"b", b"c"), atomic=True)
    found = split(made.make(b"_INBOX.1"))
    assert [where for where, _, _ in found] == [b"ch.foo", b"ch.foo", b"ch.foo _INBOX.1"]
    headers = [decode_headers(head)[2] for _, head, _ in found]
    assert [item[names.BATCH_ID] for item in headers] == [["b1"]] * 3
    assert [item[names.BATCH_SEQUENCE] for item in headers] == [["1"], ["2"], ["3"]]
    assert [item.get(names.BATCH_COMMIT) for item in headers] == [None, None, ["1"]]
    assert [item.get(names.EXPECTED_LAST_SEQUENCE) for item in headers] == [["10"], None, None]
    assert all(head.startswith(b"NATS/1.0\r\nPenstock-Time: ") for _, head, _ in found), "where reading looks first"


@pytest.mark.parametrize("atomic", [False, True])
def test_frames_can_be_made_again(atomic):
    """The same frames are made for another reply subject, as for an attempt that is sent late."""
    made = written(new_messages(b"a", b"b"), atomic=atomic)
    assert made.make(b"one").replace(b" one ", b" two ") == made.make(b"two")


def test_time_never_goes_back():
    """A message has the time of the one before where its own is earlier: the clock was set, or it was copied."""
    messages = NewMessages()
    for time in (NOW + 5, NOW - 5, -1):
        messages.add(b"", time=time)
    assert times(written(messages, atomic=False)) == [NOW + 5] * 3
    assert times(written(new_messages(b""), atomic=False, not_before=NOW + 9)) == [NOW + 9]


@pytest.mark.parametrize("atomic", [False, True])
@given(
    contents=st.lists(st.tuples(st.binary(max_size=40), st.text(max_size=12)), min_size=1, max_size=8),
    expected=st.integers(0, 2**40),
)
def test_what_is_stored_is_what_was_foreseen(atomic, contents, expected):
    """What a stream gives back is, byte by byte, the delivery that was foreseen when the message was written."""
    messages = NewMessages()
    for data, reply in contents:
        messages.add(data, reply.encode(), lines=more_lines(reply=reply.encode()))
    made = written(messages, atomic=atomic, expected=expected, so_far=0)
    sent = deliveries(made.encoded)
    total = 0
    for place, (_, head, payload) in enumerate(split(made.make(b"_INBOX.x"))):
        server = f"{names.STREAM}: c:foo\r\n{names.SUBJECT}: ch.foo\r\n{names.SEQUENCE}: {expected + place + 1}\r\n"
        read = read_message(payload, head[:-2] + server.encode() + b"\r\n")
        sequence, content = sent[place]
        assert sequence == expected + place + 1
        total += len(content)
        assert read.encode("foo") == content
        assert (read.data, read.reply) == contents[place]
        assert (read.time, read.batch, read.bytes_so_far) == (NOW, "b1", total)
        assert not read.gap
        assert read.origin is None


def test_copies_and_gaps_are_marked():
    """A copied message knows its sequence at the source; a place that stays empty is known as such."""
    messages = new_messages(b"a", first_origin=7)
    messages.add(b"", lines=more_lines(gap=True))
    made = written(messages, atomic=False)
    one, two = (head[:-2] + b"Nats-Sequence: 1\r\n\r\n" for _, head, _ in split(made.make(b"r")))
    assert (read_message(b"a", one).origin, read_message(b"a", one).gap) == (7, False)
    assert (read_message(b"", two).origin, read_message(b"", two).gap) == (None, True)


def test_what_a_publisher_wrote_does_not_pass_for_the_servers():
    """A header of the server's name that a publisher wrote comes first, and does not count."""
    block = b"NATS/1.0\r\nNats-Sequence: 1\r\nPenstock-Time: 5\r\nNats-Sequence: 9\r\n\r\n"
    assert read_message(b"", block).sequence == 9


@pytest.mark.parametrize(
    "block",
    [
        None,
        b"",
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nNats-Sequence: x\r\nPenstock-Time: 5\r\n\r\n",
        b"NATS/1.0\r\nNats-Sequence: -1\r\nPenstock-Time: 5\r\n\r\n",
        b"NATS/1.0\r\nNats-Sequence: " + b"9" * 5000 + b"\r\nPenstock-Time: 5\r\n\r\n",
        b"NATS/1.0\r\nNats-Sequence: 1\r\nNats-Time-Stamp: yesterday\r\n\r\n",
    ],
)
def test_an_answer_without_sequence_or_time(block):
    """What does not say its sequence and time is refused, whatever stands there instead."""
    with pytest.raises(RemoteProtocolError, match="sequence and its time"):
        read_message(b"x", block)


def test_deliveries_have_the_size_that_clients_count_on():
    """A delivery is its payload and 19 bytes for a channel of three letters, as the clients' own tests want it."""
    assert len(encode("foo", 1, b"x" * 10, NOW, "")) == 29
    message = decode(MsgProto, ChannelMessage(3, NOW, b"data", "r", b"").encode("foo"))
    assert (message.sequence, message.subject, message.reply, message.data, message.timestamp) == (
        *(3, "foo", "r", b"data"),
        NOW,
    )


def test_frames_of_the_protocol():
    """What goes to clients is PUB, with a reply where an answer is wanted."""
    assert frame(b"a.b", b"xyz") == b"PUB a.b 3\r\nxyz\r\n"
    assert frame(b"a.b", b"", b"r") == b"PUB a.b r 0\r\n\r\n"


@pytest.mark.parametrize(
    ("header", "nobody"),
    [
        (None, False),
        (b"NATS/1.0 503\r\n\r\n", True),
        (b"NATS/1.0 503 No Responders\r\n\r\n", True),
        (b"NATS/1.0\r\nA: 503\r\n\r\n", False),
        (b"NATS/1.0 404\r\n\r\n", False),
        (b"garbage", False),
    ],
)
def test_nobody_is_there(header, nobody):
    """Only NATS's own status 503 says that nobody listens."""
    assert is_nobody(header) is nobody


def test_how_many_messages_a_stream_has():
    """A stream counts from its first to its last message; an empty one, also one that was emptied, has none."""
    stream = ChannelStream("foo", "c:foo", "foo", ChannelLimits())
    assert stream.count == 0
    stream.last = 9
    assert stream.count == 9
    stream.first = 10
    assert stream.count == 0
