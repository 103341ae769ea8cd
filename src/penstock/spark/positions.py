"""Where in a stream a read begins or ends, as users say it: a word, a sequence, a time, or a duration ago.

position = "all" | "last" | "new" | sequence | RFC 3339 time | duration
sequence = digits, from 1
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError

__all__ = ["Position", "parse_position"]


@dataclass(frozen=True)
class Position:
    """A place in a stream that only the stream can turn into a sequence."""

    kind: Literal["all", "last", "new", "sequence", "time", "ago"]
    sequence: int | None = None
    time: datetime | None = None
    ago: float | None = None

    def at(self, now: datetime) -> datetime | None:
        """Give the time that this position means, if it means one."""
        return now - timedelta(seconds=self.ago) if self.ago is not None else self.time


def parse_position(text: str, *, option: str) -> Position:
    """Read a position; OptionError names the option."""
    word = text.strip()
    if word.lower() in ("all", "last", "new"):
        return Position(kind=word.lower())  # type: ignore[arg-type]  # one of the three words
    if re.fullmatch(r"[0-9]{1,19}", word) and 0 < int(word) < 2**63:
        return Position("sequence", sequence=int(word))
    if re.match(r"[0-9]{4}-", word):
        from penstock.model import parse_time  # only here: every Python worker of Spark imports this module

        try:
            return Position("time", time=parse_time(word))
        except InputError as error:
            raise OptionError(f"The option {option}: {error.what}", remedy=error.remedy, option=option) from None
    try:
        return Position("ago", ago=parse_duration(word, option=option))
    except OptionError:
        raise OptionError(
            f"The option {option} is {text[:200]!r}, which is not a place in a stream.",
            remedy='Give all, last, new, a sequence from 1, a time as 2026-01-31T23:59:59Z, or a duration ago: "2m".',
            option=option,
            value=text,
        ) from None
