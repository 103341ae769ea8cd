"""Keeps freed memory at hand for the next chunk."""

from __future__ import annotations

import functools

__all__ = ["keep_freed_memory"]

_KEPT = 2 * 1024 * 1024


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library reuse the memory of a chunk for the next one, instead of giving it back in between.

    glibc returns the freed memory of a chunk to the system at once, and new memory comes page by page, at several times
    the cost of copying. It learns from what is freed: a block of this size, which is never touched and so costs nothing,
    makes it keep up to twice as much. Other C libraries pay no attention. Once for each process.
    """
    bytes(_KEPT)
