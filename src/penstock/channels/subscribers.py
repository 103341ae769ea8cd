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
        if not durable and not queue:
            return None
        if name := queue_key(durable, queue):
            return next((group for group in self.groups if group.queue == name), None)
        mine = (group for group in self.groups if group.durable == durable and group.members[0].client == client)
        return next(mine, None)

    def by_inbox(self, inbox: str) -> Member | None:
        """Find an active member by its ack inbox or, failing that, by its delivery inbox."""
        found = None
        for member in self.members:
            if member.online and member.ack_inbox == inbox:
                return member
            if member.online and member.inbox == inbox:
                found = member
        return found

    def add(self, group: Group, member: Member) -> None:
        """Add a member to a group, and the group if it is new."""
        if group not in self.groups:
            self.groups.append(group)
        if member not in group.members:
            group.join(member)

    def remove(self, member: Member, now: float, *, unsubscribe: bool) -> bool:
        """Take a member off the channel, and tell whether it is gone for good."""
        group = member.group
        assert group is not None, "only members of a group are removed"
        member.online = False
        if group.queue and len(group.members) > 1:
            group.leave(member, now)
        elif group.keep and not unsubscribe:
            group.hold = False
            return False
        else:
            group.members.clear()
            member.group = None
            self.groups.remove(group)
        return True
