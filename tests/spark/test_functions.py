"""Payloads: parsed where they can be, set aside where not, and the query goes on."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # as every Spark program writes it

from penstock.errors import InputError
from penstock.spark.functions import dead_letters, decompress, header, parse_json, parse_protobuf, split


@pytest.fixture
def rows(read, streams, unique):
    """Read a stream of some payloads."""

    def make(*payloads, headers=None):
        name = streams.make(unique("payloads"))
        streams.fill(name, [("x", payload, headers) for payload in payloads])
        return read(name).orderBy("sequence")

    return make


def test_json(rows):
    """Good JSON becomes a value; broken, foreign and binary payloads become an error each."""
    frame = rows(b'{"id": 7, "price": 1.5}', b'{"id": "x"', b"\xff\xfe", b"", b'{"id": 8}', b"[1]")
    parsed = frame.withColumn("order", parse_json("data", "id long, price double"))
    found = [(row.order.value, row.order.error) for row in parsed.collect()]
    assert found[0] == ((7, 1.5), None)
    assert found[4] == ((8, None), None)
    assert [error is not None for _, error in found] == [False, True, True, True, False, True]
    assert found[2][1] == "the payload is not UTF-8"
    good, bad = split(parsed, "order")
    assert [row.order.id for row in good.collect()] == [7, 8]
    letters = dead_letters(bad, "order", subject="dead.orders").collect()
    assert len(letters) == 4
    assert letters[0].subject == "dead.orders"
    assert letters[0].headers["Penstock-Sequence"] == ["2"]
    assert letters[0].headers["Penstock-Error"] == ["the payload is not JSON of this schema"]


def test_compressed(rows):
    """Gzip and zstd are decompressed, others left alone; broken ones and bombs become null."""
    zstd = pa.Codec("zstd").compress(b"from zstd", asbytes=True)
    bomb = gzip.compress(bytes(1_000_000))
    frame = rows(gzip.compress(b"from gzip"), zstd, b"plain", gzip.compress(b"cut")[:-9], bomb)
    found = [row.found for row in frame.select(decompress("data", limit=100_000).alias("found")).collect()]
    assert [None if item is None else bytes(item) for item in found] == [
        b"from gzip",
        b"from zstd",
        b"plain",
        None,
        None,
    ]
    with pytest.raises(InputError, match="There is no codec"):
        decompress("data", "lzma")


def test_protobuf(rows):
    """Protobuf payloads are parsed by the generated class."""
    from google.protobuf.timestamp_pb2 import Timestamp

    frame = rows(Timestamp(seconds=5).SerializeToString(), b"\xff\xff")
    parsed = frame.withColumn("time", parse_protobuf("data", "google.protobuf.duration_pb2.Duration", "seconds string"))
    found = [row.time for row in parsed.collect()]
    assert found[0].error is None
    assert found[1].error == "the payload is no Duration"
    with pytest.raises(InputError, match="names no class"):
        parse_protobuf("data", "Order", "id long")


def test_headers_by_name(rows):
    """A header is read by its name; a missing one is null."""
    frame = rows(b"", headers={"Kind": "order"})
    found = frame.select(header("Kind").alias("kind"), header("Other").alias("other")).first()
    assert (found.kind, found.other) == ("order", None)
    kept = dead_letters(frame.withColumn("p", F.struct(F.lit("bad").alias("error"))), "p", "dead.x").first().headers
    assert kept["Kind"] == ["order"]
    assert kept["Penstock-Error"] == ["bad"]
