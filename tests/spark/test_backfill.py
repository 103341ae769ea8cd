"""Spark's source over a backup and the stream behind it, as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.live.backfilling import back_up
from tests.spark.conftest import Query, Streams, sequences


def test_a_query_goes_on_live_behind_a_backup(
    query: Query, streams: Streams, unique: Any, read: Callable[..., Any], tmp_path: Path
):
    """A query begins in a backup of what the stream has dropped, is stopped, and goes on without it: each row once."""
    name = streams.make(unique("B"))
    streams.fill(name, 100)
    past = back_up(streams.url, name, tmp_path / "backup")
    streams.fill(name, 50)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 101})
    assert sequences(read(name, backfill=past)) == list(range(1, 151))
    query.run(stream=name, backfill=past, maxMessagesPerTrigger=60)
    assert query.sequences() == list(range(1, 151))
    assert [end[name] for end in query.offsets()] == [61, 101, 151]
    streams.fill(name, 10)
    query.run(stream=name)
    assert query.sequences() == list(range(1, 161))


def test_a_time_in_a_backup(read: Callable[..., Any], streams: Streams, unique: Any, tmp_path: Path):
    """Filters that are pushed down reach into the backup, and rows are those of the filter."""
    name = streams.make(unique("B"))
    streams.fill(name, 50)
    past = back_up(streams.url, name, tmp_path / "backup")
    streams.fill(name, 10)
    frame = read(name, backfill=past, pushDown="true").where("sequence between 45 and 55")
    assert sequences(frame) == list(range(45, 56))
    stored = read(backup=past, pushDown="true", minPartitions=4)
    assert sequences(stored.where("sequence > 40")) == list(range(41, 51))
    assert read(backup=past, minPartitions=4).rdd.getNumPartitions() == 4
