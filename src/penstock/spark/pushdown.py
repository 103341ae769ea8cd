"""Filters of a batch query as ranges and subjects: what Spark pushes down becomes less to read.

Filters on `sequence` and `time` narrow the range, filters on `stream` the streams, equality and prefixes on `subject`
the subjects. Spark still applies every filter itself, so a filter that is understood only in part is safe.
Pure: filters in, a `Pushed` out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from penstock.wire.subjects import covers, overlaps, subject_fault

__all__ = [
    "STREAM_COLUMNS",
    "Pushed",
    "Rule",
    "by_sequence",
    "by_stream",
    "by_subject",
    "by_time",
    "narrow",
    "prefix_to_subject",
    "push",
    "without_overlap",
]


@dataclass(frozen=True)
class Pushed:
    """What is left to read once the filters are taken into account."""

    start: int = 1
    """The lowest sequence that can pass."""
    end: int | None = None
    """The sequence behind the highest that can pass."""
    since: datetime | None = None
    """The earliest time that can pass."""
    until: datetime | None = None
    """The latest time that can pass; inclusive."""
    subjects: tuple[str, ...] | None = None
    """Subjects, wildcards included, that cover whatever can pass."""
    streams: tuple[str, ...] | None = None
    """The only streams that can pass."""


Rule = Callable[[Pushed, str, Any], Pushed]
"""What a filter on one column adds: what is known so far, the name of the filter's class, and its value."""


def push(pushed: Pushed, filters: Iterable[Any], columns: Mapping[str, Rule] | None = None) -> Pushed:
    """Take filters of Spark (`pyspark.sql.datasource`) into account; all of them hold together.

    `columns` are the rules of a reader whose columns are others than a stream's: a revision is a sequence, and a key is
    a subject behind the bucket's own tokens (`by_subject`).
    """
    rules = STREAM_COLUMNS if columns is None else columns
    for item in filters:
        column: tuple[str, ...] = getattr(item, "attribute", ())
        if len(column) == 1 and (apply := rules.get(column[0])):
            pushed = apply(pushed, type(item).__name__, getattr(item, "value", None))
    return pushed


_EQUAL = ("EqualTo", "EqualNullSafe", "In")


def _bounds(kind: str, value: Any, fits: Callable[[Any], bool]) -> tuple[Any, Any]:
    """Give the lowest and the highest value that a filter names; None if it sets no such bound."""
    values = value if kind == "In" else (value,)
    if not values or not all(fits(item) for item in values):
        return None, None
    low = min(values) if kind in (*_EQUAL, "GreaterThan", "GreaterThanOrEqual") else None
    return low, max(values) if kind in (*_EQUAL, "LessThan", "LessThanOrEqual") else None


def by_sequence(pushed: Pushed, kind: str, value: Any) -> Pushed:
    low, high = _bounds(kind, value, lambda item: type(item) is int)
    if low is not None:
        pushed = replace(pushed, start=max(pushed.start, low + (kind == "GreaterThan")))
    if high is not None:
        end = high + (kind != "LessThan")
        pushed = replace(pushed, end=end if pushed.end is None else min(pushed.end, end))
    return pushed


def by_time(pushed: Pushed, kind: str, value: Any) -> Pushed:
    low, high = _bounds(kind, value, lambda item: isinstance(item, datetime) and item.tzinfo is not None)
    if low is not None:
        pushed = replace(pushed, since=low if pushed.since is None else max(pushed.since, low))
    if high is not None:
        pushed = replace(pushed, until=high if pushed.until is None else min(pushed.until, high))
    return pushed


def _words(kind: str, value: Any) -> tuple[str, ...]:
    """Give the only words that pass a filter; nothing if it says something else."""
    values = value if kind == "In" else (value,)
    return tuple(dict.fromkeys(values)) if kind in _EQUAL and all(isinstance(item, str) for item in values) else ()


def by_subject(before: str = "") -> Rule:
    """Give the rule for a column of subjects, or of what stands in them behind some tokens, such as `$KV.PRICES.`."""

    def rule(pushed: Pushed, kind: str, value: Any) -> Pushed:
        if kind == "StringStartsWith" and isinstance(value, str):
            return replace(pushed, subjects=narrow(pushed.subjects, tuple(prefix_to_subject(before + value))))
        subjects = tuple(before + item for item in _words(kind, value))
        # A backslash may stand for a byte that is not UTF-8, which no question to a server can hold.
        if subjects and not any("\\" in item or subject_fault(item, literal=True) for item in subjects):
            return replace(pushed, subjects=narrow(pushed.subjects, subjects))
        return pushed

    return rule


def by_stream(pushed: Pushed, kind: str, value: Any) -> Pushed:
    if not (streams := _words(kind, value)):
        return pushed
    return replace(pushed, streams=tuple(item for item in streams if pushed.streams is None or item in pushed.streams))


STREAM_COLUMNS: Final[Mapping[str, Rule]] = {
    "sequence": by_sequence,
    "time": by_time,
    "subject": by_subject(),
    "stream": by_stream,
}


def prefix_to_subject(prefix: str) -> list[str]:
    """Give the subjects that cover everything which begins with a text: whole tokens of it, and a wildcard.

    `orders.eu.` becomes `orders.eu.>`; of `orders.eu` only `orders.>` is sure, for `orders.europe` fits, too; if
    there is no whole token, nothing is gained.
    """
    whole, dot, _ = prefix.rpartition(".")
    return [f"{whole}.>"] if dot and "\\" not in whole and not subject_fault(whole, literal=True) else [">"]


def narrow(old: tuple[str, ...] | None, new: tuple[str, ...]) -> tuple[str, ...]:
    """Give subjects that cover whatever matches one of `old` and one of `new`; empty if nothing can.

    If two only overlap, the narrower cannot be written as one subject: then the old one stays, which covers it.
    """
    if old is None:
        return without_overlap(new)
    found = []
    for one in old:
        for other in new:
            if covers(one, other):
                found.append(other)
            elif covers(other, one) or overlaps(one, other):
                found.append(one)
    return without_overlap(tuple(dict.fromkeys(found)))


def without_overlap(subjects: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out what another one covers: a server takes no filters of which one holds the other."""
    kept = tuple(dict.fromkeys(subjects))
    return tuple(item for item in kept if not any(other != item and covers(other, item) for other in kept))
