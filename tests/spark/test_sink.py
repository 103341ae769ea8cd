"""Writing DataFrames into streams, on a real Spark: columns, guarantees, refusals, replays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import MARKER_ROOT, is_marker


@pytest.fixture
def bulk(server) -> Iterator[TaskConnection]:
    made = TaskConnection(ConnectionOptions(server.url))
    yield made
    made.close()


@pytest.fixture
def stored(bulk) -> Callable[..., list[dict[str, Any]]]:
    """Give every message of a stream, or only those that are no markers."""

    def read(stream: str, *, markers: bool = False) -> list[dict[str, Any]]:
        first = bulk.api(f"STREAM.INFO.{stream}")["state"]["first_seq"]
        rows = [row for batch in bulk.read(stream, max(first, 1)) for row in batch.to_pylist()]
        return [row for row in rows if is_marker(row["subject"]) == markers]

    return read


@pytest.fixture
def save(server) -> Callable[..., None]:
    """Write a DataFrame with some options."""

    def write(frame: Any, stream: str, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format("nats").option("url", server.url).option("stream", stream).mode(mode)
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.save()

    return write


def numbers(spark: Any, count: int, subject: str, partitions: int = 2) -> Any:
    text = F.col("id").cast("string")
    return spark.range(count, numPartitions=partitions).select(F.lit(subject).alias("subject"), text.alias("data"))


def test_a_frame_is_written_once(spark, streams, stored, save, unique):
    """Every row is a message, more than a batch of the server holds; what stays beside them is the stream's origin."""
    name = streams.make(unique("OUT"))
    save(numbers(spark, 2500, f"{name}.x"), name, prepare=True)
    assert Counter(row["data"] for row in stored(name)) == Counter(b"%d" % number for number in range(2500))
    assert [row["subject"] for row in stored(name, markers=True)] == [f"{MARKER_ROOT}.{name}.origin"]


def test_a_write_with_a_name_is_done_once(spark, streams, stored, save, unique):
    """The same write under the same writeId adds nothing; without one it is another write."""
    name = streams.make(unique("OUT"))
    frame = numbers(spark, 30, f"{name}.x")
    for _ in range(2):
        save(frame, name, prepare=True, writeId="monday")
    assert len(stored(name)) == 30
    save(frame, name)
    assert len(stored(name)) == 60


def test_a_name_of_a_write_is_not_used_for_other_rows(spark, streams, stored, save, unique):
    """Other rows under the writeId of a write that is done are refused, with when that was; nothing is dropped."""
    name = streams.make(unique("OUT"))
    save(numbers(spark, 30, f"{name}.x"), name, prepare=True, writeId="monday")
    for other in (31, 29):
        with pytest.raises(Exception, match=rf"The write monday .* was done .* 30 rows.*{other} rows"):
            save(numbers(spark, other, f"{name}.x"), name, writeId="monday")
    with pytest.raises(Exception, match="with other rows"):
        save(numbers(spark, 30, f"{name}.y"), name, writeId="monday")
    assert len(stored(name)) == 30


def stumbling(url: str, stream: str) -> Callable[[Any], Any]:
    """Give a step that hands rows on, filled up so that no buffer hides them, and fails once some are stored."""

    def step(batches: Any) -> Any:
        import time

        import pyarrow.compute as pc

        for number, batch in enumerate(batches):
            padded = pc.binary_join_element_wise(batch.column("data"), b" " * 3000, b"")
            yield batch.set_column(batch.schema.get_field_index("data"), "data", padded)
            if number == 4:
                bulk = TaskConnection(ConnectionOptions(url))
                deadline = time.monotonic() + 30
                while bulk.api(f"STREAM.INFO.{stream}", {"subjects_filter": f"{stream}.>"})["state"]["messages"] < 60:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                bulk.close()
                raise RuntimeError("this attempt fails on purpose")

    return step


@pytest.fixture
def small_batches(spark) -> Iterator[None]:
    """Arrow batches of a hundred rows, so that a task passes many."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def padded(frame: Any) -> Any:
    """Fill rows up in the way that `stumbling` does."""
    return frame.withColumn("data", F.concat("data", F.lit(" " * 3000).cast("binary")))


def ids(rows: list[dict[str, Any]]) -> Counter[int]:
    return Counter(int(row["data"]) for row in rows)


def test_a_write_that_failed_halfway_is_finished(spark, server, streams, stored, save, unique, small_batches):
    """A write fails with some of its rows stored; done again, in other partitions, it stores the rest."""
    name = streams.make(unique("OUT"))
    frame = numbers(spark, 1000, f"{name}.x", partitions=1).withColumn("data", F.col("data").cast("binary"))
    torn = frame.mapInArrow(stumbling(server.url, name), "subject string, data binary")
    with pytest.raises(Exception, match="on purpose"):
        save(torn, name, prepare=True, atomicRows=30, writeId="again")
    assert 0 < len(stored(name)) < 1000
    save(padded(frame.repartition(3)), name, writeId="again")
    assert ids(stored(name)) == Counter(range(1000))


def test_everything_of_a_row_arrives(spark, streams, stored, save, unique):
    """Subject from a template, headers, message id and time to live are in the stored message."""
    name = streams.make(unique("OUT"), allow_msg_ttl=True)
    frame = spark.createDataFrame(
        [("eu", b"one", {"kind": ["a", "b"]}, 7, "2m"), ("us", b"two", None, 8, None)],
        "region string, data binary, headers map<string,array<string>>, key int, life string",
    )
    options = {"subject": f"{name}.{{region}}", "idColumn": "key", "ttlColumn": "life", "ttl": "never"}
    save(frame, name, prepare=True, **options)
    one, two = sorted(stored(name), key=lambda row: row["data"])
    assert (one["subject"], two["subject"]) == (f"{name}.eu", f"{name}.us")
    headers = dict(one["headers"])
    assert headers["kind"] == ["a", "b"]
    assert (headers["Nats-Msg-Id"], headers["Nats-TTL"]) == (["7"], ["2m0s"])
    assert dict(two["headers"])["Nats-TTL"] == ["never"]
    save(frame, name, **options)  # the ids are known: nothing is stored again, and the batch is not lost over it
    assert len(stored(name)) == 2


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_bad_rows_stop_the_write_or_go_to_the_dead_letters(spark, streams, stored, save, unique, guarantee):
    """A row that cannot be written is named, nothing of its batch stored; with a subject for it, it goes there."""
    name, dead = streams.make(unique("OUT")), streams.make(unique("DEAD"))
    frame = spark.createDataFrame(
        [(f"{name}.x", "good"), ("elsewhere", "bad"), (f"{name}.x", None)], "subject string, data string"
    ).coalesce(1)
    with pytest.raises(Exception, match=r"Row 1 of this task cannot be written: subject is 'elsewhere'"):
        save(frame, name, prepare=True, guarantee=guarantee)
    assert not stored(name)
    save(frame, name, guarantee=guarantee, deadLetterSubject=f"{name}.dead")
    assert Counter(row["subject"] for row in stored(name)) == {f"{name}.x": 1, f"{name}.dead": 2}
    save(frame, name, guarantee=guarantee, deadLetterSubject=f"{dead}.x")
    letters = {row["data"]: dict(row["headers"]) for row in stored(dead)}
    assert letters[b"bad"]["Penstock-Subject"] == ["elsewhere"]
    assert "is null" in letters[b""]["Penstock-Error"][0]


def test_at_least_once_needs_nothing_of_the_stream(spark, streams, stored, save, unique):
    """Any stream takes rows at least once; one with fast ingest takes them that way."""
    for config in ({}, {"allow_batched": True}):
        name = streams.make(unique("OUT"), **config)
        save(numbers(spark, 300, f"{name}.x"), name, guarantee="at-least-once")
        assert Counter(row["data"] for row in stored(name)) == Counter(b"%d" % number for number in range(300))
        assert not stored(name, markers=True)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({}, {}, "penstock stream edit"),
        ({"retention": "interest"}, {}, "drops the sink's markers"),
        ({"retention": "workqueue"}, {}, "work queue"),
        ({"no_ack": True}, {}, "sends no acks"),
        ({"deny_purge": True}, {}, "forbids to purge"),
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, {}, "at a limit"),
        ({"subject_transform": {"src": ">", "dest": "x.>"}}, {}, "renames the subjects"),
        ({"max_msg_size": 500}, {}, "takes no messages of 4096 bytes"),
        ({"sealed": True}, {}, "sealed"),
        ({}, {"deadLetterSubject": "nobody.listens"}, "No stream takes the dead letters"),
    ],
)
def test_streams_that_cannot_be_written_to_exactly_once(spark, streams, bulk, save, unique, config, options, message):
    """What a stream lacks is said before anything is written, with what to do; `prepare` does what can be done."""
    name = unique("OUT")
    sealed = config.pop("sealed", False)
    streams.make(name, **config)
    if sealed:
        bulk.api(f"STREAM.UPDATE.{name}", {**bulk.api(f"STREAM.INFO.{name}")["config"], "sealed": True})
        config["sealed"] = True
    prepare = {"prepare": True} if config or options else {}
    with pytest.raises(Exception, match=message):
        save(numbers(spark, 3, f"{name}.x"), name, **prepare, **options)
    assert bulk.api(f"STREAM.INFO.{name}")["state"]["messages"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "NOWHERE"}, "There is no stream NOWHERE"),
        ({"mode": "overwrite"}, "cannot be overwritten"),
        ({"mode": "ignore"}, "Please use either the .Append"),
        ({"mode": "error"}, "Please use either the .Append"),
        ({"garantee": "exactly-once"}, "Did you mean guarantee"),
        ({"idColumn": "nothing"}, "idColumn names 'nothing'"),
    ],
)
def test_bad_writes_are_refused(spark, streams, save, unique, options, message):
    """A write that cannot work says so in a sentence, before any task starts."""
    name = streams.make(unique("OUT"))
    given = {"stream": name, **options}
    with pytest.raises(Exception, match=message):
        save(numbers(spark, 3, f"{name}.x"), given.pop("stream"), **given)


class Flow:
    """A streaming query from one stream into another."""

    def __init__(self, spark: Any, url: str, folder: Path, source: str, sink: str) -> None:
        self.spark, self.url, self.folder, self.source, self.sink = spark, url, folder, source, sink

    def run(
        self, step: Callable[[Any], Any] | None = None, mode: str = "append", size: int = 10_000, **options: Any
    ) -> Any:
        """Run what is available through the query, in micro-batches of `size`."""
        reader = self.spark.readStream.format("nats").option("url", self.url).option("stream", self.source)
        reader = reader.option("maxMessagesPerTrigger", size)
        rows = reader.load().select(F.lit(f"{self.sink}.x").alias("subject"), "data")
        writer = (step(rows) if step else rows).writeStream.format("nats").option("url", self.url)
        writer = writer.option("stream", self.sink).option("checkpointLocation", str(self.folder)).outputMode(mode)
        for name, value in options.items():
            writer = writer.option(name, value)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return query

    def forget_commit(self) -> None:
        """Take back Spark's word that the last batch is done, as a crash before it was written down would."""
        number = max(int(file.name) for file in (self.folder / "commits").glob("[0-9]*"))
        for file in (self.folder / "commits" / str(number), self.folder / "commits" / f".{number}.crc"):
            file.unlink(missing_ok=True)

    def restore(self, batches: int) -> None:
        """Take the checkpoint back to what it was after so many batches, as a backup of it would be."""
        for kind in ("offsets", "commits"):
            for file in (self.folder / kind).iterdir():
                if int(file.name.strip(".").partition(".")[0]) >= batches:
                    file.unlink()


@pytest.fixture
def flow(spark, server, streams, unique, tmp_path) -> Flow:
    source, sink = streams.make(unique("IN")), streams.make(unique("OUT"))
    return Flow(spark, server.url, tmp_path / "checkpoint", source, sink)


def test_a_stream_flows_into_a_stream(flow, streams, stored, read):
    """Each row of each micro-batch is a message; the source shows no marker, and headers of the server stay behind."""
    streams.fill(flow.source, 600)
    flow.run(prepare=True, size=300)
    assert ids(stored(flow.sink)) == Counter(range(600))
    heads = [row["data"] for row in stored(flow.sink, markers=True) if row["subject"].endswith(".head")]
    assert len({json.loads(head)["start"] for head in heads} - {""}) == 1  # that of the query, as Spark names it
    assert all(json.loads(head)["starts"] == [] for head in heads)  # both batches are of one start
    assert read(flow.sink).filter(F.col("subject").startswith(MARKER_ROOT)).count() == 0


def test_a_batch_that_spark_did_not_note_adds_nothing(flow, streams, stored):
    """The driver died between our commit and Spark's: the batch is replayed and nothing is stored."""
    streams.fill(flow.source, 200)
    flow.run(prepare=True)
    flow.forget_commit()
    flow.run()
    assert Counter(row["data"] for row in stored(flow.sink)) == Counter(b"%d" % number for number in range(200))


def test_a_batch_that_failed_halfway_is_finished(flow, streams, stored, small_batches):
    """A query fails with half a batch stored and is started again with other partitions: each row is there once."""
    streams.fill(flow.source, 2000)

    def torn(rows: Any) -> Any:
        return rows.coalesce(1).mapInArrow(stumbling(flow.url, flow.sink), "subject string, data binary")

    with pytest.raises(Exception, match="on purpose"):
        flow.run(torn, prepare=True, atomicRows=30)
    assert 0 < len(stored(flow.sink)) < 2000
    flow.run(lambda rows: padded(rows.repartition(5)))
    assert ids(stored(flow.sink)) == Counter(range(2000))


def test_a_query_that_is_not_deterministic_adds_one_copy(flow, streams, stored, small_batches):
    """Rows of a batch that a replay does not have stop the query; later starts are stopped before they store a row,
    unless the query is told to keep them all.
    """
    streams.fill(flow.source, 600)

    def torn(rows: Any) -> Any:
        return rows.coalesce(1).mapInArrow(stumbling(flow.url, flow.sink), "subject string, data binary")

    def chance(rows: Any) -> Any:
        return rows.withColumn("data", F.concat("data", F.expr("uuid()").cast("binary")))

    with pytest.raises(Exception, match="on purpose"):
        flow.run(torn, prepare=True, atomicRows=30)
    first = len(stored(flow.sink))
    with pytest.raises(Exception, match="are not in it any more"):
        flow.run(chance)
    # What the first attempt had on its way may have been stored after it failed, before the next start fenced it off.
    assert first <= (held := len(stored(flow.sink)) - 600) < 600
    with pytest.raises(Exception, match="Nothing was written by this start"):
        flow.run(chance)
    flow.run(chance, onChangedRows="keep")
    assert len(stored(flow.sink)) == held + 600


def test_a_checkpoint_one_batch_old_heals(flow, streams, stored):
    """Spark lost its word of the last batch and plans it anew with more rows: those that are missing are stored."""
    streams.fill(flow.source, 100)
    flow.run(prepare=True)
    streams.fill(flow.source, [("x", b"%d" % number) for number in range(100, 150)])
    flow.run()
    flow.restore(1)
    streams.fill(flow.source, [("x", b"%d" % number) for number in range(150, 175)])
    flow.run()
    assert ids(stored(flow.sink)) == Counter(range(175))


def test_a_restored_checkpoint_is_found_out(flow, streams, stored):
    """A checkpoint from before the last batches would plan them anew: the query stops and says so."""
    streams.fill(flow.source, 150)
    flow.run(prepare=True, size=50)
    flow.restore(1)
    with pytest.raises(Exception, match="holds batch 2 of this query, and this run wants to write batch 1"):
        flow.run()
    assert len(stored(flow.sink)) == 150


def test_complete_mode_is_refused(flow, streams):
    """A query that would write everything anew each time is refused, with the way that works."""
    streams.fill(flow.source, 3)
    with pytest.raises(Exception, match="output mode complete"):
        flow.run(lambda rows: rows.groupBy("subject", "data").count().drop("count"), mode="complete")


def test_micro_batches_of_foreach_batch_are_written_once(spark, server, streams, stored, unique, tmp_path):
    """Spark's Python sinks know no update mode; foreachBatch does, and its batches are known by their numbers."""
    source, sink = streams.make(unique("IN")), streams.make(unique("OUT"))

    def write(frame: Any, batch: int) -> None:
        totals = frame.select(F.lit(f"{sink}.x").alias("subject"), F.to_json(F.struct("n", "count")).alias("data"))
        writer = totals.write.format("nats").option("url", server.url).option("stream", sink).option("prepare", True)
        for _ in range(2):  # a replay of the batch
            writer.option("writeId", "totals").option("batchId", batch).mode("append").save()

    streams.fill(source, [("x", text) for text in (b"a", b"b", b"a", b"a")])
    reader = spark.readStream.format("nats").option("url", server.url).option("stream", source)
    counted = reader.option("maxMessagesPerTrigger", 3).load().groupBy(F.col("data").cast("string").alias("n")).count()
    query = (
        counted.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    found = Counter((json.loads(row["data"])["n"], json.loads(row["data"])["count"]) for row in stored(sink))
    assert found == {("a", 2): 1, ("b", 1): 1, ("a", 3): 1}
    anchors = [row for row in stored(sink, markers=True) if row["subject"].endswith(".anchor")]
    assert len(anchors) == 1  # of the last batch
