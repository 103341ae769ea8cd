"""Fields of configurations in forms: how each is typed, and which field of the model and flag of the command it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.console.forms import Field
from penstock.durations import format_duration, parse_duration
from penstock.errors import InputError
from penstock.sizes import parse_size

__all__ = ["Config", "begins", "changed", "flags_of", "seconds", "size", "subjects", "whole"]


@dataclass(frozen=True)
class Config(Field):
    """A field of a stream's or a consumer's configuration."""

    to: str = ""
    """The field of the model; the same name if empty."""
    flag: str = ""
    """The flag of the command; made of the name if empty."""
    read: Callable[[str, str], Any] = lambda text, label: text
    write: Callable[[Any], str] = lambda value: "" if value is None else str(value)

    @property
    def field(self) -> str:
        """The field of the model."""
        return self.to or self.name

    @property
    def option(self) -> str:
        """The flag of the command."""
        return self.flag or f"--{self.name.replace('_', '-')}"


def whole(name: str, label: str, none: str = "no limit", **more: Any) -> Config:
    """Make a field for a number; empty means no limit, which the server writes as -1."""

    def read(text: str, label: str) -> int:
        if text in ("", "-1"):
            return -1
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise InputError(f"{label} is {text[:40]!r}.", remedy=f"Give a whole number, or nothing for {none}.")
        return int(text)

    return Config(
        name,
        label,
        read=read,
        write=lambda value: "" if value in (None, -1) else str(value),
        hint=f"{none} if empty",
        **more,
    )


def size(name: str, label: str, **more: Any) -> Config:
    """Make a field for a number of bytes, such as 10MiB; empty means no limit."""

    def read(text: str, label: str) -> int:
        return -1 if text in ("", "-1") else parse_size(text, option=label)

    return Config(
        name,
        label,
        read=read,
        write=lambda value: "" if value in (None, -1) else str(value),
        hint="such as 1GiB; no limit if empty",
        **more,
    )


def seconds(name: str, label: str, hint: str = "such as 24h; no limit if empty", **more: Any) -> Config:
    """Make a field for a duration; empty is none."""

    def read(text: str, label: str) -> float:
        return 0.0 if text in ("", "0", "-1") else parse_duration(text, option=label)

    return Config(
        name, label, read=read, write=lambda value: format_duration(value) if value else "", hint=hint, **more
    )


def subjects(name: str, label: str, hint: str, **more: Any) -> Config:
    """Make a field for subjects, apart by commas or spaces."""

    def read(text: str, label: str) -> list[str]:
        return [item for item in text.replace(",", " ").split() if item]

    return Config(name, label, read=read, write=", ".join, hint=hint, **more)


def begins(fields: Sequence[Config], config: Any) -> dict[str, str]:
    """Give what a form begins with that changes a configuration."""
    return {item.name: item.write(getattr(config, item.field)) for item in fields}


def changed(fields: Sequence[Config], values: Mapping[str, str], begin: Mapping[str, str]) -> list[Config]:
    """Give the fields in which something else was typed than they began with."""
    return [item for item in fields if values.get(item.name, "") != begin.get(item.name, "")]


def flags_of(fields: Sequence[Config], values: Mapping[str, str]) -> list[str]:
    """Give the flags that say what was typed into these fields; `=` joins a value that may begin with a dash."""
    found = []
    for item in fields:
        text = values.get(item.name, "")
        value = item.read(text, item.label)
        if isinstance(value, list):
            text = ",".join(value)
        elif value == -1:
            text = "-1"
        elif isinstance(value, float) and not value:
            text = "0"
        found.append(f"{item.option}={text}")
    return found
