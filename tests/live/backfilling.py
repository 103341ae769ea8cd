"""Queries that begin in a backup, with Spark left out; and ways to make backups."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import penstock
from tests.live.querying import Query


class BackfillQuery(Query):
    """A streaming query whose stream has a past."""

    def _make(self, options: dict[str, str]) -> None:
        from penstock.spark.backfill import BackfillStreamReader
        from penstock.spark.schema import source_schema
        from penstock.spark.source_options import SourceOptions

        given = SourceOptions.parse(options)
        self.reader = BackfillStreamReader(self.connection, given, source_schema(given))

    def all(self) -> list[int]:
        """Run micro-batches until there is nothing to run, and give all sequences."""
        found: list[int] = []
        while (batch := self.batch()) is not None:
            found += batch
        return found


def read_joined(url: str, **options: str) -> list[dict[str, Any]]:
    """Read past and stream in batch and give the rows."""
    from penstock.options import ConnectionOptions
    from penstock.spark.backfill import BackfillReader
    from penstock.spark.schema import source_schema
    from penstock.spark.source_options import SourceOptions

    given = SourceOptions.parse(options)
    reader = BackfillReader(ConnectionOptions(url), given, source_schema(given))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def back_up(url: str, stream: str, folder: Path) -> str:
    """Back a stream up, as the command does."""

    async def work() -> None:
        from penstock.jetstream import snapshot

        async with await penstock.connect(url) as client:
            await snapshot.backup(client, stream, folder)

    asyncio.run(work())
    return str(folder)


def archive_once(url: str, stream: str, folder: Path, commit: Any = None, **source: str) -> int:
    """Archive what a stream holds, as the command does, with Spark left out; give the number of micro-batches.

    `commit` is called instead of the writer's, with the writer and what it would get. `source` are further options of
    the source, such as limits.
    """
    from penstock.options import ConnectionOptions
    from penstock.spark.archive_folder import ArchiveFolder
    from penstock.spark.archive_run import ArchiveOrder, begin
    from penstock.spark.archive_writer import ArchiveWriter, Written, write_aside

    order = ArchiveOrder(
        stream, str(folder), tuple(source.pop("subjects", "").split(",")) if source.get("subjects") else ()
    )
    order = replace(order, start=source.pop("start", "all"), skip_lost=bool(source.pop("skip_lost", "")))
    with begin(order, ConnectionOptions(url)) as archiver:
        offsets = archiver.scratch / "offsets"
        offsets.mkdir()
        writer = ArchiveWriter(str(folder), archiver.run, str(offsets))
        query = Query(url, **(order.source(str(archiver.start)) | source))
        query.reader.prepareForTriggerAvailableNow()
        number = 0
        try:
            while (end := query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())) != query.offset:
                (offsets / str(number)).write_text(f"v1\n{{}}\n{json.dumps(end)}\n")
                written = [
                    Written(tuple(write_aside(ArchiveFolder(str(folder)), query.reader.read(task))))
                    for task in query.reader.partitions(query.offset, end)
                ]
                (commit or ArchiveWriter.commit)(writer, written, number)
                query.offset, number = end, number + 1
        finally:
            query.stop()
    return number


def seen(folder: Path) -> list[int]:
    """Give the sequences of an archive as anybody reads them who knows nothing of archives, in the order of files."""
    import pyarrow.parquet as pq

    found = []
    for path in sorted(folder.glob("day=*/*.parquet"), key=lambda path: path.name):
        found += pq.ParquetFile(path).read(columns=["sequence"]).column("sequence").to_pylist()
    return found
