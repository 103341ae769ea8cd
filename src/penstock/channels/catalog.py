"""What channels there are and what is in them, read from JetStream: no gateway need be running."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

from penstock.channels.limits import ChannelLimits
from penstock.channels.messages import ChannelMessage
from penstock.channels.names import channel_of, stream_name
from penstock.channels.state import read_state
from penstock.channels.state_records import MemberRecord, decode_group, decode_record
from penstock.channels.store import Store
from penstock.connection import connect
from penstock.errors import NoRespondersError, NotFoundError
from penstock.options import ConnectionOptions

__all__ = ["Catalog", "ChannelInfo", "SubscriptionInfo"]

_PAGE = 500


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
    """The channels of one cluster, for reading."""

    def __init__(self, to: str | ConnectionOptions | None, cluster_id: str, *, timeout: float = 5.0) -> None:
        self.cluster_id = cluster_id
        self._to = to
        self._timeout = timeout
        self._store: Store | None = None

    async def __aenter__(self) -> Self:
        self._store = Store(await connect(self._to, request_timeout=self._timeout), self.cluster_id)
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.store.connection.close()

    @property
    def store(self) -> Store:
        """The streams."""
        assert self._store is not None, "the catalog is used with `async with`"
        return self._store

    async def channels(self) -> list[ChannelInfo]:
        """Give every channel, by name."""
        members = await self._members()
        found = [self._info(described, members) for described in await self.store.streams()]
        return sorted(found, key=lambda item: item.name)

    async def channel(self, name: str) -> ChannelInfo:
        """Give one channel; NotFoundError if there is none."""
        return self._info(await self._describe(name), await self._members())

    async def _describe(self, name: str) -> dict[str, Any]:
        described = await self.store.describe(name)
        if described is None:
            raise NotFoundError(
                f"There is no channel {name} in the cluster {self.cluster_id}.",
                remedy="`penstock channels ls` lists them.",
                code=404,
            )
        return described

    def _info(self, described: dict[str, Any], members: list[SubscriptionInfo]) -> ChannelInfo:
        config, state = described["config"], described["state"]
        name = channel_of(self.cluster_id, config["name"])
        assert name is not None, "only channels are described"
        return ChannelInfo(
            name,
            stream_name(self.cluster_id, name),
            config["subjects"][0],
            state["messages"],
            state["bytes"],
            state["first_seq"],
            state["last_seq"],
            state["last_ts"] if state["messages"] else "",
            tuple(member for member in members if member.options.channel == name),
        )

    async def _members(self) -> list[SubscriptionInfo]:
        try:
            known, _ = await read_state(self.store.connection, self.cluster_id)
        except NoRespondersError:
            return []  # no gateway ever served this cluster
        listed = []
        for subject, data in known.items():
            kind, _, number = subject.partition(".")
            if kind == "sub":
                options = decode_record(MemberRecord, data)
                position = known.get(f"pos.{options.group}")
                at = decode_group(position) if position else None
                pending = len(at.pending.get(int(number), ())) if at else 0
                listed.append(SubscriptionInfo(options, at.last if at else 0, pending))
        return listed

    async def messages(self, name: str, start: int = 1, end: int | None = None) -> AsyncIterator[ChannelMessage]:
        """Give a channel's messages `[start, end)`, to its present end if none is given."""
        described = await self._describe(name)
        stream = await self.store.open(described, ChannelLimits())
        stop = stream.last + 1 if end is None else min(end, stream.last + 1)
        place = max(start, stream.first)
        while place < stop:
            found = await self.store.read_on(stream, place, min(_PAGE, stop - place))
            if not found:
                return
            for item in found:
                if item.sequence < stop:
                    yield item
            place = found[-1].sequence + 1
