"""The checker of the fault runner is proven for Spark, too: what is broken on purpose in real streams is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.faults import checker
from tests.faults.clients.spark import rows_of
from tests.faults.history import History, Operation
from tests.faults.plain import Plain, Stored
from tests.faults.spark_part import check_pipeline, check_writes
from tests.spark.conftest import Streams


def kinds(findings: Sequence[checker.Finding]) -> list[tuple[str, str]]:
    return [(finding.part, finding.kind) for finding in findings]


def read(url: str, stream: str) -> list[Stored]:
    """Look with a client that shares nothing with what is under test."""
    with Plain(url) as plain:
        return plain.read(stream)


def fed(numbers: Sequence[int]) -> History:
    """Give the ledger of a publisher whose messages were all acknowledged."""
    return History([Operation(str(n), "feed", 1, float(n), {"seq": n + 1}, n + 0.5, "ok") for n in numbers])


def test_planted_faults_of_a_pipeline_are_found(spark, streams: Streams, unique, tmp_path):
    """A batch written twice, a lost row and an ack that was dropped on the way are found, each as what it is."""
    source, target = streams.make(unique("FED")), streams.make(unique("MADE"), allow_atomic=True)
    streams.fill(source, 50)

    def pipeline(name: str) -> None:
        query = (
            spark.readStream.format("nats")
            .option("url", streams.url)
            .option("stream", source)
            .load()
            .selectExpr(f"'{target}.rows' AS subject", "data")
            .writeStream.format("nats")
            .option("url", streams.url)
            .option("stream", target)
            .option("prepare", "true")
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None

    def judged(numbers: Sequence[int] = range(50)) -> list[tuple[str, str]]:
        return kinds(check_pipeline(fed(numbers), read(streams.url, source), read(streams.url, target)))

    pipeline("first")
    assert judged() == []
    assert judged(range(51)) == [("feed", checker.LOST)]
    rows = [message for message in read(streams.url, target) if not message.subject.startswith("$PENSTOCK.")]
    streams.api(f"STREAM.MSG.DELETE.{target}", {"seq": rows[20].sequence})
    assert judged() == [("spark", checker.LOST)]
    pipeline("second")
    assert judged() == [("spark", checker.REPEATED)]
    assert judged(range(49)) == [("feed", checker.ALIEN), ("spark", checker.REPEATED), ("spark", checker.ALIEN)]


def test_planted_faults_of_writes_with_names_are_found(spark, streams: Streams, unique):
    """Rows of a name that are there twice, not at all, or in the place of others are found."""
    target = streams.make(unique("MADE"), allow_atomic=True)

    def save(name: str, rows: Sequence[str]) -> None:
        frame = spark.createDataFrame([(f"{target}.x", row) for row in rows], "subject string, data string")
        writer = frame.write.format("nats").option("url", streams.url).option("stream", target)
        writer.option("prepare", "true").option("writeId", name).mode("append").save()

    def judged(*numbers: int) -> list[tuple[str, str]]:
        facts: list[dict[str, Any]] = [{"kind": "write", "number": number} for number in numbers]
        done = [Operation(f"write-{at}", "spark", 1, at, fact, at + 0.5, "ok") for at, fact in enumerate(facts)]
        return kinds(check_writes(History(done), read(streams.url, target)))

    save("write-1", rows_of(1))
    save("write-1", rows_of(1))
    assert judged(1, 1) == []
    assert judged(1, 2) == [("spark", checker.LOST)]
    save("another", rows_of(1))
    assert judged(1) == [("spark", checker.REPEATED)]
    save("write-3", ["other-3-0"])
    assert judged(1) == [("spark", checker.REPEATED), ("spark", checker.ALIEN)]
