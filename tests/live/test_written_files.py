"""Where commands write what they were given a path for: links, pipes and devices stay what they are."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.server import Server
from tests.live.command import environment
from tests.live.inprocess import Done, invoke, runner

DATA = os.urandom(200_000)


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.fixture
def run(server: Server) -> Callable[..., Done]:
    return runner(server.url)


@pytest.fixture
def bucket(run: Callable[..., Done], unique: Callable[..., str], tmp_path: Path) -> str:
    """A bucket with an object x."""
    name, file = unique("B"), tmp_path / "data"
    file.write_bytes(DATA)
    run("object", "add", name, "--storage", "memory")
    run("object", "put", name, str(file), "--name", "x")
    file.unlink()
    return name


def test_an_object_through_a_link(run: Callable[..., Done], bucket: str, tmp_path: Path) -> None:
    """What a link leads to is replaced and keeps its mode; the link stays."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to("target")
    run("object", "get", bucket, "x", "-f", "-O", str(link), "--no-progress")
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (DATA, 0o600)
    assert os.readlink(link) == "target"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_an_object_into_a_device(run: Callable[..., Done], bucket: str) -> None:
    """An object goes to a device as it comes; one that is full is a sentence."""
    said = run("object", "get", bucket, "x", "-f", "-O", "/dev/full", "--no-progress", status=2).stderr
    assert "/dev/full cannot be written: No space left on device." in said


def test_an_object_for_which_there_is_no_room(run: Callable[..., Done], bucket: str, tmp_path: Path) -> None:
    """What cannot be written is told in a sentence, nothing of it is left, and what was there stays."""
    for name, flags in (("new", ()), ("old", ("-f",))):
        target = tmp_path / name
        if flags:
            target.write_text("old")
        with full_after(50_000):
            done = run("object", "get", bucket, "x", "-O", str(target), "--no-progress", *flags, status=2)
        assert f"{target} cannot be written: File too large. Make room, or check the path." in done.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "old")]


def test_a_payload_for_which_there_is_no_room(
    run: Callable[..., Done], unique: Callable[..., str], tmp_path: Path
) -> None:
    """A payload in chunks that cannot be written is told in a sentence, and nothing of it is left."""
    subject, stream, file, folder = unique("cli"), unique("S"), tmp_path / "data", tmp_path / "inbox"
    file.write_bytes(DATA)
    folder.mkdir()
    run("chunks", "send", str(file), subject, "--persistent", stream, "--id", "one")
    with full_after(50_000):
        receive = ("chunks", "receive", subject, "--persistent", stream, "--id", "one", "--to", str(folder))
        said = run(*receive, status=2).stderr
    assert f"A file in {folder} cannot be written: File too large. Make room" in said
    assert list(folder.iterdir()) == []


def test_the_result_of_a_check_into_a_pipe(server: Server, tmp_path: Path) -> None:
    """A pipe that --outfile names gets the result, and stays a pipe."""
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    done = invoke(server.url, "server", "check", "connection", "--format", "json", "--outfile", str(pipe))
    reader.join(10)
    assert done.status == 0
    assert json.loads(got[0])["check_suite"] == "connections"
    assert [path.name for path in tmp_path.iterdir() if path.is_fifo()] == ["pipe"]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_the_result_of_a_check_into_standard_output(server: Server, tmp_path: Path, mode: str) -> None:
    """A path such as /dev/stdout is standard output, also if that is a file: what was written there before stays."""
    out, stdout = tmp_path / "out", tmp_path / "stdout"
    out.write_text("before\n")
    stdout.symlink_to("/proc/self/fd/1")  # as /dev/stdout, which a mistake of ours shall not replace
    with out.open(mode) as file:
        command = [sys.executable, "-m", "penstock", "server", "check", "connection", "--outfile", str(stdout)]
        subprocess.run(command, stdout=file, env=environment(tmp_path, NATS_URL=server.url), timeout=60, check=True)
    lines = out.read_text().splitlines()
    assert lines[:-1] == (["before"] if mode == "a" else [])
    assert lines[-1].startswith("OK")
    assert stdout.is_symlink()
