"""How the past of a stream is cut into tasks, and how its parts are read ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.spark.source_options import SourceOptions
from penstock.spark.stored_reader import StoredPartition, cut_past
from penstock.store.ahead import read_ahead
from penstock.store.history import History
from penstock.store.opening import arrow_path, joined
from penstock.store.places import InFile
from penstock.store.stored import Segment

MB = 1 << 20


def cut(sizes: list[int], rows: int = 100, **options: str) -> list[StoredPartition]:
    """Cut a past of blocks with these sizes."""
    blocks = tuple(
        Segment(number, InFile(f"{number}.blk"), size, 1 + rows * number, rows * (number + 1), rows)
        for number, size in enumerate(sizes)
    )
    past = History("S", "store", {}, 1, rows * len(sizes), rows * len(sizes), blocks)
    given = SourceOptions.parse({"store": "store", "stream": "S", **options})
    return list(cut_past(past, {}, 1, past.next, given, None))


def weights(tasks: list[StoredPartition]) -> list[int]:
    return [sum(part.size for part in task.parts) for task in tasks]


def test_tasks_are_even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks get about the same bytes: there is one a core, more if a task would have too much, fewer for little."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert weights(cut([8 * MB] * 8)) == [16 * MB] * 4
    assert weights(cut([8 * MB] * 40)) == [80 * MB] * 4
    assert weights(cut([8 * MB] * 80)) == [128 * MB] * 5
    assert weights(cut([8 * MB] * 79 + [MB])) == [128 * MB] * 4 + [121 * MB]
    assert sorted(weights(cut([8 * MB] * 5, minPartitions="3"))) == [8 * MB, 8 * MB, 8 * MB, 16 * MB]
    assert weights(cut([100] * 50)) == [5000]
    assert [len(task.parts) for task in cut([100 * MB, *[MB] * 20])] == [1, 7, 7, 6]
    assert len(cut([8 * MB] * 3, minPartitions="7")) == 7


def share(task: StoredPartition, part: Segment) -> float:
    """Give how many bytes of a part a task reads, whose limit of records may have cut it."""
    return part.size * (min(part.last, task.end - 1) - max(part.first, task.start) + 1) / part.messages


@example(sizes=[1, 2 * MB + 1], least=6, most=14, largest=MB)
@given(
    sizes=st.lists(st.integers(1, 40 * MB), min_size=1, max_size=60),
    least=st.none() | st.integers(1, 20),
    most=st.none() | st.integers(10, 1000),
    largest=st.integers(MB, 64 * MB),
)
def test_every_sequence_is_in_one_task(sizes: list[int], least: int | None, most: int | None, largest: int) -> None:
    """However it is cut, tasks follow each other without a gap, keep limits, and are as many as were asked for."""
    options = {"maxBytesPerPartition": str(largest)}
    options |= {} if least is None else {"minPartitions": str(least)}
    options |= {} if most is None else {"maxRecordsPerPartition": str(most)}
    tasks = cut(sizes, **options)
    assert [task.start for task in tasks] == [1, *(task.end for task in tasks[:-1])]
    assert tasks[-1].end == 100 * len(sizes) + 1
    assert len(tasks) >= (least or 1)
    for task in tasks:
        assert len(task.parts) == 1 or sum(share(task, part) for part in task.parts) <= 2 * largest
        assert most is None or task.end - task.start <= most


# -- reading ahead ----------------------------------------------------------------------------------------------------


def test_parts_come_in_order_and_errors_in_their_turn() -> None:
    """Whichever thread is first, parts come in order; an error comes behind what its part gave, the others go on."""

    def reader() -> Any:
        def read(part: int) -> Iterator[str]:
            yield f"{part}a"
            if part % 7 == 3:
                raise ValueError(part)
            yield f"{part}b"

        return read

    found: list[str] = []
    for part, batches in read_ahead(range(50), reader, 4):
        try:
            found += batches
        except ValueError as error:
            found.append(f"{part} {error}")
    wanted = [[f"{part}a", f"{part} {part}" if part % 7 == 3 else f"{part}b"] for part in range(50)]
    assert found == [item for pair in wanted for item in pair]


def test_no_more_is_read_ahead_than_there_are_threads() -> None:
    """Who takes nothing holds up the threads: one part each, and one more; who goes away leaves no thread behind."""
    begun: list[int] = []

    def reader() -> Any:
        def read(part: int) -> Iterator[str]:
            begun.append(part)
            yield "row"

        return read

    before = set(threading.enumerate())
    ahead = read_ahead(range(100), reader, 2)
    for taken in range(1, 4):
        next(ahead)
        assert len(begun) <= taken + 2
    ahead.close()
    assert not set(threading.enumerate()) - before
    assert len(begun) <= 5


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3a://KEY:hidden@bucket/backup", "has a password"),
        ("s3a://bucket/backup?secret_key=hidden", "has a secret in it: secret_key"),
        ("s3a://[hidden/backup", "its host is neither a name nor an address"),
        ("hdfs://nowhere:8020/backup", "libhdfs"),
        ("nothing://bucket/backup", "Use a path, or file, s3a"),
        ("s3n://bucket/backup?hidden_endpoint=x", "Name the endpoint"),
    ],
)
def test_places_that_cannot_be_opened(uri: str, says: str) -> None:
    """A sentence says what to do, and no secret of a URI is in it."""
    with pytest.raises(InputError) as told:
        arrow_path(uri)
    assert says in str(told.value)
    assert "=hidden" not in str(told.value)
    assert ":hidden" not in str(told.value)
    assert "\n" not in str(told.value)


def test_what_a_place_needs_stays_behind_the_path(tmp_path: Any) -> None:
    """Names are added before the question mark of a URI, and a path of this machine has none."""
    assert joined("s3://b/x/?region=eu", "y", "1.blk") == "s3://b/x/y/1.blk?region=eu"
    assert joined("/a?b", "c") == "/a?b/c"
    folder = tmp_path / "a b%20?"
    assert arrow_path(folder.as_uri())[1] == str(folder)
