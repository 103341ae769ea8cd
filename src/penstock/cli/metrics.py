"""`penstock metrics serve`: figures for Prometheus, until Ctrl-C."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock.cli.console import find_pipelines
from penstock.cli.flags import flag
from penstock.cli.running import until_signal

__all__ = ["serve"]

TOKEN = "PENSTOCK_METRICS_TOKEN"  # noqa: S105  # the name of a variable


async def serve(
    ctx: typer.Context,
    host: Annotated[str, flag("Address to listen on; others than this machine can see it.", "ADDRESS")] = "127.0.0.1",
    port: Annotated[int, flag("Port to listen on; 0 takes a free one.", min=0, max=65535)] = 7777,
    names: Annotated[
        list[str] | None, flag("Host name under which it may be asked for; can be repeated.", "NAME", "--name")
    ] = None,
    pipelines: Annotated[
        list[str] | None,
        flag("Folder of a pipeline to look at; the one here, if none is named.", "DIR", "--pipeline"),
    ] = None,
) -> None:
    """Serve figures of streams, consumers, lag, acks, advisories, channels and pipelines at /metrics, for Prometheus.

    With $PENSTOCK_METRICS_TOKEN set, whoever asks must send it as a bearer token.
    """
    from penstock.addresses import is_loopback
    from penstock.metrics import MetricsServer

    options = ctx.obj.options()
    if ctx.obj.connection_name is None:
        options = options.replace(name="penstock metrics")
    token = os.environ.get(TOKEN) or None
    found = find_pipelines(pipelines)
    made = MetricsServer(options, host=host, port=port, names=tuple(names or ()), token=token, pipelines=found)
    async with made:
        with until_signal() as stop:
            typer.echo(f"Metrics: {made.url}")
            if not is_loopback(host) and token is None:
                typer.echo(f"Others can read it, in plain HTTP: ${TOKEN} makes it want a token.", err=True)
            problem = await made.problem()
            if problem is not None:
                typer.echo(f"NATS does not answer yet, and penstock_up is 0 until it does. {problem}", err=True)
            else:
                typer.echo(f"It looks at {options.url}. Ctrl-C ends it.")
            await stop.wait()
