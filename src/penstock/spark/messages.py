"""Rows of a DataFrame as messages: subjects, payloads, headers, each row checked before anything of it is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InputError, RowError
from penstock.spark.json_rows import encode_rows
from penstock.spark.markers import MARKER_ROOT, is_marker
from penstock.spark.options import refuse
from penstock.spark.sink_options import TEMPLATE_COLUMN, SinkOptions, read_ttl, template_columns
from penstock.wire import frames
from penstock.wire.arrow import HEADERS
from penstock.wire.blake2 import row_digests
from penstock.wire.bulk.rows import is_plain, offsets, texts
from penstock.wire.jetstream.names import HEADER_PREFIX, MSG_ID, TTL
from penstock.wire.subjects import covers

__all__ = [
    "ERROR",
    "Messages",
    "Shape",
    "SinkStream",
    "Wrong",
    "as_kind",
    "check_columns",
    "check_fields",
    "column_texts",
    "note",
    "note_nulls",
    "pack",
    "payload_columns",
    "unpack",
]

OWN_HEADERS = 160  # bytes that the headers of a batch add to a message
SOURCE_COLUMNS = ("sequence", "time", "stream")  # what the source gives beside; NATS gives them anew
OF_MESSAGES = ("subject", "data", "headers", *SOURCE_COLUMNS)
ERROR = "_error"  # what the source says of a payload that is not JSON
KNOWN_SUBJECTS = 100_000  # how many checked subjects a task remembers
_TOKEN = re.compile(r"[^\s*>.\x00-\x20\x7f]+")
_SUBJECT = re.compile(rf"{_TOKEN.pattern}(\.{_TOKEN.pattern})*")
_NAME = re.compile(r"[!-9;-~]+")
Wrong = dict[int, tuple[str, str]]  # for each row that cannot be written, by its number: a column, and what it is


@dataclass(frozen=True)
class SinkStream:
    """What the tasks must know of the stream that takes their rows, as it is now."""

    stream: str
    subjects: tuple[str, ...]
    limit: int
    """The largest message, headers included."""
    keep: bool = False
    """Whether markers must say that they never expire, because the stream's messages do."""
    fast: bool = False
    """Whether the stream takes fast ingest."""
    dead_letter_stream: str | None = None
    """The stream of the dead letters, if it is another one."""
    domain: str | None = None
    """The JetStream domain that the stream is in, empty if it is in none; None if nobody knows."""


@dataclass(frozen=True)
class Messages:
    """Rows ready to be sent."""

    subjects: Any
    data: Any
    headers: Any
    """The rows' own headers as a map column, None if no row has any."""

    def __len__(self) -> int:
        return len(self.data)

    def slice(self, first: int, last: int) -> Messages:
        """Give the rows from `first` up to `last`."""
        count = last - first
        headers = None if self.headers is None else self.headers.slice(first, count)
        return Messages(self.subjects.slice(first, count), self.data.slice(first, count), headers)

    def filter(self, mask: Any) -> Messages:
        """Give the rows that a mask names."""
        chosen = pa.array(mask)
        headers = None if self.headers is None else self.headers.filter(chosen)
        return Messages(self.subjects.filter(chosen), self.data.filter(chosen), headers)

    @classmethod
    def joined(cls, parts: Sequence[Messages]) -> Messages:
        """Give rows in one piece."""
        headers = None
        if any(part.headers is not None for part in parts):
            none = [pa.array([[]] * len(part), HEADERS) for part in parts]
            own = [empty if part.headers is None else part.headers for part, empty in zip(parts, none, strict=True)]
            headers = pa.concat_arrays(own)
        subjects = pa.concat_arrays([pa.array([], pa.string()), *(part.subjects for part in parts)])
        return cls(subjects, pa.concat_arrays([pa.array([], pa.binary()), *(part.data for part in parts)]), headers)

    @cached_property
    def rows(self) -> frames.Rows:
        """The rows as the encoder of the wire wants them."""
        own: tuple[Any, ...] = ()
        if (headers := self.headers) is not None:
            own = offsets(headers), texts(headers.keys), offsets(headers.items), texts(headers.items.values)
        return frames.Rows(len(self), texts(self.subjects), texts(self.data), *own)

    def digests(self) -> bytes:
        """Give a digest of each row, over everything that is stored of it, one behind the other."""
        return row_digests(self.rows)

    def to_batch(self) -> pa.RecordBatch:
        """Give the rows as a record batch."""
        columns = {"subject": self.subjects, "data": self.data}
        return pa.record_batch(columns if self.headers is None else {**columns, "headers": self.headers})

    @property
    def volume(self) -> int:
        """About how many bytes the rows have as messages."""
        return int(self.to_batch().nbytes) + len(self) * OWN_HEADERS

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> Messages:
        """Read what `to_batch` gave."""
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        return cls(batch.column("subject"), batch.column("data"), headers)


def pack(file: IO[bytes], messages: Messages) -> None:
    """Write rows into a file, behind what is there."""
    batch = messages.to_batch()
    with pa.ipc.new_stream(file, batch.schema) as writer:  # one each: not every batch has headers
        writer.write_batch(batch)


def unpack(file: IO[bytes], end: int, kind: type[Messages]) -> Iterator[Messages]:
    """Read from a file what `pack` wrote there, up to its byte `end`."""
    while file.tell() < end:
        with pa.ipc.open_stream(file) as reader:
            yield from map(kind.of_batch, reader)


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Refuse a DataFrame that cannot be written, by the names and Spark's types of its columns."""
    if options.format == "json":
        check_fields(columns, payload_columns(columns, options), options)
    elif "data" not in columns:
        raise InputError(
            f"The DataFrame has no column data, only {', '.join(columns)}.",
            remedy="Select the payload as data, or let the columns become JSON with the option format=json.",
        )
    kinds = {
        "data": ("binary", "string"),
        "subject": ("string",),
        "headers": ("map<string,array<string>>", "map<string,string>"),
    }
    for name, allowed in kinds.items():
        if name in columns and columns[name] not in allowed:
            raise InputError(
                f"Column {name} has the type {columns[name]}.", remedy=f"Cast it to {' or '.join(allowed)}."
            )
    if "subject" not in columns and options.subject is None:
        raise InputError(
            "The rows have no subject.", remedy='Add a column subject, or .option("subject", "orders.{region}").'
        )
    headers = {"idColumn": options.id_column, "ttlColumn": options.ttl_column}
    named = [(option, name) for option, name in headers.items() if name is not None]
    named += [("subject", name) for name in template_columns(options.subject or "")]
    for option, name in named:
        value, shown = (options.subject, f"{{{name}}}") if option == "subject" else (name, repr(name))
        if name not in columns:
            remedy = f"The columns are {', '.join(columns)}."
            refuse(option, value, remedy, f"names {shown}, and there is no such column.")
        if option == "subject" and columns[name].startswith(("struct", "array", "map", "binary")):
            refuse(option, None, "Use columns of simple types.", f"names {shown}, whose type is {columns[name]}.")
    used = {"subject", "data", "headers", *SOURCE_COLUMNS, *(name for _, name in named)}
    if options.format == "json":
        used.update(payload_columns(columns, options), (ERROR,))
    if lost := [name for name in columns if name not in used]:
        raise InputError(
            f"Nothing of column {lost[0]} would be written.",
            remedy="Drop it, put it into data, name it in the option subject, or name it in idColumn or ttlColumn.",
        )


def payload_columns(columns: Iterable[str], options: SinkOptions, others: Iterable[str] = OF_MESSAGES) -> list[str]:
    """Give the columns that become fields of a JSON payload; `others` are those with a meaning of their own."""
    if options.json_column is not None:
        return [options.json_column]
    return [name for name in columns if name not in (ERROR, *others)]


def check_fields(columns: Mapping[str, str], found: Sequence[str], options: SinkOptions) -> None:
    """Refuse a DataFrame of which no JSON can be made; `found` are the columns that become its fields."""
    if not found:
        what = f"The DataFrame has no column that could become JSON, only {', '.join(columns)}."
        raise InputError(what, remedy="Select columns, or write the payload itself with the format raw.")
    if (name := options.json_column) is not None and not columns.get(name, "").startswith("struct<"):
        refuse(
            "jsonColumn",
            name,
            f"The columns are {', '.join(columns)}.",
            f"is {name!r}, and no such column is a struct.",
        )


class Shape:
    """Turns Arrow batches of Spark into messages, counting the rows through."""

    payload: ClassVar[str] = "data"
    """The column that holds what is stored."""

    def __init__(self, options: SinkOptions, target: SinkStream) -> None:
        self.options = options
        self.target = target
        self.given = 0
        self._known: set[str] = set()
        self._patterns = [bound.encode() for bound in target.subjects]

    def messages(self, batch: pa.RecordBatch) -> tuple[Messages, Messages | None]:
        """Give the messages of a batch, and those that go to the dead letters; RowError if that is not wanted."""
        wrong: Wrong = {}
        data = self._data(batch, wrong)
        subjects = self._subjects(batch, wrong)
        headers, header_sizes = self._headers(batch, wrong)
        self._check_sizes(data, header_sizes, wrong)
        first = self.given
        self.given += batch.num_rows
        if not wrong:
            return Messages(subjects, data, headers), None
        row = min(wrong)
        if self.options.dead_letter_subject is None:
            column, what = wrong[row]
            raise RowError(
                f"Row {first + row} of this task cannot be written: {column} {what}.",
                remedy="Mend or filter such rows, or send them elsewhere with the option deadLetterSubject.",
                row=first + row,
                column=column,
            )
        mask = np.ones(batch.num_rows, dtype=bool)
        mask[list(wrong)] = False
        return Messages(subjects, data, headers).filter(mask), self.dead_letters(subjects, data, wrong)

    def _data(self, batch: pa.RecordBatch, wrong: Wrong) -> Any:
        data = self._payloads(batch, wrong)
        note_nulls(wrong, self.options.json_column or "data", data)
        return data

    def _fields(self, names: Iterable[str]) -> list[str]:
        """Give the columns that become fields of JSON."""
        return payload_columns(names, self.options)

    def _payloads(self, batch: pa.RecordBatch, wrong: Wrong) -> Any:
        if self.options.format != "json":
            return as_kind(batch.column(self.payload), pa.binary())
        # A row that was read from JSON has its payload, too: nobody could say which of the two is meant.
        for name in (self.payload, ERROR):
            if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
                given = np.flatnonzero(batch.column(name).is_valid().to_numpy(zero_copy_only=False))
                wrong.update(dict.fromkeys(given.tolist(), (name, "is given, and the payload is made of the others")))
        fields = {name: batch.column(name) for name in self._fields(batch.schema.names)}
        if (column := self.options.json_column) is None:
            return encode_rows(fields)
        whole = fields[column]
        made = encode_rows({field.name: whole.field(at) for at, field in enumerate(whole.type)})
        return pc.if_else(whole.is_valid(), made, pa.scalar(None, pa.binary())) if whole.null_count else made

    # -- subjects -------------------------------------------------------------------------------------------------

    def _subjects(self, batch: pa.RecordBatch, wrong: Wrong) -> Any:
        column = as_kind(batch.column("subject"), pa.string()) if "subject" in batch.schema.names else None
        if column is None or (column.null_count and self.options.subject is not None):
            filled = self._templated(batch, wrong if column is None else None)
            column = filled if column is None else pc.coalesce(column, filled)
        if not self._are_fine(column):
            note(wrong, "subject", column, self._judge)
        return column

    def _are_fine(self, column: Any) -> bool:
        """Tell whether all subjects are plain, of the stream, and none is a marker's; if not, each is judged."""
        if not frames.COMPILED or column.null_count or not is_plain(column, self._patterns):
            return False
        return not pc.any(pc.starts_with(column, f"{MARKER_ROOT}.")).as_py()

    def _templated(self, batch: pa.RecordBatch, wrong: Wrong | None) -> Any:
        template = self.options.subject or ""
        pieces = TEMPLATE_COLUMN.split(template)  # text, column, text, column, ..., text
        if len(pieces) == 1:
            return pa.repeat(pa.scalar(template, pa.string()), batch.num_rows)
        parts = [pa.scalar(pieces[0], pa.string())]
        for name, behind in zip(pieces[1::2], pieces[2::2], strict=True):
            column = as_kind(batch.column(name), pa.string())
            if wrong is not None:
                note(wrong, name, column, _judge_token)
            parts += [column, pa.scalar(behind, pa.string())]
        return pc.binary_join_element_wise(*parts, "")

    def _judge(self, subject: str | None) -> str:
        """Say what is wrong with a subject, and remember it if nothing is."""
        if subject is None:
            return "is null"
        if subject in self._known:
            return ""
        if not _SUBJECT.fullmatch(subject):
            return f"is {subject!r}, which is not a subject to publish to"
        if is_marker(subject) or not any(covers(item, subject) for item in self.target.subjects):
            return f"is {subject!r}, and {self.target.stream} takes {', '.join(self.target.subjects) or 'nothing'}"
        if len(self._known) < KNOWN_SUBJECTS:
            self._known.add(subject)
        return ""

    # -- headers --------------------------------------------------------------------------------------------------

    def _headers(self, batch: pa.RecordBatch, wrong: Wrong) -> tuple[Any, Any]:
        column = batch.column("headers") if "headers" in batch.schema.names else None
        if column is not None and (pa.types.is_null(column.type) or column.null_count == len(column)):
            column = None
        options = self.options
        if column is None and options.id_column is None and options.ttl is None and options.ttl_column is None:
            return None, 0
        rows: list[list[tuple[str, list[str]]]] = []
        given = [None] * batch.num_rows if column is None else column.to_pylist()
        ids, ttls = column_texts(batch, options.id_column), column_texts(batch, options.ttl_column)
        sizes = np.zeros(batch.num_rows, dtype=np.int64)
        for row, (entries, own_id, ttl) in enumerate(zip(given, ids, ttls, strict=True)):
            try:
                found = _own_headers(entries or ())
                if own_id is not None:
                    found.append((MSG_ID, [_header_value(options.id_column or "", own_id)]))
                if ttl is not None or options.ttl is not None:
                    lives = options.ttl if ttl is None else read_ttl("ttlColumn", ttl)
                    found.append((TTL, [lives or ""]))
            except InputError as error:
                column_name = str(getattr(error, "column", None) or getattr(error, "option", None) or "headers")
                wrong.setdefault(row, (column_name, error.what))
                found = []
            rows.append(found)
            sizes[row] = sum(len(name) + len(value.encode()) + 4 for name, values in found for value in values)
        return (pa.array(rows, HEADERS) if any(rows) else None), sizes

    def _check_sizes(self, data: Any, header_sizes: Any, wrong: Wrong) -> None:
        room = self.target.limit - OWN_HEADERS
        sizes = np.diff(np.frombuffer(offsets(data), dtype=np.int32)).astype(np.int64) + header_sizes
        if len(sizes) and int(sizes.max()) > room:
            for row in np.flatnonzero(sizes > room).tolist():
                what = f"has {int(sizes[row])} bytes with its headers, and {self.target.stream} takes {room}"
                wrong.setdefault(row, (self.payload, what))

    # -- dead letters ---------------------------------------------------------------------------------------------

    def dead_letters(self, subjects: Any, data: Any, wrong: Wrong) -> Messages:
        """Give the messages that rows become which cannot be written, each with the reason."""
        names, payloads, headers = [], [], []
        for row, (column, what) in sorted(wrong.items()):
            subject, payload = subjects[row].as_py(), data[row].as_py()
            entries = [("Penstock-Error", [_plain(f"{column} {what}")])]
            if subject is not None:
                entries.append(("Penstock-Subject", [_plain(subject)]))
            if payload is not None and len(payload) > self.target.limit - 4096:
                entries.append(("Penstock-Size", [str(len(payload))]))
                payload = None  # what is too large for its own subject is too large for this one
            names.append(self.options.dead_letter_subject)
            payloads.append(payload or b"")
            headers.append(entries)
        return Messages(pa.array(names, pa.string()), pa.array(payloads, pa.binary()), pa.array(headers, HEADERS))


def note_nulls(wrong: Wrong, name: str, column: Any) -> None:
    """Note the rows in which a column is null."""
    if column.null_count:
        nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        wrong.update(dict.fromkeys(nulls.tolist(), (name, "is null")))


def _judge_token(item: str | None) -> str:
    fits = item is not None and _TOKEN.fullmatch(item)
    return "" if fits else f"is {item!r}, which is not a token of a subject"


def note(wrong: Wrong, name: str, column: Any, judge: Callable[[str | None], str]) -> None:
    """Note the rows of which a column cannot be written; a value that many of them have is judged once."""
    bad = {item: what for item in column.unique().to_pylist() if (what := judge(item))}
    if bad:
        for row, item in enumerate(column.to_pylist()):
            if item in bad:
                wrong.setdefault(row, (name, bad[item]))


def _plain(text: str) -> str:
    return re.sub(r"[\r\n\x00]", " ", text)[:500]


def _own_headers(entries: Sequence[tuple[str, Any]]) -> list[tuple[str, list[str]]]:
    """Give a row's own headers in the order of their names, so that the same row is always the same message.

    Headers that begin with Nats- are instructions to a server, or what it noted when it stored a message that is now
    copied: none of them is passed on.
    """
    found = []
    for name, values in sorted(entries, key=lambda entry: entry[0]):
        if name.lower().startswith(HEADER_PREFIX.lower()):
            continue
        if not _NAME.fullmatch(name):
            raise RowError(f"hold {name!r}, which is not a name of a header", column="headers")
        listed = [values] if isinstance(values, str) else [] if values is None else list(values)
        if None in listed:
            raise RowError(f"have a null among the values of {name}", column="headers")
        found.append((name, [_header_value("headers", value) for value in listed]))
    return found


def _header_value(column: str, value: str) -> str:
    if "\r" in value or "\n" in value:
        raise RowError("holds a line break, which no header can carry", column=column)
    return value.strip()


def column_texts(batch: pa.RecordBatch, name: str | None) -> list[str | None]:
    """Give the values of a column as texts; as many nulls if no column is named."""
    return [None] * batch.num_rows if name is None else as_kind(batch.column(name), pa.string()).to_pylist()


def as_kind(column: Any, kind: pa.DataType) -> Any:
    """Give a column as one array of a type."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type.equals(kind) else column.cast(kind)
