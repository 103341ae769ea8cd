"""Writes numbered batches exactly once, as Spark's driver and tasks do, and remembers in a folder which are done.

`plant`: "unfenced" takes the conditions out of what tasks store, so that a driver that slept goes on writing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

from penstock.errors import PenstockError
from penstock.spark.exactly_once import Task
from tests.faults.history import Ledger
from tests.live.sinking import Writer, cut
from tests.spark.unfenced import unfenced


class SlowWriter(Writer):
    """Gives its tasks their rows a few at a time, so that faults hit the middle of a batch."""

    pause = 0.0

    def messages(self, rows: Sequence[Any], step: int) -> Iterator[Any]:
        for some in super().messages(rows, step):
            time.sleep(self.pause)
            yield some


def rows_of(batch: int) -> list[bytes]:
    """Give the rows of a batch, the same each time."""
    return [b"row-%d-%d" % (batch, number) for number in range(Random(batch).choice([3, 40, 120]))]


def done_so_far(folder: Path) -> int:
    """Give the next batch to write."""
    return max((int(file.name) for file in folder.iterdir()), default=-1) + 1


def run(given: dict[str, Any], ledger: Ledger, over: threading.Event) -> None:
    """Write batch after batch, beginning behind the last one that the folder knows."""
    folder, life = Path(given["checkpoint"]), given["life"]
    chance = Random(given["seed"] * 1000 + life)
    writer = SlowWriter(given["url"], given["stream"], rows=chance.choice([5, 50]), lanes=chance.choice([2, 3]))
    writer.start, writer.pause = f"life-{life}", given.get("pause", 0.0)
    writer.asked(patience=30.0)
    fence = nullcontext
    if given.get("plant") == "unfenced":
        fence, writer.pause = unfenced, 0.05
        writer.asked(on_changed_rows="keep")  # it would notice by itself that there are rows which nobody claims

    def around(task: Task) -> None:
        write = task.write

        def writing(rows: Any) -> Any:
            with fence():
                return write(rows)

        task.write = writing  # type: ignore[method-assign]

    batch = done_so_far(folder)
    while not over.wait(0.05):
        op = f"batch-{batch}@{life}"
        ledger.note("invoke", op, batch=batch)
        parts = cut(rows_of(batch), chance.randint(1, 3), chance)
        try:
            writer.whole_batch(parts, batch=batch, run=f"{writer.start}-{batch}", around=around)
        except PenstockError as error:
            ledger.note("unknown", op, why=f"{type(error).__name__}: {error}")
            raise
        ledger.note("ok", op)
        os.close(os.open(folder / str(batch), os.O_CREAT | os.O_WRONLY, 0o600))
        batch += 1
