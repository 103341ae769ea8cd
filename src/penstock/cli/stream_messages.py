"""`penstock stream view|get|rmm|backup|restore`: the messages of a stream, one by one and all together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_commands import read_config
from penstock.cli.asset_show import Sieve, show_message, show_stream
from penstock.cli.flags import All, AnyStream, Force, Json, Raw, StreamName, argument, flag
from penstock.cli.late import assets, model, snapshot
from penstock.cli.output import print_json, progress
from penstock.cli.questions import asking, confirm, picked_stream
from penstock.cli.running import connected
from penstock.cli.values import refuse_both, shifted
from penstock.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.model import Message

__all__ = ["backup", "get", "restore", "rmm", "view"]

PAGE = 25


async def view(
    ctx: typer.Context,
    name: AnyStream = None,
    size: Annotated[int, argument("Messages of a page.", "SIZE", min=1, max=PAGE)] = 10,
    start: Annotated[int | None, flag("Begin with this sequence.", "SEQUENCE", "--id", min=1)] = None,
    since: Annotated[str | None, flag("Begin so long ago.", "DURATION")] = None,
    subject: Annotated[str, flag("Only messages that match.")] = ">",
    raw: Raw = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show the messages of a stream, page by page; a pipe gets one page."""
    refuse_both("--id", start is not None, "--since", since is not None)
    begin = None if since is None else shifted(since, "--since", -1)
    sieve, following = Sieve(everything, subject), start or 1
    async with connected(ctx) as client:
        stream = (await assets.stream_info(client, await picked_stream(client, name))).name
        while True:
            page: list[Message] = []
            while len(page) < size:
                try:
                    message = await assets.get_message(client, stream, following, next_for=subject, since=begin)
                except NotFoundError:
                    break
                begin, following = None, (message.sequence or 0) + 1
                if sieve.shows(message.subject):
                    page.append(message)
            if json:
                print_json([message.to_json() for message in page])
            else:
                for message in page:
                    show_message(message, raw=raw)
            if len(page) < size:
                if not json and not raw:
                    typer.echo("Reached the end of what the stream holds.", err=True)
                break
            if not asking() or not typer.confirm("Next Page?", default=True, err=True):
                break
    sieve.tell()


async def get(
    ctx: typer.Context,
    name: StreamName,
    sequence: Annotated[int | None, argument("Its sequence.", "SEQUENCE", min=1)] = None,
    last_for: Annotated[str | None, flag("The last message of this subject.", "SUBJECT", "-S", "--last-for")] = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show one message."""
    if (sequence is None) == (last_for is None):
        raise InputError("Which message?", remedy="Give a sequence, or -S and a subject.")
    async with connected(ctx) as client:
        message = await _message(client, name, sequence, last_for)
    if not Sieve(everything, last_for).shows(message.subject):
        raise InputError(
            f"Message {message.sequence} of stream {name} is a marker of the Spark sink, no data.",
            remedy="Name a sequence or a subject of the data, or give --all to see it.",
        )
    print_json(message.to_json()) if json else show_message(message)


async def _message(client: Connection, name: str, sequence: int | None, last_for: str | None = None) -> Message:

    try:
        return await assets.get_message(client, name, sequence, last_for=last_for)
    except NotFoundError as error:
        if error.err_code == 10059:
            raise NotFoundError(f"There is no stream {name}.", remedy="See `penstock stream ls`.") from None
        what = f"no message {sequence}" if sequence else f"no message on {last_for}"
        raise NotFoundError(f"Stream {name} holds {what}.", remedy=f"See `penstock stream info {name}`.") from None


async def rmm(
    ctx: typer.Context,
    name: StreamName,
    sequence: Annotated[int, argument("The message to remove.", "SEQUENCE", min=1)],
    force: Force = False,
) -> None:
    """Remove one message, and overwrite its bytes."""
    async with connected(ctx) as client:
        message = await _message(client, name, sequence)
        confirm(f"Really remove message {sequence} on {message.subject} from Stream {name}", force)
        await assets.delete_message(client, name, sequence)
    typer.echo(f"Removed message {sequence} from Stream {name}.")


async def backup(
    ctx: typer.Context,
    name: StreamName,
    target: Annotated[Path, argument("Folder to make and write into.", "DIR")],
    consumers: Annotated[bool, flag("Back up consumers, too.")] = True,
    check: Annotated[bool, flag("Let the server check every message first.")] = False,
    json: Json = False,
) -> None:
    """Write a stream into a folder, which `restore` reads; the `nats` command reads it, too."""
    async with connected(ctx) as client:
        with progress(f"Backing up {name}", None) as advance:
            made = await snapshot.backup(client, name, target, consumers=consumers, check=check, progress=advance)
    count = made["state"]["messages"]
    if json:
        print_json({"stream": name, "folder": str(target), "messages": count, "bytes": made["size"]})
    else:
        typer.echo(f"Backed up {count:,} messages of Stream {name} into {target}, {made['size']:,} bytes.")


async def restore(
    ctx: typer.Context,
    folder: Annotated[Path, argument("Folder of a backup.", "DIR")],
    config: Annotated[Path | None, flag("JSON configuration to restore with.", "FILE")] = None,
    replicas: Annotated[int | None, flag("Other number of replicas.", min=1, max=5)] = None,
    json: Json = False,
) -> None:
    """Make a stream anew from a backup."""
    snapshot.read_meta(folder)  # before anything is asked of a server
    wanted = None if config is None else read_config(model.Stream, config)
    size = (folder / snapshot.DATA).stat().st_size  # one look at a local file
    async with connected(ctx) as client:
        with progress("Restoring", size) as advance:
            info = await snapshot.restore(client, folder, config=wanted, replicas=replicas, progress=advance)
    if json:
        print_json(info.raw)
    else:
        typer.echo(f"Restored Stream {info.name} with {info.messages:,} messages\n")
        show_stream(info)
