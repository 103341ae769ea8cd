"""Values as people write them on a command line: durations, sizes, times, lists, pairs and JSON files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError
from penstock.json_text import load_json

__all__ = ["choice", "duration", "opposite", "parse_pairs", "parse_until", "refuse_both", "words"]


def refuse_both(one: str, has_one: bool, other: str, has_other: bool) -> None:
    """Refuse two that contradict each other."""
    if has_one and has_other:
        raise InputError(f"{one} and {other} are given together.", remedy="Leave one of them out.")


def parse_until(text: str, option: str) -> datetime:
    """Read a time to come: a date, a time (in UTC if it names no zone), or a duration from now."""
    from penstock.times import parse_time

    if re.match(r"[0-9]{4}-", text):
        day, _, clock = text.replace(" ", "T", 1).partition("T")
        zoned = re.search(r"(Z|[+-][0-9:]+)$", clock)
        return parse_time(f"{day}T{clock or '00:00:00'}{'' if zoned else 'Z'}")
    return shifted(text, option, 1)


def shifted(text: str, option: str, direction: int) -> datetime:
    """Give the time that lies a duration before (-1) or after (1) now."""
    try:
        return datetime.now(UTC) + direction * timedelta(seconds=parse_duration(text, option=option))
    except OverflowError:
        raise OptionError(
            f"{option} is {text!r}, which is out of the range of dates.",
            remedy='Write less, such as "1h" or "30d".',
            option=option,
            value=text,
        ) from None


def duration(text: str, option: str) -> float:
    """Read a duration; -1 and 0 mean none, as with the `nats` command."""
    return 0.0 if text in ("-1", "-1s", "0", "") else parse_duration(text, option=option)


def words(texts: Sequence[str], option: str = "") -> list[str]:
    """Read a list that may be repeated, or written with commas."""
    return [item.strip() for text in texts for item in text.split(",") if item.strip()]


def opposite(value: bool, option: str) -> bool:
    """Read a flag that means the opposite of its field."""
    return not value


def choice(known: Mapping[str, str]) -> Callable[..., str]:
    """Read one of these words, and give what it stands for."""

    def read(text: str, option: str) -> str:
        if text not in known:
            remedy = f"Use one of {', '.join(known)}."
            raise OptionError(f"{option} is {text!r}.", remedy=remedy, option=option, value=text)
        return known[text]

    return read


def parse_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read key=value, or key:value."""
    pairs = {}
    for text in texts:
        found = min((place for place in (text.find("="), text.find(":")) if place > 0), default=-1)
        if found < 0:
            raise InputError(f"{option} {text!r} is not a pair.", remedy="Write key=value.")
        pairs[text[:found]] = text[found + 1 :]
    return pairs


def read_json(path: Path, option: str) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        content = load_json(path.read_text())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{option} {path} cannot be read as JSON: {reason}.", remedy="Check the file.") from None
    if not isinstance(content, dict):
        raise InputError(f"{option} {path} holds no JSON object.", remedy="Check the file.")
    return content


def write_json(path: Path, content: object) -> None:
    """Write JSON into a file that is not there yet."""
    try:
        with path.open("x") as file:
            file.write(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", remedy="Name a new file.") from None
