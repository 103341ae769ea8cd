"""The arithmetic of the bus: how long a reader may take, who serves which partition, and what options are legal.

The seed allows a reader, for each section or element, `bytes / (K * 1000 / 8) + 10` seconds, K being kilobits
per second::

    K = 1000:  125,000 bytes -> 11 s,  250,000 bytes -> 12 s
    K =  100:  125,000 bytes -> 20 s,  250,000 bytes -> 30 s

Pure: no I/O, no clock.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import OptionError

__all__ = ["GRACE", "KBITS", "BusOptions", "allowance", "inbox_pattern", "partitions", "subject_of"]

KBITS = 1000.0  # the seed names no default; this is the rate of its first example
GRACE = 10.0  # seconds on top of what the rate gives, as in the seed
KIB, MIB = 1024, 1024 * 1024
MOST_INBOX = 512  # bytes of an inbox; a server closes a connection that names subjects of more than 4 KiB
_PREFIX = re.compile(r"[^\s.*>$\x00-\x1f\x7f][^\s.*>\x00-\x1f\x7f]*(\.[^\s.*>\x00-\x1f\x7f]+)*")
_QUEUE = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")


def allowance(size: int, *, kbits: float = KBITS, grace: float = GRACE) -> float:
    """Give the seconds that a reader may take over `size` bytes."""
    return size / (kbits * 1000 / 8) + grace


def partitions(count: int, parts: int = 1, part: int = 1) -> range:
    """Give the partitions of `[0, count)` that one of several processes serves; `part` counts from 1.

    Each part takes `count // parts` of them and the last one the rest. If there are more parts than
    partitions, each of the first `count` parts takes one. Zero for either means all.
    """
    for name, value in (("parts", parts), ("part", part)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _wrong(name, value, "Give a whole number from 1.")
    if parts == 0 or part == 0:
        return range(count)
    if part > parts:
        raise _wrong(
            "part", part, "Parts count from 1 to their number.", f"part is {part}, and there are {parts} parts."
        )
    if parts > count:
        return range(part - 1, part) if part <= count else range(0)
    size = count // parts
    return range(size * (part - 1), count if part == parts else size * part)


def subject_of(queue: str, partition: int) -> str:
    """Give the subject of a partition: queue name and number with nothing between them."""
    return f"{queue}{partition}"


def inbox_pattern(prefixes: Iterable[str]) -> re.Pattern[str]:
    """Give what inboxes look like: those of these prefixes, of any that begins with _INBOX, and of the server's making.

    The server makes up reply subjects for requests that come from another account (`_R_`) or cluster (`_GR_`).
    """
    known = "|".join(("_INBOX[^\\s.*>]*", "_R_", "_GR_", *(re.escape(prefix) for prefix in prefixes)))
    return re.compile(rf"(?=.{{3,{MOST_INBOX}}}\Z)(?:{known})(?:\.[^\s.*>\x00-\x1f\x7f]+)+")


@dataclass(frozen=True)
class BusOptions:
    """Everything that a bus is told, checked when it is made."""

    queues: Mapping[str, int]
    """Name of each queue and the number of its partitions."""
    window: int = 64
    """Most elements in flight to a reader that knows windows; 0 keeps to the plain protocol."""
    window_bytes: int = MIB
    """Most bytes in flight; a single larger piece travels alone."""
    max_element: int = 64 * MIB
    """Largest element, in bytes, that we are ready to put together from pieces."""
    kbits: float = KBITS
    """Kilobits per second that a reader must at least manage."""
    grace: float = GRACE
    """Seconds that a reader has on top of what the rate gives."""
    inboxes: Sequence[str] = ()
    """Prefixes that the inboxes of peers have, beside those that begin with _INBOX and that of the own connection."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "queues", dict(self.queues))
        for queue, count in self.queues.items():
            if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
                remedy = "It becomes part of a subject: no spaces, no wildcards, no empty parts."
                raise _wrong("queues", queue, remedy, f"{queue!r} cannot be the name of a queue.")
            _whole("queues", count, 1, 65536, f"the number of partitions of {queue}")
        _whole("window", self.window, 0, 65536)
        _whole("window_bytes", self.window_bytes, 64 * KIB, 1024 * MIB)
        _whole("max_element", self.max_element, KIB, 4096 * MIB)
        _positive("kbits", self.kbits)
        _positive("grace", self.grace)
        if isinstance(self.inboxes, str):
            raise _wrong("inboxes", self.inboxes, "Give a list of prefixes.")
        object.__setattr__(self, "inboxes", tuple(self.inboxes))
        for prefix in self.inboxes:
            if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
                remedy = "It begins a subject: no spaces, no wildcards, no empty parts, and no $ in front."
                raise _wrong("inboxes", prefix, remedy, f"{prefix!r} cannot be the prefix of inboxes.")
        self._refuse_collisions()

    def _refuse_collisions(self) -> None:
        """Refuse queues that share a subject: "a1" with partition 0 is "a" with partition 10."""
        for queue, other in itertools.permutations(self.queues, 2):
            digits = re.fullmatch(re.escape(queue) + "([1-9][0-9]*)", other)
            if digits and int(digits[1]) * 10 < self.queues[queue]:
                what = f"{queue} ({self.queues[queue]} partitions) and {other} ({self.queues[other]})"
                raise _wrong("queues", other, "Rename one of them.", f"The queues {what} share the subject {other}0.")

    def allowance(self, size: int) -> float:
        """Give the seconds that a reader may take over `size` bytes."""
        return allowance(size, kbits=self.kbits, grace=self.grace)


def _whole(option: str, value: object, low: int, high: int, about: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        remedy = f"Give a whole number from {low:,} to {high:,}."
        raise _wrong(option, value, remedy, f"{about or option} is {value!r}.")


def _positive(option: str, value: object) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if not good:
        raise _wrong(option, value, "Give a number above 0.")


def _wrong(option: str, value: object, remedy: str, what: str = "") -> OptionError:
    return OptionError(what or f"{option} is {value!r}.", remedy=remedy, option=option, value=value)
