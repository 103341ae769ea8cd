"""`account report`: the connections of our account, and its figures, over all servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from penstock.cli.connection_choice import ConnectionChoice, connection_tables
from penstock.cli.flags import Json, flag
from penstock.cli.output import print_json
from penstock.cli.running import connected
from penstock.cli.server_asking import ServerReport, print_report
from penstock.cli.tables import print_table
from penstock.errors import RemoteProtocolError
from penstock.sizes import format_size
from penstock.wire.jetstream.answers import number

__all__ = ["connections", "statistics"]


async def connections(
    ctx: typer.Context,
    chosen: ConnectionChoice,
    reverse: Annotated[bool, flag("The most first.", "-R", "--reverse")] = False,
    json: Json = False,
) -> None:
    """Show the connections of our account, on all servers."""
    from penstock.account import account_connections

    about = chosen.question()
    async with connected(ctx) as client:
        found = chosen.matching(await account_connections(client, about))
    kept = chosen.sorted(found, reverse)
    print_report(ServerReport(kept, connection_tables(found, kept, chosen.sort, reason=chosen.state != "open")), json)


def _server(item: Mapping[str, Any], field: str) -> str:
    server = item.get("server")
    return str(server.get(field) or "") if isinstance(server, dict) else ""


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
