"""How checks run and end: a connection that fails is critical, and the exit status is that of a Nagios plugin."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.flags import flag_table, table_flag
from penstock.cli.output import print_json
from penstock.cli.running import connected
from penstock.cli.values import choice
from penstock.durations import parse_duration
from penstock.errors import InputError, PenstockError
from penstock.part_file import Replacement, writing

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.system import CheckResult

__all__ = ["Rendering", "end_check", "pattern", "run_check", "span"]

_FORMATS = ("nagios", "json", "prometheus", "text")


@flag_table
class Rendering:
    """How the result of a check is written, and where to."""

    format: str = table_flag("The form of the result.", "|".join(_FORMATS), default="nagios")
    namespace: str = table_flag("What names for Prometheus begin with.", "NAME", default="nats_server_check")
    outfile: Path | None = table_flag("Write the result into this file.", "FILE")

    def check(self) -> None:
        """Refuse what cannot be written, before anything is checked."""
        choice({name: name for name in _FORMATS})(self.format, option="--format")
        if not re.fullmatch("[a-zA-Z_:][a-zA-Z0-9_:]*", self.namespace):
            raise InputError(
                f"--namespace is {self.namespace!r}, which Prometheus takes for no name.",
                remedy="Use letters, digits and underscores.",
            )
        if self.outfile is not None and (self.outfile.is_dir() or not self.outfile.absolute().parent.is_dir()):
            raise InputError(
                f"--outfile {self.outfile} cannot be written.", remedy="Name a file in a folder that is there."
            )

    def text(self, result: CheckResult) -> str:
        """Write a result."""
        import json

        if self.format == "json":
            return json.dumps(result.to_json(), indent=2)
        if self.format == "prometheus":
            return result.prometheus(self.namespace)
        return result.text() if self.format == "text" else result.nagios()


async def run_check(
    ctx: typer.Context,
    rendering: Rendering,
    result: CheckResult,
    look: Callable[[Connection, CheckResult], Awaitable[None]],
) -> None:
    """Connect and check; whatever fails is critical, bad input apart."""
    rendering.check()
    ctx.obj.options()  # bad input is no matter of the server
    try:
        async with connected(ctx) as client:
            await look(client, result)
    except PenstockError as error:
        result.critical(str(error))
    end_check(rendering, result)


def end_check(rendering: Rendering, result: CheckResult) -> None:
    """Print a result, or write its file, and end with its status; with Prometheus, which reads it itself, with 0."""
    if rendering.outfile is not None:
        _write(rendering.outfile, rendering.text(result))
    elif rendering.format == "json":
        print_json(result.to_json())
    else:
        typer.echo(rendering.text(result))
    raise typer.Exit(0 if rendering.format == "prometheus" else result.code)


def _write(path: Path, text: str) -> None:
    """Put a file into its place in one step: whoever reads it never sees half of it."""
    with writing(f"--outfile {path}"), Replacement(path) as new:
        new.file.write(f"{text}\n".encode("utf-8", "backslashreplace"))
        new.keep()


def span(text: str, option: str) -> float:
    """Read a duration as seconds."""
    return parse_duration(text, option=option)


def pattern(text: str, option: str) -> str:
    """Read a regular expression."""
    try:
        re.compile(text.encode())
    except re.error as error:
        raise InputError(
            f"{option} is {text!r}, which is not a regular expression: {error}.",
            remedy="Check brackets and backslashes.",
        ) from None
    return text
