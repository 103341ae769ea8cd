"""Connections of a Spark worker, kept from task to task: a worker process serves many tasks, one at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.options import ConnectionOptions
from penstock.spark.line import Line

__all__ = ["borrow"]

_idle: dict[tuple[int, ConnectionOptions], Line] = {}
_lock = threading.Lock()
KEPT = 4  # connections of a process that wait for the next task


@contextmanager
def borrow(options: ConnectionOptions) -> Iterator[Line]:
    """Give a connection for one task; it is kept for the next one, unless the task failed."""
    key = (os.getpid(), options)  # a forked process must not speak on its parent's socket
    with _lock:
        line = _idle.pop(key, None)
    if line is None:
        line = Line(options)
    try:
        line.restore()
        yield line
    except BaseException:
        line.close()
        raise
    with _lock:
        if key not in _idle and len(_idle) < KEPT:
            _idle[key] = line
            return
    line.close()
