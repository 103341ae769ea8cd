"""Which servers of a cluster carry a stream or a consumer, and which one leads: elections, and peers that leave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from penstock.connection import api_request
from penstock.errors import DeadlineError, InputError, PenstockError
from penstock.jetstream import assets
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import check_done
from penstock.wire.patience import Deadline

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import ConsumerInfo, Placed, StreamInfo

__all__ = [
    "cancel_move",
    "check_clustered",
    "evacuate_consumer_peer",
    "evacuate_peer",
    "leader_moves",
    "peers_of",
    "remove_peer",
    "step_down",
    "step_down_consumer",
]

Info = TypeVar("Info", "StreamInfo", "ConsumerInfo")

_LOOK = 0.25  # seconds between looks at what changes


def peers_of(placed: Placed) -> list[str]:
    """Give the servers that carry it, the leader first."""
    return [*([placed.leader] if placed.leader else []), *(name for name, _ in placed.replicas)]


def check_clustered(info: StreamInfo | ConsumerInfo) -> None:
    """Refuse a stream or a consumer that has no other server to go to."""
    if not info.placed.replicas:
        kind, names = _named(info)
        what = f"{kind.capitalize()} {names} is kept by one server alone."
        raise InputError(what, remedy=f"Give it more: penstock {kind} edit {names} --replicas 3")


def _named(info: StreamInfo | ConsumerInfo) -> tuple[str, str]:
    """Give the noun and the names that a command knows it by."""
    stream = getattr(info, "stream", None)
    return ("stream", info.name) if stream is None else ("consumer", f"{stream} {info.name}")


async def step_down(
    client: Connection, stream: str, *, preferred: str | None = None, timeout: float = 5.0
) -> StreamInfo:
    """Let the leader of a stream step down, and wait until another one leads."""
    method = f"STREAM.LEADER.STEPDOWN.{assets.checked(stream, 'stream')}"
    return await _elect(client, method, lambda: assets.stream_info(client, stream), preferred, timeout)


async def step_down_consumer(
    client: Connection, stream: str, name: str, *, preferred: str | None = None, timeout: float = 5.0
) -> ConsumerInfo:
    """Let the leader of a consumer step down, and wait until another one leads."""
    method = names.consumer_step_down(stream, name)
    return await _elect(client, method, lambda: assets.consumer_info(client, stream, name), preferred, timeout)


async def _elect(
    client: Connection, method: str, look: Callable[[], Awaitable[Info]], preferred: str | None, timeout: float
) -> Info:
    before = await look()
    check_clustered(before)
    kind, whose = _named(before)
    if preferred is not None and preferred not in peers_of(before.placed):
        there = ", ".join(peers_of(before.placed))
        raise InputError(f"{preferred} does not carry {kind} {whose}.", remedy=f"Those that do are {there}.")
    await _ask(client, method, {} if preferred is None else {"placement": {"preferred": preferred}})

    def elected(now: Info) -> bool:
        return now.placed.leader is not None and now.placed.leader != before.placed.leader

    found = await _until(look, elected, timeout)
    if found is not None:
        return found
    old = before.placed.leader or "nobody"
    raise DeadlineError(
        f"{kind.capitalize()} {whose} has no new leader after {timeout:g} s; it was {old}.",
        remedy=f"See `penstock {kind} info {whose}`, and try again.",
    )


async def remove_peer(client: Connection, stream: str, peer: str) -> None:
    """Take a server out of those that carry a stream, for good; the cluster finds another one if it can."""
    await _ask(client, f"STREAM.PEER.REMOVE.{assets.checked(stream, 'stream')}", {"peer": peer})


async def evacuate_peer(client: Connection, stream: str, peer: str, *, timeout: float = 60.0) -> StreamInfo:
    """Move a stream away from a server, to another one if the cluster has one, and wait until it is done."""
    method = f"STREAM.PEER.EVACUATE.{assets.checked(stream, 'stream')}"
    return await _evacuate(client, method, lambda: assets.stream_info(client, stream), peer, timeout)


async def evacuate_consumer_peer(
    client: Connection, stream: str, name: str, peer: str, *, timeout: float = 60.0
) -> ConsumerInfo:
    """Move a consumer away from a server, and wait until it is done."""
    method = names.consumer_evacuate(stream, name)
    return await _evacuate(client, method, lambda: assets.consumer_info(client, stream, name), peer, timeout)


async def _evacuate(
    client: Connection, method: str, look: Callable[[], Awaitable[Info]], peer: str, timeout: float
) -> Info:
    kind, whose = _named(await look())
    await _ask(client, method, {"peer": peer})
    found = await _until(look, lambda now: peer not in peers_of(now.placed), timeout)
    if found is not None:
        return found
    raise DeadlineError(
        f"{kind.capitalize()} {whose} is still on {peer} after {timeout:g} s.",
        remedy=f"The move goes on. See `penstock {kind} info {whose}`.",
    )


async def cancel_move(client: Connection, stream: str) -> None:
    """Let a stream stay where it is, while the cluster moves it."""
    await api_request(client, f"STREAM.CANCEL_MOVE.{assets.checked(stream, 'stream')}")  # gives the stream


def leader_moves(those: Iterable[StreamInfo] | Iterable[ConsumerInfo]) -> list[tuple[str, str, str]]:
    """Say what should be led by another server, so that each leads about as many: the name, the leader, the new one.

    Those of one cluster are held against each other; each goes only to a server that carries it.
    """
    moves = []
    by_cluster: dict[str, list[StreamInfo | ConsumerInfo]] = {}
    for info in those:
        if info.placed.cluster and info.placed.leader and info.placed.replicas:
            by_cluster.setdefault(info.placed.cluster, []).append(info)
    for listed in by_cluster.values():
        leads = {info.name: info.placed.leader or "" for info in listed}
        count = Counter({peer: 0 for info in listed for peer in peers_of(info.placed)})
        count.update(leads.values())
        for info in listed:
            here = leads[info.name]
            there = min(peers_of(info.placed), key=lambda peer: count[peer])
            if count[here] - count[there] > 1:
                moves.append((info.name, here, there))
                count[here] -= 1
                count[there] += 1
    return moves


async def _ask(client: Connection, method: str, body: object) -> None:
    check_done(await api_request(client, method, body))


async def _until(look: Callable[[], Awaitable[Info]], is_so: Callable[[Info], bool], timeout: float) -> Info | None:
    deadline = Deadline(timeout)
    while deadline.left:
        try:
            info = await look()
            if is_so(info):
                return info
        except PenstockError:  # nobody answers while there is no leader
            pass
        await asyncio.sleep(min(_LOOK, deadline.left))
    return None
