"""`penstock server report`: accounts, connections, CPU, memory and health of all servers, for the system account."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.connection_choice import ConnectionChoice, connection_tables
from penstock.cli.flags import Json, argument, flag
from penstock.cli.server_asking import Limit, Reporting, ServerReport, counted, show, unanswered
from penstock.cli.values import choice
from penstock.errors import InputError, NotFoundError
from penstock.sizes import format_size
from penstock.system.reports import ACCOUNT_SORTS, CONNECTION_SORTS

__all__ = ["accounts", "connections", "cpu", "health", "mem"]

Top = Annotated[int, flag("Show this many at most, those with most of what is sorted by.", "N", min=0)]
_BAR = 30  # columns of the longest bar


async def accounts(
    ctx: typer.Context,
    reporting: Reporting,
    account: Annotated[str | None, argument("Only this account, connection by connection.", "ACCOUNT")] = None,
    limit: Limit = 0,
    sort: Annotated[str, flag(f"Sort by one of {', '.join(ACCOUNT_SORTS)}.", "KEY")] = "subs",
    top: Top = 1000,
    json: Json = False,
) -> None:
    """Show the accounts that have connections: how many, with how many messages and bytes."""
    field = choice(ACCOUNT_SORTS)(sort, option="--sort")

    async def report(client: Any) -> ServerReport:
        from penstock.system.connections import ask_connections
        from penstock.system.reports import accounts_of, connections_in, sort_rows

        about = {"subscriptions": True, "auth": True, "acc": account or ""}
        got = await ask_connections(client, about, where=reporting.where(client), expect=limit)
        found = accounts_of(connections_in(got.answers))
        if account is not None:
            found = [item for item in found if item["account"] == account]
            if not found:
                raise NotFoundError(
                    f"The account {account} has no connections.",
                    remedy="`penstock server report accounts` shows those that have.",
                )
            held = found[0]["connection_info"]
            kept = sort_rows(held, CONNECTION_SORTS["subs"], reverse=reporting.reverse, top=top)
            return ServerReport(found[0], connection_tables(held, kept, "subs"), missing=unanswered(got))
        found = sort_rows(found, field, reverse=reporting.reverse, top=top)
        columns = ("Account", "#Connections", "#In msgs", "#Out msgs", "#In bytes", "#Out bytes", "#Subs")
        rows = [
            (
                item["account"],
                *(f"{item[key]:,}" for key in ("connections", "in_msgs", "out_msgs")),
                *(format_size(item[key]) for key in ("in_bytes", "out_bytes")),
                f"{item['subscriptions']:,}",
            )
            for item in found
        ]
        return ServerReport(found, [(counted(len(found), "account"), columns, rows)], missing=unanswered(got))

    await show(ctx, reporting.watch, json, report)


async def connections(
    ctx: typer.Context,
    reporting: Reporting,
    chosen: ConnectionChoice,
    limit: Limit = 0,
    account: Annotated[str, flag("Only connections of this account.", "NAME")] = "",
    json: Json = False,
) -> None:
    """Show the connections of clients: name, address, account, uptime, messages, bytes and subscriptions."""
    about = chosen.question() | ({"acc": account} if account else {})

    async def report(client: Any) -> ServerReport:
        from penstock.system.connections import ask_connections
        from penstock.system.reports import connections_in

        got = await ask_connections(client, about, where=reporting.where(client), expect=limit)
        found = chosen.matching(connections_in(got.answers))
        kept = chosen.sorted(found, reporting.reverse)
        tables = connection_tables(found, kept, chosen.sort, reason=chosen.state != "open")
        return ServerReport(kept, tables, missing=unanswered(got))

    await show(ctx, reporting.watch, json, report)


async def cpu(ctx: typer.Context, reporting: Reporting, limit: Limit = 0, json: Json = False) -> None:
    """Show the CPU that each server uses, in percent of a core."""
    await _usage(ctx, reporting, limit, json, "cpu", "CPU")


async def mem(ctx: typer.Context, reporting: Reporting, limit: Limit = 0, json: Json = False) -> None:
    """Show the memory that each server uses."""
    await _usage(ctx, reporting, limit, json, "mem", "Memory")


async def _usage(ctx: typer.Context, reporting: Reporting, limit: int, json: bool, field: str, title: str) -> None:
    async def report(client: Any) -> ServerReport:
        from penstock.system import servers
        from penstock.system.fields import figure

        found, absent = await servers(client, reporting.where(client), expect=limit)
        used = {item.name: figure(item.stats, field) for item in found}
        ordered = sorted(used.items(), key=lambda item: (item[1], item[0]), reverse=reporting.reverse)
        most = max(used.values(), default=0) or 1
        rows = [
            (name, format_size(value) if field == "mem" else f"{value:g}%", "█" * round(value / most * _BAR))
            for name, value in ordered
        ]
        missing = [counted(absent, "server")] if absent else []
        of = f"{title} of {counted(len(used), 'server')}"
        return ServerReport(used, [(of, ("Server", f"#{title}", "Share"), rows)], missing=missing)

    await show(ctx, reporting.watch, json, report)


async def health(
    ctx: typer.Context,
    reporting: Reporting,
    limit: Limit = 0,
    js_enabled: Annotated[bool, flag("Check only that JetStream is on.", "-J", "--js-enabled")] = False,
    server_only: Annotated[bool, flag("Do not check streams and consumers.", "-S", "--server-only")] = False,
    account: Annotated[str, flag("Check this account only.", "NAME")] = "",
    stream: Annotated[str, flag("Check this stream only; needs --account.", "NAME")] = "",
    consumer: Annotated[str, flag("Check this consumer only; needs --stream.", "NAME")] = "",
    json: Json = False,
) -> None:
    """Show whether servers say that they are healthy, and what is wrong if not."""
    about = health_question(js_enabled, server_only, account, stream, consumer)

    async def report(client: Any) -> ServerReport:
        from penstock.system import ask_servers
        from penstock.system.fields import figure, rows, word
        from penstock.system.gathering import data_of

        got = await ask_servers(client, "HEALTHZ", about, where=reporting.where(client), expect=limit)
        lines, well, errors = [], 0, 0
        for answer in got.answers[::-1] if reporting.reverse else got.answers:
            data = data_of(answer)
            wrong = rows(data, "errors")
            code = figure(data, "status_code")
            well += code == 200
            errors += len(wrong)
            server = [word(answer, "server", key) for key in ("name", "cluster", "domain")]
            first = word(data, "error") if not wrong else ""
            lines.append((*server, f"{word(data, 'status')} ({code})", "", first))
            lines += [("", "", "", "", word(item, "type"), word(item, "error")) for item in wrong[:10]]
            if len(wrong) > 10:
                lines.append(("", "", "", "", "", f"and {len(wrong) - 10:,} more"))
        ill = len(got.answers) - well
        title = f"Health of {counted(len(got.answers), 'server')}: {well} well, {ill} not, {counted(errors, 'error')}"
        columns = ("Server", "Cluster", "Domain", "Status", "Type", "~Error")
        return ServerReport(list(got.answers), [(title, columns, lines)], missing=unanswered(got))

    await show(ctx, reporting.watch, json, report)


def health_question(
    js_enabled: bool, server_only: bool, account: str, stream: str, consumer: str, details: bool = True
) -> dict[str, Any]:
    """Give what a server is asked about its health."""
    if (stream and not account) or (consumer and not stream):
        raise InputError(
            "A stream is named without its account, or a consumer without its stream.",
            remedy="Give --account, --stream and --consumer.",
        )
    asked = {
        "js-enabled-only": js_enabled,
        "js-server-only": server_only,
        "account": account,
        "stream": stream,
        "consumer": consumer,
        "details": details,
    }
    return {key: value for key, value in asked.items() if value}
