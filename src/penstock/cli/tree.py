"""All commands by name, each loaded when it is first wanted: one command does not pay for the flags of all others."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from penstock.cli.parsing import Quick, Verb

__all__ = ["COMMANDS", "HIDDEN", "Entry", "Group", "Tree"]

Command = Any  # typer carries its own copy of click's classes, under a private name


@dataclass(frozen=True)
class Entry:
    """A command that does something."""

    place: str
    """Its function, as file.function of this folder."""
    summary: str | None = None
    """The first sentence of its help, where a list is to show it without loading the file."""
    hidden: bool = False
    """Whether lists leave it out."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function, loaded."""
        file, _, name = self.place.partition(".")
        found: Callable[..., Any] = getattr(importlib.import_module(f"penstock.cli.{file}"), name)
        return found

    @property
    def help(self) -> str:
        """What lists say of it: the first paragraph of what the function says of itself."""
        return self.summary or " ".join((self.function.__doc__ or "").split("\n\n")[0].split())

    def load(self, name: str) -> Command:
        """Make the command."""
        lone = typer.Typer(add_completion=False, rich_markup_mode=None)
        lone.command(name, cls=Verb, hidden=self.hidden)(self.function)
        return typer.main.get_command(lone)


@dataclass(frozen=True)
class Group:
    """A noun: its verbs, and the other names that they have."""

    help: str
    verbs: Mapping[str, str]
    """Where the function of each is."""
    hidden_names: Mapping[str, str] = field(default_factory=dict)
    """For each hidden name, the one that the help shows: {"list": "ls"}."""
    hidden: bool = False

    def load(self, name: str) -> Command:
        """Make the group; its verbs are made later, one by one."""
        made = Noun(name=name, help=self.help, hidden=self.hidden, no_args_is_help=True, rich_markup_mode=None)
        made.take({verb: Entry(place) for verb, place in self.verbs.items()}, self.hidden_names)
        return made


COMMANDS: dict[str, Entry | Group] = {
    "server": Group("Run a real NATS server, and ask one who it is.", {"run": "server.serve", "info": "server.info"}),
    "stream": Group(
        "Streams: create, look at, change, back up.",
        {
            "add": "stream.add",
            "edit": "stream.edit",
            "seal": "stream.seal",
            "rm": "stream.rm",
            "purge": "stream.purge",
            "info": "stream_look.info",
            "ls": "stream_look.ls",
            "report": "stream_look.report",
            "subjects": "stream_look.subjects",
            "size": "stream_look.size",
            "view": "stream_messages.view",
            "get": "stream_messages.get",
            "rmm": "stream_messages.rmm",
            "backup": "stream_messages.backup",
            "restore": "stream_messages.restore",
        },
        {
            "create": "add",
            "new": "add",
            "update": "edit",
            "list": "ls",
            "l": "ls",
            "nfo": "info",
            "i": "info",
            "subj": "subjects",
            "delete": "rm",
            "del": "rm",
            "snapshot": "backup",
        },
    ),
    "consumer": Group(
        "Consumers: create, look at, read from, pause.",
        {
            "add": "consumer.add",
            "edit": "consumer.edit",
            "rm": "consumer.rm",
            "pause": "consumer.pause",
            "resume": "consumer.resume",
            "info": "consumer.info",
            "ls": "consumer.ls",
            "report": "consumer.report",
            "next": "consumer_read.next_",
            "sub": "consumer_read.sub",
            "redeliver": "consumer_read.redeliver",
            "samples": "consumer_samples.samples",
        },
        {
            "create": "add",
            "new": "add",
            "update": "edit",
            "list": "ls",
            "nfo": "info",
            "i": "info",
            "delete": "rm",
            "del": "rm",
        },
    ),
    "apply": Entry(
        "apply.apply",
        "Create and update the streams and consumers of a file; never delete a stream, and lose nothing unasked.",
    ),
    "pub": Entry(
        "messages.pub",
        "Publish messages; {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled.",
    ),
    "sub": Entry("messages.sub", "Show messages as they come, until Ctrl-C."),
    "req": Entry("messages.req", "Send a request and show what is answered."),
    "reply": Entry("messages.reply", "Answer requests, until Ctrl-C."),
    "rtt": Entry("messages.rtt", "Measure the round trip to each server."),
    "chunks": Group("Files of any size over NATS, in chunks.", {"send": "chunks.send", "receive": "chunks.receive"}),
    "bus": Group("Requests with sectioned, flow-controlled replies.", {"call": "bus.call", "serve": "bus.serve"}),
    "channels": Group(
        "Serve NATS Streaming clients from JetStream, and move their channels over.",
        {
            "serve": "channels.serve",
            "ls": "channels.list_channels",
            "info": "channels.info",
            "export": "channels.export",
            "migrate": "channels.migrate",
        },
    ),
    "pipeline": Group(
        "Make, run and look at Spark pipelines over NATS.",
        {
            "new": "pipeline.new",
            "run": "pipeline.run",
            "status": "pipeline.status",
            "reset": "pipeline.reset",
            "replay": "pipeline.replay",
            "switch": "pipeline.switch_lane",
        },
    ),
    "console": Entry(
        "console.console",
        "Serve a web console that shows streams, consumers, lag, messages, pipelines and transfers, "
        "and changes nothing.",
    ),
    "doctor": Entry(
        "doctor.doctor",
        "Check Python, Java, the NATS server, the compiled wire, Spark and the disk; "
        "exit status 1 if something is bad.",
    ),
    "demo": Entry(
        "demo.demo",
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

    def __init__(self, entries: Mapping[str, Entry | Group]) -> None:
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
    """A group as typer knows it. It answers a mistyped command with names that its help shows, and no hidden one."""

    def take(self, entries: Mapping[str, Entry | Group], hidden_names: Mapping[str, str]) -> None:
        """Hold these commands, under their hidden names, too."""
        again = {name: dataclasses.replace(entries[shown], hidden=True) for name, shown in hidden_names.items()}
        self.entries, self.hidden_names = {**entries, **again}, hidden_names
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


class Tree(Noun):
    """The root: every command by name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.take(COMMANDS, HIDDEN)
