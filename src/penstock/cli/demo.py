"""`penstock demo`: the main job on a server of its own, with a kill in the middle and an audit at the end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.board import board
from penstock.cli.output import print_table, run, until_signal
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.examples.orders.play import Play, Result

__all__ = ["conclude", "demo", "keep_running"]


def demo(
    orders: Annotated[int, typer.Option("--orders", min=100, max=1_000_000, help="How many orders to send.")] = 6000,
    documents: Annotated[
        int, typer.Option("--documents", min=0, max=10_000, help="How many scanned documents to send.")
    ] = 200,
    document_size: Annotated[
        str, typer.Option("--document-size", metavar="SIZE", help="How large a document is, about.")
    ] = "2MB",
    kills: Annotated[int, typer.Option("--kills", min=0, max=9, help="How often to kill Spark with SIGKILL.")] = 1,
    folder: Annotated[
        str | None,
        typer.Option("--folder", metavar="DIR", help="Where the report goes; artifacts/demo where nothing is said."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running, with the console on it, until Ctrl-C.")
    ] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Run the main job: orders through NATS and Spark and back, with a kill in the middle and an audit at the end."""
    from penstock.errors import InputError
    from penstock.examples.orders.ledger import Plan
    from penstock.sizes import parse_size
    from penstock.spark.sessions import check_java

    check_java()
    if keep:
        from penstock.console import check_installed

        check_installed()
    size = parse_size(document_size, option="--document-size")
    if documents * size > 2 * 2**30:
        raise InputError("These are more than 2 GB of documents.", remedy="Send fewer or smaller ones.")
    place = Path(folder or "artifacts/demo").absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder {place} cannot be made: {error.strerror}.", remedy="Name another one.") from None
    plan = Plan(orders=orders, documents=documents, document_bytes=size)
    result, report = run(_demo(plan, place, kills, keep))
    if open_report:
        webbrowser.open(report.as_uri())
    conclude(result, report)


def conclude(result: Result, report: Path) -> None:
    """End with an error where the audit is off."""
    if not result.ok:
        raise PenstockError("The audit does not add up.", remedy=f"See the table above and {report}.")


async def _demo(plan: object, place: Path, kills: int, keep: bool) -> tuple[Result, Path]:
    from penstock.examples.orders.ledger import Plan
    from penstock.examples.orders.play import Play
    from penstock.server import Server

    assert isinstance(plan, Plan)
    scratch = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    server = Server()
    try:
        await asyncio.to_thread(server.start)
        typer.echo(f"nats-server {server.version} with JetStream is running (pid {server.nodes[0].pid}).")
        with board("Orders") as show:
            play = Play(server.url, scratch, plan, kills=kills, say=typer.echo, watch=show)
            play.result.versions["nats-server"] = server.version
            result = await play.run()
        report = _show(result, place)
        if keep:
            await keep_running(play, server.url, report)
        return result, report
    finally:
        await asyncio.to_thread(server.stop)
        shutil.rmtree(scratch, ignore_errors=True)  # a killed Spark may have left a file half removed


def _show(result: Result, place: Path) -> Path:
    from penstock.examples.orders.report import write_report

    print_table(
        "Audit",
        ("Stage", "#Expected", "#Found", "#Lost", "#Repeated"),
        [
            (stage.name, f"{stage.expected:,}", f"{stage.found:,}", f"{stage.lost:,}", f"{stage.repeated:,}")
            for stage in result.stages
        ],
    )
    report = write_report(result, place / "report.html")
    verdict = "Nothing is lost, nothing is repeated" if result.ok else "The audit does not add up"
    typer.echo(f"{verdict}, after {result.seconds:.0f} s. The report: {report}")
    return report


async def keep_running(play: Play, url: str, report: Path) -> None:
    """Leave it all there until Ctrl-C: server, tables, the service on the bus, and the console that shows them.

    Spark is not left running: it computes the table of top customers anew in each update, and whoever reads the
    folder meanwhile, as the service does, finds half of it. One more update is one command.
    """
    from penstock.console import Console

    with until_signal() as stop:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(play.service())
            shown = play.options.replace(name="penstock console")
            console = await stack.enter_async_context(Console(shown, pipelines=[play.project]))
            project = play.project
            typer.echo("Everything goes on running, until Ctrl-C:")
            typer.echo(f"  console   {console.url}")
            typer.echo(f"  NATS      {url}")
            typer.echo(f"  service   penstock bus call shop top-customers --query limit=5 -s {url}")
            typer.echo(f"  tables    {play.warehouse}")
            typer.echo(f"  report    {report}")
            typer.echo("New orders go through with one more update of the pipeline:")
            typer.echo(f"  penstock pipeline run {project.folder} --storage {project.local_storage} -s {url}")
            await stop.wait()
            typer.echo("Ending.")
