"""Subjects of rows are checked, again and again: for counting instructions and CPU time, not for the clock.

    python benchmarks/_check.py                                                    CPU time of a row, both checks
    valgrind --tool=callgrind python benchmarks/_check.py source|sink same|few|all ROUNDS

`source` is what `publish` checks, `sink` what a task of Spark's sink checks before it. All rows have the same subject,
or a hundred take turns, or each has its own. Run it for 2 rounds and for 12: the difference is of ten times `ROWS`.
"""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from penstock.spark.messages import Shape, SinkStream
from penstock.spark.sink_options import SinkOptions
from penstock.wire.bulk.rows import Source

ROWS = 10_000
DISTINCT = {"same": 1, "few": 100, "all": 1 << 40}


def rows(kind: str, start: int) -> pa.RecordBatch:
    """Make rows, each time with other subjects if each has its own."""
    named = [f"bench.{number % DISTINCT[kind]:012}" for number in range(start, start + ROWS)]
    return pa.record_batch({"subject": pa.array(named), "data": pa.array([b"x" * 128] * ROWS, pa.binary())})


def check(what: str, kind: str, rounds: int) -> float:
    """Check so many batches; give the CPU time of a row in nanoseconds."""
    made = [rows(kind, number * ROWS) for number in range(rounds)]
    shape = Shape(SinkOptions(stream="BENCH"), SinkStream("BENCH", ("bench.>",), 1 << 20))
    source = Source(made, subject=None, subjects=["bench.>"], max_payload=1 << 20)
    before = time.process_time()
    if what == "source":
        assert sum(part.count for _, part in source) == rounds * ROWS
    else:
        assert all(shape.messages(batch)[1] is None for batch in made)
    return (time.process_time() - before) / rounds / ROWS * 1e9


def main() -> None:
    """Check as told, or both ways with all kinds of subjects."""
    if len(sys.argv) > 1:
        check(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        return
    for what in ("source", "sink"):
        for kind in DISTINCT:
            best = min(check(what, kind, 20) for _ in range(3))
            print(f"{what:7} {kind:5} {best:8.1f} ns a row")


if __name__ == "__main__":
    main()
