"""Files that are whole or not there, also through a power cut."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import context_files
from penstock.part_file import PartFile, Replacement, make_folder, move_whole, sync_folder, write_whole
from penstock.pipelines.files import write_whole as write_fields
from penstock.spark.archive_folder import ArchiveFolder
from tests.disk_calls import record


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kept_file_is_synced_before_and_after_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
):
    """When `keep` returns, neither the content nor the name can be taken back, so that it may be acknowledged."""
    calls = record(monkeypatch, tmp_path)
    with PartFile(tmp_path) as part:
        part.file.write(b"hello")
        part.keep(tmp_path / "id", overwrite=overwrite)
    assert calls == [("fsync", "part"), ("replace" if overwrite else "link", "id"), ("fsync", ".")]
    assert (tmp_path / "id").read_bytes() == b"hello"


def test_a_name_that_is_taken_leaves_the_file_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What cannot have one name is kept under the next, and is synced before it has any."""
    (tmp_path / "id").touch()
    calls = record(monkeypatch, tmp_path)
    with PartFile(tmp_path) as part:
        part.file.write(b"hello")
        with pytest.raises(FileExistsError):
            part.keep(tmp_path / "id")
        part.keep(tmp_path / "id.1")
    assert calls == [("fsync", "part"), ("link", "id.1"), ("fsync", ".")]


def test_what_is_synced_is_all_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing waits in memory when the file is synced."""
    sizes, sync = [], os.fsync

    def measured(opened: int) -> None:
        sizes.append(os.fstat(opened).st_size)
        sync(opened)

    monkeypatch.setattr(os, "fsync", measured)
    with PartFile(tmp_path) as part:
        part.file.write(b"hello")
        part.keep(tmp_path / "id")
    assert sizes[0] == 5


def test_a_sync_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A disk that does not take the content is told, and there is no name for what it lost."""

    def broken(opened: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with PartFile(tmp_path) as part:
        part.file.write(b"hello")
        with pytest.raises(OSError, match="Input/output error"):
            part.keep(tmp_path / "id")
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_cannot_sync_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some file systems refuse to sync, a folder above all: files are written there all the same."""

    def unable(opened: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unable)
    write_whole(tmp_path / "id", b"hello")
    assert (tmp_path / "id").read_bytes() == b"hello"


def test_a_folder_that_nobody_may_read_takes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder into which files are dropped, and which cannot be opened, is not synced, and that is not an error."""

    def denied(*given: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # root may read every folder
    sync_folder(tmp_path)


def test_folders_are_synced_from_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a folder that is made with those above it, each one's name is synced; those that are there are left alone."""
    calls = record(monkeypatch, tmp_path)
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert calls == [("fsync", "."), ("fsync", "a")]


def test_every_file_that_is_replaced_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Contexts, the state of a pipeline, and files of an archive come to their places in the same order."""
    (tmp_path / "writing").write_bytes(b"rows")
    (tmp_path / "_penstock" / "writing").mkdir(parents=True)
    calls = record(monkeypatch, tmp_path)
    move_whole(tmp_path / "writing", tmp_path / "moved")
    assert calls == [("fsync", "writing"), ("replace", "moved"), ("fsync", ".")]
    calls.clear()
    write_fields(tmp_path / "state.json", {"v": 1})
    assert calls == [("fsync", "part"), ("replace", "state.json"), ("fsync", ".")]
    calls.clear()
    path = context_files.write_context("x", {"url": "nats://h"}, {"XDG_CONFIG_HOME": str(tmp_path)})
    folder = os.path.relpath(path.parent, tmp_path)
    assert calls == [("fsync", f"{folder}/part"), ("replace", f"{folder}/x.json"), ("fsync", folder)]
    calls.clear()
    ArchiveFolder(str(tmp_path)).write_json("_penstock/archive.json", {})
    assert [call for call, _ in calls] == ["fsync", "replace", "fsync"]


def test_what_is_not_a_file_is_not_replaced(tmp_path: Path) -> None:
    """A pipe or a device stays where it is, also if a file there might be replaced."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="what is there is not a file"):
        write_whole(tmp_path / "pipe", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_replacement_is_whole_or_nothing(tmp_path: Path) -> None:
    """What a link leads to is replaced when all was written, with the mode that it had; before, nothing is changed."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("target")
    with Replacement(link) as new:
        new.file.write(b"half")
    assert target.read_text() == "old"
    with Replacement(link) as new:
        new.file.write(b"new")
        new.keep()
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o640)
    assert os.readlink(link) == "target"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_replacement_where_nothing_is(tmp_path: Path) -> None:
    """A file that is not there is made, also at the end of a link, with the mode of new files."""
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "other").touch()
    with Replacement(tmp_path / "link") as new:
        new.file.write(b"new")
        new.keep()
    assert (tmp_path / "new").read_text() == "new"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_file_that_is_open_is_written_where_it_stands(tmp_path: Path) -> None:
    """A path that means an open file of this process, also through links, goes on in that file."""
    link = tmp_path / "link"
    with (tmp_path / "out").open("wb") as file:
        file.write(b"before ")
        file.flush()
        link.symlink_to(f"/dev/fd/{file.fileno()}")
        with Replacement(link) as new:
            new.file.write(b"and after")
            new.keep()
        assert os.stat(file.fileno()).st_ino == (tmp_path / "out").stat().st_ino
    assert (tmp_path / "out").read_text() == "before and after"
    assert link.is_symlink()


_REWRITES = """
import sys
from pathlib import Path
from penstock.pipelines.files import write_whole
number = 0
while True:
    number += 1
    write_whole(Path(sys.argv[1]), {"name": "x" * (number % 2 * 9000) or "a"})
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path: Path, seed: int) -> None:
    """Whenever the process dies that replaces the note of a switch, the note can be read, and is one that it wrote."""
    chance, path = random.Random(seed), tmp_path / "switch.json"
    with subprocess.Popen([sys.executable, "-c", _REWRITES, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        try:
            for _ in range(chance.randrange(1, 200)):
                assert writer.stdout.readline()
        finally:
            writer.kill()
    assert json.loads(path.read_text())["name"] in ("a", "x" * 9000)
