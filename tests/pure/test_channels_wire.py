"""The bytes of the NATS Streaming protocol: golden ones, bad ones, and any in between."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from penstock.channels import wire
from penstock.channels.wire import (
    MESSAGES,
    Ack,
    CloseResponse,
    ConnectRequest,
    ConnectResponse,
    MsgProto,
    Ping,
    PingResponse,
    PubAck,
    PubMsg,
    StartPosition,
    SubscriptionRequest,
    SubscriptionResponse,
    Text,
    UnsubscribeRequest,
    again,
    decode,
)
from penstock.errors import RemoteProtocolError

STAMP = 1700000000000000000
KINDS = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}
FIELDS = {
    name: tuple((field.name, field.number, KINDS[field.type]) for field in message.DESCRIPTOR.fields)
    for name, message in MESSAGES.items()
}
GOLDEN = [
    (
        ConnectRequest(
            clientID="me", heartbeatInbox="_INBOX.hb", protocol=1, connID=b"c1", pingInterval=5, pingMaxOut=3
        ),
        "0a026d6512095f494e424f582e686218012202633128053003",
    ),
    (ConnectResponse(error=Text.CLIENT_EXISTS), "2a21" + b"stan: clientID already registered".hex()),
    (
        PubMsg(clientID="me", guid="g1", subject="foo", data=b"hello", connID=b"c1"),
        "0a026d65120267311a03666f6f2a0568656c6c6f32026331",
    ),
    (PubAck(guid="g1"), "0a026731"),
    (
        MsgProto(sequence=1, subject="foo", data=b"hello", timestamp=STAMP),
        "08011203666f6f220568656c6c6f288080a8b1e39fe7cb17",
    ),
    (
        MsgProto(sequence=1, subject="foo", data=b"hello", timestamp=STAMP, redelivered=True, redeliveryCount=1),
        "08011203666f6f220568656c6c6f288080a8b1e39fe7cb1730013801",
    ),
    (Ack(subject="foo", sequence=1), "0a03666f6f1001"),
    (
        SubscriptionRequest(
            clientID="me",
            subject="foo",
            qGroup="bar",
            inbox="_INBOX.s1",
            maxInFlight=1024,
            ackWaitInSecs=30,
            durableName="dur",
            startPosition=StartPosition.SequenceStart,
            startSequence=6,
        ),
        "0a026d651203666f6f1a0362617222095f494e424f582e7331288008301e3a0364757250035806",
    ),
    (SubscriptionResponse(ackInbox="_INBOX.a1"), "12095f494e424f582e6131"),
    (
        UnsubscribeRequest(clientID="me", subject="foo", inbox="_INBOX.a1"),
        "0a026d651203666f6f1a095f494e424f582e6131",
    ),
    (Ping(connID=b"c1"), "0a026331"),
    (CloseResponse(), ""),
    (PingResponse(), ""),
    (SubscriptionResponse(), ""),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=[item[0].DESCRIPTOR.name for item in GOLDEN])
def test_golden_bytes(message, golden):
    """Each message is written as the old clients and servers write it, and read back the same."""
    content = bytes.fromhex(golden)
    assert message.SerializeToString() == content
    assert decode(type(message), content) == message


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=[item[0].DESCRIPTOR.name for item in GOLDEN])
def test_cut_short(message, golden):
    """A message that ends in the middle of a field is refused; between two fields it is a smaller message."""
    content = bytes.fromhex(golden)
    ends = {0, len(content)}
    whole = b""
    for field, value in message.ListFields():
        whole += type(message)(**{field.name: value}).SerializeToString()
        ends.add(len(whole))
    for end in range(len(content)):
        if end in ends:
            decode(type(message), content[:end])
        else:
            with pytest.raises(RemoteProtocolError):
                decode(type(message), content[:end])


@pytest.mark.parametrize("name", sorted(FIELDS))
@pytest.mark.parametrize(
    "content",
    [b"dummy", b"\x0b\x0c", b"\x0f\x00", b"\x0e", b"\xff", b"\xf3\x01\xf4\x01", b"\x7b\x7c"],
    ids=["dummy", "group 1", "wire type 7", "wire type 6", "endless tag", "group 30", "group 15"],
)
def test_garbage_is_refused(name, content):
    """Groups, unknown wire types and words that are no message are refused for every kind of message."""
    with pytest.raises(RemoteProtocolError, match=name):
        decode(getattr(wire, name), content)


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_wrong_wire_type_is_refused(name):
    """A field that comes as another wire type is refused, where protobuf alone would skip it."""
    for _, number, kind in FIELDS[name]:
        text = kind in ("string", "bytes")
        tag = (number << 3) | (0 if text else 2)
        head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
        with pytest.raises(RemoteProtocolError, match=f"Field {number} "):
            decode(getattr(wire, name), head + (b"\x01" if text else b"\x01a"))


def test_unknown_fields_are_skipped():
    """A field that a newer peer added does no harm."""
    newer = bytes.fromhex("0a026731") + b"\xf8\x06\x05"  # field 111
    assert decode(PubAck, newer).guid == "g1"


@given(st.binary(max_size=60), st.sampled_from(sorted(FIELDS)))
def test_any_bytes_are_read_or_refused(content, name):
    """Whatever arrives is a message or a RemoteProtocolError, never anything else."""
    kind = getattr(wire, name)
    try:
        message = decode(kind, content)
    except RemoteProtocolError:
        return
    assert decode(kind, message.SerializeToString()) == message


@given(
    st.integers(0, 2**64 - 1),
    st.text(max_size=20),
    st.binary(max_size=200),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**32 - 1),
)
def test_redelivery_is_the_first_delivery_with_more(sequence, channel, data, stamp, count):
    """The bytes of a redelivery are those that protobuf writes, count and flag included."""
    first = MsgProto(sequence=sequence, subject=channel, data=data, timestamp=stamp)
    second = MsgProto()
    second.CopyFrom(first)
    second.redelivered, second.redeliveryCount = True, count
    assert again(first.SerializeToString(), count) == second.SerializeToString()


def test_the_published_definition_is_the_one_in_use():
    """docs/reference/channels.proto has the messages, fields, numbers and types that the code has."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "channels.proto").read_text()
    found = {}
    for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        fields = re.findall(r"^  (\w+) (\w+) = (\d+);", body, re.MULTILINE)
        found[name] = tuple(
            (field, int(number), "enum" if kind == "StartPosition" else kind) for kind, field, number in fields
        )
    assert found == FIELDS
    positions = re.findall(r"^  (\w+) = (\d);", text.partition("enum StartPosition")[2].partition("}")[0], re.MULTILINE)
    assert {name: int(number) for name, number in positions} == {item.name: item.value for item in StartPosition}


def test_texts_are_exact():
    """The texts that clients compare are the old server's, misspelling included."""
    assert Text.DUPLICATE_DURABLE == "stan: duplicate durable registration"
    assert Text.REPLACED == "client has been replaced or is no longer registered"
    assert Text.case_clash("Foo", "foo") == (
        'rejecting channel "Foo" because channel "foo" alreay exists (different cases not allowed)'
    )
