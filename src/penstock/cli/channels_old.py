"""`penstock channels old-server`: the command line of nats-streaming-server, understood by the gateway."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.channels import serve_until
from penstock.cli.flags import argument
from penstock.cli.running import until_signal
from penstock.cli.server import served, started
from penstock.cli.tables import print_table
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.channels.old_server import OldServer

__all__ = ["main", "old_server"]


async def old_server(
    ctx: typer.Context,
    flags: Annotated[list[str] | None, argument("Flags of nats-streaming-server; `-- -h` lists them.")] = None,
) -> None:
    """Serve as nats-streaming-server would: `penstock channels old-server -- -store FILE -dir DIR -p 4222`."""
    from penstock import __version__
    from penstock.channels import Gateway
    from penstock.channels.old_server import plan_old_server
    from penstock.options import ConnectionOptions

    plan = plan_old_server(flags or [])
    if plan.asks == "version":
        typer.echo(f"penstock {__version__}, as nats-streaming-server")
        return
    if plan.asks:
        _list_flags()
        return
    options = {**plan.gateway, "timeout": ctx.obj.seconds}
    Gateway("nats://127.0.0.1:4222", **options)  # what is wrong with the options is said before anything runs
    with until_signal() as stop, _pid_file(plan.pid_file), _other_signals():
        if plan.url is not None:
            gateway = Gateway(ConnectionOptions(plan.url, **plan.login), **options)
            _tell(plan)
            await serve_until(gateway, stop, None, json=False)
        else:
            from penstock.server import Server

            server = Server(**plan.server)
            _tell(plan)
            async with started(server, stop):
                if not stop.is_set():
                    pages = {"nats_monitor": server.monitor_urls[0]} if plan.gateway["monitor"] else {}
                    disk = {"synced_store": str(server.nodes[0].store)} if plan.syncs else {}
                    gateway = Gateway(ConnectionOptions(server.url, **plan.login), **options, **pages, **disk)
                    await served(server, serve_until(gateway, stop, server.url, json=False))
    typer.echo("Stopped.", err=True)


def main() -> None:
    """Run as the command `nats-streaming-server`, which the distribution penstock-streaming-server installs."""
    from penstock.cli import main as run

    run(["channels", "old-server", "--", *sys.argv[1:]])


def _tell(plan: OldServer) -> None:
    for note in plan.notes:
        typer.echo(note, err=True)


@contextmanager
def _other_signals() -> Iterator[None]:
    """Outlive the signals by which the old server was told to read its file or to open its log again."""
    loop = asyncio.get_running_loop()
    told = {
        signal.SIGHUP: "SIGHUP: the configuration is read at the start. Restart to change it.",
        signal.SIGUSR1: "SIGUSR1: there is no log file to open again.",
    }
    for number, note in told.items():
        loop.add_signal_handler(number, functools.partial(typer.echo, note, err=True))
    try:
        yield
    finally:
        for number in told:
            loop.remove_signal_handler(number)


@contextmanager
def _pid_file(path: Path | None) -> Iterator[None]:
    """Keep our process id in a file while we run."""
    if path is None:
        yield
        return
    try:
        path.write_text(f"{os.getpid()}")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", remedy="Check the path of -P.") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _list_flags() -> None:
    from penstock.channels.old_words import FLAGS

    rows = []
    for word in FLAGS:
        names = ", ".join(f"-{name}" for name in word.names)
        fate = (
            f"refused: {word.refused}"
            if word.refused
            else f"no effect: {word.nothing}"
            if word.nothing
            else "as it was"
        )
        rows.append((names, word.kind.replace("secret", "text"), fate))
    print_table("Flags of nats-streaming-server, here", ("Flag", "Value", "What becomes of it"), rows)
