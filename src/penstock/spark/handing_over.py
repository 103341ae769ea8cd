"""Few rows: a task hands them to the driver, which stores the whole micro-batch at once.

A task that stores rows itself pays for a place in the protocol, however few they are. A task that has only a few gives
them to the driver with its report instead; if no other task of the micro-batch has begun it, the driver stores all rows
in one atomic batch, with the head that says that it is done. Otherwise it stores them as the task would have.

Attempts at one task need not do the same: what the driver stores for a task is fenced like what the task stores.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from penstock.spark.markers import DIGEST_SIZE
from penstock.spark.messages import OWN_HEADERS, Messages, SinkStream, pack, unpack
from penstock.spark.sink_options import SinkOptions

__all__ = ["Handed", "fits_whole", "hand_over"]

MOST_ROWS = 250  # of one task
MOST_BYTES = 128 * 1024  # of one task
MOST_TASKS = 128  # that hand over; the driver holds 16 MiB at the most
MARKERS = 3  # that are stored with the rows of a whole micro-batch; `atomicRows` counts on one


@dataclass(frozen=True)
class Handed:
    """The rows of a task, in the hands of the driver."""

    partition: int
    task: int
    content: bytes = field(repr=False)

    def messages(self) -> Iterator[Messages]:
        """Give the rows."""
        return unpack(io.BytesIO(self.content), len(self.content), Messages)


def hand_over(
    rows: Iterable[Messages], options: SinkOptions, partition: int, task: int
) -> tuple[Handed | None, Iterator[Messages]]:
    """Give the rows for the driver if they are few; otherwise None, and all rows as they were."""
    later = (messages for messages in rows if len(messages))
    if partition >= MOST_TASKS:
        return None, later
    held: list[Messages] = []
    count = size = 0
    for messages in later:
        held.append(messages)
        count += len(messages)
        size += volume(messages)
        if count > min(MOST_ROWS, options.atomic_rows) or size > MOST_BYTES:
            return None, chain(held, later)
    if not count:
        return None, iter(())
    content = io.BytesIO()
    for messages in held:
        pack(content, messages)
    return Handed(partition, task, content.getvalue()), iter(())


def fits_whole(parts: Sequence[Messages], options: SinkOptions, target: SinkStream) -> bool:
    """Tell whether rows, with their markers, can be stored as one atomic batch."""
    count = sum(map(len, parts))
    return (
        count + MARKERS <= options.atomic_rows + 1
        and count * DIGEST_SIZE + 512 <= target.limit
        and sum(map(volume, parts)) <= options.atomic_bytes
    )


def volume(messages: Messages) -> int:
    """Give about how many bytes rows have as messages."""
    return int(messages.to_batch().nbytes) + len(messages) * OWN_HEADERS
