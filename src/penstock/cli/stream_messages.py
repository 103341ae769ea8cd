"""`penstock stream view|get|rmm|gaps`: the messages of a stream, one by one, and those that are missing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_show import Sieve, bucket_note, show_message
from penstock.cli.flags import All, AnyStream, Force, Json, Raw, argument, flag
from penstock.cli.late import assets
from penstock.cli.message_parts import check_subjects
from penstock.cli.output import print_json, progress
from penstock.cli.questions import ask, asking, confirm, interruptible, picked_stream
from penstock.cli.running import connected
from penstock.cli.tables import print_table
from penstock.cli.values import refuse_both, shifted
from penstock.errors import InputError, NotFoundError
from penstock.sizes import format_size
from penstock.wire.jetstream.names import STREAM_NOT_FOUND

if TYPE_CHECKING:
    from penstock.cli.arrivals import Translation
    from penstock.connection import Connection
    from penstock.model import Message

__all__ = ["gaps", "get", "rmm", "view"]

PAGE = 25
Translate = Annotated[str | None, flag("Give each payload to a program, and show what it prints.", "COMMAND")]


async def view(
    ctx: typer.Context,
    name: AnyStream = None,
    size: Annotated[int, argument("Messages of a page, up to 25.", "SIZE", min=1)] = 10,
    start: Annotated[int | None, flag("Begin with this sequence.", "SEQUENCE", "--id", min=1)] = None,
    since: Annotated[str | None, flag("Begin this long ago.", "DURATION")] = None,
    subject: Annotated[str, flag("Only messages that match.")] = ">",
    raw: Raw = False,
    translate: Translate = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show the messages of a stream, page by page; a pipe gets one page."""
    refuse_both("--id", start is not None, "--since", since is not None)
    check_subjects(subject)
    translation = _translation(ctx, translate, json)
    begin = None if since is None else shifted(since, "--since", -1)
    sieve, following = Sieve(everything, subject), start or 1
    if size > PAGE:
        typer.echo(f"A page holds {PAGE} messages.", err=True)
    async with connected(ctx) as client:
        stream = (await assets.stream_info(client, await picked_stream(client, name, everything=everything))).name
        while True:
            page: list[dict[str, Any]] = []
            while len(page) < min(size, PAGE):
                try:
                    found = await assets.get_stored(client, stream, following, next_for=subject, since=begin)
                except NotFoundError:
                    break
                begin, following = None, found["seq"] + 1
                if sieve.shows(found["subject"]):
                    page.append(found)
            if json:
                print_json(page)
            else:
                for found in page:
                    await _show(_read(stream, found), translation, raw=raw)
            if len(page) < min(size, PAGE):
                if not json and not raw:
                    typer.echo("Reached the end of what the stream holds.", err=True)
                break
            if not asking():
                break
            with interruptible():
                if not typer.confirm("Next Page?", default=True, err=True):
                    break
    sieve.tell()
    translation.check()


def _translation(ctx: typer.Context, translate: str | None, json: bool) -> Translation:
    from penstock.cli.arrivals import Translation
    from penstock.cli.programs import Program

    refuse_both("--translate", translate is not None, "--json", json)
    seconds: float = ctx.obj.seconds
    return Translation(None if translate is None else Program(translate, "--translate", seconds=seconds))


async def _show(message: Message, translation: Translation, *, raw: bool = False) -> None:
    """Print a message, with its payload as a program translates it; what fails is told by the translation."""
    if translation.program is None:
        show_message(message, raw=raw)
        return
    from penstock.cli.arrivals import Arrival, Stored

    number, time = message.sequence or 0, message.time or datetime.now(UTC)
    arrival = Arrival(message.subject, message.data, stored=Stored(message.stream or "", number, time))
    data = await translation.of(number, arrival)
    if data is not None:
        show_message(message, raw=raw, data=data)


def _read(stream: str, found: dict[str, Any]) -> Message:
    from penstock.connection.stored import stored_message

    return stored_message(stream, {"message": found})


async def get(
    ctx: typer.Context,
    name: AnyStream = None,
    sequence: Annotated[int | None, argument("Its sequence.", "SEQUENCE", min=1)] = None,
    last_for: Annotated[str | None, flag("The last message of this subject.", "SUBJECT", "-S", "--last-for")] = None,
    translate: Translate = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show one message."""
    if last_for is not None:
        check_subjects(last_for)
    translation = _translation(ctx, translate, json)
    remedy = "Give a sequence, or -S and a subject."
    if sequence is not None and last_for is not None:
        raise InputError("Which message?", remedy=remedy)
    if last_for is None:
        _check_named(sequence, remedy)
    async with connected(ctx) as client:
        stream = await picked_stream(client, name, everything=everything)
        if last_for is None:
            sequence = sequence or ask("Message Sequence", "", _sequence)
        found = await _stored(client, stream, sequence, last_for)
    if not Sieve(everything, last_for).shows(found["subject"]):
        raise InputError(
            f"Message {found['seq']} of stream {stream} is a marker of the Spark sink, no data.",
            remedy="Name a sequence or a subject of the data, or give --all to see it.",
        )
    if json:
        print_json(found)
    else:
        await _show(_read(stream, found), translation)
    translation.check()


def _check_named(sequence: int | None, remedy: str) -> None:
    """Refuse a message that is not named, if nobody can be asked."""
    if sequence is None and not asking():
        raise InputError("Which message?", remedy=remedy)


def _sequence(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{text!r} is not a sequence.", remedy="Give a number from 1 on.")
    return int(text)


async def _stored(client: Connection, name: str, sequence: int | None, last_for: str | None = None) -> dict[str, Any]:
    try:
        return await assets.get_stored(client, name, sequence, last_for=last_for)
    except NotFoundError as error:
        if error.err_code == STREAM_NOT_FOUND:
            raise NotFoundError(f"There is no stream {name}.", remedy="See `penstock stream ls`.") from None
        what = f"no message {sequence}" if sequence else f"no message on {last_for}"
        raise NotFoundError(f"Stream {name} holds {what}.", remedy=f"See `penstock stream info {name}`.") from None


async def rmm(
    ctx: typer.Context,
    name: AnyStream = None,
    sequence: Annotated[int | None, argument("The message to remove.", "SEQUENCE", min=1)] = None,
    force: Force = False,
) -> None:
    """Remove one message, and overwrite its bytes."""
    _check_named(sequence, "Give its SEQUENCE.")
    async with connected(ctx) as client:
        stream = await picked_stream(client, name)
        sequence = sequence or ask("Message Sequence", "", _sequence)
        found = await _stored(client, stream, sequence)
        question = f"Really remove message {sequence} on {found['subject']} from Stream {stream}{bucket_note(stream)}"
        confirm(question, force)
        await assets.delete_message(client, stream, sequence)
    typer.echo(f"Removed message {sequence} from Stream {stream}.")


async def gaps(
    ctx: typer.Context,
    name: AnyStream = None,
    force: Force = False,
    show_progress: Annotated[bool, flag("Show progress on a terminal.", "--progress/--no-progress")] = True,
    json: Json = False,
) -> None:
    """Find the sequences that are missing between the first and the last message of a stream."""
    from penstock.jetstream.gaps import MOST_LISTED, find_gaps

    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        if info.deleted > MOST_LISTED:
            held = f"{info.messages:,} messages and {format_size(info.bytes)}"
            confirm(f"Really go through Stream {info.name} with {held}, which is work for the server", force)
        with progress(f"Reading {info.name}", info.messages, on=show_progress and not json) as advance:
            found = await find_gaps(client, info.name, progress=advance)
    if json:
        print_json([list(gap) for gap in found])
    elif not found:
        typer.echo(f"No messages are missing in Stream {info.name}.")
    else:
        title = f"{len(found):,} gap{'s' if len(found) > 1 else ''} in Stream {info.name}"
        rows = [(f"{first:,}", f"{last:,}") for first, last in found]
        print_table(title, ("#First Message", "#Last Message"), rows)
