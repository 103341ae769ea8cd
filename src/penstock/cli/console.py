"""`penstock console`: the web console, until Ctrl-C."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import flag
from penstock.cli.running import until_signal
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.pipelines.project import Project

__all__ = ["console", "find_pipelines"]

TOKEN = "PENSTOCK_CONSOLE_TOKEN"  # noqa: S105  # the name of a variable
WRITE_TOKEN = "PENSTOCK_CONSOLE_WRITE_TOKEN"  # noqa: S105  # the name of a variable
PROMETHEUS = "PENSTOCK_CONSOLE_PROMETHEUS"


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
    protobuf: Annotated[
        str | None, flag("File of Protobuf types (a FileDescriptorSet) to read payloads with.", "FILE")
    ] = None,
    protobuf_types: Annotated[
        list[str] | None,
        flag("Type of the payloads of subjects; can be repeated.", "SUBJECT=TYPE", "--protobuf-type"),
    ] = None,
    system: Annotated[
        str | None, flag("Context of a user of the system account, for the page of the cluster.", "CONTEXT")
    ] = None,
    monitors: Annotated[
        list[str] | None, flag("Monitoring port of a server, such as http://HOST:8222.", "URL", "--monitor")
    ] = None,
    prometheus: Annotated[
        str | None,
        flag("Prometheus that keeps the figures, for charts of more than an hour, such as http://HOST:9090.", "URL"),
    ] = None,
    open_browser: Annotated[bool, flag("Open it in a browser.", "--open")] = False,
    write: Annotated[bool, flag("Let those who have the second address change things.", "--write")] = False,
    audit: Annotated[Path | None, flag("Add a line for each act to this file, too.", "FILE")] = None,
) -> None:
    """Serve a web console that shows streams, consumers, lag, messages, pipelines and transfers.

    It changes nothing without --write, and then only for those who open the address that is printed for acting. The
    printed address carries a token that lets its browser in; $PENSTOCK_CONSOLE_TOKEN sets one of your own, and
    $PENSTOCK_CONSOLE_WRITE_TOKEN that for acting. $PENSTOCK_CONSOLE_PROMETHEUS is the same as --prometheus, and keeps a
    login in that address out of the list of processes.
    """
    import logging

    from penstock.addresses import is_loopback
    from penstock.console import check_installed

    check_installed()
    from penstock.console import Console, Settings

    options = ctx.obj.options()
    if ctx.obj.connection_name is None:
        options = options.replace(name="penstock console")
    token = os.environ.get(TOKEN) or None
    write_token = (os.environ.get(WRITE_TOKEN) or None) if write else None
    if audit is not None and not write:
        raise InputError("--audit is given, and nobody may act.", remedy="Give --write, too, or leave it out.")
    logging.getLogger("penstock.console.acts").setLevel(logging.INFO)  # who did what is always told
    settings = Settings(host=host, port=port, names=tuple(names or ()))
    more = _sight(protobuf, protobuf_types, system, monitors)
    more |= {"prometheus": prometheus or os.environ.get(PROMETHEUS) or None}
    more |= {"write": write, "write_token": write_token, "audit": audit}
    async with Console(options, settings, token=token, pipelines=find_pipelines(pipelines), **more) as made:
        with until_signal() as stop:
            # A token of the user's own is the user's to keep: it is not printed.
            typer.echo(f"Console: {made.address if token else made.url}")
            if token:
                typer.echo(f"It wants the token of ${TOKEN}: add /?token=... once, or send it as a bearer token.")
            if write:
                typer.echo(f"To act: {made.address if write_token else made.write_url}")
                if write_token:
                    typer.echo(f"That wants the token of ${WRITE_TOKEN}, in the same way.")
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


def _sight(
    protobuf: str | None, types: list[str] | None, system: str | None, monitors: list[str] | None
) -> dict[str, Any]:
    """Give what lets pages show more: types of payloads, and ways to ask servers about themselves."""
    sight: dict[str, Any] = {"monitors": monitors or ()}
    if types and protobuf is None:
        raise InputError("--protobuf-type is given without --protobuf.", remedy="Name the file of the types, too.")
    if protobuf is not None:
        from penstock.console.protobuf import ProtobufTypes

        sight["protobuf"] = ProtobufTypes.load(protobuf, types or ())
    if system is not None:
        from penstock.contexts import load_options

        sight["system"] = load_options(context=system).replace(name="penstock console")
    return sight


def find_pipelines(folders: list[str] | None) -> list[Project]:
    """Load the pipelines that are named, or the one in this folder if there is one."""
    if not folders and not any(Path(name).is_file() for name in ("spark-pipeline.yaml", "spark-pipeline.yml")):
        return []
    from penstock.pipelines.project import Project

    return [Project.load(folder) for folder in folders or ["."]]
