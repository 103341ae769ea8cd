"""`penstock server list` and `ping`: which servers there are, for the system account."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.flags import Json, argument, flag
from penstock.cli.output import print_json
from penstock.cli.running import connected
from penstock.cli.server_asking import ServerReport, counted, show
from penstock.cli.tables import plain
from penstock.cli.values import choice
from penstock.durations import format_duration
from penstock.sizes import format_size
from penstock.system.seen import SORTS

__all__ = ["list_", "ping"]

Expect = Annotated[int, argument("How many servers to wait for; all that are known otherwise.", min=0)]
_SORTS = {**{name: name for name in SORTS}, "conn": "conns", "sub": "subs", "route": "routes", "gw": "gws"}


async def list_(
    ctx: typer.Context,
    expect: Expect = 0,
    sort: Annotated[str, flag(f"Sort by one of {', '.join(SORTS)}.", "KEY")] = "rtt",
    reverse: Annotated[bool, flag("Turn the order.", "-R", "--reverse")] = False,
    json: Json = False,
) -> None:
    """Show all servers: version, connections, memory, CPU, uptime, and what each cluster has."""
    key = choice(_SORTS)(sort, option="--sort")

    async def report(client: Any) -> ServerReport:
        from penstock.system import servers
        from penstock.system.fields import figure
        from penstock.system.seen import clusters_of, sort_servers

        found, absent = await servers(client, expect=expect)
        found = sort_servers(found, key, reverse=reverse)
        rows = [
            (
                item.name,
                item.cluster,
                item.host,
                item.version,
                item.jetstream,
                f"{figure(item.stats, 'connections'):,}",
                f"{figure(item.stats, 'subscriptions'):,}",
                item.routes or "",
                item.gateways or "",
                format_size(figure(item.stats, "mem")),
                f"{figure(item.stats, 'cpu'):.0f}",
                figure(item.stats, "cores"),
                figure(item.stats, "slow_consumers") or "",
                format_duration(round(item.uptime)),
                _shown(item.rtt),
            )
            for item in found
        ]
        heads = ("Name", "Cluster", "Host", "Version", "JS", "#Conns", "#Subs", "#Routes", "#GWs", "#Mem", "#CPU %")
        tables: list[Any] = [
            (counted(len(found), "server"), (*heads, "#Cores", "#Slow", "#Uptime", "#RTT"), rows),
        ]
        if clusters := clusters_of(found):
            members = [
                (item.name, item.servers, item.gateways_out, item.gateways_in, item.connections) for item in clusters
            ]
            columns = ("Cluster", "#Servers", "#Gateways out", "#Gateways in", "#Connections")
            tables.append(("Clusters", columns, members))
        versions = sorted({item.version for item in found})
        notes = [f"There are different versions: {', '.join(versions)}."] if len(versions) > 1 else []
        missing = [counted(absent, "server")] if absent else []
        return ServerReport([item.raw for item in found], tables, notes, missing)

    await show(ctx, 0, json, report)


async def ping(
    ctx: typer.Context,
    expect: Expect = 0,
    show_id: Annotated[bool, flag("Show the ids of the servers, too.", "--id")] = False,
    json: Json = False,
) -> None:
    """Ping all servers, and show how long each took to answer; exit status 1 if one does not answer."""
    from penstock.system import servers

    async with connected(ctx) as client:
        found, absent = await servers(client, expect=expect)
    if json:
        print_json([{"name": item.name, "id": item.id, "rtt": item.rtt} for item in found])
    else:
        width = max(len(item.name) for item in found)
        for item in found:
            named = f"{item.id} " if show_id else ""
            typer.echo(plain(f"{named}{item.name:<{width}} rtt={_shown(item.rtt)}"))
        times = [item.rtt for item in found]
        middle = sum(times) / len(times)
        figures = f"shortest {_shown(min(times))}, longest {_shown(max(times))}, mean {_shown(middle)}"
        typer.echo(f"\n{counted(len(found), 'server')} answered: {figures}")
    if absent:
        typer.echo(f"penstock: {counted(absent, 'server')} of {absent + len(found)} did not answer in time.", err=True)
        raise typer.Exit(1)


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.3f}ms"
