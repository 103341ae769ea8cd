"""The options of reading with Spark's format "nats", as data and as one frozen value. Pure, like `options`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from penstock.errors import DataLossError, OptionError
from penstock.spark.options import (
    NO_STREAM,
    PATIENCE,
    Options,
    between,
    bucket_name,
    choice,
    count,
    duration,
    key_list,
    option,
    positions,
    refuse,
    size,
    stream_name,
    stream_patterns,
    subject_list,
    text,
    truth,
)
from penstock.spark.positions import Position, parse_position
from penstock.wire.columns import MOST_ROWS

__all__ = ["BOOKMARK", "SOURCE", "SourceOptions"]

log = logging.getLogger("penstock.spark")

# How a bookmark describes itself: whoever looks at consumers knows by it that nothing is ever delivered to it.
BOOKMARK = "holds the place of a Spark query; nothing is delivered to it"


@dataclass(frozen=True)
class SourceOptions(Options):
    """Everything that reading needs to know, checked."""

    stream: str | None = option(stream_name, "The stream to read.")
    streams: tuple[str, ...] | None = option(
        stream_patterns,
        "Several streams, separated by commas; * and ? make patterns. A stream that appears later and fits a "
        "pattern is read from its first message.",
    )
    channel: str | None = option(text, "The NATS Streaming channel to read, instead of a stream; see `clusterId`.")
    cluster_id: str = option(text, "The cluster id of the gateway that serves `channel`.", "test-cluster")
    backup: str | None = option(
        text,
        "A folder with a backup of the stream, as `penstock stream backup` or `nats stream backup` wrote it, or the "
        "URI of one; no server is asked. Batch only.",
    )
    store: str | None = option(
        text,
        "The store of a server that does not run, or a copy of one: a folder or its URI. `stream` says which stream of "
        "it. Batch only.",
    )
    backfill: str | None = option(
        text,
        "A backup, the store of a stopped server or an archive of `stream`, a folder or its URI: the sequences that it "
        "holds come from there, and all others from the server. Also if the server dropped them long ago.",
    )
    archive: str | None = option(
        text,
        "An archive of `stream`, as `penstock stream archive` keeps it, a folder or its URI: archive and stream are "
        "read as one, each sequence once.",
    )
    bucket: str | None = option(
        bucket_name, "The key-value bucket to read: in batch its keys as they are, in a stream every change."
    )
    keys: tuple[str, ...] | None = option(
        key_list, "With `bucket`: only these keys, separated by commas; * is one token of a key, > all the rest."
    )
    objects: str | None = option(
        bucket_name, "The object bucket to read: a row for each object, or in a stream for each that is put or deleted."
    )
    content: str = option(
        choice("none", "binary", "chunks"),
        "With `objects`: no bytes; all bytes of an object in its row; or a row for each chunk, for large ones.",
        "binary",
    )
    max_content_bytes: int = option(
        size, "With `objects`: the largest object that `content` may put into one row.", 128 * 2**20, shown="128m"
    )
    include_deleted: bool = option(
        truth, "With `bucket` or `objects`, in batch: whether what was deleted is a row, too.", False
    )
    subjects: tuple[str, ...] | None = option(
        subject_list, "Only messages on these subjects, separated by commas; wildcards * and > allowed."
    )
    start: Mapping[str, Position] | None = option(
        positions,
        "Where a new query or a batch begins: `all`, `last` (the last message and what follows), `new`, a sequence, "
        'an RFC 3339 time, or a duration ago such as "2m"; or a JSON object with one for each stream.',
        shown="all",
    )
    end: Mapping[str, Position] | None = option(
        positions,
        "Where a batch ends, exclusive: `new` (all that is there), `last`, a sequence, a time, or a duration ago; or "
        "a JSON object. Batch only.",
        shown="new",
    )
    start_strategy: str = option(
        choice("latest", "error"),
        "What to do if no message is as young as the time in `start`: begin with the next one that comes, or refuse.",
        "latest",
    )
    include_headers: bool = option(truth, "Whether there is a column `headers`.", True)
    invalid_text: str = option(
        choice("error", "escape"),
        "What to do with a subject or a header that is not UTF-8, which a column of text cannot hold: stop with an "
        "error that names the message, or write each such byte as `\\xff`.",
        "error",
    )
    format: str = option(
        choice("raw", "text", "json"),
        "What payloads become: `raw`, bytes in `data`; `text`, a string in `data`; `json`, columns beside the others, "
        "which `jsonSchema`, `jsonSchemaFile` or the schema of the read name.",
        "raw",
    )
    columns: str | None = option(
        text,
        "The columns, as DDL: some of those that there are, and with `format` json the fields of payloads. For CREATE "
        "TABLE, which hands OPTIONS over only if it has no list of columns; the schema of a read counts before it.",
    )
    json_schema: str | None = option(text, "With `format` json: the fields of payloads, as DDL or as Spark's JSON.")
    json_schema_file: str | None = option(text, "The same in a file on the driver.")
    json_column: str | None = option(
        text, "With `format` json: the column, a struct, that holds all fields; for names that clash with others."
    )
    on_bad_json: str | None = option(
        choice("row", "fail"),
        "What to do with a payload that is not JSON, or has a field of another type: `row`, a row with nulls and the "
        "reason in the column `_error`; `fail`, stop. A schema without `_error` means `fail`.",
        shown="row",
    )
    push_down: bool | None = option(
        truth,
        "Whether filters of a batch query reach the server, if Spark's push-down for Python sources is on. By "
        "default they do if this Spark keeps them to their query; Spark up to 4.3 keeps what one query pushed down for "
        "all later queries of the same loaded frame: load one for each query.",
        shown="if it is safe",
    )
    fail_on_data_loss: bool = option(
        truth,
        "Whether messages that are gone before they were read stop the query; otherwise they are skipped and counted.",
        True,
    )
    min_partitions: int | None = option(
        count, "The least number of tasks that a read is cut into, if there are messages for it."
    )
    max_records_per_partition: int | None = option(count, "The most messages that one task reads.")
    max_bytes_per_partition: int = option(
        size, "How many bytes of messages one task should read, by estimate.", 128 * 2**20, shown="128m"
    )
    max_messages_per_trigger: int | None = option(count, "The most messages in a micro-batch, all streams together.")
    max_bytes_per_trigger: int | None = option(size, "About the most bytes in a micro-batch, all streams together.")
    min_messages_per_trigger: int | None = option(
        count, "Wait for this many messages before a micro-batch, but no longer than `maxTriggerDelay`."
    )
    max_trigger_delay: float = option(
        duration, "How long `minMessagesPerTrigger` may hold messages back.", 900.0, shown="15m"
    )
    ack: str = option(
        choice("none", "commit"),
        "`commit` releases messages of a work-queue or interest stream once the query's checkpoint has them; needs "
        "`consumer`. Streams of these kinds are refused in a streaming query without it.",
        "none",
    )
    consumer: str | None = option(
        stream_name, "With `ack`: the name of the durable consumer that holds the query's place; one a query."
    )
    patience: float = option(duration, PATIENCE, 60.0, shown="1m")
    batch_rows: int = option(between(count, 1, MOST_ROWS), "The most rows in one Arrow batch.", 10_000)
    window_bytes: int = option(
        between(size, 1024, 2**30), "The most bytes on their way from the server to one task.", 8 * 2**20, shown="8m"
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read and check the options of a read, batch or streaming."""
        if "path" in {name.lower() for name in given}:
            raise OptionError(
                "load() was given a path, and NATS has none.",
                remedy='Name the stream: .option("stream", "ORDERS").load().',
                option="path",
            )
        return super().parse(given)

    def check_batch(self) -> None:
        """Refuse what only makes sense in a stream."""
        for name in ("max_messages_per_trigger", "max_bytes_per_trigger", "min_messages_per_trigger"):
            self.misplaced(name, "A batch has no triggers: leave it out, or use spark.readStream.")
        self.misplaced("ack", "Spark does not tell a batch read when its rows are safe: use spark.readStream.")
        if self.is_of_bucket:
            self.misplaced("start", "A batch has what is there at `end`: use spark.readStream for changes since then.")

    def check_stream(self) -> None:
        """Refuse what only makes sense in a batch."""
        self.misplaced("end", "A stream has no end: leave it out, or use spark.read.")
        for name in ("backup", "store"):
            self.misplaced(name, "A stream that no server holds does not go on: use spark.read.")
        if self.objects is not None:
            self.misplaced("max_bytes_per_trigger", "Use maxMessagesPerTrigger, which counts objects.")
        self.misplaced("include_deleted", "A stream has a row for each deletion: leave it out.")

    @property
    def past(self) -> str | None:
        """Where the messages are that do not come from the server."""
        return self.backfill or self.archive

    @property
    def is_stored(self) -> bool:
        """Whether no server is asked."""
        return self.backup is not None or self.store is not None

    @property
    def is_of_bucket(self) -> bool:
        """Whether rows are keys or objects, and not messages."""
        return self.bucket is not None or self.objects is not None

    def position(self, name: str, stream: str, default: str) -> Position:
        """Give `start` or `end` of one stream."""
        found: Mapping[str, Position] = getattr(self, name) or {}
        return found.get(stream) or found.get("*") or parse_position(default, option=name)

    def lose(self, error: DataLossError) -> None:
        """Stop at a loss, or go on with a word in the log."""
        if self.fail_on_data_loss:
            raise error
        log.warning("%s Skipped, because failOnDataLoss is false.", error.what)

    def __post_init__(self) -> None:
        if self.backup is not None and self.store is not None:
            raise OptionError("backup and store are given together.", remedy="Leave one out.", option="backup")
        self._check_past()
        ways = [
            name for name in ("stream", "streams", "channel", "bucket", "objects") if getattr(self, name) is not None
        ]
        if self.is_stored and not (ways == ["stream"] or (not ways and self.backup is not None)):
            what = f"{' and '.join(ways)} cannot be read from a {'backup' if self.backup else 'store'}." if ways else ""
            remedy = 'Name one stream: .option("stream", "ORDERS").'
            raise OptionError(what or "No stream of the store is named.", remedy=remedy, option="stream")
        if len(ways) != 1 and not self.is_stored:
            what = f"{' and '.join(ways)} are given together." if ways else "No stream is named."
            remedy = "Leave all but one out." if ways else NO_STREAM
            raise OptionError(what, remedy=remedy, option="stream")
        self._check_buckets()
        for name in ("start", "end"):
            named = [item for item in getattr(self, name) or {} if item != "*" and not re.search(r"[*?]", item)]
            if self.stream and (strange := [item for item in named if item != self.stream]):
                remedy = f"This query reads {self.stream}."
                refuse(name, None, remedy, f"names {strange[0]!r}, which is not read.")
        if any(position.kind == "all" for position in (self.end or {}).values()):
            refuse("end", "all", "Leave it out to read all that is there.", "is 'all', which is where a stream begins.")
        if (self.ack == "commit") != (self.consumer is not None):
            raise OptionError(
                "The options ack and consumer belong together.",
                remedy='Give both, as .option("ack", "commit").option("consumer", "my-query"), or none.',
                option="consumer",
            )
        if self.format != "json":
            for name in ("json_schema", "json_schema_file", "json_column", "on_bad_json"):
                self.misplaced(name, "It belongs to format=json.")
        schemas = {"columns": self.columns, "jsonSchema": self.json_schema, "jsonSchemaFile": self.json_schema_file}
        named = [name for name, value in schemas.items() if value is not None]
        if len(named) > 1:
            shown = " and ".join(named)
            remedy = "Leave one out; columns names the fields of JSON, too."
            raise OptionError(f"{shown} are given together.", remedy=remedy)
        low, high = self.min_messages_per_trigger, self.max_messages_per_trigger
        if low is not None and high is not None and low > high:
            raise OptionError(
                f"minMessagesPerTrigger is {low}, above maxMessagesPerTrigger, {high}.",
                remedy="Swap them.",
                option="minMessagesPerTrigger",
                value=low,
            )
        for name in ("max_trigger_delay", "patience"):
            if getattr(self, name) <= 0:
                self.misplaced(name, "Zero is not a duration to wait: leave it out, or give one.")

    def _check_buckets(self) -> None:
        """Refuse options of buckets without one, and those of streams with one."""
        if self.bucket is None:
            self.misplaced("keys", "Keys are those of a bucket: name one.")
        if self.objects is None:
            for name in ("content", "max_content_bytes"):
                self.misplaced(name, 'Name the object bucket that it speaks of: .option("objects", "DOCS").')
        if not self.is_of_bucket:
            self.misplaced("include_deleted", "Name a bucket.")
            return
        remedy = 'Leave it out, or read the stream of the bucket: .option("stream", "KV_PRICES").'
        for name in ("subjects", "include_headers", "ack", "consumer", "start_strategy"):
            self.misplaced(name, remedy)
        if self.objects is not None:
            self.misplaced("format", "An object is bytes: leave it out, and parse content in the query.")
        if any(name != "*" for place in (self.start, self.end) for name in place or {}):
            refuse("start" if self.start else "end", None, "Give one place.", "is an object, and one bucket is read.")
        if self.objects is not None:
            self.misplaced("end", "An object that was replaced is gone: leave it out to read what is there.")

    def _check_past(self) -> None:
        named = [name for name in ("backup", "store", "backfill", "archive") if getattr(self, name) is not None]
        if self.past is None:
            return
        if len(named) > 1:
            raise OptionError(f"{' and '.join(named)} are given together.", remedy="Leave one out.", option=named[0])
        if self.stream is None:
            what = f"The option {named[0]} is given, and no stream that it goes before."
            raise OptionError(what, remedy='Name one: .option("stream", "ORDERS").', option="stream")
        if self.ack != "none":
            what = f"The options {named[0]} and ack are given together, and what was read cannot be released there."
            raise OptionError(what, remedy="Leave ack and consumer out.", option="ack")


SOURCE: Final = SourceOptions.table()
