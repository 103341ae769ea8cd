"""Times as the server writes them: RFC 3339. Pure, and quick to load."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from penstock.errors import InputError

__all__ = ["format_time", "parse_time"]


def parse_time(text: str) -> datetime:
    """Read an RFC 3339 time with up to nanoseconds; Python keeps microseconds, the rest is cut."""
    try:
        time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        what = f"{text!r} is not a time{'' if time is None else ' with a zone'}."
        raise InputError(what, remedy="Write it as 2026-01-31T23:59:59Z.")
    return time


def format_time(time: datetime) -> str:
    """Write a time as the server does, in UTC."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
