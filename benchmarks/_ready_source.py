"""A Python source that has the rows of a stream ready: what Spark takes from any Python source at the best."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

SIZE = 128
PIECE = 10_000  # rows of one record batch, as the source has them


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


class _Reader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // 2), InputPartition(self.rows // 2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return batches(partition.value)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"at": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        half = (end["at"] - start["at"]) // 2
        return [InputPartition(half), InputPartition(half)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return batches(partition.value)

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

    def _rows(self) -> int:
        return int(self.options["rows"])

    def reader(self, schema: Any) -> Any:
        return _Reader(self._rows())

    def streamReader(self, schema: Any) -> Any:
        return _StreamReader(self._rows())


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not import this file
