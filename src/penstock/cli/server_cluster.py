"""`penstock server cluster step-down`: which server leads JetStream; for the system account."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.flags import Force, flag
from penstock.cli.questions import confirm
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.errors import InputError

__all__ = ["step_down"]


async def step_down(
    ctx: typer.Context,
    host: Annotated[str | None, flag("Server that is to lead.", "SERVER")] = None,
    force: Force = False,
) -> None:
    """Let the server that leads JetStream step down, so that another one does."""
    from penstock.system.meta import meta_group, step_down_meta

    async with connected(ctx) as client:
        before = await meta_group(client)
        if before.leader is None:
            raise InputError("JetStream has no leader now.", remedy="Wait for one.")
        confirm(f"Really let {before.leader} step down", force)
        now = await step_down_meta(client, preferred=host, timeout=max(ctx.obj.seconds, 1.0))
    typer.echo(plain(f"{now.leader} leads JetStream in {now.name} now; before, {before.leader} did"))
