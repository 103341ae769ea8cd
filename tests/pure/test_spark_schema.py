"""Rows for Spark: the columns of a batch, to the letter of what Spark checks."""

from __future__ import annotations

import pyarrow as pa

from penstock.spark.schema import arrow_schema, conform, source_schema, without_batch_headers
from penstock.spark.source_options import SourceOptions
from penstock.wire.arrow import SCHEMA

HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))


def test_batches_of_the_wire_fit_spark():
    """What the wire reads becomes exactly the schema that Spark compares with, also for some of the columns."""
    batch = pa.RecordBatch.from_arrays(
        [["a.b"], [b"x"], [[("K", ["v"])]], [7], [1_000_000], ["S"]],
        schema=SCHEMA,
    )
    schema = source_schema(SourceOptions(stream="S"))
    made = conform(batch, arrow_schema(schema))
    assert arrow_schema(schema).equals(made.schema)
    assert made.to_pylist()[0]["headers"] == [("K", ["v"])]
    bare = source_schema(SourceOptions(stream="S", include_headers=False))
    assert conform(batch, arrow_schema(bare)).schema.names == ["subject", "data", "sequence", "time", "stream"]


def test_batch_headers_are_left_out():
    """Headers of atomic batches are the transport's; others stay where they are, in sliced arrays, too."""
    rows = [
        [("Nats-Batch-Id", ["a"]), ("Kind", ["x", "y"]), ("Nats-Batch-Sequence", ["1"])],
        [],
        [("Kind", ["z"])],
        [("Nats-Batch-Commit", ["1"])],
    ]
    expected = [[("Kind", ["x", "y"])], [], [("Kind", ["z"])], []]
    column = pa.array(rows, HEADERS)
    assert without_batch_headers(column).to_pylist() == expected
    for start in range(4):
        assert without_batch_headers(column.slice(start)).to_pylist() == expected[start:]
    plain = pa.array([[("Kind", ["x"])]], HEADERS)
    assert without_batch_headers(plain) is plain
    assert without_batch_headers(pa.array([[], []], HEADERS)).to_pylist() == [[], []]
