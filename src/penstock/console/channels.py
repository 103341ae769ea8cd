"""Channels of NATS Streaming: clusters, and of one of them the clients, subscriptions and positions.

What is shown is what a gateway must not forget, in its state stream, so that no gateway need be running. It is written
ahead of what is sent: a position may be a little behind what subscribers have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.channels.names import channel_of, is_client, state_stream
from penstock.channels.state import read_state
from penstock.channels.state_records import ClientRecord, GroupRecord, MemberRecord, decode_state
from penstock.console.backend import Backend, Data, PageRequest, iso, page, part_of
from penstock.console.seen import all_streams, coverage
from penstock.console.tables import Listing, fields
from penstock.errors import InputError, NotFoundError, PenstockError, RemoteProtocolError
from penstock.json_text import load_json
from penstock.survey import StreamState

__all__ = ["channel_cluster", "channels"]

_STATE = state_stream("")
_LONGEST = 200  # characters of the name of a cluster
_SILENT = 60.0  # seconds without a sign of life after which a gateway is thought to be gone

State = tuple[list[ClientRecord], dict[int, MemberRecord], dict[int, GroupRecord], Data]


@page("/channels", refresh=5, menu=True)
async def channels(backend: Backend, request: PageRequest) -> Data:
    """Clusters of NATS Streaming that gateways serve, or served: channels, and when a gateway was last heard of."""
    seen, now = await all_streams(backend, await backend.upstream.client())
    rows = [_cluster_row(seen, item) for item in _states(seen)]
    table = Listing.of(
        request,
        rows,
        fields("cluster", "channels", "messages", "bytes", "time"),
        sort="cluster",
        words=lambda row: (row["cluster"],),
        most=backend.settings.rows,
    )
    return {"clusters": list(table.items), "coverage": coverage(backend, now), **table.about()}


def _states(seen: Sequence[StreamState]) -> list[StreamState]:
    """Give the state streams of all clusters."""
    return [
        item
        for item in seen
        if item.name.endswith(_STATE) and any(subject.startswith("_PENSTOCK.channels.") for subject in item.subjects)
    ]


def _streams(seen: Sequence[StreamState], cluster: str) -> dict[str, StreamState]:
    """Give the streams of a cluster's channels, by channel."""
    found = {}
    for state in seen:
        if state.name.startswith(f"{cluster}:"):
            # The name of a very long channel cannot be read from its stream's name, which then stands for it.
            found[channel_of(cluster, state.name) or state.name.partition(":")[2]] = state
    return found


def _cluster_row(seen: Sequence[StreamState], state: StreamState) -> Data:
    cluster = state.name.removesuffix(_STATE)
    held = _streams(seen, cluster).values()
    age = None if state.last_time is None else (datetime.now(UTC) - state.last_time).total_seconds()
    return {
        "cluster": cluster,
        "stream": state.name,
        "channels": len(held),
        "messages": sum(item.messages for item in held),
        "bytes": sum(item.bytes for item in held),
        "time": iso(state.last_time),
        "served": age is not None and age < _SILENT,
    }


@page("/channels/{cluster}", refresh=3)
async def channel_cluster(backend: Backend, request: PageRequest) -> Data:
    """One cluster of NATS Streaming: its clients, its channels, and every subscription with its position and lag."""
    cluster = request.path["cluster"]
    if not is_client(cluster) or len(cluster) > _LONGEST:
        what = f"{cluster[:80]!r} cannot be the name of a cluster."
        raise InputError(what, remedy="It has letters, digits, - and _.")
    seen, now = await all_streams(backend, await backend.upstream.client())
    state = next((item for item in seen if item.name == state_stream(cluster)), None)
    if state is None:
        remedy = "No gateway ever served it here; `penstock channels serve` does."
        raise NotFoundError(f"There is no cluster {cluster} of NATS Streaming.", remedy=remedy, code=404)
    held = _streams(seen, cluster)
    known, trouble = await part_of(backend, _known(backend, cluster))
    clients, members, groups, beat = known or ([], {}, {}, {})
    subscriptions = [_subscription(backend, item, groups, held, number) for number, item in members.items()]
    most = backend.settings.rows
    tables = {
        "clients": Listing.of(
            request,
            [_client(backend, item, members) for item in clients],
            fields("id", "subscriptions"),
            sort="id",
            words=lambda row: (row["id"],),
            most=most,
            prefix="clients_",
        ),
        "channels": Listing.of(
            request,
            [_channel(name, item, members) for name, item in held.items()],
            fields("name", "messages", "bytes", "last", "time", "rate", "subscriptions"),
            sort="name",
            words=lambda row: (row["name"],),
            most=most,
            prefix="channels_",
        ),
        "subscriptions": Listing.of(
            request,
            subscriptions,
            fields("channel", "client", "group", "last", "pending", "lag"),
            sort="-lag",
            words=lambda row: (row["channel"], row["client"], row["group"]),
            most=most,
            prefix="subs_",
        ),
    }
    return {
        **_cluster_row(seen, state),
        "released": bool(beat.get("released")),
        "trouble": trouble,
        **{name: list(table.items) for name, table in tables.items()},
        "tables": {name: table.about() for name, table in tables.items()},
        "coverage": coverage(backend, now),
    }


async def _known(backend: Backend, cluster: str) -> State:
    """Read what a gateway remembers."""
    found, _ = await read_state(await backend.upstream.client(), cluster)
    return _read_known(found, cluster)


def _read_known(found: Mapping[str, bytes], cluster: str) -> State:
    beat: Any = {}
    try:
        clients, members, groups = decode_state(found)
        beat = load_json(found.get("beat", b"{}"))
    except PenstockError:
        raise
    except Exception as error:  # whatever somebody else has written there
        what = f"What the cluster {cluster} remembers cannot be read: {type(error).__name__}."
        raise RemoteProtocolError(what, remedy="Did somebody else write there?") from None
    return clients, members, groups, beat if isinstance(beat, dict) else {}


def _client(backend: Backend, client: ClientRecord, members: dict[int, MemberRecord]) -> Data:
    mine = [item for item in members.values() if item.client == client.id]
    return {
        "id": backend.mask.plain(client.id),
        "subscriptions": len(mine),
        "heartbeat": backend.mask.plain(client.heartbeat_inbox),
        "pings": f"{client.ping_max_out} every {client.ping_interval} s" if client.ping_interval else None,
    }


def _channel(name: str, state: StreamState, members: dict[int, MemberRecord]) -> Data:
    return {
        "name": name,
        "stream": state.name,
        "messages": state.messages,
        "bytes": state.bytes,
        "first": state.first_sequence,
        "last": state.last_sequence,
        "time": iso(state.last_time),
        "rate": state.rate,
        "subscriptions": sum(item.channel == name for item in members.values()),
    }


def _subscription(
    backend: Backend, item: MemberRecord, groups: dict[int, GroupRecord], held: dict[str, StreamState], number: int
) -> Data:
    at = groups.get(item.group, GroupRecord(0, {}))
    stream = held.get(item.channel)
    return {
        "number": number,
        "channel": backend.mask.plain(item.channel),
        "stream": None if stream is None else stream.name,
        "client": backend.mask.plain(item.client),
        "durable": backend.mask.plain(item.durable) or None,
        "queue": backend.mask.plain(item.queue) or None,
        "group": backend.mask.plain(f"{item.queue} {item.durable}".strip()),
        "online": item.online,
        "last": at.last,
        "pending": len(at.pending.get(number, ())),
        "max_in_flight": item.max_in_flight,
        "ack_wait": item.ack_wait,
        "lag": None if stream is None else max(0, stream.last_sequence - at.last),
    }
