"""The records of the state stream: what is remembered of clients, subscriptions and their groups, as JSON.

Golden tests freeze the formats: a gateway must read what an older one wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from penstock.channels.delivery import Group, Member
from penstock.errors import RemoteProtocolError
from penstock.json_text import load_json
from penstock.wire.jetstream.acked import joined

__all__ = [
    "ClientRecord",
    "GroupRecord",
    "MemberRecord",
    "decode_state",
    "encode_group",
    "encode_member",
    "encode_record",
]

VERSION = 1
MOST_RANGES = 20_000  # of a whole record: some hundred kilobytes
MOST_PENDING = 1 << 24  # sequences that a range of few digits may stand for; each takes memory


@dataclass(frozen=True)
class ClientRecord:
    """A client as it connected."""

    id: str
    heartbeat_inbox: str
    conn_id: bytes
    protocol: int
    ping_interval: int
    ping_max_out: int


@dataclass(frozen=True)
class MemberRecord:
    """A subscription: its options, and the group whose position it shares."""

    channel: str
    client: str
    inbox: str
    ack_inbox: str
    max_in_flight: int
    ack_wait: int
    durable: str
    queue: str
    keep: bool
    online: bool
    group: int


@dataclass(frozen=True)
class GroupRecord:
    """How far a group came, and what each member, by its number, has not acknowledged."""

    last: int
    pending: dict[int, tuple[int, ...]]
    created: str = ""
    """When the stream was made in which that is; empty in records of gateways that did not note it."""
    sent: int = 0
    """The last sequence that may have been sent, ahead of `last`; zero in records that do not say it."""


# The names under which the fields are stored, in their order.
_KEYS: dict[type, tuple[str, ...]] = {
    ClientRecord: ("id", "heartbeat", "connection", "protocol", "interval", "out"),
    MemberRecord: ("channel", "client", "inbox", "ack", "max", "wait", "durable", "queue", "keep", "online", "group"),
}
Record = TypeVar("Record", ClientRecord, MemberRecord)


def pack(sequences: Iterable[int], most: int = MOST_RANGES) -> list[tuple[int, int]]:
    """Write sequences as ranges [start, end).

    Beyond `most` ranges the rest becomes one, with the gaps between: a record must fit a message, and to remember an
    acknowledged message as pending does no harm.
    """
    found = joined((sequence, sequence + 1) for sequence in sequences)
    if len(found) > most:
        found[most - 1 :] = [(found[most - 1][0], found[-1][1])]
    return found


def unpack(stored: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """Read ranges [start, end); ValueError for more than a group can ever have pending."""
    ranges = [range(start, end) for start, end in stored]
    if sum(max(item.stop - item.start, 0) for item in ranges) > MOST_PENDING:
        raise ValueError(f"more than {MOST_PENDING:,} messages are pending")
    return tuple(sequence for item in ranges for sequence in item)


def _write(fields: dict[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **fields}, separators=(",", ":"), ensure_ascii=False).encode()


def _read(content: bytes, what: str) -> dict[str, Any]:
    try:
        stored = load_json(content)
        version = stored["v"]
    except (ValueError, KeyError, TypeError):
        stored, version = {}, None
    if version != VERSION:
        raise _unknown(what, content)
    return dict(stored)


def _unknown(what: str, content: bytes) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"The stored {what} is not of a version that this gateway reads: {content[:60]!r}.",
        remedy="Was it written by a newer one? Use that, or one at least as new.",
    )


def encode_record(record: ClientRecord | MemberRecord) -> bytes:
    """Write a client, or a subscription's options."""
    values = zip(_KEYS[type(record)], vars(record).values(), strict=True)
    return _write({key: value.hex() if isinstance(value, bytes) else value for key, value in values})


def decode_record(kind: type[Record], content: bytes) -> Record:
    """Read a client, or a subscription's options."""
    what = "client" if kind is ClientRecord else "subscription"
    stored = _read(content, what)
    try:
        values: list[Any] = [bytes.fromhex(stored[key]) if key == "connection" else stored[key] for key in _KEYS[kind]]
    except (KeyError, TypeError, ValueError):
        raise _unknown(what, content) from None
    if any(type(value).__name__ != field.type for value, field in zip(values, fields(kind), strict=True)):
        raise _unknown(what, content)
    return kind(*values)


def encode_member(group: Group, member: Member) -> bytes:
    """Write a subscription's options."""
    wishes = member.client, member.inbox, member.ack_inbox, member.max_in_flight, member.ack_wait
    identity = group.durable, group.queue, group.keep
    return encode_record(MemberRecord(group.channel, *wishes, *identity, member.online, group.number))


def encode_group(group: Group, sent: int = 0) -> bytes:
    """Write how far a group came, and how far it may have come by the time that somebody reads it.

    One record for all members: they change together or not at all.
    """
    most = max(1, MOST_RANGES // max(1, len(group.members)))
    pending = {str(member.number): pack(member.pending, most) for member in group.members if member.pending}
    stream = {"stream": group.stream.created} if group.stream is not None and group.stream.created else {}
    ahead = {"sent": sent} if sent > group.last else {}
    return _write({"last": group.last, "pending": pending, **stream, **ahead})


def decode_group(content: bytes) -> GroupRecord:
    """Read how far a group came."""
    stored = _read(content, "position")
    last, stream, sent = stored.get("last"), stored.get("stream", ""), stored.get("sent", 0)
    try:
        pending = {int(number): unpack(ranges) for number, ranges in stored["pending"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _unknown("position", content) from None
    if type(last) is not int or type(sent) is not int or not isinstance(stream, str):
        raise _unknown("position", content)
    return GroupRecord(last, pending, stream, sent)


def decode_state(
    stored: Mapping[str, bytes],
) -> tuple[list[ClientRecord], dict[int, MemberRecord], dict[int, GroupRecord]]:
    """Read all that is remembered: clients, and subscriptions and groups by their numbers."""
    clients, members, groups = [], {}, {}
    for subject, content in stored.items():
        kind, _, name = subject.partition(".")
        if kind == "client":
            clients.append(decode_record(ClientRecord, content))
        elif kind == "sub":
            members[_number(subject, name)] = decode_record(MemberRecord, content)
        elif kind == "pos":
            groups[_number(subject, name)] = decode_group(content)
    return clients, members, groups


def _number(subject: str, name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 19):
        raise RemoteProtocolError(
            f"The state of the gateway holds {subject[:60]!r}, which it never writes.",
            remedy="Somebody else published there; only the gateway may. Delete that message.",
        )
    return int(name)
