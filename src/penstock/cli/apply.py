"""`penstock apply`: make the server's streams and consumers those of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.asset_commands import confirm, connected
from penstock.cli.global_flags import Globals
from penstock.cli.output import Json, print_json, run

if TYPE_CHECKING:
    from penstock.jetstream.changes import Plan
    from penstock.jetstream.topology import Topology

__all__ = ["apply"]

_MARKS = {"create": "+", "update": "~", "delete": "-", "none": "="}


def apply(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file that declares streams and consumers.")],
    plan: Annotated[bool, typer.Option("--plan", help="Show what would change, and change nothing.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete consumers of these streams that the file does not name.")
    ] = False,
    may_lose_data: Annotated[bool, typer.Option("--may-lose-data", help="Allow changes that drop messages.")] = False,
    force: Annotated[bool, typer.Option("-f", "--force", help="Do not ask before --prune deletes.")] = False,
    json: Json = False,
) -> None:
    """Create and update the streams and consumers of a file; never delete a stream, and lose nothing unasked."""
    from penstock.jetstream.topology import Topology

    run(_apply(ctx.obj, Topology.load(file), plan, prune, may_lose_data, force, json))


async def _apply(
    given: Globals, topology: Topology, only_plan: bool, prune: bool, may_lose_data: bool, force: bool, json: bool
) -> None:
    from penstock.jetstream.topology import apply as take
    from penstock.jetstream.topology import plan as make

    async with connected(given) as client:
        plan = await make(client, topology, prune=prune)
        if only_plan:
            print_json(plan.to_json()) if json else _show(plan)
            return
        plan.check(may_lose_data=may_lose_data)
        if doomed := [step.title for step in plan.steps if step.action == "delete"]:
            confirm(f"Really delete {', '.join(doomed)}", force)
        done = await take(client, topology, prune=prune, may_lose_data=may_lose_data)
    if json:
        print_json(done.to_json())
        return
    _show(done)
    counts = {action: sum(step.action == action for step in done.steps) for action in _MARKS}
    typer.echo(
        f"Applied: {counts['create']} created, {counts['update']} updated, {counts['delete']} deleted, "
        f"{counts['none']} as they were."
    )


def _show(plan: Plan) -> None:
    for step in plan.steps:
        typer.echo(f"{_MARKS[step.action]} {step.title}")
        for change in step.changes:
            typer.echo(f"    {change}")
    for name in plan.undeclared:
        typer.echo(f"? consumer {name} is not in the file, and is left alone")
    if plan.empty:
        typer.echo("Nothing to change.")
