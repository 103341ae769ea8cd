"""Batch reads of a key-value bucket: the value of each key at one sequence of the bucket's stream.

The driver fixes the sequence, finds out which message is each key's last below it, and gives every key to one task, by
name: so a key is a row exactly once, whatever is written meanwhile. A task reads the range in which its messages lie.
A value that was overwritten before its task came to it is gone from a bucket without history; what then counts is said
by `gone`: the newer value, an error, or nothing, because the newer value comes by itself later in a stream of changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.errors import DataLossError
from penstock.options import ConnectionOptions
from penstock.spark.bucket_entries import ages, check_same, found_rows, is_same, key_prefix, overwritten, to_rows
from penstock.spark.connections import TaskConnection, borrow
from penstock.spark.filters import PushFilters
from penstock.spark.formats import check_columns, needs_payloads, raw_columns, shaping
from penstock.spark.planning import Profile, how_many
from penstock.spark.pushdown import Pushed, by_sequence, by_subject, by_time, narrow, push
from penstock.spark.source_options import SourceOptions
from penstock.spark.survey import CLOCK_MARGIN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.bucket_survey import BucketSurvey

__all__ = ["BucketReader", "StatePartition", "plan_state", "read_state"]

FEW = 1_000  # keys that are asked for one by one; more are looked for in what was stored since
Gone = Literal["newer", "error", "later"]


@dataclass
class StatePartition(InputPartition):
    """One task: some keys of a bucket as they were before `end`, of a stream that was made at `created`."""

    stream: str
    created: str
    subjects: tuple[str, ...]
    """The filters that reach the server."""
    end: int
    keys: bytes
    """Subject and sequence of each key's last message, in order, as an Arrow stream."""
    strays: tuple[str, ...]
    """Subjects of keys that were overwritten before their last message was found."""
    gone: Gone


class BucketReader(DataSourceReader):
    """Reads the keys of a bucket as they are when the query is planned, or as they were at `end`."""

    def __init__(self, connection: ConnectionOptions, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.connection = connection
        self.options = options
        self.wanted = schema
        self.filters: list[Filter] = []
        self.pushFilters = PushFilters(options.push_down, self._take)  # type: ignore[method-assign]  # as it says

    def _take(self, filters: list[Filter]) -> None:
        self.filters = filters  # what stands before a key is not known yet

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark.bucket_survey import BucketSurvey  # tasks need none of it

        with TaskConnection(self.connection, self.options.patience) as bulk:
            bucket = BucketSurvey(bulk, self.options)
            end = bucket.end_place(self.options, datetime.now(UTC))
            is_now = self.options.position("end", bucket.name, "new").kind == "new"
            rules = {"key": by_subject(bucket.prefix), "revision": by_sequence, "time": by_time}
            pushed = push(Pushed(), self.filters, rules)
            if pushed.subjects is not None:
                bucket.subjects = narrow(bucket.subjects, pushed.subjects)
            return plan_state(bucket, end, self.options, "newer" if is_now else "error", pushed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StatePartition):  # Spark has a stand-in if a plan has no tasks
            with borrow(self.connection, self.options.patience) as bulk:
                yield from read_state(bulk, partition, self.options, self.wanted)


# -- on the driver ---------------------------------------------------------------------------------------------------


def plan_state(
    bucket: BucketSurvey, end: int, options: SourceOptions, gone: Gone, pushed: Pushed | None = None
) -> list[StatePartition]:
    """Give every key that has a message below `end` to one task, if the filters of the query let it pass."""
    if not bucket.subjects:
        return []
    lasts = bucket.lasts(end)
    moved = bucket.described()["state"]["last_seq"] + 1 > end
    strays: list[str] = []
    if moved and gone != "later":
        # Whoever is not among those that were found was overwritten before it was looked at, or is younger than `end`.
        seen = set(lasts["subject"].to_pylist())
        if gone == "error":
            try:
                bucket.check_past(end, seen)
            except DataLossError as error:
                options.lose(error)
        else:
            strays = sorted(bucket.names_now().keys() - seen)
    if pushed is not None:
        lasts = _passing(lasts, bucket, pushed)
    count = lasts.num_rows + len(strays)
    parts = how_many(Profile.even(bucket.head, max(end, bucket.head + 1), count, bucket.mean_size), options)
    return [
        StatePartition(
            bucket.name,
            bucket.created,
            bucket.subjects or (),
            end,
            _pack(lasts.slice(*_share(lasts.num_rows, number, parts))),
            tuple(strays[number::parts]),
            gone,
        )
        for number in range(parts)
    ]


def _passing(lasts: pa.Table, bucket: BucketSurvey, pushed: Pushed) -> pa.Table:
    """Leave out keys whose last message no filter lets pass. Spark applies the filters itself, so a margin is safe."""
    import pyarrow.compute as pc

    start, end = pushed.start, pushed.end
    if pushed.since is not None:
        start = max(start, bucket.at_time(pushed.since - CLOCK_MARGIN) or bucket.next)
    if pushed.until is not None:
        place = bucket.at_time(pushed.until + CLOCK_MARGIN) or bucket.next
        end = place if end is None else min(end, place)
    lasts = lasts.filter(pc.field("sequence") >= start)
    return lasts if end is None else lasts.filter(pc.field("sequence") < end)


def _share(count: int, number: int, parts: int) -> tuple[int, int]:
    start = count * number // parts
    return start, count * (number + 1) // parts - start


def _pack(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


# -- in a task -------------------------------------------------------------------------------------------------------


def read_state(
    bulk: TaskConnection, partition: StatePartition, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Read a task's keys: each once."""
    yield from map(shaping(options, schema), _read_keys(bulk, partition, options, schema))


def _read_keys(
    bulk: TaskConnection, partition: StatePartition, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted, prefix = raw_columns(schema, options), key_prefix(partition.subjects)
    deleted = options.include_deleted or partition.gone == "later"
    bulk.patience = options.patience
    info = bulk.stream_info(partition.stream, partition.created, partition.end)
    if not is_same(info, partition.stream, partition.created, partition.end, options):
        return
    keys = pa.ipc.open_stream(partition.keys).read_all().combine_chunks()
    missing = keys
    if keys.num_rows:
        sequences, seen = keys["sequence"].combine_chunks(), []
        for batch in bulk.read(
            partition.stream,
            sequences[0].as_py(),
            sequences[-1].as_py() + 1,
            partition.subjects,
            batch_rows=options.batch_rows,
            window_bytes=options.window_bytes,
            payloads=needs_payloads(schema, options),
            timeout=options.patience,
            on_loss=overwritten(partition.end),
            info=info,
            escape=options.invalid_text == "escape",
        ):
            batch = batch.filter(pc.is_in(batch.column("sequence"), value_set=sequences))
            seen.append(batch.column("sequence"))
            yield to_rows(batch, prefix, wanted, deleted=deleted)
        met = pa.chunked_array(seen, pa.int64())
        missing = keys.filter(pc.invert(pc.is_in(sequences, value_set=met)))
    names = [*missing["subject"].to_pylist(), *partition.strays]
    if not names:
        return
    if partition.gone == "error":
        options.lose(_lost(partition, [names[0].removeprefix(prefix)], "was overwritten"))
        return
    removed: list[str] = []
    if partition.gone == "newer":
        if len(names) > FEW:
            for batch in _newer(bulk, partition, names, options):
                yield to_rows(batch, prefix, wanted, deleted=deleted)
                names = sorted(set(names).difference(batch.column("subject").to_pylist()))
        for place in range(0, len(names), options.batch_rows):
            asked = names[place : place + options.batch_rows]
            found = bulk.lasts(partition.stream, asked)
            removed += [name for name, item in zip(asked, found, strict=True) if item is None]
            rows = found_rows([item for item in found if item], prefix, wanted, deleted=deleted)
            if rows is not None:
                yield rows
    info = bulk.stream_info(partition.stream, partition.created, partition.end)
    check_same(info, partition.stream, partition.created, partition.end)  # rows may be of another one
    if partition.gone == "later" and not info["state"]["messages"]:
        removed = names
    if removed and not ages(info["config"]):
        options.lose(_lost(partition, [name.removeprefix(prefix) for name in removed], "was removed without a marker"))


def _newer(
    bulk: TaskConnection, partition: StatePartition, names: Sequence[str], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Find the last messages of many subjects in what was stored since the plan; some may be overwritten again."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted, found = pa.array(names, pa.string()), []
    for batch in bulk.read(
        partition.stream,
        partition.end,
        None,
        partition.subjects,
        batch_rows=options.batch_rows,
        window_bytes=options.window_bytes,
        timeout=options.patience,
        on_loss=overwritten(partition.end),
    ):
        found.append(batch.filter(pc.is_in(batch.column("subject"), value_set=wanted)))
    if found:
        table = pa.Table.from_batches(found)
        lasts = table.group_by("subject").aggregate([("sequence", "max")])["sequence_max"].combine_chunks()
        yield from table.filter(pc.is_in(table["sequence"], value_set=lasts)).to_batches()


def _lost(partition: StatePartition, keys: list[str], how: str) -> DataLossError:
    more = f" and of {len(keys) - 1} more" if len(keys) > 1 else ""
    remedy = "More history keeps older values longer: name a later end, or none for what the bucket holds now."
    if partition.gone != "error":
        remedy = "Its stream was purged, or deleted keys were: read again."
    return DataLossError(
        f"What the key {keys[0]}{more} held before {partition.end} {how} while the bucket was being read.",
        remedy=remedy,
        stream=partition.stream,
        end=partition.end,
    )
