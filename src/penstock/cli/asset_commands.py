"""What creating and changing is for streams and consumers alike: a configuration to begin with, and what changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from penstock.cli.asset_show import info_json
from penstock.cli.editor import in_editor
from penstock.cli.flags import JSON, flag_table, table_flag
from penstock.cli.late import changes
from penstock.cli.output import print_json
from penstock.cli.questions import confirm
from penstock.cli.tables import plain
from penstock.cli.values import read_json, refuse_both, write_json
from penstock.errors import InputError
from penstock.json_text import load_json

if TYPE_CHECKING:
    from penstock.info import ConsumerInfo, StreamInfo
    from penstock.jetstream.changes import Step
    from penstock.model import Consumer, Stream

__all__ = ["Adding", "Editing", "fields_of", "read_config"]

Config = TypeVar("Config", "Stream", "Consumer")
Info = TypeVar("Info", "StreamInfo", "ConsumerInfo")


@flag_table
class Adding:
    """The flags with which streams and consumers are created alike."""

    config: Path | None = table_flag("JSON configuration to begin with.", "FILE")
    validate: bool = table_flag("Check, and create nothing.", default=False)
    output: Path | None = table_flag("Write the configuration, and create nothing.", "FILE")
    defaults: bool = table_flag("Ask nothing; take the defaults.", default=False)
    json: bool = table_flag(JSON, "-j", "--json", default=False)

    def only_shows(self, config: Stream | Consumer, what: str) -> bool:
        """Write a configuration into a file, or say that it is valid, and tell whether that was all that was asked."""
        if self.output is not None:
            write_json(self.output, config.to_json())
        elif self.validate:
            print_json(config.to_json()) if self.json else typer.echo(f"{what} is valid.")
        return self.output is not None or self.validate


@flag_table
class Editing:
    """The flags with which streams and consumers are changed alike."""

    config: Path | None = table_flag("JSON configuration to change it to.", "FILE")
    interactive: bool = table_flag("Change the configuration in your editor.", "-i", "--interactive", default=False)
    dry_run: bool = table_flag("Show what would change, and change nothing; status 1 if something.", default=False)
    force: bool = table_flag("Do not ask.", "-f", "--force", default=False)
    json: bool = table_flag(JSON, "-j", "--json", default=False)

    async def base(self, there: Config) -> Config:
        """Give the configuration to begin with: a file's, what an editor made of that which is there, or that."""
        refuse_both("--config", self.config is not None, "--interactive", self.interactive)
        if self.config is not None:
            return read_config(type(there), self.config, there.name)
        return await asyncio.to_thread(edited, there) if self.interactive else there

    async def carry_out(
        self, step: Step, there: Info, edit: Callable[[Any], Awaitable[Info]], question: str
    ) -> Info | None:
        """Show what a step changes, ask, and change it; gives what is to be shown to people."""
        plan = changes.Plan((step,))
        plan.check(may_lose_data=True)
        if self.json and self.dry_run:
            print_json(plan.to_json())
            raise typer.Exit(0 if plan.empty else 1)
        info = there
        if step.action == "none":
            typer.echo(f"{step.kind.capitalize()} {step.name} is like that already.", err=True)
        else:
            for change in step.changes:
                typer.echo(plain(f"  {change}"), err=self.json)
            if self.dry_run:
                raise typer.Exit(1)
            confirm(question, self.force)
            info = await edit(step.target)
        if self.json:
            print_json(info_json(info))
        return None if self.json or step.action == "none" else info


def read_config(kind: type[Config], path: Path, name: str | None = None) -> Config:
    """Read a configuration from a file: plain, or as a server's answer has it; `name` is for one without a name."""
    content = read_json(path, "--config")
    found = content.get("config", content)
    nameless = name is not None and isinstance(found, dict) and not (found.get("name") or found.get("durable_name"))
    return kind.from_json({**found, "name": name} if nameless else found)


def edited(config: Config) -> Config:
    """Let somebody change a configuration in their editor, as JSON."""
    shown = config.model_copy(update={"metadata": changes.own_metadata(config.metadata)}).to_json()
    text = in_editor(json.dumps(shown, indent=2) + "\n", ".json")
    try:
        content = load_json(text)
    except ValueError as error:
        raise InputError(f"What you wrote is not JSON: {error}.", remedy="Edit it again.") from None
    return type(config).from_json(content)


def fields_of(config: Stream | Consumer) -> dict[str, Any]:
    """Give the fields of a configuration, to make another one over it."""
    return {field: getattr(config, field) for field in type(config).model_fields}
