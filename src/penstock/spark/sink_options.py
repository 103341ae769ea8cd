"""The options of writing with Spark's format "nats", as data and as one frozen value. Pure, like `options`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.buckets.key_wire import stream_of_bucket
from penstock.buckets.object_wire import stream_of_objects
from penstock.durations import format_duration, parse_duration
from penstock.errors import OptionError
from penstock.spark.markers import is_marker
from penstock.spark.options import (
    NO_STREAM,
    PATIENCE,
    Options,
    bucket_name,
    choice,
    count,
    duration,
    number,
    option,
    refuse,
    size,
    stream_name,
    text,
    truth,
)
from penstock.wire.subjects import subject_fault

__all__ = ["SINK", "TEMPLATE_COLUMN", "SinkOptions", "read_ttl", "template_columns"]

MOST_ROWS = 999  # a thousand messages make an atomic batch, and one of them is the journal
TEMPLATE_COLUMN = re.compile(r"\{([^{}]*)\}")


def template_columns(subject: str) -> tuple[str, ...]:
    """Give the columns that a subject such as `revenue.{region}` names."""
    return tuple(dict.fromkeys(TEMPLATE_COLUMN.findall(subject)))


def read_ttl(name: str, value: str) -> str:
    """Read a time to live: `never`, or a duration of at least a second, as the server wants it."""
    if value.strip().lower() == "never":
        return "never"
    seconds = parse_duration(value, option=name)
    if seconds < 1:
        refuse(name, value, "A message lives for a second at least, or for ever: never.")
    return format_duration(seconds)


@dataclass(frozen=True)
class SinkOptions(Options):
    """Everything that writing needs to know, checked."""

    stream: str = option(stream_name, "The stream that takes the rows; excludes `bucket` and `objects`.")
    bucket: str | None = option(
        bucket_name,
        "The key-value bucket that takes the rows: columns `key` and `value`, and `operation` (PUT, DEL, PURGE) if "
        "there is one.",
    )
    objects: str | None = option(
        bucket_name,
        "The object bucket that takes the rows: columns `name` and `content`, and `description`, `metadata` and "
        "`headers` if there are any.",
    )
    subject: str | None = option(
        text,
        "The subject of rows whose column `subject` is missing or null; may hold columns, as `revenue.{region}`.",
    )
    format: str = option(
        choice("raw", "text", "json"),
        "What becomes the payload: `raw` and `text`, the column `data`, of a bucket `value`; `json`, an object of all "
        "columns that have no other meaning. For `text` and `raw` it may be a string or bytes.",
        "raw",
    )
    json_column: str | None = option(text, "With `format` json: the column, a struct, that becomes the payload.")
    guarantee: str = option(
        choice("exactly-once", "at-least-once"),
        "`exactly-once`: a replayed batch adds nothing, and a zombie task cannot write. `at-least-once`: nothing is "
        "lost, a replay repeats rows.",
        "exactly-once",
    )
    prepare: bool = option(
        truth,
        "Whether the sink may change the stream's configuration so that it can write exactly once; otherwise it "
        "says what to change.",
        False,
    )
    id_column: str | None = option(
        text, "The column that becomes the message id, `Nats-Msg-Id`; a stored id is not stored again."
    )
    ttl: str | None = option(
        read_ttl, 'How long each message lives, such as "1h", or `never`; the stream needs allow_msg_ttl.'
    )
    ttl_column: str | None = option(text, "The column that says how long its message lives; `ttl` if it is null.")
    on_null_value: str = option(
        choice("fail", "delete", "purge"),
        "Buckets only: what a row does whose `value` is null and which has no `operation`: it cannot be written, or it "
        "deletes or purges its key.",
        "fail",
    )
    revision_column: str | None = option(
        text,
        "Buckets only: the column with the revision that the key must have for the row to be stored; 0: the key must "
        "not be there; null: whatever it has. A row that does not match cannot be written.",
    )
    on_repeated_keys: str = option(
        choice("fail", "any"),
        "Buckets only: what to do if two partitions of a batch have rows of one key (or object), so that nobody "
        "knows which of them is the last: stop; or accept any.",
        "fail",
    )
    dead_letter_subject: str | None = option(
        text,
        "Where rows go that cannot be written; without it they stop the query. Exactly once if it is a subject of "
        "the same stream.",
    )
    on_missing_markers: str = option(
        choice("fail", "start"),
        "What to do if the stream does not know how far the query is although it is not new: stop, or start from "
        "this batch and accept that rows are repeated or missing.",
        "fail",
    )
    on_changed_rows: str = option(
        choice("fail", "keep"),
        "What to do if a replayed batch lacks rows that were stored before (the query is not deterministic): stop, "
        "now and at every later start; or keep all rows that are stored, and go on.",
        "fail",
    )
    write_id: str | None = option(
        text,
        "Batch only: a name for this write. The same rows written again under it add nothing; other rows are refused.",
    )
    batch_id: int | None = option(
        number, "With `writeId`, inside foreachBatch: the number of the micro-batch, which follows on the one before."
    )
    atomic_rows: int = option(count, "The most rows that are stored together, up to 999.", MOST_ROWS)
    atomic_bytes: int = option(size, "About the most bytes that are stored together.", 8 * 2**20, shown="8m")
    in_flight: int = option(count, "How many such batches a task has under way.", 4)
    patience: float = option(duration, PATIENCE, 60.0, shown="1m")

    @property
    def exactly_once(self) -> bool:
        """Whether a replay must add nothing."""
        return self.guarantee == "exactly-once"

    def check_stream(self) -> None:
        """Refuse what only makes sense in a batch."""
        for name in ("write_id", "batch_id"):
            self.misplaced(name, "A streaming query has an id in its checkpoint: leave it out.")

    @property
    def is_keyed(self) -> bool:
        """Whether rows have keys, of which the last row counts: those of a bucket, or objects."""
        return self.bucket is not None or self.objects is not None

    def _name_stream(self) -> None:
        """Write the stream of a bucket into the field `stream`, having refused what has no meaning for a bucket."""
        if self.bucket is not None and self.objects is not None:
            refuse("objects", self.objects, "Name one of them.", "is given beside bucket.")
        name, its = ("bucket", self.bucket) if self.bucket is not None else ("objects", self.objects)
        if its is None:
            for field in ("on_null_value", "revision_column", "on_repeated_keys"):
                self.misplaced(field, "It is for buckets.")
            return
        stream = stream_of_bucket(its) if name == "bucket" else stream_of_objects(its)
        if self.stream and self.stream != stream:
            refuse("stream", self.stream, "Name the stream or the bucket.", f"is given beside {name}.")
        object.__setattr__(self, "stream", stream)
        of_keys = ("format", "json_column", "on_null_value", "revision_column", "ttl", "ttl_column")
        for field in ("subject", "id_column", *(of_keys if name == "objects" else ())):
            self.misplaced(field, f"It has no meaning with {name}.")
        if not self.exactly_once:
            remedy = "Leave the option out: a repeat could bring an old value back."
            refuse("guarantee", self.guarantee, remedy, f"is {self.guarantee!r}, which {name} cannot have.")

    def __post_init__(self) -> None:
        self._name_stream()
        if not self.stream:
            raise OptionError("No stream is named.", remedy=NO_STREAM, option="stream")
        if self.atomic_rows > MOST_ROWS:
            refuse("atomicRows", self.atomic_rows, f"NATS stores at most 1,000 messages together: {MOST_ROWS}.")
        if self.format != "json":
            self.misplaced("json_column", "It belongs to format=json.")
        if not 2 <= self.in_flight <= 16:
            refuse("inFlight", self.in_flight, "Give a number from 2 to 16; a server takes 50 for a stream.")
        if self.patience <= 0:
            refuse("patience", self.patience, 'Give a duration such as "60s".')
        if self.write_id is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.write_id):
            refuse("writeId", self.write_id, "Use up to 64 letters, digits, - and _.")
        if self.batch_id is not None and self.write_id is None:
            refuse("batchId", self.batch_id, "Name the write that it is a batch of, with writeId.")
        if self.subject is not None:
            _check_subject("subject", TEMPLATE_COLUMN.sub("x", self.subject))
            if any(not name for name in template_columns(self.subject)):
                refuse("subject", self.subject, "Name a column between the braces, as revenue.{region}.")
        if self.dead_letter_subject is not None:
            _check_subject("deadLetterSubject", self.dead_letter_subject)


def _check_subject(option: str, subject: str) -> None:
    if subject_fault(subject) or re.search(r"[*>{}]", subject) or is_marker(subject):
        refuse(option, subject, "A subject is made of tokens joined by dots, without blanks and wildcards.")


SINK: Final = SinkOptions.table()
