"""Acknowledged publish: messages that were sent and wait for their acks, a bounded number of them.

::

    sent ──► STORED      its ack came: forgotten, and `on_stored` is told its sequence
         ──► REFUSED     it is not stored and never will be: forgotten, and `refused` keeps the first of them
         ──► PASSING     it is not stored and may be taken a moment later: it stands in `again`
         ──► UNKNOWN     the same, and it may be stored: that is safe as long as the stream remembers its id

Messages are told apart by numbers, which drivers write into the reply subjects. The clock is the driver's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.errors import InputError, JetStreamError, NoRespondersError, PenstockError, RemoteProtocolError
from penstock.wire.jetstream.answers import PubAck, read_ack
from penstock.wire.jetstream.verdicts import Verdict, judge

__all__ = ["Window", "confirm", "hindrance", "in_domain", "joined", "meant", "no_window", "number_behind"]

Item = TypeVar("Item")
_DIGITS = 19  # of the largest sequence


def in_domain(ack: PubAck, domain: str | None) -> PubAck:
    """Give an ack back if it is of a stream of this domain, empty for one of none, or if no domain is named.

    A leaf node may have a stream of the same name or subjects, and takes what is published there first.
    """
    if domain is not None and (ack.domain or "") != domain:
        where, meant = (f"domain {name}" if name else "no domain" for name in (ack.domain, domain))
        raise JetStreamError(
            f"Stream {ack.stream} of {where} stored the message, and it was meant for one of {meant}.",
            remedy="Streams of two domains take the subject, and a leaf node carries it from one to the other: connect "
            "to a server of the domain, or give one of them other subjects.",
            description=f"stream {ack.stream} of {where} took it",
        )
    return ack


def confirm(payload: bytes, status: int | None, stream: str, domain: str | None = None) -> PubAck:
    """Read what answered a message that was meant for `stream`; an ack of another stream, or domain, is an error."""
    return meant(read_ack(payload, status), stream, domain)


def meant(ack: PubAck, stream: str, domain: str | None = None) -> PubAck:
    """Give an ack back if it is of the stream, and domain, that the message was meant for."""
    if ack.stream != stream:
        raise JetStreamError(
            f"Stream {ack.stream} stored the message, and it was meant for {stream}.",
            remedy=f"Another stream captures the subject now: publish on subjects of {stream}.",
            description=f"stream {ack.stream} took it",
        )
    return in_domain(ack, domain)


def no_window(stream: str) -> InputError:
    """Give the error of a publisher that sends ids to a stream that remembers none."""
    return InputError(
        f"Stream {stream} remembers no message ids (its duplicate_window is 0): a repeat would be stored twice.",
        remedy=f"Give it a window: penstock stream edit {stream} --dupe-window 2m.",
    )


def number_behind(subject: str, prefix: str) -> int:
    """Read the number of a message out of the subject that its answer came on."""
    try:
        return int(subject[len(prefix) :])
    except ValueError:
        raise RemoteProtocolError(
            f"An answer came on {subject[:80]!r}, which does not end with a number that was sent."
        ) from None


def hindrance(what: str, *, ids: bool, safe: bool) -> str:
    """Say why something cannot be sent again, nothing if it can: `safe` while the stream remembers its ids."""
    if not ids:
        return "without ids nothing is sent twice"
    return "" if safe else f"the stream's duplicate window is too short to send {what} again"


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Give ranges `[start, end)` in order, without empty ones, and those that touch as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return found


@dataclass(slots=True)
class _Sending(Generic[Item]):
    """Messages that were sent together: `item` is what the driver sends them from, `left` how many have no ack."""

    item: Item
    left: int
    size: int
    at: float


class Window(Generic[Item]):
    """The messages of one publisher that have no ack yet.

    `most` messages and `most_bytes` bound them. `safe` is how many seconds after its first sending a message may be
    sent again, because the stream still knows its id.
    """

    def __init__(
        self,
        stream: str,
        *,
        most: int,
        most_bytes: int,
        safe: float,
        domain: str | None = None,
        on_stored: Callable[[int, int, bool], None] = lambda number, sequence, duplicate: None,
    ) -> None:
        self.stream = stream
        self.domain = domain
        self.most = most
        self.most_bytes = most_bytes
        self.safe = safe
        self.on_stored = on_stored
        self.size = 0
        self.again: set[int] = set()
        self.refused: tuple[int, PenstockError] | None = None
        self.trouble: PenstockError | None = None  # why something must be sent again
        self._waiting: dict[int, _Sending[Item]] = {}
        self._lost: set[int] = set()
        # What nearly every ack looks like, so that thousands of them need no JSON.
        where = b"" if not domain else b'"domain":"%s",' % domain.encode()
        self.plain = b'{"stream":"%s",%b"seq":' % (stream.encode(), where)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def get(self, number: int) -> Item | None:
        """Give what a message is sent from, None if it waits no more."""
        sending = self._waiting.get(number)
        return None if sending is None else sending.item

    @property
    def room(self) -> int:
        """How many messages may follow now; none while some must be sent again first."""
        return 0 if self.again or self.size >= self.most_bytes else max(0, self.most - len(self._waiting))

    def fits(self, size: int) -> bool:
        """Tell whether a message of this size may follow now; alone, any may."""
        return not self._waiting or (len(self._waiting) < self.most and self.size + size <= self.most_bytes)

    def add(self, item: Item, number: int, size: int, now: float, count: int = 1) -> None:
        """Note that `count` messages are sent for the first time, numbered from `number`, `size` bytes in all."""
        sending = _Sending(item, count, size, now)
        if count == 1:
            self._waiting[number] = sending
        else:
            self._waiting.update(dict.fromkeys(range(number, number + count), sending))
        self.size += size

    def _sequence(self, payload: bytes) -> int:
        """Give the sequence of an ack that says nothing else; 0 for whatever must be read with care."""
        digits = payload[len(self.plain) : -1]
        if digits.isdigit() and len(digits) <= _DIGITS and payload.startswith(self.plain) and payload[-1] == 125:
            return int(digits)
        return 0

    def read(self, payload: bytes, status: int | None = None) -> PubAck:
        """Read an ack; raises what `confirm` does."""
        if sequence := self._sequence(payload):
            return PubAck(self.stream, sequence, domain=self.domain or None)
        return confirm(payload, status, self.stream, self.domain)

    def hear(self, number: int, payload: bytes, status: int | None = None) -> Verdict | None:
        """Take the answer to a message; None if it waits no more, because this is a copy of its answer."""
        if number not in self._waiting:
            return None
        try:
            sequence, duplicate = self._sequence(payload), False
            if not sequence:
                ack = confirm(payload, status, self.stream, self.domain)
                sequence, duplicate = ack.sequence, ack.duplicate
        except (JetStreamError, NoRespondersError) as error:
            verdict = judge(error)
            if verdict is Verdict.REFUSED:
                self.forget(number)
                self.refused = self.refused or (number, error)
            else:
                self.again.add(number)
                self.trouble = error
                if verdict is Verdict.UNKNOWN:
                    self._lost.add(number)
            return verdict
        self.forget(number)
        self.on_stored(number, sequence, duplicate)
        return Verdict.STORED

    def hear_run(self, number: int, count: int) -> list[tuple[int, int]]:
        """Take acks of messages that follow each other, and say nothing else; give the ranges that waited for them.

        Those that waited no more were copies. `on_stored` is not told: whoever reads runs, writes runs.
        """
        waited, start = [], number
        for each in range(number, number + count):
            sending = self._waiting.pop(each, None)
            if sending is None:
                waited.append((start, each))
                start = each + 1
                continue
            sending.left -= 1
            if not sending.left:
                self.size -= sending.size
        waited.append((start, number + count))
        if self.again or self._lost:
            heard = range(number, number + count)
            self.again.difference_update(heard)
            self._lost.difference_update(heard)
        return [(first, end) for first, end in waited if first < end]

    def forget(self, number: int) -> None:
        """Let go of a message whose fate is known."""
        sending = self._waiting.pop(number, None)
        if sending is not None:
            self.again.discard(number)
            self._lost.discard(number)
            sending.left -= 1
            if not sending.left:
                self.size -= sending.size

    def items(self) -> list[Item]:
        """Give what each message is sent from, in the order of the numbers."""
        return [self._waiting[number].item for number in sorted(self._waiting)]

    # -- sending again --------------------------------------------------------------------------------------------

    def is_safe(self, now: float) -> bool:
        """Tell whether the stream still knows the id of the message that was sent first."""
        return all(now - sending.at <= self.safe for sending in self._waiting.values())

    def lose(self) -> None:
        """Note that answers under way are lost: all that waits must be sent again, and may have been stored."""
        self._lost.update(number for number in self._waiting if number not in self.again)
        self.again = set(self._waiting)

    def resend(self) -> list[tuple[int, Item]]:
        """Give what must be sent again, in the order of the numbers; from now on it waits for its acks anew."""
        numbers, self.again = sorted(self.again), set()
        return [(number, self._waiting[number].item) for number in numbers]

    @property
    def unknown(self) -> list[tuple[int, int]]:
        """The numbers of messages of which nobody knows whether they are stored."""
        numbers = (number for number in self._waiting if number not in self.again or number in self._lost)
        return joined((number, number + 1) for number in numbers)
