"""Backups of the `nats` command, of servers old and new, come back here; and ours with it, where it is installed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server import Server
from tests.disk_calls import record
from tests.live.inprocess import Done, Peer, invoke, runner

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "backups"
NATS = shutil.which("nats")


@pytest.fixture
def run(server: Server) -> Callable[..., Done]:
    """Run the command; it must succeed unless a status is given."""
    return runner(server.url)


@pytest.mark.parametrize(("folder", "stream"), [("server_2_10", "GOLDEN_TAR"), ("server_2_15", "GOLDEN_ARC")])
def test_a_backup_of_the_nats_command_comes_back(run: Callable[..., Done], folder: str, stream: str):
    """nats 0.5.0 wrote these, from a server of 2.10 and one of 2.15: messages, headers and the consumer are there."""
    done = run("backup", "restore", "stream", str(GOLDEN / folder))
    assert done.stdout.startswith(f"Restored Stream {stream} with 3 messages\n")
    assert run("stream", "view", stream, "--raw").stdout == "order 1\norder 2\norder 3\n"
    assert "  N: 2\n" in run("stream", "get", stream, "2").stdout
    assert run("consumer", "ls", stream, "-n").stdout == "c\n"
    run("stream", "rm", stream, "-f")


def test_a_backup_is_named_by_its_form(
    run: Callable[..., Done],
    server: Server,
    unique: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """What a server of today sends is named as the `nats` command names it; two forms in one folder are refused.

    A backup outlasts a power cut when it is complete: `backup.json` comes when all else is synced, and is synced then.
    """
    name, folder, peer = unique("B"), tmp_path / "b", Peer(server.url)
    calls = record(monkeypatch, tmp_path)
    run("stream", "add", name, "--subjects", name, "--defaults")
    peer.publish(name, b"one", b"two")
    peer.close()
    run("backup", "stream", name, str(folder), "--chunk-size", "1K", "--window-size", "2K", "--no-progress")
    assert sorted(file.name for file in folder.iterdir()) == ["backup.json", "stream.arc.s2"]
    named = [calls.index(("replace", f"b/{file}")) for file in ("stream.arc.s2", "backup.json")]
    assert calls[0] == ("fsync", "."), "the name of the new folder"
    assert calls[named[0] - 1 : named[0] + 2] == [("fsync", "b/part"), ("replace", "b/stream.arc.s2"), ("fsync", "b")]
    assert calls[named[0] + 2 :] == [("fsync", "b/part"), ("replace", "b/backup.json"), ("fsync", "b")]
    run("stream", "rm", name, "-f")
    shutil.copy(folder / "stream.arc.s2", folder / "stream.tar.s2")
    assert "of two backups" in run("backup", "restore", "stream", str(folder), status=2).stderr
    (folder / "stream.arc.s2").unlink()  # as an older Penstock named it
    assert json.loads(run("stream", "restore", str(folder), "--json").stdout)["state"]["messages"] == 2
    (folder / "stream.tar.s2").unlink()
    assert "stream.arc.s2" in run("stream", "restore", str(folder), status=2).stderr


if NATS is not None:  # where it is installed

    def test_the_nats_command_reads_ours(
        run: Callable[..., Done], server: Server, unique: Callable[..., str], tmp_path: Path
    ):
        """What we write, `nats` restores."""
        name, folder = unique("B"), tmp_path / "b"
        run("stream", "add", name, "--subjects", name, "--defaults")
        run("pub", name, "one", "-q")
        run("backup", "stream", name, str(folder))
        run("stream", "rm", name, "-f")
        words = [NATS, "--server", server.url, "backup", "restore", "stream", str(folder), "--no-progress"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        assert run("stream", "view", name, "--raw").stdout == "one\n"


def test_a_disk_that_is_full(run: Callable[..., Done], server: Server, unique: Callable[..., str], tmp_path: Path):
    """What cannot be written is told in a sentence, and nothing of it is left."""
    name, folder, peer = unique("B"), tmp_path / "b", Peer(server.url)
    run("stream", "add", name, "--subjects", name, "--defaults")
    peer.publish(name, os.urandom(100_000))
    peer.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        done = invoke(server.url, "stream", "backup", name, str(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr.startswith(f"penstock: {folder} cannot be written: File too large. Check that there is room")
    assert list(tmp_path.iterdir()) == []
