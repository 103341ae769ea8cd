"""Flags with which streams and consumers are created and changed alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Base", "Defaults", "DryRun", "Force", "Output", "Target", "Validate"]

Base = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="JSON configuration to begin with.")]
Target = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="JSON configuration to change it to.")]
Validate = Annotated[bool, typer.Option("--validate", help="Check, and create nothing.")]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write the configuration, and create nothing.")
]
Defaults = Annotated[bool, typer.Option("--defaults", help="Ask nothing; take the defaults.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]
Force = Annotated[bool, typer.Option("-f", "--force", help="Do not ask.")]
