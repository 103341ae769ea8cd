"""`penstock channels`: serve NATS Streaming clients from JetStream, look at channels, and move them over."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.global_flags import Globals
from penstock.cli.output import Json, first, print_json, print_pairs, print_table, progress, run, until_signal
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError
from penstock.sizes import parse_size

if TYPE_CHECKING:
    from penstock.channels import Gateway
    from penstock.options import ConnectionOptions
    from penstock.server import Server

__all__ = ["export", "info", "ls", "migrate", "serve"]

ClusterId = Annotated[
    str,
    typer.Option("-cid", "--cluster-id", "--cluster_id", metavar="ID", help="Cluster id that clients connect with."),
]


def serve(
    ctx: typer.Context,
    cluster_id: ClusterId = "test-cluster",
    store: Annotated[
        Path | None,
        typer.Option("--store", "--dir", metavar="DIR", help="Folder of the embedded server; a temporary one if none."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Client port of the embedded server; 0 for a free one.")] = 4222,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="T", help="Token for the embedded server; a generated one otherwise."),
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let anybody on this machine connect to it.")] = False,
    sync: Annotated[
        str, typer.Option("--sync", metavar="always|DURATION", help="When the embedded server syncs to disk.")
    ] = "always",
    max_channels: Annotated[
        int, typer.Option("-mc", "--max-channels", "--max_channels", help="Channels; 0: any.")
    ] = 100,
    max_subs: Annotated[
        int, typer.Option("-msu", "--max-subs", "--max_subs", help="Subscriptions of a channel; 0: any.")
    ] = 1000,
    max_msgs: Annotated[
        int, typer.Option("-mm", "--max-msgs", "--max_msgs", help="Messages that a channel keeps; 0: any.")
    ] = 1_000_000,
    max_bytes: Annotated[
        str,
        typer.Option("-mb", "--max-bytes", "--max_bytes", metavar="SIZE", help="Bytes that a channel keeps; 0: any."),
    ] = "1024000000",
    max_age: Annotated[
        str,
        typer.Option("-ma", "--max-age", "--max_age", metavar="DURATION", help="How long a message is kept; 0s: ever."),
    ] = "0s",
    max_inactivity: Annotated[
        str,
        typer.Option(
            "-mi",
            "--max-inactivity",
            "--max_inactivity",
            metavar="DURATION",
            help="When an unused channel goes; 0s: never.",
        ),
    ] = "0s",
    limits: Annotated[
        list[str] | None,
        typer.Option("--limits", metavar="PATTERN:NAME=VALUE,...", help="Limits of channels whose name matches."),
    ] = None,
    hb_interval: Annotated[
        str, typer.Option("-hbi", "--hb-interval", "--hb_interval", metavar="DURATION", help="Time between heartbeats.")
    ] = "30s",
    hb_timeout: Annotated[
        str,
        typer.Option("-hbt", "--hb-timeout", "--hb_timeout", metavar="DURATION", help="Time to answer a heartbeat."),
    ] = "10s",
    hb_fail_count: Annotated[
        int, typer.Option("-hbf", "--hb-fail-count", "--hb_fail_count", help="Heartbeats a client may miss.")
    ] = 10,
    replace_durable: Annotated[
        bool, typer.Option("--replace-durable", "--replace_durable", help="Let a new durable replace an active one.")
    ] = False,
    subject_prefix: Annotated[
        str, typer.Option("--subject-prefix", metavar="PREFIX", help="What stands before a channel in its subject.")
    ] = "",
    replicas: Annotated[int, typer.Option("--replicas", help="Servers that keep each stream: 1, 3 or 5.")] = 1,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait where another gateway serves, and take over when it is gone.")
    ] = False,
    lease: Annotated[
        str, typer.Option("--lease", metavar="DURATION", help="Silence after which a standby takes over.")
    ] = "4s",
    monitor: Annotated[
        str | None,
        typer.Option("-m", "--monitor", metavar="[HOST:]PORT", help="Monitoring pages, on loopback if no host."),
    ] = None,
    json: Json = False,
) -> None:
    """Serve NATS Streaming clients until Ctrl-C: on the server of -s or a context, else on an embedded one."""
    from penstock.channels import ChannelLimits, Gateway, Limits
    from penstock.channels.limits import gather_limits

    given: Globals = ctx.obj
    options: dict[str, Any] = {
        "cluster_id": cluster_id,
        "limits": Limits(
            max_channels,
            ChannelLimits(
                max_msgs=max_msgs,
                max_bytes=parse_size(max_bytes, option="--max-bytes"),
                max_age=parse_duration(max_age, option="--max-age"),
                max_subs=max_subs,
                max_inactivity=parse_duration(max_inactivity, option="--max-inactivity"),
            ),
            gather_limits(limits or []),
        ),
        "hb_interval": parse_duration(hb_interval, option="--hb-interval"),
        "hb_timeout": parse_duration(hb_timeout, option="--hb-timeout"),
        "hb_fail_count": hb_fail_count,
        "replace_durable": replace_durable,
        "subject_prefix": subject_prefix,
        "replicas": replicas,
        "standby": standby,
        "lease": parse_duration(lease, option="--lease"),
        "timeout": given.seconds,
        "monitor": monitor if monitor is None or ":" in monitor else f"127.0.0.1:{monitor}",
    }
    if token is not None and no_auth:
        raise OptionError("--token and --no-auth are given together.", remedy="Leave one out.", option="--no-auth")
    server: Server | None = None
    if _is_elsewhere(given):
        for flag, value in (("--store", store), ("--token", token), ("--no-auth", no_auth or None)):
            if value is not None:
                raise OptionError(
                    f"{flag} is for the embedded server, and another one is to be used.",
                    remedy=f"Leave {flag} out, or leave out the server's address and context.",
                    option=flag,
                )
        gateway = Gateway(given.options(), **options)
    else:
        from penstock.server import Server as Embedded

        Gateway("nats://127.0.0.1:4222", **options)  # what is wrong with the options is said before a server runs
        server = Embedded(store=store, port=port, token=token, auth=not no_auth, sync=sync)
        gateway = None
    run(_serve(server, gateway, options, json))


def _is_elsewhere(given: Globals) -> bool:
    """Whether the flags or the environment name a server; the default address does not count."""
    if given.url or given.context or os.environ.get("NATS_URL") or os.environ.get("NATS_CONTEXT"):
        return True
    from penstock.contexts import load_options
    from penstock.options import DEFAULT_URL

    return load_options(None).url != DEFAULT_URL


async def _serve(server: Server | None, gateway: Gateway | None, options: dict[str, Any], json: bool) -> None:
    from penstock.channels import Gateway as Made

    with until_signal() as stop:
        starting = asyncio.ensure_future(asyncio.to_thread(server.start)) if server else None
        try:
            if server is not None and starting is not None:
                await first(asyncio.shield(starting), stop.wait())
                if stop.is_set():
                    return
                gateway = Made(server.url, **options)
            assert gateway is not None, "there is a server, and so a gateway"
            try:
                await first(gateway.start(), stop.wait())
                if not stop.is_set():
                    _announce(server, gateway, json)
                    await first(stop.wait(), gateway.wait(), _tell_leading(gateway, json))
            finally:
                await gateway.stop()
        finally:
            if server is not None and starting is not None:
                await asyncio.wait([starting])
                await asyncio.to_thread(server.stop)
    if not json:
        typer.echo("Stopped.", err=True)


def _announce(server: Server | None, gateway: Gateway, json: bool) -> None:
    cluster = gateway.options.cluster_id
    if json:
        print_json(
            {
                "cluster_id": cluster,
                "url": server.url if server else None,
                "monitor": gateway.monitor_url,
                "leading": gateway.leading,
            }
        )
        return
    if server is not None:
        typer.echo(server.url)  # shows the token: clients need it
    if gateway.monitor_url:
        typer.echo(f"Monitoring: {gateway.monitor_url}/serverz", err=True)
    state = "Serving" if gateway.leading else "Standing by for"
    typer.echo(f"{state} the cluster {cluster}. Ctrl-C stops.", err=True)


async def _tell_leading(gateway: Gateway, json: bool) -> None:
    """Say when a standby takes over; then wait for the end."""
    if not gateway.leading:
        await gateway.wait_leading()
        if json:
            print_json({"cluster_id": gateway.options.cluster_id, "leading": True})
        else:
            typer.echo(f"Serving the cluster {gateway.options.cluster_id}: it is our turn.", err=True)
    await asyncio.Event().wait()


def _check(cluster_id: str, subject_prefix: str = "", replicas: int = 1) -> None:
    """Say what is wrong before anything is asked: these become parts of subjects."""
    from penstock.channels.options import GatewayOptions

    GatewayOptions(cluster_id=cluster_id, subject_prefix=subject_prefix, replicas=replicas)


def ls(ctx: typer.Context, cluster_id: ClusterId = "test-cluster", json: Json = False) -> None:
    """List the channels of a cluster, and how full they are."""
    _check(cluster_id)
    run(_list(ctx.obj, cluster_id, json))


async def _list(given: Globals, cluster: str, json: bool) -> None:
    from penstock.channels.catalog import Catalog

    async with Catalog(given.options(), cluster, timeout=given.seconds) as catalog:
        found = await catalog.channels()
    if json:
        print_json([_as_json(item) for item in found])
        return
    if not found:
        typer.echo(f"No channels in the cluster {cluster}.")
        return
    rows = [
        (
            item.name,
            item.stream,
            f"{item.messages:,}",
            f"{item.bytes:,}",
            f"{item.first:,}",
            f"{item.last:,}",
            len(item.subscriptions),
        )
        for item in found
    ]
    columns = ("Channel", "Stream", "#Messages", "#Bytes", "#First", "#Last", "#Subscriptions")
    print_table(f"Channels of {cluster}", columns, rows)


def _as_json(item: Any) -> dict[str, Any]:
    import dataclasses

    content = dataclasses.asdict(item)
    content["subscriptions"] = [{**given.pop("options"), **given} for given in content["subscriptions"]]
    return content


def info(
    ctx: typer.Context,
    channel: Annotated[str, typer.Argument(help="Name of the channel.")],
    cluster_id: ClusterId = "test-cluster",
    json: Json = False,
) -> None:
    """Show a channel: its stream, its messages and its subscriptions."""
    _check(cluster_id)
    run(_info(ctx.obj, channel, cluster_id, json))


async def _info(given: Globals, channel: str, cluster: str, json: bool) -> None:
    from penstock.channels.catalog import Catalog

    async with Catalog(given.options(), cluster, timeout=given.seconds) as catalog:
        found = await catalog.channel(channel)
    if json:
        print_json(_as_json(found))
        return
    print_pairs(
        f"Channel {channel} of {cluster}",
        [
            ("Stream", found.stream),
            ("Subject", found.subject),
            ("Messages", f"{found.messages:,}"),
            ("Bytes", f"{found.bytes:,}"),
            ("Sequences", f"{found.first:,} to {found.last:,}"),
            ("Last message", found.last_time or "none"),
            ("Subscriptions", len(found.subscriptions)),
        ],
    )
    if found.subscriptions:
        rows = [
            (
                item.options.client,
                item.options.durable,
                item.options.queue,
                "online" if item.options.online else "offline",
                f"{item.last:,}",
                f"{item.pending:,}",
                f"{item.options.max_in_flight:,}",
                f"{item.options.ack_wait}s",
            )
            for item in found.subscriptions
        ]
        columns = ("Client", "Durable", "Queue", "State", "#Last sent", "#Pending", "#Max in flight", "#Ack wait")
        print_table("Subscriptions", columns, rows)


def export(
    ctx: typer.Context,
    channel: Annotated[str, typer.Argument(help="Name of the channel.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to write; standard output if none.")
    ] = None,
    start: Annotated[int, typer.Option("--start", help="First sequence.")] = 1,
    end: Annotated[int | None, typer.Option("--end", help="Sequence to stop before; the present end if none.")] = None,
    cluster_id: ClusterId = "test-cluster",
) -> None:
    """Write a channel's messages as JSON lines: sequence, time in nanoseconds, reply, data in base64."""
    if start < 1 or (end is not None and end < start):
        raise OptionError("--start and --end are no range.", remedy="Give 1 or more, and no less.", option="--start")
    _check(cluster_id)
    run(_export(ctx.obj, channel, output, start, end, cluster_id))


async def _export(given: Globals, channel: str, output: Path | None, start: int, end: int | None, cluster: str) -> None:
    import json

    from penstock.channels.catalog import Catalog

    async with Catalog(given.options(), cluster, timeout=given.seconds) as catalog:
        found = await catalog.channel(channel)
        stop = found.last + 1 if end is None else min(end, found.last + 1)
        try:
            file = sys.stdout if output is None else output.open("w")
        except OSError as error:
            raise InputError(f"{output} cannot be written: {error.strerror}.", remedy="Check the path.") from None
        count = 0
        try:
            with progress(f"export {channel}", max(0, stop - max(start, found.first))) as advance:
                async for item in catalog.messages(channel, start, stop):
                    line = {"sequence": item.sequence, "time": item.time, "reply": item.reply}
                    line["data"] = base64.b64encode(item.data).decode()
                    file.write(json.dumps(line) + "\n")
                    count += 1
                    advance(1)
        finally:
            if output is not None:
                file.close()
    if output is not None:
        typer.echo(f"Wrote {count:,} messages to {output}.", err=True)


def migrate(
    ctx: typer.Context,
    channels: Annotated[
        list[str] | None, typer.Argument(help="Channels to copy; all of --from-monitor if none.")
    ] = None,
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="NATS address of the NATS Streaming server to copy from.")
    ] = "",
    from_cluster: Annotated[
        str, typer.Option("--from-cluster", metavar="ID", help="Cluster id of that server.")
    ] = "test-cluster",
    from_monitor: Annotated[
        str | None, typer.Option("--from-monitor", metavar="URL", help="Its monitoring address, to list channels.")
    ] = None,
    cluster_id: ClusterId = "test-cluster",
    subject_prefix: Annotated[
        str, typer.Option("--subject-prefix", metavar="PREFIX", help="What stands before a channel in its subject.")
    ] = "",
    replicas: Annotated[int, typer.Option("--replicas", help="Servers that keep each stream: 1, 3 or 5.")] = 1,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare every message at the end.")] = True,
    json: Json = False,
) -> None:
    """Copy channels of a running NATS Streaming server into streams; run it again to go on where it stopped."""
    if not source:
        raise OptionError("--from is missing.", remedy="Give the old server's NATS address.", option="--from")
    if not channels and not from_monitor:
        raise OptionError(
            "No channel is named.", remedy="Name some, or give --from-monitor to copy all.", option="--from-monitor"
        )
    _check(from_cluster)
    _check(cluster_id, subject_prefix, replicas)
    run(
        _migrate(
            ctx.obj, channels, source, from_cluster, from_monitor, cluster_id, subject_prefix, replicas, verify, json
        )
    )


async def _migrate(
    given: Globals,
    names: list[str] | None,
    source: str,
    from_cluster: str,
    monitor: str | None,
    cluster: str,
    prefix: str,
    replicas: int,
    verify: bool,
    json: bool,
) -> None:
    from penstock.channels.migrate import copy_channel, find_ends, names_from_monitor, verify_channel

    listed = names or await names_from_monitor(monitor or "")
    rows = []
    async with _both(given, source, from_cluster, cluster, prefix, replicas) as (old, store):
        for name in listed:
            ends, copied, same = await find_ends(old, name), None, 0
            if ends is not None:
                total = ends[1] - ends[0] + 1
                with progress(f"copy {name}", total) as advance:
                    copied = await copy_channel(old, store, name, ends, advance)
                if verify:
                    with progress(f"verify {name}", total) as advance:
                        same = await verify_channel(old, store, name, ends, advance)
            rows.append(
                {
                    "channel": name,
                    "stream": copied.stream if copied else None,
                    "first": copied.first if copied else 0,
                    "end": copied.end if copied else 0,
                    "copied": copied.copied if copied else 0,
                    "verified": same if verify else None,
                }
            )
            if not json:
                what = f"{copied.copied:,} copied, {same:,} compared" if copied else "nothing there"
                typer.echo(f"{name}: {what}", err=True)
    if json:
        print_json(rows)
    else:
        columns = ("Channel", "Stream", "#First", "#End", "#Copied", "#Verified")
        print_table("Copied", columns, [tuple(row.values()) for row in rows])


@asynccontextmanager
async def _both(
    given: Globals, source: str, from_cluster: str, cluster: str, prefix: str, replicas: int
) -> AsyncIterator[tuple[Any, Any]]:
    from penstock.channels import Client
    from penstock.channels.store import Store
    from penstock.connection import connect
    from penstock.options import ConnectionOptions

    options: ConnectionOptions = given.options()
    old = Client(
        ConnectionOptions(source),
        cluster_id=from_cluster,
        client_id=f"penstock-{secrets.token_hex(6)}",
        connect_timeout=given.seconds,
    )
    new = await connect(options)
    try:
        async with old:
            yield old, Store(new, cluster, prefix=prefix, replicas=replicas)
    finally:
        await new.close()
