"""`penstock server`: run a real nats-server, and ask one who it is."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer

from penstock.cli.flags import Json, argument, flag_table, given_fields, table_flag
from penstock.cli.output import local, print_json, print_pairs, print_sections
from penstock.cli.running import connected, first, until_signal
from penstock.cli.tables import plain
from penstock.cli.values import opposite, refuse_both
from penstock.durations import format_duration
from penstock.errors import ContextError, InputError, JetStreamError, NoRespondersError, ServerError
from penstock.options import DEFAULT_URL
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.server import Server

__all__ = ["info", "run_", "served", "started", "watch"]

T = TypeVar("T")

_NAME_IT = "For this one, write -s with the URL above."


def _content(file: Path, option: str) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"{option} {file} cannot be read: {reason}.", remedy="Check the path.") from None


@flag_table
class ServerFlags:
    """The server to run; each flag is an option of `penstock.Server`."""

    nodes: int = table_flag("1, or 3 for a JetStream cluster on this machine.", default=1)
    store: Path | None = table_flag("Folder to keep; a temporary one if none is given.", "DIR")
    port: int = table_flag("Client port; 0 for a free one.", default=0)
    sync: str = table_flag("Sync before each ack, or at this interval.", "always|DURATION", default="always")
    token: str | None = table_flag("Token that clients must give; a generated one otherwise.", "T")
    no_auth: bool = table_flag("Let anybody on this machine connect.", default=False, to="auth", read=opposite)
    max_payload: int | None = table_flag("Largest message; 1 MiB by default.", "BYTES")
    tls_cert: Path | None = table_flag("Certificate of the server; needs --key.", "FILE", "--cert")
    tls_key: Path | None = table_flag("Key of the certificate.", "FILE", "--key")
    tls_ca: Path | None = table_flag("Ask clients for certificates signed by this.", "FILE", "--ca")
    config: Path | None = table_flag("Further nats-server configuration.", "FILE", read=_content)
    binary: Path | None = table_flag("The nats-server to run, if not the installed one.", "FILE")
    on_loss: str = table_flag("A store with less than it held: refuse it, or go on.", "refuse|tell", default="refuse")


async def run_(flags: ServerFlags, json: Json = False) -> None:
    """Run a NATS server with JetStream until Ctrl-C, and print the URL to connect to."""
    refuse_both("--token", flags.token is not None, "--no-auth", flags.no_auth)
    from penstock.server import Server

    server = Server(**given_fields(flags))
    with until_signal() as stop:
        async with started(server, stop):
            if not stop.is_set():
                with _found(server) as (context, told):
                    _show(server, context, told, json, kept=flags.store is not None)
                    await first(stop.wait(), watch(server))
    if not json:
        typer.echo("Stopped.", err=True)


@asynccontextmanager
async def started(server: Server, stop: asyncio.Event) -> AsyncIterator[None]:
    """Run a server of our own; a start that takes long is not waited for when `stop` is set."""
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    try:
        await first(asyncio.shield(starting), stop.wait())
        yield
    finally:
        # A start that was interrupted is waited for: it is bounded, and what it started must be stopped.
        await asyncio.wait([starting])
        await asyncio.to_thread(server.stop)


@contextmanager
def _found(server: Server) -> Iterator[tuple[Path | None, str]]:
    """Let programs that name no server find this one, if that takes nobody from a server that he meant.

    Give the context that leads here, and what to tell of it.
    """
    from penstock.contexts import to_context
    from penstock.local_server import announce
    from penstock.options import ConnectionOptions

    with ExitStack() as stack:
        if other := _listener(server):
            yield None, f"Something listens at {other}, and commands that name no server go there. {_NAME_IT}"
            return
        try:
            context = stack.enter_context(announce(to_context(ConnectionOptions(server.url))))
        except ContextError as error:
            yield None, f"Commands that name no server do not find this one: {error.what} {_NAME_IT}"
            return
        yield context, _who_finds(context)


def _listener(server: Server) -> str | None:
    """Give the address to which programs connect that name no server, if somebody else listens there."""
    default = urlsplit(DEFAULT_URL)
    address = default.hostname or "", default.port or 0
    if any(urlsplit(url).port == address[1] for url in server.urls):
        return None  # it is this server itself
    try:
        socket.create_connection(address, 1.0).close()
    except OSError:
        return None
    return f"{address[0]}:{address[1]}"


def _who_finds(context: Path) -> str:
    from penstock.context_files import selected_context

    for name in ("NATS_CONTEXT", "NATS_URL"):
        if os.environ.get(name):
            return f"{name} is set in this shell, so commands here use that server; in other shells they find this one."
    try:
        chosen = selected_context()
    except ContextError as error:
        return error.what
    if chosen is not None:
        return (
            f"The context {plain(chosen)} is selected, and commands go on using it. "
            f"For this server, add --context {shlex.quote(str(context))}, or unselect the other: "
            "`penstock context unselect`."
        )
    return "While it runs, commands and programs of yours on this machine find it without a URL."


def _show(server: Server, context: Path | None, told: str, json: bool, *, kept: bool) -> None:
    if json:
        print_json(
            {
                "url": server.url,
                "context": None if context is None else str(context),
                "version": server.version,
                "nodes": [
                    {"name": node.name, "pid": node.pid, "monitor": node.monitor_url, "log": str(node.log)}
                    for node in server.nodes
                ],
                "losses": [asdict(loss) for loss in server.losses],
            }
        )
        return
    # The one place that shows the token: whoever runs the server needs it to connect.
    typer.echo(server.url)
    for node in server.nodes:
        typer.echo(f"{node.name}: pid {node.pid}, monitoring {node.monitor_url}, log {node.log}", err=True)
    typer.echo(told, err=True)
    if not kept:
        typer.echo("What it stores is gone when it ends; --store DIR keeps it.", err=True)
    typer.echo(f"nats-server {server.version} is running. Ctrl-C stops it.", err=True)


async def watch(server: Server) -> None:
    """Say so when a node of a server of our own dies; raise when none is left: then nobody can be served any more."""
    dead: set[str] = set()
    while True:
        for node in server.nodes:
            if not node.alive and node.name not in dead:
                dead.add(node.name)
                typer.echo(f"{node.name} is dead; its log is {node.log}", err=True)
        if dead and len(dead) == len(server.nodes):
            server.check()
            raise ServerError(
                "The nats-server that this command started has ended, and not by this command.",
                remedy="The log named above tells why, unless it was killed. Start the command again.",
            )
        await asyncio.sleep(0.2)


async def served(server: Server, work: Coroutine[Any, Any, T]) -> T:
    """Do work that needs a server of our own; ServerError as soon as that server is gone."""
    task = asyncio.ensure_future(work)
    try:
        await first(asyncio.shield(task), watch(server))
    finally:
        task.cancel()
        await asyncio.wait([task])
    return task.result()


async def info(
    ctx: typer.Context,
    server: Annotated[str | None, argument("Another server, by name or id; for the system account.", "SERVER")] = None,
    json: Json = False,
) -> None:
    """Show the server that answers, or another one: name, version, limits, JetStream."""
    from penstock.connection import api_request

    if server is not None:
        from penstock.system.gathering import ask_server

        async with connected(ctx) as client:
            varz = await ask_server(client, "VARZ", server)
        if json:
            print_json(varz)
        else:
            print_sections(*_sections(varz))
        return

    account: dict[str, Any] | None = None
    async with connected(ctx) as client:
        seconds = await client.rtt()
        facts: dict[str, Any] = dict(client.server_info)
        try:
            account = await api_request(client, "INFO")
        except (NoRespondersError, JetStreamError) as error:
            facts["jetstream_error"] = str(error)
    for secret in ("nonce", "client_ip"):
        facts.pop(secret, None)
    if json:
        print_json({"server": facts, "rtt": seconds, "jetstream": account})
        return
    print_pairs(
        f"Server {facts.get('server_name')}",
        [
            ("Version", facts.get("version")),
            ("Id", facts.get("server_id")),
            ("Cluster", facts.get("cluster")),
            ("Address", f"{facts.get('host')}:{facts.get('port')}"),
            ("Max payload", f"{facts.get('max_payload', 0):,} bytes"),
            ("Headers", "yes" if facts.get("headers") else "no"),
            ("TLS required", "yes" if facts.get("tls_required") else "no"),
            ("Login required", "yes" if facts.get("auth_required") else "no"),
            ("Round trip", f"{seconds * 1000:.3f}ms"),
            *_jetstream_pairs(account, facts.get("jetstream_error")),
        ],
    )


def _jetstream_pairs(account: dict[str, Any] | None, error: str | None) -> list[tuple[str, object]]:
    if account is None:
        return [("JetStream", f"not available: {error}")]
    limits = account.get("limits", {})

    def limit(name: str) -> str:
        value = limits.get(name, -1)
        return "unlimited" if value < 0 else f"{value:,}"

    return [
        ("JetStream", f"domain {account['domain']}" if account.get("domain") else "yes"),
        ("Streams", f"{account.get('streams', 0):,} of {limit('max_streams')}"),
        ("Consumers", f"{account.get('consumers', 0):,} of {limit('max_consumers')}"),
        ("Memory", f"{account.get('memory', 0):,} bytes of {limit('max_memory')}"),
        ("Disk", f"{account.get('storage', 0):,} bytes of {limit('max_storage')}"),
    ]


def _sections(varz: dict[str, Any]) -> tuple[str, list[tuple[str, list[tuple[str, Any]]]]]:
    """Give what a server says of itself, under headings."""
    from penstock.system.fields import fields, figure, moment, rows, switch, word

    def size(*path: str) -> str:
        return format_size(figure(varz, *path))

    name, cluster, gateway = word(varz, "server_name"), fields(varz, "cluster"), fields(varz, "gateway")
    sections: list[tuple[str, list[tuple[str, Any]]]] = [
        (
            "Process",
            [
                ("Id", word(varz, "server_id")),
                ("Version", word(varz, "version")),
                ("Git commit", word(varz, "git_commit") or None),
                ("Go", word(varz, "go")),
                ("Started", local(moment(varz, "start"))),
                ("Configuration loaded", local(moment(varz, "config_load_time"))),
                ("Configuration digest", word(varz, "config_digest") or None),
                ("Uptime", word(varz, "uptime")),
                ("Tags", varz.get("tags") or None),
            ],
        ),
        (
            "Connections",
            [
                ("Address", f"{word(varz, 'host')}:{figure(varz, 'port')}"),
                ("Login required", switch(varz, "auth_required")),
                ("TLS required", switch(varz, "tls_required")),
                ("Client URLs", varz.get("connect_urls") or None),
                ("WebSocket URLs", varz.get("ws_connect_urls") or None),
                ("System account", word(varz, "system_account") or None),
            ],
        ),
        (
            "Limits",
            [
                ("Connections", figure(varz, "max_connections")),
                ("Subscriptions", figure(varz, "max_subscriptions") or None),
                ("Payload", size("max_payload")),
                ("Pending", size("max_pending")),
                ("Write deadline", format_duration(figure(varz, "write_deadline") / 1e9)),
            ],
        ),
        (
            "Figures",
            [
                ("CPU", f"{figure(varz, 'cpu'):g}% of {figure(varz, 'cores')} cores"),
                ("Memory", size("mem")),
                ("Connections", figure(varz, "connections")),
                ("Subscriptions", figure(varz, "subscriptions")),
                ("Messages", f"{figure(varz, 'in_msgs'):,} in, {figure(varz, 'out_msgs'):,} out"),
                ("Bytes", f"{size('in_bytes')} in, {size('out_bytes')} out"),
                ("Slow consumers", figure(varz, "slow_consumers")),
            ],
        ),
    ]
    if js := fields(varz, "jetstream", "config"):
        sections.append(
            (
                "JetStream",
                [
                    ("Domain", word(js, "domain") or None),
                    ("API level", figure(varz, "jetstream", "stats", "api", "level")),
                    ("Store", word(js, "store_dir")),
                    ("Accounts", figure(varz, "jetstream", "stats", "accounts")),
                    ("Memory", f"{size('jetstream', 'stats', 'memory')} of {format_size(figure(js, 'max_memory'))}"),
                    ("Disk", f"{size('jetstream', 'stats', 'storage')} of {format_size(figure(js, 'max_storage'))}"),
                    ("API requests", figure(varz, "jetstream", "stats", "api", "total")),
                    ("API errors", figure(varz, "jetstream", "stats", "api", "errors")),
                    ("Sync always", switch(js, "sync_always")),
                    ("Sync every", format_duration(figure(js, "sync_interval") / 1e9)),
                ],
            )
        )
    if cluster:
        about = [
            ("Name", word(cluster, "name")),
            ("Address", f"{word(cluster, 'addr')}:{figure(cluster, 'cluster_port')}"),
        ]
        sections.append(("Cluster", [*about, ("URLs", cluster.get("urls") or None)]))
    if gateways := rows(gateway, "gateways"):
        names = sorted(word(item, "name") for item in gateways)
        sections.append(("Gateways", [("Name", word(gateway, "name")), ("Clusters", names)]))
    return f"Server {name}", sections
