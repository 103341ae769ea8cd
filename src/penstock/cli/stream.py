"""`penstock stream add|copy|edit|seal|rm|purge`: streams, with the words of the `nats` command."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_commands import Adding, Editing, read_config
from penstock.cli.asset_show import bucket_note, info_json, show_stream
from penstock.cli.flags import AnyStream, Force, Json, StreamName, argument, flag
from penstock.cli.late import assets, changes, model, rules
from penstock.cli.message_parts import check_subjects
from penstock.cli.output import print_json
from penstock.cli.questions import ask, asking, confirm, picked_stream
from penstock.cli.running import connected
from penstock.cli.stream_flags import Removing, StreamFlags, ask_for_stream, stream_from
from penstock.cli.values import refuse_both
from penstock.errors import InputError, JetStreamError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import StreamInfo
    from penstock.model import Stream

__all__ = ["add", "copy", "edit", "purge", "rm", "seal"]

_NAME_TAKEN = 10058  # the server's code for a stream that is there, and another one


async def add(
    ctx: typer.Context,
    name: Annotated[str | None, argument("Name of the new stream.", "STREAM")] = None,
    *,
    adding: Adding,
    flags: StreamFlags,
) -> None:
    """Create a stream; a terminal is asked for what no flag says."""
    base = None if adding.config is None else read_config(model.Stream, adding.config, name)
    name = name or (None if base is None else base.name)
    if name is None:
        if not asking(adding.defaults):
            raise InputError("The stream has no name.", remedy="Give one: penstock stream add NAME --subjects ...")
        name = ask("Stream Name", "", str)
    if base is None and asking(adding.defaults):
        flags = ask_for_stream(flags)
    stream = stream_from(name, flags, base)
    if not (stream.subjects or stream.mirror or stream.sources):
        raise InputError(f"Stream {name} captures nothing.", remedy="Give --subjects, --mirror or --source.")
    stream = stream.model_copy(update={"metadata": changes.own_metadata(stream.metadata)})
    rules.check_stream(stream)
    if adding.only_shows(stream, f"Stream {name}"):
        return
    async with connected(ctx) as client:
        info = await _create(client, stream)
    _tell("created", info, adding.json)


async def _create(client: Connection, stream: Stream) -> StreamInfo:
    try:
        return await assets.add_stream(client, stream)
    except JetStreamError as error:
        if error.err_code != _NAME_TAKEN:
            raise
        what = f"There is a stream {stream.name} already, with another configuration."
        raise InputError(what, remedy=f"Change it with `penstock stream edit {stream.name}`.") from None


def _tell(what: str, info: StreamInfo, json: bool) -> None:
    if json:
        print_json(info_json(info))
        return
    typer.echo(f"Stream {info.name} was {what}\n")
    show_stream(info)


async def copy(
    ctx: typer.Context,
    old: Annotated[str, argument("The stream whose configuration is taken.", "SOURCE")],
    new: Annotated[str, argument("Name of the new stream.", "DESTINATION")],
    flags: StreamFlags,
    json: Json = False,
) -> None:
    """Create a stream with the configuration of another one; its messages are not copied."""
    if old == new:
        raise InputError("A stream cannot be copied to itself.", remedy="Give the new one another name.")
    async with connected(ctx) as client:
        there = (await assets.stream_info(client, old)).config
        base = there.model_copy(update={"metadata": changes.own_metadata(there.metadata), "sealed": False})
        stream = stream_from(new, flags, base)
        rules.check_stream(stream)
        info = await _create(client, stream)
    _tell("created", info, json)


async def edit(
    ctx: typer.Context, name: AnyStream = None, *, editing: Editing, flags: StreamFlags, removing: Removing
) -> None:
    """Change a stream; shows what would change, and asks."""
    if editing.config is not None:
        read_config(model.Stream, editing.config, name)  # a file that says nonsense needs no server
    async with connected(ctx) as client:
        there = await assets.stream_info(client, await picked_stream(client, name))
        wanted = stream_from(there.name, flags, await editing.base(there.config), **removing.fields())
        rules.check_stream(wanted)
        change = functools.partial(assets.edit_stream, client)
        question = f"Really edit Stream {there.name}{bucket_note(there.name)}?"
        info = await editing.carry_out(changes.stream_step(wanted, there), there, change, question)
    if info is not None:
        _tell("updated", info, json=False)


async def seal(ctx: typer.Context, name: StreamName, force: Force = False) -> None:
    """Never let a stream change again."""
    async with connected(ctx) as client:
        there = await assets.stream_info(client, name)
        if there.config.sealed:
            typer.echo(f"Stream {name} is sealed already.")
            return
        confirm(f"Really seal Stream {name}{bucket_note(name)}? It can never be unsealed or changed", force)
        await assets.edit_stream(client, there.config.model_copy(update={"sealed": True}))
    typer.echo(f"Stream {name} is sealed.")


async def rm(ctx: typer.Context, name: AnyStream = None, force: Force = False) -> None:
    """Delete a stream, with everything in it."""
    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        held = f"{info.messages:,} messages{bucket_note(info.name)}"
        confirm(f"Really delete Stream {info.name} with {held}", force)
        await assets.delete_stream(client, info.name)
    typer.echo(f"Stream {info.name} was deleted.")


async def purge(
    ctx: typer.Context,
    name: AnyStream = None,
    subject: Annotated[str | None, flag("Only messages of this subject.")] = None,
    seq: Annotated[int | None, flag("Only messages below this sequence.", min=1)] = None,
    keep: Annotated[int | None, flag("Keep this many of the last messages.", min=0)] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Remove messages from a stream."""
    refuse_both("--seq", seq is not None, "--keep", keep is not None)
    if subject is not None:
        check_subjects(subject)
    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        part = f" of {subject}" if subject else "" if seq is None and keep is None else " (some of them)"
        held = f"{info.messages:,}{bucket_note(info.name)}"
        confirm(f"Really purge messages{part} from Stream {info.name}, which holds {held}", force)
        count = await assets.purge_stream(client, info.name, subject=subject, sequence=seq, keep=keep)
        info = await assets.stream_info(client, info.name)
    typer.echo(f"Purged {count:,} messages" + ("" if json else "\n"), err=json)
    print_json(info_json(info)) if json else show_stream(info, state_only=True)
