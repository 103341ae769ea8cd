"""Blocks as Arrow batches, a block at a time: the same columns as a read through the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import DataLossError
from penstock.store.decoding import BROKEN, Decoder
from penstock.store.graves import is_alive_between
from penstock.store.places import Room
from penstock.store.records import Records, key_of
from penstock.wire.arrow import most_rows, to_batch
from penstock.wire.columns import BEYOND

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.store.stored import Segment

__all__ = ["BlockReader", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """What is to be read: the sequences `[start, end)`, and how they become batches."""

    start: int = 0
    end: int = 1 << 62
    headers: bool = True
    escape: bool = False
    """Whether text that is not UTF-8 is escaped; it is an error otherwise."""
    max_rows: int = 1 << 16
    max_bytes: int = 32 << 20

    def columns(self, stream: str) -> dict[str, Any]:
        """Give what a decoder of a stream needs to know."""
        rows = most_rows(stream, self.max_rows)
        return {"max_rows": rows, "max_bytes": self.max_bytes, "headers": self.headers}


class BlockReader:
    """Reads blocks of a stream, one after the other, in the same memory."""

    def __init__(self, stream: str, wanted: Wanted) -> None:
        self.stream, self.wanted = stream, wanted
        self.records = Records(wanted.start, wanted.end, **wanted.columns(stream))
        self.room = Room()

    def batches(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Give the messages of a block that are wanted; DataLossError if some cannot be read."""
        stream, records = self.stream, self.records
        start, end = max(self.wanted.start, segment.first), min(self.wanted.end, segment.last + 1)
        if start >= end:
            return
        try:
            content = segment.place.load(self.room)
        except (ValueError, OSError) as error:
            raise _lost(stream, segment, start, str(error)) from error
        records.next, records.end = start, end
        records.open(key_of(stream, segment.number), segment.graves)
        position = found = 0
        while position < len(content):
            position = records.take(content, position, len(content))
            stop, last = records.stop, records.last
            if records.rows:
                found += records.rows
                yield taken(records, stream, self.wanted)
            if stop == BROKEN and is_alive_between(segment.graves, last + 1, end):
                what = f"a record is not whole, or not what its checksum says, at {position}"
                raise _lost(stream, segment, last + 1, what)
            if stop in (BEYOND, BROKEN):
                break
        else:
            if is_alive_between(segment.graves, records.last + 1, end):
                raise _lost(stream, segment, records.last + 1, "it ends too early")
        if (start, end) == (segment.first, segment.last + 1) and found != segment.messages:
            raise _lost(stream, segment, start, f"it holds {found} messages and not {segment.messages}")


def taken(decoder: Decoder, stream: str, wanted: Wanted) -> pa.RecordBatch:
    """Take the rows that a decoder has, as a batch."""
    try:
        return to_batch(decoder.close(), stream, escape=wanted.escape)
    finally:
        decoder.restart()


def _lost(stream: str, segment: Segment, first: int, what: str) -> DataLossError:
    return DataLossError(
        f"Block {segment.place.shown} of stream {stream} is damaged: {what}; "
        f"messages {first} to {segment.last} cannot be read.",
        remedy="Read another copy of the store, or set failOnDataLoss to false to go on without them.",
        stream=stream,
        start=first,
        end=segment.last + 1,
        first=segment.first,
        last=first - 1,
    )
