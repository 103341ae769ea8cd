"""What the machine does not give is said in a sentence: too few files, a guard that was killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import connect
from penstock.errors import ServerError, UnreachableError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.command import Command, environment


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd, hard))
    held = []
    try:
        with suppress(OSError):
            while True:  # fills the gaps below the limit
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for item in held:
            os.close(item)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_connection(server: Server):
    """Both drivers say that the limit of files is reached, and not that no server is there."""
    options = ConnectionOptions(server.url)
    with no_more_files():
        with pytest.raises(UnreachableError, match="as many files open as it may") as caught:
            await connect(options)
        assert "ulimit -n" in str(caught.value)
        with pytest.raises(UnreachableError, match="as many files open as it may"):
            BulkConnection(options)


def test_a_server():
    """A server that cannot be started for want of files says so, and leaves nothing behind."""
    with no_more_files(), pytest.raises(ServerError, match="as many files open as it may"):
        Server(sync="2m").start()


@pytest.mark.parametrize("most", [16, 32, 64])
def test_commands(server: Server, tmp_path: Path, most: int):
    """A command with few files works, or ends with a sentence and status 1; there is no traceback."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    for words in (("server", "info"), ("pub", "x", "y")):
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(tmp_path, NATS_URL=server.url),
            preexec_fn=limit,
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or done.stderr.startswith("penstock: "), done.stderr


def test_a_guard_that_was_killed(eventually: Any):
    """Whoever asks next learns that the guard was killed, by what, and that the nodes went with it."""
    with Server(sync="2m") as server:
        guard = server._deployment.guard._process.pid
        pid = server.nodes[0].pid
        os.kill(guard, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())
        for ask in (server.check, server.nodes[0].kill, server.nodes[0].start):
            with pytest.raises(ServerError, match="guard was killed by SIGKILL, and its nodes with it"):
                ask()
        assert not server.running
        server.start()  # anew
        assert server.running


def test_the_command_whose_guard_was_killed(tmp_path: Path):
    """`penstock server run` ends with that sentence."""
    with Command(tmp_path).running("server", "run", "--sync", "2m") as child:
        child.wait_for("is running")
        tasks = Path(f"/proc/{child.process.pid}/task").glob("*/children")  # a thread started it
        children = [pid for task in tasks for pid in task.read_text().split()]
        [guard] = [pid for pid in children if "guard.py" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(int(guard), signal.SIGKILL)
        assert child.process.wait(30) == 1
        assert "guard was killed by SIGKILL" in child.wait_for("guard was")
