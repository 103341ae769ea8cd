"""`penstock stream view|get|rmm|backup|restore`: the messages of a stream, one by one and all together."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_commands import asking, confirm, connected, pick, read_json, shifted
from penstock.cli.global_flags import Globals
from penstock.cli.markers import All, Sieve
from penstock.cli.output import Json, print_json, progress, run
from penstock.cli.stream_show import show_message, show_stream
from penstock.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.model import Message

__all__ = ["backup", "get", "restore", "rmm", "view"]

Name = Annotated[str | None, typer.Argument(metavar="STREAM", help="The stream.")]
Force = Annotated[bool, typer.Option("-f", "--force", help="Do not ask.")]
PAGE = 25


def view(
    ctx: typer.Context,
    name: Name = None,
    size: Annotated[int, typer.Argument(min=1, max=PAGE, metavar="SIZE", help="Messages of a page.")] = 10,
    start: Annotated[
        int | None, typer.Option("--id", min=1, metavar="SEQUENCE", help="Begin with this sequence.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="DURATION", help="Begin so long ago.")] = None,
    subject: Annotated[str, typer.Option("--subject", help="Only messages that match.")] = ">",
    raw: Annotated[bool, typer.Option("-r", "--raw", help="Print payloads and nothing else.")] = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show the messages of a stream, page by page; a pipe gets one page."""
    if start is not None and since is not None:
        raise InputError("--id and --since are given together.", remedy="Leave one of them out.")
    begin = None if since is None else shifted(since, "--since", -1)
    run(_view(ctx.obj, name, size, start or 1, begin, subject, Sieve(everything, subject), raw, json))


async def _view(
    given: Globals,
    name: str | None,
    size: int,
    start: int,
    begin: datetime | None,
    subject: str,
    sieve: Sieve,
    raw: bool,
    json: bool,
) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        names = [] if name else [info.name for info in await assets.streams(client)]
        stream = (await assets.stream_info(client, pick("stream", names, name))).name
        while True:
            page: list[Message] = []
            while len(page) < size:
                try:
                    message = await assets.get_message(client, stream, start, next_for=subject, since=begin)
                except NotFoundError:
                    break
                begin, start = None, (message.sequence or 0) + 1
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


def get(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    sequence: Annotated[int | None, typer.Argument(min=1, metavar="SEQUENCE", help="Its sequence.")] = None,
    last_for: Annotated[
        str | None, typer.Option("-S", "--last-for", metavar="SUBJECT", help="The last message of this subject.")
    ] = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show one message."""
    if (sequence is None) == (last_for is None):
        raise InputError("Which message?", remedy="Give a sequence, or -S and a subject.")
    run(_get(ctx.obj, name, sequence, last_for, Sieve(everything, last_for), json))


async def _get(given: Globals, name: str, sequence: int | None, last_for: str | None, sieve: Sieve, json: bool) -> None:
    async with connected(given) as client:
        message = await _message(client, name, sequence, last_for)
    if not sieve.shows(message.subject):
        raise InputError(
            f"Message {message.sequence} of stream {name} is a marker of the Spark sink, no data.",
            remedy="Name a sequence or a subject of the data, or give --all to see it.",
        )
    if json:
        print_json(message.to_json())
    else:
        show_message(message)


async def _message(client: Connection, name: str, sequence: int | None, last_for: str | None = None) -> Message:
    from penstock.jetstream import assets

    try:
        return await assets.get_message(client, name, sequence, last_for=last_for)
    except NotFoundError as error:
        if error.err_code == 10059:
            raise NotFoundError(f"There is no stream {name}.", remedy="See `penstock stream ls`.") from None
        what = f"no message {sequence}" if sequence else f"no message on {last_for}"
        raise NotFoundError(f"Stream {name} holds {what}.", remedy=f"See `penstock stream info {name}`.") from None


def rmm(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    sequence: Annotated[int, typer.Argument(min=1, metavar="SEQUENCE", help="The message to remove.")],
    force: Force = False,
) -> None:
    """Remove one message, and overwrite its bytes."""
    run(_rmm(ctx.obj, name, sequence, force))


async def _rmm(given: Globals, name: str, sequence: int, force: bool) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        message = await _message(client, name, sequence)
        confirm(f"Really remove message {sequence} on {message.subject} from Stream {name}", force)
        await assets.delete_message(client, name, sequence)
    typer.echo(f"Removed message {sequence} from Stream {name}.")


def backup(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make and write into.")],
    consumers: Annotated[bool, typer.Option("--consumers/--no-consumers", help="Back up consumers, too.")] = True,
    check: Annotated[bool, typer.Option("--check", help="Let the server check every message first.")] = False,
    json: Json = False,
) -> None:
    """Write a stream into a folder, which `restore` reads; the `nats` command reads it, too."""
    run(_backup(ctx.obj, name, target, consumers, check, json))


async def _backup(given: Globals, name: str, target: Path, consumers: bool, check: bool, json: bool) -> None:
    from penstock.jetstream import snapshot

    async with connected(given) as client:
        with progress(f"Backing up {name}", None) as advance:
            made = await snapshot.backup(client, name, target, consumers=consumers, check=check, progress=advance)
    count = made["state"]["messages"]
    if json:
        print_json({"stream": name, "folder": str(target), "messages": count, "bytes": made["size"]})
    else:
        typer.echo(f"Backed up {count:,} messages of Stream {name} into {target}, {made['size']:,} bytes.")


def restore(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a backup.")],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="JSON configuration to restore with.")
    ] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", min=1, max=5, help="Other number of replicas.")] = None,
    json: Json = False,
) -> None:
    """Make a stream anew from a backup."""
    from penstock.jetstream.snapshot import read_meta
    from penstock.model import Stream

    read_meta(folder)  # before anything is asked of a server
    wanted = None
    if config is not None:
        content = read_json(config, "--config")
        wanted = Stream.from_json(content.get("config", content))
    run(_restore(ctx.obj, folder, wanted, replicas, json))


async def _restore(given: Globals, folder: Path, config: object, replicas: int | None, json: bool) -> None:
    from penstock.jetstream import snapshot
    from penstock.model import Stream

    assert config is None or isinstance(config, Stream)
    size = (folder / snapshot.DATA).stat().st_size  # one look at a local file
    async with connected(given) as client:
        with progress("Restoring", size) as advance:
            info = await snapshot.restore(client, folder, config=config, replicas=replicas, progress=advance)
    if json:
        print_json(info.raw)
    else:
        typer.echo(f"Restored Stream {info.name} with {info.messages:,} messages\n")
        show_stream(info)
