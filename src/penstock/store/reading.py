"""Blocks as Arrow batches, a block at a time: the same columns as a read through the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import DataLossError
from penstock.store.decoding import BROKEN
from penstock.store.graves import is_alive_between
from penstock.store.records import Records, key_of
from penstock.wire.arrow import to_batch
from penstock.wire.columns import BEYOND

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.store.stored import Segment

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "read_segment"]

BATCH_ROWS, BATCH_BYTES = 1 << 16, 32 << 20


def read_segment(
    stream: str,
    segment: Segment,
    start: int = 0,
    end: int = 1 << 62,
    *,
    headers: bool = True,
    escape: bool = False,
    max_rows: int = BATCH_ROWS,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Give the messages of a block whose sequences are in [start, end); DataLossError if some cannot be read."""
    start, end = max(start, segment.first), min(end, segment.last + 1)
    if start >= end:
        return
    try:
        content = segment.place.load()
    except (ValueError, OSError) as error:
        raise _lost(stream, segment, start, str(error)) from error
    records = Records(start, end, max_rows=max_rows, max_bytes=max_bytes, headers=headers)
    records.open(key_of(stream, segment.number), segment.graves)
    position = found = 0
    while position < len(content):
        position = records.take(content, position, len(content))
        stop, last = records.stop, records.last
        if records.rows:
            found += records.rows
            yield to_batch(records.close(), stream, escape=escape)
            records.restart()
        if stop == BROKEN and is_alive_between(segment.graves, last + 1, end):
            raise _lost(
                stream, segment, last + 1, f"a record is not whole, or not what its checksum says, at {position}"
            )
        if stop in (BEYOND, BROKEN):
            break
    else:
        if is_alive_between(segment.graves, records.last + 1, end):
            raise _lost(stream, segment, records.last + 1, "it ends too early")
    if (start, end) == (segment.first, segment.last + 1) and found != segment.messages:
        raise _lost(stream, segment, start, f"it holds {found} messages and not {segment.messages}")


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
