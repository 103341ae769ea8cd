"""What a task does: read one range of one stream, as Arrow batches that Spark takes as they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from penstock.errors import DataLossError
from penstock.options import ConnectionOptions
from penstock.spark.connections import borrow
from penstock.spark.formats import check_columns, needs_payloads, shaping
from penstock.spark.markers import MARKER_ROOT
from penstock.spark.pipeline_replay import PipelineReplay
from penstock.spark.source_options import SourceOptions
from penstock.wire.subjects import covers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["NatsPartition", "PartitionReader"]

log = logging.getLogger("penstock.spark")


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
    """Whether a bookmark keeps our messages, so that others which are gone are not a loss of ours."""


class PartitionReader:
    """What reading a batch and reading a stream share. Made on the driver, carried to the tasks."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.connection = connection
        self.options = options
        self.wanted = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's range: exactly the messages that are there, in order, once each."""
        if not isinstance(partition, NatsPartition):  # Spark's stand-in if a plan has no tasks
            return
        options, subjects, names = self.options, partition.subjects, self.wanted.names
        shaped = shaping(options, self.wanted)
        if (replay := PipelineReplay.current()) is not None:  # a driver that is elsewhere may not know of it
            replay.check_release(options.ack)
        with borrow(self.connection, options.patience) as bulk:
            bulk.patience = options.patience
            info = bulk.stream_info(partition.stream, partition.created, partition.end)
            if info["created"] != partition.created:
                options.lose(_made_anew(partition, info))  # rows of another stream of the same name must not slip in
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
                headers="headers" in names,
                # Without payloads the server adds a header of its own, which nobody sent.
                payloads="headers" in names or needs_payloads(self.wanted, options),
                timeout=options.patience,
                on_loss=_ignore if partition.held else options.lose,
                info=info,
                escape=options.invalid_text == "escape",
            ):
                if picks:
                    batch = pick(batch, subjects or ())
                if partition.hides:
                    batch = without_markers(batch)
                yield shaped(batch)


def _made_anew(partition: NatsPartition, info: dict[str, Any]) -> DataLossError:
    return DataLossError(
        f"The stream {partition.stream} was made anew at {info['created']}; the messages "
        f"[{partition.start}, {partition.end}) of the one made at {partition.created} are gone.",
        remedy="Let the query start anew with another checkpoint, or set failOnDataLoss to false.",
        stream=partition.stream,
        start=partition.start,
        end=partition.end,
        first=int(info["state"]["first_seq"]),
        last=int(info["state"]["last_seq"]),
    )


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
    log.debug("%s Nothing of it is read by this query.", error.what)
