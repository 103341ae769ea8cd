"""`penstock stream`: streams, with the words of the `nats` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_commands import ask, asking, confirm, connected, read_json, with_flags, write_json
from penstock.cli.asset_flags import Base, Defaults, DryRun, Force, Output, Target, Validate
from penstock.cli.global_flags import Globals
from penstock.cli.output import Json, print_json, run
from penstock.cli.stream_flags import StreamFlags, ask_for_stream, stream_from
from penstock.cli.stream_look import Name, picked
from penstock.cli.stream_show import show_stream
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.model import Stream

__all__ = ["add", "edit", "purge", "rm", "seal"]

Needed = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")]


# -- creating and changing -------------------------------------------------------------------------------------------


@with_flags(StreamFlags)
def add(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="STREAM", help="Name of the new stream.")] = None,
    config: Base = None,
    validate: Validate = False,
    output: Output = None,
    defaults: Defaults = False,
    json: Json = False,
    *,
    flags: StreamFlags,
) -> None:
    """Create a stream; a terminal is asked for what no flag says."""
    from penstock.jetstream.rules import check_stream

    base: dict[str, Any] = {}
    if config is not None:
        base = _base(read_json(config, "--config"))
        name = name or base.get("name")
    if name is None:
        if not asking(defaults):
            raise InputError("The stream has no name.", remedy="Give one: penstock stream add NAME --subjects ...")
        name = ask("Stream Name", "", str)
    if config is None and asking(defaults):
        flags = ask_for_stream(flags)
    elif not (flags.subjects or flags.mirror or flags.source) and not any(
        base.get(field) for field in ("subjects", "mirror", "sources")
    ):
        raise InputError(f"Stream {name} captures nothing.", remedy="Give --subjects, --mirror or --source.")
    stream = stream_from(name, flags, base)
    check_stream(stream)
    if output is not None:
        write_json(output, stream.to_json())
    elif validate:
        print_json(stream.to_json()) if json else typer.echo(f"Stream {name} is valid.")
    else:
        run(_add(ctx.obj, stream, json))


def _base(content: dict[str, Any]) -> dict[str, Any]:
    from penstock.model import Stream

    stream = Stream.from_json(content.get("config", content))
    return {field: getattr(stream, field) for field in Stream.model_fields}


async def _add(given: Globals, stream: Stream, json: bool) -> None:
    from penstock.jetstream import assets
    from penstock.jetstream.rules import check_streams_together

    async with connected(given) as client:
        others = [info.config for info in await assets.streams(client)]
        if any(other.name == stream.name for other in others):
            raise InputError(
                f"There is a stream {stream.name} already.",
                remedy=f"Change it with `penstock stream edit {stream.name}`.",
            )
        for other in others:
            check_streams_together([stream, other])
        info = await assets.add_stream(client, stream)
    if json:
        print_json(info.raw)
    else:
        typer.echo(f"Stream {stream.name} was created\n")
        show_stream(info)


@with_flags(StreamFlags)
def edit(
    ctx: typer.Context,
    name: Needed,
    config: Target = None,
    dry_run: DryRun = False,
    force: Force = False,
    json: Json = False,
    *,
    flags: StreamFlags,
) -> None:
    """Change a stream; shows what would change, and asks."""
    base = _base(read_json(config, "--config")) if config is not None else None
    run(_edit(ctx.obj, name, flags, base, dry_run, force, json))


async def _edit(
    given: Globals, name: str, flags: StreamFlags, base: dict[str, Any] | None, dry: bool, force: bool, json: bool
) -> None:
    from penstock.jetstream import assets
    from penstock.jetstream.changes import Plan, stream_step
    from penstock.jetstream.rules import check_stream, check_streams_together

    async with connected(given) as client:
        there = await assets.stream_info(client, name)
        kept = {field: getattr(there.config, field) for field in type(there.config).model_fields}
        wanted = stream_from(name, flags, base or kept)
        check_stream(wanted)
        for other in await assets.streams(client):
            if other.name != name:
                check_streams_together([wanted, other.config])
        step = stream_step(wanted, there)
        plan = Plan((step,))
        plan.check(may_lose_data=True)
        if json and dry:
            print_json(plan.to_json())
            return
        if step.action == "none":
            info = there
            typer.echo(f"Stream {name} is like that already.", err=True)
        else:
            for change in step.changes:
                typer.echo(f"  {change}", err=json)
            if dry:
                return
            confirm(f"Really edit Stream {name}?", force)
            assert step.target is not None
            info = await assets.edit_stream(client, step.target)  # type: ignore[arg-type]  # a stream's step
    if json:
        print_json(info.raw)
    elif step.action != "none":
        typer.echo(f"Stream {name} was updated\n")
        show_stream(info)


def seal(ctx: typer.Context, name: Needed, force: Force = False) -> None:
    """Never let a stream change again."""
    run(_seal(ctx.obj, name, force))


async def _seal(given: Globals, name: str, force: bool) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        there = await assets.stream_info(client, name)
        if there.config.sealed:
            typer.echo(f"Stream {name} is sealed already.")
            return
        confirm(f"Really seal Stream {name}? It can never be unsealed or changed", force)
        await assets.edit_stream(client, there.config.model_copy(update={"sealed": True}))
    typer.echo(f"Stream {name} is sealed.")


def rm(ctx: typer.Context, name: Name = None, force: Force = False) -> None:
    """Delete a stream, with everything in it."""
    run(_rm(ctx.obj, name, force))


async def _rm(given: Globals, name: str | None, force: bool) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        info = await assets.stream_info(client, await picked(client, name))
        confirm(f"Really delete Stream {info.name} with {info.messages:,} messages", force)
        await assets.delete_stream(client, info.name)
    typer.echo(f"Stream {info.name} was deleted.")


def purge(
    ctx: typer.Context,
    name: Name = None,
    subject: Annotated[str | None, typer.Option("--subject", help="Only messages of this subject.")] = None,
    seq: Annotated[int | None, typer.Option("--seq", min=1, help="Only messages below this sequence.")] = None,
    keep: Annotated[int | None, typer.Option("--keep", min=0, help="Keep so many of the last.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Remove messages from a stream."""
    run(_purge(ctx.obj, name, subject, seq, keep, force, json))


async def _purge(
    given: Globals,
    name: str | None,
    subject: str | None,
    seq: int | None,
    keep: int | None,
    force: bool,
    json: bool,
) -> None:
    from penstock.jetstream import assets

    if seq is not None and keep is not None:
        raise InputError("--seq and --keep are given together.", remedy="Leave one of them out.")
    async with connected(given) as client:
        info = await assets.stream_info(client, await picked(client, name))
        part = f" of {subject}" if subject else "" if seq is None and keep is None else " (some of them)"
        confirm(f"Really purge messages{part} from Stream {info.name}, which holds {info.messages:,}", force)
        count = await assets.purge_stream(client, info.name, subject=subject, sequence=seq, keep=keep)
        info = await assets.stream_info(client, info.name)
    if json:
        print_json({"stream": info.name, "purged": count})
    else:
        typer.echo(f"Purged {count:,} messages\n")
        show_stream(info, state_only=True)
