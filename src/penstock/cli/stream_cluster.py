"""`penstock stream cluster step-down|balance|evacuate|peer-remove|cancel-move`: which servers carry a stream."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.asset_show import show_stream
from penstock.cli.flags import AnyStream, Force, argument, flag
from penstock.cli.late import assets
from penstock.cli.questions import confirm, pick, picked_stream
from penstock.cli.running import connected
from penstock.cli.stream_find import StreamCriteria
from penstock.cli.tables import plain
from penstock.errors import InputError

__all__ = ["balance", "cancel_move", "evacuate", "peer_remove", "step_down"]

Peer = Annotated[str | None, argument("The server to take it from.", "PEER")]
MOVING = 60.0  # seconds that a move is waited for


async def step_down(
    ctx: typer.Context,
    name: AnyStream = None,
    preferred: Annotated[str | None, flag("Server that is to lead.", "SERVER")] = None,
    force: Annotated[bool, flag("Also if nobody leads now.", "-f", "--force")] = False,
) -> None:
    """Let the leader of a stream step down, so that another server leads."""
    from penstock.jetstream import peers

    async with connected(ctx) as client:
        before = await assets.stream_info(client, await picked_stream(client, name))
        peers.check_clustered(before)
        if before.placed.leader is None and not force:
            raise InputError(f"Stream {before.name} has no leader now.", remedy="Wait for one, or give -f.")
        info = await peers.step_down(client, before.name, preferred=preferred, timeout=ctx.obj.seconds)
    old = before.placed.leader or "nobody"
    typer.echo(plain(f"{info.placed.leader} leads Stream {info.name} now; before, {old} did") + "\n")
    show_stream(info)


async def balance(ctx: typer.Context, criteria: StreamCriteria) -> None:
    """Let each server lead about as many streams; those that match, or all."""
    from penstock.jetstream import peers

    criteria.check()
    async with connected(ctx) as client:
        found = [info for info in await assets.streams(client) if criteria.matches(info)]
        moves = peers.leader_moves(found)
        for stream, _, there in moves:
            info = await peers.step_down(client, stream, preferred=there, timeout=ctx.obj.seconds)
            typer.echo(plain(f"{info.placed.leader} leads Stream {stream} now"))
    typer.echo(f"Balanced {len(moves):,} of {len(found):,} streams.")


async def evacuate(ctx: typer.Context, name: AnyStream = None, peer: Peer = None, force: Force = False) -> None:
    """Move a stream away from a server, to another one if there is one, and wait until it is done."""
    from penstock.jetstream import peers

    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        there = _chosen(peer, peers.peers_of(info.placed), info.name)
        confirm(f"Really move Stream {info.name} away from {there}", force)
        info = await peers.evacuate_peer(client, info.name, there, timeout=max(MOVING, ctx.obj.seconds))
    typer.echo(plain(f"Stream {info.name} is on {', '.join(peers.peers_of(info.placed))} now."))


async def peer_remove(ctx: typer.Context, name: AnyStream = None, peer: Peer = None, force: Force = False) -> None:
    """Take a server that will not come back out of those that carry a stream; `evacuate` is safer."""
    from penstock.jetstream import peers

    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        peers.check_clustered(info)
        there = _chosen(peer, peers.peers_of(info.placed), info.name)
        confirm(f"Really remove {there} from Stream {info.name}; its copy is gone", force)
        await peers.remove_peer(client, info.name, there)
    typer.echo(plain(f"Asked to remove {there} from Stream {info.name}; see `penstock stream info {info.name}`."))


async def cancel_move(ctx: typer.Context, name: AnyStream = None, force: Force = False) -> None:
    """Let a stream stay where it is while the cluster moves it."""
    from penstock.jetstream import peers

    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        if not force and not (info.raw.get("cluster") or {}).get("desired"):
            raise InputError(f"Stream {info.name} does not move.", remedy="Give -f to ask the server nevertheless.")
        confirm(f"Really let Stream {info.name} stay where it is", force)
        await peers.cancel_move(client, info.name)
    typer.echo(f"The move of Stream {info.name} is cancelled.")


def _chosen(peer: str | None, there: list[str], stream: str) -> str:
    """Give the server that was named, or let somebody choose one that carries the stream."""
    if not there:
        raise InputError(f"Stream {stream} is in no cluster.", remedy="One server holds it: there is nothing to move.")
    chosen = peer if peer is not None else pick("server", there)
    if chosen not in there:
        raise InputError(f"{chosen} does not carry Stream {stream}.", remedy=f"Those that do are {', '.join(there)}.")
    return chosen
