"""A channel at work: its stream, its newest messages, its subscribers and their feeds."""

from __future__ import annotations

from penstock.channels.delivery import Group, Member
from penstock.channels.feed import Desk, Feed
from penstock.channels.recent import Recent
from penstock.channels.store import Log
from penstock.channels.subscribers import Subscribers

__all__ = ["Channel"]


class Channel:
    """One channel that the gateway serves."""

    def __init__(self, desk: Desk, log: Log, recent_bytes: int, now: float) -> None:
        self.desk = desk
        self.log = log
        self.recent = Recent(recent_bytes)
        self.subscribers = Subscribers()
        self.last_used = now
        self._feeds: dict[Group, Feed] = {}

    @property
    def name(self) -> str:
        """The channel's name, as it was first written."""
        return self.log.channel

    def feed(self, group: Group) -> Feed:
        """Give the feed of a group, a new one where it has none."""
        found = self._feeds.get(group)
        if found is None:
            found = self._feeds[group] = Feed(self.desk, self, group)
        return found

    def stored(self, contents: list[tuple[int, bytes]]) -> None:
        """Take note of new messages."""
        self.recent.drop_before(self.log.first)
        for sequence, content in contents:
            self.recent.add(sequence, content)

    def wake(self) -> None:
        """Let every feed look for what it can send."""
        for feed in self._feeds.values():
            self.desk.outlet.wake(feed)

    def pump(self) -> None:
        """Let every feed send what it can, now."""
        for feed in list(self._feeds.values()):
            feed.pump()

    def remove(self, member: Member, now: float, *, unsubscribe: bool) -> None:
        """Take a member off the channel, and remember that."""
        group = member.group
        assert group is not None, "only members of a group are removed"
        gone, heirs = self.subscribers.remove(member, now, unsubscribe=unsubscribe)
        if gone:
            self.desk.state.forget(group, member)
        else:
            self.desk.state.remember(group, member)
        if not group.online and (feed := self._feeds.pop(group, None)) is not None:
            feed.end()
        elif heirs or group.members:
            self.feed(group).arm()
            self.desk.outlet.wake(self.feed(group))

    def end(self) -> None:
        """Stop every feed."""
        for feed in self._feeds.values():
            feed.end()
        self._feeds.clear()
