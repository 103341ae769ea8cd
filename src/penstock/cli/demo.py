"""`penstock demo`: the main job on a server of its own, with a kill in the middle and an audit at the end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import webbrowser
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from penstock.cli.flags import flag
from penstock.cli.output import counts
from penstock.cli.pipeline_show import board
from penstock.cli.server import served
from penstock.cli.tables import print_table
from penstock.errors import InputError, PenstockError, PipelineError
from penstock.extras import check_installed

if TYPE_CHECKING:
    from penstock.demo.audit import Stage
    from penstock.demo.ledger import Volume
    from penstock.demo.play import Play, Result
    from penstock.server import Server

__all__ = ["Signals", "audit_table", "conclude", "demo", "keep_running"]


async def demo(
    orders: Annotated[int, flag("How many orders to send.", min=100, max=1_000_000)] = 6000,
    documents: Annotated[int, flag("How many scanned documents to send.", min=0, max=10_000)] = 200,
    document_size: Annotated[str, flag("How large a document is, about.", "SIZE")] = "2MB",
    kills: Annotated[int, flag("How often to kill Spark with SIGKILL.", min=0, max=9)] = 1,
    folder: Annotated[str | None, flag("Where the report goes; artifacts/demo if nothing is said.", "DIR")] = None,
    keep: Annotated[bool, flag("Leave everything running, Spark too, with the console on it, until Ctrl-C.")] = False,
    open_report: Annotated[bool, flag("Open the report in a browser.", "--open")] = False,
) -> None:
    """Run the main job: orders through NATS and Spark and back, with a kill in the middle and an audit at the end."""
    from penstock.sizes import parse_size
    from penstock.spark.sessions import check_java

    check_installed("spark", "The demo")
    check_java()
    from penstock.demo.ledger import Volume

    if keep:
        check_installed("console", "The console")
    size = parse_size(document_size, option="--document-size")
    if documents * size > 2 * 2**30:
        raise InputError("These are more than 2 GB of documents.", remedy="Send fewer or smaller ones.")
    volume = Volume(orders=orders, documents=documents, document_bytes=size)
    result, report = await _demo(volume, _place(folder or "artifacts/demo"), kills, keep)
    if open_report:
        webbrowser.open(report.as_uri())
    conclude(result, report)


def _place(folder: str) -> Path:
    place = Path(folder).absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder {place} cannot be made: {error.strerror}.", remedy="Name another one.") from None
    return place


def conclude(result: Result, report: Path) -> None:
    """End with an error if the audit is off."""
    if not result.ok:
        raise PenstockError("The audit does not add up.", remedy=f"See the table above and {report}.")


class Signals:
    """Ctrl-C, SIGTERM and a terminal that is closed: the first ends the demo wherever it is, and it cleans up.

    While it keeps everything running that is its ordinary end; before, it is an interruption. Later signals change
    nothing: the way out is short, has its timeouts, and would leave something behind if it were cut off.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.number = 0
        """The first one that came."""
        self.say: Callable[[str], None] = typer.echo
        """Where its own words go."""
        self.work: asyncio.Task[Any] | None = None
        """What is cancelled; None if `stop` is enough, and on the way out."""
        self._taken = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # `nohup` asks to outlive the terminal
            self._taken.append(signal.SIGHUP)

    def __enter__(self) -> Self:
        for number in self._taken:
            asyncio.get_running_loop().add_signal_handler(number, self._handle, number)
        return self

    def __exit__(self, *about: object) -> None:
        for number in self._taken:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _handle(self, number: int) -> None:
        first, self.number = not self.number, self.number or number
        with contextlib.suppress(OSError):  # the terminal may be gone
            self.say("Ending." if first else "Ending already; it takes a moment to leave nothing behind.")
        self.stop.set()
        if first and self.work is not None:
            self.work.cancel()


async def _demo(volume: Volume, place: Path, kills: int, keep: bool) -> tuple[Result, Path]:
    from penstock.channels.limits import PAYLOAD
    from penstock.server import Server

    with Signals() as signals:
        scratch = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        server = Server(max_payload=PAYLOAD)  # so that the gateway of old clients has nothing to warn of
        try:
            signals.work = asyncio.create_task(_play(server, scratch, volume, place, kills, signals, keep))
            found: tuple[Result, Path] = await signals.work
            return found
        except asyncio.CancelledError:
            raise typer.Exit(128 + signals.number) from None
        except PipelineError as error:
            raise _with_log(error, place) from None
        finally:
            signals.work = None
            await asyncio.to_thread(server.stop)
            shutil.rmtree(scratch, ignore_errors=True)  # a killed Spark may have left a file half removed


def _with_log(error: PipelineError, place: Path) -> PipelineError:
    """Keep Spark's log, which would go with everything else, and give the error with the place where it is now."""
    kept = place / "spark.log"
    try:
        shutil.copyfile(error.log or "", kept)
    except OSError as reason:
        return PipelineError(error.what, remedy=f"Spark's log could not be kept: {reason.strerror}.")
    return PipelineError(error.what, remedy=f"Spark's log is {kept}.", log=str(kept))


async def _play(
    server: Server, scratch: Path, volume: Volume, place: Path, kills: int, signals: Signals, keep: bool
) -> tuple[Result, Path]:
    from penstock.demo.play import Play, in_thread

    await in_thread(server.start)
    typer.echo(f"nats-server {server.version} with JetStream is running (pid {server.nodes[0].pid}).")
    with board("Orders", total=volume.orders, err=False, timed=True) as show:
        signals.say = show.say
        play = Play(server.url, scratch, volume, kills=kills, say=show.say, shout=show.shout, watch=show)
        play.result.versions["nats-server"] = server.version
        try:
            result = await served(server, play.run())
        finally:
            signals.say = typer.echo
    report = _show(result, place)
    if keep:
        signals.work = None
        await served(server, keep_running(play, server.url, report, signals))
    return result, report


def audit_table(stages: Sequence[Stage]) -> None:
    """Print what each stage should hold, and what it holds."""
    print_table(
        "Audit",
        ("Stage", "#Expected", "#Found", "#Lost", "#Repeated"),
        [(stage.name, *counts(stage.expected, stage.found, stage.lost, stage.repeated)) for stage in stages],
    )


def _show(result: Result, place: Path) -> Path:
    from penstock.demo.report import write_report

    audit_table(result.stages)
    report = write_report(result, place / "report.html")
    verdict = "Nothing is lost, nothing is repeated" if result.ok else "The audit does not add up"
    typer.echo(f"{verdict}, after {result.seconds:.0f} s. The report: {report}")
    return report


async def keep_running(play: Play, url: str, report: Path, signals: Signals, *, orders: int = 3600) -> None:
    """Leave it all there until a signal comes: server, Spark, tables, the service on the bus, and the console.

    One more order comes each second, so that there is something to see, up to as many as are asked for.
    """
    from penstock.console import Console
    from penstock.demo.ongoing import Ongoing
    from penstock.demo.traffic import CHANNEL, CLUSTER

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(play.service())
        shown = play.options.replace(name="penstock console")
        console = await stack.enter_async_context(Console(shown, pipelines=[play.project]))
        order = f'"order_id": "mine-1", "customer": "c-001", "cents": 990, "ordered": "{datetime.now(UTC):%FT%TZ}"'
        typer.echo("Everything goes on running, until Ctrl-C; Spark starts again and runs update after update.")
        typer.echo(f"  console   {console.url}")
        typer.echo(f"  NATS      {url}")
        typer.echo(f"  channels  cluster {CLUSTER}, channel {CHANNEL}, for clients of NATS Streaming")
        typer.echo(f"  service   penstock bus call shop top-customers --query limit=5 -s {url}")
        typer.echo(f"  tables    {play.warehouse}")
        typer.echo(f"  report    {report}")
        typer.echo(f"One order a second comes by itself, {orders:,} in all. One of your own, and where it comes out:")
        typer.echo(f"  penstock pub orders.c-001 '{{{order}}}' -s {url}")
        typer.echo(f"  penstock bus call shop orders --query customer=c-001 -s {url}")
        typer.echo("Its minute goes to the stream REVENUE when it is final, ten minutes later.")
        show = stack.enter_context(board("Orders", quiet=60.0, err=False))
        signals.say = show.say
        stack.callback(setattr, signals, "say", typer.echo)
        await Ongoing(play, url, orders=orders, say=show.say, watch=show).run(signals.stop)
