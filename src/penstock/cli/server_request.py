"""`penstock server request`: what servers say of themselves, as they say it; for the system account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from penstock.cli.flags import argument, flag, flag_table, table_flag
from penstock.cli.output import print_json
from penstock.cli.running import connected
from penstock.cli.server_asking import server_filter, tell_missing, unanswered
from penstock.cli.server_report import health_question
from penstock.cli.values import choice

__all__ = [
    "accounts",
    "connections",
    "gateways",
    "ipqueue",
    "jetstream",
    "jetstream_health",
    "leafnodes",
    "raft",
    "routes",
    "subscriptions",
    "variables",
]

Wait = Annotated[int, argument("End after this many answers; all known servers' otherwise.", min=0)]
Account = Annotated[str, flag("Only this account.", "NAME")]
Subscriptions = Annotated[bool, flag("Show subscriptions, too.")]
_CONNECTION_SORTS = (
    "cid",
    "start",
    "subs",
    "pending",
    "msgs_to",
    "msgs_from",
    "bytes_to",
    "bytes_from",
    "last",
    "idle",
    "uptime",
    "stop",
    "reason",
    "rtt",
)


@flag_table
class Asked:
    """Which servers are asked, and which part of a long answer is wanted."""

    limit: int = table_flag("So many records of each server at most.", "N", default=2048, min=1)
    offset: int = table_flag("Begin with this record.", "N", default=0, min=0)
    name: str = table_flag("Only the server of this name.", "NAME", default="")
    host: str = table_flag("Only servers that listen on this host.", "HOST", default="")
    cluster: str = table_flag("Only servers of this cluster.", "NAME", default="")
    tags: list[str] | None = table_flag("Only servers with this tag; may be repeated.", "TAG")

    @property
    def page(self) -> dict[str, int]:
        """The part that is wanted, as a question says it."""
        return {"limit": self.limit, "offset": self.offset}


async def _ask(
    ctx: typer.Context, asked: Asked, kind: str, wait: int, about: Mapping[str, Any], *, empty: bool = True
) -> None:
    """Ask, and print a line for each answer; without `empty`, none for a server without connections."""
    from penstock.system import ask_servers
    from penstock.system.fields import figure
    from penstock.system.reports import without_jwts

    wanted = {key: value for key, value in about.items() if value not in ("", False, None)}
    async with connected(ctx) as client:
        where = server_filter(client, name=asked.name, host=asked.host, cluster=asked.cluster, tags=asked.tags)
        got = await ask_servers(client, kind, wanted, where=where, expect=wait)
    for answer in got.answers:
        if empty or figure(answer, "data", "num_connections"):
            print_json(without_jwts(answer), line=True)
    tell_missing(unanswered(got))


async def variables(ctx: typer.Context, asked: Asked, wait: Wait = 0) -> None:
    """Show how servers are configured and what they did so far."""
    await _ask(ctx, asked, "VARZ", wait, {})


async def connections(
    ctx: typer.Context,
    asked: Asked,
    wait: Wait = 0,
    sort: Annotated[str, flag(f"Sort by one of {', '.join(_CONNECTION_SORTS)}.", "KEY")] = "cid",
    subscriptions: Subscriptions = False,
    filter_cid: Annotated[int, flag("Only the connection of this number.", "CID", min=0)] = 0,
    filter_state: Annotated[str, flag("Those that are open, closed, or all.", "open|closed|all")] = "open",
    filter_user: Annotated[str, flag("Only those of this user.", "NAME")] = "",
    filter_account: Annotated[str, flag("Only those of this account.", "NAME")] = "",
    filter_subject: Annotated[str, flag("Only those with a subscription that matches this.", "SUBJECT")] = "",
    filter_empty: Annotated[bool, flag("Leave out servers without connections.")] = False,
) -> None:
    """Show the connections of servers."""
    choice({name: name for name in _CONNECTION_SORTS})(sort, option="--sort")
    states = {"open": 0, "closed": 1, "all": 2}
    choice(dict.fromkeys(states, ""))(filter_state, option="--filter-state")
    about = {
        "sort": sort,
        "auth": True,
        "subscriptions": subscriptions,
        "subscriptions_detail": subscriptions,
        "cid": filter_cid,
        "state": states[filter_state],
        "user": filter_user,
        "acc": filter_account,
        "filter_subject": filter_subject,
        **asked.page,
    }
    await _ask(ctx, asked, "CONNZ", wait, about, empty=not filter_empty)


async def subscriptions(
    ctx: typer.Context,
    asked: Asked,
    wait: Wait = 0,
    detail: Annotated[bool, flag("Show each of them.")] = False,
    filter_account: Annotated[str, flag("Only those of this account.", "NAME")] = "",
    filter_subject: Annotated[str, flag("Only those that match this.", "SUBJECT")] = "",
) -> None:
    """Show how many subscriptions servers have, and how their lookup does."""
    about = {"subscriptions": detail, "account": filter_account, "test": filter_subject, **asked.page}
    await _ask(ctx, asked, "SUBSZ", wait, about)


async def routes(ctx: typer.Context, asked: Asked, wait: Wait = 0, subscriptions: Subscriptions = False) -> None:
    """Show the routes of servers."""
    about = {"subscriptions": subscriptions, "subscriptions_detail": subscriptions}
    await _ask(ctx, asked, "ROUTEZ", wait, about)


async def gateways(
    ctx: typer.Context,
    asked: Asked,
    wait: Wait = 0,
    filter_name: Annotated[str, argument("Only gateways to this cluster.", "NAME")] = "",
    filter_account: Annotated[str, flag("Only this account.", "NAME")] = "",
    accounts: Annotated[bool, flag("Show accounts, too.")] = False,
    subscriptions: Annotated[bool, flag("Show the subscriptions of --filter-account.")] = True,
) -> None:
    """Show the gateways of servers."""
    detail = bool(filter_account) and subscriptions
    about = {
        "name": filter_name,
        "accounts": accounts or bool(filter_account),
        "account_name": filter_account,
        "subscriptions": detail,
        "subscriptions_detail": detail,
    }
    await _ask(ctx, asked, "GATEWAYZ", wait, about)


async def leafnodes(ctx: typer.Context, asked: Asked, wait: Wait = 0, subscriptions: Subscriptions = False) -> None:
    """Show the leaf nodes of servers."""
    await _ask(ctx, asked, "LEAFZ", wait, {"subscriptions": subscriptions})


async def accounts(ctx: typer.Context, asked: Asked, wait: Wait = 0, account: Account = "") -> None:
    """Show the accounts that servers know, or one of them."""
    await _ask(ctx, asked, "ACCOUNTZ", wait, {"account": account})


async def jetstream(
    ctx: typer.Context,
    asked: Asked,
    wait: Wait = 0,
    account: Account = "",
    accounts: Annotated[bool, flag("Show accounts, too.")] = False,
    streams: Annotated[bool, flag("Show streams, too.")] = False,
    consumer: Annotated[bool, flag("Show consumers, too.")] = False,
    config: Annotated[bool, flag("Show configurations, too.")] = False,
    raft: Annotated[bool, flag("Show groups of replicas, too.")] = False,
    leader: Annotated[bool, flag("Ask the server that leads JetStream, and no other.")] = False,
    stream_leader: Annotated[bool, flag("Show streams where they are led, and nowhere else.")] = False,
    all: Annotated[bool, flag("Show accounts, streams, consumers, configurations and groups.", "--all")] = False,
) -> None:
    """Show JetStream on servers."""
    about = {
        "account": account,
        "accounts": accounts or all,
        "streams": streams or all,
        "consumer": consumer or all,
        "config": config or all,
        "raft": raft or all,
        "leader_only": leader,
        "stream_leader_only": stream_leader,
        **asked.page,
    }
    await _ask(ctx, asked, "JSZ", 1 if leader else wait, about)


async def jetstream_health(
    ctx: typer.Context,
    asked: Asked,
    wait: Wait = 0,
    js_enabled: Annotated[bool, flag("Check only that JetStream is on.", "-J", "--js-enabled")] = False,
    server_only: Annotated[bool, flag("Do not check streams and consumers.", "-S", "--server-only")] = False,
    account: Account = "",
    stream: Annotated[str, flag("Only this stream; needs --account.", "NAME")] = "",
    consumer: Annotated[str, flag("Only this consumer; needs --stream.", "NAME")] = "",
    details: Annotated[bool, flag("Show all that is wrong.")] = True,
) -> None:
    """Show whether servers say that they are healthy."""
    await _ask(
        ctx, asked, "HEALTHZ", wait, health_question(js_enabled, server_only, account, stream, consumer, details)
    )


async def raft(
    ctx: typer.Context,
    asked: Asked,
    account: Account = "",
    group: Annotated[str, flag("Only this group.", "NAME")] = "",
) -> None:
    """Show the groups of replicas that servers are in."""
    await _ask(ctx, asked, "RAFTZ", 0, {"account": account, "group": group})


async def ipqueue(
    ctx: typer.Context,
    asked: Asked,
    all: Annotated[bool, flag("Show empty queues, too.", "--all/--no-all")] = True,
    filter: Annotated[str, flag("Only queues whose name holds this.", "TEXT", "--filter")] = "",
) -> None:
    """Show the queues inside of servers."""
    await _ask(ctx, asked, "IPQUEUESZ", 0, {"all": all, "filter": filter})
