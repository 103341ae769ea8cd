"""The last hour of a survey, in memory that is bounded: rows of figures for each thing that was looked at. Pure.

A thing whose figures stay the same takes two rows, however long that lasts. If the room does not suffice, every second
row goes, and from then on rows are twice as far apart: `apart` says how far.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from penstock.survey.state import Subject

__all__ = ["FIELDS", "LastHour"]

FIELDS: dict[str, tuple[str, ...]] = {
    "stream": ("rate", "messages", "bytes", "last"),
    "consumer": ("lag", "lag_seconds", "rate", "redelivered", "ack_pending", "ack_p50", "ack_p99"),
    "flow": ("rows", "rate", "lag", "batch_seconds"),
}
"""What is kept of each kind of thing; `last` is the last sequence of a stream."""
_APART = 5.0  # seconds between two rows as long as there is room
_SWEEP = 60.0  # seconds between two looks for what has gone
_NOTHING = math.nan


@dataclass(slots=True)
class _Rows:
    """The rows of one thing, one behind the other: a time, and a figure for each field."""

    created: datetime | None
    width: int
    figures: array[float] = field(default_factory=lambda: array("d"))

    def times(self) -> array[float]:
        return self.figures[:: self.width]


class LastHour:
    """Remembers figures for a while."""

    def __init__(self, seconds: float = 3600.0, room: int = 2_000_000) -> None:
        self.seconds = seconds
        self.room = room
        """The most figures that are kept, times included; each takes eight bytes."""
        self.apart = _APART
        """Seconds between two rows."""
        self.size = 0
        self._rows: dict[Subject, _Rows] = {}
        self._swept = 0.0

    def add(self, subject: Subject, when: float, values: Sequence[float | None], created: datetime | None) -> None:
        """Take down a row; what is `created` at another time is another thing of the same name."""
        rows = self._rows.get(subject)
        if rows is None or rows.created != created:
            self._forget(subject)
            rows = self._rows[subject] = _Rows(created, 1 + len(FIELDS[subject[0]]))
        known, width = rows.figures, rows.width
        if known and when <= known[-width]:
            return  # an answer that came late
        row = array("d", (when, *(_NOTHING if value is None else value for value in values)))
        before = len(known)
        if before >= 2 * width and (
            when - known[-2 * width] < self.apart
            or (_same(known[-width + 1 :], row[1:]) and _same(known[1 - 2 * width : -width], row[1:]))
        ):
            known[-width:] = row
        else:
            known.extend(row)
        if known[0] < when - self.seconds:
            old = bisect.bisect_left(rows.times(), when - self.seconds)
            del known[: min(old, len(known) // width - 1) * width]
        self.size += len(known) - before
        if when - self._swept > _SWEEP:
            self._sweep(when)
        while self.size > self.room and self.apart < self.seconds:
            self._thin()

    def series(self, subject: Subject, name: str) -> list[tuple[float, float]]:
        """Give what is known of one field, oldest first: times in seconds since 1970, and values."""
        fields = FIELDS.get(subject[0], ())
        rows = self._rows.get(subject)
        if rows is None or name not in fields:
            return []
        values = rows.figures[1 + fields.index(name) :: rows.width]
        return [(when, value) for when, value in zip(rows.times(), values, strict=True) if value == value]

    def passed(self, stream: str, sequence: int) -> float | None:
        """Give when a stream stored a sequence, as exactly as the rows tell; None if that was before all of them."""
        rows = self._rows.get(("stream", stream))
        if rows is None:
            return None
        last = rows.figures[FIELDS["stream"].index("last") + 1 :: rows.width]
        place = bisect.bisect_left(last, sequence)
        if not 0 < place < len(last):
            return None
        times = rows.times()
        share = (sequence - last[place - 1]) / (last[place] - last[place - 1])
        return times[place - 1] + share * (times[place] - times[place - 1])

    def _forget(self, subject: Subject) -> None:
        rows = self._rows.pop(subject, None)
        if rows is not None:
            self.size -= len(rows.figures)

    def _sweep(self, now: float) -> None:
        """Forget what nobody has looked at for as long as anything is kept."""
        self._swept = now
        for subject in [key for key, rows in self._rows.items() if rows.figures[-rows.width] < now - self.seconds]:
            self._forget(subject)

    def _thin(self) -> None:
        self.apart *= 2
        self.size = 0
        for rows in self._rows.values():
            width, known = rows.width, rows.figures
            kept = array("d")
            last = len(known) - width
            for place in range(0, len(known), width):
                if not kept or place == last or known[place] - kept[-width] >= self.apart:
                    kept.extend(known[place : place + width])
            rows.figures = kept
            self.size += len(kept)


def _same(one: array[float], other: array[float]) -> bool:
    return one.tobytes() == other.tobytes()
