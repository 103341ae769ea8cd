"""`penstock quickstart`: a server, traffic, a pipeline and a notebook of one's own, run with a kill in the middle."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.demo import Signals, audit_table
from penstock.cli.flags import argument
from penstock.cli.pipeline_show import board
from penstock.cli.server import served
from penstock.cli.typed import typed
from penstock.errors import PenstockError
from penstock.extras import check_installed, missing_packages

if TYPE_CHECKING:
    from penstock.demo.audit import Stage
    from penstock.server import Server

__all__ = ["quickstart"]


async def quickstart(
    folder: Annotated[str, argument("The folder to make.", "DIR")] = "penstock-quickstart",
) -> None:
    """Make a folder with a server, traffic, a pipeline and a notebook, run it with a kill in the middle, and count.

    It asks nothing, and says at the end what to change first.
    """
    from penstock.pipelines.new_project import write_project
    from penstock.server import Server
    from penstock.spark.sessions import check_java

    check_installed("spark", "The quickstart")
    check_java()
    place = Path(folder)
    made = write_project(place.parent, place.name)
    typer.echo(f"Made {made}, with a pipeline, its streams, traffic and a notebook.")
    begun = time.monotonic()
    server = Server(store=made / "server")
    with Signals() as signals:
        try:
            signals.work = asyncio.create_task(_run(server, made, signals))
            stages = await signals.work
        except asyncio.CancelledError:
            typer.echo(f"{made} stays as it is.", err=True)
            raise typer.Exit(128 + signals.number) from None
        finally:
            signals.work = None
            await asyncio.to_thread(server.stop)
    audit_table(stages)
    if not all(stage.ok for stage in stages):
        raise PenstockError("The count does not add up.", remedy=f"See the table above, and {made}/storage/spark.log.")
    typer.echo(f"Nothing is lost, nothing is repeated, after {time.monotonic() - begun:.0f} s and a kill.")
    _tell_more(made)


async def _run(server: Server, made: Path, signals: Signals) -> list[Stage]:
    from penstock.demo.play import in_thread
    from penstock.demo.quickstart import READINGS, Quickstart

    await in_thread(server.start)
    typer.echo(f"nats-server {server.version} with JetStream is running in {made / 'server'}.")
    with board("Readings", total=READINGS, err=False, timed=True) as show:
        signals.say = show.say
        try:
            return await served(server, Quickstart(server.url, made, say=show.say, shout=show.shout, watch=show).run())
        finally:
            signals.say = typer.echo


def _tell_more(made: Path) -> None:
    typer.echo("\nWhat to change first:")
    typer.echo(f"  {made / 'transformations' / 'alerts.py'}\n      which readings become alerts: value > 90")
    typer.echo(f"  {made / 'traffic.py'}\n      what comes in")
    typer.echo("To go on, in one terminal:")
    typer.echo(f"  {typed('penstock', 'server', 'run', '--store', made / 'server')}")
    typer.echo("In another one, which finds that server by itself:")
    typer.echo(f"  {typed('python', made / 'traffic.py')}")
    typer.echo(f"  {typed('penstock', 'pipeline', 'run', made)}")
    if not missing_packages("console"):
        typer.echo(f"  {typed('penstock', 'console', '--open', '--pipeline', made)}")
    typer.echo(f"The notebook is {made / 'look.ipynb'}.\nIt needs Jupyter: pip install jupyterlab")
