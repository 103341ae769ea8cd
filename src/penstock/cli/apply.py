"""`penstock apply`: make the server's streams and consumers those of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Json, argument, flag
from penstock.cli.output import print_json
from penstock.cli.questions import confirm
from penstock.cli.running import connected
from penstock.cli.tables import plain

if TYPE_CHECKING:
    from penstock.jetstream.changes import Plan

__all__ = ["apply"]

_MARKS = {"create": "+", "update": "~", "delete": "-", "none": "="}


async def apply(
    ctx: typer.Context,
    file: Annotated[Path, argument("File that declares streams and consumers: TOML, YAML or JSON.", "FILE")],
    plan: Annotated[bool, flag("Show what would change, and change nothing.", "--plan", "--dry-run")] = False,
    prune: Annotated[bool, flag("Delete consumers of these streams that the file does not name.")] = False,
    may_lose_data: Annotated[bool, flag("Allow changes that drop messages.")] = False,
    force: Annotated[bool, flag("Do not ask before --prune deletes.", "-f", "--force")] = False,
    json: Json = False,
) -> None:
    """Create and update the streams and consumers of a file; never delete a stream, and lose nothing unasked."""
    from penstock.jetstream import topology

    wanted = topology.Topology.load(file)
    async with connected(ctx) as client:
        found = await topology.plan(client, wanted, prune=prune)
        if plan:
            print_json(found.to_json()) if json else _show(found)
            return
        found.check(may_lose_data=may_lose_data)
        if doomed := [step.title for step in found.steps if step.action == "delete"]:
            confirm(f"Really delete {', '.join(doomed)}", force)
        done = await topology.apply(client, wanted, prune=prune, may_lose_data=may_lose_data)
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
        typer.echo(plain(f"{_MARKS[step.action]} {step.title}"))
        for change in step.changes:
            typer.echo(plain(f"    {change}"))
    for name in plan.undeclared:
        typer.echo(plain(f"? consumer {name} is not in the file, and is left alone"))
    if plan.empty:
        typer.echo("Nothing to change.")
