"""`penstock consumer cluster step-down|balance|evacuate`: which servers carry a consumer."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.asset_show import info_json
from penstock.cli.consumer_look import Criteria
from penstock.cli.consumer_show import show_consumer
from penstock.cli.flags import AnyConsumer, AnyStream, Force, Json, argument, flag
from penstock.cli.late import assets
from penstock.cli.output import print_json
from penstock.cli.questions import confirm, pick, picked_consumer, picked_stream
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.errors import InputError, JetStreamError

__all__ = ["balance", "evacuate", "step_down"]

MOVING = 60.0  # seconds that a move is waited for


async def step_down(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    preferred: Annotated[str | None, flag("Server that is to lead.", "SERVER")] = None,
    force: Annotated[bool, flag("Also if nobody leads now.", "-f", "--force")] = False,
    json: Json = False,
) -> None:
    """Let the leader of a consumer step down, so that another server leads."""
    from penstock.jetstream import peers

    async with connected(ctx) as client:
        before = await picked_consumer(client, stream, name)
        peers.check_clustered(before)
        if before.placed.leader is None and not force:
            what = f"Consumer {before.stream} > {before.name} has no leader now."
            raise JetStreamError(what, remedy="Wait for one, or give -f.")
        seconds = max(ctx.obj.seconds, 1.0)
        info = await peers.step_down_consumer(client, before.stream, before.name, preferred=preferred, timeout=seconds)
    if json:
        print_json(info_json(info))
        return
    whose, old = f"Consumer {info.stream} > {info.name}", before.placed.leader or "nobody"
    typer.echo(plain(f"{info.placed.leader} leads {whose} now; before, {old} did") + "\n")
    show_consumer(info)


async def balance(ctx: typer.Context, criteria: Criteria, stream: AnyStream = None) -> None:
    """Let each server lead about as many consumers of a stream; those that match, or all."""
    from penstock.jetstream import peers

    tests = criteria.tests()
    async with connected(ctx) as client:
        stream = (await assets.stream_info(client, await picked_stream(client, stream))).name
        found = [one for one in await assets.consumers(client, stream) if criteria.holds(one, tests)]
        moves = peers.leader_moves(found)
        for name, _, there in moves:
            info = await peers.step_down_consumer(
                client, stream, name, preferred=there, timeout=max(ctx.obj.seconds, 1.0)
            )
            typer.echo(plain(f"{info.placed.leader} leads Consumer {stream} > {name} now"))
    typer.echo(f"Balanced {len(moves):,} of {len(found):,} consumers.")


async def evacuate(
    ctx: typer.Context,
    stream: AnyStream = None,
    name: AnyConsumer = None,
    peer: Annotated[str | None, argument("The server to take it from.", "PEER")] = None,
    force: Force = False,
) -> None:
    """Move a consumer away from a server, to another one of its stream, and wait until it is done."""
    from penstock.jetstream import peers

    async with connected(ctx) as client:
        info = await picked_consumer(client, stream, name)
        whose, there = f"Consumer {info.stream} > {info.name}", peers.peers_of(info.placed)
        if not there:
            raise InputError(f"{whose} is in no cluster.", remedy="One server holds it: there is nothing to move.")
        peer = peer or pick("server", there)
        if peer not in there:
            raise InputError(f"{peer} does not carry {whose}.", remedy=f"Those that do are {', '.join(there)}.")
        confirm(f"Really move {whose} away from {peer}", force)
        seconds = max(MOVING, ctx.obj.seconds)
        info = await peers.evacuate_consumer_peer(client, info.stream, info.name, peer, timeout=seconds)
    typer.echo(plain(f"{whose} is on {', '.join(peers.peers_of(info.placed))} now."))
