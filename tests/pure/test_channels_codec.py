"""Publishes and deliveries over whole buffers: the same in both forms, byte by byte what protobuf has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.channels import messages
from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import ChannelStream, more_lines, read_message
from penstock.channels.wire import Ack, MsgProto, PubAck, PubMsg, ack_start, canonical_publish, decode
from penstock.errors import RemoteProtocolError
from tests.channels_sets import FORMS, deliveries, encoded_of

INVALID, LARGE = b"stan: invalid publish request", b"too large"
texts = st.sampled_from(["", "me", "you", "foo", "foo.bar", "é", "a\x00b", "_INBOX.x"])
publishes = st.builds(
    lambda **fields: PubMsg(**fields).SerializeToString(),
    clientID=texts,
    guid=st.sampled_from(["", "g1", "é", "0123456789" * 3]),
    subject=texts,
    reply=texts,
    data=st.binary(max_size=40),
    connID=st.sampled_from([b"", b"c1", b"\xff"]),
    sha256=st.sampled_from([b"", b"s"]),
)
odd = st.one_of(
    st.binary(max_size=30),
    st.tuples(publishes, st.sampled_from([b"\xf8\x06\x05", b"\x0a\x02me", b"\x0b", b"\x18\x01", b"\x2a\x81\x00x"])).map(
        b"".join
    ),
    st.tuples(publishes, st.integers(0, 20)).map(lambda cut: cut[0][: -cut[1] or None]),
)
batches = st.lists(st.tuples(st.sampled_from([b"", b"r1", b"r2"]), st.one_of(publishes, odd)), max_size=12)


def is_client(name: str, conn_id: bytes) -> bool:
    return conn_id == b"c1" if conn_id else name == "me"


def is_channel(name: str) -> bool:
    return bool(name) and "\x00" not in name


def expected(batch: list[tuple[bytes, bytes]]) -> tuple[dict[str, list[tuple[bytes, str]]], list[tuple[bytes, bytes]]]:
    """Say with protobuf what is to be stored, and what is to be answered."""
    stored: dict[str, list[tuple[bytes, str]]] = {}
    acks = []
    for reply, content in batch:
        guid, error = "", INVALID.decode()
        try:
            message = decode(PubMsg, content)
            guid = message.guid
            if guid and is_channel(message.subject) and is_client(message.clientID, message.connID):
                error = LARGE.decode() if len(message.data) + len(message.reply.encode()) > 30 else ""
        except RemoteProtocolError:
            pass
        if not error:
            stored.setdefault(message.subject, []).append((message.data, message.reply))
        if reply:
            acks.append((reply, PubAck(guid=guid, error=error).SerializeToString()))
    return stored, acks


def frames(content: bytes) -> list[tuple[bytes, bytes]]:
    """Read PUB frames without a reply."""
    found = []
    while content:
        line, _, rest = content.partition(b"\r\n")
        verb, subject, size = line.split(b" ")
        assert verb == b"PUB"
        found.append((subject, rest[: int(size)]))
        assert rest[int(size) : int(size) + 2] == b"\r\n"
        content = rest[int(size) + 2 :]
    return found


def read(form: Any, batch: list[tuple[bytes, bytes]]) -> Any:
    made = form.publishes.Publishes(batch)
    made.sort(is_client, is_channel, canonical_publish, lambda reply: more_lines(reply=reply), 30, INVALID, LARGE)
    return made


@pytest.mark.parametrize("form", FORMS)
@given(batch=batches)
def test_publishes_are_read_and_answered_as_protobuf_does(form, batch):
    """Whatever arrives, in whatever form, is stored, refused and answered as if each PubMsg were decoded by itself."""
    made = read(form, batch)
    stored, acks = expected(batch)
    assert made.size == sum(len(content) for _, content in batch)
    found = {}
    for name, wanted in made.channels.items():
        pieces = form.publishes.encode_new(wanted, 0, len(wanted), form.encoded.channel_field(name), 7, 1000, 5)
        sent = [decode(MsgProto, content) for _, content in deliveries(pieces)]
        assert [item.sequence for item in sent] == list(range(7, 7 + len(sent)))
        assert all(item.subject == name.decode() and item.timestamp == 1000 for item in sent)
        if sent:
            found[name.decode()] = [(item.data, item.reply) for item in sent]
    assert found == stored
    out = form.encoded.ClientFrames()
    made.write_acks(out)
    assert frames(out.take()) == acks
    assert out.size == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_channel_that_fails(form):
    """What went wrong with a channel is said in the acks of its messages, and in no other."""
    contents = [PubMsg(clientID="me", guid="g", subject=name).SerializeToString() for name in "abab"]
    batch = [(b"r", content) for content in contents]
    made = read(form, batch)
    made.fail(made.channels[b"b"], b"full")
    out = form.encoded.ClientFrames()
    made.write_acks(out)
    assert [decode(PubAck, content).error for _, content in frames(out.take())] == ["", "full", "", "full"]


fields = st.tuples(st.binary(max_size=30), st.integers(0, 2**63 - 1), st.sampled_from([b"", b"r", "é".encode()]))


@pytest.mark.parametrize("form", FORMS)
@given(
    first=st.integers(1, 2**62),
    messages=st.lists(st.tuples(st.integers(1, 3), fields), min_size=1, max_size=20),
    channel=st.text(min_size=1, max_size=10),
    most=st.integers(10, 80),
)
def test_deliveries_are_what_protobuf_writes(form, first, messages, channel, most):
    """Messages are encoded as protobuf does, found by sequence, and framed up to the first that is too large."""
    made = form.encoded.Encoded(form.encoded.channel_field(channel.encode()))
    sequence, wanted = first, {}
    for step, (data, time, reply) in messages:
        sequence += step
        made.add(sequence, b"<" + data + b">", 1, len(data) + 1, time, reply)
        whole = MsgProto(sequence=sequence, subject=channel, data=data, timestamp=time, reply=reply.decode())
        wanted[sequence] = whole.SerializeToString()
    sequences = list(wanted)
    assert dict(deliveries([made])) == wanted
    assert (made.first, made.last, made.count) == (sequences[0], sequences[-1], len(sequences))
    assert made.size == sum(map(len, wanted.values()))
    for number in range(first, sequence + 2):
        place = made.place(number)
        assert place == sum(item < number for item in sequences)
        assert made.get(number) == wanted.get(number)
        if place < made.count:
            run = made.run(place, 3)
            assert sequences[place : place + run] == list(range(sequences[place], sequences[place] + run))
            assert run == 3 or place + run == len(sequences) or sequences[place + run] != sequences[place] + run
    fitting = next((place for place, item in enumerate(wanted.values()) if len(item) > most), len(wanted))
    out = form.encoded.ClientFrames()
    assert out.deliver(made, 0, made.count, b"in.box", most) == fitting
    assert frames(out.take()) == [(b"in.box", item) for item in list(wanted.values())[:fitting]]
    twice = form.encoded.Encoded(made.field)
    twice.extend(made)
    assert dict(deliveries([twice])) == wanted


@pytest.mark.parametrize("form", FORMS)
@given(
    blocks=st.lists(
        st.tuples(
            st.sampled_from([b"Penstock-Time: 5\r\n", b"Penstock-Time: 9223372036854775808\r\n", b"", b"A: b\r\n"]),
            st.sampled_from([b"", b"Penstock-Reply: a%20b\r\n", b"Nats-Sequence: 1\r\n", b"Penstock-Time: 6\r\n"]),
            st.sampled_from([b"Nats-Sequence: ", b"Nats-Sequence:"]),
        ),
        max_size=6,
    )
)
def test_what_is_read_is_encoded_as_if_one_by_one(form, blocks):
    """Answers to a direct get are encoded as they are when each is read by itself, whoever wrote them."""
    stream = ChannelStream("foo", "c:foo", "foo", ChannelLimits())
    answers = [
        (
            b"%d" % number,
            b"NATS/1.0\r\n" + head + more + name + b"%d\r\nNats-Time-Stamp: 2026-01-02T03:04:05.6Z\r\n\r\n" % number,
        )
        for number, (head, more, name) in enumerate(blocks, start=1)
    ]
    singly = [read_message(*answer) for answer in answers]
    words = messages._OURS, messages._REPLY, messages._AT, messages._read_other
    encoded = form.encoded.read_answers(answers, stream.field, *words)
    assert deliveries([encoded]) == [(item.sequence, item.encode("foo")) for item in singly]
    assert all(item.time < 2**63 for item in singly)


def test_pieces_of_memory_stay_small():
    """A large batch is encoded in several pieces, so that old ones can go while others stay."""
    made = FORMS[1].values[0].publishes.NewMessages()
    for _ in range(30):
        made.add(b"x" * 50_000)
    pieces = FORMS[1].values[0].publishes.encode_new(made, 0, 30, encoded_of(1, b"").field, 1, 1, 1)
    assert len(pieces) > 3
    assert [sequence for sequence, _ in deliveries(pieces)] == list(range(1, 31))


@pytest.mark.parametrize("form", FORMS)
@given(st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()), st.integers(0, 2**64 - 1))
def test_the_short_way_to_read_an_ack(form, channel: str, sequence: int):
    """It gives what decoding gives, or leaves the ack to decoding."""
    content, start = Ack(subject=channel, sequence=sequence).SerializeToString(), ack_start(channel)
    if 0 < sequence < 2**63:
        assert content.startswith(start)
        assert form.arrivals.sequence_in(content, len(start)) == sequence
    else:
        assert not content.startswith(start) or form.arrivals.sequence_in(content, len(start)) == -1


@pytest.mark.parametrize("form", FORMS)
@given(st.binary(max_size=24))
def test_the_short_way_reads_nothing_else(form, rest: bytes):
    """What follows an ack's channel is one number to its end, or decoding has to look at it."""
    start = ack_start("orders")
    found = form.arrivals.sequence_in(start + rest, len(start))
    if found >= 0:
        assert decode(Ack, start + rest).sequence == found
