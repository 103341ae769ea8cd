"""Who is subscribed to a channel: groups by their identity, and members by their inboxes.

============== ===================================== ================================== ==================
kind           what makes it the same again          close, or the client's close       unsubscribe
============== ===================================== ================================== ==================
plain          nothing                               gone                               gone
durable        client, channel and durable name      kept offline with all it had       gone
queue          channel and queue                     the member leaves; the last one    the same
                                                     takes the queue along
durable queue  channel, durable name and queue;      the member leaves; the last one    the member leaves;
               the client does not matter            stays behind as an offline shadow  the last one takes
                                                                                        the queue along
============== ===================================== ================================== ==================

A durable queue is known as `durable:queue`, so a queue that is literally called so joins it. That is how it always was.
"""

from __future__ import annotations

from penstock.channels.delivery import Group, Member

__all__ = ["Subscribers", "queue_key"]


def queue_key(durable: str, queue: str) -> str:
    """Give the name under which a queue is known."""
    return f"{durable}:{queue}" if durable and queue else queue


class Subscribers:
    """The subscriptions of one channel."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._queues: dict[str, Group] = {}
        self._durables: dict[tuple[str, str], Group] = {}
        self._by_ack: dict[str, Member] = {}
        self._by_inbox: dict[str, Member] = {}

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups)

    @property
    def active(self) -> bool:
        """Whether anybody is there to receive."""
        return any(group.online for group in self.groups)

    @property
    def members(self) -> list[Member]:
        """Everybody, offline ones included."""
        return [member for group in self.groups for member in group.members]

    def find(self, client: str, durable: str, queue: str) -> Group | None:
        """Find the group that a subscription with this identity would join or resume."""
        if queue:
            return self._queues.get(queue_key(durable, queue))
        return self._durables.get((client, durable)) if durable else None

    def by_inbox(self, inbox: str) -> Member | None:
        """Find an active member by its ack inbox or, failing that, by its delivery inbox."""
        return self._by_ack.get(inbox) or self._by_inbox.get(inbox)

    def add(self, group: Group, member: Member) -> None:
        """Add a member to a group, and the group if it is new."""
        if group not in self.groups:
            self.groups.append(group)
            if group.queue:
                self._queues[group.queue] = group
            elif group.durable:
                self._durables[member.client, group.durable] = group
        if member not in group.members:
            group.join(member)
        if member.online:
            self.index(member)

    def index(self, member: Member) -> None:
        """Make an active member findable."""
        self._by_ack[member.ack_inbox] = member
        self._by_inbox[member.inbox] = member

    def remove(self, member: Member, now: float, *, unsubscribe: bool) -> tuple[bool, list[Member]]:
        """Take a member off the channel: whether it is gone for good, and who inherits its messages."""
        group = member.group
        assert group is not None, "only members of a group are removed"
        self._by_ack.pop(member.ack_inbox, None)
        if self._by_inbox.get(member.inbox) is member:
            del self._by_inbox[member.inbox]
        member.online = False
        if group.queue and len(group.members) > 1:
            return True, group.leave(member, now)
        if group.keep and not unsubscribe:
            group.hold = False
            return False, []
        self._forget(group, member)
        return True, []

    def _forget(self, group: Group, member: Member) -> None:
        group.members.clear()
        member.group = None
        self.groups.remove(group)
        if group.queue:
            del self._queues[group.queue]
        elif group.durable:
            del self._durables[member.client, group.durable]
