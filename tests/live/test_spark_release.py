"""Losses and releases of the Spark source, without a JVM: what is gone is said, what is held is kept."""

from __future__ import annotations

import asyncio

import pytest

from penstock.connection import connect
from penstock.errors import DataLossError, InputError, JetStreamError
from penstock.spark.connections import TaskConnection
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


def work_queue(made, name: str) -> str:
    """Make a work queue with two subjects, of which a query reads one."""
    return made.make(name, retention="workqueue")


async def take(url: str, name: str, consumer: str) -> None:
    """Take a message by a consumer, and acknowledge it."""
    async with await connect(url) as client:
        taken = await client.subscribe("taken")
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.{consumer}", b"", reply="taken")
        await (await taken.next_msg()).respond(b"+ACK")
        await client.flush()


def test_two_queries_with_one_consumer(query, streams, unique):
    """What one query releases of a work queue, another one with the same consumer cannot have read: it is told."""
    name = work_queue(streams, unique("twins"))
    options = {**ACK, "stream": name, "subjects": f"{name}.mine", "maxMessagesPerTrigger": "5"}
    one, other = query(**options), query(**options)
    assert (one.batch(), other.batch()) == ([], [])
    streams.fill(name, 20, subject="mine")
    assert [one.batch() for _ in range(4)] == [list(range(start, start + 5)) for start in (1, 6, 11, 16)]
    streams.fill(name, 5, subject="mine")
    assert one.batch() == list(range(21, 26))
    with pytest.raises(DataLossError, match="stands at 21: another query uses it"):
        drain(other)


def test_a_checkpoint_older_than_what_was_released(query, streams, unique):
    """A query that is set back to an older checkpoint finds its messages gone, and says so."""
    name = work_queue(streams, unique("old"))
    options = {**ACK, "stream": name, "subjects": f"{name}.mine", "maxMessagesPerTrigger": "5"}
    running = query(**options)
    assert running.batch() == []
    streams.fill(name, 20, subject="mine")
    assert running.batch() == [1, 2, 3, 4, 5]
    kept = running.offset
    assert len(drain(running)) == 15
    running.offset = kept
    running.restart(**options)
    with pytest.raises(DataLossError, match="this one's checkpoint is old"):
        running.batch()
    running.restart(**options, failOnDataLoss="false")
    assert drain(running) == list(range(16, 21))  # those that are there still


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_bookmark_that_somebody_else_uses(server, query, streams, unique, retention):
    """Messages that were taken by the query's own consumer, or while it was gone, are told."""
    name = streams.make(unique("used"), retention=retention)
    options = {**ACK, "stream": name, "subjects": f"{name}.mine"}
    running = query(**options)
    assert running.batch() == []
    streams.fill(name, 5, subject="mine")
    assert running.batch() == [1, 2, 3, 4, 5]
    (bookmark,) = streams.api(f"CONSUMER.NAMES.{name}")["consumers"]
    asyncio.run(take(server.url, name, bookmark))
    running.restart(**options)
    with pytest.raises(DataLossError, match="has given messages to somebody"):
        running.batch()
    streams.api(f"CONSUMER.DELETE.{name}.{bookmark}")
    running.restart(**options)
    with pytest.raises(DataLossError, match="is gone"):
        running.batch()


def test_an_old_bookmark_that_may_still_be_there(query, streams, unique, monkeypatch):
    """A server that does not say that it deleted an old bookmark, which would hold messages for ever, is an error."""
    name = streams.make(unique("kept"), retention="interest")
    running = query(**ACK, stream=name, maxMessagesPerTrigger="5")
    assert running.batch() == []
    streams.fill(name, 10)
    assert running.batch() == [1, 2, 3, 4, 5]
    ask = TaskConnection.ask

    def silent(bulk: TaskConnection, method: str, body: object = None) -> dict[str, object]:
        return {} if method.startswith("CONSUMER.DELETE.") else ask(bulk, method, body)

    monkeypatch.setattr(TaskConnection, "ask", silent)
    with pytest.raises(JetStreamError, match="did not do it"):
        drain(running)


def test_a_consumer_of_other_subjects_claims_nothing(query, streams, unique):
    """A consumer of that name which leaves the query's subjects to others is refused."""
    name = work_queue(streams, unique("other"))
    config = {"durable_name": "spark", "ack_policy": "explicit", "filter_subject": f"{name}.theirs"}
    streams.api(f"CONSUMER.DURABLE.CREATE.{name}.spark", {"stream_name": name, "config": config})
    with pytest.raises(InputError, match=f"claims {name}.theirs, which is not what this query reads"):
        query(**ACK, stream=name, subjects=f"{name}.mine").batch()
