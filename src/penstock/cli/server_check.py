"""`penstock server check`: connections, servers, services, the JetStream account and credentials."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any

import typer

from penstock.cli.flags import flag, flag_table, given_fields, table_flag
from penstock.cli.message_parts import check_subjects, parse_headers
from penstock.cli.running import connected
from penstock.cli.server_checking import Rendering, end_check, pattern, run_check, span
from penstock.cli.values import parse_pairs
from penstock.errors import LoginError, PenstockError

__all__ = ["connection", "credential", "jetstream", "meta", "request", "server"]


@flag_table
class ConnectionFlags:
    """How long a connection and its round trips may take."""

    connect_warn: str = table_flag("Connecting is a warning from here on.", "DURATION", default="500ms", read=span)
    connect_critical: str = table_flag("Connecting is critical from here on.", "DURATION", default="1s", read=span)
    rtt_warn: str = table_flag("A ping is a warning from here on.", "DURATION", default="500ms", read=span)
    rtt_critical: str = table_flag("A ping is critical from here on.", "DURATION", default="1s", read=span)
    req_warn: str = table_flag(
        "A message to ourselves is a warning from here on.", "DURATION", default="500ms", read=span
    )
    req_critical: str = table_flag(
        "A message to ourselves is critical from here on.", "DURATION", default="1s", read=span
    )


async def connection(ctx: typer.Context, flags: ConnectionFlags, rendering: Rendering) -> None:
    """Check that the server can be reached: how long a connection, a ping and a message to ourselves take."""
    from penstock.system import CheckResult
    from penstock.system.check_servers import check_time

    levels = given_fields(flags)
    rendering.check()
    result = CheckResult("connections", "Connection")
    ctx.obj.options()  # bad input is no matter of the server
    import penstock.connection  # noqa: F401  # what it takes to load is not time of the server

    try:
        began = time.perf_counter()
        async with connected(ctx) as client:
            took = time.perf_counter() - began
            check_time(result, "connect_time", took, levels["connect_warn"], levels["connect_critical"], "connect")
            check_time(result, "rtt", await client.rtt(), levels["rtt_warn"], levels["rtt_critical"], "ping")
            sent, inbox = secrets.token_hex(50).encode(), client.new_inbox()
            subscription = await client.subscribe(inbox, max_msgs=1)
            began = time.perf_counter()
            with client.expecting(inbox, subscription.end):
                await client.publish(inbox, sent)
                message = await subscription.next_msg(timeout=ctx.obj.seconds)
            took = time.perf_counter() - began
            check_time(result, "request_time", took, levels["req_warn"], levels["req_critical"], "round trip")
            if message.data != sent:
                result.critical("another message came back")
    except PenstockError as error:
        result.critical(str(error))
    end_check(rendering, result)


@flag_table
class ServerLevelFlags:
    """What a server must be."""

    cpu_warn: int | None = table_flag("A warning at this much CPU or more, in percent.", "PERCENT")
    cpu_critical: int | None = table_flag("Critical at this much CPU or more, in percent.", "PERCENT")
    mem_warn: int | None = table_flag("A warning at this much memory or more.", "BYTES")
    mem_critical: int | None = table_flag("Critical at this much memory or more.", "BYTES")
    conn_warn: int | None = table_flag(
        "A warning at this many connections or more; or fewer, if critical is less.", "N"
    )
    conn_critical: int | None = table_flag("Critical at this many connections or more; or fewer, if it is less.", "N")
    subs_warn: int | None = table_flag(
        "A warning at this many subscriptions or more; or fewer, if critical is less.", "N"
    )
    subs_critical: int | None = table_flag("Critical at this many subscriptions or more; or fewer, if it is less.", "N")
    uptime_warn: str | None = table_flag("A warning if it is up no longer than that.", "DURATION", read=span)
    uptime_critical: str | None = table_flag("Critical if it is up no longer than that.", "DURATION", read=span)
    auth_required: bool = table_flag("Critical if it asks for no login.", default=False)
    tls_required: bool = table_flag("Critical if it asks for no TLS.", default=False)
    js_required: bool = table_flag("Critical if JetStream is off.", default=False)
    tls_cert_warn: str | None = table_flag("A warning if a certificate ends within that.", "DURATION", read=span)
    tls_cert_crit: str | None = table_flag("Critical if a certificate ends within that.", "DURATION", read=span)


async def server(
    ctx: typer.Context,
    name: Annotated[str, flag("The server.", "NAME", "--name")],
    flags: ServerLevelFlags,
    rendering: Rendering,
) -> None:
    """Check one server: CPU, memory, connections, uptime, certificates; for the system account."""
    from penstock.system import CheckResult
    from penstock.system.check_servers import ServerLevels, check_server

    levels = ServerLevels(**given_fields(flags))

    async def look(client: Any, result: CheckResult) -> None:
        from penstock.system.gathering import ask_server

        check_server(result, await ask_server(client, "VARZ", name), levels)

    await run_check(ctx, rendering, CheckResult("server", name), look)


@flag_table
class RequestFlags:
    """What the answer of a service must be."""

    match_payload: str | None = table_flag("Critical if the answer does not match this.", "REGEX", read=pattern)
    response_warn: str | None = table_flag("A warning if the answer takes longer.", "DURATION", read=span)
    response_critical: str | None = table_flag("Critical if the answer takes longer.", "DURATION", read=span)


async def request(
    ctx: typer.Context,
    subject: Annotated[str, flag("The subject to ask on.", "SUBJECT", "--subject")],
    flags: RequestFlags,
    rendering: Rendering,
    payload: Annotated[str, flag("What to send.", "TEXT")] = "",
    headers: Annotated[list[str] | None, flag("Header to send; may be repeated.", "KEY=VALUE", "--headers")] = None,
    match_headers: Annotated[
        list[str] | None, flag("Critical if the answer lacks this; may be repeated.", "KEY=VALUE", "--match-headers")
    ] = None,
) -> None:
    """Check a service: that it answers, in time, and with what it should."""
    from penstock.system import CheckResult
    from penstock.system.check_servers import RequestLevels, check_request

    check_subjects(subject, literal=True)
    sent = parse_headers([f"{key}:{value}" for key, value in parse_pairs(headers or (), "--headers").items()])
    wanted = tuple(parse_pairs(match_headers or (), "--match-headers").items())
    levels = RequestLevels(match_headers=wanted, **given_fields(flags))

    async def look(client: Any, result: CheckResult) -> None:
        from penstock.wire.protocol import decode_headers

        about = {"warning": levels.response_warn, "critical": levels.response_critical, "unit": "s"}
        began = time.perf_counter()
        try:
            message = await client.request(subject, payload.encode(), headers=sent or None)
        finally:
            took = time.perf_counter() - began
            result.measure("time", round(took, 3), "Seconds that the answer took", **about)
        block = message.header_block
        check_request(result, took, message.data, {} if block is None else decode_headers(block)[2], levels)

    await run_check(ctx, rendering, CheckResult("request", subject), look)


async def meta(
    ctx: typer.Context,
    expect: Annotated[int, flag("How many servers the group has.", "N", "--expect", min=0)],
    lag_critical: Annotated[int, flag("Critical if a server is further behind.", "OPS", "--lag-critical", min=0)],
    seen_critical: Annotated[str, flag("Critical if one was not seen for longer.", "DURATION", "--seen-critical")],
    rendering: Rendering,
) -> None:
    """Check the servers that lead JetStream in a cluster; for the system account."""
    from penstock.system import CheckResult
    from penstock.system.check_servers import MetaLevels, check_meta

    levels = MetaLevels(expect, lag_critical, span(seen_critical, "--seen-critical"))

    async def look(client: Any, result: CheckResult) -> None:
        from penstock.system import ask_servers
        from penstock.system.gathering import data_of

        got = await ask_servers(client, "JSZ", {"leader_only": True}, expect=1)
        check_meta(result, data_of(got.answers[0]), levels)

    await run_check(ctx, rendering, CheckResult("meta", "JetStream Meta Cluster"), look)


@flag_table
class AccountFlags:
    """How much of its limits an account may use."""

    mem_warn: int = table_flag("A warning above this much memory, in percent; -1 for never.", "PERCENT", default=75)
    mem_critical: int = table_flag("Critical above this much memory, in percent; -1 for never.", "PERCENT", default=90)
    store_warn: int = table_flag("A warning above this much disk, in percent; -1 for never.", "PERCENT", default=75)
    store_critical: int = table_flag("Critical above this much disk, in percent; -1 for never.", "PERCENT", default=90)
    streams_warn: int = table_flag("A warning above this many streams, in percent.", "PERCENT", default=-1)
    streams_critical: int = table_flag("Critical above this many streams, in percent.", "PERCENT", default=-1)
    consumers_warn: int = table_flag("A warning above this many consumers, in percent.", "PERCENT", default=-1)
    consumers_critical: int = table_flag("Critical above this many consumers, in percent.", "PERCENT", default=-1)


async def jetstream(
    ctx: typer.Context,
    flags: AccountFlags,
    rendering: Rendering,
    replicas: Annotated[bool, flag("Check the replicas of all streams.")] = True,
    replica_seen_critical: Annotated[str, flag("Critical if one was not seen for longer.", "DURATION")] = "5s",
    replica_lag_critical: Annotated[int, flag("Critical if one is further behind.", "OPS", min=0)] = 200,
) -> None:
    """Check what the account uses of its JetStream limits, and the replicas of its streams."""
    from penstock.system import CheckResult
    from penstock.system.check_assets import ReplicaLevels, check_replicas
    from penstock.system.check_servers import AccountLevels, check_account

    levels = AccountLevels(**given_fields(flags))
    replica = ReplicaLevels(span(replica_seen_critical, "--replica-seen-critical"), replica_lag_critical)

    async def look(client: Any, result: CheckResult) -> None:
        from penstock.jetstream import assets

        check_account(result, await assets.account_info(client), levels)
        if replicas:
            missing: set[str] = set()
            found = await assets.streams(client, missing=missing)
            check_replicas(result, [item.raw for item in found], len(missing), replica)

    await run_check(ctx, rendering, CheckResult("jetstream", "JetStream"), look)


@flag_table
class CredentialFlags:
    """How long a credential must be valid."""

    validity_warn: str | None = table_flag("A warning if it ends within that.", "DURATION", read=span)
    validity_critical: str | None = table_flag("Critical if it ends within that.", "DURATION", read=span)
    require_expiry: bool = table_flag("Critical if it never ends.", default=True)


def credential(
    credential: Annotated[str, flag("The credentials file.", "FILE", "--credential")],
    flags: CredentialFlags,
    rendering: Rendering,
) -> None:
    """Check how long a credentials file is valid; asks no server."""
    from penstock.credentials import claims
    from penstock.system import CheckResult
    from penstock.system.check_servers import CredentialLevels, check_credential

    levels = CredentialLevels(**given_fields(flags))
    rendering.check()
    result = CheckResult("credential", "Credential")
    try:
        expires = claims(credential).get("exp") or 0
        check_credential(result, expires if isinstance(expires, int) else 0, levels, time.time())
    except LoginError as error:
        result.critical(str(error))
    end_check(rendering, result)
