"""A Python source that has the rows of a stream ready: what Spark takes from any Python source at the best.

Options: `rows`, how many; `partitions`, two unless told. With `url` each task receives the messages of its range as
well, drops them, and hands over as many rows that are ready: what a source gets that does nothing with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

SIZE = 128
PIECE = 10_000  # rows of one record batch, as the source has them
WINDOW = 8 * 1024 * 1024  # bytes of one request, likewise
STREAM = "BENCH"


def batches(count: int) -> Iterator[Any]:
    """Give as many rows as there are messages in a benchmark, the same ones again and again."""
    import pyarrow as pa

    when = pa.timestamp("us", tz="UTC")
    headers = pa.map_(pa.string(), pa.list_(pa.string()))
    batch = pa.record_batch(
        {
            "subject": pa.array(["bench.a"] * PIECE),
            "data": pa.array([b"x" * SIZE] * PIECE, pa.binary()),
            "headers": pa.array([[]] * PIECE, headers),
            "sequence": pa.array(range(PIECE), pa.int64()),
            "time": pa.array(range(PIECE), pa.int64()).cast(when),
            "stream": pa.array(["BENCH"] * PIECE),
        }
    )
    for _ in range(count // PIECE):
        yield batch


def drained(url: str, start: int, count: int) -> Iterator[int]:
    """Receive so many messages and drop them; say after each window how many that were."""
    import json
    import re

    from penstock.wire.bulk import BulkConnection
    from penstock.wire.patience import Deadline

    delivery = re.compile(rb"\$JS\.ACK\.(?:[^ .]+\.){4}([0-9]+)\.[0-9]+\.[0-9]+ ([0-9]+)\r\n")
    with BulkConnection(url) as bulk:
        config = {"ack_policy": "none", "mem_storage": True, "num_replicas": 1}
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        name = bulk.api(f"CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config})["name"]
        wire, deadline = bulk.wire, Deadline(600.0)
        wire.send(b"SUB drain.%d 99\r\n" % start, deadline)
        done = 0
        while done < count:
            body = json.dumps({"batch": count - done, "max_bytes": WINDOW, "no_wait": True}).encode()
            line = f"PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name} drain.{start} {len(body)}\r\n".encode()
            wire.send(line + body + b"\r\n", deadline)
            before, tail = done, b""
            while done < count and b"NATS/1.0 4" not in tail[-400:]:
                wire.receive(deadline)
                parser = wire.parser
                begin = max(parser.start, parser.end - SIZE - 800)
                tail = (tail + bytes(memoryview(parser.buffer)[begin : parser.end]))[-SIZE - 800 :]
                parser.take(parser.end)
                for found in delivery.finditer(tail):
                    if len(tail) >= found.end() + int(found.group(2)) + 2:
                        done = int(found.group(1))
            yield done - before


def drained_batches(url: str, start: int, count: int) -> Iterator[Any]:
    """Give rows that are ready, as many as messages were received and dropped."""
    piece, waiting = next(batches(PIECE)), 0
    for got in drained(url, start, count):
        waiting += got
        while waiting >= PIECE:
            waiting -= PIECE
            yield piece
    if waiting:
        yield piece.slice(0, waiting)


def parts(first: int, rows: int, count: int) -> list[InputPartition]:
    """Give the ranges of tasks."""
    each = rows // count
    return [InputPartition((first + each * number, each)) for number in range(count)]


class _Reader(DataSourceReader):
    def __init__(self, rows: int, count: int, url: str | None) -> None:
        self.rows, self.count, self.url = rows, count, url

    def partitions(self) -> list[InputPartition]:
        return parts(1, self.rows, self.count)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        start, rows = partition.value
        return batches(rows) if self.url is None else drained_batches(self.url, start, rows)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, count: int) -> None:
        self.rows, self.count = rows, count

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"at": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return parts(start["at"] + 1, end["at"] - start["at"], self.count)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return batches(partition.value[1])

    def commit(self, end: dict[str, int]) -> None:
        pass


class Ready(DataSource):
    """Rows that are ready."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return (
            "subject string, data binary, headers map<string, array<string>>, sequence bigint, time timestamp, "
            "stream string"
        )

    def _given(self) -> tuple[int, int]:
        return int(self.options["rows"]), int(self.options.get("partitions", 2))

    def reader(self, schema: Any) -> Any:
        return _Reader(*self._given(), self.options.get("url"))

    def streamReader(self, schema: Any) -> Any:
        return _StreamReader(*self._given())


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not import this file
