"""Record batches made ready for publishing: checked, and seen as the buffers that `frames` writes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InputError, LocalProtocolError
from penstock.wire import frames, protocol
from penstock.wire.arrow import HEADERS, constant, most_rows
from penstock.wire.subjects import covers

__all__ = ["Source", "is_plain", "offsets", "texts"]

_RESERVED = re.compile(r"Nats-(Batch-(Id|Sequence|Commit)|Fast-Batch-.*)", re.IGNORECASE)
OWN_HEADERS = 400  # bytes that our own headers may add to a message


class Source:
    """Gives the rows of record batches, numbered through, each batch checked before it is given."""

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch] | pa.RecordBatch | pa.Table,
        *,
        subject: str | None,
        subjects: list[str],
        max_payload: int,
        max_size: int = -1,
    ) -> None:
        if isinstance(batches, pa.Table):
            batches = batches.to_batches()
        elif isinstance(batches, pa.RecordBatch):
            batches = [batches]
        self._batches = iter(batches)
        self._subject = subject
        self._bound = subjects
        self._max_payload = max_payload
        self._max_size = max_size
        self._patterns = [bound.encode() for bound in subjects]
        self.given = 0
        self.has_headers = False  # whether a row so far may have an id of its own
        if subject is not None:
            self._check_subject(subject)

    def __iter__(self) -> Iterator[tuple[int, frames.Rows]]:
        """Give each batch that has rows, with the number of its first row."""
        for batch in self._batches:
            if not isinstance(batch, pa.RecordBatch):
                raise InputError(
                    f"publish was given {type(batch).__name__} for a record batch.",
                    remedy="Give pyarrow RecordBatches, one of them, or a Table.",
                )
            step = batch.num_rows if self._subject is None else most_rows(self._subject, batch.num_rows)
            for start in range(0, batch.num_rows, max(step, 1)):
                part = batch.slice(start, step)
                rows = self._rows(part)
                first = self.given
                self.given += part.num_rows
                yield first, rows

    def _rows(self, batch: pa.RecordBatch) -> frames.Rows:
        if "data" not in batch.schema.names:
            raise InputError(
                f"A batch has no column data, only {', '.join(batch.schema.names)}.", remedy="Name the payload data."
            )
        data = self._cast(batch.column("data"), pa.binary(), "data")
        if data.null_count:
            data = data.fill_null(b"")
        subjects = self._subjects(batch)
        own: tuple[Any, ...] = ()
        if "headers" in batch.schema.names and not pa.types.is_null(batch.column("headers").type):
            self.has_headers = True
            headers = self._headers(self._cast(batch.column("headers"), HEADERS, "headers"))
            own = offsets(headers), texts(headers.keys), offsets(headers.items), texts(headers.items.values)
        rows = frames.Rows(batch.num_rows, texts(subjects), texts(data), *own)
        largest = frames.sizes(rows)
        if largest + OWN_HEADERS > self._max_payload:
            raise LocalProtocolError(
                f"A row from {self.given} on has {largest} bytes with its headers, and the server takes "
                f"{self._max_payload}, {OWN_HEADERS} of them for our own.",
                remedy="Send it in chunks (penstock.chunks), or raise max_payload at the server.",
            )
        if 0 < self._max_size < largest:
            # The server says this of a message alone; within a batch it would only say that something is missing.
            raise InputError(
                f"A row from {self.given} on has {largest} bytes with its headers; the stream takes {self._max_size}.",
                remedy="Send it in chunks (penstock.chunks), or raise max_msg_size of the stream.",
            )
        return rows

    def _cast(self, column: Any, kind: pa.DataType, name: str) -> Any:
        if column.type.equals(kind):
            return column
        try:
            return column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowCapacityError) as error:
            if "too large" in str(error) or isinstance(error, pa.ArrowCapacityError):
                what = f"Column {name} of a batch has more than 2 GiB."
                raise InputError(what, remedy="Give batches with fewer rows.") from None
            raise InputError(
                f"Column {name} has the type {column.type}, and {kind} is wanted.", remedy="Convert it."
            ) from None

    def _subjects(self, batch: pa.RecordBatch) -> Any:
        if "subject" not in batch.schema.names:
            if self._subject is None:
                raise InputError(
                    "There is neither a column subject nor a subject for all rows.", remedy="Give one of them."
                )
            return constant(self._subject, batch.num_rows)
        column = self._cast(batch.column("subject"), pa.string(), "subject")
        if column.null_count:
            if self._subject is None:
                row = self.given + pc.index(column.is_null(), True).as_py()
                raise InputError(
                    f"Row {row} has no subject.", remedy="Fill the column, or give a subject for all rows."
                )
            column = column.fill_null(self._subject)
        if frames.COMPILED and is_plain(column, self._patterns):
            return column
        found = column.unique()
        named, place = texts(found), -1
        while (place := frames.doubtful_subject(named, len(found), place + 1, self._patterns)) < len(found):
            subject = found[place].as_py()
            try:
                self._check_subject(subject)
            except (InputError, LocalProtocolError) as error:
                row = self.given + pc.index(column, subject).as_py()
                raise type(error)(f"Row {row}: {error.what}", remedy=error.remedy) from None
        return column

    def _check_subject(self, subject: str) -> None:
        protocol.check_subject(subject)
        if not any(covers(bound, subject) for bound in self._bound):
            raise InputError(
                f"Subject {subject!r} is not of this stream, which has {', '.join(self._bound) or 'none'}.",
                remedy="Publish to a subject of the stream, or add the subject to it.",
            )

    def _headers(self, column: Any) -> Any:
        if column.null_count or column.items.null_count or column.items.values.null_count:
            # Null is written as no headers; what hides behind a null is not defined, so the column is built anew.
            column = pa.array(
                [[] if row is None else [_entry(*item) for item in row] for row in column.to_pylist()], HEADERS
            )
        for name in column.keys.unique().to_pylist():
            protocol.encode_headers({name: ""})
            if _RESERVED.fullmatch(name):
                remedy = "Leave it out: a row that was read has it from the batch in which it was stored."
                raise InputError(f"Header {name} is for the server's batches.", remedy=remedy)
        content = column.items.values.buffers()[2]
        if content is not None and (b"\r" in (held := content.to_pybytes()) or b"\n" in held):
            broken = pc.match_substring_regex(column.items.values, r"[\r\n]")
            if pc.any(broken).as_py():
                raise LocalProtocolError(
                    f"A header of the rows from {self.given} on has a line break in its value.", remedy="Take it out."
                )
        return column


def _entry(name: str, values: list[str | None] | None) -> tuple[str, list[str]]:
    if values is not None and None in values:
        raise InputError(f"Header {name} has a null among its values.", remedy="Leave it out.")
    return name, [value for value in values or () if value is not None]


def is_plain(column: Any, patterns: list[bytes]) -> bool:
    """Tell whether no subject of a column without nulls needs a closer look; fast if compiled."""
    return frames.doubtful_subject(texts(column), len(column), 0, patterns) == len(column)


def offsets(column: Any) -> memoryview:
    buffer = column.buffers()[1]
    return memoryview(buffer)[4 * column.offset : 4 * (column.offset + len(column) + 1)].cast("i")


def texts(column: Any) -> frames.Texts:
    if len(column) == 0:
        return frames.Texts(None, None)
    content = column.buffers()[2]
    return frames.Texts(offsets(column), None if content is None else memoryview(content).cast("B"))
