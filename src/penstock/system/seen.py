"""A server as it answers a ping: who it is, and its figures in short. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.system.fields import fields, figure, moment, rows, switch, word

__all__ = ["SORTS", "ClusterSeen", "ServerSeen", "clusters_of", "known_servers", "sort_servers"]


@dataclass(frozen=True)
class ServerSeen:
    """A server that answered a ping."""

    raw: dict[str, Any] = field(repr=False)
    """The server's whole answer: `server` says who it is, `statsz` has its figures."""
    rtt: float
    """Seconds until the answer came."""

    @property
    def name(self) -> str:
        """The server's name; its id, if it was given none."""
        return word(self.raw, "server", "name")

    @property
    def id(self) -> str:
        """The server's id, which changes with each start."""
        return word(self.raw, "server", "id")

    @property
    def host(self) -> str:
        """The address that it listens on, as it says itself."""
        return word(self.raw, "server", "host")

    @property
    def cluster(self) -> str:
        """The name of its cluster; empty for one that stands alone."""
        return word(self.raw, "server", "cluster")

    @property
    def version(self) -> str:
        """The version of nats-server."""
        return word(self.raw, "server", "ver")

    @property
    def jetstream(self) -> str:
        """The JetStream domain, "yes" without one, "no" if JetStream is off."""
        return (word(self.raw, "server", "domain") or "yes") if switch(self.raw, "server", "jetstream") else "no"

    @property
    def stats(self) -> dict[str, Any]:
        """Its figures, as it sent them."""
        return fields(self.raw, "statsz")

    @property
    def routes(self) -> int:
        """How many connections it has to other servers of its cluster."""
        return len(rows(self.stats, "routes"))

    @property
    def gateways(self) -> int:
        """How many connections it has to other clusters."""
        return len(rows(self.stats, "gateways"))

    @property
    def started(self) -> datetime | None:
        """When it was started."""
        return moment(self.stats, "start")

    @property
    def uptime(self) -> float:
        """Seconds since it was started, by its own clock."""
        now, started = moment(self.raw, "server", "time"), self.started
        return (now - started).total_seconds() if now and started else 0.0


def known_servers(seen: Sequence[ServerSeen]) -> int:
    """Count the servers that are known: those that answered, and those of which one of them knows."""
    names = {item.name for item in seen}
    for item in seen:
        names |= {word(route, "name") for route in rows(item.stats, "routes")} - {""}
    return max([len(names), *(int(figure(item.stats, "active_servers")) for item in seen)])


_KEYS: dict[str, Any] = {
    "name": lambda item: item.name,
    "cluster": lambda item: (item.cluster, item.name),
    "conns": lambda item: (figure(item.stats, "connections"), item.name),
    "subs": lambda item: (figure(item.stats, "subscriptions"), item.name),
    "routes": lambda item: (item.routes, item.name),
    "gws": lambda item: (item.gateways, item.name),
    "mem": lambda item: (figure(item.stats, "mem"), item.name),
    "cpu": lambda item: (figure(item.stats, "cpu"), item.name),
    "slow": lambda item: (figure(item.stats, "slow_consumers"), item.name),
    "uptime": lambda item: (item.uptime, item.name),
    "rtt": lambda item: item.rtt,
}
SORTS = tuple(_KEYS)
_ALPHABETICAL = ("name", "cluster", "rtt")


def sort_servers(seen: Sequence[ServerSeen], by: str, *, reverse: bool = False) -> list[ServerSeen]:
    """Sort by a key of `SORTS`: names and times upwards, figures downwards; `reverse` turns that."""
    return sorted(seen, key=_KEYS[by], reverse=(by not in _ALPHABETICAL) is not reverse)


@dataclass
class ClusterSeen:
    """The servers of one cluster that answered, added up."""

    name: str
    servers: int = 0
    connections: int = 0
    gateways_out: int = 0
    gateways_in: int = 0


def clusters_of(seen: Sequence[ServerSeen]) -> list[ClusterSeen]:
    """Add up the servers of each cluster, the one with the fewest connections first."""
    found: defaultdict[str, list[ServerSeen]] = defaultdict(list)
    for item in seen:
        if item.cluster:
            found[item.cluster].append(item)
    clusters = [
        ClusterSeen(
            name,
            len(members),
            sum(figure(item.stats, "connections") for item in members),
            sum(item.gateways for item in members),
            sum(figure(gateway, "inbound_connections") for item in members for gateway in rows(item.stats, "gateways")),
        )
        for name, members in found.items()
    ]
    return sorted(clusters, key=lambda item: (item.connections, item.name))
