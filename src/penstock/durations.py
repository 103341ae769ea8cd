"""Durations as people write them: "250ms", "5s", "1h30m", "7d".

The units are those of the `nats` command: ns, us, ms, s, m, h, d, w (week), M (month of 30 days), y (year of
365 days). In Python a duration is a number of seconds as `float`.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from penstock.errors import OptionError

__all__ = ["format_duration", "parse_duration"]

# Decimal, because 9 * 1e-3 is not 0.009.
_UNITS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),  # the micro sign
    "μs": Decimal("1e-6"),  # the Greek letter, which keyboards give
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "w": Decimal(7 * 86400),
    "M": Decimal(30 * 86400),
    "y": Decimal(365 * 86400),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|μs|ms|s|m|h|d|w|M|y)")


def parse_duration(text: str | float, *, option: str = "duration") -> float:
    """Turn "1h30m" into 5400.0; a number is taken as seconds. `option` names the culprit in the error."""
    seconds = _read(text)
    if seconds is None or not math.isfinite(seconds):
        what = f"{option} is {text!r}, which is not a duration."
        remedy = 'Write a number and a unit, such as "250ms", "5s", "2m" or "1h30m".'
        raise OptionError(what, remedy=remedy, option=option, value=text)
    if seconds < 0:
        what = f"{option} is {text!r}, and a duration cannot be negative."
        raise OptionError(what, remedy='Write one such as "5s".', option=option, value=text)
    return seconds


def _read(text: object) -> float | None:
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text) if abs(text) < 1e300 else None  # a larger int is not a float
    if not isinstance(text, str):
        return None
    parts = _PART.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    return float(sum(Decimal(number) * _UNITS[unit] for number, unit in parts))


def format_duration(seconds: float, *, days: bool = True) -> str:
    """Turn 5400.0 into "1h30m0s", in the way the `nats` command shows durations; exact to the nanosecond.

    `days=False` counts hours on, because the server reads no larger unit.
    """
    if seconds < 0:
        return "-" + format_duration(-seconds, days=days)
    nanos = round(Decimal(repr(float(seconds))) * 1_000_000_000)
    if nanos < 1_000_000_000:
        for unit, size in (("ms", 1_000_000), ("µs", 1_000), ("ns", 1)):
            if nanos >= size:
                return f"{_decimal(nanos, size)}{unit}"
        return "0s"
    minutes, rest = divmod(nanos, 60_000_000_000)
    whole_days, minutes = divmod(minutes, 24 * 60) if days else (0, minutes)
    hours, minutes = divmod(minutes, 60)
    text = ""
    for count, unit in ((whole_days, "d"), (hours, "h"), (minutes, "m")):
        text += f"{count}{unit}" if text or count else ""
    return f"{text}{_decimal(rest, 1_000_000_000)}s"


def _decimal(count: int, size: int) -> str:
    whole, part = divmod(count, size)
    digits = len(str(size)) - 1
    return f"{whole}.{part:0{digits}}".rstrip("0") if part else str(whole)
