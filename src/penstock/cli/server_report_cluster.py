"""`penstock server report`: JetStream, routes, gateways and leaf nodes of all servers, for the system account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from penstock.cli.flags import Json, argument, flag
from penstock.cli.server_asking import Limit, Reporting, ServerReport, counted, show, unanswered
from penstock.cli.values import choice
from penstock.durations import format_duration
from penstock.sizes import format_size

__all__ = ["downgrade", "gateways", "jetstream", "leafnodes", "routes"]

_PAGE = 1024  # accounts that a server gives at a time
_MOST_PAGES = 1000
_JETSTREAM_SORTS = {
    "streams": ("streams",),
    "consumers": ("consumers",),
    "msgs": ("messages",),
    "mbytes": ("bytes",),
    "bytes": ("bytes",),
    "mem": ("memory",),
    "file": ("storage",),
    "store": ("storage",),
    "api": ("api", "total"),
    "err": ("api", "errors"),
}
_LINK_SORTS = {
    "subs": "subscriptions",
    "in-bytes": "in_bytes",
    "out-bytes": "out_bytes",
    "in-msgs": "in_msgs",
    "out-msgs": "out_msgs",
}


def _known(sort: str, *names: str) -> str:
    return choice({name: name for name in names})(sort, option="--sort")


async def jetstream(
    ctx: typer.Context,
    reporting: Reporting,
    limit: Limit = 0,
    account: Annotated[str, flag("What this account uses.", "NAME")] = "",
    sort: Annotated[
        str, flag("Sort by name, cluster, streams, consumers, msgs, mbytes, mem, file, api or err.", "KEY")
    ] = "cluster",
    leaders: Annotated[bool, flag("Show how many streams and consumers each leads.", "-l", "--leaders")] = False,
    json: Json = False,
) -> None:
    """Show what JetStream holds on each server, and the group that leads it."""
    _known(sort, "name", "cluster", *_JETSTREAM_SORTS)

    async def report(client: Any) -> ServerReport:
        from penstock.system import ask_servers
        from penstock.system.reports import leaders_of

        about: dict[str, Any] = {"raft": True}
        if account:
            about |= {"account": account, "streams": True, "consumer": True, "limit": 10_000}
        where = reporting.where(client)
        got = await ask_servers(client, "JSZ", about, where=where, expect=limit)
        lines = _jetstream_rows(got.answers, sort, account)
        if reporting.reverse:
            lines.reverse()
        title = f"JetStream on {counted(len(lines), 'server')}{f', account {account}' if account else ''}"
        columns = ("Server", "Cluster", "Domain", "#Streams", "#Consumers", "#Messages", "#Bytes", "#Memory", "#File")
        tables: list[Any] = [(title, (*columns, "#API requests", "#API errors"), [row for _, row in lines])]
        meta, notes = _meta_tables(got.answers) if not where else ([], [])
        tables += meta
        if leaders:
            found = leaders_of(got.answers)
            tables.append(("Leaders", ("Server", "Cluster", "#Streams", "#Consumers"), found))
        return ServerReport(list(got.answers), tables, notes, unanswered(got))

    await show(ctx, reporting.watch, json, report)


def _jetstream_rows(answers: Sequence[Mapping[str, Any]], sort: str, account: str) -> list[tuple[Any, Any]]:
    from penstock.system.fields import figure, rows, switch, word
    from penstock.system.gathering import data_of

    lines = []
    for answer in answers:
        data = data_of(answer)
        name, cluster = word(answer, "server", "name"), word(answer, "server", "cluster")
        held: dict[str, Any] = dict(data)
        if account:
            details = next((item for item in rows(data, "account_details") if word(item, "name") == account), {})
            streams = rows(details, "stream_detail")
            held = {
                **details,
                "streams": len(streams),
                "consumers": sum(figure(item, "state", "consumer_count") for item in streams),
                "messages": sum(figure(item, "state", "messages") for item in streams),
                "bytes": figure(details, "memory") + figure(details, "storage"),
            }
        leads = word(data, "meta_cluster", "leader") == name
        row = (
            f"{name}*" if leads else name,
            cluster,
            "off" if switch(data, "disabled") else word(data, "config", "domain"),
            *(f"{figure(held, key):,}" for key in ("streams", "consumers", "messages")),
            *(format_size(figure(held, key)) for key in ("bytes", "memory", "storage")),
            *(f"{figure(held, 'api', key):,}" for key in ("total", "errors")),
        )
        by = name if sort == "name" else cluster if sort == "cluster" else figure(held, *_JETSTREAM_SORTS[sort])
        lines.append(((by, name), row))
    return sorted(lines)


def _meta_tables(answers: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[str]]:
    """Give the group that leads JetStream, as its leader sees it; a sentence if there is none."""
    from penstock.system.fields import fields, figure, rows, seconds, switch, word

    tables = []
    expected = max((figure(answer, "data", "meta_cluster", "cluster_size") for answer in answers), default=0)
    for answer in answers:
        meta = fields(answer, "data", "meta_cluster")
        if not meta or word(meta, "leader") != word(answer, "server", "name"):
            continue
        peers = [(word(meta, "leader"), word(meta, "peer"), "yes", "true", "true", "", "0")] + [
            (
                word(item, "name"),
                word(item, "peer"),
                "",
                "true" if switch(item, "current") else "false",
                "false" if switch(item, "offline") else "true",
                format_duration(round(max(seconds(item, "active"), 0), 3)),
                f"{figure(item, 'lag'):,}",
            )
            for item in rows(meta, "replicas")
        ]
        columns = ("Server", "Id", "Leader", "Current", "Online", "#Seen ago", "#Lag")
        tables.append((f"The group that leads JetStream, in {word(meta, 'name')}", columns, sorted(peers)))
    if tables or not expected:
        return tables, []
    return [], [
        f"Nobody leads JetStream: {len(answers)} of {expected} servers answered, and {expected // 2 + 1} are needed."
    ]


async def downgrade(
    ctx: typer.Context,
    api: Annotated[int, argument("The API level of the server to go back to.", "LEVEL", min=0)],
    all: Annotated[bool, flag("Show all consumers of such streams, too.", "--all")] = False,
    json: Json = False,
) -> None:
    """Show the streams and consumers that need a newer server than one of this API level."""

    async def report(client: Any) -> ServerReport:
        from penstock.system import ask_servers
        from penstock.system.fields import rows
        from penstock.system.gathering import data_of
        from penstock.system.reports import needing_more

        answers: list[Any] = []
        missing: list[str] = []
        about = {"accounts": True, "streams": True, "consumer": True, "config": True, "limit": _PAGE}
        for page in range(_MOST_PAGES):
            got = await ask_servers(client, "JSZ", {**about, "offset": page * _PAGE})
            answers, missing = [*answers, *got.answers], unanswered(got)
            if max(len(rows(data_of(answer), "account_details")) for answer in got.answers) < _PAGE:
                break
        found = needing_more(answers, api, with_consumers=all)
        consumers = _cells(found, "consumers", "account", "stream", "name")
        tables = [
            ("Streams", ("Account", "Stream", "#API level"), _cells(found, "streams", "account", "name")),
            ("Consumers", ("Account", "Stream", "Consumer", "#API level"), consumers),
        ]
        notes = [] if found else [f"All streams and consumers work with API level {api}."]
        return ServerReport(found, [table for table in tables if table[2]], notes, missing)

    await show(ctx, 0, json, report)


def _cells(found: Mapping[str, Any], kind: str, *names: str) -> list[Any]:
    return [[*(item[name] for name in names), item["api_level"]] for item in found.get(kind, ())]


async def routes(
    ctx: typer.Context,
    reporting: Reporting,
    limit: Limit = 0,
    sort: Annotated[
        str, flag("Sort by server, cluster, name, account, subs, in-bytes or out-bytes.", "KEY")
    ] = "server",
    json: Json = False,
) -> None:
    """Show the routes between the servers of each cluster."""
    _known(sort, "server", "cluster", "name", "account", "subs", "in-bytes", "out-bytes")

    async def report(client: Any) -> ServerReport:
        from penstock.system import ask_servers
        from penstock.system.fields import figure, word

        got = await ask_servers(client, "ROUTEZ", {}, where=reporting.where(client), expect=limit)
        found = _links(got.answers, "routes", sort, reporting.reverse, {"name": "remote_name"})
        rows = [
            (
                *(word(item, "server", key) for key in ("name", "cluster")),
                word(item, "remote_name"),
                word(item, "account"),
                f"{word(item, 'ip')}:{figure(item, 'port')}",
                f"rid:{figure(item, 'rid')}",
                word(item, "uptime"),
                word(item, "rtt"),
                f"{figure(item, 'subscriptions'):,}",
                *(format_size(figure(item, key)) for key in ("in_bytes", "out_bytes")),
            )
            for item in found
        ]
        heads = ("Server", "Cluster", "To", "Account", "Address", "Id", "#Uptime", "#RTT", "#Subs", "#Bytes in")
        title = f"{counted(len(rows), 'route')} of {counted(len(got.answers), 'server')}"
        return ServerReport(list(got.answers), [(title, (*heads, "#Bytes out"), rows)], missing=unanswered(got))

    await show(ctx, reporting.watch, json, report)


def _links(
    answers: Sequence[Mapping[str, Any]], field: str, sort: str, reverse: bool, fields_of: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Give what servers are linked with, each with its `server`, sorted."""
    from penstock.system.fields import fields, figure, rows, word
    from penstock.system.gathering import data_of

    found = [
        {**item, "server": fields(answer, "server")} for answer in answers for item in rows(data_of(answer), field)
    ]

    def key(item: Mapping[str, Any]) -> tuple[Any, str, str]:
        server, other = word(item, "server", "name"), word(item, fields_of["name"])
        if sort in _LINK_SORTS:
            return figure(item, _LINK_SORTS[sort]), server, other
        texts = {"server": server, "cluster": word(item, "server", "cluster"), "name": other}
        return texts[sort] if sort in texts else word(item, sort), server, other

    return sorted(found, key=key, reverse=reverse)


async def leafnodes(
    ctx: typer.Context,
    reporting: Reporting,
    limit: Limit = 0,
    account: Annotated[str, flag("Only leaf nodes of this account.", "NAME")] = "",
    sort: Annotated[
        str,
        flag("Sort by server, name, account, subs, in-bytes, out-bytes, in-msgs or out-msgs.", "KEY"),
    ] = "server",
    json: Json = False,
) -> None:
    """Show the leaf nodes of all servers."""
    _known(sort, "server", "name", "account", *_LINK_SORTS)

    async def report(client: Any) -> ServerReport:
        from penstock.system import ask_servers
        from penstock.system.fields import figure, switch, word

        about = {"account": account} if account else {}
        got = await ask_servers(client, "LEAFZ", about, where=reporting.where(client), expect=limit)
        found = _links(got.answers, "leafs", sort, reporting.reverse, {"name": "name"})
        rows = [
            (
                word(item, "server", "name"),
                word(item, "name"),
                word(item, "account"),
                f"{word(item, 'ip')}:{figure(item, 'port')}",
                word(item, "rtt"),
                *(f"{figure(item, key):,}" for key in ("in_msgs", "out_msgs")),
                *(format_size(figure(item, key)) for key in ("in_bytes", "out_bytes")),
                f"{figure(item, 'subscriptions'):,}",
                word(item, "compression"),
                "yes" if switch(item, "is_spoke") else "no",
            )
            for item in found
        ]
        heads = ("Server", "Name", "Account", "Address", "#RTT", "#Msgs in", "#Msgs out", "#Bytes in", "#Bytes out")
        title = f"{counted(len(rows), 'leaf node')} of {counted(len(got.answers), 'server')}"
        columns = (*heads, "#Subs", "Compressed", "Spoke")
        return ServerReport(list(got.answers), [(title, columns, rows)], missing=unanswered(got))

    await show(ctx, reporting.watch, json, report)


async def gateways(
    ctx: typer.Context,
    reporting: Reporting,
    limit: Limit = 0,
    filter_name: Annotated[str, flag("Only gateways to this cluster.", "NAME")] = "",
    sort: Annotated[str, flag("Sort by server or cluster.", "KEY")] = "cluster",
    json: Json = False,
) -> None:
    """Show the gateways between clusters."""
    _known(sort, "server", "cluster")

    async def report(client: Any) -> ServerReport:
        from penstock.system import ask_servers
        from penstock.system.fields import word

        about = {"name": filter_name, "accounts": True}
        got = await ask_servers(client, "GATEWAYZ", about, where=reporting.where(client), expect=limit)
        server_keys = ("cluster", "name") if sort == "cluster" else ("name", "cluster")
        ordered = sorted(
            got.answers,
            key=lambda answer: [word(answer, "server", key) for key in server_keys],
            reverse=reporting.reverse,
        )
        rows = [row for answer in ordered for row in _gateway_rows(answer)]
        columns = ("Server", "Cluster", "Kind", "To", "Address", "Id", "#Uptime", "#RTT", "#Bytes", "#Accounts")
        title = f"{counted(len(rows), 'gateway connection')} of {counted(len(ordered), 'server')}"
        return ServerReport(list(got.answers), [(title, columns, rows)], missing=unanswered(got))

    await show(ctx, reporting.watch, json, report)


def _gateway_rows(answer: Mapping[str, Any]) -> list[Any]:
    from penstock.system.fields import fields, figure, rows, word
    from penstock.system.gathering import data_of

    data = data_of(answer)
    found = [
        ("inbound", name, item)
        for name in fields(data, "inbound_gateways")
        for item in rows(data, "inbound_gateways", name)
    ]
    found += [("outbound", name, fields(data, "outbound_gateways", name)) for name in fields(data, "outbound_gateways")]
    return [
        (
            *(word(answer, "server", key) for key in ("name", "cluster")),
            kind,
            name,
            f"{word(item, 'connection', 'ip')}:{figure(item, 'connection', 'port')}",
            f"gid:{figure(item, 'connection', 'cid')}",
            word(item, "connection", "uptime"),
            word(item, "connection", "rtt"),
            format_size(figure(item, "connection", "in_bytes" if kind == "inbound" else "out_bytes")),
            len(rows(item, "accounts")),
        )
        for kind, name, item in found
    ]
