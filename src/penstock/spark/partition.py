"""What a task does: read one range of one stream, as Arrow batches that Spark takes as they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from penstock.errors import DataLossError
from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection, borrow
from penstock.spark.markers import MARKER_ROOT
from penstock.spark.options import SourceOptions
from penstock.spark.schema import arrow_schema, conform
from penstock.wire.subjects import covers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["NatsPartition", "read_partition"]

log = logging.getLogger("penstock.spark")

# How long a stream may seem to end before its range does: a leader that was just chosen has not applied all it knows.
PATIENCE = 10.0


@dataclass
class NatsPartition(InputPartition):
    """One task: the sequences `[start, end)` of a stream, which was made at `created`."""

    stream: str
    start: int
    end: int
    created: str
    subjects: tuple[str, ...] | None = None
    hides: bool = False
    """Whether the sink's markers are to be picked out."""
    held: bool = False
    """Whether a bookmark keeps our messages, so that others which are gone are no loss of ours."""


def read_partition(
    connection: ConnectionOptions,
    options: SourceOptions,
    schema: StructType,
    partition: InputPartition,
) -> Iterator[pa.RecordBatch]:
    """Read a task's range: exactly the messages that are there, in order, once each."""
    if not isinstance(partition, NatsPartition):  # Spark's stand-in where a plan has no tasks
        return
    wanted, subjects = arrow_schema(schema), partition.subjects
    with borrow(connection, options.patience) as bulk:
        bulk.patience = options.patience
        info = look(bulk, options, partition)
        if info is None:
            return
        # A work queue gives out no second consumer, and direct get knows one subject: several are picked out here.
        picks = len(subjects or ()) > 1 and info["config"].get("retention") == "workqueue"
        for batch in bulk.read(
            partition.stream,
            partition.start,
            partition.end,
            None if picks else subjects,
            batch_rows=options.batch_rows,
            window_bytes=options.window_bytes,
            headers="headers" in wanted.names,
            # Without payloads the server adds a header of its own, which nobody sent.
            payloads="data" in wanted.names or "headers" in wanted.names,
            timeout=options.patience,
            on_loss=_ignore if partition.held else options.lose,
            info=info,
        ):
            if picks:
                batch = pick(batch, subjects or ())
            if partition.hides:
                batch = without_markers(batch)
            yield conform(batch, wanted)


def look(bulk: TaskConnection, options: SourceOptions, partition: NatsPartition) -> dict[str, Any] | None:
    """Look whether the stream is the one that was planned, and wait until it has all of the range, which it had then.

    Rows of another stream of the same name must not slip in: None, where that loss is allowed.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        info = bulk.api(f"STREAM.INFO.{partition.stream}")
        state = info["state"]
        if info["created"] != partition.created:
            break
        if int(state["last_seq"]) + 1 >= partition.end or time.monotonic() > deadline:
            return info
        time.sleep(0.2)
    options.lose(
        DataLossError(
            f"The stream {partition.stream} was made anew at {info['created']}; the messages "
            f"[{partition.start}, {partition.end}) of the one made at {partition.created} are gone.",
            remedy="Let the query start anew with another checkpoint, or set failOnDataLoss to false.",
            stream=partition.stream,
            start=partition.start,
            end=partition.end,
            first=int(state["first_seq"]),
            last=int(state["last_seq"]),
        )
    )
    return None


def pick(batch: pa.RecordBatch, subjects: tuple[str, ...]) -> pa.RecordBatch:
    """Give the rows whose subject matches one of several."""
    import pyarrow
    import pyarrow.compute as pc

    column = batch.column("subject")
    fitting = [name for name in column.unique().to_pylist() if any(covers(item, name) for item in subjects)]
    return batch.filter(pc.is_in(column, value_set=pyarrow.array(fitting, pyarrow.string())))


def without_markers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give the rows that are not the sink's own."""
    import pyarrow.compute as pc

    marked = pc.starts_with(batch.column("subject"), f"{MARKER_ROOT}.")
    return batch.filter(pc.invert(marked)) if pc.any(marked).as_py() else batch


def _ignore(error: DataLossError) -> None:
    log.debug("%s None of it was ours.", error.what)
