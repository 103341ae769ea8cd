"""The commands by name, each loaded when it is first wanted: one command does not pay for the flags of all others."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

__all__ = ["COMMANDS", "Entry", "Suggesting", "Tree"]

Command = Any  # typer carries its own copy of click's classes, under a private name


@dataclass(frozen=True)
class Entry:
    """Where a command is, and what the list of commands says of it."""

    module: str
    """The file in this folder."""
    name: str
    """The function, or `app` for a noun with verbs."""
    help: str = ""
    """The first sentence of its own help; none for a hidden name."""

    def load(self, name: str) -> Command:
        """Make the command."""
        found = getattr(importlib.import_module(f"penstock.cli.{self.module}"), self.name)
        if isinstance(found, typer.Typer):
            command: Command = typer.main.get_group(found)
        else:
            lone = typer.Typer(add_completion=False)
            lone.command(name)(found)
            command = typer.main.get_command(lone)
        command.name = name
        command.hidden = not self.help
        return command


COMMANDS = {
    "server": Entry("server", "app", "Run a real NATS server, and ask one who it is."),
    "stream": Entry("stream", "app", "Streams: create, look at, change, back up."),
    "str": Entry("stream", "app"),
    "st": Entry("stream", "app"),
    "s": Entry("stream", "app"),
    "consumer": Entry("consumer", "app", "Consumers: create, look at, read from, pause."),
    "con": Entry("consumer", "app"),
    "c": Entry("consumer", "app"),
    "apply": Entry(
        "apply",
        "apply",
        "Create and update the streams and consumers of a file; never delete a stream, and lose nothing unasked.",
    ),
    "pub": Entry(
        "messages",
        "pub",
        "Publish messages; {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled.",
    ),
    "publish": Entry("messages", "pub"),
    "sub": Entry("messages", "sub", "Show messages as they come, until Ctrl-C."),
    "subscribe": Entry("messages", "sub"),
    "req": Entry("messages", "req", "Send a request and show what is answered."),
    "request": Entry("messages", "req"),
    "reply": Entry("messages", "reply", "Answer requests, until Ctrl-C."),
    "rtt": Entry("messages", "rtt", "Measure the round trip to each server."),
    "chunks": Entry("chunks", "app", "Files of any size over NATS, in chunks."),
    "bus": Entry("bus", "app", "Requests with sectioned, flow-controlled replies."),
    "channels": Entry("channels", "app", "Serve NATS Streaming clients from JetStream, and move their channels over."),
    "pipeline": Entry("pipeline", "app", "Make, run and look at Spark pipelines over NATS."),
    "console": Entry(
        "console",
        "console",
        "Serve a web console that shows streams, consumers, lag, messages, pipelines and transfers, "
        "and changes nothing.",
    ),
    "doctor": Entry(
        "doctor",
        "doctor",
        "Check Python, Java, the NATS server, the compiled wire, Spark and the disk; "
        "exit status 1 if something is bad.",
    ),
    "demo": Entry(
        "demo",
        "demo",
        "Run the main job: orders through NATS and Spark and back, with a kill in the middle and an audit at the end.",
    ),
}


class Commands(dict[str, Command]):
    """What a group takes for the dict of its commands: names at once, commands when they are asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(COMMANDS))

    def __getitem__(self, name: str) -> Command:
        found = super().__getitem__(name)
        if found is None:
            found = self[name] = COMMANDS[name].load(name)
        return found

    def get(self, name: str, default: Any = None) -> Command:
        return self[name] if super().get(name, self) is not self else default

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()


class Suggesting(TyperGroup):
    """A group that answers a mistyped command with names that its help shows, also where a hidden one is nearer."""

    hidden_names: Mapping[str, str] = {}
    """For each hidden name, the one that the help shows."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.suggest_commands = False  # it would name hidden ones
        typed = args[0] if args else ""
        if typed and not typed.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, typed) is None:
            near = difflib.get_close_matches(typed, list(self.commands))
            shown = dict.fromkeys(repr(self.hidden_names.get(name, name)) for name in near)
            if shown:
                ctx.fail(f"No such command {typed!r}. Did you mean {', '.join(shown)}?")
        return super().resolve_command(ctx, args)


class Tree(Suggesting):
    """The root: every command by name, and a list of them that loads none."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = Commands()
        shown = {(entry.module, entry.name): name for name, entry in COMMANDS.items() if entry.help}
        self.hidden_names = {
            name: shown[entry.module, entry.name] for name, entry in COMMANDS.items() if not entry.help
        }
        self._listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Command:
        if not self._listing:
            return self.commands.get(cmd_name)
        entry = COMMANDS[cmd_name]
        return TyperCommand(cmd_name, callback=None, help=entry.help, hidden=not entry.help)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False
