"""Few rows: a task hands them to the driver, which stores them for all such tasks.

A task that stores rows itself pays for a place in the protocol, however few they are. A task that has only a few gives
them to the driver with its report instead. If no task stored any, the driver stores all rows in one atomic batch, with
the head that says that the micro-batch is done; or, if they are too many for that, as one task in place of the others.
If some did, it stores the rows of each of the others as that task would have: only its lanes shut out other attempts.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from penstock.spark.markers import DIGEST_SIZE
from penstock.spark.messages import Messages, SinkStream, pack, unpack
from penstock.spark.sink_options import SinkOptions

__all__ = ["Handed", "fits_whole", "hand_over", "joined"]

MOST_ROWS = 250  # of one task
MOST_BYTES = 128 * 1024  # of one task
MANY_TASKS = 128  # from here on a task hands over a sixteenth of that
MOST_TASKS = 16 * MANY_TASKS  # and from here on none does: the driver holds 31 MiB at the most
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
    most_bytes = MOST_BYTES if partition < MANY_TASKS else MOST_BYTES // 16
    held: list[Messages] = []
    count = size = 0
    for messages in later:
        held.append(messages)
        count += len(messages)
        size += messages.volume
        if count > min(MOST_ROWS, options.atomic_rows) or size > most_bytes:
            return None, chain(held, later)
    if not count:
        return None, iter(())
    content = io.BytesIO()
    for messages in held:
        pack(content, messages)
    return Handed(partition, task, content.getvalue()), iter(())


def joined(parts: Sequence[Handed]) -> Messages:
    """Give the rows of many tasks in one piece."""
    return Messages.joined([messages for handed in parts for messages in handed.messages()])


def fits_whole(messages: Messages, options: SinkOptions, target: SinkStream) -> bool:
    """Tell whether rows, with their markers, can be stored as one atomic batch."""
    return (
        len(messages) + MARKERS <= options.atomic_rows + 1
        and len(messages) * DIGEST_SIZE + 512 <= target.limit
        and messages.volume <= options.atomic_bytes
    )
