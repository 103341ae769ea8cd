"""Parts of a history read ahead by threads: several at once, given out in their order.

The compiled decoders let go of Python's lock, and so does whoever reads a file: each thread keeps a core busy, and the
next part is there when the last one is used up. What is read and not yet taken is one part a thread and one more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_ahead"]

Kind = TypeVar("Kind")
Outcome = tuple[list[Any], Exception | None]


def read_ahead(
    parts: Iterable[Kind], reader: Callable[[], Callable[[Kind], Iterator[pa.RecordBatch]]], threads: int = 1
) -> Iterator[tuple[Kind, Iterator[pa.RecordBatch]]]:
    """Give each part with its batches; the error that ended a part comes behind them, and the next part after it.

    `reader` gives what reads a part: each thread asks for its own, so that it can use its memory again.
    """
    own = threading.local()

    def read(part: Kind) -> Outcome:
        found: list[pa.RecordBatch] = []
        try:
            if not hasattr(own, "read"):
                own.read = reader()
            found.extend(own.read(part))
        except Exception as error:  # it is told when its turn has come
            return found, error
        return found, None

    waiting: deque[tuple[Kind, Future[Outcome]]] = deque()
    pool = ThreadPoolExecutor(threads, "penstock-read")
    try:
        for part in parts:
            waiting.append((part, pool.submit(read, part)))
            if len(waiting) > threads:
                first, future = waiting.popleft()
                yield first, _given(*future.result())
        for last, future in waiting:
            yield last, _given(*future.result())
    finally:
        pool.shutdown(cancel_futures=True)


def _given(batches: list[pa.RecordBatch], error: Exception | None) -> Iterator[pa.RecordBatch]:
    batches.reverse()
    while batches:  # each is let go when it was given: its memory may be used again
        yield batches.pop()
    if error is not None:
        raise error
