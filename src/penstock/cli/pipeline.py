"""`penstock pipeline`: make, run, look at, reset and replay pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Force, Json, argument, flag
from penstock.cli.output import ago, print_json
from penstock.cli.pipeline_show import board, print_summary
from penstock.cli.questions import confirm
from penstock.cli.running import stop_on_signal
from penstock.cli.tables import print_table
from penstock.cli.typed import typed
from penstock.durations import parse_duration
from penstock.errors import OptionError
from penstock.extras import install_line, missing_packages

if TYPE_CHECKING:
    from penstock.pipelines.outcome import Outcome

__all__ = ["new", "replay", "reset", "run", "status", "stop", "switch_"]

Folder = Annotated[str, argument("The folder of the pipeline.", "DIR")]
Storage = Annotated[str | None, flag("Where its state lives, instead of where the spec says.", "DIR")]
Master = Annotated[str | None, flag("Where Spark runs its tasks; local[*] if nothing is said.", "URL")]
Remote = Annotated[str | None, flag("A Spark Connect server to run on.", "sc://...")]


def new(
    name: Annotated[str, argument("The name of the pipeline, and of its folder.")],
    folder: Annotated[str, flag("Where to make the folder.", "DIR", "--in")] = ".",
) -> None:
    """Make a small pipeline that runs: topology, spec, transformations, sample traffic and a test."""
    from penstock.pipelines.new_project import write_project

    made = write_project(Path(folder), name)
    typer.echo(f"Made {made}. To try it, in one terminal:")
    typer.echo(f"  {typed('penstock', 'server', 'run', '--store', made / 'server')}")
    typer.echo("In another one:")
    typer.echo(f"  {typed('python', made / 'traffic.py')}")
    for verb in ("run", "status"):
        typer.echo(f"  {typed('penstock', 'pipeline', verb, made)}")
    if missing := missing_packages("spark"):
        typer.echo(f"Spark is missing here ({', '.join(missing)}). Before, run: {install_line('spark')}")


def run(
    ctx: typer.Context,
    folder: Folder = ".",
    continuous: Annotated[bool, flag("Go on until Ctrl-C, which lets the update in hand finish.")] = False,
    pause: Annotated[str, flag("Time between two updates of a continuous run.", "DURATION")] = "1s",
    master: Master = None,
    remote: Remote = None,
    storage: Storage = None,
    full_refresh: Annotated[list[str] | None, flag("Compute a table anew from the start.", "TABLE")] = None,
    full_refresh_all: Annotated[bool, flag("Compute everything anew.")] = False,
    dry: Annotated[bool, flag("Check the definitions and the graph; move no row.")] = False,
    json: Json = False,
) -> None:
    """Apply the topology and run the pipeline: once over all that is there, or continuously."""
    from penstock.pipelines.project import Project
    from penstock.pipelines.running import run as run_pipeline

    project = Project.load(folder, storage=storage)
    with board(project.name) as show, stop_on_signal(continuous, say=show.say) as stop:
        outcome = run_pipeline(
            project,
            options=ctx.obj.options(),
            continuous=continuous,
            pause=parse_duration(pause, option="--pause"),
            master=master,
            remote=remote,
            full_refresh=full_refresh or (),
            full_refresh_all=full_refresh_all,
            dry=dry,
            stop=stop,
            watch=lambda outcome: show(outcome, None),
        )
    if json:
        print_json(_plain(outcome))
        return
    print_summary(outcome, f"Pipeline {project.name}")
    if dry:
        what = "The definitions and the graph are in order"
    elif outcome.counted:
        what = f"Done: {outcome.rows_in:,} rows read from NATS"
    else:
        what = "Done; how many rows, the Spark Connect server did not tell"
    typer.echo(f"{what}, in {outcome.updates} update{'s' if outcome.updates != 1 else ''}.")


def _plain(outcome: Outcome) -> dict[str, object]:
    return {
        "ok": outcome.ok,
        "updates": outcome.updates,
        "rows_in": outcome.rows_in if outcome.counted else None,
        "lag": outcome.lag if outcome.counted else None,
        "flows": {name: flow.plain(outcome.counted) for name, flow in sorted(outcome.flows.items())},
    }


def stop(
    folder: Folder = ".",
    storage: Storage = None,
    wait: Annotated[str, flag("How long to wait for its end; 0s asks, and does not wait.", "DURATION")] = "1m",
) -> None:
    """Ask the run of a pipeline to end after the update in hand, wherever on this machine it was started."""
    from penstock.pipelines.project import Project
    from penstock.pipelines.stopping import ask_to_stop, wait_until_stopped

    seconds = parse_duration(wait, option="--wait")
    project = Project.load(folder, storage=storage)
    pid = ask_to_stop(project)
    if not seconds:
        typer.echo(f"Asked the run of pipeline {project.name} (process {pid}) to end after the update in hand.")
        return
    typer.echo(f"The run of pipeline {project.name} has ended: {wait_until_stopped(project, seconds)}.")


def status(ctx: typer.Context, folder: Folder = ".", storage: Storage = None, json: Json = False) -> None:
    """Show how far each flow is, and how many messages wait for it."""
    from penstock.pipelines.project import Project
    from penstock.pipelines.state import pipeline_state

    state = pipeline_state(Project.load(folder, storage=storage), ctx.obj.options())
    if json:
        print_json(state.plain())
        return
    typer.echo(f"Pipeline {state.name} is {'running' if state.running else 'not running'}.")
    if state.replay is not None:
        typer.echo(f"It was switched to its replay {state.replay.name}, which writes to {_names(state.replay.into)}.")
    for stream, (read, here) in sorted(state.others.items()):
        what = f"The stream {stream} that it reads was made at {read}; the one of that name here was made at {here}."
        typer.echo(f"{what} Is this the right server? Otherwise it was deleted and made again.", err=True)
    if state.told is not None:
        typer.echo(f"Its checkpoints are not on this machine. Its newest run from here told, {ago(state.told)}:")
    rows = list(state.rows())
    if not rows:
        hint = "" if state.running else f" `penstock pipeline run {folder}` runs it."
        typer.echo(f"No flow has begun a batch yet.{hint}")
        return
    print_table(
        "Flows",
        ("Target", "Flow", "#Batches", "Stream", "#Next", "#Lag", "#State bytes", "Last batch"),
        [
            (
                flow.target or "–",
                flow.flow,
                0 if flow.done is None else flow.done + 1,
                stream or "–",
                following or "–",
                "–" if lag is None else f"{lag:,}",
                f"{flow.state_bytes:,}",
                "–" if state.told is not None else "done" if flow.complete else "will be done again",
            )
            for flow, stream, following, lag in rows
        ],
    )


def reset(folder: Folder = ".", storage: Storage = None, force: Force = False) -> None:
    """Forget how far the pipeline is, drop its tables, and undo a switch; streams keep what they hold."""
    from penstock.pipelines.project import Project
    from penstock.pipelines.state import reset_pipeline, state_paths

    project = Project.load(folder, storage=storage)
    paths = state_paths(project)
    if not paths:
        typer.echo("There is nothing to reset.")
        return
    confirm(f"Delete {', '.join(str(path) for path in paths)}", force)
    reset_pipeline(project)
    typer.echo("Reset. The next run reads everything again, and adds to the streams that it writes to.")


def replay(
    ctx: typer.Context,
    folder: Folder = ".",
    start: Annotated[
        str, flag("Where to begin: all, a sequence, a time, or a duration ago.", "POSITION", "--from")
    ] = "all",
    into: Annotated[
        list[str] | None, flag("Write to the stream NEW instead of STREAM; made if missing.", "STREAM=NEW")
    ] = None,
    name: Annotated[str, flag("The name of this replay; its state is kept under it.")] = "replay",
    backup: Annotated[
        list[str] | None, flag("Begin in a backup or an archive of a stream; may be repeated.", "DIR")
    ] = None,
    master: Master = None,
    remote: Remote = None,
    storage: Storage = None,
    switch: Annotated[bool, flag("Then let the pipeline go on from here, into the new streams.")] = False,
    json: Json = False,
) -> None:
    """Run the pipeline over history into new streams beside the old ones, and compare them."""
    from penstock.pipelines.project import Project
    from penstock.pipelines.replaying import replay as replay_pipeline

    pairs: dict[str, str] = {}
    for item in into or ():
        old, equals, other = item.partition("=")
        if not (old and equals and other):
            raise OptionError(
                f"--into {item!r} is not a pair.", remedy="Write --into REVENUE=REVENUE_V2.", option="--into"
            )
        pairs[old] = other
    project = Project.load(folder, storage=storage)
    with board(f"{project.name}, {name}") as show, stop_on_signal(False):
        done = replay_pipeline(
            project,
            options=ctx.obj.options(),
            start=start,
            into=pairs,
            name=name,
            backups=backup or (),
            master=master,
            remote=remote,
            switch_to_it=switch,
            watch=lambda outcome: show(outcome, None),
        )
    if json:
        print_json([comparison.plain() for comparison in done.comparisons])
        return
    print_summary(done.outcome, f"Replay {name}")
    print_table(
        "Old and new",
        ("Old", "New", "#Messages old", "#Messages new", "#Same", "#Only old", "#Only new"),
        [
            (item.old, item.new, item.old_count, item.new_count, item.same, item.only_old, item.only_new)
            for item in done.comparisons
        ],
    )
    where = done.warehouse if done.database is None else f"the database {done.database}"
    typer.echo(f"Tables of the replay are in {where}.")
    if switch:
        typer.echo(f"Switched: the next run goes on from here, into {_names(pairs)}.")


def switch_(
    folder: Folder = ".",
    to: Annotated[str | None, flag("The replay to go on from.", "NAME")] = None,
    back: Annotated[bool, flag("Go on in the pipeline's own state again.")] = False,
    storage: Storage = None,
) -> None:
    """Let the pipeline go on where a replay ended, into the streams that it filled; or go back."""
    from penstock.pipelines.project import Project
    from penstock.pipelines.replays import switch, switch_back

    if (to is None) == (not back):
        raise OptionError("It is not said which way to switch.", remedy="Give --to NAME or --back.", option="--to")
    project = Project.load(folder, storage=storage)
    if to is None:
        switch_back(project)
        typer.echo("Switched back: the next run goes on in the pipeline's own state, into its own streams.")
        return
    kept = switch(project, to)
    typer.echo(f"Switched: the next run goes on where the replay {to} ended, into {_names(kept.into)}.")


def _names(into: Mapping[str, str]) -> str:
    return ", ".join(into.values()) or "no other stream"
