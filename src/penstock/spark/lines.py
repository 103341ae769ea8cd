"""Connections of a Spark worker, kept from task to task: a worker process serves many tasks, one at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.options import ConnectionOptions
from penstock.spark.line import Line
from penstock.spark.steady import until_reached
from penstock.wire.bulk.link import Deadline

__all__ = ["borrow"]

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
    with _lock:
        if key not in _idle and len(_idle) < KEPT:
            _idle[key] = line
            return
    line.close()
