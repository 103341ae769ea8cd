"""What channels there are and what is in them, read from JetStream: no gateway need be running."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import ChannelMessage
from penstock.channels.state import read_state
from penstock.channels.state_records import GroupRecord, MemberRecord, decode_state
from penstock.channels.store import Store
from penstock.connection import connect
from penstock.errors import NoRespondersError
from penstock.options import ConnectionOptions

__all__ = ["Catalog", "ChannelInfo", "SubscriptionInfo"]


@dataclass(frozen=True)
class SubscriptionInfo:
    """A subscription, the last sequence that its group was sent, and how many messages it has not acknowledged."""

    options: MemberRecord
    last: int
    pending: int


@dataclass(frozen=True)
class ChannelInfo:
    """A channel, its stream, and who is subscribed."""

    name: str
    stream: str
    subject: str
    messages: int
    bytes: int
    first: int
    last: int
    last_time: str
    subscriptions: tuple[SubscriptionInfo, ...]


class Catalog:
    """The channels of one cluster, for reading, within `async with`."""

    store: Store
    """The streams."""

    def __init__(self, to: str | ConnectionOptions | None, cluster_id: str, *, timeout: float = 5.0) -> None:
        self.cluster_id = cluster_id
        self._to = to
        self._timeout = timeout

    async def __aenter__(self) -> Self:
        self.store = Store(await connect(self._to, request_timeout=self._timeout), self.cluster_id)
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.store.connection.close()

    async def channels(self) -> list[ChannelInfo]:
        """Give every channel, by name."""
        members = await self._members()
        return [self._info(*found, members) for found in sorted((await self.store.streams()).items())]

    async def channel(self, name: str) -> ChannelInfo:
        """Give one channel; NotFoundError if there is none."""
        return self._info(name, await self.store.describe(name), await self._members())

    def _info(self, name: str, described: dict[str, Any], members: list[SubscriptionInfo]) -> ChannelInfo:
        config, state = described["config"], described["state"]
        held = state["messages"], state["bytes"], state["first_seq"], state["last_seq"]
        last_time = state.get("last_ts") or "" if state["messages"] else ""
        subscriptions = tuple(member for member in members if member.options.channel == name)
        return ChannelInfo(name, config["name"], (config.get("subjects") or [""])[0], *held, last_time, subscriptions)

    async def _members(self) -> list[SubscriptionInfo]:
        try:
            known, _ = await read_state(self.store.connection, self.cluster_id)
        except NoRespondersError:
            return []  # no gateway ever served this cluster
        _, members, groups = decode_state(known)
        listed = []
        for number, options in members.items():
            at = groups.get(options.group, GroupRecord(0, {}))
            listed.append(SubscriptionInfo(options, at.last, len(at.pending.get(number, ()))))
        return listed

    async def messages(self, name: str, start: int = 1, end: int | None = None) -> AsyncIterator[ChannelMessage]:
        """Give a channel's messages `[start, end)`, to its present end if none is given."""
        stream = await self.store.open(name, await self.store.describe(name), ChannelLimits())
        stop = stream.last + 1 if end is None else min(end, stream.last + 1)
        async for item in self.store.scan(stream, start, stop):
            yield item
