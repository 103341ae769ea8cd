"""What commands that ask servers about themselves share: which servers, how often, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import argument, flag_table, table_flag
from penstock.cli.output import print_json
from penstock.cli.running import connected, staying
from penstock.cli.tables import plain, print_table, terminal
from penstock.cli.values import words

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.system import Gathered, ServerFilter

__all__ = [
    "Limit",
    "Reporting",
    "ServerReport",
    "counted",
    "print_report",
    "server_filter",
    "show",
    "tell_missing",
    "unanswered",
]

Limit = Annotated[int, argument("End after this many servers; all that are known otherwise.", min=0)]


@flag_table
class Reporting:
    """Which servers a report is about, and how it is shown."""

    host: str = table_flag("Only the server of this name.", "NAME", default="")
    cluster: str = table_flag("Only servers of this cluster.", "NAME", default="")
    tags: list[str] | None = table_flag("Only servers with this tag; may be repeated.", "TAG")
    watch: int = table_flag("Show it again after this many seconds, until Ctrl-C.", "SECONDS", default=0, min=0)
    reverse: bool = table_flag("Turn the order.", "-R", "--reverse", default=False)

    def where(self, client: Connection) -> ServerFilter:
        """Give the servers that are meant."""
        return server_filter(client, name=self.host, cluster=self.cluster, tags=self.tags)


def server_filter(
    client: Connection, *, name: str = "", host: str = "", cluster: str = "", tags: Sequence[str] | None = None
) -> ServerFilter:
    """Give the servers that flags mean; a JetStream domain narrows them, too."""
    from penstock.system import ServerFilter

    return ServerFilter(
        name=name, host=host, cluster=cluster, tags=tuple(words(tags or ())), domain=client.options.domain or ""
    )


@dataclass(frozen=True)
class ServerReport:
    """What is to be shown: a value for programs, tables for people."""

    value: object
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[Any]]]] = ()
    """For each table its title, its columns and its rows."""
    notes: Sequence[str] = field(default=())
    """Sentences for people, behind the tables."""
    missing: Sequence[str] = ()
    """Servers that did not answer."""


async def show(
    ctx: typer.Context, watch: int, json: bool, report: Callable[[Connection], Awaitable[ServerReport]]
) -> None:
    """Make a report and show it: once, or again and again until Ctrl-C."""
    if not watch:
        async with connected(ctx) as client:
            print_report(await report(client), json)
        return
    async with staying(ctx) as here:
        while not here.stop.is_set():
            made = await report(here.client)
            if sys.stdout.isatty() and not json:
                terminal().clear()
            print_report(made, json, line=True)
            sys.stdout.flush()
            await here.until(asyncio.sleep(watch))


def print_report(report: ServerReport, json: bool, *, line: bool = False) -> None:
    """Print a report: the value as JSON, or its tables and notes."""
    if json:
        print_json(report.value, line=line)
    else:
        for place, (title, columns, rows) in enumerate(report.tables):
            if place:
                typer.echo("")
            print_table(title, *_filled(columns, rows)) if rows else typer.echo(plain(title))
        for note in report.notes:
            typer.echo(f"\n{plain(note)}" if report.tables else plain(note))
    tell_missing(report.missing)


def _filled(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Leave out columns in which nothing stands: a lone server has no cluster, and most have no domain."""
    kept = [place for place in range(len(columns)) if any(row[place] != "" for row in rows)]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


def counted(number: int, noun: str) -> str:
    """Give a number and a noun, in the plural if it is not one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def unanswered(got: Gathered) -> list[str]:
    """Give the servers that did not answer: by name, or how many if nobody told a name."""
    return [*got.missing, *([counted(got.absent, "server")] if got.absent else [])]


def tell_missing(names: Sequence[str]) -> None:
    """Say on standard error which servers did not answer."""
    if names:
        typer.echo(f"penstock: {plain(', '.join(names))} did not answer in time.", err=True)
