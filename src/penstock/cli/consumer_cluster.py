"""`penstock consumer cluster`: who leads a replicated consumer."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penstock.cli.asset_show import info_json
from penstock.cli.consumer_show import show_consumer
from penstock.cli.flags import AnyConsumer, AnyStream, Json, flag
from penstock.cli.late import assets
from penstock.cli.output import print_json
from penstock.cli.questions import picked_consumer
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.errors import DeadlineError, InputError, JetStreamError

__all__ = ["step_down"]

_PAUSE = 0.1  # between looks


async def step_down(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    preferred: Annotated[str | None, flag("The server that should lead.", "SERVER")] = None,
    force: Annotated[bool, flag("Ask also if nobody leads.", "-f", "--force")] = False,
    json: Json = False,
) -> None:
    """Have another server lead a replicated consumer."""
    async with connected(ctx) as client:
        there = await picked_consumer(client, stream, name)
        whose = f"Consumer {there.stream} > {there.name}"
        if there.placed.cluster is None or not there.placed.replicas:
            raise InputError(f"{whose} has no other replica that could lead.", remedy="That is for --replicas 3.")
        if there.placed.leader is None and not force:
            raise JetStreamError(f"{whose} has no leader.", remedy="Wait until it has one, or give --force.")
        others = [server for server, _ in there.placed.replicas]
        if preferred is not None and preferred not in others:
            raise InputError(
                f"{preferred} holds no other replica of {whose}.", remedy=f"There are: {', '.join(others)}."
            )
        typer.echo(plain(f"{there.placed.leader or 'Nobody'} leads {whose}; asking it to step down."), err=True)
        await assets.step_down_consumer(client, there.stream, there.name, preferred=preferred)
        try:
            async with asyncio.timeout(max(ctx.obj.seconds, 1.0)):
                while True:
                    now = await assets.consumer_info(client, there.stream, there.name)
                    if now.placed.leader not in (None, there.placed.leader):
                        break
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            what = f"{whose} has no new leader after {ctx.obj.seconds:g} s."
            raise DeadlineError(what, remedy="The old one may have been chosen again: see `consumer info`.") from None
    print_json(info_json(now)) if json else show_consumer(now)
