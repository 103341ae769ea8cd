"""Tables on disk that are rewritten while they are read: whole rows, old or new, and never a part of them."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import InputError, PipelineError
from penstock.pipelines import tables
from penstock.pipelines.tables import KeptTable, Table

PARTS, ROWS = 3, 10


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch):
    """However long a step takes here, nobody may think that the writer has left."""
    monkeypatch.setattr(tables, "_STILL", 3600.0)


def rewrite(folder: Path, version: int) -> Iterator[str]:
    """Do what Spark does with a materialized view, step by step: take all away, then write anew."""
    # An update takes seconds, and this one some milliseconds, which the clock of a file system may not tell apart:
    # files were written some time ago, and in the end the folder is not younger than what it holds.
    then = time.time() - 30
    if folder.exists():
        # As Java lists them: the mark may well be the last to go.
        for path in sorted(folder.iterdir(), key=lambda path: path.name == "_SUCCESS"):
            path.unlink()
            yield f"{path.name} is gone"
        folder.rmdir()
        yield "the folder is gone"
    (folder / "_temporary").mkdir(parents=True)
    for number in range(PARTS):
        made = folder / "_temporary" / f"part-{number}-{version}.parquet"
        pq.write_table(pa.table({"version": [version] * ROWS}), made)
        os.utime(made, (then, then))
        yield f"{made.name} is written"
    for number in range(PARTS):
        name = f"part-{number}-{version}.parquet"
        (folder / "_temporary" / name).rename(folder / name)
        yield f"{name} is moved"
    shutil.rmtree(folder / "_temporary")
    yield "the files are there, and no mark"
    (folder / "_SUCCESS").touch()
    os.utime(folder, (then, then))
    for path in folder.iterdir():
        os.utime(path, (then, then))
    yield "whole"


def fill(folder: Path, version: int) -> None:
    for _ in rewrite(folder, version):
        pass


def version_of(rows: list[dict[str, int]]) -> int:
    """Give the version of a table, which must be whole."""
    (version,) = {row["version"] for row in rows}
    assert len(rows) == PARTS * ROWS
    return version


def test_each_step_of_a_rewrite_shows_a_whole_table_or_none(tmp_path: Path):
    """At every single step a plain read gives all rows of one version or refuses; what is kept is always whole."""
    folder = tmp_path / "top"
    fill(folder, 1)
    kept = KeptTable(folder, patience=0.0)
    assert version_of(kept.rows()) == 1
    seen = []
    for step in rewrite(folder, 2):
        try:
            assert version_of(Table(folder, patience=0.0).rows()) == 2, step
            seen.append(step)
        except (InputError, PipelineError):
            assert Table(folder).files() == [], step
        assert version_of(kept.rows()) == (2 if step == "whole" else 1), step
    assert seen == ["whole"]


def test_readers_never_meet_half_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While another thread rewrites the table again and again, no read sees a part, and none goes back in time."""
    monkeypatch.setattr(tables, "_AGAIN", 0.001)
    folder = tmp_path / "top"
    fill(folder, 1)
    kept, plain = KeptTable(folder), Table(folder, patience=60.0)
    found = [[version_of(kept.rows())], [version_of(plain.rows())]]
    enough = threading.Event()
    deadline = time.monotonic() + 60.0

    def write() -> None:
        for version in itertools.count(2):
            for step in rewrite(folder, version):
                time.sleep(0.0005 if step != "whole" else 0.005)
            if enough.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while min(len(set(versions)) for versions in found) < 12:
            assert time.monotonic() < deadline, found
            found[0].append(version_of(kept.rows()))
            found[1].append(version_of(plain.rows()))
    finally:
        enough.set()
        writer.join()
    for versions in found:
        assert versions == sorted(versions)
    assert version_of(kept.rows()) == version_of(plain.rows()) >= 12


def test_a_folder_may_be_told_as_text(tmp_path: Path):
    """A notebook names a table by its path as text: both kinds of tables are those of the folder."""
    assert Table(str(tmp_path)) == Table(tmp_path)
    assert Table(str(tmp_path)).files() == []
    assert KeptTable(str(tmp_path)).folder == tmp_path


def test_a_read_waits_for_the_table_to_be_whole(tmp_path: Path):
    """A reader that comes in the middle of a rewrite gets the new rows, once they are there."""
    folder = tmp_path / "top"
    fill(folder, 1)
    steps = rewrite(folder, 2)
    while next(steps) != "part-0-2.parquet is moved":
        pass
    found: list[int] = []
    readers = [
        threading.Thread(target=lambda table=table: found.append(version_of(table.rows())))
        for table in (Table(folder, patience=60.0), KeptTable(folder, patience=60.0))
    ]
    for reader in readers:
        reader.start()
    assert found == []
    for _ in steps:
        pass
    for reader in readers:
        reader.join()
    assert found == [2, 2]


def test_what_never_becomes_whole_is_an_error(tmp_path: Path):
    """A table whose run was cut off is refused with a remedy, and a folder that is not there is the caller's fault."""
    folder = tmp_path / "top"
    steps = rewrite(folder, 1)
    while next(steps) != "part-1-1.parquet is moved":
        pass
    for reader in (Table(folder, patience=0.1), KeptTable(folder, patience=0.1)):
        with pytest.raises(PipelineError, match=r"no whole table .* run the pipeline"):
            reader.rows()
    with pytest.raises(InputError, match="no table"):
        KeptTable(tmp_path / "nothing").rows()
    assert not KeptTable(tmp_path / "nothing").refresh()


def test_rows_are_read_again_only_when_the_table_changed(tmp_path: Path):
    """Two answers from one state of the table come from one read; the next state is taken in by a refresh."""
    folder = tmp_path / "top"
    fill(folder, 1)
    kept = KeptTable(folder)
    first = kept.read()
    assert kept.refresh()
    assert kept.read() is first
    fill(folder, 2)
    assert kept.refresh()
    shutil.rmtree(folder)
    assert version_of(kept.rows()) == 2, "what was whole last stays, whatever becomes of the folder"


def test_a_large_table_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Memory has a bound: a table beyond it is read each time, which is said once, and waited for as ever."""
    folder = tmp_path / "top"
    fill(folder, 1)
    kept = KeptTable(folder, patience=0.1, most=PARTS * ROWS * 8 - 1)
    with caplog.at_level(logging.WARNING, "penstock.pipelines"):
        assert [version_of(kept.rows()) for _ in range(2)] == [1, 1]
    assert len(caplog.records) == 1
    assert not kept.refresh()
    next(rewrite(folder, 2))
    with pytest.raises(PipelineError, match="no whole table"):
        kept.rows()


def test_a_copy_counts_when_it_has_stood_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copied folder can be younger than its files, as one that loses them: it counts when nobody changes it."""
    folder = tmp_path / "top"
    fill(folder, 1)
    os.utime(folder)
    assert Table(folder).files() == []
    monkeypatch.setattr(tables, "_STILL", 10.0)
    os.utime(folder, (time.time() - 20, time.time() - 20))
    assert version_of(Table(folder, patience=0.0).rows()) == 1


def test_partitions_are_part_of_the_table(tmp_path: Path):
    """A file that goes from a folder inside is noticed, too."""
    folder = tmp_path / "top"
    for name in ("a", "b"):
        (folder / f"region={name}").mkdir(parents=True)
        for number in range(2):
            pq.write_table(pa.table({"x": [number]}), folder / f"region={name}" / f"part-{number}.parquet")
    (folder / "_SUCCESS").touch()
    future = time.time() + 5  # the mark is the newest, whatever the clock of the file system can tell apart
    os.utime(folder / "_SUCCESS", (future, future))
    assert len(Table(folder, patience=0.0).rows()) == 4
    gone = folder / "region=b" / "part-1.parquet"
    gone.unlink()
    os.utime(gone.parent, (future + 5, future + 5))
    assert Table(folder).files() == []


@pytest.mark.parametrize("kind", [Table, KeptTable])
def test_a_streaming_table_without_a_row_is_told_at_once(tmp_path: Path, kind: type, monkeypatch: pytest.MonkeyPatch):
    """The log of a streaming table says what counts: where that is nothing, waiting would change nothing."""
    monkeypatch.setattr(tables.time, "sleep", lambda _: pytest.fail("it waits"))
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "0").write_text("v1\n")
    assert Table(tmp_path).files() == []
    with pytest.raises(InputError, match="No batch has written a row"):
        kind(tmp_path).read()


# -- the log of a streaming table --------------------------------------------------------------------------------------


def committed(folder: Path, name: str, *entries: tuple[str, str]) -> None:
    """Write a batch of a table's log: paths as Spark writes them, and what became of each."""
    log = folder / "_spark_metadata"
    log.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": path, "action": done or "add"}) for path, done in entries]
    (log / name).write_text("\n".join(["v1", *lines]))


def part(folder: Path, name: str, **columns: list[object]) -> tuple[str, str]:
    """Write a file of a table, and give its entry for the log."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path.as_uri(), ""


def test_a_file_that_a_later_batch_deletes_is_gone(tmp_path: Path):
    """The log is added up in the order of its numbers, the tenth after the ninth; what is no batch is passed over."""
    one, two, three = (part(tmp_path, f"{name}.parquet", x=[name]) for name in "abc")
    committed(tmp_path, "8", one)
    committed(tmp_path, "9", two)
    committed(tmp_path, "10", (one[0], "delete"), three)
    for name in (".10.crc", ".11.tmp", "x.compact", "12.part"):
        (tmp_path / "_spark_metadata" / name).write_text("no batch")
    assert sorted(row["x"] for row in Table(tmp_path).rows()) == ["b", "c"]
    committed(tmp_path, "10.compact", one)
    assert [row["x"] for row in Table(tmp_path).rows()] == ["a"], "the compact one stands for all up to its number"
    committed(tmp_path, "9.compact", two)
    assert [row["x"] for row in Table(tmp_path).rows()] == ["a"], "and the newest compact one for the older ones"


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "5", '{"action": "add"}', '{"path": 5}', '{"path": "//[", "action": "add"}', '{"path": "/t/../x"}'],
)
def test_a_log_that_is_damaged_is_told(tmp_path: Path, line: str):
    """A line that names no file of the table is an error that shows it, and the rows of the others are not given."""
    committed(tmp_path, "0", part(tmp_path, "a.parquet", x=[1]))
    with (tmp_path / "_spark_metadata" / "0").open("a") as log:
        log.write(f"\n{line}")
    with pytest.raises(PipelineError, match="is damaged: it has a line that names no file"):
        Table(tmp_path).read()


def test_a_table_that_was_moved_is_read_where_it_is(tmp_path: Path):
    """Paths in the log are absolute and quoted; only what is inside the table counts, folders of partitions too."""
    table = tmp_path / "new place" / "orders"
    part(table, "region=a b%2F/p 1.parquet", x=[1])
    part(table, "p2.parquet", x=[2])
    committed(
        table,
        "0",
        ("file:///old/orders/shop/orders/region=a%20b%252F/p%201.parquet", ""),
        ("s3a://bucket/elsewhere/p2.parquet", ""),
    )
    assert sorted(row["x"] for row in Table(table).rows()) == [1, 2]
    assert Table(table).files() == sorted([table / "p2.parquet", table / "region=a b%2F" / "p 1.parquet"])


def test_files_of_several_schemas_are_one_table(tmp_path: Path):
    """A column that came later is null before, one that grew wider is the wider; columns can be picked."""
    committed(tmp_path, "0", part(tmp_path, "a.parquet", x=pa.array([1], pa.int32())))
    committed(tmp_path, "1", part(tmp_path, "b.parquet", x=pa.array([2], pa.int64()), y=["late"]))
    assert Table(tmp_path).rows() == [{"x": 1, "y": None}, {"x": 2, "y": "late"}]
    assert Table(tmp_path).rows(["x"]) == [{"x": 1}, {"x": 2}]
    assert Table(tmp_path).read().schema.field("x").type == pa.int64()


def test_a_table_exists_once_a_row_is_committed(tmp_path: Path):
    """Neither a folder, nor a file that no batch committed, nor a batch without files makes a table."""
    table = Table(tmp_path / "orders", patience=0.0)
    assert not table.exists
    entry = part(table.folder, "a.parquet", x=[1])
    committed(table.folder, "0")
    assert not table.exists
    committed(table.folder, "1", entry)
    assert table.exists


def test_a_committed_file_that_is_missing_is_no_table(tmp_path: Path):
    """A table that lacks a file which its log names is never read in part: it is waited for, and then refused."""
    committed(tmp_path, "0", part(tmp_path, "a.parquet", x=[1]), ("file:///orders/gone.parquet", ""))
    with pytest.raises(PipelineError, match="no whole table"):
        Table(tmp_path, patience=0.0).read()
    with pytest.raises(PipelineError, match="no whole table"):
        KeptTable(tmp_path, patience=0.0).read()


def test_a_kept_streaming_table_takes_in_each_batch(tmp_path: Path):
    """A batch that is committed later is in the next answer; files that were never committed never are."""
    kept = KeptTable(tmp_path)
    committed(tmp_path, "0", part(tmp_path, "a.parquet", x=[1]))
    assert kept.rows() == [{"x": 1}]
    later = part(tmp_path, "b.parquet", x=[2])
    assert kept.rows() == [{"x": 1}]
    committed(tmp_path, "1", later)
    os.utime(tmp_path / "_spark_metadata", (time.time() + 5, time.time() + 5))  # whatever the clock can tell apart
    assert kept.rows() == [{"x": 1}, {"x": 2}]


def test_what_begins_with_a_dot_or_a_line_is_no_part(tmp_path: Path):
    """Spark's own files beside the parts of a view are not read, whatever they end with."""
    fill(tmp_path / "top", 1)
    for name in (".part-0.parquet.crc", "._part.parquet", "_metadata.parquet", "notes.txt"):
        (tmp_path / "top" / name).write_text("no rows")
    future = time.time() + 5
    os.utime(tmp_path / "top" / "_SUCCESS", (future, future))
    assert version_of(Table(tmp_path / "top", patience=0.0).rows()) == 1
