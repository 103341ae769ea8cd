"""Durations as people write them: "250ms", "5s", "1h30m", "7d".

The units are those of the `nats` command: ns, us, ms, s, m, h, d, w (week), M (month of 30 days), y (year of 365 days).
In Python a duration is a number of seconds as `float`.
"""

from __future__ import annotations

import re

from penstock.errors import OptionError

__all__ = ["format_duration", "parse_duration"]

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 7 * 86400.0,
    "M": 30 * 86400.0,
    "y": 365 * 86400.0,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d|w|M|y)")


def parse_duration(text: str | float, *, option: str = "duration") -> float:
    """Turn "1h30m" into 5400.0; a number is taken as seconds. `option` names the culprit in the error."""
    if isinstance(text, int | float):
        if text < 0:
            raise OptionError(f"{option} is {text}, and a duration cannot be negative.", option=option, value=text)
        return float(text)
    stripped = text.strip()
    parts = _PART.findall(stripped)
    if not parts or "".join(number + unit for number, unit in parts) != stripped:
        raise OptionError(
            f"{option} is {text!r}, which is not a duration.",
            remedy='Write a number and a unit, such as "250ms", "5s", "2m" or "1h30m".',
            option=option,
            value=text,
        )
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def format_duration(seconds: float) -> str:
    """Turn 5400.0 into "1h30m0s", in the way the `nats` command shows durations."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds == 0:
        return "0s"
    if seconds < 1:
        for unit, size in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
            if seconds >= size:
                return f"{round(seconds / size, 3):g}{unit}"
        return "0s"
    whole = int(seconds)
    rest = f"{round(seconds - whole + whole % 60, 3):g}s"
    minutes = whole // 60
    days, minutes = divmod(minutes, 24 * 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{days}d" if days else ""
    if days or hours:
        text += f"{hours}h"
    if days or hours or minutes:
        text += f"{minutes}m"
    return text + rest
