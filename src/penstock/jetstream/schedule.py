"""When a stream publishes a message that waits in it, and where to: `Schedule`, checked, as headers. Pure.

The message waits in the stream under a subject of its own, one message each: the next one there takes its place. The
server reads these headers of it (ADR-51)::

    Nats-Schedule            @at 2026-01-31T23:59:59Z    once; a time that is past is now
                             @every 10m                  again and again, a second apart or more
                             0 30 9 * * mon-fri          cron, with seconds in front
                             @hourly @daily @weekly @monthly @yearly
    Nats-Schedule-Target     the subject that it is published on, of the same stream
    Nats-Schedule-Source     a subject of the stream whose last message is published instead
    Nats-Schedule-TTL        how long what is published is kept
    Nats-Schedule-Time-Zone  the zone of cron
    Nats-Schedule-Rollup     sub: what is published replaces what the target held

nats-server 2.12 knows `@at`, target and TTL; the others came with 2.14, and a server that does not know them passes
over them in silence. So the stream is looked at before anything is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from penstock.durations import format_duration, parse_duration
from penstock.errors import InputError
from penstock.times import format_time, parse_time
from penstock.wire.jetstream import names
from penstock.wire.numbers import read_count
from penstock.wire.subjects import covers, subject_fault

if TYPE_CHECKING:
    from penstock.model import Stream

__all__ = ["Schedule", "check_taken", "written_ttl"]

_AT, _EVERY = "@at ", "@every "
_NAMED = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
_LATEST = datetime(2262, 1, 1, tzinfo=UTC)  # the server counts nanoseconds in 64 bits
_INTERVAL = re.compile(r"([0-9.]+(ns|us|µs|ms|s|m|h))+")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
# The fields of cron: what each is called, its bounds, and words that stand for numbers.
_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("second", 0, 59, {}),
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of the week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)
# The API levels of the servers that know schedules: 2.12, and 2.14 with all that is not a time, a target or a TTL.
_FIRST, _SECOND = 2, 4
_LEVEL = "_nats.level"  # in the metadata of a stream: the level of the server that leads it


def written_ttl(ttl: str | float, *, option: str = "ttl") -> str:
    """Write how long a message is kept as the server reads it."""
    if ttl == "never":
        return "never"
    seconds = parse_duration(ttl, option=option)
    if seconds < 1:
        raise InputError(f"{option} is {ttl!r}, and the server's shortest is a second.", remedy="Give 1s or more.")
    return f"{round(seconds * 1000)}ms"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a stream publishes a message that waits in it, and where to; checked when it is made.

    `at`, `after`, `every` and `cron` make one.
    """

    pattern: str
    """When, as the server reads it: `@at TIME`, `@every DURATION`, six fields of cron, or `@daily` and the like."""
    target: str
    """The subject that the message is published on; one of the same stream, and not the one where it waits."""
    source: str | None = None
    """A subject of the stream whose last message is published in place of this one, if it has one."""
    ttl: str | float | None = None
    """How long what is published is kept, a second or more, or "never"; the stream must allow message TTLs."""
    zone: str | None = None
    """The time zone of cron, such as `Europe/Berlin`; UTC if nothing is given."""
    rollup: bool = False
    """Whether what is published replaces everything that the stream held of the target."""

    def __post_init__(self) -> None:
        for option, subject in (("target", self.target), ("source", self.source)):
            if subject is not None and (fault := subject_fault(subject, literal=True)):
                raise InputError(f"The {option} {subject!r} of a schedule {fault}.", remedy="Name one plain subject.")
        if self.source == self.target:
            raise InputError(f"A schedule has {self.target} as source and target.", remedy="Leave the source out.")
        if self.ttl is not None:
            written_ttl(self.ttl, option="The ttl of a schedule")
        if wrong := _pattern_fault(self.pattern):
            raise InputError(f"The schedule {self.pattern!r} {wrong[0]}.", remedy=wrong[1])
        if self.zone is not None:
            if self.pattern.startswith((_AT, _EVERY)):
                what = f"The schedule {self.pattern!r} has a zone."
                raise InputError(what, remedy="A zone is for cron; a time has its own.")
            if not _ZONE.fullmatch(self.zone):
                raise InputError(f"{self.zone!r} is not a time zone.", remedy="Write one such as Europe/Berlin.")

    @classmethod
    def at(cls, time: datetime | str, target: str, **more: Any) -> Self:
        """Publish once, at a time; at once if it is past. `more` are the further fields."""
        if isinstance(time, str):
            time = parse_time(time)
        if time.tzinfo is None:
            raise InputError(f"{time} has no zone.", remedy="Give an aware datetime, such as datetime.now(UTC).")
        return cls(f"{_AT}{format_time(time)}", target, **more)

    @classmethod
    def after(cls, delay: str | float, target: str, **more: Any) -> Self:
        """Publish once, so long from now by the clock of this machine; `more` are the further fields."""
        seconds = parse_duration(delay, option="delay")
        try:
            return cls.at(datetime.now(UTC) + timedelta(seconds=seconds), target, **more)
        except OverflowError:
            raise InputError(f"delay is {delay!r}, which is too long.", remedy="Name a time before 2262.") from None

    @classmethod
    def every(cls, interval: str | float, target: str, **more: Any) -> Self:
        """Publish again and again, the first time after one interval; `more` are the further fields."""
        return cls(
            f"{_EVERY}{format_duration(parse_duration(interval, option='interval'), days=False)}", target, **more
        )

    @classmethod
    def cron(cls, pattern: str, target: str, **more: Any) -> Self:
        """Publish when cron says: second, minute, hour, day, month, day of the week; `more` are the further fields."""
        return cls(" ".join(pattern.split()), target, **more)

    def headers(self) -> dict[str, str]:
        """Give the headers that say it."""
        said = {
            names.SCHEDULE: self.pattern,
            names.SCHEDULE_TARGET: self.target,
            names.SCHEDULE_SOURCE: self.source,
            names.SCHEDULE_TTL: None if self.ttl is None else written_ttl(self.ttl),
            names.SCHEDULE_ZONE: self.zone,
            names.SCHEDULE_ROLLUP: "sub" if self.rollup else None,
        }
        return {name: value for name, value in said.items() if value is not None}

    def check_place(self, subject: str) -> None:
        """Refuse a subject under which such a message cannot wait."""
        for option, other in (("target", self.target), ("source", self.source)):
            if subject == other:
                what = f"A schedule waits under {subject}, which is its {option}, too."
                raise InputError(what, remedy="Let it wait under a subject of its own.")

    @property
    def level(self) -> int:
        """The API level that the server needs."""
        simple = self.pattern.startswith(_AT) and self.source is None and not self.rollup
        return _FIRST if simple else _SECOND


def _pattern_fault(pattern: str) -> tuple[str, str] | None:
    """Say what is wrong with a pattern, and what to do."""
    example = "Write @at and a time, @every and a duration, or six fields of cron, such as 0 30 9 * * mon-fri."
    if pattern.startswith(_AT):
        try:
            time = parse_time(pattern.removeprefix(_AT))
        except InputError as error:
            return "names no time", error.remedy
        return None if time < _LATEST else ("is too late for the server", "Name a time before 2262.")
    if pattern.startswith(_EVERY):
        interval = pattern.removeprefix(_EVERY)
        seconds = parse_duration(interval, option="interval")
        if not _INTERVAL.fullmatch(interval):
            return "has a unit that the server does not know", "Write hours, minutes and seconds, such as 36h."
        if seconds < 1:
            return "is shorter than the server's shortest, a second", "Give 1s or more."
        return None if seconds < 100 * 365 * 86400 else ("is longer than a century", "Give a shorter interval.")
    if pattern.startswith("@"):
        known = ", ".join(sorted(_NAMED))
        return None if pattern in _NAMED else ("is not known to the server", f"{example} It also knows {known}.")
    fields = pattern.split()
    if len(fields) == 5:
        return "has five fields, and the server's cron begins with seconds", f"Write 0 {pattern}."
    if len(fields) != len(_FIELDS) or not pattern.isprintable():
        return "is not a schedule", example
    for field, (name, low, high, words) in zip(fields, _FIELDS, strict=True):
        if not all(_is_range(part, low, high, words) for part in field.split(",")):
            return (
                f"has the {name} {field!r}",
                f"Write *, numbers from {low} to {high}, ranges 1-3, steps */5, lists 1,3.",
            )
    return None


def _is_range(text: str, low: int, high: int, words: Mapping[str, int]) -> bool:
    """Tell whether this is a part of a field of cron: a number or a word, a range, all, each with a step or without."""
    span, slash, step = text.partition("/")
    if slash and not (step.isdecimal() and step.isascii() and len(step) < 10 and int(step) > 0):
        return False
    first, dash, last = span.partition("-")
    if first in ("*", "?"):
        return not dash
    bounds = [
        words.get(end.lower(), int(end) if end.isdecimal() and end.isascii() and len(end) < 10 else -1)
        for end in ((first, last) if dash else (first,))
    ]
    return all(low <= bound <= high for bound in bounds) and bounds == sorted(bounds)


def check_taken(schedule: Schedule, subject: str, stream: Stream) -> None:
    """Refuse a schedule that a stream does not take, or would not carry out."""
    name = stream.name
    if not stream.allow_msg_schedules:
        what = f"Stream {name} takes no messages for later."
        raise InputError(what, remedy=f"penstock stream edit {name} --allow-schedules, which cannot be taken back.")
    level = read_count(stream.metadata.get(_LEVEL, ""))
    if level is not None and level < schedule.level:
        what = f"The server of stream {name} publishes later only once, and only the message itself."
        raise InputError(what, remedy="Intervals, cron, sources and rollups need nats-server 2.14.")
    for option, other in (("target", schedule.target), ("source", schedule.source)):
        if other is not None and not any(covers(captured, other) for captured in stream.subjects):
            what = f"Stream {name} does not capture {other}, the {option} of the schedule on {subject}."
            raise InputError(what, remedy=f"It captures {', '.join(stream.subjects) or 'nothing'}.")
    if schedule.ttl is not None and not stream.allow_msg_ttl:
        what = f"Stream {name} takes no TTL of a message, and the schedule on {subject} has one."
        raise InputError(what, remedy=f"penstock stream edit {name} --allow-msg-ttl, which cannot be taken back.")
