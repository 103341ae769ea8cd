"""The cluster: its nodes, who leads what, and which replicas are behind.

Three sources, as far as there are any. What streams and consumers say of their own groups is known to every login: who
leads, who follows, and how far behind. What servers say of themselves (`varz`) they tell users of the system account,
and whoever reaches their monitoring port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.console.backend import Backend, Data, PageRequest, all_of, iso, page
from penstock.console.monitor import monitored
from penstock.console.seen import all_consumers, all_streams, coverage
from penstock.console.tables import Listing, fields
from penstock.errors import DeniedError, LinkError, PenstockError
from penstock.info import Replica
from penstock.survey import ConsumerState, StreamState
from penstock.survey.state import page_of
from penstock.system.fields import fields as fields_of
from penstock.system.fields import figure, rows, seconds, switch, word
from penstock.system.gathering import ask_servers

__all__ = ["cluster", "groups_of", "node_of"]

_NEITHER = (
    "Servers tell of themselves to users of the system account, and at their monitoring port. This console was given "
    "neither: penstock console --system CONTEXT, or --monitor http://HOST:8222, shows CPU, memory, connections and the "
    "meta group, too."
)


@page("/cluster", refresh=5, menu=True)
async def cluster(backend: Backend, request: PageRequest) -> Data:
    """Nodes, leaders and replicas that are behind; with the system account or monitoring ports, more of each node."""
    client = await backend.upstream.client()
    streams, now = await all_streams(backend, client)
    consumers, _ = await all_consumers(backend, client)
    told, source, troubles = await _told(backend)
    told, strangers = _ours(told, streams, client.server_info)
    troubles += strangers
    nodes = _nodes(streams, consumers, told, str(client.server_info.get("server_name") or ""))
    groups: list[StreamState | ConsumerState] = [*streams, *consumers]
    behind = groups_of(groups)
    most = backend.settings.rows
    table = Listing.of(
        request,
        nodes,
        fields("name", "version", "cpu", "memory", "connections", "streams_led", "consumers_led", "replicas", "behind"),
        sort="name",
        words=lambda row: (row["name"], row["cluster"] or ""),
        most=most,
    )
    late = Listing.of(
        request,
        behind,
        fields("name", "kind", "leader", "lag"),
        sort="-lag",
        words=lambda row: (row["name"], row["leader"] or "", *(item["name"] for item in row["replicas"])),
        most=most,
        prefix="groups_",
    )
    led = Listing.of(
        request,
        [item for item in groups if item.others],
        _LED,
        sort="name",
        words=lambda item: (*item.subject[1:], item.leader or "", *(other.name for other in item.others)),
        most=most,
        prefix="led_",
    )
    return {
        "connected_to": backend.mask.plain(client.server_info.get("server_name")),
        "clusters": sorted({item.cluster for item in streams if item.cluster}),
        "source": source,
        "neither": None if source else _NEITHER,
        "troubles": troubles,
        "meta": _meta(told),
        "may_elect": backend.system is not None,
        "nodes": list(table.items),
        "groups": list(late.items),
        "groups_table": late.about(),
        "led": [_group(item) for item in led.items],
        "led_table": led.about(),
        "leaderless": sum(1 for row in behind if row["leader"] is None),
        "replicated": sum(1 for item in streams if item.replicas > 1),
        "coverage": coverage(backend, now),
        **table.about(),
    }


# -- what servers say of themselves ------------------------------------------------------------------------------------


async def _told(backend: Backend) -> tuple[list[dict[str, Any]], str | None, list[str]]:
    """Ask servers for their figures: their answers, how they were asked, and what went wrong."""
    troubles: list[str] = []
    if backend.monitors:

        async def ask(url: str) -> dict[str, Any] | None:
            try:
                return await monitored(url, "varz", backend.settings.timeout)
            except PenstockError as error:
                troubles.append(backend.mask.text(str(error)))
                return None

        found = [item for item in await all_of(backend.monitors, ask) if item is not None]
        return found, "their monitoring ports", troubles
    try:
        client = await (backend.system or backend.upstream).client()
        gathered = await ask_servers(client, "VARZ")
    except PenstockError as error:
        if backend.system is None and isinstance(error, DeniedError):
            return [], None, troubles
        if backend.system is None and isinstance(error, LinkError):
            raise
        return [], "the system account" if backend.system else None, [backend.mask.text(str(error))]
    if gathered.missing or gathered.absent:
        names = ", ".join(gathered.missing) or "some"
        troubles.append(f"{len(gathered.missing) + gathered.absent} servers are known and did not answer: {names}.")
    return [fields_of(item, "data") for item in gathered.answers], "the system account", troubles


def _ours(
    told: list[dict[str, Any]], streams: Sequence[StreamState], here: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Give the answers of servers that belong together with ours, and a sentence for each of the others.

    Nothing keeps anybody from naming the monitoring port of a server elsewhere. A server is ours if it is the one that
    this console is connected to, or of its cluster, of one that carries a stream, or that one of ours has a gateway to.
    """
    own, cluster = here.get("server_id"), here.get("cluster")
    known = {item.cluster for item in streams if item.cluster} | ({str(cluster)} if cluster else set())
    found = [item for item in told if word(item, "server_id") == own or word(item, "cluster", "name") in known]
    known |= {name for item in found for name in _gateways(item)}
    ours, strangers = [], []
    for item in told:
        name, of = word(item, "server_name"), word(item, "cluster", "name")
        if word(item, "server_id") == own or of in known:
            ours.append(item)
            continue
        where = f"cluster {of}" if of else "no cluster"
        strangers.append(
            f"Server {name} is of {where}, and not one of those that this console is connected to: it is left out. "
            "Is its monitoring port the right one?"
        )
    return ours, strangers


def _gateways(varz: Mapping[str, Any]) -> list[str]:
    return [word(item, "name") for item in rows(varz, "gateway", "gateways")]


def node_of(varz: Mapping[str, Any]) -> Data:
    """Give what a server says of itself."""
    config, stats = fields_of(varz, "jetstream", "config"), fields_of(varz, "jetstream", "stats")
    meta = fields_of(varz, "jetstream", "meta")
    name = word(varz, "server_name")
    return {
        "name": name,
        "cluster": word(varz, "cluster", "name") or None,
        "version": word(varz, "version") or None,
        "started": word(varz, "start") or None,
        "cpu": figure(varz, "cpu"),
        "memory": figure(varz, "mem"),
        "connections": figure(varz, "connections"),
        "subscriptions": figure(varz, "subscriptions"),
        "slow_consumers": figure(varz, "slow_consumers"),
        "in_messages": figure(varz, "in_msgs"),
        "out_messages": figure(varz, "out_msgs"),
        "jetstream": bool(config),
        "store": {"used": figure(stats, "storage"), "limit": figure(config, "max_storage") or None},
        "js_memory": {"used": figure(stats, "memory"), "limit": figure(config, "max_memory") or None},
        "api_errors": figure(stats, "api", "errors"),
        "meta_leader": bool(name) and word(meta, "leader") == name,
        "told": True,
    }


def _meta(told: list[dict[str, Any]]) -> Data | None:
    """Give the group that decides which server carries what, as its leader tells of it."""
    metas = [fields_of(item, "jetstream", "meta") for item in told]
    found = next((item for item in metas if rows(item, "replicas")), None) or next(
        (item for item in metas if item), None
    )
    if found is None:
        return None
    return {
        "name": word(found, "name"),
        "leader": word(found, "leader") or None,
        "size": figure(found, "cluster_size"),
        "pending": figure(found, "pending"),
        "replicas": [
            {
                "name": word(item, "name"),
                "current": switch(item, "current"),
                "offline": switch(item, "offline"),
                "seconds": seconds(item, "active"),
                "lag": figure(item, "lag"),
            }
            for item in rows(found, "replicas")
        ],
    }


# -- what streams and consumers say of their groups --------------------------------------------------------------------

_UNTOLD = dict.fromkeys(
    (
        *("version", "started", "cpu", "memory", "connections", "subscriptions", "slow_consumers"),
        *("in_messages", "out_messages", "jetstream", "store", "js_memory", "api_errors"),
    )
)


def _nodes(
    streams: Sequence[StreamState], consumers: Sequence[ConsumerState], told: list[dict[str, Any]], here: str
) -> list[Data]:
    """Put together what servers say, and what groups say of them; a lone server, `here`, leads all it has."""
    found: dict[str, Data] = {}

    def node(name: str, cluster: str | None) -> Data:
        if name not in found:
            found[name] = {
                "name": name,
                "cluster": cluster,
                **_UNTOLD,
                "meta_leader": False,
                "told": False,
                **_NO_GROUPS,
            }
        return found[name]

    for varz in told:
        made = node_of(varz)
        found[made["name"]] = {**made, **_NO_GROUPS}
    groups: list[tuple[str, Sequence[StreamState | ConsumerState]]] = [("streams", streams), ("consumers", consumers)]
    for kind, items in groups:
        for item in items:
            leader = item.leader or (here if item.cluster is None else "")
            if leader:
                node(leader, item.cluster)[f"{kind}_led"] += 1
            for other in item.others:
                row = node(other.name, item.cluster)
                row["replicas"] += 1
                row["behind"] += _is_behind(other)
                row["offline"] += other.offline
    return list(found.values())


_NO_GROUPS = {"streams_led": 0, "consumers_led": 0, "replicas": 0, "behind": 0, "offline": 0}


def _is_behind(replica: Replica) -> bool:
    return not replica.current or replica.offline or replica.lag > 0


def groups_of(items: Iterable[StreamState | ConsumerState]) -> list[Data]:
    """Give the streams and consumers without a leader, or with replicas that are behind."""
    found = []
    for item in items:
        late = [other for other in item.others if _is_behind(other)]
        # A lone server speaks of no cluster; one that is in a cluster and leads nothing has no leader.
        if not late and (item.leader is not None or item.cluster is None):
            continue
        found.append(_group(item, late))
    return found


def _group(item: StreamState | ConsumerState, shown: Sequence[Replica] | None = None) -> Data:
    """Give what a row says of the servers that carry something, or of some of them."""
    others = item.others if shown is None else shown
    return {
        "kind": item.subject[0],
        "name": " › ".join(item.subject[1:]),
        "names": dict(zip(("stream", "consumer"), item.subject[1:], strict=False)),
        "path": page_of(item.subject),
        "leader": item.leader,
        "lag": max((other.lag for other in others), default=0),
        "replicas": [
            {
                "name": other.name,
                "lag": other.lag,
                "offline": other.offline,
                "behind": _is_behind(other),
                "seconds": other.active,
            }
            for other in others
        ],
        "time": iso(datetime.fromtimestamp(item.looked, UTC)),
    }


_LED: dict[str, Callable[[Any], Any]] = {
    "name": lambda item: (item.subject[1:], item.subject[0]),
    "leader": lambda item: item.leader,
    "lag": lambda item: max((other.lag for other in item.others), default=0),
}
"""What a table of all groups is sorted by."""
