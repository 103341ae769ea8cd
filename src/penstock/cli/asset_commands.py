"""What commands about streams and consumers share: a connection, questions, choices, flags as data."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer

from penstock.cli.global_flags import Globals
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = [
    "ask",
    "asking",
    "confirm",
    "connected",
    "parse_until",
    "pick",
    "read_json",
    "shifted",
    "with_flags",
]

Answer = TypeVar("Answer")


@asynccontextmanager
async def connected(given: Globals) -> AsyncIterator[Connection]:
    """Connect as the global flags say, and close at the end."""
    from penstock.connection import connect

    client = await connect(given.options())
    try:
        yield client
    finally:
        await client.close()


# -- questions -------------------------------------------------------------------------------------------------------


def asking(defaults: bool = False) -> bool:
    """Tell whether somebody is there to be asked: a terminal, and no --defaults."""
    return not defaults and sys.stdin is not None and sys.stdin.isatty()


def ask(question: str, default: str, read: Callable[[str], Answer]) -> Answer:
    """Ask until the answer can be read; an empty answer is the default."""
    while True:
        text = typer.prompt(question, default=default, show_default=bool(default), err=True)
        try:
            return read("" if text is None else str(text).strip())
        except InputError as error:
            typer.echo(str(error), err=True)


def confirm(question: str, force: bool) -> None:
    """Ask before something is lost; -f skips it, and silence or no is a refusal. Answers may come through a pipe."""
    if force:
        return
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if sys.stdin is None or not sys.stdin.isatty():
        typer.echo("", err=True)  # a terminal shows the line that was typed, with its end
    if answer.strip().lower() not in ("y", "yes"):
        raise InputError("Not confirmed; nothing was changed.", remedy="Answer y, or give -f.")


def pick(what: str, names: Sequence[str], given: str | None) -> str:
    """Give the name from the command line, or let somebody at a terminal choose."""
    if given is not None:
        return given
    if not names:
        raise InputError(f"There is no {what}.", remedy=f"Create one with `penstock {what.split()[-1]} add`.")
    if not asking():
        raise InputError(f"Which {what}?", remedy=f"There are: {', '.join(names)}.")
    for number, name in enumerate(names, 1):
        typer.echo(f"{number:>3}  {name}", err=True)

    def read(text: str) -> str:
        if text in names:
            return text
        if text.isdecimal() and 1 <= int(text) <= len(names):
            return names[int(text) - 1]
        raise InputError(f"{text!r} is none of them.", remedy="Give a name or a number of the list.")

    return ask(f"Which {what}", "1", read)


# -- values ----------------------------------------------------------------------------------------------------------


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
            f"{option} is {text!r}, which no calendar reaches.",
            remedy='Write less, such as "1h" or "30d".',
            option=option,
            value=text,
        ) from None


def parse_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read key=value, or key:value."""
    pairs = {}
    for text in texts:
        found = min((place for place in (text.find("="), text.find(":")) if place > 0), default=-1)
        if found < 0:
            raise InputError(f"{option} {text!r} is no pair.", remedy="Write key=value.")
        pairs[text[:found]] = text[found + 1 :]
    return pairs


def read_json(path: Path, option: str) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        content = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{option} {path} cannot be read as JSON: {error}.", remedy="Check the file.") from None
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


# -- flags as data ---------------------------------------------------------------------------------------------------


def with_flags(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, besides its own parameters, one flag for each field of a dataclass, as `flags`."""
    assert dataclasses.is_dataclass(kind)
    hints = get_type_hints(kind, include_extras=True)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own_hints = get_type_hints(function, include_extras=True)
        own = [
            item.replace(annotation=own_hints[item.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for item in inspect.signature(function).parameters.values()
            if item.name != "flags"
        ]
        extra = [
            inspect.Parameter(
                item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name]
            )
            for item in dataclasses.fields(kind)
        ]

        def command(**given: Any) -> None:
            flags = kind(**{item.name: given.pop(item.name) for item in extra})
            function(**given, flags=flags)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]  # what typer reads
        command.__annotations__ = {item.name: item.annotation for item in [*own, *extra]}
        return command

    return decorate
