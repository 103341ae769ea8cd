"""`penstock consumer`: consumers, with the words of the `nats` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_commands import (
    ask,
    asking,
    confirm,
    connected,
    parse_until,
    pick,
    read_json,
    with_flags,
    write_json,
)
from penstock.cli.asset_flags import Base, Defaults, DryRun, Force, Output, Target, Validate
from penstock.cli.consumer_flags import ConsumerFlags, ask_for_consumer, consumer_from
from penstock.cli.consumer_show import show_consumer
from penstock.cli.global_flags import Globals
from penstock.cli.output import Json, print_json, print_table, run
from penstock.cli.stream_show import ago, local
from penstock.durations import format_duration
from penstock.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.model import Consumer

__all__ = ["add", "edit", "info", "ls", "pause", "report", "resume", "rm"]

StreamName = Annotated[str | None, typer.Argument(metavar="STREAM", help="The stream.")]
Name = Annotated[str | None, typer.Argument(metavar="CONSUMER", help="The consumer.")]


async def picked(client: Connection, stream: str | None, name: str | None) -> tuple[str, str]:
    """Give the stream and consumer that were named, or let somebody choose."""
    from penstock.jetstream import assets

    stream = stream or pick("stream", [info.name for info in await assets.streams(client)], None)
    if name is None:
        name = pick(f"{stream} consumer", [info.name for info in await assets.consumers(client, stream)], None)
    return stream, name


# -- creating and changing -------------------------------------------------------------------------------------------


@with_flags(ConsumerFlags)
def add(
    ctx: typer.Context,
    stream: StreamName = None,
    name: Annotated[str | None, typer.Argument(metavar="CONSUMER", help="Name of the new consumer.")] = None,
    config: Base = None,
    validate: Validate = False,
    output: Output = None,
    defaults: Defaults = False,
    json: Json = False,
    *,
    flags: ConsumerFlags,
) -> None:
    """Create a consumer; a terminal is asked for what no flag says."""
    from penstock.jetstream.rules import check_consumer

    base: dict[str, Any] = {}
    if config is not None:
        base = _base(read_json(config, "--config"))
        name = name or base.get("durable") or base.get("name")
    if name is None and not flags.ephemeral:
        if not asking(defaults):
            raise InputError("The consumer has no name.", remedy="Give one, or --ephemeral.")
        name = ask("Consumer name", "", str)
    if config is None and asking(defaults):
        flags = ask_for_consumer(flags)
    consumer = consumer_from(name, flags, base)
    check_consumer(consumer)
    if output is not None:
        write_json(output, consumer.to_json())
    elif validate:
        print_json(consumer.to_json()) if json else typer.echo(f"Consumer {name or ''} is valid.")
    else:
        run(_add(ctx.obj, stream, consumer, json))


def _base(content: dict[str, Any]) -> dict[str, Any]:
    from penstock.model import Consumer

    consumer = Consumer.from_json(content.get("config", content))
    return {field: getattr(consumer, field) for field in Consumer.model_fields}


async def _add(given: Globals, stream: str | None, consumer: Consumer, json: bool) -> None:
    from penstock.jetstream import assets
    from penstock.jetstream.rules import check_consumer, check_consumers_together

    async with connected(given) as client:
        stream = stream or pick("stream", [info.name for info in await assets.streams(client)], None)
        there = await assets.stream_info(client, stream)
        check_consumer(consumer, there.config)
        name = consumer.durable or consumer.name
        others = {info.name: info.config for info in await assets.consumers(client, stream)}
        if name in others:
            raise InputError(
                f"Stream {stream} has a consumer {name} already.",
                remedy=f"Change it with `penstock consumer edit {stream} {name}`.",
            )
        check_consumers_together(there.config, {**others, name or "(new)": consumer})
        info = await assets.add_consumer(client, stream, consumer)
    if json:
        print_json(info.raw)
    else:
        show_consumer(info)


@with_flags(ConsumerFlags)
def edit(
    ctx: typer.Context,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    name: Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer.")],
    config: Target = None,
    dry_run: DryRun = False,
    force: Force = False,
    json: Json = False,
    *,
    flags: ConsumerFlags,
) -> None:
    """Change a consumer; shows what would change, and asks."""
    base = _base(read_json(config, "--config")) if config is not None else None
    run(_edit(ctx.obj, stream, name, flags, base, dry_run, force, json))


async def _edit(
    given: Globals,
    stream: str,
    name: str,
    flags: ConsumerFlags,
    base: dict[str, Any] | None,
    dry: bool,
    force: bool,
    json: bool,
) -> None:
    from penstock.jetstream import assets
    from penstock.jetstream.changes import Plan, consumer_step
    from penstock.jetstream.rules import check_consumer

    async with connected(given) as client:
        there = await assets.consumer_info(client, stream, name)
        kept = {field: getattr(there.config, field) for field in type(there.config).model_fields}
        wanted = consumer_from(name, flags, base or kept)
        check_consumer(wanted, (await assets.stream_info(client, stream)).config)
        step = consumer_step(stream, name, wanted, there)
        plan = Plan((step,))
        plan.check()
        if json and dry:
            print_json(plan.to_json())
            return
        if step.action == "none":
            info = there
            typer.echo(f"Consumer {name} is like that already.", err=True)
        else:
            for change in step.changes:
                typer.echo(f"  {change}", err=json)
            if dry:
                return
            confirm(f"Really edit Consumer {stream} > {name}?", force)
            assert step.target is not None
            info = await assets.edit_consumer(client, stream, step.target)  # type: ignore[arg-type]  # a consumer's step
    if json:
        print_json(info.raw)
    elif step.action != "none":
        show_consumer(info)


def rm(ctx: typer.Context, stream: StreamName = None, name: Name = None, force: Force = False) -> None:
    """Delete a consumer, and what it knows of deliveries and acks."""
    run(_rm(ctx.obj, stream, name, force))


async def _rm(given: Globals, stream: str | None, name: str | None, force: bool) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        info = await assets.consumer_info(client, *await picked(client, stream, name))
        confirm(f"Really delete Consumer {info.stream} > {info.name}", force)
        await assets.delete_consumer(client, info.stream, info.name)
    typer.echo(f"Consumer {info.stream} > {info.name} was deleted.")


def pause(
    ctx: typer.Context,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    name: Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer.")],
    until: Annotated[str, typer.Argument(metavar="UNTIL", help="A time, or a duration from now.")],
    force: Force = False,
    json: Json = False,
) -> None:
    """Let a consumer deliver nothing for a while."""
    run(_pause(ctx.obj, stream, name, until, force, json))


async def _pause(given: Globals, stream: str, name: str, until: str, force: bool, json: bool) -> None:
    from penstock.jetstream import assets

    end = parse_until(until, "UNTIL")
    async with connected(given) as client:
        await assets.consumer_info(client, stream, name)
        confirm(f"Really pause Consumer {stream} > {name} until {local(end)}", force)
        answer = await assets.pause_consumer(client, stream, name, end)
    if not answer.get("paused"):
        raise InputError(f"The consumer is not paused: {local(end)} is past.", remedy="Give a time to come.")
    if json:
        print_json(answer)
    else:
        typer.echo(f"Paused Consumer {stream} > {name} until {local(end)}.")


def resume(
    ctx: typer.Context,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    name: Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer.")],
    force: Force = False,
) -> None:
    """Let a paused consumer go on."""
    run(_resume(ctx.obj, stream, name, force))


async def _resume(given: Globals, stream: str, name: str, force: bool) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        info = await assets.consumer_info(client, stream, name)
        if not info.paused:
            raise InputError(f"Consumer {stream} > {name} is not paused.", remedy="Nothing is to be done.")
        confirm(f"Really resume Consumer {stream} > {name}", force)
        await assets.pause_consumer(client, stream, name, None)
    typer.echo(f"Consumer {stream} > {name} goes on.")


# -- looking ---------------------------------------------------------------------------------------------------------


def info(ctx: typer.Context, stream: StreamName = None, name: Name = None, json: Json = False) -> None:
    """Show a consumer: configuration and state."""
    run(_info(ctx.obj, stream, name, json))


async def _info(given: Globals, stream: str | None, name: str | None, json: bool) -> None:
    from penstock.jetstream import assets

    async with connected(given) as client:
        found = await assets.consumer_info(client, *await picked(client, stream, name))
    print_json(found.raw) if json else show_consumer(found)


async def _found(given: Globals, stream: str | None) -> tuple[str, list[Any]]:
    from penstock.jetstream import assets

    async with connected(given) as client:
        stream = stream or pick("stream", [info.name for info in await assets.streams(client)], None)
        try:
            return stream, list(await assets.consumers(client, stream))
        except NotFoundError:
            raise NotFoundError(f"There is no stream {stream}.", remedy="See `penstock stream ls`.") from None


def ls(
    ctx: typer.Context,
    stream: StreamName = None,
    names: Annotated[bool, typer.Option("-n", "--names", help="Only the names.")] = False,
    json: Json = False,
) -> None:
    """List the consumers of a stream."""
    stream, found = run(_found(ctx.obj, stream))
    if json:
        print_json([info.name for info in found] if names else [info.raw for info in found])
    elif names:
        for info in found:
            typer.echo(info.name)
    elif not found:
        typer.echo(f"No Consumers are defined for stream {stream}")
    else:
        print_table(
            f"Consumers of {stream}",
            ("Name", "Description", "Created", "#Ack Pending", "#Unprocessed", "#Last Delivery"),
            [
                (
                    info.name,
                    info.description,
                    local(info.created),
                    f"{info.ack_pending:,}",
                    f"{info.pending:,}",
                    ago(info.delivered.last),
                )
                for info in found
            ],
        )


def report(ctx: typer.Context, stream: StreamName = None, json: Json = False) -> None:
    """Report on the consumers of a stream: how they ack, and how far they are."""
    stream, found = run(_found(ctx.obj, stream))
    if json:
        print_json([info.raw for info in found])
        return
    print_table(
        f"Consumer report for {stream} with {len(found)} consumers",
        (
            "Consumer",
            "Mode",
            "Ack Policy",
            "#Ack Wait",
            "#Ack Pending",
            "#Redelivered",
            "#Unprocessed",
            "#Ack Floor",
            "Leader",
        ),
        [
            (
                info.name,
                "Push" if info.config.deliver_subject else "Pull",
                info.config.ack_policy.capitalize(),
                format_duration(info.config.ack_wait or 0),
                f"{info.ack_pending:,}",
                f"{info.redelivered:,}",
                f"{info.pending:,}",
                f"{info.ack_floor.stream:,}",
                info.placed.leader or "",
            )
            for info in found
        ],
    )
