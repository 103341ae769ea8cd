"""`penstock consumer`: consumers, with the words of the `nats` command."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_commands import Adding, Editing, fields_of, read_config
from penstock.cli.asset_show import show_consumer
from penstock.cli.consumer_flags import ConsumerFlags, ask_for_consumer, consumer_from
from penstock.cli.flags import AnyConsumer, AnyStream, ConsumerName, Force, Json, Names, StreamName, argument
from penstock.cli.late import assets, changes, model, rules
from penstock.cli.output import ago, counts, local, print_json, print_listed
from penstock.cli.questions import ask, asking, confirm, pick, picked_stream
from penstock.cli.running import connected
from penstock.cli.tables import print_table
from penstock.cli.values import parse_until
from penstock.durations import format_duration
from penstock.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import ConsumerInfo

__all__ = ["add", "edit", "info", "ls", "pause", "report", "resume", "rm"]


# -- creating and changing -------------------------------------------------------------------------------------------


async def add(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: Annotated[str | None, argument("Name of the new consumer.", "CONSUMER")] = None,
    *,
    adding: Adding,
    flags: ConsumerFlags,
) -> None:
    """Create a consumer; a terminal is asked for what no flag says."""
    base: dict[str, Any] = {} if adding.config is None else fields_of(read_config(model.Consumer, adding.config))
    name = name or base.get("durable") or base.get("name")
    if name is None and not flags.ephemeral:
        if not asking(adding.defaults):
            raise InputError("The consumer has no name.", remedy="Give one, or --ephemeral.")
        name = ask("Consumer name", "", str)
    if adding.config is None and asking(adding.defaults):
        flags = ask_for_consumer(flags)
    consumer = consumer_from(name, flags, base)
    rules.check_consumer(consumer)
    if adding.only_shows(consumer, f"Consumer {name or ''}"):
        return
    async with connected(ctx) as client:
        stream = await picked_stream(client, stream)
        there = await assets.stream_info(client, stream)
        rules.check_consumer(consumer, there.config)
        others = {info.name: info.config for info in await assets.consumers(client, stream)}
        if name in others:
            raise InputError(
                f"Stream {stream} has a consumer {name} already.",
                remedy=f"Change it with `penstock consumer edit {stream} {name}`.",
            )
        rules.check_consumers_together(there.config, {**others, name or "(new)": consumer})
        info = await assets.add_consumer(client, stream, consumer)
    print_json(info.raw) if adding.json else show_consumer(info)


async def edit(
    ctx: typer.Context, stream: StreamName, name: ConsumerName, editing: Editing, flags: ConsumerFlags
) -> None:
    """Change a consumer; shows what would change, and asks."""
    base = None if editing.config is None else read_config(model.Consumer, editing.config)
    async with connected(ctx) as client:
        there = await assets.consumer_info(client, stream, name)
        wanted = consumer_from(name, flags, fields_of(base or there.config))
        rules.check_consumer(wanted, (await assets.stream_info(client, stream)).config)
        step = changes.consumer_step(stream, name, wanted, there)
        change = functools.partial(assets.edit_consumer, client, stream)
        info = await editing.carry_out(step, there, change, f"Really edit Consumer {stream} > {name}?")
    if info is not None:
        show_consumer(info)


async def rm(ctx: typer.Context, stream: AnyStream = None, name: AnyConsumer = None, force: Force = False) -> None:
    """Delete a consumer, and what it knows of deliveries and acks."""
    async with connected(ctx) as client:
        info = await _picked(client, stream, name)
        confirm(f"Really delete Consumer {info.stream} > {info.name}", force)
        await assets.delete_consumer(client, info.stream, info.name)
    typer.echo(f"Consumer {info.stream} > {info.name} was deleted.")


async def _picked(client: Connection, stream: str | None, name: str | None) -> ConsumerInfo:
    """Look at the consumer that was named, or let somebody choose."""
    stream = await picked_stream(client, stream)
    if name is None:
        name = pick(f"{stream} consumer", [info.name for info in await assets.consumers(client, stream)])
    return await assets.consumer_info(client, stream, name)


async def pause(
    ctx: typer.Context,
    stream: StreamName,
    name: ConsumerName,
    until: Annotated[str, argument("A time, or a duration from now.", "UNTIL")],
    force: Force = False,
    json: Json = False,
) -> None:
    """Let a consumer deliver nothing for a while."""
    end = parse_until(until, "UNTIL")
    async with connected(ctx) as client:
        await assets.consumer_info(client, stream, name)
        confirm(f"Really pause Consumer {stream} > {name} until {local(end)}", force)
        answer = await assets.pause_consumer(client, stream, name, end)
    if not answer.get("paused"):
        raise InputError(f"The consumer is not paused: {local(end)} is past.", remedy="Give a time to come.")
    if json:
        print_json(answer)
    else:
        typer.echo(f"Paused Consumer {stream} > {name} until {local(end)}.")


async def resume(ctx: typer.Context, stream: StreamName, name: ConsumerName, force: Force = False) -> None:
    """Let a paused consumer go on."""
    async with connected(ctx) as client:
        info = await assets.consumer_info(client, stream, name)
        if not info.paused:
            raise InputError(f"Consumer {stream} > {name} is not paused.", remedy="Nothing is to be done.")
        confirm(f"Really resume Consumer {stream} > {name}", force)
        await assets.pause_consumer(client, stream, name, None)
    typer.echo(f"Consumer {stream} > {name} goes on.")


# -- looking ---------------------------------------------------------------------------------------------------------


async def info(ctx: typer.Context, stream: AnyStream = None, name: AnyConsumer = None, json: Json = False) -> None:
    """Show a consumer: configuration and state."""
    async with connected(ctx) as client:
        found = await _picked(client, stream, name)
    print_json(found.raw) if json else show_consumer(found)


async def _found(ctx: typer.Context, stream: str | None) -> tuple[str, list[ConsumerInfo]]:

    async with connected(ctx) as client:
        stream = await picked_stream(client, stream)
        try:
            return stream, await assets.consumers(client, stream)
        except NotFoundError:
            raise NotFoundError(f"There is no stream {stream}.", remedy="See `penstock stream ls`.") from None


async def ls(ctx: typer.Context, stream: AnyStream = None, names: Names = False, json: Json = False) -> None:
    """List the consumers of a stream."""
    stream, found = await _found(ctx, stream)
    if print_listed(found, json, names):
        return
    if not found:
        typer.echo(f"No Consumers are defined for stream {stream}")
        return
    columns = ("Name", "~Description", "Created", "#Ack Pending", "#Unprocessed", "#Last Delivery")
    rows = [
        (one.name, one.description, local(one.created), *counts(one.ack_pending, one.pending), ago(one.delivered.last))
        for one in found
    ]
    print_table(f"Consumers of {stream}", columns, rows)


async def report(ctx: typer.Context, stream: AnyStream = None, json: Json = False) -> None:
    """Report on the consumers of a stream: how they ack, and how far they are."""
    stream, found = await _found(ctx, stream)
    if print_listed(found, json):
        return
    columns = ("Consumer", "Mode", "Ack Policy", "#Ack Wait", "#Ack Pending", "#Redelivered", "#Unprocessed")
    rows = [
        (
            one.name,
            "Push" if one.config.deliver_subject else "Pull",
            one.config.ack_policy.capitalize(),
            format_duration(one.config.ack_wait or 0),
            *counts(one.ack_pending, one.redelivered, one.pending, one.ack_floor.stream),
            one.placed.leader or "",
        )
        for one in found
    ]
    title = f"Consumer report for {stream} with {len(found)} consumers"
    print_table(title, (*columns, "#Ack Floor", "Leader"), rows)
