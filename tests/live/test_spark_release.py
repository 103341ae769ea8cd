"""Losses and releases of the Spark source, without a JVM: what is gone is said, what is held is kept."""

from __future__ import annotations

import pytest

from penstock.errors import DataLossError, InputError
from tests.live.querying import read

ACK = {"ack": "commit", "consumer": "spark"}


def held(made, name: str) -> tuple[int, int]:
    """The first sequence that a stream holds, and how many messages."""
    state = made.info(name)["state"]
    return state["first_seq"], state["messages"]


def consume(made, name: str, consumer: str) -> None:
    """Make a durable consumer that acknowledges nothing by itself."""
    config = {"durable_name": consumer, "ack_policy": "explicit"}
    made.api(f"CONSUMER.DURABLE.CREATE.{name}.{consumer}", {"stream_name": name, "config": config})


def drain(running) -> list[int]:
    """Run batches until there are no more."""
    found: list[int] = []
    while (batch := running.batch()) is not None:
        found += batch
    return found


def test_limits_that_overtake_a_query(query, streams, unique):
    """What the stream's own limits removed is a loss, named; where that is allowed, it is skipped and counted."""
    name = streams.make(unique("limits"), max_msgs=100)
    streams.fill(name, 60)
    running = query(stream=name)
    assert len(running.batch()) == 60
    streams.fill(name, 300)
    with pytest.raises(DataLossError, match=r"\[61, 261\) of the stream") as caught:
        running.batch()
    assert (caught.value.stream, caught.value.start, caught.value.first) == (name, 61, 261)
    running.restart(stream=name, failOnDataLoss="false")
    assert running.batch() == list(range(261, 361))
    assert running.offset["streams"][name]["skipped"] == 200


def test_deleted_and_compacted_messages_are_no_loss(query, streams, unique):
    """Single deletes, and older messages of a subject that a limit a subject removed, leave gaps, not losses."""
    name = streams.make(unique("compact"), max_msgs_per_subject=1)
    streams.fill(name, [(str(number % 10), b"") for number in range(95)])
    streams.api(f"STREAM.MSG.DELETE.{name}", {"seq": 90})
    running = query(stream=name, maxMessagesPerTrigger="4")
    assert drain(running) == [86, 87, 88, 89, 91, 92, 93, 94, 95]
    streams.fill(name, [("3", b"")])
    assert running.batch() == [96]


def test_a_start_that_is_gone(query, streams, unique):
    """A new query that is to start with a gone message says so, or begins with what is there."""
    name = streams.make(unique("start"))
    streams.fill(name, 50)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 21})
    with pytest.raises(DataLossError, match=r"\[5, 21\) of the stream"):
        query(stream=name, start="5").batch()
    running = query(stream=name, start="5", failOnDataLoss="false")
    assert running.batch() == list(range(21, 51))
    assert running.offset["streams"][name]["skipped"] == 16


def test_another_reader_of_an_interest_stream_is_left_alone(query, streams, unique):
    """What another consumer still wants stays, however far the query is."""
    name = streams.make(unique("shared"), retention="interest")
    consume(streams, name, "other")
    running = query(stream=name, maxMessagesPerTrigger="10", **ACK)
    assert running.batch() == []
    streams.fill(name, 30)
    assert drain(running) == list(range(1, 31))
    assert held(streams, name) == (1, 30)
    assert sorted(streams.api(f"CONSUMER.NAMES.{name}")["consumers"]) == ["other", "spark-21"]


def test_a_lost_place_is_a_loss(query, streams, unique):
    """A query whose bookmark was removed while it was down cannot know what it missed, and says so."""
    name = streams.make(unique("lost"), retention="interest")
    consume(streams, name, "other")
    running = query(stream=name, **ACK)
    assert running.batch() == []
    streams.fill(name, 10)
    assert len(running.batch()) == 10
    for consumer in streams.api(f"CONSUMER.NAMES.{name}")["consumers"]:
        if consumer != "other":
            streams.api(f"CONSUMER.DELETE.{name}.{consumer}")
    running.restart(stream=name, **ACK)
    with pytest.raises(DataLossError, match="held this query's place"):
        running.batch()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_refused_without_ack(server, query, streams, unique, retention):
    """A streaming read of such a stream needs `ack`; a batch read looks without taking anything."""
    name = streams.make(unique("refused"), retention=retention)
    consume(streams, name, "keep")
    streams.fill(name, 10)
    with pytest.raises(InputError, match=f"has {retention} retention"):
        query(stream=name).batch()
    assert len(read(server.url, stream=name)) == 10
    assert held(streams, name) == (1, 10)
    if retention == "workqueue":
        with pytest.raises(InputError, match="another consumer takes its messages"):
            query(stream=name, **ACK).batch()


def test_refused_where_it_cannot_be_safe(query, streams, unique):
    """A stream with limits has nothing to release; a work queue without purges or direct get cannot be released."""
    for config, words in (
        ({}, "removes nothing by acks"),
        ({"retention": "workqueue", "deny_purge": True}, "denies purges"),
        ({"retention": "workqueue", "allow_direct": False}, "without direct get"),
    ):
        name = streams.make(unique("unsafe"), **config)
        with pytest.raises(InputError, match=words):
            query(stream=name, **ACK).batch()


def test_a_work_queue_with_subjects(query, streams, unique):
    """Only what the query reads is released; other subjects stay for their own workers."""
    name = streams.make(unique("part"), retention="workqueue")
    streams.fill(name, [(kind, b"") for _ in range(30) for kind in ("mine", "also", "other")])
    running = query(stream=name, subjects=f"{name}.mine,{name}.also", maxMessagesPerTrigger="20", **ACK)
    assert len(drain(running)) == 60
    assert streams.info(name)["state"]["messages"] < 60
    left = streams.api(f"STREAM.INFO.{name}", {"subjects_filter": f"{name}.other"})["state"]["subjects"]
    assert left == {f"{name}.other": 30}
