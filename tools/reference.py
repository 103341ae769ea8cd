"""Writes the reference pages that follow from the code: public names, commands, connection options, the model, errors.

`make docs` runs it; a test checks that the committed pages are what it would write.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import api_pages
import connection_page
import guarantees_page
import metrics_page
import nats_commands
import permissions_page
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
        FOLDER / "spark-source.md": spark_source(),
        FOLDER / "spark-sink.md": spark_sink(),
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


# -- the format nats ----------------------------------------------------------------------------------------------


def spark_options(table: Sequence[Any]) -> str:
    rows = []
    for option in table:
        default = option.shown or ("" if option.default is None else str(option.default))
        shown = f"`{default}`" if default and " " not in default else default
        shown = {"`True`": "`true`", "`False`": "`false`"}.get(shown, shown)
        rows.append((f"`{option.name}`", _clean(option.sentence), shown))
    return _table(("option", "meaning", "default"), rows)


def spark_source() -> str:
    from penstock.spark import offsets, schema
    from penstock.spark.options import CONNECTION
    from penstock.spark.source_options import SOURCE

    meanings = {
        "subject": "The subject that the message was published on.",
        "data": "The payload.",
        "headers": "The headers, each with all its values; not there with `includeHeaders` false.",
        "sequence": "The place of the message in its stream.",
        "time": "When the server stored it.",
        "stream": "The stream that holds it.",
    }
    columns = [(f"`{name}`", f"`{kind.simpleString()}`", meanings[name]) for name, kind in schema.COLUMNS.items()]
    of_keys = {
        "key": "The key.",
        "value": "Its value; null if `operation` is not `PUT`.",
        "revision": "The sequence of the value in the stream of the bucket.",
        "time": "When the server stored it.",
        "operation": "`PUT`; `DEL` if the key was deleted, `PURGE` if its values were, too, or expired.",
    }
    of_objects = {
        "name": "The name of the object.",
        "size": "How many bytes it has.",
        "digest": "The SHA-256 of its bytes, as `SHA-256=<base64>`; null for links and deleted objects.",
        "time": "When it was described as it is now.",
        "description": "What somebody wrote about it.",
        "metadata": "Further facts by name.",
        "headers": "The headers of the object, each with all its values.",
        "link": "Where it leads if it is a link: `bucket/name`, or a bucket.",
        "deleted": "Whether it was deleted.",
        "revision": "The sequence of its description in the stream of the bucket.",
        "chunk": "With `content` at `chunks`: the number of the chunk, from 0.",
        "offset": "With `content` at `chunks`: how many bytes of the object lie before the chunk.",
        "content": "The bytes, or those of the chunk; not there with `content` at `none`, null for links.",
    }
    keys = [(f"`{name}`", f"`{kind.simpleString()}`", of_keys[name]) for name, kind in schema.BUCKET_COLUMNS.items()]
    known = schema.OBJECT_COLUMNS | schema.CONTENT_COLUMNS["chunks"]
    objects = [(f"`{name}`", f"`{kind.simpleString()}`", of_objects[name]) for name, kind in known.items()]
    form = textwrap.dedent((offsets.__doc__ or "").partition("::\n")[2].partition("\n\nThe offset before")[0])
    return "\n".join(
        [
            "# The Spark source",
            "",
            '`spark.read.format("nats")` and `spark.readStream.format("nats")` need no import and no registration.',
            "Names of options are case-insensitive. An unknown option is refused with the nearest known name.",
            "[How to read](../howto/spark-read.md) shows them at work; [the reasons](../why/spark-source.md) say why",
            "they are so.",
            "",
            "## Columns",
            "",
            _table(("column", "type", "meaning"), columns),
            "",
            'A schema of your own, `.schema("sequence bigint, time timestamp")`, names the columns that you want.',
            "Without `data` and `headers` no payload leaves the server.",
            "",
            "With `bucket`, the columns are those of a key ([how to read buckets](../howto/spark-buckets.md)):",
            "",
            _table(("column", "type", "meaning"), keys),
            "",
            "With `objects`, they are those of an object:",
            "",
            _table(("column", "type", "meaning"), objects),
            "",
            "## Options",
            "",
            spark_options(SOURCE),
            "",
            "## Options of the connection",
            "",
            "Files are read on the driver; executors get their contents. Spark shows options in plans, logs and",
            "pages, and hides the values of those whose names tell that they are secrets: `url`, `token`, `password`,",
            "`credentials`, and all that end in `Secret`. A `context`, or the path of a file, is no secret at all.",
            "",
            spark_options(CONNECTION),
            "",
            "## The offset",
            "",
            "What Spark keeps in the checkpoint, and shows in the progress of a query:",
            "",
            "```text",
            form.strip("\n"),
            "```",
            "",
        ]
    )


def spark_sink() -> str:
    from penstock.spark import markers
    from penstock.spark.sink_options import SINK

    columns = [
        ("`data`", "`binary`, `string`", "The payload; needed, and never null."),
        ("`subject`", "`string`", "Where the message goes; or the option `subject`, also if this is null."),
        (
            "`headers`",
            "`map<string,array<string>>`, `map<string,string>`",
            "Headers of the message. Those whose names begin with `Nats-` are left out: they are a server's.",
        ),
        ("`sequence`, `time`, `stream`", "", "Taken and left out, so that what the source gives can be written."),
    ]
    text = textwrap.dedent((markers.__doc__ or "").partition("::\n")[2].partition("\n\nThe epoch is")[0])
    bodies = textwrap.dedent((markers.__doc__ or "").rpartition("::\n")[2].partition("\n\ndocs/why")[0])
    return "\n".join(
        [
            "# The Spark sink",
            "",
            '`df.write.format("nats")` and `df.writeStream.format("nats")` need no import and no registration.',
            "[How to write](../howto/spark-write.md) shows them at work; [the reasons](../why/exactly-once.md) say how",
            "exactly-once is kept, and what cannot be kept.",
            "",
            "## Columns",
            "",
            _table(("column", "type", "meaning"), columns),
            "",
            "Any other column must be named by an option (`subject`, `idColumn`, `ttlColumn`), or the write is",
            "refused: nothing is dropped in silence.",
            "",
            "With the option `bucket` the columns are `key` (`string`), `value` (`binary`, `string`), and if there is",
            "one `operation` (`PUT`, `DEL`, `PURGE`); with `objects` they are `name` (`string`), `content` (`binary`,",
            "`string`), and if there are any `description` (`string`), `metadata` (`map<string,string>`) and `headers`",
            "(as above). What reading a bucket gives besides is taken and left out ([how to write",
            "buckets](../howto/spark-buckets-write.md)).",
            "",
            "## Options",
            "",
            spark_options(SINK),
            "",
            "The options of the connection are those of [the source](spark-source.md#options-of-the-connection).",
            "",
            "## What the stream needs",
            "",
            "At least once: acks, and a consumer if it has interest retention. Exactly once: nats-server 2.12 or",
            "newer, `allow_atomic`, the subject `$PENSTOCK.<stream>.>` among its subjects, and `allow_msg_ttl` if",
            "it has a `max_age`. `prepare=true` adds them; without it the write is refused with the command to run.",
            "The user needs permission to publish under `$PENSTOCK.<stream>.>` and for the API requests STREAM.INFO,",
            "STREAM.MSG.GET and STREAM.PURGE of the stream (STREAM.UPDATE with `prepare`, STREAM.NAMES with dead",
            "letters). `deny_delete` is good for it: nobody can then delete a single marker by mistake.",
            "",
            "## Markers",
            "",
            "What the sink keeps in the stream. Consumers with a filter on the data's subjects, and the Spark source,",
            "never see it; a consumer without a filter does, and tells it by the subject. `penstock stream view`,",
            "`get` and `subjects`, `consumer next` and `sub` pass it over (a consumer's markers are acknowledged) and",
            "say how many; `--all`, or a subject that begins with `$PENSTOCK`, shows it; `stream info` counts it.",
            "A mirror copies it; a stream that sources this one leaves it out with a filter. The markers of a query's",
            "last batch stay until the next one begins; of a write with a `writeId` one small message is left.",
            "",
            "```text",
            text.strip("\n"),
            "```",
            "",
            "A body is one line of JSON and, behind it, bytes:",
            "",
            "```text",
            bodies.strip("\n"),
            "```",
            "",
            "A head of version 1, which an older Penstock wrote, has neither `start` nor a tally (`rows`, `sum`,",
            "`lacks`). It is read, and never written; a Penstock that knows no more refuses version 2 and says so.",
            "Version 3 is that of a micro-batch of few rows, which the driver stores at once: its head stands `behind`",
            "its anchor by so many sequences, with the rows and one journal (of epoch 0) between them. A Penstock that",
            "knows no more than version 2 refuses it: a query that wrote such a batch does not go back to it.",
            "",
            "A query that will never run again leaves the markers of its last batch; remove them so:",
            "",
            "```sh",
            "penstock stream purge ORDERS --subject '$PENSTOCK.ORDERS.<query id>.>'",
            "```",
            "",
        ]
    )


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
