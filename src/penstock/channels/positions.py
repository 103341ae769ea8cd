"""Positions that were brought from another server: planned, written into the state of a cluster, and read again.

A position goes into the state as a gateway would have written it, for a durable that is offline: when its client, or
any member of its queue, subscribes again, it goes on where it was. The record carries a mark that a gateway's own do
not. So a later run may move a position that nobody has used since, and does not touch one that a client has moved on
from.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.channels.delivery import Group, Member
from penstock.channels.lease import Lease
from penstock.channels.messages import ChannelStream
from penstock.channels.migrate import UNLIMITED
from penstock.channels.old_durables import OldDurable
from penstock.channels.options import GatewayOptions
from penstock.channels.state import State, read_state
from penstock.channels.state_records import (
    GroupRecord,
    MemberRecord,
    decode_state,
    encode_group,
    encode_member,
    pack,
    unpack,
)
from penstock.channels.store import Store
from penstock.connection.tasks import end
from penstock.errors import DataLossError, InputError, NoRespondersError, ServerError
from penstock.json_text import load_json

__all__ = ["Fate", "Planned", "check_positions", "plan_positions", "set_positions"]

_MARK = "migrated"
_GOODBYE = 2.0


class Fate:
    """What is to become of a durable, in words for people and programs."""

    BRING = "bring"
    BROUGHT = "brought"
    SAME = "there already"
    REFUSED = "refused"


@dataclass(frozen=True)
class Planned:
    """A durable, and what is to become of it."""

    durable: OldDurable
    fate: str
    why: str = ""
    """For a durable that is refused, the reason."""


class _Known:
    """What the state of a cluster knows of durables."""

    def __init__(self, stored: dict[str, bytes]) -> None:
        _, members, self.groups = decode_state(stored)
        self.numbers = [0, *members, *self.groups]
        self.found: dict[tuple[str, str, str, str], tuple[int, MemberRecord]] = {}
        for number, member in members.items():
            owner = "" if member.queue else member.client
            if member.keep:
                self.found[member.channel, owner, member.durable, member.queue] = number, member
        self.marked = {
            int(subject.removeprefix("pos."))
            for subject, content in stored.items()
            if subject.startswith("pos.") and load_json(content).get(_MARK)
        }

    def is_same(self, durable: OldDurable) -> bool:
        """Whether the state has this durable, exactly where it is to be."""
        number, member = self.found[durable.identity]
        at = self.groups.get(member.group, GroupRecord(-1, {}))
        # More ranges than a record takes are stored as fewer, larger ones.
        return at.last == durable.last and at.pending.get(number, ()) == unpack(pack(durable.pending))


async def _read(store: Store) -> _Known:
    try:
        stored, _ = await read_state(store.connection, store.cluster)
    except NoRespondersError:
        stored = {}  # no gateway ever served this cluster
    return _Known(stored)


async def plan_positions(
    store: Store, durables: Iterable[OldDurable], ends: dict[str, tuple[int, int] | None], *, again: bool = False
) -> list[Planned]:
    """Tell what would become of each durable; nothing is changed.

    `ends` are the first and the last message of each channel at the source. With `again`, a durable that clients of
    the gateway have used already is put back to where it was at the old server.
    """
    known = await _read(store)
    planned = []
    for durable in durables:
        why = ""
        if durable.unknown:
            why = f"{durable.unknown} messages are not acknowledged, and the pages do not tell which"
        elif durable.identity in known.found and known.is_same(durable):
            planned.append(Planned(durable, Fate.SAME))
            continue
        elif durable.identity in known.found and not again:
            _, member = known.found[durable.identity]
            if member.group not in known.marked:
                at = known.groups.get(member.group, GroupRecord(0, {}))
                why = f"the gateway has served it already, up to {at.last}"
        last = (ends.get(durable.channel) or (0, 0))[1]
        if not why and last and durable.last > last:
            why = f"it was sent {durable.last}, and the channel ends at {last}"
        planned.append(Planned(durable, Fate.REFUSED if why else Fate.BRING, why))
    return planned


async def set_positions(
    store: Store, planned: Sequence[Planned], ends: dict[str, tuple[int, int] | None]
) -> list[Planned]:
    """Write the positions that are to be brought, read them again, and tell what became of each.

    Raises InputError if any is refused, ServerError if somebody serves the cluster, DataLossError if a channel was not
    copied up to the end of its source.
    """
    for item in planned:
        if item.fate == Fate.REFUSED:
            raise InputError(
                f"The {item.durable.title} on {item.durable.channel} cannot be brought: {item.why}.",
                remedy="`--dry-run` lists all of them, and `penstock channels migrate -h` says what helps.",
            )
    bring = [item.durable for item in planned if item.fate == Fate.BRING]
    if bring:
        streams = {name: await _stream(store, name, bring, ends.get(name)) for name in {one.channel for one in bring}}
        await _write(store, bring, streams)
    await check_positions(store, [item.durable for item in planned])
    return [replace(item, fate=Fate.BROUGHT) if item.fate == Fate.BRING else item for item in planned]


async def _stream(
    store: Store, channel: str, durables: list[OldDurable], ends: tuple[int, int] | None
) -> ChannelStream:
    """Find the stream of a channel; one that has no messages is made, so that sequences go on behind all positions."""
    stream = await store.find(channel, UNLIMITED)
    if stream is None and ends is None:
        last = max(durable.last for durable in durables if durable.channel == channel)
        return await store.create(channel, UNLIMITED, first=last + 1)
    end_of_source = ends[1] if ends is not None else 0
    if stream is None or stream.last < end_of_source:
        at = 0 if stream is None else stream.last
        raise DataLossError(
            f"The channel {channel} was copied up to {at}, and its source goes up to {end_of_source}.",
            remedy="Copy its messages first, then bring the positions.",
            stream=channel,
            start=at + 1,
            end=end_of_source + 1,
        )
    for durable in durables:
        if durable.channel == channel and durable.last > stream.last:
            raise DataLossError(
                f"The {durable.title} was sent {durable.last} of {channel}, and the stream ends at {stream.last}.",
                remedy="Delete the stream and copy the channel again.",
                stream=stream.name,
                start=stream.last + 1,
                end=durable.last + 1,
            )
    return stream


async def _write(store: Store, durables: list[OldDurable], streams: dict[str, ChannelStream]) -> None:
    state = State(store.connection, store.cluster, replicas=store.replicas)
    lease = Lease(GatewayOptions(cluster_id=store.cluster, replicas=store.replicas), store.connection, state)
    await state.create()
    try:
        await lease.take()
    except ServerError:
        raise ServerError(
            f"The cluster {store.cluster} is being served: positions are set while nobody serves it.",
            remedy="Stop the gateway, or the old server on this NATS, and run it again.",
        ) from None
    known = _Known(await state.load())
    number = max(known.numbers)
    writing = asyncio.get_running_loop().create_task(state.run())
    try:
        for durable in durables:
            found = known.found.get(durable.identity)
            mine, group_number = (found[0], found[1].group) if found else (number + 1, number + 2)
            number += 0 if found else 2
            group = Group(
                group_number,
                durable.channel,
                durable.durable,
                durable.queue,
                keep=True,
                last=durable.last,
                stream=streams[durable.channel],
            )
            wishes = durable.max_in_flight, durable.ack_wait
            member = Member(
                mine, durable.client, "", "", *wishes, online=False, pending=dict.fromkeys(durable.pending, 0.0)
            )
            group.join(member)
            # Positions first: a subscription without one would begin anew, one too many does no harm.
            position = load_json(encode_group(group)) | {_MARK: True}
            state.put(f"pos.{group_number}", json.dumps(position, separators=(",", ":")).encode())
            state.put(f"sub.{mine}", encode_member(group, member))
        flushed = asyncio.ensure_future(state.flush())
        await asyncio.wait([flushed, writing], return_when=asyncio.FIRST_COMPLETED)
        if not flushed.done():
            flushed.cancel()
            raise ServerError(
                f"Somebody else took the cluster {store.cluster} over while its positions were written.",
                remedy="Stop the gateway and run it again: positions that are there already are left as they are.",
            )
    finally:
        await end([writing])
    async with asyncio.timeout(_GOODBYE):
        await lease.release()  # whoever stands by need not wait


async def check_positions(store: Store, durables: Iterable[OldDurable]) -> None:
    """Read the state again; DataLossError if a durable is not exactly where it is to be."""
    known = await _read(store)
    for durable in durables:
        if durable.identity not in known.found or not known.is_same(durable):
            raise DataLossError(
                f"The {durable.title} on {durable.channel} is not in the state at {durable.last}.",
                remedy="Somebody wrote there meanwhile: stop the gateways of this cluster and run it again.",
                stream=durable.channel,
            )
