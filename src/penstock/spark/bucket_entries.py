"""The messages of a bucket's stream as rows: a key, its value, its revision, when that was, and what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.buckets.key_wire import KV_OPERATION, PUT, operation_of
from penstock.errors import DataLossError
from penstock.spark.source_options import SourceOptions
from penstock.wire.jetstream.direct import Found, nanoseconds, read_headers
from penstock.wire.jetstream.names import MARKER_REASON

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ages",
    "bucket_prefix",
    "check_same",
    "found_rows",
    "is_same",
    "key_prefix",
    "overwritten",
    "to_rows",
    "unread",
]


def bucket_prefix(bucket: str, config: dict[str, Any]) -> str:
    """Give what stands before a key in the subjects of a bucket's stream, and refuse one that is not a bucket."""
    from penstock.buckets.key_stream import addresses_of, check_is_bucket  # most tasks get it from the driver
    from penstock.model import Stream

    declared = Stream.from_json(config)
    check_is_bucket(bucket, declared)
    return addresses_of(bucket, declared).kept


def key_prefix(subjects: Sequence[str]) -> str:
    """Give what stands before a key in the subjects that are read: those of a mirror are its origin's."""
    return ".".join(subjects[0].split(".")[:2]) + "."


def to_rows(batch: pa.RecordBatch, prefix: str, wanted: pa.Schema, *, deleted: bool = True) -> pa.RecordBatch:
    """Give messages that the wire read as rows of a bucket, with or without those that delete a key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values, operations = batch.column("data"), _operations(batch.column("headers"))
    if operations is None:
        from penstock.wire.arrow import constant

        told: Any = constant(PUT, batch.num_rows)
    else:
        put = pa.array([item == PUT for item in operations], pa.bool_())
        told = pa.array(operations, pa.string())
        if not deleted:
            batch, values, told = batch.filter(put), values.filter(put), told.filter(put)
        else:
            values = pc.if_else(put, values, pa.nulls(len(values), pa.binary()))
    columns = {
        "key": pc.utf8_slice_codeunits(batch.column("subject"), len(prefix)),
        "value": values,
        "revision": batch.column("sequence"),
        "time": batch.column("time"),
        "operation": told,
    }
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in wanted], schema=wanted)


def _operations(headers: pa.MapArray) -> list[str] | None:
    """Say what each message did to its key; None if all are values, which is the rule."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = headers.keys
    if not len(names) or not pc.any(pc.is_in(names, value_set=pa.array([KV_OPERATION, MARKER_REASON]))).as_py():
        return None
    return [operation_of(dict(row)) for row in headers.to_pylist()]


def found_rows(
    messages: Sequence[Found], prefix: str, wanted: pa.Schema, *, deleted: bool = True
) -> pa.RecordBatch | None:
    """Give messages that the leader was asked for one by one as rows of a bucket; None if none is left."""
    import pyarrow as pa

    rows = []
    for found in messages:
        operation = operation_of(read_headers(found.header))
        if operation == PUT or deleted:
            rows.append(
                {
                    "key": found.subject[len(prefix) :],
                    "value": found.payload if operation == PUT else None,
                    "revision": found.sequence,
                    "time": (nanoseconds(found.time) or 0) // 1000,
                    "operation": operation,
                }
            )
    if not rows:
        return None
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


# -- what is gone ------------------------------------------------------------------------------------------------------


def ages(config: Mapping[str, Any]) -> bool:
    """Tell whether values of a bucket go away by themselves."""
    return bool(config.get("max_age") or config.get("allow_msg_ttl"))


def check_same(info: Mapping[str, Any], stream: str, created: str, end: int) -> None:
    """Refuse a stream that is another one than was looked at, or that was set back before `end`."""
    first, last = int(info["state"]["first_seq"]), int(info["state"]["last_seq"])
    if info["created"] == created and last + 1 >= end:
        return
    how = f"was made anew at {info['created']}" if info["created"] != created else f"was set back and ends with {last}"
    raise DataLossError(
        f"The stream {stream} {how}, while it was being read.",
        remedy="Read again; a streaming query starts anew with another checkpoint.",
        stream=stream,
        end=end,
        first=first,
        last=last,
    )


def is_same(info: Mapping[str, Any], stream: str, created: str, end: int, options: SourceOptions) -> bool:
    """Tell whether a stream is the one that was planned with; another one is a loss."""
    try:
        check_same(info, stream, created, end)
    except DataLossError as error:
        options.lose(error)
        return False
    return True


def overwritten(end: int) -> Callable[[DataLossError], None]:
    """Give what a read of a bucket does about messages that are gone: nothing, if newer ones stand in their place."""

    def judge(error: DataLossError) -> None:
        if error.last is not None and error.last + 1 < end:
            raise error

    return judge


def unread(config: Mapping[str, Any], end: int, options: SourceOptions) -> Callable[[DataLossError], None]:
    """Give the same for a stream of changes: a purge that left nothing is told, too, for nothing overwrote them."""

    def judge(error: DataLossError) -> None:
        if (
            error.first is None
            or error.last is None
            or error.last + 1 < end
            or (error.first > error.last and not ages(config))
        ):
            options.lose(error)

    return judge
