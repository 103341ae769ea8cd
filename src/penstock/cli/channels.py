"""`penstock channels`: serve NATS Streaming clients from JetStream, and look at channels."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import Json, argument, flag
from penstock.cli.global_flags import Globals
from penstock.cli.output import counts, print_json, print_pairs, progress
from penstock.cli.running import first, until_signal
from penstock.cli.server import served, started
from penstock.cli.tables import print_table
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import OptionError
from penstock.part_file import Replacement, writing
from penstock.sizes import parse_size

if TYPE_CHECKING:
    from penstock.channels import Gateway
    from penstock.channels.catalog import Catalog

__all__ = ["Channel", "ClusterId", "Prefix", "Replicas", "check_names", "export", "info", "ls", "serve", "serve_until"]

_PORT = 4222
_NOW_AND_THEN = "2m"  # between two syncs of a server that leaves it to the gateway, or is told so

ClusterId = Annotated[str, flag("Cluster id that clients connect with.", "ID", "-cid", "--cluster-id", "--cluster_id")]
Channel = Annotated[str, argument("Name of the channel.")]
_LOOK = 0.1  # seconds between two looks at who serves
Prefix = Annotated[str, flag("What stands before a channel in its subject.", "PREFIX")]
Replicas = Annotated[int, flag("Servers that keep each stream: 1, 3 or 5.")]


def _limit(short: str, name: str, help: str, *metavar: str) -> Any:
    """Describe a flag as nats-streaming-server has it: under a short name, and with dashes or underscores."""
    return flag(help, *metavar, short, f"--{name.replace('_', '-')}", f"--{name}")


async def serve(
    ctx: typer.Context,
    cluster_id: ClusterId = "test-cluster",
    store: Annotated[
        Path | None, flag("Folder of the embedded server; a temporary one if none.", "DIR", "--store", "--dir")
    ] = None,
    port: Annotated[int | None, flag("Client port of the embedded server, 4222; 0 for a free one.")] = None,
    token: Annotated[str | None, flag("Token for the embedded server; a generated one otherwise.", "T")] = None,
    no_auth: Annotated[bool, flag("Let anybody on this machine connect to it.")] = False,
    sync: Annotated[
        str | None,
        flag(
            "When what is stored is synced to disk: always, by the embedded server, the default; acked, by the gateway "
            "before it acknowledges, once for many, and not for who writes to JetStream directly; or now and then.",
            "always|acked|DURATION",
        ),
    ] = None,
    max_channels: Annotated[int, _limit("-mc", "max_channels", "Channels; 0: any.")] = 100,
    max_subs: Annotated[int, _limit("-msu", "max_subs", "Subscriptions of a channel; 0: any.")] = 1000,
    max_msgs: Annotated[int, _limit("-mm", "max_msgs", "Messages that a channel keeps; 0: any.")] = 1_000_000,
    max_bytes: Annotated[str, _limit("-mb", "max_bytes", "Bytes that a channel keeps; 0: any.", "SIZE")] = "1024000000",
    max_age: Annotated[str, _limit("-ma", "max_age", "How long a message is kept; 0s: ever.", "DURATION")] = "0s",
    max_inactivity: Annotated[
        str, _limit("-mi", "max_inactivity", "When an unused channel goes; 0s: never.", "DURATION")
    ] = "0s",
    limits: Annotated[
        list[str] | None, flag("Limits of channels whose name matches.", "PATTERN:NAME=VALUE,...")
    ] = None,
    hb_interval: Annotated[str, _limit("-hbi", "hb_interval", "Time between heartbeats.", "DURATION")] = "30s",
    hb_timeout: Annotated[str, _limit("-hbt", "hb_timeout", "Time to answer a heartbeat.", "DURATION")] = "10s",
    hb_fail_count: Annotated[int, _limit("-hbf", "hb_fail_count", "Heartbeats a client may miss.")] = 10,
    replace_durable: Annotated[
        bool, flag("Let a new durable replace an active one.", "--replace-durable", "--replace_durable")
    ] = False,
    subject_prefix: Prefix = "",
    replicas: Replicas = 1,
    standby: Annotated[bool, flag("Wait if another gateway serves, and take over when it is gone.")] = False,
    lease: Annotated[str, flag("Silence after which a standby takes over.", "DURATION")] = "10s",
    monitor: Annotated[
        str | None, flag("Monitoring pages, on loopback if no host.", "[HOST:]PORT", "-m", "--monitor")
    ] = None,
    json: Json = False,
) -> None:
    """Serve NATS Streaming clients until Ctrl-C: on the server of -s or a context, else on an embedded one."""
    from penstock.channels import ChannelLimits, Gateway, Limits
    from penstock.channels.limits import PAYLOAD, gather_limits

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
        "timeout": ctx.obj.seconds,
        "monitor": monitor if monitor is None or ":" in monitor else f"127.0.0.1:{monitor}",
    }
    refuse_both("--token", token is not None, "--no-auth", no_auth)
    if not _is_elsewhere(ctx.obj):
        from penstock.server import Server

        Gateway("nats://127.0.0.1:4222", **options)  # what is wrong with the options is said before a server runs
        server = Server(
            store=store,
            port=_PORT if port is None else port,
            token=token,
            auth=not no_auth,
            sync=_NOW_AND_THEN if sync == "acked" else sync or "always",
            max_payload=PAYLOAD,
        )
        with until_signal() as stop:
            async with started(server, stop):
                if not stop.is_set():
                    if monitor:
                        options["nats_monitor"] = server.monitor_urls[0]
                    if sync == "acked":
                        options["synced_store"] = str(server.nodes[0].store)
                    gateway = Gateway(server.url, **options)
                    await served(server, serve_until(gateway, stop, server.url, json=json))
    else:
        embedded = {"--store": store, "--port": port, "--token": token, "--no-auth": no_auth or None, "--sync": sync}
        for name, value in embedded.items():
            if value is not None:
                raise OptionError(
                    f"{name} is for the embedded server, and another one is to be used.",
                    remedy=f"Leave {name} out, or leave out the server's address and context.",
                    option=name,
                )
        gateway = Gateway(ctx.obj.options(), **options)
        with until_signal() as stop:
            await serve_until(gateway, stop, None, json=json)
    if not json:
        typer.echo("Stopped.", err=True)


def _is_elsewhere(given: Globals) -> bool:
    """Whether the flags, the environment or the selected context name a server; the default address does not count."""
    from penstock.contexts import load_options, used_context
    from penstock.options import DEFAULT_URL

    if given.names_a_server:
        return True
    name = used_context()
    return name is not None and load_options(context=name).url != DEFAULT_URL


async def serve_until(gateway: Gateway, stop: asyncio.Event, url: str | None, *, json: bool) -> None:
    """Serve until `stop` is set, or the gateway ends by itself."""
    try:
        await first(gateway.start(), stop.wait())
        if not stop.is_set():
            _announce(gateway, url, json)
            await first(stop.wait(), gateway.wait(), _tell_leading(gateway, json))
    finally:
        await gateway.stop()


def _announce(gateway: Gateway, url: str | None, json: bool) -> None:
    cluster = gateway.options.cluster_id
    if json:
        facts = {"cluster_id": cluster, "url": url, "monitor": gateway.monitor_url, "leading": gateway.leading}
        print_json(facts)
        return
    if url is not None:
        typer.echo(url)  # shows the token: clients need it
    if gateway.monitor_url:
        typer.echo(f"Monitoring: {gateway.monitor_url}/serverz", err=True)
    state = "Serving" if gateway.leading else "Standing by for"
    typer.echo(f"{state} the cluster {cluster}. Ctrl-C stops.", err=True)


async def _tell_leading(gateway: Gateway, json: bool) -> None:
    """Say when a standby takes over, and when it serves no more, until the end."""
    cluster, told = gateway.options.cluster_id, gateway.leading
    while True:
        await asyncio.sleep(_LOOK)
        if gateway.leading == told:
            continue
        told = not told
        if json:
            print_json({"cluster_id": cluster, "leading": told})
        elif told:
            typer.echo(f"Serving the cluster {cluster}: it is our turn.", err=True)
        else:
            typer.echo(f"Standing by for the cluster {cluster}: it is not our turn any more.", err=True)


def check_names(cluster_id: str, subject_prefix: str = "", replicas: int = 1) -> None:
    """Say what is wrong before anything is asked: these become parts of subjects."""
    from penstock.channels.options import GatewayOptions

    GatewayOptions(cluster_id=cluster_id, subject_prefix=subject_prefix, replicas=replicas)


def _catalog(ctx: typer.Context, cluster_id: str) -> Catalog:
    from penstock.channels.catalog import Catalog

    check_names(cluster_id)
    return Catalog(ctx.obj.options(), cluster_id, timeout=ctx.obj.seconds)


async def ls(ctx: typer.Context, cluster_id: ClusterId = "test-cluster", json: Json = False) -> None:
    """List the channels of a cluster, and how full they are."""
    async with _catalog(ctx, cluster_id) as catalog:
        found = await catalog.channels()
    if json:
        print_json([_as_json(item) for item in found])
        return
    if not found:
        typer.echo(f"No channels in the cluster {cluster_id}.")
        return
    rows = [
        (one.name, one.stream, *counts(one.messages, one.bytes, one.first, one.last), len(one.subscriptions))
        for one in found
    ]
    columns = ("Channel", "Stream", "#Messages", "#Bytes", "#First", "#Last", "#Subscriptions")
    print_table(f"Channels of {cluster_id}", columns, rows)


def _as_json(item: Any) -> dict[str, Any]:
    content = dataclasses.asdict(item)
    content["subscriptions"] = [{**given.pop("options"), **given} for given in content["subscriptions"]]
    return content


async def info(
    ctx: typer.Context, channel: Channel, cluster_id: ClusterId = "test-cluster", json: Json = False
) -> None:
    """Show a channel: its stream, its messages and its subscriptions."""
    async with _catalog(ctx, cluster_id) as catalog:
        found = await catalog.channel(channel)
    if json:
        print_json(_as_json(found))
        return
    print_pairs(
        f"Channel {channel} of {cluster_id}",
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
                *counts(item.last, item.pending, item.options.max_in_flight),
                f"{item.options.ack_wait}s",
            )
            for item in found.subscriptions
        ]
        columns = ("Client", "Durable", "Queue", "State", "#Last sent", "#Pending", "#Max in flight", "#Ack wait")
        print_table("Subscriptions", columns, rows)


async def export(
    ctx: typer.Context,
    channel: Channel,
    output: Annotated[Path | None, flag("File to write; standard output if none.", "FILE", "-o", "--output")] = None,
    start: Annotated[int, flag("First sequence.")] = 1,
    end: Annotated[int | None, flag("Sequence to stop before; the present end if none.")] = None,
    cluster_id: ClusterId = "test-cluster",
) -> None:
    """Write a channel's messages as JSON lines: sequence, time in nanoseconds, reply, data in base64."""
    if start < 1 or (end is not None and end < start):
        raise OptionError("--start and --end are not a range.", remedy="Give 1 or more, and no less.", option="--start")
    async with _catalog(ctx, cluster_id) as catalog:
        found = await catalog.channel(channel)
        stop = found.last + 1 if end is None else min(end, found.last + 1)
        count = 0
        with (
            _written(output) as write,
            progress(f"export {channel}", max(0, stop - max(start, found.first))) as advance,
        ):
            async for item in catalog.messages(channel, start, stop):
                line = {"sequence": item.sequence, "time": item.time, "reply": item.reply}
                line["data"] = base64.b64encode(item.data).decode()
                write(json.dumps(line) + "\n")
                count += 1
                advance(1)
    if output is not None:
        typer.echo(f"Wrote {count:,} messages to {output}.", err=True)


@contextmanager
def _written(output: Path | None) -> Iterator[Callable[[str], object]]:
    """Give what takes text: for standard output, or for a file that is there once all of it is written."""
    if output is None:
        yield sys.stdout.write
        return
    remedy = "Make room, or check the path; what was there before is as it was."
    with ExitStack() as kept:
        with writing(output, remedy):
            new = kept.enter_context(Replacement(output))

        def write(text: str) -> None:
            with writing(output, remedy):
                new.file.write(text.encode())

        yield write
        with writing(output, remedy):
            new.keep()
