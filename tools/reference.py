"""Writes the reference pages that follow from the code: public names, commands, connection options, the model, errors.

`make docs` runs it; a test checks that the committed pages are what it would write.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api_pages
import connection_page
import guarantees_page
import metrics_page
import nats_commands
import permissions_page
import spark_pages
import typer.main
from api_pages import clean as _clean
from api_pages import field_sentences, first_sentence
from api_pages import table as _table

from penstock import errors, model, options
from penstock.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
GUARANTEES = ROOT / "docs" / "why" / "guarantees.md"


def pages() -> dict[Path, str]:
    """Give every generated page with its text."""
    return {
        **api_pages.pages(),
        FOLDER / "commands.md": commands(),
        FOLDER / "nats-commands.md": nats_commands.page(typer.main.get_command(app)),
        FOLDER / "errors.md": error_tree(),
        FOLDER / "connection.md": connection(),
        FOLDER / "model.md": models(),
        FOLDER / "jetstream-values.md": jetstream_values(),
        FOLDER / "spark-source.md": spark_pages.spark_source(),
        FOLDER / "spark-sink.md": spark_pages.spark_sink(),
        FOLDER / "console.md": console(),
        FOLDER / "permissions.md": permissions_page.page(),
        FOLDER / "metrics.md": metrics_page.page(),
        GUARANTEES: guarantees_page.page(GUARANTEES),
    }


# -- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    root = typer.main.get_command(app)
    text = [
        "# Commands",
        "",
        "`penstock` has the words and flags of the `nats` command; [a table](nats-commands.md) compares the two, verb",
        "by verb. Global flags may stand before or after the command.",
        "Every command ends with status 0 when it did what it was asked, 1 when it failed, 2 for bad input, 130 after",
        "Ctrl-C if that broke it off.",
        "",
        "## Global flags",
        "",
        _parameters(root, skip=("install_completion", "show_completion")),
    ]
    for path, command in _walk(root, ("penstock",)):
        text += ["", f"## `{' '.join(path)}`", "", _clean(command.help or ""), "", _parameters(command)]
    return "\n".join(text).rstrip() + "\n"


def _walk(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _walk(command, (*path, name))
        else:
            yield (*path, name), command


def _parameters(command: Any, skip: tuple[str, ...] = ()) -> str:
    rows = []
    for item in command.params:
        if item.name in (*skip, "help") or getattr(item, "hidden", False):
            continue
        is_flag = getattr(item, "is_flag", False)
        if item.param_type_name == "argument":
            name = f"`{_clean((item.metavar or item.name).upper().strip('[]{}'))}`"
            needed = "required" if item.required else _default(item)
        else:
            name = ", ".join(f"`{option}`" for option in item.opts)
            name += "" if is_flag else f" `{_clean(item.metavar)}`" if item.metavar else ""
            needed = "" if is_flag else _default(item)
        if item.envvar and item.param_type_name == "option":
            needed += f"{'; ' if needed else ''}`${item.envvar}`"
        rows.append((name, _clean(item.help or ""), needed))
    return _table(("flag or argument", "meaning", "default"), rows) if rows else "It has neither flags nor arguments."


def _default(item: Any) -> str:
    return "" if item.default in (None, (), []) else f"`{item.default}`"


# -- errors -----------------------------------------------------------------------------------------------------------


def error_tree() -> str:
    tree = (errors.__doc__ or "").partition("::\n")[2].partition("\n\nThe text of")[0]
    text = [
        "# Errors",
        "",
        "All of them are in `penstock.errors`. The text of an error says what happened and what to do; the facts are",
        "attributes. Errors survive pickling and hold no secret. Each name in the table leads to its entry in the",
        "[runbook](../operate/runbook.md): what you see, what to do, what is lost.",
        "",
        "```",
        textwrap.dedent(tree).strip("\n"),
        "```",
        "",
    ]
    rows = []
    for name in sorted(errors.__all__):
        kind = getattr(errors, name)
        facts = ", ".join(f"`{fact}`" for fact in kind.fact_names)
        entry = f"[`{name}`](../operate/runbook.md#{name.lower()})"
        rows.append((entry, kind.fault, _clean((kind.__doc__ or "").split("\n\n")[0]), facts))
    theirs = [(f"`{name}`", f"`{kind.__name__}`") for name, kind in sorted(errors.NATS_PY.items())]
    text += [
        _table(("error", "whose fault", "meaning", "facts"), rows),
        "",
        "## nats-py's names",
        "",
        "Programs that were written for nats-py find its names here, such as `penstock.errors.TimeoutError`:",
        "",
        _table(("nats-py's name", "ours"), theirs),
        "",
        "`NoRespondersError` and `ProtocolError` have one name in both; a `NoRespondersError` of ours is a",
        "`TimeoutError`, too. nats-py's `SlowConsumerError` is `SlowSubscriptionError` here.",
    ]
    return "\n".join(text) + "\n"


# -- values -----------------------------------------------------------------------------------------------------------


def connection() -> str:
    kind = options.ConnectionOptions
    rows = [
        (
            f"`{name}`",
            sentence,
            "" if (value := kind.__dataclass_fields__[name].default) is None else f"`{value!r}`",
        )
        for name, sentence in field_sentences(kind).items()
    ]
    from penstock import contexts

    order = (contexts.__doc__ or "").partition("What wins, first to last:")[2].strip()
    return (
        "\n".join(
            [
                "# Connections",
                "",
                "`penstock.connect(url)` gives a connection to NATS for asyncio, with the names and meanings of",
                "nats-py's core client. [From nats-py](../howto/from-nats-py.md) says what changes for a program,",
                "[why](../why/connections.md) it is so.",
                "",
                "## Options",
                "",
                "`penstock.connect`, the command, Spark and every other part take the same options,",
                "`penstock.ConnectionOptions`. They are checked before anything is opened, survive pickling, and mask",
                "their secrets wherever they are shown.",
                "",
                _table(("option", "meaning", "default"), rows),
                "",
                "## Where options come from",
                "",
                order,
                "",
                "A context is a file, `NAME.json` in `$XDG_CONFIG_HOME/nats/context`, that `penstock context add` and",
                "`nats context add` write alike. Options that `nats` has no field for may stand in its field",
                '`penstock`, by the names above: `"penstock": {"tls_hostname": "nats.example", "ping_interval": 5}`.',
                "",
                connection_page.sections(),
            ]
        )
        + "\n"
    )


def models() -> str:
    text = [
        "# The model",
        "",
        "`penstock.model`: frozen values, to and from the server's JSON with `to_json()` and `from_json()`. Durations",
        'are seconds in Python, or text such as "2m". Fields of a newer server are kept in `unknown` and sent back,',
        "and so are its words, as `ServerWord`. `changed(...)` gives the value with other fields, which are checked.",
    ]
    for name in (name for name in model.__all__ if name[0].isupper()):
        kind = getattr(model, name)
        rows = []
        for field, sentence in field_sentences(kind).items():
            if dataclasses.is_dataclass(kind):
                given = next(item.default for item in dataclasses.fields(kind) if item.name == field)
                default = "required" if given is dataclasses.MISSING else given
            else:
                item = kind.model_fields[field]
                default = "required" if item.is_required() else item.default
            shown = "" if default in (None, [], {}) else f"`{default!r}`" if default != "required" else "required"
            rows.append((f"`{field}`", sentence, shown))
        text += ["", f"## `{name}`", "", _clean((kind.__doc__ or "").split("\n\n")[0])]
        text += ["", _table(("field", "meaning", "default"), rows)] if rows else []
    return "\n".join(text) + "\n"


# Values that are given, never made by a program.
_GIVEN = {"AckSample", "Advisory", "BatchAck", "Counter", "DeadLetter", "Figures", "Plan", "Scheduled", "WorkerCounts"}


def jetstream_values() -> str:
    from penstock import info, jetstream

    text = [
        "# Values of JetStream",
        "",
        "What [`penstock.jetstream`](jetstream.md) and `Connection.jetstream()` take and give, field by field. What is",
        "declared, messages and acks are values of [the model](model.md). Times are aware, durations are seconds.",
    ]
    for home, names in ((info, info.__all__), (jetstream, jetstream.__all__)):
        for name in names:
            kind = getattr(home, name)
            if dataclasses.is_dataclass(kind) and (home is info or name not in info.__all__):
                text += _dataclass(home.__name__, name, kind, given=home is info or name in _GIVEN)
    return "\n".join(text) + "\n"


def _dataclass(home: str, name: str, kind: Any, *, given: bool) -> list[str]:
    sentences = field_sentences(kind)
    rows = []
    for item in dataclasses.fields(kind):
        needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        default = "" if item.default in (None, (), dataclasses.MISSING) else f"`{item.default!r}`"
        row = f"`{item.name}`", f"`{_clean(str(item.type))}`", sentences.get(item.name, "")
        rows.append(row if given else (*row, "required" if needed else default))
    head = ("field", "type", "meaning") if given else ("field", "type", "meaning", "default")
    text = ["", f"## `{name}`", "", f"`{home}.{name}`. {_clean(kind.__doc__ or '')}", "", _table(head, rows)]
    more = [
        (f"`{key}`", first_sentence(value.__doc__))
        for key, value in vars(kind).items()
        if isinstance(value, property | functools.cached_property) and not key.startswith("_")
    ]
    return [*text, "", _table(("also", "meaning"), more)] if more else text


# -- the console ---------------------------------------------------------------------------------------------------


_EVENTS = [
    ("`page`", '`{"title": HTML, "main": HTML}`', "at first, and whenever the page has other parts than before"),
    ("`parts`", "`{ID: HTML, ...}`", "some parts have changed: elements of the page with `data-live` and an `id`"),
    ("`same`", "`{}`", "nothing has changed: the console is still there"),
    ("`failed`", '`{"kind", "what", "remedy"}`', "the page cannot be made now; it is tried again"),
]


def console() -> str:
    from penstock.console.act_pages import ACTS
    from penstock.console.pages import PAGES
    from penstock.console.settings import Settings

    acts = [
        (
            f"`{act.name}`",
            _clean(act.sentence),
            ", ".join(f"`{name}`" for name in (*act.targets, *(field.name for field in act.fields))),
            f"the {act.typed}" if act.typed else "",
        )
        for act in ACTS.values()
    ]
    pages = [
        (
            f"`{page.path}`",
            _clean(page.sentence),
            f"every {page.refresh:g} s" if page.refresh else "",
        )
        for page in PAGES
    ]
    settings = [
        (f"`{name}`", sentence, f"`{Settings.__dataclass_fields__[name].default!r}`")
        for name, sentence in field_sentences(Settings).items()
    ]
    return "\n".join(
        [
            "# The console",
            "",
            "`penstock console`, or `penstock.console.Console(options, settings)` as an asynchronous context manager.",
            "[How to use it](../howto/console.md), and [why it is so](../why/console.md).",
            "",
            "## Pages",
            "",
            "Every page has a JSON twin: the same path with `.json` behind it, before the question mark. A page that",
            "fails has a status of its own: 400 for what cannot be asked, 401 without the token, 404 for what is not",
            "there, 405 for anything but reading, 421 under a name that is not known, 503 while NATS does not answer,",
            '504 when a page takes too long. Its twin is then `{"error": {"kind", "what", "remedy"}}`.',
            "",
            _table(("path", "what it shows", "an open page is made again"), pages),
            "",
            "## Events",
            "",
            "A page that is made again can be listened to: ask for its own address, the question included, with the",
            "header `Accept: text/event-stream`. The data of an event is JSON on one line.",
            "",
            _table(("event", "data", "when"), _EVENTS),
            "",
            "## Acts",
            "",
            "With `--write`, for those who show the token for acting. `/act/NAME` is the form; its fields are those of",
            "the third column. 403 is the answer to those who may only look, to a form of another site or session,",
            "and to one that was sent before; 409 if what it is about was changed since the form was shown.",
            "",
            _table(("act", "what it does", "fields", "to be typed"), acts),
            "",
            "## Settings",
            "",
            "`--host`, `--port` and `--name` of the command set the first three; the others are set from Python.",
            "",
            _table(("setting", "meaning", "default"), settings),
            "",
        ]
    )


if __name__ == "__main__":
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(path.name for path in stale)}; run make docs" if stale else 0)
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(f"wrote {len(stale)} changed pages")
