"""The records of the state stream: what is remembered of clients, subscriptions and their groups, as JSON.

Golden tests freeze the formats: a gateway must read what an older one wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.channels.delivery import Group, Member
from penstock.errors import RemoteProtocolError

__all__ = [
    "ClientRecord",
    "GroupRecord",
    "MemberRecord",
    "decode_client",
    "decode_group",
    "decode_member",
    "encode_client",
    "encode_group",
    "encode_member",
    "pack",
    "unpack",
]

VERSION = 1
MOST_RANGES = 20_000  # of a whole record: some hundred kilobytes


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


def pack(sequences: Iterable[int], most: int = MOST_RANGES) -> list[list[int]]:
    """Write sequences as ranges [start, end).

    Beyond `most` ranges the rest becomes one, with the gaps between: a record must fit a message, and to remember an
    acknowledged message as pending does no harm.
    """
    ranges: list[list[int]] = []
    for sequence in sorted(sequences):
        if ranges and ranges[-1][1] == sequence:
            ranges[-1][1] += 1
        else:
            ranges.append([sequence, sequence + 1])
    if len(ranges) > most:
        ranges[most - 1 :] = [[ranges[most - 1][0], ranges[-1][1]]]
    return ranges


def unpack(ranges: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """Read ranges [start, end)."""
    return tuple(sequence for start, end in ranges for sequence in range(start, end))


def _write(fields: dict[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **fields}, separators=(",", ":"), ensure_ascii=False).encode()


def _read(content: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(content)
        version = fields["v"]
    except (ValueError, KeyError, TypeError):
        fields, version = {}, None
    if version != VERSION:
        raise RemoteProtocolError(
            f"The stored {what} is not of a version that this gateway reads: {content[:60]!r}.",
            remedy="Was it written by a newer one? Use that, or one at least as new.",
        )
    return dict(fields)


def encode_client(client: ClientRecord) -> bytes:
    """Write a client."""
    return _write(
        {
            "id": client.id,
            "heartbeat": client.heartbeat_inbox,
            "connection": client.conn_id.hex(),
            "protocol": client.protocol,
            "interval": client.ping_interval,
            "out": client.ping_max_out,
        }
    )


def decode_client(content: bytes) -> ClientRecord:
    """Read a client."""
    fields = _read(content, "client")
    return ClientRecord(
        fields["id"],
        fields["heartbeat"],
        bytes.fromhex(fields["connection"]),
        fields["protocol"],
        fields["interval"],
        fields["out"],
    )


def encode_member(group: Group, member: Member) -> bytes:
    """Write a subscription's options."""
    return _write(
        {
            "channel": group.channel,
            "client": member.client,
            "inbox": member.inbox,
            "ack": member.ack_inbox,
            "max": member.max_in_flight,
            "wait": member.ack_wait,
            "durable": group.durable,
            "queue": group.queue,
            "keep": group.keep,
            "online": member.online,
            "group": group.number,
        }
    )


def decode_member(content: bytes) -> MemberRecord:
    """Read a subscription's options."""
    fields = _read(content, "subscription")
    return MemberRecord(
        fields["channel"],
        fields["client"],
        fields["inbox"],
        fields["ack"],
        fields["max"],
        fields["wait"],
        fields["durable"],
        fields["queue"],
        fields["keep"],
        fields["online"],
        fields["group"],
    )


def encode_group(group: Group) -> bytes:
    """Write how far a group came. One record for all members: they change together or not at all."""
    most = max(1, MOST_RANGES // max(1, len(group.members)))
    pending = {str(member.number): pack(member.pending, most) for member in group.members if member.pending}
    return _write({"last": group.last, "pending": pending})


def decode_group(content: bytes) -> GroupRecord:
    """Read how far a group came."""
    fields = _read(content, "position")
    return GroupRecord(fields["last"], {int(number): unpack(ranges) for number, ranges in fields["pending"].items()})
