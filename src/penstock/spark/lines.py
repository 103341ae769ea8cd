"""Connections of a Spark worker, kept from task to task: a worker process serves many tasks, one at a time."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.options import ConnectionOptions
from penstock.spark.line import Line
from penstock.spark.steady import until_reached
from penstock.wire.bulk.link import Deadline

__all__ = ["borrow", "close_idle"]

_idle: dict[tuple[int, ConnectionOptions], Line] = {}
_lock = threading.Lock()
KEPT = 4  # connections of a process that wait for the next task


@contextmanager
def borrow(options: ConnectionOptions, patience: float = 0.0) -> Iterator[Line]:
    """Give a connection for one task; it is kept for the next one, unless the task failed.

    `patience`: for how many seconds to try where nobody answers. A connection that was kept may have died meanwhile,
    which shows only when it is used.
    """
    deadline = Deadline(patience)
    key = (os.getpid(), options)  # a forked process must not speak on its parent's socket
    with _lock:
        line = _idle.pop(key, None)
    if line is None:
        line = until_reached(lambda: Line(options), deadline)
    try:
        until_reached(line.restore, deadline)
        yield line
    except BaseException:
        line.close()
        raise
    _keep(key, line)


def _keep(key: tuple[int, ConnectionOptions], line: Line) -> None:
    """Keep a connection for the next task; the one that waited longest makes room."""
    with _lock:
        gone = [_idle.pop(key)] if key in _idle else []
        while len(_idle) >= KEPT:
            gone.append(_idle.pop(next(iter(_idle))))
        _idle[key] = line
    for other in gone:
        other.close()


@atexit.register
def close_idle() -> None:
    """Close the connections of this process that wait for a task."""
    with _lock:
        mine = [_idle.pop(key) for key in list(_idle) if key[0] == os.getpid()]
    for line in mine:
        line.close()
