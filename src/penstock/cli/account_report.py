"""`account report`: the connections of our account, and its figures, over all servers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from penstock.cli.flags import Json, flag
from penstock.cli.output import print_json
from penstock.cli.running import connected
from penstock.cli.tables import print_table
from penstock.cli.values import choice
from penstock.errors import InputError, RemoteProtocolError
from penstock.sizes import format_size
from penstock.wire.jetstream.answers import number

__all__ = ["connections", "statistics"]

_SORTS = {
    "in-bytes": "in_bytes",
    "out-bytes": "out_bytes",
    "in-msgs": "in_msgs",
    "out-msgs": "out_msgs",
    "uptime": "start",
    "cid": "cid",
    "subs": "subscriptions",
}
_STATES = {"open": "0", "closed": "1", "all": "2"}


async def connections(
    ctx: typer.Context,
    sort: Annotated[str, flag(f"Sort by {', '.join(_SORTS)}.", "KEY")] = "subs",
    top: Annotated[int, flag("Show so many, those that have most; 0 for all.", min=0)] = 1000,
    subject: Annotated[str | None, flag("Only those that listen on this subject.")] = None,
    username: Annotated[str | None, flag("Only those of this user.", "USER")] = None,
    reverse: Annotated[bool, flag("The most first.", "-R", "--reverse")] = False,
    state: Annotated[str, flag("Only those that are open, closed, or all.", "STATE")] = "open",
    closed_reason: Annotated[str | None, flag("Only those that ended for this reason.", "REGEX")] = None,
    json: Json = False,
) -> None:
    """Show the connections of our account, on all servers."""
    from penstock.account import account_connections
    from penstock.cli.message_parts import check_subjects

    field = choice(_SORTS)(sort, option="--sort")
    about: dict[str, Any] = {
        "subscriptions": True,
        "auth": True,
        "state": int(choice(_STATES)(state, option="--state")),
    }
    try:
        reason = None if closed_reason is None else re.compile(closed_reason, re.IGNORECASE)
    except re.error as error:
        what = f"--closed-reason {closed_reason!r} is no regular expression: {error}."
        raise InputError(what, remedy="Write a word of the reason.") from None
    if subject is not None:
        check_subjects(subject)
        about["filter_subject"] = subject
    if username is not None:
        about["user"] = username
    async with connected(ctx) as client:
        found = await account_connections(client, about)
    if reason is not None:
        found = [item for item in found if reason.search(str(item.get("reason") or ""))]
    if field == "start":
        found.sort(key=lambda item: str(item.get("start") or ""), reverse=True)  # the longest has most
    else:
        found.sort(key=lambda item: number(item, field, 0))
    shown = found[-top:] if top else found
    shown = shown[::-1] if reverse else shown
    if json:
        print_json(shown)
        return
    columns = ["#CID", "Name", "Server", "Cluster", "Address", "Account", "Uptime"]
    columns += ["#In Msgs", "#Out Msgs", "#In Bytes", "#Out Bytes", "#Subs"]
    ended = state != "open"
    print_table(
        f"{len(shown):,} of {len(found):,} connections by {sort}",
        [*columns, *(["~Reason"] if ended else [])],
        [_row(item, ended) for item in shown],
    )
    servers = Counter((_server(item, "name"), _server(item, "cluster")) for item in found)
    if len(servers) > 1:
        typer.echo("")
        rows = [(*server, f"{count:,}") for server, count in sorted(servers.items(), key=lambda item: item[1])]
        print_table("Connections per server", ("Server", "Cluster", "#Connections"), rows)


def _server(item: Mapping[str, Any], field: str) -> str:
    server = item.get("server")
    return str(server.get(field) or "") if isinstance(server, dict) else ""


def _row(item: Mapping[str, Any], ended: bool) -> list[object]:
    kind = str(item.get("kind") or "Client")
    counted = [number(item, name, 0) for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions")]
    return [
        f"{'' if kind == 'Client' else kind[0]}{item.get('cid')}",
        item.get("name") or item.get("mqtt_client") or "",
        _server(item, "name"),
        _server(item, "cluster"),
        f"{item.get('ip')}:{item.get('port')}",
        item.get("account") or "",
        item.get("uptime") or "",
        *(f"{count:,}" for count in counted[:2]),
        *(format_size(count) for count in counted[2:4]),
        f"{counted[4]:,}",
        *([item.get("reason") or ""] if ended else []),
    ]


async def statistics(ctx: typer.Context, json: Json = False) -> None:
    """Show what our account moved, on each server."""
    from penstock.account import account_statistics

    async with connected(ctx) as client:
        answers = await account_statistics(client)
    found = [{"server": answer.get("server") or {}, **item} for answer in answers for item in _accounts(answer)]
    if json:
        print_json(found)
        return
    counted = ("conns", "num_subscriptions", "leafnodes", "slow_consumers")
    rows: list[list[object]] = []
    for item in sorted(found, key=lambda item: _server(item, "name")):
        tags = item["server"].get("tags") if isinstance(item["server"], dict) else None
        conns, subscriptions, leafs, slow = (number(item, name, 0) for name in counted)
        rows.append(
            [
                _server(item, "name"),
                _server(item, "cluster"),
                _server(item, "ver"),
                ", ".join(map(str, tags)) if isinstance(tags, list) else "",
                f"{conns:,}",
                f"{subscriptions:,}",
                f"{leafs:,}",
                *_moved(item.get("sent")),
                *_moved(item.get("received")),
                f"{slow:,}",
            ]
        )
    columns = ["Server", "Cluster", "Version", "Tags", "#Connections", "#Subscriptions", "#Leafnodes"]
    columns += ["#Sent Bytes", "#Sent Messages", "#Received Bytes", "#Received Messages", "#Slow Consumers"]
    print_table("Account statistics", columns, rows)


def _accounts(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    data = answer.get("data")
    found = data.get("account_statz") if isinstance(data, dict) else None
    if not isinstance(found or [], list) or not all(isinstance(item, dict) for item in found or ()):
        raise RemoteProtocolError("A server's answer has no list of accounts.", place=0)
    return found or []


def _moved(about: object) -> tuple[str, str]:
    fields = about if isinstance(about, dict) else {}
    return format_size(number(fields, "bytes", 0)), f"{number(fields, 'msgs', 0):,}"
