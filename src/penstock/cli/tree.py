"""All commands by name, each loaded when it is first wanted: one command does not pay for the flags of all others."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from penstock.cli.flags import as_command
from penstock.cli.parsing import Quick, Verb

__all__ = ["COMMANDS", "HIDDEN", "Entry", "Group", "Tree"]

Command = Any  # typer carries its own copy of click's classes, under a private name


@dataclass(frozen=True)
class Entry:
    """A command that does something."""

    place: str
    """Its function, as file.function of this folder."""
    summary: str | None = None
    """The first sentence of its help, if a list is to show it without loading the file."""
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
        lone.command(name, cls=Verb, hidden=self.hidden)(as_command(self.function))
        return typer.main.get_command(lone)


@dataclass(frozen=True)
class Group:
    """A noun, and its verbs."""

    help: str
    files: Mapping[str, str]
    """The verbs in each file of this folder, in the order of the list. A verb's function may have _ behind its name."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Other, hidden names of a verb."""
    groups: Mapping[str, Group | Entry] = field(default_factory=dict)
    """Nouns below this one, such as `stream cluster`, and verbs whose function has another name."""
    hidden: bool = False

    @property
    def verbs(self) -> dict[str, Entry | Group]:
        """The verbs by name, and the nouns below."""
        listed = [(file, name) for file, names in self.files.items() for name in names.split()]
        return {name.rstrip("_").replace("_", "-"): Entry(f"{file}.{name}") for file, name in listed} | dict(
            self.groups
        )

    @property
    def hidden_names(self) -> dict[str, str]:
        """For each hidden name, the one that the help shows."""
        return {other: verb for verb, others in self.others.items() for other in others.split()}

    def load(self, name: str) -> Command:
        """Make the group; its verbs are made later, one by one."""
        made = Noun(name=name, help=self.help, hidden=self.hidden, no_args_is_help=True, rich_markup_mode=None)
        made.take(self.verbs, self.hidden_names)
        return made


COMMANDS: dict[str, Entry | Group] = {
    "server": Group(
        "Run a real NATS server; ask servers who they are, how they are, and whether that is well.",
        {"server": "run_ info", "server_list": "list_ ping"},
        {"list": "ls", "info": "i", "report": "rep", "request": "req", "account": "acct", "cluster": "r raft"},
        groups={
            "account": Group("Accounts, as servers know them.", {"server_account": "info"}, {"info": "i"}),
            "cluster": Group(
                "Which server leads JetStream, for the system account.",
                {"server_cluster": "step_down"},
                {"step-down": "stepdown sd elect down d"},
            ),
            "report": Group(
                "Reports over all servers, for the system account.",
                {
                    "server_report": "accounts connections cpu mem health",
                    "server_report_cluster": "jetstream routes gateways leafnodes downgrade",
                },
                {
                    "accounts": "acct",
                    "connections": "conn connz conns",
                    "jetstream": "jsz js",
                    "routes": "route",
                    "gateways": "super gateway",
                    "leafnodes": "leaf leafz",
                },
            ),
            "check": Group(
                "Checks for monitoring systems; the exit status is 0 if all is well, 1 for a warning, 2 if critical.",
                {
                    "server_check": "connection server request meta jetstream credential",
                    "server_check_assets": "stream consumer message kv",
                },
                {"connection": "conn", "meta": "raft", "request": "req", "jetstream": "js"},
            ),
            "request": Group(
                "What servers say of themselves, as JSON, a line for each; for the system account.",
                {
                    "server_request": "variables connections subscriptions routes gateways leafnodes accounts "
                    "jetstream jetstream_health raft ipqueue"
                },
                {
                    "accounts": "accountz acct",
                    "connections": "conn connz",
                    "gateways": "gateway gwy gatewayz",
                    "ipqueue": "ipq ipqueuesz",
                    "jetstream-health": "healthz",
                    "jetstream": "jsz js",
                    "leafnodes": "leaf leafz",
                    "raft": "raftz",
                    "routes": "route routez",
                    "subscriptions": "sub subsz",
                    "variables": "var varz",
                },
            ),
        },
    ),
    "stream": Group(
        "Streams: create, look at, change, back up.",
        {
            "stream": "add copy edit seal rm purge",
            "stream_look": "info state ls report find subjects size",
            "stream_messages": "view get rmm gaps",
            "stream_schema": "schema",
            "backup": "backup restore",
            "stream_archive": "archive",
        },
        {
            "add": "create new",
            "copy": "cp",
            "edit": "update",
            "ls": "list l",
            "find": "query",
            "info": "nfo i",
            "subjects": "subj",
            "rm": "delete del",
            "backup": "snapshot",
            "cluster": "c",
        },
        {
            "cluster": Group(
                "Which servers carry a stream, and which one leads.",
                {"stream_cluster": "step_down balance evacuate peer_remove cancel_move"},
                {"step-down": "stepdown sd elect down d", "peer-remove": "pr"},
            )
        },
    ),
    "store": Group("Stores of servers that do not run: look into them.", {"store": "inspect"}),
    "backup": Group(
        "Streams into folders, and back; what backups hold.",
        {"backup_look": "info validate lookup"},
        groups={
            "stream": Entry("backup.backup"),
            "restore": Group("Restore what was backed up.", {}, groups={"stream": Entry("backup.restore")}),
        },
    ),
    "consumer": Group(
        "Consumers: create, look at, read from, pause.",
        {
            "consumer": "add edit copy rm reset pause resume unpin",
            "consumer_look": "info state ls find report",
            "consumer_read": "next_ sub redeliver samples",
        },
        {
            "add": "create new",
            "edit": "update",
            "copy": "cp",
            "rm": "delete del",
            "info": "nfo i",
            "ls": "list",
            "find": "query",
            "cluster": "c",
        },
        {
            "cluster": Group(
                "Which servers carry a consumer, and which one leads.",
                {"consumer_cluster": "step_down balance evacuate"},
                {"step-down": "elect down d"},
            )
        },
    ),
    "counter": Group(
        "Counters: whole numbers that streams keep.",
        {"counter": "get view increment decrement list_"},
        {"get": "g", "view": "v", "increment": "incr inc i", "decrement": "decr dec d", "list": "l ls"},
    ),
    "kv": Group(
        "Key-value buckets: values under keys, their history, and what changes.",
        {
            "kv": "add edit info ls del_ compact",
            "kv_keys": "put get create update purge history revert watch",
        },
        {"add": "new", "info": "view status", "ls": "list", "del": "rm"},
    ),
    "object": Group(
        "Object buckets: files of any size under names.",
        {"object": "add edit put get del_ info ls seal rename link watch compact"},
        {"del": "rm", "info": "show i"},
    ),
    "apply": Entry(
        "apply.apply",
        "Create and update the streams and consumers of a file; never delete a stream, and lose nothing unasked.",
    ),
    "pub": Entry(
        "pub.pub",
        "Publish messages; {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}}, {{Random}} are filled.",
    ),
    "sub": Entry(
        "sub.sub",
        "Show messages as they come, until Ctrl-C; from a stream, if one is named or where in one to begin.",
    ),
    "req": Entry("req.req", "Send a request and show what is answered."),
    "reply": Entry("reply.reply", "Answer requests, until Ctrl-C."),
    "rtt": Entry("rtt.rtt", "Measure the round trip to each address of each server."),
    "context": Group(
        "Contexts: named settings of connections, shared with the nats command.",
        {"context": "add copy edit ls rm select unselect previous info validate"},
        {
            "add": "create save",
            "copy": "cp",
            "edit": "vi",
            "ls": "list l",
            "rm": "remove",
            "select": "switch set",
            "previous": "-",
            "info": "show v view",
        },
    ),
    "account": Group(
        "The account of this login: who we are, what we may do, what it uses.",
        {"account": "info tls"},
        {"info": "nfo", "report": "rep"},
        {
            "report": Group(
                "Reports on the account, over all servers.",
                {"account_report": "connections statistics"},
                {"connections": "conn connz conns", "statistics": "stats statsz"},
            )
        },
    ),
    "events": Entry("events.events", "Show what servers tell: connections, advisories and metrics, until Ctrl-C."),
    "chunks": Group("Files of any size over NATS, in chunks.", {"chunks": "send receive ls info"}),
    "bus": Group("Requests with sectioned, flow-controlled replies.", {"bus": "call serve"}),
    "channels": Group(
        "Serve NATS Streaming clients from JetStream, and move their channels over.",
        {"channels": "serve ls info export", "channels_migrate": "migrate", "channels_old": "old_server"},
    ),
    "bench": Group(
        "Measure a server: how many messages a second, how long each takes, and our own CPU time.",
        {"bench": "pub sub request"},
        groups={
            "service": Group("Requests, and who answers them.", {"bench": "serve request"}),
            "js": Group(
                "Streams: publish and read.",
                {"bench_js": "ordered consume fetch"},
                groups={
                    "pub": Group(
                        "Publish into a stream.",
                        {"bench_js": "sync async_ atomic fast"},
                        {"atomic": "batch"},
                    ),
                    "get": Group(
                        "Get single messages of a stream.",
                        {},
                        groups={"sync": Entry("bench_js.get_sync"), "batch": Entry("bench_js.get_batch")},
                    ),
                },
            ),
            "kv": Group(
                "Values of a bucket.",
                {},
                groups={"put": Entry("bench_rooms.kv_put"), "get": Entry("bench_rooms.kv_get")},
            ),
            "object": Group(
                "Objects of a bucket.",
                {},
                groups={"put": Entry("bench_rooms.object_put"), "get": Entry("bench_rooms.object_get")},
            ),
            "chunks": Entry("bench_rooms.chunks"),
            "bus": Entry("bench_rooms.bus"),
            "channels": Entry("bench_rooms.channels"),
            "spark": Group("Spark on this machine.", {"bench_rooms": "write read"}),
        },
    ),
    "pipeline": Group(
        "Make, run and look at Spark pipelines over NATS.", {"pipeline": "new run stop status reset replay switch_"}
    ),
    "console": Entry(
        "console.console",
        "Serve a web console that shows streams, consumers, lag, messages, pipelines and transfers.",
    ),
    "top": Entry(
        "top.top",
        "Show streams, consumers and pipelines live, with rates, lag and trouble; keys sort, filter, change the view.",
    ),
    "metrics": Group("Figures for Prometheus.", {"metrics": "serve"}),
    "doctor": Entry(
        "doctor.doctor",
        "Check Python, Java, the NATS server, the compiled wire, Spark and the disk; "
        "exit status 1 if something is bad.",
    ),
    "quickstart": Entry(
        "quickstart.quickstart",
        "Make a folder with a server, traffic, a pipeline and a notebook, run it with a kill in the middle, and count.",
    ),
    "demo": Entry(
        "demo.demo",
        "Run the main job: orders through NATS and Spark and back, with a kill in the middle and an audit at the end.",
    ),
}
HIDDEN = {
    "str": "stream",
    "st": "stream",
    "ms": "stream",
    "s": "stream",
    "con": "consumer",
    "obs": "consumer",
    "c": "consumer",
    "ctx": "context",
    "a": "account",
    "ctr": "counter",
    "obj": "object",
    "publish": "pub",
    "subscribe": "sub",
    "request": "req",
    "srv": "server",
    "sys": "server",
    "system": "server",
    "event": "events",
    "e": "events",
}


class Commands(Mapping[str, Command]):
    """What a group takes for the dict of its commands: names at once, commands when they are asked for."""

    def __init__(self, entries: Mapping[str, Entry | Group]) -> None:
        self._entries, self._made = entries, dict[str, Command]()

    def __getitem__(self, name: str) -> Command:
        if name not in self._made:
            self._made[name] = self._entries[name].load(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Noun(Quick, TyperGroup):
    """A group as typer knows it. It answers a mistyped command with names that its help shows, and no hidden one."""

    def take(self, entries: Mapping[str, Entry | Group], hidden_names: Mapping[str, str]) -> None:
        """Hold these commands, under their hidden names, too."""
        again = {name: dataclasses.replace(entries[shown], hidden=True) for name, shown in hidden_names.items()}
        self.entries, self.hidden_names = {**entries, **again}, hidden_names
        self.commands = Commands(self.entries)  # type: ignore[assignment]  # it is only read

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.parent is not None and args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = self._with_late_flags(args)
        return list(super().parse_args(ctx, args))

    def _with_late_flags(self, args: list[str]) -> list[str]:
        """Put flags that stand before the verb behind it, as in `server check --format json kv`."""
        known = {name: item for verb in self.commands.values() for item in verb.params for name in item.opts}
        moved, left = [], list(args)
        while left and (name := left[0].partition("=")[0]) in known:
            moved.append(left.pop(0))
            if left and "=" not in moved[-1] and not getattr(known[name], "is_flag", False):
                moved.append(left.pop(0))
        return [left[0], *moved, *left[1:]] if left else args

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
