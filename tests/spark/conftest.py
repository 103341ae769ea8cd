"""What Spark tests share: one session and one NATS server for the whole run, and ways to fill and read streams."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.server import Server
from tests.live.conftest import eventually, server, unique  # noqa: F401  # fixtures
from tests.pipelines.projects import api
from tests.spark.java import ROOT, java_home, set_up_java  # noqa: F401  # tests take them from here, too

set_up_java()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark for the whole run: it takes ten seconds to start."""
    from penstock.spark.sessions import session

    folder = tmp_path_factory.mktemp("spark")
    running = session(
        "tests",
        master="local[2]",
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__driver__host="127.0.0.1",
        spark__driver__memory="1g",
        spark__local__dir=str(folder / "local"),
        spark__sql__warehouse__dir=str(folder / "warehouse"),
        spark__sql__shuffle__partitions="2",
        spark__sql__session__timeZone="UTC",
    )
    running.sparkContext.setLogLevel("OFF")
    yield running
    running.stop()


@dataclass
class Streams:
    """Makes and fills streams on the shared server."""

    url: str
    made: list[str] = field(default_factory=list)

    def api(self, method: str, body: object = None) -> Any:
        """Call the JetStream API."""
        return api(self.url, method, body)

    def make(self, name: str, **config: Any) -> str:
        """Make a stream; its subjects begin with its name."""
        body = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, **config}
        self.api(f"STREAM.CREATE.{name}", body)
        self.made.append(name)
        return name

    def fill(self, name: str, messages: int | Iterable[Any], subject: str = "x") -> None:
        """Publish messages: so many, with their number as payload, or (subject, payload[, headers]) each."""
        items = (
            [(subject, str(number).encode()) for number in range(messages)] if isinstance(messages, int) else messages
        )

        async def publish() -> None:
            client = await penstock.connect(self.url)
            try:
                stream, waiting = client.jetstream(timeout=30), []
                for suffix, data, *headers in items:
                    sent = stream.publish(f"{name}.{suffix}", data, headers=headers[0] if headers else None)
                    waiting.append(asyncio.ensure_future(sent))
                    if len(waiting) == 1000:
                        await asyncio.gather(*waiting)
                        waiting.clear()
                await asyncio.gather(*waiting)
            finally:
                await client.close()

        asyncio.run(publish())

    def info(self, name: str) -> Any:
        """Give a stream's state."""
        return self.api(f"STREAM.INFO.{name}")


@pytest.fixture
def streams(server: Server) -> Iterator[Streams]:  # noqa: F811  # the fixture of that name
    """Streams that are gone after the test."""
    made = Streams(server.url)
    yield made
    for name in made.made:
        try:
            made.api(f"STREAM.DELETE.{name}")
        except penstock.errors.NotFoundError:
            continue  # the test deleted it


@pytest.fixture
def read(spark: Any, server: Server) -> Callable[..., Any]:  # noqa: F811  # the fixture of that name
    """Read with some options, in batch."""

    def load(stream: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("nats").option("url", server.url)
        for name, value in (({"stream": stream} if stream else {}) | options).items():
            reader = reader.option(name, value)
        return reader.load()

    return load


def sequences(frame: Any) -> list[int]:
    """Give the sequences of a frame, sorted."""
    return sorted(row.sequence for row in frame.select("sequence").collect())


def offset_of(content: Any) -> dict[str, int]:
    """Give the next sequence of each stream in an offset, as text or as Spark shows it in the progress."""
    content = json.loads(content) if isinstance(content, str) else content
    return {name: mark["next"] for name, mark in content["streams"].items()}


PYTHON = sys.executable


@dataclass
class Query:
    """A streaming query into Parquet files, which hold each row of each committed batch once."""

    spark: Any
    url: str
    folder: Path

    def start(self, trigger: dict[str, Any] | None = None, name: str | None = None, **options: Any) -> Any:
        """Start the query; it goes on where the checkpoint says."""
        reader = self.spark.readStream.format("nats").option("url", self.url)
        for key, value in options.items():
            reader = reader.option(key, value)
        writer = reader.load().writeStream.format("parquet").option("path", str(self.folder / "rows"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        writer = writer.trigger(**(trigger or {"availableNow": True}))
        return (writer.queryName(name) if name else writer).start()

    def run(self, **options: Any) -> Any:
        """Run what is available, and give the query once it ended."""
        query = self.start(**options)
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        return query

    def rows(self) -> list[tuple[str, int]]:
        """Give stream and sequence of every row of the output, sorted."""
        if not (self.folder / "rows" / "_spark_metadata" / "0").exists():
            return []
        frame = self.spark.read.schema("stream string, sequence bigint").parquet(str(self.folder / "rows"))
        return sorted((row.stream, row.sequence) for row in frame.collect())

    def sequences(self) -> list[int]:
        """Give the sequences of the output, sorted."""
        return [sequence for _, sequence in self.rows()]

    def forget_last(self) -> None:
        """Take back the commit of the last batch, in the checkpoint and in the sink, as a crash before it would."""
        number = len(self.offsets()) - 1
        for log in (self.folder / "checkpoint" / "commits", self.folder / "rows" / "_spark_metadata"):
            for file in (log / str(number), log / f".{number}.crc", log / f"{number}.compact"):
                file.unlink(missing_ok=True)

    def offsets(self) -> list[dict[str, int]]:
        """Give the end of every batch in the checkpoint."""
        files = sorted((self.folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [offset_of(file.read_text().splitlines()[-1]) for file in files]


@pytest.fixture
def query(spark: Any, server: Server, tmp_path: Path) -> Query:  # noqa: F811  # the fixture of that name
    """A query with a checkpoint of its own."""
    return Query(spark, server.url, tmp_path)
