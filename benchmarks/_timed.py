"""One side in a process of its own, with CPU time of both ends over exactly the time that it measures.

    python benchmarks/_timed.py SIDE URL COUNT SIZE SERVER_PID

A side takes the time twice, before and after what it measures; whatever it prepares is before the first time. So the
clock that it looks at also notes the CPU time of this process and of the server.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides
from _measure import cpu_of, memory_of

from penstock.errors import DisconnectedError


def main() -> None:
    """Run one side."""
    name, url, count, size, server = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    marks: list[tuple[float, float, float]] = []

    def clock() -> float:
        marks.append((time.perf_counter(), time.process_time(), cpu_of(server)))
        return marks[-1][0]

    sides.time = SimpleNamespace(perf_counter=clock)
    try:
        found = SIDES[name](url, count, size)
        if asyncio.iscoroutine(found):
            asyncio.run(found)
    except DisconnectedError:
        print(json.dumps({"rate": 0.0, "cpu": math.nan, "server_cpu": math.nan}))
        return
    begin, end = marks[0], marks[-1]
    seconds, cpu, server_cpu = (after - before for before, after in zip(begin, end, strict=True))
    print(json.dumps({"rate": count / seconds, "cpu": cpu, "server_cpu": server_cpu, "mib": memory_of()}))


def raw_atomic(url: str, count: int, size: int, ids: bool = False) -> float:
    """Atomic batches with frames that were made before: the sender that the sink is measured against."""
    import spark_write

    spark_write.SIZE, spark_write.time = size, sides.time  # type: ignore[attr-defined]  # the clock that notes more
    return float(spark_write.raw_atomic(url, count, ids=ids))


def raw_atomic_ids(url: str, count: int, size: int) -> float:
    """The same with an id for each row, as `publish` sends them unless it is told otherwise."""
    return raw_atomic(url, count, size, ids=True)


SIDES = {**sides.SIDES, "raw_atomic": raw_atomic, "raw_atomic_ids": raw_atomic_ids}

if __name__ == "__main__":
    main()
