"""Writes the reference pages of the format `nats`: options, columns and offsets of the source, options of the sink."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from api_pages import clean as _clean
from api_pages import table as _table


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
            "`credentials`, and all that end in `Secret`. A `context`, or the path of a file, is not a secret.",
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
