"""Work-queue and interest streams: kept until Spark's checkpoint has it, released after."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

ACK = {"ack": "commit", "consumer": "spark"}


def held(streams, name: str) -> tuple[int, int]:
    """The first sequence that a stream holds, and how many messages."""
    state = streams.info(name)["state"]
    return state["first_seq"], state["messages"]


def consume(streams, name: str, consumer: str) -> None:
    """Make a durable consumer that acknowledges nothing by itself."""
    config = {"durable_name": consumer, "ack_policy": "explicit"}
    streams.api(f"CONSUMER.DURABLE.CREATE.{name}.{consumer}", {"stream_name": name, "config": config})


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_released_one_batch_late(query, streams, unique, retention, eventually):
    """Messages go once a later batch is planned, so that any replay still finds its own."""
    name = streams.make(unique("queue"), retention=retention)
    query.run(stream=name, **ACK)  # takes its place: an interest stream keeps nothing before that
    streams.fill(name, 100)
    query.run(stream=name, maxMessagesPerTrigger="40", **ACK)
    assert query.sequences() == list(range(1, 101))
    # The last batch, and what Spark committed last before it, stay until there is a next one.
    eventually(lambda: held(streams, name) == (81, 20))
    streams.fill(name, 10)
    query.run(stream=name, **ACK)
    assert query.sequences() == list(range(1, 111))
    eventually(lambda: held(streams, name)[0] in (81, 101))
    query.forget_last()
    query.run(stream=name, **ACK)  # a replay of the last batch
    assert query.sequences() == list(range(1, 111))


def test_another_reader_of_an_interest_stream_is_left_alone(query, streams, unique):
    """What another consumer still wants stays, however far the query is."""
    name = streams.make(unique("shared"), retention="interest")
    streams.api(
        f"CONSUMER.DURABLE.CREATE.{name}.other",
        {"stream_name": name, "config": {"durable_name": "other", "ack_policy": "explicit"}},
    )
    query.run(stream=name, **ACK)
    streams.fill(name, 30)
    query.run(stream=name, maxMessagesPerTrigger="10", **ACK)
    assert query.sequences() == list(range(1, 31))
    assert held(streams, name) == (1, 30)
    names = streams.api(f"CONSUMER.NAMES.{name}")["consumers"]
    assert sorted(names) == ["other", "spark-21"]


def test_a_lost_place_is_a_loss(query, streams, unique):
    """A query whose bookmark was removed cannot know what it missed, and says so."""
    name = streams.make(unique("lost"), retention="interest")
    query.run(stream=name, **ACK)
    streams.fill(name, 10)
    query.run(stream=name, **ACK)
    for consumer in streams.api(f"CONSUMER.NAMES.{name}")["consumers"]:
        streams.api(f"CONSUMER.DELETE.{name}.{consumer}")
    streams.fill(name, 10)
    with pytest.raises(StreamingQueryException, match="held this query's place"):
        query.run(stream=name, **ACK)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_refused_without_ack(query, read, streams, unique, retention):
    """A streaming read of such a stream needs `ack`; a batch read looks without taking anything."""
    name = streams.make(unique("refused"), retention=retention)
    streams.api(
        f"CONSUMER.DURABLE.CREATE.{name}.keep",
        {"stream_name": name, "config": {"durable_name": "keep", "ack_policy": "explicit"}},
    )
    streams.fill(name, 10)
    with pytest.raises(StreamingQueryException, match=f"has {retention} retention"):
        query.run(stream=name)
    assert read(name).count() == 10
    assert held(streams, name) == (1, 10)
    if retention == "workqueue":
        with pytest.raises(StreamingQueryException, match="another consumer takes its messages"):
            query.run(stream=name, **ACK)


def test_refused_where_it_cannot_be_safe(query, streams, unique):
    """A stream with limits has nothing to release; a work queue that denies purges cannot release."""
    name = streams.make(unique("limits"))
    with pytest.raises(StreamingQueryException, match="removes nothing by acks"):
        query.run(stream=name, **ACK)
    stuck = streams.make(unique("stuck"), retention="workqueue", deny_purge=True)
    with pytest.raises(StreamingQueryException, match="denies purges"):
        query.run(stream=stuck, **ACK)
    blind = streams.make(unique("blind"), retention="workqueue", allow_direct=False)
    with pytest.raises(StreamingQueryException, match="without direct get"):
        query.run(stream=blind, **ACK)


def test_a_work_queue_with_subjects(query, streams, unique):
    """Only what the query reads is released; other subjects stay for their own workers."""
    name = streams.make(unique("part"), retention="workqueue")
    streams.fill(name, [(kind, b"") for _ in range(30) for kind in ("mine", "also", "other")])
    query.run(stream=name, subjects=f"{name}.mine,{name}.also", maxMessagesPerTrigger="20", **ACK)
    assert len(query.sequences()) == 60
    assert streams.info(name)["state"]["messages"] < 60
    left = streams.api(f"STREAM.INFO.{name}", {"subjects_filter": f"{name}.other"})["state"]["subjects"]
    assert left == {f"{name}.other": 30}
