"""A channel that is served: its stream, its newest messages, its subscribers and the deliveries to them."""

from __future__ import annotations

from penstock.channels.delivery import Group, Member
from penstock.channels.group_delivery import GroupDelivery, Shared
from penstock.channels.stream import ChannelStream, Recent
from penstock.channels.subscribers import Subscribers

__all__ = ["Channel"]


class Channel:
    """One channel that the gateway serves."""

    def __init__(self, shared: Shared, stream: ChannelStream, recent_bytes: int, now: float) -> None:
        self.shared = shared
        self.stream = stream
        self.recent = Recent(recent_bytes)
        self.subscribers = Subscribers()
        self.last_used = now
        self._deliveries: dict[Group, GroupDelivery] = {}

    @property
    def name(self) -> str:
        """The channel's name, as it was first written."""
        return self.stream.channel

    def delivery(self, group: Group) -> GroupDelivery:
        """Give the delivery of a group, a new one if it has none."""
        found = self._deliveries.get(group)
        if found is None:
            found = self._deliveries[group] = GroupDelivery(self.shared, self, group)
        return found

    def stored(self, contents: list[tuple[int, bytes]]) -> None:
        """Take note of new messages."""
        self.recent.drop_before(self.stream.first)
        for sequence, content in contents:
            self.recent.add(sequence, content)

    def wake(self) -> None:
        """Let every delivery look for what it can send."""
        for delivery in self._deliveries.values():
            self.shared.writer.wake(delivery)

    def pump(self) -> None:
        """Let every delivery send what it can, now."""
        for delivery in list(self._deliveries.values()):
            delivery.pump()

    def remove(self, member: Member, now: float, *, unsubscribe: bool) -> None:
        """Take a member off the channel, and remember that."""
        group = member.group
        assert group is not None, "only members of a group are removed"
        if self.subscribers.remove(member, now, unsubscribe=unsubscribe):
            self.shared.state.forget(group, member)
        else:
            self.shared.state.remember(group, member)
        if group.online:
            self.shared.writer.wake(self.delivery(group))
        elif (delivery := self._deliveries.pop(group, None)) is not None:
            delivery.end()

    def end(self) -> None:
        """Stop every delivery."""
        for delivery in self._deliveries.values():
            delivery.end()
        self._deliveries.clear()
