"""`penstock stream archive`: the history of a stream as Parquet files, kept by Spark."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import Json, StreamName, flag
from penstock.cli.output import print_json, progress
from penstock.cli.running import stop_on_signal
from penstock.durations import parse_duration
from penstock.errors import OptionError, PenstockError, PipelineError

if TYPE_CHECKING:
    from penstock.spark.archive_run import Archiver

__all__ = ["archive"]

_LOOK = 0.2  # seconds between two looks at the query


def archive(
    ctx: typer.Context,
    name: StreamName,
    to: Annotated[str, flag("Folder of the archive, or its URI; made if it is missing.", "DIR")],
    continuous: Annotated[bool, flag("Go on until Ctrl-C, which lets the files in hand finish.")] = False,
    every: Annotated[str, flag("Time between two additions of a continuous run.", "DURATION")] = "1m",
    subject: Annotated[list[str] | None, flag("Only messages on this subject; may be repeated.")] = None,
    start: Annotated[
        str, flag("Where a new archive begins: all, new, a sequence, a time, or a duration ago.", "POSITION")
    ] = "all",
    skip_lost: Annotated[bool, flag("Go on if messages are gone before they were archived; they are noted.")] = False,
    escape: Annotated[bool, flag("Write bytes of subjects and headers that are not UTF-8 as \\xff.")] = False,
    master: Annotated[str | None, flag("Where Spark runs its tasks; local[*] if nothing is said.", "URL")] = None,
    show_progress: Annotated[bool, flag("Show progress on a terminal.", "--progress/--no-progress")] = True,
    json: Json = False,
) -> None:
    """Keep the history of a stream as Parquet files, a folder a day, each message exactly once.

    Run it again to add what came since. `.option("archive", DIR)` of Spark's format nats reads archive and stream as
    one; anything that knows Parquet reads the archive.
    """
    from penstock.spark.archive_folder import ArchiveFolder
    from penstock.spark.archive_run import ArchiveOrder, archived_since, begin

    to = str(ArchiveFolder(to).local or to)  # tasks may be in another folder than this
    order = ArchiveOrder(name, to, tuple(subject or ()), start, skip_lost, escape)
    order.check()
    seconds = parse_duration(every, option="--every")
    if seconds < 1:
        raise OptionError("--every is less than a second.", remedy="Give 1s or more.", option="--every", value=every)
    with begin(order, ctx.obj.options()) as archiver:
        if archiver.waiting or continuous:
            with progress(f"Archiving {name}", None if continuous else archiver.waiting, on=show_progress) as advance:
                _run(archiver, seconds if continuous else None, master, advance)
        done = archived_since(order, archiver.start)
    if json:
        print_json(done)
        return
    typer.echo(
        f"Archived {done['archived']:,} messages of Stream {name} into {to}; it holds {done['messages']:,}, up to "
        f"sequence {done['last']:,}, in {_count(done['files'], 'file')} of {_count(done['days'], 'day')}."
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _run(archiver: Archiver, every: float | None, master: str | None, advance: Callable[[int], None]) -> None:
    """Start Spark, and follow the query to its end."""
    with ExitStack() as held:
        try:
            spark = _spark(archiver, master, held)
            # Behind the start of Spark, which has a way of its own with Ctrl-C.
            stop = held.enter_context(stop_on_signal(every is not None, "the batch in hand"))
            query = archiver.query(spark, every)
            held.callback(_end, query)
            _follow(query, stop, advance)
            failure: Any = query.exception()
        except PenstockError:
            raise
        except Exception as error:  # Spark does not start, or its Java is gone: it has many ways to say so
            failure = error
        if failure is not None:
            from penstock.pipelines.reasons import cause

            said = cause(str(failure)) or type(failure).__name__
            remedy = f"Start it again to go on where it was. Spark's log is {archiver.log}."
            raise PipelineError(f"The archiver stopped: {said.rstrip('.')}.", remedy=remedy, log=str(archiver.log))


def _spark(archiver: Archiver, master: str | None, held: ExitStack) -> Any:
    """Start Spark, which ends with the command; what it says goes into a file."""
    from penstock.spark.sessions import session

    conf: dict[str, Any] = {
        "spark__ui__enabled": "false",
        "spark__ui__showConsoleProgress": "false",
        "spark__local__dir": str(archiver.scratch),
        "spark__driver__extraJavaOptions": f'"-Djava.io.tmpdir={archiver.scratch}"',
        "spark__sql__session__timeZone": "UTC",
    }
    if master is None or master.startswith("local"):
        conf |= {"spark__driver__host": "127.0.0.1", "spark__driver__bindAddress": "127.0.0.1"}
    before = _children()
    with stop_on_signal(False):
        try:
            with _stderr_to(archiver.log):
                spark = session(f"penstock archive {archiver.order.stream}", master, **conf)
        except BaseException:
            for pid in _children() - before:  # a Java whose start is broken off would outlive the command
                os.kill(pid, signal.SIGKILL)
            raise
    held.callback(_end, spark)
    return spark


def _children() -> set[int]:
    """Give the processes that this one has started, if the system says so."""
    found = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    return {int(pid) for listed in found for pid in listed}


def _end(item: Any) -> None:
    with suppress(Exception):  # its Java may be gone, which was told
        item.stop()


def _follow(query: Any, stop: threading.Event, advance: Callable[[int], None]) -> None:
    """Wait for the end of a query; when it is to stop, for the end of the micro-batch in hand."""
    told = -1
    while query.isActive:
        for batch in query.recentProgress:
            if batch.batchId > told:
                told = batch.batchId
                advance(batch.numInputRows)
        if stop.is_set() and not query.status["isTriggerActive"]:
            return
        time.sleep(_LOOK)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let a child that is started meanwhile speak into a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
