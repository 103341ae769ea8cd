"""A streaming query as Spark runs it, with Spark left out, and the streams that it reads."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.options import ConnectionOptions
from penstock.server import Server

if TYPE_CHECKING:
    from penstock.spark.batch_reader import NatsReader
    from tests.spark.conftest import Streams


class Query:
    """A streaming query with Spark left out: batches are planned and read, and the last offset is kept."""

    def __init__(self, url: str | ConnectionOptions, **options: str) -> None:
        self.connection = as_options(url)
        self._make(options)
        try:
            self.offset = self.reader.initialOffset()
        except BaseException:
            self.stop()  # as Spark does
            raise

    def _make(self, options: dict[str, str]) -> None:
        # Imported here: Spark is for the tests of its source alone, and takes its time.
        from penstock.spark.schema import source_schema
        from penstock.spark.source_options import SourceOptions
        from penstock.spark.stream_reader import NatsStreamReader

        given = SourceOptions.parse(options)
        self.reader = NatsStreamReader(self.connection, given, source_schema(given))

    def restart(self, **options: str) -> None:
        """Lose everything but the offset."""
        self.stop()
        self._make(options)

    def batch(self, limit: Any = None) -> list[int] | None:
        """Run one micro-batch and give its sequences; None where there is none to run."""
        end = self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit())
        if end == self.offset:
            return None
        reader = pickle.loads(pickle.dumps(self.reader))  # tasks get a copy
        tasks = self.reader.partitions(self.offset, end)
        found = [place for task in tasks for batch in reader.read(task) for place in batch["sequence"].to_pylist()]
        self.reader.commit(self.offset)
        self.offset = end
        return found

    def stop(self) -> None:
        """Close the connection, as Spark has it done."""
        self.reader.stop()


def as_options(url: str | ConnectionOptions) -> ConnectionOptions:
    """Give the options of a connection, of which an address is enough."""
    return ConnectionOptions(url) if isinstance(url, str) else url


def reader_of(url: str | ConnectionOptions, **options: str) -> NatsReader:
    """Give the reader of a batch read."""
    from penstock.spark.batch_reader import NatsReader
    from penstock.spark.schema import source_schema
    from penstock.spark.source_options import SourceOptions

    given = SourceOptions.parse(options)
    return NatsReader(as_options(url), given, source_schema(given))


def read(url: str | ConnectionOptions, **options: str) -> list[int]:
    """Read in batch and give the sequences."""
    reader = reader_of(url, **options)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [place for batch in batches for place in batch["sequence"].to_pylist()]


@pytest.fixture
def streams(server: Server) -> Iterator[Streams]:
    """Streams that are gone after the test."""
    from tests.spark.conftest import Streams

    made = Streams(server.url)
    yield made
    for name in made.made:
        made.api(f"STREAM.DELETE.{name}")


@pytest.fixture
def query(server: Server) -> Iterator[Callable[..., Query]]:
    """Queries that are stopped after the test."""
    made = []

    def start(**options: str) -> Query:
        made.append(Query(server.url, **options))
        return made[-1]

    yield start
    for item in made:
        item.stop()
