"""Chunked messages in queries: whole ones come out once, others are reported."""

from __future__ import annotations

import hashlib
import os
import time

import pytest

from penstock.chunks.wire import Splitter, encode
from penstock.errors import InputError
from penstock.spark import assemble


def chunks(message_id: str, data: bytes, size: int = 1000, headers: dict[str, str] | None = None):
    """Cut a payload into messages for `Streams.fill`."""
    splitter = Splitter(message_id, size, hashlib.sha256())
    found = [*splitter.feed(data), splitter.finish()]
    return [("c", bytes(body), {**(headers or {}), **encode(chunk)}) for chunk, body in found]


def test_in_a_batch(read, streams, unique):
    """Chunks of several messages, mixed and out of order, become rows; incomplete and broken ones are reported; plain
    messages pass."""
    name = streams.make(unique("chunks"))
    large, small = os.urandom(20_500), b"small"
    one, two = chunks("one", large, headers={"Kind": "scan"}), chunks("two", small)
    three = chunks("three", os.urandom(5_000))
    broken = [*chunks("bad", b"x" * 3000)[:2], *chunks("bad", b"y" * 3000)]
    mixed = [*reversed(one), *two, *three[1:], *broken, ("plain", b"as it is", {"K": "v"}), ("bare", b"", None)]
    streams.fill(name, mixed)
    frame = assemble(read(name, minPartitions="4"))
    rows = {row.message_id or row.subject.rpartition(".")[2]: row for row in frame.collect()}
    assert set(rows) == {"one", "two", "three", "bad", "plain", "bare"}
    assert bytes(rows["one"].data) == large
    assert (rows["one"].chunks, rows["one"].headers, rows["one"].error) == (21, {"Kind": ["scan"]}, None)
    assert rows["one"].sequence == 21
    assert bytes(rows["two"].data) == small
    assert rows["three"].data is None
    assert rows["three"].error == "missing: 4000 bytes of 5000 bytes came; missing are [0, 1000)"
    assert rows["bad"].error.startswith("conflict")
    assert (bytes(rows["plain"].data), rows["plain"].headers) == (b"as it is", {"K": ["v"]})
    assert bytes(rows["bare"].data) == b""


def test_across_micro_batches(spark, server, streams, unique, tmp_path):
    """A message whose chunks come in different micro-batches, before and after a restart, is put together once; one
    whose chunks stop coming is reported by the first batch after the timeout."""
    name = streams.make(unique("slow"))
    data = os.urandom(9_700)
    pieces, lost = chunks("whole", data), chunks("lost", b"z" * 3000)

    def run(**trigger):
        reader = spark.readStream.format("nats").option("url", server.url).option("stream", name)
        frame = assemble(reader.option("maxMessagesPerTrigger", "4").load(), timeout="3s")
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start()

    def rows():
        if not (tmp_path / "rows" / "_spark_metadata" / "0").exists():
            return []
        kinds = "message_id string, data binary, error string, chunks int"
        return spark.read.schema(kinds).parquet(str(tmp_path / "rows")).collect()

    streams.fill(name, [*pieces[5:], *lost[:1]])
    assert run(availableNow=True).awaitTermination(90)
    assert rows() == []
    streams.fill(name, [*pieces[:5], pieces[2]])
    assert run(availableNow=True).awaitTermination(90)
    time.sleep(3.0)  # the timeout, which the clock of the batches measures
    streams.fill(name, [("plain", b"later")])
    assert run(availableNow=True).awaitTermination(90)
    found = {row.message_id: row for row in rows()}
    assert len(rows()) == len(found) == 3
    assert bytes(found["whole"].data) == data
    assert (found["whole"].error, found["whole"].chunks) == (None, 10)
    assert found["lost"].data is None
    assert found["lost"].error == "timeout: 1000 bytes of an unknown total came; missing are [1000, …)"


def test_columns_that_are_missing(read, streams, unique):
    """A frame that lacks what the source gives is refused."""
    name = streams.make(unique("lacking"))
    with pytest.raises(InputError, match="no column headers"):
        assemble(read(name, includeHeaders="false"))
    with pytest.raises(InputError, match="not a duration"):
        assemble(read(name), timeout="soon")
