"""Keeps the memory of one chunk at hand for the next."""

from __future__ import annotations

import functools

__all__ = ["FOR_PUBLISHERS", "keep_freed_memory"]

FOR_PUBLISHERS = 4 * 1024 * 1024
"""The chunks of a window, each of which is put into a frame before it is written."""


@functools.cache
def keep_freed_memory(size: int) -> None:
    """Let the C library reuse the memory of a chunk for the next one, instead of giving it back in between.

    glibc returns the memory of large blocks to the system at once, and new memory comes page by page, at several times
    the cost of copying a chunk. It learns from what is freed: a block of this size, which is never touched and so costs
    nothing, makes it keep blocks up to this size. Other C libraries pay no attention.
    """
    bytes(size)
