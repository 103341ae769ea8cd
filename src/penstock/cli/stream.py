"""`penstock stream add|edit|seal|rm|purge`: streams, with the words of the `nats` command."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import typer

from penstock.cli.asset_commands import Adding, Editing, fields_of, read_config
from penstock.cli.asset_show import show_stream
from penstock.cli.flags import AnyStream, Force, Json, StreamName, argument, flag
from penstock.cli.late import assets, changes, model, rules
from penstock.cli.output import print_json
from penstock.cli.questions import ask, asking, confirm, picked_stream
from penstock.cli.running import connected
from penstock.cli.stream_flags import StreamFlags, ask_for_stream, stream_from
from penstock.cli.values import refuse_both
from penstock.errors import InputError

__all__ = ["add", "edit", "purge", "rm", "seal"]


async def add(
    ctx: typer.Context,
    name: Annotated[str | None, argument("Name of the new stream.", "STREAM")] = None,
    *,
    adding: Adding,
    flags: StreamFlags,
) -> None:
    """Create a stream; a terminal is asked for what no flag says."""
    base: dict[str, Any] = {} if adding.config is None else fields_of(read_config(model.Stream, adding.config))
    name = name or base.get("name")
    if name is None:
        if not asking(adding.defaults):
            raise InputError("The stream has no name.", remedy="Give one: penstock stream add NAME --subjects ...")
        name = ask("Stream Name", "", str)
    if adding.config is None and asking(adding.defaults):
        flags = ask_for_stream(flags)
    elif not any((flags.subjects, flags.mirror, flags.source, *map(base.get, ("subjects", "mirror", "sources")))):
        raise InputError(f"Stream {name} captures nothing.", remedy="Give --subjects, --mirror or --source.")
    stream = stream_from(name, flags, base)
    rules.check_stream(stream)
    if adding.only_shows(stream, f"Stream {name}"):
        return
    async with connected(ctx) as client:
        others = [info.config for info in await assets.streams(client)]
        if any(other.name == name for other in others):
            raise InputError(
                f"There is a stream {name} already.", remedy=f"Change it with `penstock stream edit {name}`."
            )
        for other in others:
            rules.check_streams_together([stream, other])
        info = await assets.add_stream(client, stream)
    if adding.json:
        print_json(info.raw)
    else:
        typer.echo(f"Stream {name} was created\n")
        show_stream(info)


async def edit(ctx: typer.Context, name: StreamName, editing: Editing, flags: StreamFlags) -> None:
    """Change a stream; shows what would change, and asks."""
    base = None if editing.config is None else read_config(model.Stream, editing.config)
    async with connected(ctx) as client:
        there = await assets.stream_info(client, name)
        wanted = stream_from(name, flags, fields_of(base or there.config))
        rules.check_stream(wanted)
        for other in await assets.streams(client):
            if other.name != name:
                rules.check_streams_together([wanted, other.config])
        change = functools.partial(assets.edit_stream, client)
        info = await editing.carry_out(changes.stream_step(wanted, there), there, change, f"Really edit Stream {name}?")
    if info is not None:
        typer.echo(f"Stream {name} was updated\n")
        show_stream(info)


async def seal(ctx: typer.Context, name: StreamName, force: Force = False) -> None:
    """Never let a stream change again."""
    async with connected(ctx) as client:
        there = await assets.stream_info(client, name)
        if there.config.sealed:
            typer.echo(f"Stream {name} is sealed already.")
            return
        confirm(f"Really seal Stream {name}? It can never be unsealed or changed", force)
        await assets.edit_stream(client, there.config.model_copy(update={"sealed": True}))
    typer.echo(f"Stream {name} is sealed.")


async def rm(ctx: typer.Context, name: AnyStream = None, force: Force = False) -> None:
    """Delete a stream, with everything in it."""
    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        confirm(f"Really delete Stream {info.name} with {info.messages:,} messages", force)
        await assets.delete_stream(client, info.name)
    typer.echo(f"Stream {info.name} was deleted.")


async def purge(
    ctx: typer.Context,
    name: AnyStream = None,
    subject: Annotated[str | None, flag("Only messages of this subject.")] = None,
    seq: Annotated[int | None, flag("Only messages below this sequence.", min=1)] = None,
    keep: Annotated[int | None, flag("Keep so many of the last.", min=0)] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Remove messages from a stream."""
    refuse_both("--seq", seq is not None, "--keep", keep is not None)
    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        part = f" of {subject}" if subject else "" if seq is None and keep is None else " (some of them)"
        confirm(f"Really purge messages{part} from Stream {info.name}, which holds {info.messages:,}", force)
        count = await assets.purge_stream(client, info.name, subject=subject, sequence=seq, keep=keep)
        info = await assets.stream_info(client, info.name)
    if json:
        print_json({"stream": info.name, "purged": count})
    else:
        typer.echo(f"Purged {count:,} messages\n")
        show_stream(info, state_only=True)
