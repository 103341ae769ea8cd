"""A Python sink that does nothing: what any Python sink costs at the least."""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)


class _Nothing(DataSourceStreamArrowWriter):
    def write(self, iterator: Any) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        pass

    def abort(self, messages: Any, batchId: int) -> None:
        pass


class _NothingAtOnce(DataSourceArrowWriter):
    def write(self, iterator: Any) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Empty(DataSource):
    """A Python sink that does nothing."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return _Nothing()

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return _NothingAtOnce()


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not import this file
