"""`penstock console`: the web console, until Ctrl-C."""

from __future__ import annotations

import os
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import flag
from penstock.cli.running import until_signal

if TYPE_CHECKING:
    from penstock.pipelines.project import Project

__all__ = ["console", "find_pipelines"]

TOKEN = "PENSTOCK_CONSOLE_TOKEN"  # noqa: S105  # the name of a variable


async def console(
    ctx: typer.Context,
    host: Annotated[str, flag("Address to listen on; others than this machine can see it.", "ADDRESS")] = "127.0.0.1",
    port: Annotated[int, flag("Port to listen on; 0 takes a free one.", min=0, max=65535)] = 0,
    names: Annotated[
        list[str] | None, flag("Host name under which browsers may ask; can be repeated.", "NAME", "--name")
    ] = None,
    pipelines: Annotated[
        list[str] | None,
        flag("Folder of a pipeline to show; the one here, if none is named.", "DIR", "--pipeline"),
    ] = None,
    open_browser: Annotated[bool, flag("Open it in a browser.", "--open")] = False,
) -> None:
    """Serve a web console that shows streams, consumers, lag, messages, pipelines and transfers, and changes nothing.

    The printed address carries a token that lets its browser in; $PENSTOCK_CONSOLE_TOKEN sets one of your own.
    """
    from penstock.addresses import is_loopback
    from penstock.console import check_installed

    check_installed()
    from penstock.console import Console, Settings

    options = ctx.obj.options()
    if ctx.obj.connection_name is None:
        options = options.replace(name="penstock console")
    token = os.environ.get(TOKEN) or None
    settings = Settings(host=host, port=port, names=tuple(names or ()))
    async with Console(options, settings, token=token, pipelines=find_pipelines(pipelines)) as made:
        with until_signal() as stop:
            # A token of the user's own is the user's to keep: it is not printed.
            typer.echo(f"Console: {made.address if token else made.url}")
            if token:
                typer.echo(f"It wants the token of ${TOKEN}: add /?token=... once, or send it as a bearer token.")
            if not is_loopback(host):
                typer.echo("Others can reach it, and it speaks plain HTTP: put TLS before it.", err=True)
            problem = await made.problem()
            if problem is not None:
                typer.echo(f"NATS does not answer yet, and the pages say so until it does. {problem}", err=True)
            else:
                typer.echo(f"It shows {options.url}. Ctrl-C ends it.")
            if open_browser and not webbrowser.open(made.url_once()):
                typer.echo("No browser could be opened; the address above works in any.", err=True)
            await stop.wait()


def find_pipelines(folders: list[str] | None) -> list[Project]:
    """Load the pipelines that are named, or the one in this folder where there is one."""
    from pathlib import Path

    if not folders and not any(Path(name).is_file() for name in ("spark-pipeline.yaml", "spark-pipeline.yml")):
        return []
    from penstock.pipelines.project import Project

    return [Project.load(folder) for folder in folders or ["."]]
