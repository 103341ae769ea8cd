"""Commands as typer parses and explains them, without the parts of it that cost a tenth of a second each time.

Typer reads every value through a validator of pydantic, also those that are what they should be, and draws help with a
library that knows Markdown and colours programs. Here, values that need no reading are taken as they are, and help is
plain text; on a terminal, headings stand out.
"""

from __future__ import annotations

import os
import re
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from penstock.errors import InputError

__all__ = ["Quick", "Verb", "misuse"]

WIDTH = 100  # characters of a line of help, if a terminal is wider
_HEADING = re.compile(r"^(Usage:|[A-Z][a-z ]+:$)", re.MULTILINE)


def _as_it_is(parameter: Any, value: Any) -> bool:
    """Tell whether a value is what the function takes: no value, text for a text, or a default that is not text."""
    described = getattr(parameter, "type_descriptor", None)
    if described is None or (parameter.required and value in (None, (), [])):
        return False
    if isinstance(value, str):
        return bool(described.annotation is str)
    if isinstance(value, tuple | list):
        return bool(described.annotation == list[str])
    return True


def _check_text(parameter: Any, value: Any) -> None:
    """Refuse bytes that are not UTF-8, wherever text is meant; a body may be anything."""
    for text in value if isinstance(value, tuple | list) else (value,):
        if isinstance(text, str) and parameter.name != "body" and not text.isascii() and not _is_text(text):
            name = parameter.opts[-1] if parameter.opts[-1].startswith("-") else str(parameter.name).upper()
            raise InputError(f"{name} is {os.fsencode(text)!r}, which is not UTF-8.", remedy="Write it as UTF-8.")


def _is_text(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


class _Option(TyperOption):
    def process_value(self, ctx: Any, value: Any) -> Any:
        _check_text(self, value)
        return _taken(self, ctx, value) if _as_it_is(self, value) else super().process_value(ctx, value)


class _Argument(TyperArgument):
    def process_value(self, ctx: Any, value: Any) -> Any:
        _check_text(self, value)
        return _taken(self, ctx, value) if _as_it_is(self, value) else super().process_value(ctx, value)


def _taken(parameter: Any, ctx: Any, value: Any) -> Any:
    if value is None and (parameter.nargs == -1 or getattr(parameter, "multiple", False)):
        value = ()
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


class Quick:
    """What groups and commands share."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Give the parameters, made quick: typer offers no way to say what class they are to be of."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # beside a class of typer
        for parameter in found:
            if type(parameter) is TyperOption:
                parameter.__class__ = _Option
            elif type(parameter) is TyperArgument:
                parameter.__class__ = _Argument
        return found

    def get_help(self, ctx: Any) -> str:
        """Give the help; its headings are bold, which typer leaves out if nobody has a terminal."""
        ctx.max_content_width = WIDTH
        text: str = super().get_help(ctx)  # type: ignore[misc]  # beside a class of typer
        if os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR"):
            return text
        return _HEADING.sub(lambda found: typer.style(found.group(), bold=True), text)


class Verb(Quick, TyperCommand):
    """A command that does something."""


def misuse(error: Any) -> str:
    """Say in a sentence or two what does not fit a command, and where its help is."""
    said = error.format_message().strip().replace("Invalid value for ", "").replace("Possible options:", "Did you mean")
    said = re.sub(r": Input should be (.+?)(, unable .*)?$", r" should be \1", said)
    said = re.sub(r"(\(Did you mean .*)\)$", r"\1?)", said)
    said += "" if said.endswith((".", "?")) else "."
    return said if error.ctx is None else f"{said} `{error.ctx.command_path} -h` says what it takes."
