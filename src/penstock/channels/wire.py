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

The messages are proto3: what is zero or empty is not on the wire. `_DEFINITION` has them; the same in protobuf's own
language is docs/reference/channels.proto, and a test holds the two together. The descriptors are built from the
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
    "MESSAGES",
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
    "canonical_publish",
    "decode",
    "frame",
    "is_nobody",
]

_PACKAGE = "penstock.channels"
# Each message's fields, as a type, then the names and numbers that have it; `enum` is StartPosition.
_DEFINITION = """
PubMsg:                string clientID=1 guid=2 subject=3 reply=4  bytes data=5 connID=6 sha256=10
PubAck:                string guid=1 error=2
MsgProto:              uint64 sequence=1  string subject=2 reply=3  bytes data=4  int64 timestamp=5
                       bool redelivered=6  uint32 redeliveryCount=7 CRC32=10
Ack:                   string subject=1  uint64 sequence=2
ConnectRequest:        string clientID=1 heartbeatInbox=2  int32 protocol=3  bytes connID=4
                       int32 pingInterval=5 pingMaxOut=6
ConnectResponse:       string pubPrefix=1 subRequests=2 unsubRequests=3 closeRequests=4 error=5 subCloseRequests=6
                       string pingRequests=7  int32 pingInterval=8 pingMaxOut=9 protocol=10  string publicKey=100
Ping:                  bytes connID=1
PingResponse:          string error=1
SubscriptionRequest:   string clientID=1 subject=2 qGroup=3 inbox=4  int32 maxInFlight=5 ackWaitInSecs=6
                       string durableName=7  enum startPosition=10  uint64 startSequence=11  int64 startTimeDelta=12
SubscriptionResponse:  string ackInbox=2 error=3
UnsubscribeRequest:    string clientID=1 subject=2 inbox=3 durableName=4
CloseRequest:          string clientID=1
CloseResponse:         string error=1
"""


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
    TOO_MANY_CHANNELS = "too many channels"
    TOO_MANY_SUBSCRIPTIONS = "too many subscriptions per channel"
    REPLACED = "client has been replaced or is no longer registered"

    @staticmethod
    def case_clash(name: str, other: str) -> str:
        """Channels may not differ in case alone; the misspelling is the old server's, and clients may look for it."""
        return f'rejecting channel "{name}" because channel "{other}" alreay exists (different cases not allowed)'


def _build() -> dict[str, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="penstock/channels.proto", package=_PACKAGE, syntax="proto3")
    positions = file.enum_type.add(name="StartPosition")
    for position in StartPosition:
        positions.value.add(name=position.name, number=position.value)
    kind = ""
    for word in _DEFINITION.split():
        name, equals, number = word.partition("=")
        if equals:
            field = file.message_type[-1].field.add(name=name, number=int(number), label=kinds.LABEL_OPTIONAL)
            field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if kind == "enum":
                field.type_name = f".{_PACKAGE}.StartPosition"
        elif word.endswith(":"):
            file.message_type.add(name=word[:-1])
        else:
            kind = word
    pool = descriptor_pool.DescriptorPool()  # our own: a program may carry another copy of this protocol
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles([file.name], pool)


MESSAGES = {name.rpartition(".")[2]: message for name, message in _build().items()}
PubMsg: Any = MESSAGES["PubMsg"]
PubAck: Any = MESSAGES["PubAck"]
MsgProto: Any = MESSAGES["MsgProto"]
Ack: Any = MESSAGES["Ack"]
ConnectRequest: Any = MESSAGES["ConnectRequest"]
ConnectResponse: Any = MESSAGES["ConnectResponse"]
Ping: Any = MESSAGES["Ping"]
PingResponse: Any = MESSAGES["PingResponse"]
SubscriptionRequest: Any = MESSAGES["SubscriptionRequest"]
SubscriptionResponse: Any = MESSAGES["SubscriptionResponse"]
UnsubscribeRequest: Any = MESSAGES["UnsubscribeRequest"]
CloseRequest: Any = MESSAGES["CloseRequest"]
CloseResponse: Any = MESSAGES["CloseResponse"]

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
            if field.field_number in kind.DESCRIPTOR.fields_by_number or field.wire_type == _GROUP:
                raise RemoteProtocolError(
                    f"Field {field.field_number} of a {kind.DESCRIPTOR.name} has wire type {field.wire_type}."
                )
    return message


def canonical_publish(content: bytes) -> bytes | None:
    """Give a PubMsg as protobuf writes it, without fields that nobody knows; None for bytes that are not a PubMsg."""
    try:
        message = decode(PubMsg, content)
    except RemoteProtocolError:
        return None
    message.DiscardUnknownFields()
    written: bytes = message.SerializeToString()
    return written


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
