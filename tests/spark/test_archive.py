"""Archives that a real Spark writes, and reads together with the stream."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.archive_run import ArchiveOrder, begin
from tests.live.backfilling import seen
from tests.spark.conftest import Streams, sequences


def archive(spark: Any, url: str, stream: str, folder: Path) -> None:
    """Archive what a stream holds."""
    with begin(ArchiveOrder(stream, str(folder)), ConnectionOptions(url)) as archiver:
        query = archiver.query(spark)
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()


def test_an_archive_is_written_once_and_read_as_one_table(
    spark: Any, server: Server, streams: Streams, unique: Any, read: Callable[..., Any], tmp_path: Path
):
    """Spark adds each message once; any Parquet reader and `archive` beside the stream see the same."""
    name, folder = streams.make(unique("A")), tmp_path / "archive"
    streams.fill(name, 300)
    archive(spark, server.url, name, folder)
    assert seen(folder) == list(range(1, 301))
    streams.fill(name, 20)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 301})
    frame = spark.read.parquet(str(folder))
    assert sequences(frame) == list(range(1, 301))
    assert frame.columns == ["subject", "data", "headers", "sequence", "time", "stream", "day"]
    assert sequences(read(name, archive=str(folder))) == list(range(1, 321))
    # The driver's word on how far it is does not outlive the run, and nothing else is left.
    assert sorted(path.name for path in (folder / "_penstock").iterdir()) == [
        "archive.json",
        "committing",
        "lock",
        "progress.json",
        "run.json",
        "writing",
    ]


def run_archiver(url: str, *arguments: str) -> subprocess.Popen[str]:
    """Start the command in a session of its own."""
    command = [sys.executable, "-m", "penstock", "-s", url, "stream", "archive", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.heavy
def test_a_continuous_archiver_ends_in_order(
    server: Server, streams: Streams, unique: Any, eventually: Any, tmp_path: Path
):
    """It adds what comes; a second one is refused meanwhile; Ctrl-C ends it after the batch in hand."""
    name, folder = streams.make(unique("A")), tmp_path / "archive"
    streams.fill(name, 100)
    running = run_archiver(server.url, name, "--to", str(folder), "--continuous", "--every", "1s")
    try:
        eventually(lambda: folder.exists() and seen(folder) == list(range(1, 101)), 90)
        streams.fill(name, 50)
        eventually(lambda: seen(folder) == list(range(1, 151)), 60)
        second = run_archiver(server.url, name, "--to", str(folder))
        _, told = second.communicate(timeout=60)
        assert (second.returncode, "Another archiver is at work" in told) == (2, True)
        running.send_signal(signal.SIGINT)
        said, told = running.communicate(timeout=60)
        assert running.returncode == 0, told
        assert "Archived 150 messages" in said
        assert not list((folder / "_penstock").glob("running-*"))
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()


def kill_once(streams: Streams, name: str, folder: Path, eventually: Any, *, alone: bool) -> None:
    """Let an archiver add something, and kill it in the next addition: alone, or all of its processes at once."""
    running = run_archiver(streams.url, name, "--to", str(folder), "--continuous", "--every", "1s")
    try:
        before = len(seen(folder)) if folder.exists() else 0
        eventually(lambda: running.poll() or (folder.exists() and len(seen(folder)) > before), 120)
        streams.fill(name, 500)
        # At the first sign of the next addition; or when that is over, if it was too quick.
        writing, last = folder / "_penstock" / "writing", streams.info(name)["state"]["last_seq"]
        eventually(lambda: list(writing.glob("*.parquet")) or len(seen(folder)) == last, 60)
        assert running.poll() is None
    finally:
        # Java sees that the command is gone, and ends by itself.
        os.kill(running.pid, signal.SIGKILL) if alone else os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=60)


@pytest.mark.heavy
@pytest.mark.timeout(3600)  # Spark starts eleven times, on a machine that may be busy
@pytest.mark.parametrize("round_", range(3))
def test_an_archiver_that_is_killed(
    server: Server, streams: Streams, unique: Any, eventually: Any, tmp_path: Path, round_: int
):
    """Killed again and again while messages come, the archive holds each message once when one run comes to its end."""
    name, folder = streams.make(unique("A")), tmp_path / "archive"
    for number in range(10):
        streams.fill(name, 1_000 + 137 * number)
        kill_once(streams, name, folder, eventually, alone=bool((number + round_) % 2))
        found = seen(folder)
        assert found == list(range(1, len(found) + 1))
    running = run_archiver(server.url, name, "--to", str(folder), "--json")
    said, told = running.communicate(timeout=120)
    assert running.returncode == 0, told
    last = streams.info(name)["state"]["last_seq"]
    assert seen(folder) == list(range(1, last + 1))
    assert json.loads(said)["messages"] == last
    assert not re.search("Traceback", told)
