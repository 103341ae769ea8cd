"""The folder of a run: its order, its connection, and what Java and Spark put down. It goes with the run.

A run whose whole tree of processes is killed cannot remove it. So the folder has a lock that the processes of the run
hold, and the kernel gives back: the next run that starts on this machine removes the folders of this user whose lock
nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["scratch_folder", "sweep"]

_PREFIX = "penstock-pipeline-"
_LOCK = "lock"
log = logging.getLogger("penstock.pipelines")


@contextlib.contextmanager
def scratch_folder() -> Iterator[tuple[Path, int]]:
    """Make the folder of a run, and give it with the handle of its lock, which the child inherits."""
    sweep()
    # Java may be writing to it when it is killed.
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # One that sweeps at this very moment holds it for an instant, and leaves a folder without a connection.
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield folder, handle
        finally:
            os.close(handle)


def sweep() -> None:
    """Remove what runs of this user left that were killed with all of their processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it goes at this moment, or is not ours
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and _is_left(folder):
                shutil.rmtree(folder)
                log.info("Removed %s, which a run left that was killed.", folder)


def _is_left(folder: Path) -> bool:
    """Whether a run had begun in a folder, and no process of it is alive."""
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return (folder / "nats.json").exists()
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
