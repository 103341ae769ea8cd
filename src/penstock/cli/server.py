"""`penstock server`: run a real nats-server, and ask one who it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.global_flags import Globals
from penstock.cli.output import Json, first, print_json, print_pairs, run, until_signal
from penstock.errors import InputError, OptionError, ServerError

if TYPE_CHECKING:
    from penstock.server import Server

__all__ = ["info", "run_"]


def run_(
    nodes: Annotated[int, typer.Option("--nodes", help="1, or 3 for a JetStream cluster on this machine.")] = 1,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Folder to keep; a temporary one where none is given."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Client port; 0 for a free one.")] = 0,
    sync: Annotated[
        str,
        typer.Option("--sync", metavar="always|DURATION", help="Sync before each ack, or every so often."),
    ] = "always",
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="T", help="Token that clients must give; a generated one otherwise."),
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let anybody on this machine connect.")] = False,
    max_payload: Annotated[
        int | None, typer.Option("--max-payload", metavar="BYTES", help="Largest message; 1 MiB by default.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--cert", metavar="FILE", help="Certificate of the server; needs --key.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Key of the certificate.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option("--ca", metavar="FILE", help="Ask clients for certificates signed by this.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Further nats-server configuration.")
    ] = None,
    binary: Annotated[
        Path | None,
        typer.Option("--binary", metavar="FILE", help="The nats-server to run, if not the installed one."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a NATS server with JetStream until Ctrl-C, and print the URL to connect to."""
    if token is not None and no_auth:
        raise OptionError(
            "--token and --no-auth are given together.", remedy="Leave one of them out.", option="--no-auth"
        )
    from penstock.server import Server

    server = Server(
        nodes=nodes,
        store=store,
        port=port,
        sync=sync,
        token=token,
        auth=not no_auth,
        max_payload=max_payload,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        config=_read(config),
        binary=binary,
    )
    run(_serve(server, json))


def _read(config: Path | None) -> str:
    if config is None:
        return ""
    try:
        return config.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config {config} cannot be read: {error}.", remedy="Check the path.") from None


async def _serve(server: Server, json: bool) -> None:
    with until_signal() as stop:
        starting = asyncio.ensure_future(asyncio.to_thread(server.start))
        try:
            await first(asyncio.shield(starting), stop.wait())
            if not stop.is_set():
                _announce(server, json)
                await first(stop.wait(), _watch(server))
        finally:
            # A start that was interrupted is waited for: it is bounded, and what it started must be stopped.
            await asyncio.wait([starting])
            await asyncio.to_thread(server.stop)
    if not json:
        typer.echo("Stopped.", err=True)


def _announce(server: Server, json: bool) -> None:
    if json:
        print_json(
            {
                "url": server.url,
                "version": server.version,
                "nodes": [
                    {"name": node.name, "pid": node.pid, "monitor": node.monitor_url, "log": str(node.log)}
                    for node in server.nodes
                ],
            }
        )
        return
    # The one place that shows the token: whoever runs the server needs it to connect.
    typer.echo(server.url)
    for node in server.nodes:
        typer.echo(f"{node.name}: pid {node.pid}, monitoring {node.monitor_url}, log {node.log}", err=True)
    typer.echo(f"nats-server {server.version} is running. Ctrl-C stops it.", err=True)


async def _watch(server: Server) -> None:
    """Say so when a node dies; raise when none is left."""
    dead: set[str] = set()
    while True:
        for node in server.nodes:
            if not node.alive and node.name not in dead:
                dead.add(node.name)
                typer.echo(f"{node.name} is dead; its log is {node.log}", err=True)
        if len(dead) == len(server.nodes):
            raise ServerError("No node is alive.", remedy="The logs named above tell why.")
        await asyncio.sleep(0.2)


def info(ctx: typer.Context, json: Json = False) -> None:
    """Show the server that answers: name, version, limits, JetStream."""
    run(_info(ctx.obj, json))


async def _info(given: Globals, json: bool) -> None:
    from penstock.connection import api_request, connect
    from penstock.errors import JetStreamError, NoRespondersError

    client = await connect(given.options())
    try:
        seconds = await client.rtt()
        facts: dict[str, Any] = dict(client.server_info)
        account: dict[str, Any] | None
        try:
            account = await api_request(client, "INFO")
        except (NoRespondersError, JetStreamError) as error:
            account = None
            facts["jetstream_error"] = str(error)
    finally:
        await client.close()
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
