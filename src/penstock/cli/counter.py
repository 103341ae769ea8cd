"""`penstock counter`: whole numbers of any size that streams keep, one a subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Json, argument, flag, stream_name
from penstock.cli.message_parts import check_subjects
from penstock.cli.output import print_json, print_sections
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.jetstream.counters import Counters

__all__ = ["decrement", "get", "increment", "list_", "view"]

Subject = Annotated[str, argument("The counter's subject.", "SUBJECT")]
Value = Annotated[str, argument("A whole number of any size.", "VALUE")]
InStream = Annotated[
    str | None, flag("The stream, if not the one that captures the subject.", "STREAM", callback=stream_name)
]


async def get(ctx: typer.Context, subject: Subject, stream: InStream = None, json: Json = False) -> None:
    """Print what a counter stands at."""
    check_subjects(subject, literal=True)
    async with connected(ctx) as client:
        counter = await (await _counters(client, stream, subject)).get(subject)
    print_json({"subject": counter.subject, "value": str(counter.value)}) if json else typer.echo(counter.value)


async def view(ctx: typer.Context, subject: Subject, stream: InStream = None, json: Json = False) -> None:
    """Show a counter: what it stands at, what was added last, and what it has from other streams."""
    check_subjects(subject, literal=True)
    async with connected(ctx) as client:
        counter = await (await _counters(client, stream, subject)).get(subject)
    if json:
        print_json(counter.to_json())
        return
    sources = [(name, f"{other}: {value:,}") for name, held in counter.sources.items() for other, value in held.items()]
    print_sections(
        f"Counter {counter.subject}",
        [
            ("", [("Value", counter.value), ("Increment", counter.increment), ("Subject", counter.subject)]),
            ("Sources", sources or [("None", "it counts what is published here alone")]),
        ],
    )


async def increment(ctx: typer.Context, subject: Subject, value: Value, json: Json = False) -> None:
    """Add to a counter, and print what it stands at."""
    await _add(ctx, subject, _number(value), json)


async def decrement(ctx: typer.Context, subject: Subject, value: Value, json: Json = False) -> None:
    """Take from a counter, and print what it stands at."""
    await _add(ctx, subject, -_number(value), json)


async def list_(
    ctx: typer.Context,
    subject: Annotated[str | None, argument("Only subjects that match.", "SUBJECT")] = None,
    stream: InStream = None,
    json: Json = False,
) -> None:
    """List the counters of a stream."""
    if subject is None and stream is None:
        raise InputError("Whose counters?", remedy="Give a subject, or --stream.")
    if subject is not None:
        check_subjects(subject)
    async with connected(ctx) as client:
        counters = await _counters(client, stream, subject or ">")
        found = await counters.subjects(subject or ">")
    if json:
        print_json(found)
        return
    if not found:
        raise NotFoundError(
            f"Stream {counters.stream} has no counters" + (f" on {subject}." if subject else "."),
            remedy="`penstock counter increment` makes one.",
        )
    for name in found:
        typer.echo(plain(name))


async def _counters(client: Connection, stream: str | None, subject: str) -> Counters:
    """Give the counters of the stream that is named, or that captures the subject."""
    from penstock.jetstream.counters import Counters

    name = stream or await client.jetstream().find_stream_name_by_subject(subject)
    counters = Counters(client, name)
    await counters.check()
    return counters


async def _add(ctx: typer.Context, subject: str, amount: int, json: bool) -> None:
    check_subjects(subject, literal=True)
    async with connected(ctx) as client:
        ack = await (await _counters(client, None, subject)).publish(subject, amount)
    print_json(ack.to_json()) if json else typer.echo(ack.value)


def _number(text: str) -> int:
    from penstock.jetstream.counters import whole_number

    found = whole_number(text)
    if found is None:
        raise InputError(f"VALUE is {text[:40]!r}.", remedy="Give a whole number, such as 5.")
    return found
