"""How a range of a stream is cut into tasks: arithmetic on what is known of it, no server.

A `Profile` is what the driver found out about a range: at some sequences, how many messages lie before and how large
the message there is. Between two of these points messages are taken to be spread evenly. Any cut of a range gives the
same rows, so a wrong guess costs balance, never data.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from penstock.spark.offsets import Range
from penstock.spark.source_options import SourceOptions

__all__ = ["Point", "Profile", "cut", "how_many", "share", "spread"]

# What a message costs beside its payload: subject, headers, a row. A million empty messages do not weigh nothing.
ROW_BYTES = 100


@dataclass(frozen=True)
class Point:
    """What is known at one sequence."""

    sequence: int
    before: int
    """How many messages of the range lie before this sequence."""
    size: int
    """How large messages are here, in bytes."""


@dataclass(frozen=True)
class Profile:
    """What is known of a range: points from its start to its end, in order."""

    points: Sequence[Point]

    @classmethod
    def even(cls, start: int, end: int, count: int, size: int) -> Profile:
        """Give the profile of a range of which only the number of messages and their mean size are known."""
        return cls((Point(start, 0, size), Point(end, count, size)))

    @property
    def count(self) -> int:
        """How many messages the range holds."""
        return self.points[-1].before

    def weights(self) -> list[int]:
        """Give what each segment between two points weighs, in bytes."""
        return [
            (right.before - left.before) * (ROW_BYTES + (left.size + right.size) // 2)
            for left, right in pairwise(self.points)
        ]

    @property
    def weight(self) -> int:
        """What the whole range weighs, in bytes."""
        return sum(self.weights())

    def heaviest(self, above: int) -> int | None:
        """Give the number of the heaviest segment that can be looked into and weighs more than `above`."""
        found, most = None, above
        for number, weight in enumerate(self.weights()):
            left, right = self.points[number], self.points[number + 1]
            # A segment without gaps has no secret but its sizes, which the points around it tell.
            if right.sequence - left.sequence > right.before - left.before and weight > most:
                found, most = number, weight
        return found

    def most_between(self, start: int, end: int) -> int:
        """Give a number that the messages between two sequences certainly do not exceed."""
        sequences = [point.sequence for point in self.points]
        low = max(0, bisect_right(sequences, start) - 1)
        high = min(bisect_left(sequences, end), len(sequences) - 1)
        return min(end - start, self.points[high].before - self.points[low].before)

    def with_point(self, point: Point) -> Profile:
        """Give the same profile with one point more."""
        return Profile(sorted({*self.points, point}, key=lambda item: item.sequence))


def how_many(profile: Profile, options: SourceOptions) -> int:
    """Tell how many tasks a range is worth."""
    wanted = max(options.min_partitions or 1, -(-profile.weight // options.max_bytes_per_partition))
    if options.max_records_per_partition is not None:
        wanted = max(wanted, -(-profile.count // options.max_records_per_partition))
    return min(wanted, profile.count)


def cut(stream: str, profile: Profile, parts: int) -> list[Range]:
    """Cut a range into parts of the same weight; parts without a sequence are left out."""
    start, end = profile.points[0].sequence, profile.points[-1].sequence
    weights = profile.weights()
    sums = [0, *accumulate(weights)]
    total = sums[-1]
    if parts <= 1 or total == 0:
        return [Range(stream, start, end)] if end > start else []
    places = [start]
    for number in range(1, parts):
        goal = total * number // parts
        segment = min(bisect_right(sums, goal) - 1, len(weights) - 1)
        left, right = profile.points[segment].sequence, profile.points[segment + 1].sequence
        inside = (goal - sums[segment]) * (right - left) // weights[segment] if weights[segment] else 0
        places.append(min(max(left + inside, places[-1]), end))
    return [Range(stream, one, other) for one, other in pairwise([*places, end]) if other > one]


def spread(start: int, end: int, count: int) -> list[int]:
    """Give up to `count` sequences inside a range, evenly spaced, its start and end not among them."""
    width = end - start
    return sorted({start + width * number // (count + 1) for number in range(1, count + 1)} - {start, end})


def share(wanted: dict[str, int], limit: int) -> dict[str, int]:
    """Share a limit among streams: nobody gets more than it has, and the rest goes by what each has.

    A stream with little is served whole before a large one gets its second helping, so that no stream starves.
    """
    left, shares = limit, dict.fromkeys(wanted, 0)
    open_streams = sorted((name for name in wanted if wanted[name]), key=lambda name: (wanted[name], name))
    while open_streams:
        name = open_streams.pop(0)
        shares[name] = min(wanted[name], left // (len(open_streams) + 1))
        left -= shares[name]
    return shares
