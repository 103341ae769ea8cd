"""Archives of real streams, written as Spark has it done and read as anybody does; Spark left out."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.errors import DataLossError, FencedError, InputError, StoreDamagedError
from penstock.options import ConnectionOptions
from penstock.spark import archive_writer
from penstock.spark.archive_files import open_archive
from penstock.spark.archive_folder import (
    ArchiveFolder,
    Identity,
    read_identity,
    read_progress,
    write_identity,
    write_progress,
)
from penstock.spark.archive_run import ArchiveOrder, archived_since, begin
from penstock.spark.archive_writer import ArchiveWriter, committing, put_in_place, write_aside
from penstock.spark.offsets import Mark
from penstock.wire.arrow import SCHEMA
from tests.live.backfilling import BackfillQuery, archive_once, read_joined, seen
from tests.spark.conftest import Streams

Archived = tuple[str, Path]


@pytest.fixture
def archived(streams: Streams, unique: Callable[..., str], tmp_path: Path) -> Archived:
    """A stream of a hundred messages, and an archive of them."""
    name = streams.make(unique("A"))
    streams.fill(name, 100)
    archive_once(streams.url, name, tmp_path / "archive")
    return name, tmp_path / "archive"


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["sequence"] for row in rows]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("day=*/*.parquet"), key=lambda path: path.name)


def cut_days(name: str, folder: Path, days: int) -> None:
    """Let an archive be of several days, each of twenty messages; times in the files stay as they are."""
    notes = json.loads((folder / "_penstock/progress.json").read_text())
    (whole,) = files(folder)
    table = pq.ParquetFile(whole).read()
    whole.unlink()
    whole.parent.rmdir()
    notes["files"] = []
    for number in range(days):
        day, part = date(2025, 1, 1) + timedelta(number), table.slice(20 * number, 20)
        times = [datetime(2025, 1, 1, 12, 0, place, tzinfo=UTC) + timedelta(number) for place in range(20)]
        part = part.set_column(4, SCHEMA.field("time"), [pa.array(times, SCHEMA.field("time").type)])
        path = folder / f"day={day}" / f"{20 * number + 1:020}.parquet"
        path.parent.mkdir()
        pq.write_table(part, path)
        notes["files"].append([20 * number + 1, 20 * number + 20, 20])
    (folder / "_penstock/progress.json").write_text(json.dumps(notes))


# -- what is in it -----------------------------------------------------------------------------------------------------


def test_anything_that_reads_parquet_reads_the_archive(streams: Streams, unique: Any, tmp_path: Path):
    """Rows are those of the stream, each once, in order, with the columns of the source and the day."""
    name, folder = streams.make(unique("A")), tmp_path / "archive"
    streams.fill(name, [("x", b"\xff\x00", {"Who": "me"}), ("y.z", b""), ("x", b"3")])
    archive_once(streams.url, name, folder)
    rows = ds.dataset(folder, partitioning="hive").to_table().to_pylist()
    today = datetime.now(UTC).date().isoformat()
    assert [(row["sequence"], row["subject"], row["data"], row["headers"]) for row in rows] == [
        (1, f"{name}.x", b"\xff\x00", [("Who", ["me"])]),
        (2, f"{name}.y.z", b"", []),
        (3, f"{name}.x", b"3", []),
    ]
    assert {row["day"] for row in rows} <= {today, rows[0]["time"].date().isoformat()}
    assert {row["stream"] for row in rows} == {name}


def test_a_run_adds_what_came_since(archived: Archived, streams: Streams):
    """A second run adds what is new and nothing else; small files grow into one, and nothing else is left behind."""
    name, folder = archived
    streams.fill(name, 50)
    archive_once(streams.url, name, folder, maxMessagesPerTrigger="20")
    assert seen(folder) == list(range(1, 151))
    assert len(files(folder)) == 1
    assert archive_once(streams.url, name, folder) <= 1
    assert seen(folder) == list(range(1, 151))
    assert list((folder / "_penstock/writing").iterdir()) == []
    done = archived_since(ArchiveOrder(name, str(folder)), 101)
    assert (done["archived"], done["messages"], done["last"]) == (50, 150, 150)


def test_files_are_neither_tiny_nor_huge(streams: Streams, unique: Any, tmp_path: Path, monkeypatch: Any):
    """A file that is small grows with what comes; one that is large enough does not, and a task ends one that is."""
    monkeypatch.setattr(archive_writer, "SMALL", 6_000)
    monkeypatch.setattr(archive_writer, "LARGE", 20_000)
    monkeypatch.setattr(archive_writer, "GROUP_ROWS", 8)
    name, folder = streams.make(unique("A")), tmp_path / "archive"
    for _ in range(3):
        streams.fill(name, [("x", os.urandom(500)) for _ in range(100)])
        archive_once(streams.url, name, folder, maxMessagesPerTrigger="25", maxRecordsPerPartition="10")
    assert seen(folder) == list(range(1, 301))
    sizes = [path.stat().st_size for path in files(folder)]
    assert all(6_000 <= size < 45_000 for size in sizes[:-1]), sizes


def test_subjects_and_start_of_an_archive(streams: Streams, unique: Any, tmp_path: Path):
    """An archive may be of some subjects, and begin at a place: it goes on so, and who wants more of it is refused."""
    name, folder = streams.make(unique("A")), tmp_path / "archive"
    streams.fill(name, [("x" if number % 2 else "y", b"") for number in range(20)])
    archive_once(streams.url, name, folder, subjects=f"{name}.x", start="11")
    streams.fill(name, 4, subject="y")
    archive_once(streams.url, name, folder, subjects=f"{name}.x", start="11")
    assert seen(folder) == [12, 14, 16, 18, 20]
    with pytest.raises(InputError, match="Say the same subjects"):
        archive_once(streams.url, name, folder)
    with pytest.raises(InputError, match="this query reads more"):
        read_joined(streams.url, stream=name, archive=str(folder))
    streams.api(f"STREAM.PURGE.{name}", {"seq": 25})
    rows = read_joined(streams.url, stream=name, archive=str(folder), subjects=f"{name}.x", start="11")
    assert numbers(rows) == [12, 14, 16, 18, 20]


def test_the_day_is_that_of_the_message():
    """Rows go to the UTC day of their time, in the order of sequences, also where a clock stepped back at midnight."""
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    times = [midnight + timedelta(microseconds=step) for step in (-2, -1, 0, -1, 1, 2)]
    rows = [
        {"subject": "s", "data": b"", "headers": {}, "sequence": place, "time": time, "stream": "S"}
        for place, time in enumerate(times, 1)
    ]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    found = [(str(day), part.column("sequence").to_pylist()) for day, part in archive_writer.by_day(batch)]
    assert found == [("2026-02-28", [1, 2]), ("2026-03-01", [3]), ("2026-02-28", [4]), ("2026-03-01", [5, 6])]


# -- kills -------------------------------------------------------------------------------------------------------------


def in_a_child(work: Callable[[], None], kill_at: int) -> bool:
    """Do work in a child that is killed at its so-manieth step on the disk; tell whether it came to its end."""
    child = os.fork()
    if not child:
        steps = 0

        def counted(call: Any) -> Any:
            def step(*arguments: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments)

            return step

        try:
            archive_writer.os.replace = counted(os.replace)  # type: ignore[attr-defined]  # the child's own
            os.fsync = counted(os.fsync)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


@pytest.mark.parametrize("cuts", [("7", "9"), pytest.param(("9", "7"), marks=pytest.mark.heavy)])
def test_a_kill_at_any_moment_leaves_each_message_once(
    streams: Streams, unique: Any, tmp_path: Path, monkeypatch: Any, cuts: tuple[str, str]
):
    """Killed at any step of putting files in their places, everybody sees the messages up to some sequence, each once;
    the next run adds the others, however differently it cuts them.
    """
    monkeypatch.setattr(archive_writer, "SMALL", 2_600)
    name, whole = streams.make(unique("A")), tmp_path / "whole"
    streams.fill(name, 30)
    archive_once(streams.url, name, whole)
    streams.fill(name, 60)
    kill_at, over = 0, False
    while not over:
        kill_at += 1
        folder = tmp_path / f"killed-{kill_at}"
        shutil.copytree(whole, folder)

        def commit(writer: ArchiveWriter, written: Any, number: int, at: int = kill_at) -> None:
            nonlocal over
            over = in_a_child(lambda: writer.commit(written, number), at)
            if not over:
                raise KeyboardInterrupt

        try:
            archive_once(streams.url, name, folder, commit, maxRecordsPerPartition=cuts[0])
        except KeyboardInterrupt:
            found = seen(folder)
            assert found == list(range(1, len(found) + 1))
            archive = open_archive(str(folder))
            assert [place for part in archive.parts for place in range(part.first, part.last + 1)] == found
            rows = read_joined(streams.url, stream=name, archive=str(folder))
            assert numbers(rows) == list(range(1, 91))
        archive_once(streams.url, name, folder, maxRecordsPerPartition=cuts[1])
        assert seen(folder) == list(range(1, 91))
    assert kill_at > 10  # so many moments there were


def test_a_run_that_was_replaced_writes_nothing(archived: Archived, streams: Streams):
    """A commit of a run that was killed, and is not quite dead, is refused once another run has begun."""
    name, folder = archived
    with begin(ArchiveOrder(name, str(folder)), ConnectionOptions(streams.url)) as first:
        zombie = first.run
    with (
        begin(ArchiveOrder(name, str(folder)), ConnectionOptions(streams.url)),
        pytest.raises(FencedError, match="taken over"),
        committing(str(folder), zombie),
    ):
        pass


# -- who may write -----------------------------------------------------------------------------------------------------


def test_a_second_archiver_is_refused(archived: Archived, streams: Streams):
    """Two archivers do not work on one archive."""
    name, folder = archived
    with (
        begin(ArchiveOrder(name, str(folder)), ConnectionOptions(streams.url)),
        pytest.raises(InputError, match="Another archiver"),
    ):
        archive_once(streams.url, name, folder)


def test_a_folder_that_is_no_place_for_an_archive(archived: Archived, streams: Streams, unique: Any, tmp_path: Path):
    """A folder with other files, an archive of another stream and files among those of an archive are refused."""
    name, folder = archived
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"notes\.txt"):
        archive_once(streams.url, name, tmp_path / "taken")
    other = streams.make(unique("A"))
    with pytest.raises(InputError, match=f"an archive of {name} and not of {other}"):
        archive_once(streams.url, other, folder)
    shutil.copy(files(folder)[0], files(folder)[0].with_name("copy.parquet"))
    with pytest.raises(InputError, match="which no archiver wrote"):
        archive_once(streams.url, name, folder)


def test_a_stream_that_is_not_the_archived_one(archived: Archived, streams: Streams):
    """A stream that was made anew, or set back, is not added to the archive of the old one, nor read with it."""
    name, folder = archived
    streams.api(f"STREAM.DELETE.{name}")
    streams.made.remove(name)
    streams.make(name)
    streams.fill(name, 120)
    with pytest.raises(InputError, match="made at"):
        archive_once(streams.url, name, folder)
    with pytest.raises(InputError, match="message 100 is another one"):
        read_joined(streams.url, stream=name, archive=str(folder))
    notes = folder / "_penstock/archive.json"  # the same time of creation, as a stream has that was set back
    notes.write_text(json.dumps(json.loads(notes.read_text()) | {"created": streams.info(name)["created"]}))
    with pytest.raises(DataLossError, match="set back"):
        archive_once(streams.url, name, folder)


def test_a_work_queue_is_not_archived(streams: Streams, unique: Any, tmp_path: Path):
    """A stream that removes what is acknowledged is refused before anything is written."""
    name = streams.make(unique("A"), retention="workqueue")
    with pytest.raises(InputError, match="Archive a mirror"):
        archive_once(streams.url, name, tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


def test_messages_that_are_gone_before_they_were_archived(archived: Archived, streams: Streams):
    """They stop the archiver, or are noted; whoever reads over such a hole is told."""
    name, folder = archived
    streams.fill(name, 20)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 111})
    with pytest.raises(DataLossError, match=r"\[101, 111\)"):
        archive_once(streams.url, name, folder)
    with pytest.raises(DataLossError, match=r"\[101, 111\)"):
        read_joined(streams.url, stream=name, archive=str(folder))
    archive_once(streams.url, name, folder, skip_lost="yes")
    assert seen(folder) == [*range(1, 101), *range(111, 121)]
    with pytest.raises(DataLossError, match=r"\[101, 111\)"):
        read_joined(streams.url, stream=name, archive=str(folder))
    assert numbers(read_joined(streams.url, stream=name, archive=str(folder), start="111")) == list(range(111, 121))
    rows = read_joined(streams.url, stream=name, archive=str(folder), failOnDataLoss="false")
    assert numbers(rows) == [*range(1, 101), *range(111, 121)]


def test_messages_that_were_deleted_are_no_hole(archived: Archived, streams: Streams):
    """An archive reaches as far as it was looked at, also if nothing was there at the end."""
    name, folder = archived
    streams.fill(name, 20)
    for sequence in range(111, 121):
        streams.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
    archive_once(streams.url, name, folder)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 121})
    assert open_archive(str(folder)).last == 120
    assert numbers(read_joined(streams.url, stream=name, archive=str(folder))) == list(range(1, 111))


# -- archive and stream as one -----------------------------------------------------------------------------------------


def test_archive_and_stream_are_one_table(archived: Archived, streams: Streams):
    """Each sequence comes once, whether the stream still holds what is archived or not; a streaming query goes on."""
    name, folder = archived
    streams.fill(name, 30)
    whole = read_joined(streams.url, stream=name, archive=str(folder))
    assert numbers(whole) == list(range(1, 131))
    streams.api(f"STREAM.PURGE.{name}", {"seq": 101})
    assert read_joined(streams.url, stream=name, archive=str(folder)) == whole
    query = BackfillQuery(streams.url, stream=name, archive=str(folder), maxMessagesPerTrigger="40")
    assert query.all() == list(range(1, 131))
    streams.fill(name, 1)
    assert query.all() == [131]
    query.stop()


def test_an_archive_that_grows_under_a_query(archived: Archived, streams: Streams):
    """A query that fell behind the stream finds in the archive what was added to it since."""
    name, folder = archived
    query = BackfillQuery(streams.url, stream=name, archive=str(folder))
    assert query.all() == list(range(1, 101))
    streams.fill(name, 20)
    archive_once(streams.url, name, folder)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 121})
    assert query.all() == list(range(101, 121))
    query.stop()


def test_an_archive_that_begins_later_than_the_stream(streams: Streams, unique: Any, tmp_path: Path):
    """What the stream holds before the archive begins is read, too."""
    name = streams.make(unique("A"))
    streams.fill(name, 30)
    archive_once(streams.url, name, tmp_path / "archive", start="21")
    streams.fill(name, 5)
    assert numbers(read_joined(streams.url, stream=name, archive=str(tmp_path / "archive"))) == list(range(1, 36))
    query = BackfillQuery(streams.url, stream=name, archive=str(tmp_path / "archive"))
    assert query.all() == list(range(1, 36))
    query.stop()


def test_filters_leave_files_out(archived: Archived, streams: Streams):
    """Of an archive of many days, only files are read that can hold what is wanted."""
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

    from penstock.spark.backfill import BackfillReader
    from penstock.spark.schema import source_schema
    from penstock.spark.source_options import SourceOptions
    from penstock.spark.stored_reader import StoredPartition

    name, folder = archived
    cut_days(name, folder, 5)
    given = SourceOptions.parse({"stream": name, "archive": str(folder), "pushDown": "true"})

    def parts(*filters: Any) -> list[int]:
        reader = BackfillReader(ConnectionOptions(streams.url), given, source_schema(given))
        reader.same = streams.info(name)["created"]  # the times were changed
        list(reader.pushFilters(list(filters)))
        tasks = [task for task in reader.partitions() if isinstance(task, StoredPartition)]
        return [part.first for task in tasks for part in task.parts if task.start < task.end]

    day = datetime(2025, 1, 3, tzinfo=UTC)
    assert parts() == [1, 21, 41, 61, 81]
    assert parts(GreaterThanOrEqual(("time",), day), LessThan(("time",), day + timedelta(hours=23))) == [41]
    assert parts(EqualTo(("sequence",), 65)) == [61]
    assert parts(LessThan(("sequence",), 21)) == [1]


def test_an_archive_that_lost_a_file(archived: Archived, streams: Streams):
    """A file that is missing is told, in the middle and at the end; old days may be removed, and are no loss."""
    name, folder = archived
    cut_days(name, folder, 5)
    middle, last, first = files(folder)[2], files(folder)[4], files(folder)[0]
    for path in (middle, last):
        path.rename(path.with_suffix(".gone"))
        path.with_suffix(".gone").rename(folder.parent / "gone")
        with pytest.raises(DataLossError, match="lacks 1 of its files"):
            open_archive(str(folder))
        (folder.parent / "gone").rename(path)
    shutil.rmtree(first.parent)
    assert open_archive(str(folder)).first == 21


def test_a_damaged_file_of_an_archive(archived: Archived, streams: Streams):
    """A file that cannot be read is named with its messages, or skipped; one at the end is named before anything."""
    name, folder = archived
    cut_days(name, folder, 5)
    path = files(folder)[1]
    path.write_bytes(path.read_bytes()[:200])
    reader = open_archive(str(folder)).parts[1]
    with pytest.raises(DataLossError, match=r"messages 21 to 40") as raised:
        list(reader.batches(name))
    assert path.name in str(raised.value)
    files(folder)[4].write_bytes(b"PAR1")
    with pytest.raises(StoreDamagedError, match="cannot be read"):
        open_archive(str(folder))


def test_notes_that_are_none(archived: Archived):
    """Notes of a later version, or broken ones, are refused; if the note of the progress is lost, the files tell."""
    _, folder = archived
    kept = (folder / "_penstock/progress.json").read_text()
    for broken in ("", "[]", '{"version": 1}', kept.replace("streams", "strems"), kept.replace("[[", "[")):
        (folder / "_penstock/progress.json").write_text(broken)
        with pytest.raises(StoreDamagedError, match=r"progress\.json"):
            open_archive(str(folder))
    (folder / "_penstock/progress.json").unlink()
    assert open_archive(str(folder)).last == 100
    (folder / "_penstock/archive.json").write_text('{"version": 2}')
    with pytest.raises(StoreDamagedError, match="this Penstock"):
        open_archive(str(folder))
    (folder / "_penstock/archive.json").write_text('{"version": 1, "stream": 7}')
    with pytest.raises(StoreDamagedError, match=r"archive\.json"):
        open_archive(str(folder))
    (folder / "_penstock/archive.json").unlink()
    with pytest.raises(InputError, match="is not an archive"):
        open_archive(str(folder))


def test_an_archive_elsewhere(tmp_path: Path):
    """A folder that Arrow reaches by a URI takes files the same way."""
    folder = ArchiveFolder(tmp_path.as_uri())
    folder.write_json("_penstock/archive.json", {"stream": "S", "created": "then"})
    rows = [{"subject": "s", "data": b"", "headers": {}, "sequence": 1, "time": datetime.now(UTC), "stream": "S"}]
    new = write_aside(folder, [pa.RecordBatch.from_pylist(rows, SCHEMA)])
    put_in_place(tmp_path.as_uri(), new, Mark("then", 1, 5))
    assert seen(tmp_path) == [1]
    assert open_archive(tmp_path.as_uri()).last == 4


def test_an_archive_that_was_copied_or_set_back(archived: Archived, streams: Streams, tmp_path: Path):
    """A copy, and an archive that is restored from one, go on where their own files end; what is gone then is told."""
    name, folder = archived
    copy, older = tmp_path / "elsewhere" / "copy", tmp_path / "older"
    shutil.copytree(folder, copy)
    shutil.copytree(folder, older)
    streams.fill(name, 20)
    for place in (folder, copy):
        archive_once(streams.url, name, place)
        assert seen(place) == list(range(1, 121))
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    archive_once(streams.url, name, folder)
    assert seen(folder) == list(range(1, 121))
    streams.api(f"STREAM.PURGE.{name}", {"seq": 111})
    with pytest.raises(DataLossError, match=r"\[101, 111\)"):
        archive_once(streams.url, name, older)


def test_a_place_that_cannot_be_written_to(streams: Streams, unique: Any, tmp_path: Path):
    """A folder that cannot be made is told in a sentence."""
    name = streams.make(unique("A"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        archive_once(streams.url, name, tmp_path / "file" / "archive")


def test_the_notes_of_an_archive_are_frozen(tmp_path: Path):
    """What earlier versions noted is read, and written again as it was."""
    golden = Path(__file__).resolve().parents[1] / "golden" / "archive_v1"
    shutil.copytree(golden, tmp_path / "_penstock")
    uri = str(tmp_path)
    identity, progress = read_identity(uri), read_progress(uri, "ORDERS")
    assert identity == Identity("ORDERS", "2026-01-31T23:59:59.123456789Z", ("orders.eu.>",), "hub")
    assert progress is not None
    assert (progress.mark.next, progress.lost, progress.files) == (
        1001,
        ((500, 600),),
        ((1, 499, 499), (600, 990, 391)),
    )
    write_identity(uri, identity)
    write_progress(uri, "ORDERS", progress)
    for note in golden.iterdir():
        assert (tmp_path / "_penstock" / note.name).read_text() == note.read_text()
