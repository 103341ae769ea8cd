"""The protocol of NATS Streaming: its protobuf messages, decoded strictly, and its texts.

All of it is request and reply over plain NATS; `C` is the cluster id, and only `discover` is fixed by it::

    _STAN.discover.C        ConnectRequest       -> ConnectResponse, which names the other subjects
    _STAN.discover.C.pings  Ping                 -> PingResponse
    _STAN.pub.C.<channel>   PubMsg               -> PubAck, to the reply subject
    _STAN.sub.C             SubscriptionRequest  -> SubscriptionResponse
    _STAN.unsub.C           UnsubscribeRequest   -> SubscriptionResponse
    _STAN.subclose.C        UnsubscribeRequest   -> SubscriptionResponse
    _STAN.close.C           CloseRequest         -> CloseResponse
    <inbox of the client>   MsgProto, one message; no reply
    <ack inbox>             Ack, for one message; no reply
    <heartbeat inbox>       empty, with a reply that the client answers with anything

The messages are proto3: what is zero or empty is not on the wire. `FIELDS` is the definition; the same in protobuf's
own language is docs/reference/channels.proto, and a test holds the two together. The descriptors are built from the
table when this module is loaded, so no generated code ties us to a version of the protobuf compiler.

Decoding is strict. protobuf takes a field of an unexpected wire type for an unknown one and skips it; the clients and
the server of NATS Streaming refuse it, and so do we, along with groups, which proto3 does not have.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from penstock.errors import RemoteProtocolError

__all__ = [
    "FIELDS",
    "PACKAGE",
    "Ack",
    "CloseRequest",
    "CloseResponse",
    "ConnectRequest",
    "ConnectResponse",
    "MsgProto",
    "Ping",
    "PingResponse",
    "PubAck",
    "PubMsg",
    "StartPosition",
    "SubscriptionRequest",
    "SubscriptionResponse",
    "Text",
    "UnsubscribeRequest",
    "ack_start",
    "again",
    "decode",
    "frame",
    "is_nobody",
    "sequence_in",
]

PACKAGE = "penstock.channels"

# Each message's fields: name, number, type. `enum` is StartPosition.
FIELDS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "PubMsg": (
        ("clientID", 1, "string"),
        ("guid", 2, "string"),
        ("subject", 3, "string"),
        ("reply", 4, "string"),
        ("data", 5, "bytes"),
        ("connID", 6, "bytes"),
        ("sha256", 10, "bytes"),
    ),
    "PubAck": (("guid", 1, "string"), ("error", 2, "string")),
    "MsgProto": (
        ("sequence", 1, "uint64"),
        ("subject", 2, "string"),
        ("reply", 3, "string"),
        ("data", 4, "bytes"),
        ("timestamp", 5, "int64"),
        ("redelivered", 6, "bool"),
        ("redeliveryCount", 7, "uint32"),
        ("CRC32", 10, "uint32"),
    ),
    "Ack": (("subject", 1, "string"), ("sequence", 2, "uint64")),
    "ConnectRequest": (
        ("clientID", 1, "string"),
        ("heartbeatInbox", 2, "string"),
        ("protocol", 3, "int32"),
        ("connID", 4, "bytes"),
        ("pingInterval", 5, "int32"),
        ("pingMaxOut", 6, "int32"),
    ),
    "ConnectResponse": (
        ("pubPrefix", 1, "string"),
        ("subRequests", 2, "string"),
        ("unsubRequests", 3, "string"),
        ("closeRequests", 4, "string"),
        ("error", 5, "string"),
        ("subCloseRequests", 6, "string"),
        ("pingRequests", 7, "string"),
        ("pingInterval", 8, "int32"),
        ("pingMaxOut", 9, "int32"),
        ("protocol", 10, "int32"),
        ("publicKey", 100, "string"),
    ),
    "Ping": (("connID", 1, "bytes"),),
    "PingResponse": (("error", 1, "string"),),
    "SubscriptionRequest": (
        ("clientID", 1, "string"),
        ("subject", 2, "string"),
        ("qGroup", 3, "string"),
        ("inbox", 4, "string"),
        ("maxInFlight", 5, "int32"),
        ("ackWaitInSecs", 6, "int32"),
        ("durableName", 7, "string"),
        ("startPosition", 10, "enum"),
        ("startSequence", 11, "uint64"),
        ("startTimeDelta", 12, "int64"),
    ),
    "SubscriptionResponse": (("ackInbox", 2, "string"), ("error", 3, "string")),
    "UnsubscribeRequest": (
        ("clientID", 1, "string"),
        ("subject", 2, "string"),
        ("inbox", 3, "string"),
        ("durableName", 4, "string"),
    ),
    "CloseRequest": (("clientID", 1, "string"),),
    "CloseResponse": (("error", 1, "string"),),
}


class StartPosition(IntEnum):
    """Where a new subscription begins."""

    NewOnly = 0
    LastReceived = 1
    TimeDeltaStart = 2
    SequenceStart = 3
    First = 4


class Text:
    """What the server says when it refuses, to the letter: clients compare."""

    INVALID_SUBJECT = "stan: invalid subject"
    INVALID_START = "stan: invalid start position"
    INVALID_SUBSCRIPTION = "stan: invalid subscription"
    CLIENT_EXISTS = "stan: clientID already registered"
    CLIENT_MISSING = "stan: clientID missing"
    INVALID_CLIENT = "stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
    INVALID_ACK_WAIT = "stan: invalid ack wait time, should be >= 1s"
    INVALID_MAX_IN_FLIGHT = "stan: invalid MaxInflight, should be >= 1"
    INVALID_CONNECT = "stan: invalid connection request"
    INVALID_PUBLISH = "stan: invalid publish request"
    INVALID_SUBSCRIBE = "stan: invalid subscription request"
    INVALID_UNSUBSCRIBE = "stan: invalid unsubscribe request"
    INVALID_CLOSE = "stan: invalid close request"
    DUPLICATE_DURABLE = "stan: duplicate durable registration"
    INVALID_DURABLE = "stan: durable name of a durable queue subscriber can't contain the character ':'"
    UNKNOWN_CLIENT = "stan: unknown clientID"
    UNKNOWN_CHANNEL = "stan: unknown channel"
    CHANNEL_DELETED = "stan: channel is being deleted"
    TOO_MANY_CHANNELS = "too many channels"
    TOO_MANY_SUBSCRIPTIONS = "too many subscriptions per channel"
    REPLACED = "client has been replaced or is no longer registered"

    @staticmethod
    def case_clash(name: str, other: str) -> str:
        """Channels may not differ in case alone; the misspelling is the old server's, and clients may look for it."""
        return f'rejecting channel "{name}" because channel "{other}" alreay exists (different cases not allowed)'


def _build() -> dict[str, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    numbers = {
        "string": kinds.TYPE_STRING,
        "bytes": kinds.TYPE_BYTES,
        "int32": kinds.TYPE_INT32,
        "int64": kinds.TYPE_INT64,
        "uint32": kinds.TYPE_UINT32,
        "uint64": kinds.TYPE_UINT64,
        "bool": kinds.TYPE_BOOL,
        "enum": kinds.TYPE_ENUM,
    }
    file = descriptor_pb2.FileDescriptorProto(name="penstock/channels.proto", package=PACKAGE, syntax="proto3")
    positions = file.enum_type.add(name="StartPosition")
    for position in StartPosition:
        positions.value.add(name=position.name, number=position.value)
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number, type=numbers[kind], label=kinds.LABEL_OPTIONAL)
            if kind == "enum":
                made.type_name = f".{PACKAGE}.StartPosition"
    pool = descriptor_pool.DescriptorPool()  # our own: a program may carry another copy of this protocol
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in FIELDS}


_classes = _build()
PubMsg: Any = _classes["PubMsg"]
PubAck: Any = _classes["PubAck"]
MsgProto: Any = _classes["MsgProto"]
Ack: Any = _classes["Ack"]
ConnectRequest: Any = _classes["ConnectRequest"]
ConnectResponse: Any = _classes["ConnectResponse"]
Ping: Any = _classes["Ping"]
PingResponse: Any = _classes["PingResponse"]
SubscriptionRequest: Any = _classes["SubscriptionRequest"]
SubscriptionResponse: Any = _classes["SubscriptionResponse"]
UnsubscribeRequest: Any = _classes["UnsubscribeRequest"]
CloseRequest: Any = _classes["CloseRequest"]
CloseResponse: Any = _classes["CloseResponse"]

_numbers = {_classes[name]: frozenset(number for _, number, _ in fields) for name, fields in FIELDS.items()}
_GROUP = 3


def decode(kind: Any, content: bytes) -> Any:
    """Read one message; RemoteProtocolError for any other bytes."""
    try:
        message = kind.FromString(content)
    except DecodeError as error:
        raise RemoteProtocolError(f"These bytes are no {kind.DESCRIPTOR.name}: {error}.") from None
    unknown = UnknownFieldSet(message)
    if len(unknown):
        for field in (unknown[place] for place in range(len(unknown))):
            if field.field_number in _numbers[kind] or field.wire_type == _GROUP:
                raise RemoteProtocolError(
                    f"Field {field.field_number} of a {kind.DESCRIPTOR.name} has wire type {field.wire_type}."
                )
    return message


def frame(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """Write a message for the connection; the subjects are known to be good."""
    if reply:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


def is_nobody(header: bytes | None) -> bool:
    """Tell NATS's word that nobody listens, status 503, from an answer; no message of the protocol has headers."""
    return header is not None and header.startswith(b"NATS/1.0 503")


def again(content: bytes, count: int) -> bytes:
    """Turn the bytes of a first delivery into those of redelivery number `count`.

    Both flags come after everything that a delivery carries, so a message is encoded once for all subscribers.
    """
    rest = bytearray(b"\x30\x01\x38")
    while count > 0x7F:
        rest.append(count & 0x7F | 0x80)
        count >>= 7
    rest.append(count)
    return content + rest


def ack_start(channel: str) -> bytes:
    """Give the bytes with which every ordinary ack for a channel begins; its sequence follows."""
    content: bytes = Ack(subject=channel, sequence=1).SerializeToString()
    return content[:-1]


def sequence_in(rest: bytes) -> int | None:
    """Read the sequence of an ack behind `ack_start`; None if the rest is anything but one number.

    Acks come as often as messages go out, and `decode` takes three times as long.
    """
    value = 0
    for place, byte in enumerate(rest):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value if place + 1 == len(rest) < 10 else None
    return None
