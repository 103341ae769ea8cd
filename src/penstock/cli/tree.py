"""The commands by name, each made when it is first wanted: one command does not pay for the flags of all others."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from penstock.cli.parsing import Quick, Verb

__all__ = ["COMMANDS", "HIDDEN", "Entry", "Noun", "Tree", "noun"]

Command = Any  # typer carries its own copy of click's classes, under a private name


@dataclass(frozen=True)
class Function:
    """A command that is a function."""

    function: Callable[..., Any]
    hidden: bool = False
    """Whether the list of commands leaves it out."""

    @property
    def help(self) -> str:
        """What the list of commands says of it."""
        return " ".join((self.function.__doc__ or "").split("\n\n")[0].split())

    def load(self, name: str) -> Command:
        """Make the command."""
        lone = typer.Typer(add_completion=False, rich_markup_mode=None)
        lone.command(name, cls=Verb)(self.function)
        command: Command = typer.main.get_command(lone)
        command.hidden = self.hidden
        return command


@dataclass(frozen=True)
class Entry:
    """Where a command is, and what the list of commands says of it."""

    module: str
    """The file in this folder."""
    name: str
    """The function, or `app` for a noun with verbs."""
    help: str
    """The first sentence of its own help."""
    hidden: bool = False
    """Whether the list of commands leaves it out."""

    def load(self, name: str) -> Command:
        """Make the command."""
        found = getattr(importlib.import_module(f"penstock.cli.{self.module}"), self.name)
        if not isinstance(found, typer.Typer):
            return Function(found, self.hidden).load(name)
        # Typer would make every verb with all its flags at once.
        empty = copy.copy(found)
        empty.registered_commands = []
        group: Command = typer.main.get_group(empty)
        made = [(info.name, info.callback) for info in found.registered_commands if info.callback is not None]
        group.take({verb or function.__name__: Function(function) for verb, function in made})
        group.name = name
        group.hidden = self.hidden
        return group


COMMANDS = {
    "server": Entry("server", "app", "Run a real NATS server, and ask one who it is."),
    "stream": Entry("stream", "app", "Streams: create, look at, change, back up."),
    "consumer": Entry("consumer", "app", "Consumers: create, look at, read from, pause."),
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
    "sub": Entry("messages", "sub", "Show messages as they come, until Ctrl-C."),
    "req": Entry("messages", "req", "Send a request and show what is answered."),
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


HIDDEN = {
    "str": "stream",
    "st": "stream",
    "s": "stream",
    "con": "consumer",
    "c": "consumer",
    "publish": "pub",
    "subscribe": "sub",
    "request": "req",
}


class Commands(dict[str, Command]):
    """What a group takes for the dict of its commands: names at once, commands when they are asked for."""

    def __init__(self, entries: Mapping[str, Entry | Function]) -> None:
        super().__init__(dict.fromkeys(entries))
        self.entries = entries

    def __getitem__(self, name: str) -> Command:
        found = super().__getitem__(name)
        if found is None:
            found = self[name] = self.entries[name].load(name)
        return found

    def get(self, name: str, default: Any = None) -> Command:
        return self[name] if super().get(name, self) is not self else default

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()


class Noun(Quick, TyperGroup):
    """A group of commands: each is made when it is wanted, and the list of them makes none.

    It answers a mistyped command with names that its help shows, also where a hidden one is nearer.
    """

    hidden_names: Mapping[str, str] = {}
    """For each hidden name, the one that the help shows."""

    entries: Mapping[str, Entry | Function] = {}

    def take(self, entries: Mapping[str, Entry | Function]) -> None:
        """Hold these commands, under their hidden names, too."""
        again = {name: dataclasses.replace(entries[shown], hidden=True) for name, shown in self.hidden_names.items()}
        self.entries = {**entries, **again}
        self.commands = Commands(self.entries)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items() if not entry.hidden])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.suggest_commands = False  # it would name hidden ones
        typed = args[0] if args else ""
        if typed and not typed.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, typed) is None:
            near = difflib.get_close_matches(typed, list(self.commands))
            shown = dict.fromkeys(repr(self.hidden_names.get(name, name)) for name in near)
            if shown:
                ctx.fail(f"No such command {typed!r}. Did you mean {', '.join(shown)}?")
        return super().resolve_command(ctx, args)


def noun(name: str, help: str, hidden_names: Mapping[str, str] | None = None) -> typer.Typer:
    """Make the app of a noun, to which its file adds the verbs; they may have other, hidden names: {"list": "ls"}."""
    kind = type("Named", (Noun,), {"hidden_names": hidden_names or {}})
    return typer.Typer(cls=kind, name=name, help=help, no_args_is_help=True, rich_markup_mode=None)


class Tree(Noun):
    """The root: every command by name."""

    hidden_names = HIDDEN

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.take(COMMANDS)
