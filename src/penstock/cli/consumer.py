"""`penstock consumer add|edit|copy|rm|reset|pause|resume|unpin`: consumers, with the words of the `nats` command."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.asset_commands import Adding, Editing, fields_of, read_config
from penstock.cli.asset_show import info_json
from penstock.cli.consumer_flags import ConsumerFlags, ask_for_consumer, consumer_from
from penstock.cli.consumer_show import show_consumer
from penstock.cli.flags import AnyConsumer, AnyStream, Force, Json, StreamName, argument, consumer_name, flag
from penstock.cli.late import assets, changes, model, rules
from penstock.cli.output import local, print_json
from penstock.cli.questions import accepted, ask, asking, confirm, pick, picked_consumer, picked_stream
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.cli.values import parse_until
from penstock.errors import InputError, JetStreamError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import ConsumerInfo
    from penstock.model import Consumer

__all__ = ["add", "copy", "edit", "pause", "reset", "resume", "rm", "unpin"]

_NAME_TAKEN = 10148  # the server's code for a consumer that is there, and another one


# -- creating and changing -------------------------------------------------------------------------------------------


async def add(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: Annotated[str | None, argument("Name of the new consumer.", "CONSUMER", callback=consumer_name)] = None,
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
    consumer = consumer_from(name, flags, {**base, "metadata": changes.own_metadata(base.get("metadata") or {})})
    rules.check_consumer(consumer)
    if adding.only_shows(consumer, f"Consumer {name or ''}"):
        return
    async with connected(ctx) as client:
        info = await _create(client, await picked_stream(client, stream), consumer)
    print_json(info_json(info)) if adding.json else show_consumer(info)


async def _create(client: Connection, stream: str, consumer: Consumer) -> ConsumerInfo:
    """Create a consumer that fits its stream and what else is there; another one of its name is left as it is.

    The same one again is not an error.
    """
    name = consumer.durable or consumer.name
    there = (await assets.stream_info(client, stream)).config
    rules.check_consumer(consumer, there)
    others = {info.name: info.config for info in await assets.consumers(client, stream) if not info.is_sourcing}
    rules.check_consumers_together(there, {**others, name or "(new)": consumer})
    for item in rules.idle_filters(consumer, there):
        subjects = ", ".join(rules.stream_subjects(there))
        typer.echo(plain(f"The filter {item} matches none of the subjects of stream {stream}: {subjects}."), err=True)
    try:
        return await assets.add_consumer(client, stream, consumer)
    except JetStreamError as error:
        if error.err_code != _NAME_TAKEN:
            raise
        what = f"Stream {stream} has another consumer {name} already."
        raise InputError(what, remedy=f"Change it with `penstock consumer edit {stream} {name}`.") from None


async def edit(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    *,
    editing: Editing,
    flags: ConsumerFlags,
) -> None:
    """Change a consumer; shows what would change, and asks."""
    if editing.config is not None:
        read_config(model.Consumer, editing.config)  # a file that says nonsense needs no server
    async with connected(ctx) as client:
        there = await picked_consumer(client, stream, name)
        wanted = consumer_from(there.name, flags, fields_of(await editing.base(there.config)))
        rules.check_consumer(wanted, (await assets.stream_info(client, there.stream)).config)
        step = changes.consumer_step(there.stream, there.name, wanted, there)
        change = functools.partial(assets.edit_consumer, client, there.stream)
        info = await editing.carry_out(step, there, change, f"Really edit Consumer {there.stream} > {there.name}?")
    if info is not None:
        show_consumer(info)


async def copy(
    ctx: typer.Context,
    stream: StreamName,
    source: Annotated[str, argument("The consumer to copy.", "SOURCE", callback=consumer_name)],
    destination: Annotated[str, argument("Name of the new consumer.", "DESTINATION", callback=consumer_name)],
    json: Json = False,
    *,
    flags: ConsumerFlags,
) -> None:
    """Create a consumer with the configuration of another one, but for what flags say; it begins anew."""
    async with connected(ctx) as client:
        config = (await assets.consumer_info(client, stream, source)).config
        base = fields_of(config) | {"name": None, "durable": None, "metadata": changes.own_metadata(config.metadata)}
        info = await _create(client, stream, consumer_from(destination, flags, base))
    print_json(info_json(info)) if json else show_consumer(info)


async def rm(ctx: typer.Context, stream: AnyStream = None, name: AnyConsumer = None, force: Force = False) -> None:
    """Delete a consumer, and what it knows of deliveries and acks."""
    async with connected(ctx) as client:
        info = await picked_consumer(client, stream, name)
        confirm(f"Really delete Consumer {info.stream} > {info.name}", force)
        await assets.delete_consumer(client, info.stream, info.name)
    typer.echo(plain(f"Consumer {info.stream} > {info.name} was deleted."))


# -- setting back, pausing, pinning ----------------------------------------------------------------------------------


async def reset(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    sequence: Annotated[int | None, flag("Begin again at this sequence; behind the ack floor without.", min=0)] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Set a consumer back, to deliver again what was not acknowledged, or everything from a sequence on."""
    async with connected(ctx) as client:
        there = await picked_consumer(client, stream, name)
        start = sequence or there.ack_floor.stream + 1
        confirm(f"Really reset Consumer {there.stream} > {there.name} to sequence {start:,}", force)
        info = await assets.reset_consumer(client, there.stream, there.name, sequence or None)
    print_json(info_json(info)) if json else show_consumer(info, state_only=True)


async def pause(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    until: Annotated[str | None, argument("A time, or a duration from now.", "UNTIL")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Let a consumer deliver nothing for a while."""
    if until is not None:
        parse_until(until, "UNTIL")
    elif not asking():
        raise InputError("UNTIL is missing.", remedy="Give a time, or a duration such as 1h.")
    async with connected(ctx) as client:
        info = await picked_consumer(client, stream, name)
        if until is None:
            until = ask("Pause until (time or duration)", "1h", accepted(parse_until, option="UNTIL"))
        end = parse_until(until, "UNTIL")
        confirm(f"Really pause Consumer {info.stream} > {info.name} until {local(end)}", force)
        answer = await assets.pause_consumer(client, info.stream, info.name, end)
    if not answer.get("paused"):
        raise InputError(f"The consumer is not paused: {local(end)} is past.", remedy="Give a time to come.")
    if json:
        print_json(answer)
    else:
        typer.echo(plain(f"Paused Consumer {info.stream} > {info.name} until {local(end)}."))


async def resume(ctx: typer.Context, stream: AnyStream = None, name: AnyConsumer = None, force: Force = False) -> None:
    """Let a paused consumer go on."""
    async with connected(ctx) as client:
        info = await picked_consumer(client, stream, name)
        if not info.paused:
            raise InputError(f"Consumer {info.stream} > {info.name} is not paused.", remedy="Nothing is to be done.")
        confirm(f"Really resume Consumer {info.stream} > {info.name}", force)
        answer = await assets.pause_consumer(client, info.stream, info.name, None)
    if answer.get("paused"):
        raise JetStreamError(f"Consumer {info.stream} > {info.name} is still paused.", remedy="Try again.")
    typer.echo(plain(f"Consumer {info.stream} > {info.name} goes on."))


async def unpin(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    group: Annotated[str | None, argument("The priority group.", "GROUP")] = None,
    force: Force = False,
) -> None:
    """Take the pin of a priority group from the client that holds it, so that another one gets messages."""
    async with connected(ctx) as client:
        info = await picked_consumer(client, stream, name)
        whose = f"Consumer {info.stream} > {info.name}"
        if info.config.priority_policy != "pinned_client":
            raise InputError(f"{whose} pins no clients.", remedy="That is for consumers with --pinned-groups.")
        pinned = {state.name: state.pin for state in info.groups if state.pin}
        if not pinned or (group is not None and group not in pinned):
            raise InputError(f"No client holds the pin of {group or whose}.", remedy="Nothing is to be done.")
        group = group or pick("pinned group", list(pinned))
        confirm(f"Really take the pin of {info.stream} > {info.name} > {group} from its client", force)
        await assets.unpin_consumer(client, info.stream, info.name, group)
    typer.echo(plain(f"Client {pinned[group]} lost the pin of {info.stream} > {info.name} > {group}."))
