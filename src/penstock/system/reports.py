"""Reports over what many servers answered: connections and accounts put together, sorted and cut. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.system.fields import fields, figure, rows, texts, word
from penstock.wire.numbers import read_count

__all__ = [
    "ACCOUNT_SORTS",
    "CONNECTION_SORTS",
    "accounts_of",
    "connections_in",
    "leaders_of",
    "needing_more",
    "sort_rows",
    "subscriptions_of",
    "without_jwt",
    "without_jwts",
]

_LEVEL = "_nats.req.level"  # the metadata in which a server writes the API level that a stream or consumer needs
_TRAFFIC = {"in-bytes": "in_bytes", "out-bytes": "out_bytes", "in-msgs": "in_msgs", "out-msgs": "out_msgs"}
CONNECTION_SORTS = {**_TRAFFIC, "uptime": "start", "cid": "cid", "subs": "subscriptions"}
"""What connections can be sorted by, and the field that it is."""
ACCOUNT_SORTS = {**_TRAFFIC, "conns": "connections", "subs": "subscriptions"}
"""What accounts can be sorted by, and the field that it is."""


def without_jwt(client: Mapping[str, Any]) -> dict[str, Any]:
    """Give a client without its JWT: of a bearer, that alone is a login."""
    return {key: value for key, value in client.items() if key != "jwt"}


def without_jwts(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Give an answer whose connections have no JWTs."""
    found = dict(answer)
    if isinstance(data := found.get("data"), dict) and isinstance(data.get("connections"), list):
        found["data"] = {**data, "connections": [without_jwt(item) for item in rows(data, "connections")]}
    return found


def connections_in(answers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give the connections of all servers, each with its `server`, and without JWTs."""
    return [
        {**without_jwt(item), "server": fields(answer, "server")}
        for answer in answers
        for item in rows(answer, "data", "connections")
    ]


def subscriptions_of(connection: Mapping[str, Any]) -> int:
    """Count the subscriptions of a connection."""
    return len(texts(connection, "subscriptions_list")) or int(figure(connection, "subscriptions"))


def accounts_of(connections: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the connections of each account, in the shape of `nats server report accounts --json`."""
    found: dict[str, dict[str, Any]] = {}
    for item in connections:
        name = word(item, "account")
        account = found.setdefault(
            name,
            {
                "account": name,
                "connections": 0,
                "connection_info": [],
                **dict.fromkeys(("in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions"), 0),
                "server": [],
            },
        )
        account["connections"] += 1
        account["connection_info"].append(item)
        for key in _TRAFFIC.values():
            account[key] += figure(item, key)
        account["subscriptions"] += subscriptions_of(item)
        server = fields(item, "server")
        if all(word(server, "id") != word(other, "id") for other in account["server"]):
            account["server"].append(server)
    return list(found.values())


def sort_rows(
    items: Sequence[dict[str, Any]], field: str, *, reverse: bool = False, top: int = 0
) -> list[dict[str, Any]]:
    """Sort upwards by a field, or downwards with `reverse`, and keep the `top` that have most of it.

    Connections are sorted by their start so that the one that is up for longest has most.
    """

    def key(item: Mapping[str, Any]) -> Any:
        return word(item, "start") if field == "start" else figure(item, field)

    most_last = sorted(items, key=key, reverse=field == "start")
    kept = most_last[-top:] if top else most_last
    return kept[::-1] if reverse else kept


def leaders_of(answers: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, int, int]]:
    """Give the servers that lead something: name, cluster, and how many streams and consumers they lead."""
    found = []
    for answer in answers:
        name, cluster = word(answer, "server", "name"), word(answer, "server", "cluster")
        streams = figure(answer, "data", "streams_leader")
        consumers = figure(answer, "data", "consumers_leader")
        for account in rows(answer, "data", "account_details"):
            details = rows(account, "stream_detail")
            streams += sum(word(item, "cluster", "leader") == name for item in details)
            consumers += sum(
                word(consumer, "cluster", "leader") == name
                for item in details
                for consumer in rows(item, "consumer_detail")
            )
        if streams or consumers:
            found.append((name, cluster, streams, consumers))
    return found


def needing_more(answers: Iterable[Mapping[str, Any]], level: int, *, with_consumers: bool = False) -> dict[str, Any]:
    """Give the streams and consumers that need a higher API level than this, as `nats server report downgrade --json`.

    `with_consumers` adds all consumers of such streams, whose names then end with a star.
    """
    streams: dict[tuple[str, str], dict[str, Any]] = {}
    consumers: dict[tuple[str, str, str], dict[str, Any]] = {}
    for answer in answers:
        for account in rows(answer, "data", "account_details"):
            of = word(account, "name")
            for stream in rows(account, "stream_detail"):
                name, needed = word(stream, "name"), _needed(stream)
                more = needed > level
                if more:
                    streams[of, name] = {"account": of, "name": name, "api_level": needed}
                for item in rows(stream, "consumer_detail"):
                    if _needed(item) > level or (more and with_consumers):
                        shown = f"{name}*" if more and with_consumers else name
                        about = {"account": of, "name": word(item, "name"), "stream": shown, "api_level": _needed(item)}
                        consumers[of, name, word(item, "name")] = about
    found = {
        "streams": [streams[key] for key in sorted(streams)],
        "consumers": [consumers[key] for key in sorted(consumers)],
    }
    return {kind: listed for kind, listed in found.items() if listed}


def _needed(asset: Mapping[str, Any]) -> int:
    return read_count(str(fields(asset, "config", "metadata").get(_LEVEL) or "")) or 0
