"""The limits of channels: global ones, and narrower ones for channels whose name matches a pattern.

Globally, zero means unlimited. For a pattern, zero means "as the wider pattern says", and a negative number means
unlimited. Where several patterns match a channel, the narrowest counts, field by field from the widest inwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock.channels.names import is_channel
from penstock.durations import parse_duration
from penstock.errors import OptionError
from penstock.sizes import parse_size
from penstock.wire.subjects import covers

__all__ = ["HEADER_ROOM", "PAYLOAD", "ChannelLimits", "Limits", "gather_limits", "parse_limits"]

HEADER_ROOM = 400  # bytes of headers that are stored beside a payload; a reply subject comes on top
PAYLOAD = 1024 * 1024 + 4096  # what a server must take so that a publish of a mebibyte is stored, whatever its reply


@dataclass(frozen=True)
class ChannelLimits:
    """What one channel may hold; zero means no limit."""

    max_msgs: int = 1_000_000
    """Messages that a channel keeps; the oldest go first, the newest always stays."""
    max_bytes: int = 1_000_000 * 1024
    """Bytes of messages, as delivered, that a channel keeps; the oldest go first, the newest always stays."""
    max_age: float = 0.0
    """Seconds that a channel keeps a message."""
    max_subs: int = 1000
    """Subscriptions that a channel takes, durable ones that are offline included."""
    max_inactivity: float = 0.0
    """Seconds without a publisher and without an active subscription after which a channel is deleted."""


@dataclass(frozen=True)
class Limits:
    """The limits of a gateway: `channels` at most, each within `default` or what `patterns` say."""

    channels: int = 100
    default: ChannelLimits = ChannelLimits()
    patterns: tuple[tuple[str, ChannelLimits], ...] = ()

    def __post_init__(self) -> None:
        _check("max_channels", self.channels)
        for field in fields(self.default):
            _check(field.name, getattr(self.default, field.name))
        for pattern, _ in self.patterns:
            if not _is_pattern(pattern):
                what = f"Limits are given for {pattern!r}, which matches no channel."
                raise _wrong(what, "Write a channel's name, or * for one token and > for the rest.", pattern)
        ordered = tuple(sorted(self.patterns, key=lambda item: _width(item[0])))
        object.__setattr__(self, "patterns", ordered)

    def of(self, channel: str) -> ChannelLimits:
        """Give the limits of one channel."""
        made = self.default
        for pattern, narrower in self.patterns:  # the widest first
            if covers(pattern, channel):
                changes = {name: max(value, 0) for name, value in vars(narrower).items() if value}
                made = replace(made, **changes)
        return made


def _check(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise OptionError(f"{name} is {value!r}.", remedy="Give zero for no limit, or more.", option=name, value=value)


def _wrong(what: str, remedy: str, value: str) -> OptionError:
    return OptionError(what, remedy=remedy, option="limits", value=value)


def _is_pattern(pattern: str) -> bool:
    tokens = pattern.split(".")
    named = ".".join("x" if token in ("*", ">") else token for token in tokens)
    return ">" not in tokens[:-1] and is_channel(named)


def _width(pattern: str) -> tuple[int, ...]:
    """Order patterns from wide to narrow: token by token, `>` before `*` before a word."""
    return tuple({">": 0, "*": 1}.get(token, 2) for token in pattern.split("."))


def parse_limits(text: str) -> tuple[str, ChannelLimits]:
    """Read `orders.*:max_msgs=10,max_age=1h`: a pattern and what holds for it; what is not named is inherited."""
    pattern, _, rest = text.partition(":")
    known = {field.name for field in fields(ChannelLimits)}
    values: dict[str, Any] = dict.fromkeys(known, 0)
    for item in filter(None, (part.strip() for part in rest.split(","))):
        name, equals, value = item.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in known:
            remedy = f"Write NAME=VALUE, NAME being one of {', '.join(sorted(known))}."
            raise _wrong(f"{item!r} in the limits {text!r} is not a limit.", remedy, text)
        values[name] = _value(name, value.strip(), text)
    if not any(values.values()):
        raise _wrong(f"The limits {text!r} name no limit.", "Write them as orders.*:max_msgs=10,max_age=1h.", text)
    return pattern, ChannelLimits(**values)


def _value(name: str, value: str, text: str) -> float:
    if name in ("max_age", "max_inactivity"):
        return -1.0 if value.startswith("-") else parse_duration(value, option=name)
    if name == "max_bytes":
        return parse_size(value, option=name)
    try:
        return int(value)
    except ValueError:
        raise OptionError(
            f"{name} in the limits {text!r} is not a whole number.", remedy="Write digits.", option=name, value=value
        ) from None


def gather_limits(texts: Iterable[str]) -> tuple[tuple[str, ChannelLimits], ...]:
    """Read several limits as the command line gives them."""
    return tuple(parse_limits(text) for text in texts)
