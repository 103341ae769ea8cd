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
- A new message goes out only if the stored state says that it may have been sent. What a gateway that died may have
  sent is in doubt: it goes out in its turn, marked as sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.channels.messages import ChannelStream

__all__ = ["HANDOVER", "TOLERANCE", "Group", "Member"]

# What expires this soon goes out with what has expired, so that a burst is one wake-up and not many.
TOLERANCE = 0.015
# How long after a member left its messages go out to the others: time for those who follow it out of the door.
HANDOVER = 0.1
# How far ahead of what was sent the state may say "may have been sent": as far as needed while a write is under way.
_LEAST_AHEAD = 256
_MOST_AHEAD = 65_536
_CALM = 4  # writes in a row with little new in them, after which it goes less far: one alone may be by chance
# Members' messages are kept nearly in the order of expiry; nothing is out of place by more than this.
_DISORDER = 0.1


@dataclass(slots=True, eq=False)
class Member:
    """One subscription: where its messages go, how many at once, and which ones it has not acknowledged."""

    number: int
    client: str
    inbox: str
    ack_inbox: str
    max_in_flight: int
    ack_wait: int
    online: bool = True
    pending: dict[int, float] = field(default_factory=dict)
    """The time at which each sequence goes out again."""
    sick: bool = False
    quiet_until: float = 0.0
    group: Group | None = field(default=None, repr=False)

    @property
    def stalled(self) -> bool:
        """Whether it has as many messages in flight as it may."""
        return len(self.pending) >= self.max_in_flight

    def sort_pending(self) -> None:
        """Put what is pending into the order in which it goes out again."""
        self.pending = dict(sorted(self.pending.items(), key=lambda item: (item[1], item[0])))


@dataclass(slots=True, eq=False)
class Group:
    """A position in a channel, and the members that share it."""

    number: int
    channel: str
    durable: str = ""
    """The name of a durable subscription; empty for a queue."""
    queue: str = ""
    """The name of the queue; empty for a group of one."""
    keep: bool = False
    """Whether the position outlives its members."""
    last: int = 0
    """The last sequence that was sent as new."""
    members: list[Member] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    """How often each message that was sent again was."""
    hold: bool = False
    """Whether new messages wait for what a returning durable had pending."""
    stream: ChannelStream | None = field(default=None, repr=False)
    """The stream in which the position is."""
    doubt: int = 0
    """The last sequence that a gateway before us may have sent: up to it nothing goes out without a mark."""
    reserved: int = 0
    """The last sequence of which the stored state says that it may have been sent: nothing new goes out beyond it."""
    waits: bool = False
    """Whether new messages wait for the state to say more."""
    _ahead: int = _LEAST_AHEAD
    _noted: int = 0
    _calm: int = 0

    @property
    def online(self) -> bool:
        """Whether anybody is there to receive."""
        return any(member.online for member in self.members)

    @property
    def title(self) -> str:
        """What people call it."""
        if self.queue:
            return f"queue {self.queue}"
        client = self.members[0].client if self.members else "?"
        return f"durable {self.durable} of client {client}" if self.durable else f"a subscription of client {client}"

    def join(self, member: Member) -> None:
        """Add a member at the end of the line."""
        member.group = self
        self.members.append(member)

    # -- new messages ------------------------------------------------------------------------------------------------

    def choose(self) -> Member | None:
        """Give the member that a new message would go to now; None while nobody may have it."""
        if self.hold or not self.members:
            return None
        if self.queue:
            return self._best() or self._best_of_sick()
        member = self.members[0]
        return member if member.online and len(member.pending) < member.max_in_flight else None

    def assign(self, member: Member, sequence: int, now: float) -> None:
        """Give a new message to the member that was chosen."""
        if self.queue:
            self._rotate(member)
        member.pending[sequence] = now + member.ack_wait
        self.last = sequence

    def assign_run(self, member: Member, first: int, last: int, now: float) -> None:
        """Give the one member of a group that is not a queue new messages that follow each other."""
        member.pending.update(dict.fromkeys(range(first, last + 1), now + member.ack_wait))
        self.last = last

    def assign_in_doubt(self, member: Member, sequence: int, now: float) -> int:
        """Give a message that may have been sent before to the member that was chosen; give the count to mark it with.

        Nobody knows how often it was sent; counts begin anew when a gateway starts.
        """
        self.assign(member, sequence, now)
        self.counts[sequence] = 1
        return 1

    def reserve(self, *, ahead: bool = True) -> int:
        """Give up to where the state is to say that messages may have been sent.

        It is as far ahead as was needed lately, so that hardly anything is marked without need after a crash and
        hardly ever a message waits for the state; not at all if nobody is there, or without `ahead`.
        """
        self._calm = 0 if self.waits or self.last - self._noted >= self._ahead // 8 else self._calm + 1
        if self.waits:
            self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        elif self._calm == _CALM:
            self._ahead, self._calm = max(self._ahead // 2, _LEAST_AHEAD), 0
        self._noted = self.last
        wanted = max(self.last + (self._ahead if ahead and self.online else 0), self.doubt)
        self.reserved = min(self.reserved, wanted)  # until it is stored, either may be what is remembered
        return wanted

    def is_short_of(self, wanted: int) -> bool:
        """Tell whether more than half of what it may send before the state says `wanted` has gone out."""
        return self.waits or 2 * (self.reserved - self.last) < wanted - self.last

    def skip_to(self, last: int) -> None:
        """Move over sequences that the channel no longer has."""
        self.last = max(self.last, last)

    def _best(self) -> Member | None:
        best: Member | None = None
        least = 0
        for member in self.members:
            count = len(member.pending)
            if member.online and not member.sick and count < member.max_in_flight and (best is None or count < least):
                best, least = member, count
        return best

    def _best_of_sick(self) -> Member | None:
        if any(not member.sick for member in self.members if member.online):
            return None  # a sound member will have room again
        return next((member for member in self.members if member.online and not member.stalled), None)

    def _rotate(self, member: Member) -> None:
        if self.members[0] is member and len(self.members) > 1:
            self.members.append(self.members.pop(0))

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def ack(self, member: Member, sequence: int) -> bool:
        """Settle a message, whichever member of the group holds it by now; False if nobody does."""
        if sequence not in member.pending:
            member = next((item for item in self.members if sequence in item.pending), member)
        if member.pending.pop(sequence, None) is None:
            return False
        self.counts.pop(sequence, None)
        return True

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
        limit = now + TOLERANCE
        for member in self.members:
            if not member.online or limit < member.quiet_until:
                continue
            near = takewhile(lambda item: item[1] <= limit + _DISORDER, member.pending.items())
            expired = [(expiry, sequence, member) for sequence, expiry in near if expiry <= limit]
            if expired and member.sick and not self.queue:
                member.quiet_until = now + member.ack_wait
                continue
            found += expired
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

    def leave(self, member: Member, now: float) -> None:
        """Take a member out of a queue that goes on without it; the others inherit its messages.

        If all of them are offline, the first keeps them for whoever takes its place.
        """
        self.members.remove(member)
        member.group = None
        heirs = ([item for item in self.members if item.online] or self.members[:1])[: len(member.pending)]
        member.sort_pending()
        for heir, sequence in zip(cycle(heirs), member.pending, strict=False):
            heir.pending[sequence] = now + HANDOVER
        for heir in heirs:
            heir.sort_pending()
        member.pending.clear()

    def resume(self, member: Member) -> None:
        """Put a member in the place of the offline one; what that had pending goes out before anything new."""
        before = self.members[0]
        member.number, member.pending, member.group = before.number, before.pending, self
        self.members[0] = member
        self.hold = bool(member.pending)

    def waiting(self, member: Member, now: float) -> list[int]:
        """Give what a returning member has pending, in order, and let it expire from now on."""
        sequences = sorted(member.pending)
        member.pending = dict.fromkeys(sequences, now)
        return sequences
