"""Chunked messages in a query: a frame of chunks, as the source gives it, becomes a frame of whole messages.

In a batch the chunks of a message are grouped; what is not whole by then is reported. In a stream the chunks may come
in different tasks and micro-batches: Spark's state store keeps the open messages, in the checkpoint like everything
else, and one that got no new chunk for as long as the timeout is reported by the first batch after that.

The clock is that of the micro-batches (`current_timestamp`, which Spark keeps in the checkpoint, so a replay gives the
same rows). Spark's own processing-time timeouts would run empty batches for ever, also under AvailableNow; those of
event time drop late rows, which the chunks of a lagging stream would be. So the batch time serves as the event time:
it is never late, and no batch runs for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # as every Spark program writes it
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from penstock.chunks.wire import Reason
from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.spark.assembly_state import Open
from penstock.spark.functions import header
from penstock.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["assemble"]

CHUNK_HEADERS = ("X-Msg-Id", "X-Offset", "X-Flags", "X-Total-Size", "X-Digest")
FLAT = (
    "stream string, subject string, message_id string, share int, data binary, headers string, sequence bigint, "
    "micros bigint, chunks int, error string"
)
_NAMES = [field.split()[0] for field in FLAT.split(", ")]
# Messages that are not chunks need no state: they pass by in so many shares of a subject, for Spark to spread them.
SHARES = 32
# How far a driver's clock may step back, in milliseconds, before Spark would take its rows for late and drop them.
CLOCK_STEP = 24 * 3600 * 1000


def assemble(frame: DataFrame, timeout: str | float = "30s", max_size: int = 256 * 2**20) -> DataFrame:
    """Turn chunks into whole messages, in batch and in streams.

    The columns are those of the source and three more: `message_id`, `chunks` (how many made the message), and `error`,
    null for a message that is whole. A message that is incomplete, contradicts itself, has the wrong digest or is
    larger than `max_size` is a row with an error and without data; none is dropped in silence. A message that is not in
    chunks passes as it is, with no `message_id`. `sequence` and `time` are those of the last chunk that came; headers
    that are not the chunk format's are kept.

    In a stream, `timeout` is how long a message waits for a new chunk; the next batch after that reports it. The state
    store holds the open ones: use Spark's RocksDB provider if they are many or large.
    """
    lacking = [name for name in COLUMNS if name not in frame.columns]
    if lacking:
        raise InputError(
            f"The frame has no column {', '.join(lacking)}.",
            remedy="Give the frame as the source gives it, with includeHeaders on, and select columns after.",
        )
    milliseconds = max(1, round(1000 * parse_duration(timeout, option="timeout")))
    flat, keys = _flat(frame), ("stream", "subject", "message_id", "share")
    if frame.isStreaming:
        grouped = flat.withWatermark("batch_time", f"{CLOCK_STEP} milliseconds").groupBy(*keys)
        made = grouped.applyInPandasWithState(
            _stateful(milliseconds, max_size), FLAT, "state binary", "append", GroupStateTimeout.EventTimeTimeout
        )
    else:
        made = flat.groupBy(*keys).applyInPandas(_batch(max_size), FLAT)
    headers = F.from_json("headers", "map<string,array<string>>")
    whole = made.withColumns({"headers": headers, "time": F.timestamp_micros("micros")})
    return whole.select(*COLUMNS, "message_id", "chunks", "error")


def _flat(frame: DataFrame) -> DataFrame:
    """Give the rows as plain columns, so that Python sees text and numbers only."""
    message_id = header("X-Msg-Id")
    is_chunk = F.coalesce(message_id, F.lit("")) != ""
    others = F.map_filter("headers", lambda name, _: ~name.isin(*CHUNK_HEADERS))
    return frame.select(
        "stream",
        "subject",
        F.when(is_chunk, message_id).alias("message_id"),
        F.when(is_chunk, 0).otherwise((F.col("sequence") % SHARES).cast("int")).alias("share"),
        "data",
        F.to_json(others).alias("extra"),
        "sequence",
        F.unix_micros("time").alias("micros"),
        F.current_timestamp().alias("batch_time"),
        F.unix_millis(F.current_timestamp()).alias("now"),
        *(header(name).alias(f"x{number}") for number, name in enumerate(CHUNK_HEADERS[1:])),
    )


def _batch(max_size: int) -> Any:
    def work(key: Any, rows: Any) -> Any:
        import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own

        if key[2] is None:
            return _passing(rows)
        message = Open(max_size)
        _take(message, rows, key[2])
        found = message.give() or message.give_up(Reason.MISSING)
        return pd.DataFrame([(*key, *found)] if found else [], columns=_NAMES)

    # A lambda has no annotations, from which pyspark would guess another kind of function.
    return lambda key, rows: work(key, rows)  # noqa: PLW0108  # see above


def _stateful(milliseconds: int, max_size: int) -> Any:
    def work(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        import pandas as pd

        if key[2] is None:
            yield from (_passing(rows) for rows in frames)
            return
        message = Open.from_bytes(bytes(state.get[0]), max_size) if state.exists else Open(max_size)
        if state.hasTimedOut:
            found = message.give_up(Reason.TIMEOUT)
            state.remove()
        else:
            now = 0
            for rows in frames:
                _take(message, rows, key[2])
                now = max(now, int(rows["now"].max()))
            found = message.give()
            state.update((message.to_bytes(),))
            # The watermark is the time of the newest batch less CLOCK_STEP, so this fires `timeout` from now.
            state.setTimeoutTimestamp(max(now + milliseconds - CLOCK_STEP, state.getCurrentWatermarkMs() + 1))
        if found is not None:
            yield pd.DataFrame([(*key, *found)], columns=_NAMES)

    return lambda key, frames, state: work(key, frames, state)  # noqa: PLW0108  # as above


def _take(message: Open, rows: Any, message_id: str) -> None:
    for row in rows.itertuples(index=False):
        values = (message_id, row.x0, row.x1, row.x2, row.x3)
        headers = {name: value for name, value in zip(CHUNK_HEADERS, values, strict=True) if isinstance(value, str)}
        body = bytes(row.data) if row.data is not None else b""
        message.add(headers, body, row.extra, int(row.sequence), int(row.micros))


def _passing(rows: Any) -> Any:
    """Give rows that are not chunks as they came."""
    return rows.rename(columns={"extra": "headers"}).assign(chunks=1, error=None)[_NAMES]
