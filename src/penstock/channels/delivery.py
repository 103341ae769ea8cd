"""Who gets which message, and when again: the rules of delivery as pure arithmetic.

A `Group` is a position in a channel and the members that share it. A plain or durable subscription is a group of one; a
queue has many members. Sequences and times go in, decisions come out; nothing here sends, reads or waits.

The rules:

- A new message goes out while its member has fewer than `max_in_flight` messages unacknowledged.
- A message that is not acknowledged `ack_wait` after it was sent goes out again, beyond `max_in_flight` if need be,
  with a count, and again each `ack_wait` from the first sending on: a late timer does not shift the later ones.
- In a queue, the member with the fewest unacknowledged messages is chosen, of equals the one that waited longest.
  A member whose client misses heartbeats is not chosen while a sound one is there. A message that goes out again goes
  to the best member, which need not be the first one; the acknowledgement of either settles it.
- A plain member whose client misses heartbeats gets nothing again until it answers.
- When a queue member leaves, what it had unacknowledged is dealt out to the others and goes out again shortly after.
- When a durable comes back, everything it had unacknowledged goes out first; new messages are on hold until then.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["HANDOVER", "TOLERANCE", "Group", "Member"]

# What expires this soon goes out with what has expired, so that a burst is one wake-up and not many.
TOLERANCE = 0.015
# How long after a member left its messages go out to the others: time for those who follow it out of the door.
HANDOVER = 0.1
# Members' messages are kept nearly in the order of expiry; nothing is out of place by more than this.
_DISORDER = 0.1


class Member:
    """One subscription: where its messages go, how many at once, and which ones it has not acknowledged."""

    __slots__ = (
        "ack_inbox",
        "ack_wait",
        "client",
        "group",
        "inbox",
        "max_in_flight",
        "number",
        "online",
        "pending",
        "quiet_until",
        "sick",
    )

    def __init__(
        self, number: int, client: str, inbox: str, ack_inbox: str, *, max_in_flight: int, ack_wait: int
    ) -> None:
        self.number = number
        self.client = client
        self.inbox = inbox
        self.ack_inbox = ack_inbox
        self.max_in_flight = max_in_flight
        self.ack_wait = ack_wait
        self.pending: dict[int, float] = {}  # the time at which each sequence goes out again
        self.online = True
        self.sick = False
        self.quiet_until = 0.0
        self.group: Group | None = None

    @property
    def stalled(self) -> bool:
        """Whether it has as many messages in flight as it may."""
        return len(self.pending) >= self.max_in_flight

    def __repr__(self) -> str:
        return f"<Member {self.number} of {self.client}, {len(self.pending)} pending>"


class Group:
    """A position in a channel, and the members that share it.

    `queue` is the name of the queue, empty for a group of one; `durable` is the name of a durable subscription, empty
    for a queue; `keep` says whether the position outlives its members; `last` is the last sequence sent as new.
    """

    __slots__ = ("channel", "counts", "durable", "hold", "keep", "last", "members", "number", "queue")

    def __init__(
        self, number: int, channel: str, *, durable: str = "", queue: str = "", keep: bool = False, last: int = 0
    ) -> None:
        self.number = number
        self.channel = channel
        self.durable = durable
        self.queue = queue
        self.keep = keep
        self.last = last
        self.members: list[Member] = []
        self.counts: dict[int, int] = {}
        self.hold = False  # new messages wait for what a returning durable had pending

    @property
    def online(self) -> bool:
        """Whether anybody is there to receive."""
        return any(member.online for member in self.members)

    @property
    def ready(self) -> bool:
        """Whether a new message could go out now."""
        if self.hold:
            return False
        if not self.queue:
            if not self.members:
                return False
            member = self.members[0]
            return member.online and len(member.pending) < member.max_in_flight
        return self._choose_new() is not None

    def join(self, member: Member) -> None:
        """Add a member at the end of the line."""
        member.group = self
        self.members.append(member)

    # -- new messages ------------------------------------------------------------------------------------------------

    def assign(self, sequence: int, now: float) -> Member | None:
        """Give a new message to a member, and say to whom; None while nobody may have it."""
        if self.hold:
            return None
        if self.queue:
            member = self._choose_new()
            if member is None:
                return None
            self._rotate(member)
        else:
            if not self.members:
                return None
            member = self.members[0]
            if not member.online or len(member.pending) >= member.max_in_flight:
                return None
        member.pending[sequence] = now + member.ack_wait
        self.last = sequence
        return member

    def skip_to(self, last: int) -> None:
        """Move over sequences that the channel no longer has."""
        self.last = max(self.last, last)

    def _choose_new(self) -> Member | None:
        best = self._best()
        if best is not None:
            return best
        if any(not member.sick for member in self.members if member.online):
            return None  # a sound member will have room again
        return next((member for member in self.members if member.online and not member.stalled), None)

    def _best(self) -> Member | None:
        best: Member | None = None
        least = 0
        for member in self.members:
            count = len(member.pending)
            if member.online and not member.sick and count < member.max_in_flight and (best is None or count < least):
                best, least = member, count
        return best

    def _rotate(self, member: Member) -> None:
        if self.members[0] is member and len(self.members) > 1:
            self.members.append(self.members.pop(0))

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def ack(self, member: Member, sequence: int) -> bool:
        """Settle a message, whichever member of the group holds it by now; False if nobody does."""
        holder = member if sequence in member.pending else self._holder(sequence)
        if holder is None:
            return False
        del holder.pending[sequence]
        self.counts.pop(sequence, None)
        return True

    def _holder(self, sequence: int) -> Member | None:
        if not self.queue:
            return None
        return next((member for member in self.members if sequence in member.pending), None)

    # -- going out again ---------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """Give the time at which something goes out again, if anything does."""
        times = [
            max(next(iter(member.pending.values())), member.quiet_until)
            for member in self.members
            if member.online and member.pending
        ]
        return min(times, default=None)

    def due(self, now: float) -> list[tuple[Member, int]]:
        """Give what has expired, by time and then by sequence, with the member that holds it.

        A plain member that misses heartbeats is left in peace for another `ack_wait`.
        """
        found: list[tuple[float, int, Member]] = []
        for member in self.members:
            if not member.online or not member.pending or now + TOLERANCE < member.quiet_until:
                continue
            expired = list(_expired(member, now))
            if expired and member.sick and not self.queue:
                member.quiet_until = now + member.ack_wait
                continue
            found += [(expiry, sequence, member) for expiry, sequence in expired]
        found.sort(key=lambda item: item[:2])
        return [(member, sequence) for _, sequence, member in found]

    def redeliver(self, member: Member, sequence: int, now: float, *, stay: bool = False) -> tuple[Member, int] | None:
        """Send a message again: to whom, and how often it was sent again by now; None if it was settled meanwhile.

        `stay` keeps it with the member that holds it, as when a durable comes back or the gateway starts.
        """
        expiry = member.pending.get(sequence)
        if expiry is None:
            return None
        target = member
        if self.queue and not stay:
            chosen = self._best() or next((item for item in self.members if item.online), None)
            if chosen is None:
                return None
            target = chosen
            self._rotate(target)
        del member.pending[sequence]
        if target is member:
            later = expiry + member.ack_wait
            # A clock that jumped, or a machine that slept, must not make up for every turn it missed.
            target.pending[sequence] = later if later > now + TOLERANCE else now + member.ack_wait
        else:
            target.pending[sequence] = now + target.ack_wait
        count = self.counts[sequence] = self.counts.get(sequence, 0) + 1
        return target, count

    def drop(self, member: Member, sequence: int) -> None:
        """Forget a message that the channel no longer has."""
        if member.pending.pop(sequence, None) is not None:
            self.counts.pop(sequence, None)

    # -- coming and going --------------------------------------------------------------------------------------------

    def leave(self, member: Member, now: float) -> list[Member]:
        """Take a member out of a queue that goes on without it; give those who inherit its messages."""
        self.members.remove(member)
        member.group = None
        heirs = [item for item in self.members if item.online]
        if not heirs:
            return []
        inherited = sorted((expiry, sequence) for sequence, expiry in member.pending.items())
        touched: list[Member] = []
        for place, (_, sequence) in enumerate(inherited):
            heir = heirs[place % len(heirs)]
            heir.pending[sequence] = now + HANDOVER
            if heir not in touched:
                touched.append(heir)
        for heir in touched:
            heir.pending = dict(sorted(heir.pending.items(), key=lambda item: (item[1], item[0])))
        member.pending.clear()
        return touched

    def resume(
        self, member: Member, *, client: str, inbox: str, ack_inbox: str, max_in_flight: int, ack_wait: int
    ) -> None:
        """Bring an offline member back under a new name; what it had pending goes out before anything new."""
        member.client = client
        member.inbox = inbox
        member.ack_inbox = ack_inbox
        member.max_in_flight = max_in_flight
        member.ack_wait = ack_wait
        member.online = True
        member.sick = False
        member.quiet_until = 0.0
        self.hold = bool(member.pending)

    def waiting(self, member: Member, now: float) -> list[int]:
        """Give what a returning member has pending, in order, and let it expire from now on."""
        sequences = sorted(member.pending)
        member.pending = dict.fromkeys(sequences, now)
        return sequences


def _expired(member: Member, now: float) -> Iterator[tuple[float, int]]:
    limit = now + TOLERANCE
    for sequence, expiry in member.pending.items():
        if expiry <= limit:
            yield expiry, sequence
        elif expiry > limit + _DISORDER:
            return
