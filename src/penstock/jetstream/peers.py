"""Which servers of a cluster carry a stream, and which one leads: elections, and peers that leave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.connection import api_request
from penstock.errors import DeadlineError, InputError, JetStreamError, PenstockError
from penstock.jetstream import assets
from penstock.wire.patience import Deadline

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import Placed, StreamInfo

__all__ = [
    "cancel_move",
    "check_clustered",
    "evacuate_peer",
    "leader_moves",
    "peers_of",
    "remove_peer",
    "step_down",
]

_LOOK = 0.25  # seconds between looks at a stream that changes


def peers_of(placed: Placed) -> list[str]:
    """Give the servers that carry it, the leader first."""
    return [*([placed.leader] if placed.leader else []), *(name for name, _ in placed.replicas)]


def check_clustered(info: StreamInfo) -> None:
    """Refuse a stream that has no other server to go to."""
    if not info.placed.replicas:
        what = f"Stream {info.name} is kept by one server alone."
        raise InputError(what, remedy=f"Give it more: penstock stream edit {info.name} --replicas 3")


async def step_down(
    client: Connection, stream: str, *, preferred: str | None = None, timeout: float = 5.0
) -> StreamInfo:
    """Let the leader of a stream step down, and wait until another one, or the same, leads."""
    before = await assets.stream_info(client, stream)
    check_clustered(before)
    if preferred is not None and preferred not in peers_of(before.placed):
        there = ", ".join(peers_of(before.placed))
        raise InputError(f"{preferred} does not carry stream {stream}.", remedy=f"Those that do are {there}.")
    body = {} if preferred is None else {"placement": {"preferred": preferred}}
    await _ask(client, f"STREAM.LEADER.STEPDOWN.{assets.checked(stream, 'stream')}", body)

    def elected(now: StreamInfo) -> bool:
        return now.placed.leader is not None and now.placed.leader != before.placed.leader

    found = await _until(client, stream, elected, timeout)
    if found is not None:
        return found
    raise DeadlineError(
        f"Stream {stream} has no new leader after {timeout:g} s; it was {before.placed.leader or 'nobody'}.",
        remedy=f"See `penstock stream info {stream}`, and try again.",
    )


async def remove_peer(client: Connection, stream: str, peer: str) -> None:
    """Take a server out of those that carry a stream, for good; the cluster finds another one if it can."""
    await _ask(client, f"STREAM.PEER.REMOVE.{assets.checked(stream, 'stream')}", {"peer": peer})


async def evacuate_peer(client: Connection, stream: str, peer: str, *, timeout: float = 60.0) -> StreamInfo:
    """Move a stream away from a server, to another one if the cluster has one, and wait until it is done."""
    await _ask(client, f"STREAM.PEER.EVACUATE.{assets.checked(stream, 'stream')}", {"peer": peer})
    found = await _until(client, stream, lambda now: peer not in peers_of(now.placed), timeout)
    if found is not None:
        return found
    raise DeadlineError(
        f"Stream {stream} is still on {peer} after {timeout:g} s.",
        remedy=f"The move goes on. See `penstock stream info {stream}`.",
    )


async def cancel_move(client: Connection, stream: str) -> None:
    """Let a stream stay where it is, while the cluster moves it."""
    await api_request(client, f"STREAM.CANCEL_MOVE.{assets.checked(stream, 'stream')}")  # gives the stream


def leader_moves(streams: Iterable[StreamInfo]) -> list[tuple[str, str, str]]:
    """Say which streams should be led by another server, so that each leads about as many: stream, leader, new leader.

    Streams of one cluster are held against each other; a stream goes only to a server that carries it.
    """
    moves = []
    by_cluster: dict[str, list[StreamInfo]] = {}
    for info in streams:
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
    answer = await api_request(client, method, body)
    if answer.get("success") is not True:
        raise JetStreamError("The server did not do it, and says no more.", remedy="See its log.")


async def _until(
    client: Connection, stream: str, is_so: Callable[[StreamInfo], bool], timeout: float
) -> StreamInfo | None:
    deadline = Deadline(timeout)
    while deadline.left:
        try:
            info = await assets.stream_info(client, stream)
            if is_so(info):
                return info
        except PenstockError:  # nobody answers while there is no leader
            pass
        await asyncio.sleep(min(_LOOK, deadline.left))
    return None
