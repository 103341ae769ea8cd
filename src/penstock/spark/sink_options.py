"""The options of writing with Spark's format "nats", as data and as one frozen value. Pure, like `options`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.durations import format_duration, parse_duration
from penstock.errors import OptionError
from penstock.spark.markers import is_marker
from penstock.spark.options import (
    CONNECTION,
    PATIENCE,
    Option,
    choice,
    connection_fields,
    count,
    parse_options,
    refuse_unknown,
    renamed,
    size,
    stream_name,
    text,
    truth,
)

__all__ = ["SINK", "SinkOptions", "parse_ttl", "template_columns"]

MOST_ROWS = 999  # a thousand messages make an atomic batch, and one of them is the journal
_FIELD = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


def number(name: str, value: str) -> int:
    """Read a whole number, zero too."""
    if not re.fullmatch(r"[0-9]{1,18}", value.strip()):
        raise OptionError(f"The option {name} is {value!r}.", remedy="Give a whole number.", option=name, value=value)
    return int(value)


SINK: Final = (
    Option("stream", stream_name, "The stream that takes the rows."),
    Option(
        "subject",
        text,
        "The subject of rows whose column `subject` is missing or null; may hold columns, as `revenue.{region}`.",
    ),
    Option(
        "guarantee",
        choice("exactly-once", "at-least-once"),
        "`exactly-once`: a replayed batch adds nothing, and a zombie task cannot write. `at-least-once`: nothing is "
        "lost, a replay repeats rows.",
        "exactly-once",
    ),
    Option(
        "prepare",
        truth,
        "Whether the sink may change the stream's configuration so that it can write exactly once; otherwise it "
        "says what to change.",
        False,
    ),
    Option("idColumn", text, "The column that becomes the message id, `Nats-Msg-Id`; a stored id is not stored again."),
    Option("ttl", text, 'How long each message lives, such as "1h", or `never`; the stream needs allow_msg_ttl.'),
    Option("ttlColumn", text, "The column that says how long its message lives; `ttl` where it is null."),
    Option(
        "deadLetterSubject",
        text,
        "Where rows go that cannot be written; without it they stop the query. Exactly once where it is a subject of "
        "the same stream.",
    ),
    Option(
        "onMissingMarkers",
        choice("fail", "start"),
        "What to do where the stream does not know how far the query is although it is not new: stop, or start from "
        "this batch and accept that rows are repeated or missing.",
        "fail",
    ),
    Option(
        "onChangedRows",
        choice("fail", "keep"),
        "What to do where a replayed batch lacks rows that were stored before (the query is not deterministic): stop, "
        "or keep those rows and go on.",
        "fail",
    ),
    Option("writeId", text, "Batch only: a name for this write. The same write done again under it adds nothing."),
    Option(
        "batchId",
        number,
        "With `writeId`, inside foreachBatch: the number of the micro-batch, which follows on the one before.",
    ),
    Option("atomicRows", count, "The most rows that are stored together, up to 999.", MOST_ROWS),
    Option("atomicBytes", size, "About the most bytes that are stored together.", 8 * 2**20, shown="8m"),
    Option("inFlight", count, "How many such batches a task has under way.", 4),
    PATIENCE,
)


def template_columns(subject: str) -> tuple[str, ...]:
    """Give the columns that a subject such as `revenue.{region}` names."""
    return tuple(dict.fromkeys(_FIELD.findall(subject)))


def parse_ttl(value: str, *, option: str) -> str:
    """Read a time to live: `never`, or a duration of at least a second, as the server wants it."""
    if value.strip().lower() == "never":
        return "never"
    seconds = parse_duration(value, option=option)
    if seconds < 1:
        raise OptionError(
            f"The option {option} is {value!r}.",
            remedy="A message lives for a second at least, or for ever: never.",
            option=option,
            value=value,
        )
    return format_duration(seconds)


@dataclass(frozen=True)
class SinkOptions:
    """Everything that writing needs to know, checked; see the table `SINK` for the meanings."""

    stream: str
    subject: str | None = None
    guarantee: str = "exactly-once"
    prepare: bool = False
    id_column: str | None = None
    ttl: str | None = None
    ttl_column: str | None = None
    dead_letter_subject: str | None = None
    on_missing_markers: str = "fail"
    on_changed_rows: str = "fail"
    write_id: str | None = None
    batch_id: int | None = None
    atomic_rows: int = MOST_ROWS
    atomic_bytes: int = 8 * 2**20
    in_flight: int = 4
    patience: float = 60.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read and check the options of a write, batch or streaming; those of Spark itself are taken out before."""
        given = renamed(given)
        refuse_unknown(given, (*CONNECTION, *SINK))
        connection_fields(given)
        values = parse_options(given, SINK)
        if values["stream"] is None:
            raise OptionError("No stream is named.", remedy='Name one: .option("stream", "ORDERS").', option="stream")
        if values["ttl"] is not None:
            values["ttl"] = parse_ttl(values["ttl"], option="ttl")
        options = cls(**values)
        options._check()
        return options

    @property
    def exactly_once(self) -> bool:
        """Whether a replay must add nothing."""
        return self.guarantee == "exactly-once"

    def check_stream(self) -> None:
        """Refuse what only makes sense in a batch."""
        for name, value in (("writeId", self.write_id), ("batchId", self.batch_id)):
            if value is not None:
                raise OptionError(
                    f"The option {name} cannot be used here.",
                    remedy="A streaming query has an id in its checkpoint: leave it out.",
                    option=name,
                )

    def _check(self) -> None:
        if self.atomic_rows > MOST_ROWS:
            self._refuse("atomicRows", self.atomic_rows, f"NATS stores at most 1,000 messages together: {MOST_ROWS}.")
        if not 2 <= self.in_flight <= 16:
            self._refuse("inFlight", self.in_flight, "Give a number from 2 to 16; a server takes 50 for a stream.")
        if self.patience <= 0:
            self._refuse("patience", self.patience, 'Give a duration such as "60s".')
        if self.write_id is not None and not _WORD.fullmatch(self.write_id):
            self._refuse("writeId", self.write_id, "Use up to 64 letters, digits, - and _.")
        if self.batch_id is not None and self.write_id is None:
            self._refuse("batchId", self.batch_id, "Name the write that it is a batch of, with writeId.")
        if self.subject is not None:
            self._check_subject("subject", _FIELD.sub("x", self.subject))
            if any(not name for name in template_columns(self.subject)):
                self._refuse("subject", self.subject, "Name a column between the braces, as revenue.{region}.")
        if self.dead_letter_subject is not None:
            self._check_subject("deadLetterSubject", self.dead_letter_subject)

    def _check_subject(self, option: str, subject: str) -> None:
        tokens = subject.split(".")
        if any(not token or re.search(r"[\s*>{}\x00-\x1f\x7f]", token) for token in tokens) or is_marker(subject):
            self._refuse(option, subject, "A subject is made of tokens joined by dots, without blanks and wildcards.")

    def _refuse(self, option: str, value: object, remedy: str) -> None:
        raise OptionError(f"The option {option} is {value!r}.", remedy=remedy, option=option, value=value)
